"""The epoll behind one reader of the loop, on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
import uvloop

from workers.transports.poller import Poller


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = [socket.socketpair(type=socket.SOCK_DGRAM) for _ in range(3)]
    yield made
    for pair in made:
        for each in pair:
            each.close()


def run(body: object) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body)  # type: ignore[arg-type]


def test_poller_calls_back_for_every_ready_socket_and_once_after(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    async def body() -> None:
        seen: list[int] = []
        batches: list[int] = []
        done = asyncio.Event()

        def after() -> None:
            batches.append(len(seen))
            done.set()

        poller = Poller(asyncio.get_running_loop(), after)
        for number, (near, far) in enumerate(pairs):
            far.send(b"x")

            def ready(near: socket.socket = near, number: int = number) -> None:
                near.recv(10)
                seen.append(number)

            poller.add(near.fileno(), ready)
        await asyncio.wait_for(done.wait(), 5)
        assert sorted(seen) == [0, 1, 2]
        assert batches == [3]
        poller.close()

    run(body())


def test_poller_does_not_call_a_socket_that_another_callback_removed(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    async def body() -> None:
        called: list[int] = []
        done = asyncio.Event()
        poller = Poller(asyncio.get_running_loop(), done.set)

        def first_come() -> None:
            called.append(1)
            for near, _ in pairs:
                poller.remove(near.fileno())

        for near, far in pairs:
            far.send(b"x")
            poller.add(near.fileno(), first_come)
        await asyncio.wait_for(done.wait(), 5)
        assert called == [1]
        poller.close()

    run(body())


def test_poller_hears_of_a_closed_port_every_time() -> None:
    async def body() -> None:
        refused = 0
        done = asyncio.Event()
        poller = Poller(asyncio.get_running_loop(), lambda: None)
        with socket.socket(type=socket.SOCK_DGRAM) as closed:
            closed.bind(("127.0.0.1", 0))
            address = closed.getsockname()
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.connect(address)

        def ready() -> None:
            nonlocal refused
            try:
                sock.recv(10)
            except ConnectionRefusedError:
                refused += 1
                done.set()

        poller.add(sock.fileno(), ready)
        for number in range(1, 6):
            done.clear()
            sock.send(b"x")
            await asyncio.wait_for(done.wait(), 5)
            assert refused == number
        poller.remove(sock.fileno())
        sock.close()
        poller.close()

    run(body())
