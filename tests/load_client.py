"""Load and looks from outside, for tests that press a running relay hard.

Numbered queries (`numbered`, `number_of`) say which query a message belongs to, whatever its ID.
`tell_port` is a resolver's answer that names the asker's port: every worker has a socket of its own
for a resolver, so that port tells the workers apart. `PacedClient` is one UDP socket that asks at a
rate. `Echo` is a resolver in a process of its own, fast and indifferent to what it is asked.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from relay.endpoints import ControlAddress
from relay.status_client import fetch_status
from tests.rig import Address, Program, Relay, free_address, query_wire, udp_client, wait_until
from tests.rig.net import family_of, listening
from tests.rig.scripted import Asked
from tests.rig.wire import TYPE_NULL, question_of, record_wire, reply_wire

REPO = Path(__file__).resolve().parents[1]
_RECEIVE_BYTES = 65_535
_STEP_S = 0.001
_LOOK_S = 0.01

# -- numbered queries --------------------------------------------------------------------------

_HEAD = query_wire("q00000000.load.rig", TYPE_NULL, message_id=0)
_DIGITS = slice(14, 22)
"""Where the eight digits of the number stand: after the header, the label's length and a `q`."""


def numbered(number: int, message_id: int | None = None) -> bytes:
    """Query of that number; its ID is the number's low 16 bits unless one is given."""
    low = number & 0xFFFF if message_id is None else message_id
    return low.to_bytes(2, "big") + _HEAD[2 : _DIGITS.start] + b"%08d" % number + _HEAD[22:]


def number_of(message: bytes) -> int:
    """Number of the query that a message belongs to; ValueError where it is none of ours."""
    return int(message[_DIGITS])


def tell_port(asked: Asked) -> bytes:
    """An answer whose last two bytes are the port that the question came from."""
    port: int = asked.client[1]
    return reply_wire(asked.wire, [record_wire(TYPE_NULL, port.to_bytes(2, "big"))])


def told_port(reply: bytes) -> int:
    """What `tell_port` told."""
    return int.from_bytes(reply[-2:], "big")


def is_answer_to(query: bytes, reply: bytes) -> bool:
    """Whether a reply of `tell_port` has the ID and the question of `query`, and is no error."""
    same = reply[:2] == query[:2] and question_of(reply) == question_of(query)
    return same and reply[2] & 0x80 != 0 and reply[3] & 0x0F == 0


@contextlib.contextmanager
def relay_with(resolver: Address, workdir: Path, **smart_pool: Any) -> Iterator[Relay]:
    """One worker, one UDP resolver, and the settings given."""
    pool = {
        "name": "p",
        "listen": "127.0.0.1:0",
        "resolvers": [str(resolver)],
        "smart_pool": {"enabled": True, **smart_pool},
    }
    with Relay(workdir=workdir, config={"workers": 1, "pools": [pool]}) as relay:
        yield relay


def small_buffer_link(server: Address) -> socket.socket:
    """A connection whose client holds little: what it does not read stays with the relay."""
    link = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    link.settimeout(10.0)
    link.connect(server)
    return link


# -- the relay's own account -------------------------------------------------------------------


def status_of(relay: Relay) -> dict[str, Any]:
    return fetch_status(ControlAddress(Path(relay.control)))


def pool_of(relay: Relay, pool: int = 0) -> dict[str, Any]:
    """The state of one pool."""
    found: dict[str, Any] = status_of(relay)["pools"][pool]
    return found


def resolver_of(relay: Relay, place: int = 0, pool: int = 0) -> dict[str, Any]:
    """The state of one resolver of a pool, by its place in it."""
    found: dict[str, Any] = pool_of(relay, pool)["resolvers"][place]
    return found


def worker_pids(relay: Relay) -> list[int]:
    """The workers' pids by index."""
    return [worker["pid"] for worker in status_of(relay)["workers"]]


def all_ready(relay: Relay) -> bool:
    return all(worker["state"] == "ready" for worker in status_of(relay)["workers"])


