"""The command of `relay run`: started when the pool serves, and the relay's reason to be there.

Owner: the supervisor. The command gets the pool's address in its arguments and the terminal, the
standard streams and the signals that the relay is sent. When it ends the relay ends, with its exit
status; when the relay cannot go on, the command is told to end.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from relay.child import when_ended
from relay.endpoints import ListenAddress, bracketed, ip_of

if TYPE_CHECKING:
    from relay.process import Relay

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""A command ended by signal n counts as status 128 + n. All three as in a shell."""

PASSED_ON: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
FROM_KEYBOARD: Final = (signal.SIGINT, signal.SIGQUIT)
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

TERMINATE_S: Final = 5.0
"""How long a command may take to end when the relay failed."""

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)

log = logging.getLogger(__name__)


class Command:
    """A command to be run. `descriptor_limits` (soft, hard) are those it shall have."""

    def __init__(self, argv: list[str], descriptor_limits: tuple[int, int]) -> None:
        self._argv = argv
        self._limits = descriptor_limits
        self._process: subprocess.Popen[bytes] | None = None
        self._relay: Relay | None = None
        self._status: int | None = None

    async def attend(self, relay: Relay) -> int:
        """Run the relay, with the command as soon as it serves; return the exit status."""
        self._relay = relay
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            loop.add_signal_handler(number, self._pass_on, number)
        status = await relay.run()
        if self._status is None:
            self._terminate()
            return status
        return self._status

    def start(self) -> None:
        """Start the command: the pool serves."""
        assert self._relay is not None
        words = [filled_in(word, self._relay.listen_address(0)) for word in self._argv]
        try:
            self._process = subprocess.Popen(words, preexec_fn=self._before_exec)
        except (OSError, subprocess.SubprocessError) as error:
            missing = isinstance(error, FileNotFoundError)
            reason = "not found" if missing else getattr(error, "strerror", None) or str(error)
            log.error("%s: %s", words[0], reason)
            self._end(NOT_FOUND if missing else NOT_EXECUTABLE)
            return
        when_ended(self._process, self._ended)

    def _ended(self, status: int) -> None:
        self._end(status if status >= 0 else SIGNALLED - status)

    def _end(self, status: int) -> None:
        self._status = status
        if self._relay is not None:
            self._relay.stop()

    def _pass_on(self, number: signal.Signals) -> None:
        if self._process is not None:
            if not (number in FROM_KEYBOARD and _in_foreground()):
                self._process.send_signal(number)
        elif number in ENDING:
            self._end(SIGNALLED + number)

    def _terminate(self) -> None:
        """End the command because the relay is no more."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(TERMINATE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _before_exec(self) -> None:
        # Nobody answers the command's questions once the relay is gone, however it went.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        # The relay raised its own limit; programs that look at every descriptor would suffer.
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


def filled_in(word: str, listen: ListenAddress) -> str:
    """Return an argument with {resolver}, {host} and {port} replaced by where the pool listens."""
    host = listen.host
    ip = ip_of(host)
    if ip is not None and ip.is_unspecified:
        host = "::1" if ip.version == 6 else "127.0.0.1"
    word = word.replace("{resolver}", f"{bracketed(host)}:{listen.port}")
    return word.replace("{host}", host).replace("{port}", str(listen.port))


def _in_foreground() -> bool:
    """Whether the terminal sends what is typed there to the command as well."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
