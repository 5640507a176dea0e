"""Resolvers with limits in the roster, on real sockets and through both frontends."""

from __future__ import annotations

import asyncio

from tests.loopback import Shell, TcpClient, TcpPeer, UdpPeer, never, on_loop
from tests.rig.wire import opt_wire, query_wire, reply_of_size, reply_wire
from workers.engine.health import State
from workers.settings import ResolverEntry

LONG = ".".join(["x" * 50] * 4)


def narrow(wire: bytes) -> bytes | None:
    """Drop questions above 150 octets."""
    return reply_wire(wire) if len(wire) <= 150 else None


def wide(wire: bytes) -> bytes:
    return reply_of_size(wire, 900)


def entry(place: tuple[str, str, int], **limits: int) -> ResolverEntry:
    scheme, host, port = place
    return ResolverEntry(0, scheme, host, port, name=f"{scheme}://{host}:{port}", **limits)


@on_loop
async def test_long_names_over_udp_and_tcp_reach_only_the_resolvers_that_let_them_through() -> None:
    async with (
        UdpPeer(narrow) as small,
        UdpPeer(wide) as large,
        TcpPeer() as stream,
        UdpPeer(never) as udp_client,
        Shell(entry(small.udp, longest_name=100), large.udp, stream.tcp) as shell,
        TcpClient(await shell.tcp()) as tcp_client,
    ):
        address = await shell.udp()
        for _ in range(1_000):  # until all have shown what they are
            await shell.ask().reply()
            if all(each.state is State.IN_USE for each in shell.engine.resolvers):
                break
            await asyncio.sleep(0.002)
        assert all(each.state is State.IN_USE for each in shell.engine.resolvers)
        short = len(small.heard)
        for number in range(30):
            wire = query_wire(LONG, message_id=number, opt=opt_wire(1232))
            udp_client.say(wire, address)
            await udp_client.wait(number + 1)
            assert (await tcp_client.ask(wire))[:2] == wire[:2]
        assert len(small.heard) == short
        assert [wire for wire in large.wires if len(wire) > 200] != []
        assert [wire for wire in stream.heard if len(wire) > 200] != []
        for _ in range(30):
            await shell.ask().reply()
        assert len(small.heard) > short