def settled_pool(relay: Relay, pool: int = 0, timeout_s: float = 10.0) -> dict[str, Any]:
    """The state of a pool once every query in it has ended and its counters stand still.

    Workers publish every 20 ms: four looks 50 ms apart that agree are the final word.
    """
    deadline_at = time.monotonic() + timeout_s
    before: dict[str, Any] = {}
    looks = 0
    while True:
        all_of_it = pool_of(relay, pool)
        now = {key: all_of_it[key] for key in ("queries", "answers", "failures", "dropped")}
        ended = now["queries"] <= now["answers"] + now["failures"]
        looks = looks + 1 if ended and now == before else 0
        if looks == 3:
            return now
        assert time.monotonic() < deadline_at, f"does not settle: {now}"
        before = now
        time.sleep(0.05)


def assert_unharmed(relay: Relay, pids: list[int]) -> None:
    """The workers are those of before, and nobody had anything to complain about."""
    assert worker_pids(relay) == pids
    log = relay.log_text()
    for trouble in ("Traceback", "Exception", "was ended", "exited with"):
        assert trouble not in log, log[-4_000:]


def resolver_port(pid: int, resolver: Address) -> int:
    """The port from which a worker asks a resolver over UDP."""
    kind = "udp6" if family_of(resolver.host) is socket.AF_INET6 else "udp4"
    rows = psutil.Process(pid).net_connections(kind)
    (port,) = (row.laddr.port for row in rows if row.raddr and tuple(row.raddr) == resolver)
    return int(port)


def worker_use(relay: Relay) -> list[tuple[int, int]]:
    """Descriptors and resident bytes of every worker."""
    return [(each.num_fds(), each.memory_info().rss) for each in relay.workers()]


@dataclass(frozen=True, slots=True)
class Backlog:
    """What the kernel holds and has thrown away for the UDP sockets of one address."""

    held_bytes: int
    dropped: int


def backlog(address: Address) -> Backlog:
    """Look at /proc/net/udp (udp6 for IPv6)."""
    table = "udp6" if family_of(address.host) is socket.AF_INET6 else "udp"
    held, dropped = 0, 0
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        row = line.split()
        if int(row[1].rpartition(":")[2], 16) == address.port:
            held += int(row[4].partition(":")[2], 16)
            dropped += int(row[-1])
    return Backlog(held, dropped)


