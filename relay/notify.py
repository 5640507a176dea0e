"""Messages to a service manager over NOTIFY_SOCKET, as sd_notify(3) describes them.

Owner: the supervisor. Without NOTIFY_SOCKET everything here does nothing; a message that cannot be
delivered is dropped, because no service manager is worth a stopped relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """A datagram socket to the service manager, or nothing. `watchdog_s` is 0 for no watchdog."""

    __slots__ = ("_socket", "watchdog_s")

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        self._socket: socket.socket | None = None
        self.watchdog_s = _watchdog_s(env)
        address = env.get("NOTIFY_SOCKET", "")
        if address[:1] not in ("/", "@"):
            return
        target = "\0" + address[1:] if address[0] == "@" else address
        client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            client.connect(target)
        except OSError:
            client.close()
            return
        self._socket = client

    def ready(self, status: str) -> None:
        """Say that the service serves (after a reload: again)."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Say that the configuration is being read again; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Say that the service goes down."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Say in one line how the service is."""
        self._send(f"STATUS={status}")

    def watchdog(self) -> None:
        """Say that the service is alive; due at least every `watchdog_s`."""
        self._send("WATCHDOG=1")

    async def feed_watchdog(self) -> None:
        """Say so in time, for ever. Only with a watchdog."""
        while True:
            self.watchdog()
            await asyncio.sleep(self.watchdog_s / 2)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(message.encode())


def _watchdog_s(env: Mapping[str, str]) -> float:
    """Return the watchdog's interval in seconds, 0 where it is not meant for this process."""
    interval, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    if not interval.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(interval) / 1e6
