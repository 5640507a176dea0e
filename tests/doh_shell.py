"""What the tests of DoH share: a scripted server in a roster, and questions to it."""

from __future__ import annotations

from typing import Any

from tests.loopback import Asked, Shell
from tests.rig.certs import HOST, Authority
from tests.rig.doh_server import (
    DohServer,
)
from tests.rig.wire import (
    query_wire,
)
from workers.settings import ResolverEntry
from workers.transports.doh import DohConnection

NOERROR = 0
NAME = HOST


def entry(server: DohServer, authority: Authority, **fields: Any) -> ResolverEntry:
    """The server as it stands in a roster."""
    host, port = server.address
    named = {"server_name": NAME, "path": "/dns-query", "ca_file": str(authority.file), **fields}
    return ResolverEntry(0, "https", host, port, f"https://{NAME}", **named)


def connections(shell: Shell) -> list[DohConnection]:
    made = shell.stream()._connections
    assert all(isinstance(each, DohConnection) for each in made)
    return made  # type: ignore[return-value]


def counted(shell: Shell, number: int = 0) -> tuple[int, int, int]:
    """Refusals, losses and errors of a resolver."""
    resolver = shell.resolver(number)
    return resolver.refused, resolver.lost, resolver.errors


def ask_many(shell: Shell, count: int) -> list[Asked]:
    return [shell.ask(query_wire(f"q{n}.t.example", message_id=7)) for n in range(count)]


async def rcodes(asked: list[Asked]) -> list[int]:
    return [await each.rcode() for each in asked]