@contextlib.contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    """Let this process hold that many descriptors more than it may by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 256
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- killing -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Killing:
    """One kill -9, in monotonic seconds."""

    killed_at: float
    gone_at: float
    """When the process had ended: before that it may have read another query."""


def kill_at_once(pid: int) -> Killing:
    """Kill a process and return when it has really ended."""
    descriptor = os.pidfd_open(pid)
    try:
        killed_at = time.monotonic()
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended, _, _ = select.select([descriptor], [], [], 5.0)
        assert ended, f"process {pid} survives SIGKILL"
        return Killing(killed_at, time.monotonic())
    finally:
        os.close(descriptor)


# -- asking at a rate --------------------------------------------------------------------------


class PacedClient:
    """One connected UDP socket, a thread that sends at `rate_qps` and one that receives.

    The resolver answers with `tell_port`, or `proper` knows its answers. A context manager; the
    figures are for reading once it is left, `ports` and `outstanding` at any time. Sending catches
    up after a pause of the machine, so that the number of queries keeps to the rate.
    """

    def __init__(
        self,
        server: Address,
        rate_qps: float,
        *,
        proper: Callable[[bytes, bytes], bool] = is_answer_to,
    ) -> None:
        self.rate_qps = rate_qps
        self.sent_at: list[float] = []
        """By number."""
        self.answered_at: dict[int, float] = {}
        self.port_of: dict[int, int] = {}
        """The resolver-side port through which each query was answered, by number."""
        self.ports: dict[int, float] = {}
        """When the first answer through each port came."""
        self.wrong: list[bytes] = []
        """Messages that are no proper answer to what was asked."""
        self.repeated = 0
        self.errors: list[OSError] = []
        """What the socket complained of: a closed port would show here."""
        self._proper = proper
        self._socket = udp_client(server, 0.1)
        self._stopping = threading.Event()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._send, self._receive)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._threads[0].join()
        self._closing.set()
        self._threads[1].join()
        self._socket.close()

    def stop(self, patience_s: float = 1.0) -> None:
        """Send no more, and wait until all is answered or no answer has come for `patience_s`.

        Time in which the machine gave this process no turn does not count.
        """
        self._stopping.set()
        self._threads[0].join()
        answered, looks = -1, 0
        while self.outstanding and looks * _LOOK_S < patience_s:
            looks = looks + 1 if len(self.answered_at) == answered else 0
            answered = len(self.answered_at)
            time.sleep(_LOOK_S)

    @property
    def sent(self) -> int:
        return len(self.sent_at)

    @property
    def outstanding(self) -> int:
        return len(self.sent_at) - len(self.answered_at)

    @property
    def lost(self) -> list[int]:
        """Numbers without an answer."""
        return [each for each in range(self.sent) if each not in self.answered_at]

    def wait_for_port(self, without: Iterable[int], timeout_s: float = 10.0) -> tuple[int, float]:
        """Wait for an answer through a port not in `without`; return it and when it came."""
        known = set(without)

        def new() -> list[int]:
            return [port for port in list(self.ports) if port not in known]

        wait_until(lambda: bool(new()), "an answer through a new port", timeout_s)
        port = new()[0]
        return port, self.ports[port]

    def _send(self) -> None:
        started_at = time.monotonic()
        number = 0
        while not self._stopping.is_set():
            now = time.monotonic()
            due = int((now - started_at) * self.rate_qps)
            while number < due:
                try:
                    self.sent_at.append(time.monotonic())
                    self._socket.send(numbered(number))
                except OSError as error:
                    self.errors.append(error)
                number += 1
            time.sleep(_STEP_S)

    def _receive(self) -> None:
        while not self._closing.is_set():
            try:
                reply = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                self.errors.append(error)
                continue
            now = time.monotonic()
            try:
                number = number_of(reply)
            except ValueError:
                self.wrong.append(reply)
                continue
            if not self._proper(numbered(number), reply):
                self.wrong.append(reply)
            elif number in self.answered_at:
                self.repeated += 1
            else:
                port = told_port(reply)
                self.ports.setdefault(port, now)
                self.port_of[number] = port
                self.answered_at[number] = now


# -- a fast resolver ---------------------------------------------------------------------------


class Echo(Program):
    """A UDP resolver that returns every message as an answer without error, all else as it came."""

    def __init__(self, *, workdir: Path, address: Address | None = None) -> None:
        self.address = address or free_address()
        command: list[str | Path] = [sys.executable, "-m", "tests.load_client"]
        command += [self.address.host, str(self.address.port)]
        environment = {"PYTHONPATH": str(REPO)}
        super().__init__("echo", command, workdir=workdir, environment=environment)

    def is_ready(self) -> bool:
        return listening(self.pid, self.address, kinds=("udp",))


def echoed(query: bytes) -> bytes:
    """What `Echo` makes of a message of four bytes or more: QR set, TC and the code cleared."""
    return query[:2] + bytes([query[2] & 0xFD | 0x80, query[3] & 0xF0]) + query[4:]


def _echo(address: Address) -> None:
    udp = socket.socket(family_of(address.host), socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    udp.bind(address)
    while True:
        with contextlib.suppress(OSError):  # an asker that is gone
            query, asker = udp.recvfrom(_RECEIVE_BYTES)
            if len(query) > 3:
                udp.sendto(echoed(query), asker)


if __name__ == "__main__":
    _echo(Address(sys.argv[1], int(sys.argv[2])))
