"""The channel between supervisor and worker, over a real pair of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from workers.channel import Channel

Body = Callable[[Channel, Channel], Awaitable[None]]


def joined(body: Body) -> None:
    """Run `body` with both ends of a channel."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        one, other = await Channel.open(ours), await Channel.open(theirs)
        try:
            async with asyncio.timeout(10):
                await body(one, other)
        finally:
            one.close()
            other.close()
            for end in (one, other):
                await end._writer.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def with_raw_peer(body: Callable[[Channel, socket.socket], Awaitable[None]]) -> None:
    """Run `body` with one end of a channel and a bare socket at the other."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        channel = await Channel.open(ours)
        theirs.setblocking(False)
        try:
            async with asyncio.timeout(10):
                await body(channel, theirs)
        finally:
            channel.close()
            theirs.close()
            with contextlib.suppress(ConnectionError):
                await channel._writer.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_channel_carries_messages_both_ways_in_order() -> None:
    async def body(one: Channel, other: Channel) -> None:
        sent = [
            {"op": "roster", "pool": 0, "resolvers": []},
            {"op": "drain", "deadline_s": 5.0},
            {"op": "fault", "reason": "zeile\neins", "slot": 3},
        ]
        for message in sent:
            one.send(message)
        other.send({"op": "ready"})
        assert [await other.receive() for _ in sent] == sent
        assert await one.receive() == {"op": "ready"}

    joined(body)


def test_channel_iterates_until_the_other_end_closes() -> None:
    async def body(one: Channel, other: Channel) -> None:
        for number in range(3):
            one.send({"op": "n", "number": number})
        await one.flush()
        one.close()
        assert [message["number"] async for message in other] == [0, 1, 2]
        assert await other.receive() is None

    joined(body)


def test_channel_carries_a_roster_of_fifty_thousand() -> None:
    async def body(one: Channel, other: Channel) -> None:
        entry = {"slot": 1, "scheme": "udp", "host": "192.0.2.1", "port": 53, "name": "x" * 60}
        message = {"op": "roster", "pool": 0, "resolvers": [entry] * 50_000}
        one.send(message)
        received = await other.receive()
        assert received == message

    joined(body)


def test_channel_with_half_a_message_at_its_end_gives_none() -> None:
    async def body(channel: Channel, peer: socket.socket) -> None:
        peer.send(b'{"op":"ready"}\n{"op":"dra')
        peer.shutdown(socket.SHUT_WR)
        assert await channel.receive() == {"op": "ready"}
        assert await channel.receive() is None

    with_raw_peer(body)


def test_channel_with_a_message_in_single_bytes_takes_it() -> None:
    async def body(channel: Channel, peer: socket.socket) -> None:
        receiving = asyncio.ensure_future(channel.receive())
        for byte in b'{"op":"drain","deadline_s":0.5}\n':
            peer.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert await receiving == {"op": "drain", "deadline_s": 0.5}

    with_raw_peer(body)


def test_channel_to_a_process_that_is_gone_drops_what_is_sent() -> None:
    async def body(channel: Channel, peer: socket.socket) -> None:
        peer.close()
        for _ in range(5):
            channel.send({"op": "ready"})
            await channel.flush()
        assert await channel.receive() is None
        channel.send({"op": "drained"})

    with_raw_peer(body)


@pytest.mark.parametrize("line", [b"not json\n", b"\xff\xfe\n", b"[1, 2\n"])
def test_channel_with_a_line_that_is_no_message_says_so(line: bytes) -> None:
    async def body(channel: Channel, peer: socket.socket) -> None:
        peer.send(line)
        with pytest.raises(ValueError, match=r"."):  # orjson's error is one
            await channel.receive()

    with_raw_peer(body)
