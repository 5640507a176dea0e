"""Questions over UDP to any number of resolvers, over a few sockets that are connected to none.

Owner: the Checker. However many questions are open, there are `SOCKETS` descriptors for each IP
version and source (`bind`) in use. A reply counts only if it came from the address that was asked,
to the same socket, with the random ID and the question that was sent.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from relay.discovery.check_messages import is_reply
from shared.errors import RelayError
from workers.transports.dial import bind_source
from workers.transports.faults import PACKET_ERRNOS, in_words

SOCKETS: Final = 2
"""Of one IP version and source: two, so that a reply has to hit the port too."""

MOST_SOURCES: Final = 6
"""Pairs of IP version and source whose sockets are kept open."""

BATCH: Final = 512
"""Datagrams taken from a socket before others get their turn."""

RECEIVE_BUFFER_BYTES: Final = 4 << 20
MAX_DATAGRAM_BYTES: Final = 65_535

SEND_AGAIN_S: Final = (0.005, 0.02, 0.1)
"""Waits before a packet that the kernel had no room for is tried again."""

NO_HOST_ERRNOS: Final = frozenset((errno.EACCES, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))
"""The address is not that of a host, a broadcast address say: that is the candidate's fault."""


class LocalFault(RelayError):
    """This machine could not send. The message is for people."""


class NoHost(RelayError):
    """What cannot be sent to, by its address. The message is for people."""


@dataclass(slots=True)
class Outcome:
    """What came of a question and its repetitions."""

    reply: bytes = b""
    """Empty: there was no answer."""
    number: int = 0
    """Which of the questions was answered."""
    latency_s: float = 0.0
    asked: int = 0
    """Questions that had their time: an answered one, and those before it."""

    @property
    def answered(self) -> int:
        """How many of them were answered."""
        return 1 if self.reply else 0


_Key = tuple[str, int, bytes]
"""Address and port that were asked, and the ID."""


class UdpAsker:
    """Asks over UDP. To be used on one event loop, and closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sources: dict[tuple[socket.AddressFamily, str], list[_Socket]] = {}
        self._turn = itertools.count()

    def close(self) -> None:
        """Close every socket; what is open gets no answer."""
        for sockets in self._sources.values():
            for each in sockets:
                each.close()
        self._sources.clear()

    async def ask(
        self,
        host: str,
        port: int,
        bind: str,
        questions: Sequence[bytes],
        timeout_s: float,
        again_s: float,
    ) -> Outcome:
        """Send the questions in turn, `again_s` apart, until one is answered.

        The last one has its whole time too: the end comes `timeout_s` after the first, and not
        before `again_s` after the last. Raises LocalFault, NoHost.
        """
        name, zone, interface = host.partition("%")
        family = socket.AF_INET6 if ":" in name else socket.AF_INET
        target: tuple[str, int] | tuple[str, int, int, int] = (name, port)
        if zone:
            try:
                target = (name, port, 0, socket.if_nametoindex(interface))
            except OSError as error:
                raise LocalFault(f"there is no interface {interface} now") from error
        sockets = self._sockets(family, bind)
        via = sockets[next(self._turn) % len(sockets)]
        asking = _Asking(self._loop, via, target, questions, timeout_s, again_s)
        try:
            await asking.start()
            return await asking.done
        finally:
            asking.stop()

    def _sockets(self, family: socket.AddressFamily, bind: str) -> list[_Socket]:
        found = self._sources.get((family, bind))
        if found is not None:
            return found
        self._drop_idle()
        sockets: list[_Socket] = []
        try:
            for _ in range(SOCKETS):
                sockets.append(_Socket(self._loop, family, bind))
        except OSError as error:
            for each in sockets:
                each.close()
            raise LocalFault(in_words(error)) from error
        self._sources[family, bind] = sockets
        return sockets

    def _drop_idle(self) -> None:
        """Make room for the sockets of another source, as far as there are idle ones."""
        for key in list(self._sources):
            if len(self._sources) < MOST_SOURCES:
                break
            if not any(each.open for each in self._sources[key]):
                for each in self._sources.pop(key):
                    each.close()


class _Asking:
    """One call of `ask`."""

    __slots__ = (
        "_again_s",
        "_ends_at",
        "_ids",
        "_loop",
        "_questions",
        "_sent_at",
        "_timer",
        "_via",
        "done",
        "target",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        via: _Socket,
        target: tuple[str, int] | tuple[str, int, int, int],
        questions: Sequence[bytes],
        timeout_s: float,
        again_s: float,
    ) -> None:
        self._loop = loop
        self._via = via
        self.target = target
        self._questions = questions
        self._again_s = again_s
        self._ids: list[bytes] = []
        self._sent_at: list[float] = []
        self._ends_at = monotonic() + timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[Outcome] = loop.create_future()

    async def start(self) -> None:
        """Send the first question."""
        for wait_s in (*SEND_AGAIN_S, None):
            try:
                self._send()
            except OSError as error:
                if error.errno in NO_HOST_ERRNOS:
                    raise NoHost(in_words(error)) from error
                if wait_s is None or error.errno not in PACKET_ERRNOS:
                    raise LocalFault(in_words(error)) from error
                await asyncio.sleep(wait_s)
            else:
                break
        self._arm()

    def stop(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        host, port = self.target[:2]
        for drawn in self._ids:
            self._via.open.pop((host, port, drawn), None)

    def replied(self, drawn: bytes, reply: bytes) -> None:
        """Take in a reply from the right address under an ID of ours."""
        number = self._ids.index(drawn)
        asked = self._questions[number]
        if not self.done.done() and is_reply(asked, reply):
            latency_s = monotonic() - self._sent_at[number]
            self.done.set_result(Outcome(reply, number, latency_s, number + 1))

    def _send(self) -> None:
        via = self._via
        host, port = self.target[:2]
        while True:
            drawn = os.urandom(2)
            key = (host, port, drawn)
            if key not in via.open:
                break
        via.sock.sendto(drawn + self._questions[len(self._ids)][2:], self.target)
        via.open[key] = self
        self._ids.append(drawn)
        self._sent_at.append(monotonic())

    def _arm(self) -> None:
        left_s = self._ends_at - monotonic()
        if len(self._ids) < len(self._questions):
            left_s = self._again_s
        elif len(self._ids) > 1:
            left_s = max(left_s, self._again_s)
        self._timer = self._loop.call_later(left_s, self._due)

    def _due(self) -> None:
        if self.done.done():
            return
        if len(self._ids) < len(self._questions):
            try:
                self._send()
            except OSError:
                # The first one went: that this one could not does not end the wait.
                self._questions = self._questions[: len(self._ids)]
            self._arm()
        else:
            self.done.set_result(Outcome(asked=len(self._ids)))


class _Socket:
    """A socket with its open questions."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, family: socket.AddressFamily, bind: str
    ) -> None:
        self._loop = loop
        self.open: dict[_Key, _Asking] = {}
        self.sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            bind_source(self.sock, bind)
            if self.sock.getsockname()[1] == 0:
                self.sock.bind(("", 0))
            loop.add_reader(self.sock.fileno(), self._readable)
        except BaseException:
            self.sock.close()
            raise

    def close(self) -> None:
        self._loop.remove_reader(self.sock.fileno())
        self.sock.close()

    def _readable(self) -> None:
        receive = self.sock.recvfrom
        opened = self.open
        for _ in range(BATCH):
            try:
                reply, source = receive(MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error about an earlier question
            drawn = reply[:2]
            asking = opened.get((source[0].partition("%")[0], source[1], drawn))
            if asking is not None:
                asking.replied(drawn, reply)
