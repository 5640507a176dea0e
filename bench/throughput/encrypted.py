"""The relay and dnsdist asking the same servers over TLS, and how often they connect to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.throughput.subjects import TEXTS_BYTES, Running, Subject
from tests.encrypted import Resolver, pool, relay_of
from tests.rig import Address
from tests.rig.certs import Authority
from tests.rig.tls_servers import (
    PATH,
    OutgoingDnsdist,
    Unbound,
    doh_url,
    dot_url,
    trusting,
)


@dataclass(frozen=True, slots=True)
class Ground:
    """Servers with DoT and DoH, which answer the questions of the bench by themselves."""

    authority: Authority
    servers: Sequence[Unbound]

    def dot(self) -> list[Address]:
        """Where they take DoT."""
        return [each.dot for each in self.servers]

    def doh(self) -> list[Address]:
        """Where they take DoH."""
        return [each.doh for each in self.servers]


@contextlib.contextmanager
def encrypted_servers(workdir: Path, count: int) -> Iterator[Ground]:
    """So many servers. What they do for TLS is theirs and not the subject's."""
    authority = Authority(workdir)
    certificate = authority.issue()
    with contextlib.ExitStack() as stack:
        yield Ground(
            authority,
            [
                stack.enter_context(
                    Unbound(None, certificate, workdir=workdir, texts=TEXTS_BYTES, max_streams=200)
                )
                for _ in range(count)
            ],
        )


def subjects(ground: Ground) -> list[Subject]:
    """The relay with one worker and dnsdist, each over DoT and over DoH."""
    return [
        _relay("DoT", ground, ground.dot(), dot_url),
        _dnsdist("DoT", ground, ground.dot(), ""),
        _relay("DoH", ground, ground.doh(), doh_url),
        _dnsdist("DoH", ground, ground.doh(), PATH),
    ]


def _relay(
    what: str, ground: Ground, places: Sequence[Address], url: Callable[[Address], str]
) -> Subject:
    @contextlib.contextmanager
    def start(workdir: Path, _: Sequence[Address]) -> Iterator[Running]:
        resolvers = [trusting(ground.authority, url(place)) for place in places]
        with relay_of(workdir, pool("bench", *resolvers)) as relay:
            yield Running(relay.address, relay.family, relay.workers, places)

    return Subject(f"relay, 1 worker, {what}", start)


def _dnsdist(what: str, ground: Ground, places: Sequence[Address], path: str) -> Subject:
    @contextlib.contextmanager
    def start(workdir: Path, _: Sequence[Address]) -> Iterator[Running]:
        with OutgoingDnsdist(places, ground.authority, workdir=workdir, path=path) as dnsdist:
            yield Running(dnsdist.address, dnsdist.family, dnsdist.family, places)

    return Subject(f"dnsdist, {what}", start)


# -- a busy DoH resolver and the others --------------------------------------------------------


@contextlib.contextmanager
def two_pools(
    workdir: Path, ground: Ground, udp: Sequence[Address], busy: str
) -> Iterator[tuple[Address, Address]]:
    """One worker with two pools: where the one over UDP listens, and the one that is kept busy.

    The busy one is over `busy`: DoH, DoT or UDP.
    """
    resolvers: dict[str, list[Resolver]] = {
        "DoH": [trusting(ground.authority, doh_url(place)) for place in ground.doh()],
        "DoT": [trusting(ground.authority, dot_url(place)) for place in ground.dot()],
        "UDP": [str(place) for place in udp],
    }
    with relay_of(
        workdir, pool("measured", *resolvers["UDP"]), pool("busy", *resolvers[busy])
    ) as relay:
        yield relay.pool_address(0), relay.pool_address(1)
