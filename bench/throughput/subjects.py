"""The programs measured, each started fresh before the same authoritative servers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.rig import Address, Dnsdist, Nsd, Relay, Zone
from tests.rig.net import free_address
from tests.rig.wire import opt_wire, query_wire

LARGE_ZONE, SMALL_ZONE = "large.bench", "small.bench"
TEXTS_BYTES = {LARGE_ZONE: 900, SMALL_ZONE: 12}
"""The text that every name of a zone has."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_NAMES = 20_000


@dataclass(frozen=True, slots=True)
class Running:
    """A subject that is up."""

    address: Address
    processes: Callable[[], list[psutil.Process]]
    """All its processes: their CPU is what a query costs."""
    workers: Callable[[], list[psutil.Process]]
    """Those that carry the data."""
    servers: Sequence[Address] = ()
    """Where it connects to by TCP; empty where it asks over UDP."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to measure, under the name that the tables show."""

    name: str
    start: Callable[[Path, Sequence[Address]], contextlib.AbstractContextManager[Running]]


def relay_with(workers: int, resolvers: int | None = None) -> Subject:
    """`relay serve` with this many workers, over so many of the servers or over all."""

    @contextlib.contextmanager
    def start(workdir: Path, servers: Sequence[Address]) -> Iterator[Running]:
        with Relay(servers[:resolvers], workdir=workdir, workers=workers) as relay:
            yield Running(relay.address, relay.family, relay.workers)

    name = f"relay, {workers} worker{'s' if workers > 1 else ''}"
    return Subject(f"{name}, {resolvers:,} resolvers" if resolvers else name, start)


@contextlib.contextmanager
def _start_dnsdist(workdir: Path, servers: Sequence[Address]) -> Iterator[Running]:
    with Dnsdist(servers, workdir=workdir) as dnsdist:
        yield Running(dnsdist.address, dnsdist.family, dnsdist.family)


DNSDIST = Subject("dnsdist", _start_dnsdist)


_ZONES = [Zone(zone, wildcard_text_bytes=size) for zone, size in TEXTS_BYTES.items()]


@contextlib.contextmanager
def authoritative_servers(workdir: Path, count: int) -> Iterator[list[Address]]:
    """Fast servers that answer any name of the two zones."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Nsd(_ZONES, workdir=workdir, edns_size_bytes=4096)).address
            for _ in range(count)
        ]


@contextlib.contextmanager
def one_server(workdir: Path, addresses: int) -> Iterator[list[Address]]:
    """One fast server on many addresses: as many resolvers, without as many processes."""
    port = free_address().port
    hosts = [Address(f"127.1.{n // 250}.{1 + n % 250}", port) for n in range(addresses)]
    with Nsd(_ZONES, workdir=workdir, edns_size_bytes=4096, addresses=hosts):
        yield hosts


def tunnel_names(zone: str) -> list[str]:
    """Names as a tunnel makes them: never twice the same; the questions come to 53-70 bytes."""
    draw = random.Random(7)
    sizes = [draw.randint(53, 70) - 12 - 4 - 11 - 1 - 1 - len(zone) - 1 for _ in range(_NAMES)]
    return ["".join(draw.choices(_LETTERS, k=size)) + "." + zone for size in sizes]


def question_file(workdir: Path, zone: str) -> Path:
    """The names for dnsperf."""
    path = workdir / f"{zone}.questions"
    path.write_text("".join(f"{name} TXT\n" for name in tunnel_names(zone)))
    return path


def question_wires(zone: str) -> list[bytes]:
    """The same questions as messages."""
    return [query_wire(name, opt=opt_wire(4096)) for name in tunnel_names(zone)]
