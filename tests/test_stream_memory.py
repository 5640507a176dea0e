"""Connections and dials that end by the hundred leave no memory, no descriptor and no session."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.loopback import Link, Shell, TcpPeer, on_loop, settle, until
from tests.rig.certs import HOST as NAME
from tests.rig.certs import Authority, Certificate
from workers.settings import ResolverEntry
from workers.transports import stream_resolver
from workers.transports.channel import TlsChannel
from workers.transports.dial import LOOKS

NOERROR = 0
WARM_UP = 20
ROUNDS = 120
MOST_BYTES_A_ROUND = 2_000
"""A connection of TLS takes about 40 kB while it stands, and a copy of its session 6 kB."""


class Mallinfo(ctypes.Structure):
    """Of mallinfo2(3)."""

    _fields_ = [
        *((f"other_{number}", ctypes.c_size_t) for number in range(7)),
        ("in_use", ctypes.c_size_t),
        ("free", ctypes.c_size_t),
        ("keep", ctypes.c_size_t),
    ]


def bytes_in_use() -> int:
    """What this process has taken from malloc and not given back to it: TLS, but few objects."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo
    return int(mallinfo2().in_use)


needs_mallinfo = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no mallinfo2"
)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What is not freed when it is dropped stays, as it may for long in a busy worker."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def context_of(certificate: Certificate, *, resumes: bool) -> ssl.SSLContext:
    context = certificate.context()
    if not resumes:
        context.num_tickets = 0
    return context


def dot(peer: TcpPeer, authority: Authority) -> ResolverEntry:
    host, port = peer.address[:2]
    return ResolverEntry(0, "dot", host, port, "x", server_name=NAME, ca_file=str(authority.file))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.asynccontextmanager
async def ended_connections(
    authority: Authority, resumes: bool
) -> AsyncIterator[tuple[Shell, TcpPeer]]:
    tls = context_of(authority.issue([NAME]), resumes=resumes)
    async with TcpPeer(tls=tls) as peer, Shell(dot(peer, authority)) as shell:
        yield shell, peer


async def end_one(shell: Shell, peer: TcpPeer) -> None:
    assert await shell.ask().rcode() == NOERROR
    peer.links[-1].close()
    await until(lambda: not shell.stream()._connections)
    peer.links.clear()
    peer.heard.clear()
    shell.faults.clear()


@needs_mallinfo
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("resumes", [True, False])
def test_connections_that_ended_leave_no_memory_and_no_descriptor(
    resumes: bool, authority: Authority
) -> None:
    @on_loop
    async def run() -> None:
        async with ended_connections(authority, resumes) as (shell, peer):
            for _ in range(WARM_UP):
                await end_one(shell, peer)
            before, open_before = bytes_in_use(), descriptors()
            for _ in range(ROUNDS):
                await end_one(shell, peer)
            await settle()
            assert (bytes_in_use() - before) / ROUNDS < MOST_BYTES_A_ROUND
            assert descriptors() <= open_before
            assert shell.blames() == (0, 0)

    run()


@pytest.mark.parametrize("resumes", [True, False])
def test_sessions_are_looked_at_seldom_and_resumed_every_time(
    resumes: bool, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    session = TlsChannel.session.fget
    assert session is not None

    def look(channel: TlsChannel) -> ssl.SSLSession | None:
        looks.append(channel)
        return session(channel)

    monkeypatch.setattr(TlsChannel, "session", property(look))

    @on_loop
    async def run() -> None:
        resumed = []
        async with ended_connections(authority, resumes) as (shell, peer):
            for _ in range(3 * LOOKS):
                asked = shell.ask()
                assert await asked.rcode() == NOERROR
                (connection,) = shell.stream()._connections
                assert isinstance(connection.channel, TlsChannel)
                resumed.append(connection.channel.resumed)
                del connection
                await end_one(shell, peer)
        assert resumed == [False] + [resumes] * (3 * LOOKS - 1)
        assert 1 <= len(looks) <= (2 if resumes else LOOKS)

    run()


# -- dials that are broken off ------------------------------------------------------------------


@needs_mallinfo
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("by", ["roster", "end", "certificate"])
def test_dials_that_were_broken_off_leave_no_memory_and_no_descriptor(
    by: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_resolver, "FIRST_PAUSE_S", 0.0)
    stranger = Authority(tmp_path, "stranger")

    @on_loop
    async def run() -> None:
        def greets(link: Link) -> None:
            if by == "end":
                link.close()

        tls = stranger.issue([NAME]).context() if by == "certificate" else None
        async with (
            TcpPeer(serve=lambda link, wire: None, greets=greets, tls=tls) as peer,
            Shell(dot(peer, authority), down_after=10_000) as shell,
        ):

            async def break_one_off() -> None:
                asked = shell.ask()
                if by == "roster":
                    await until(lambda: peer.links)
                    shell.set_roster()
                assert await asked.rcode() != NOERROR
                if by == "roster":
                    await until(lambda: peer.links[-1].ended)
                    shell.set_roster(dot(peer, authority))
                peer.links.clear()
                shell.faults.clear()

            for _ in range(WARM_UP):
                await break_one_off()
            before, open_before = bytes_in_use(), descriptors()
            for _ in range(ROUNDS):
                await break_one_off()
            await settle()
            assert (bytes_in_use() - before) / ROUNDS < MOST_BYTES_A_ROUND
            assert descriptors() <= open_before + 1

    run()
