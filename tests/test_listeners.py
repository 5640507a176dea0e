"""Listening sockets and steering against the real kernel."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from relay import steering
from relay.endpoints import ListenAddress
from relay.listeners import BUFFER_BYTES, ListenError, Listeners, PoolListeners, bind_pool
from tests.rig.net import family_of, free_address, why_no_ipv6

PACKETS = 2_000

HOSTS = [
    "127.0.0.1",
    "0.0.0.0",
    pytest.param("::1", marks=pytest.mark.skipif(bool(why_no_ipv6()), reason=why_no_ipv6())),
    pytest.param("::", marks=pytest.mark.skipif(bool(why_no_ipv6()), reason=why_no_ipv6())),
]
KINDS = [socket.SOCK_DGRAM, socket.SOCK_STREAM]


@contextlib.contextmanager
def listening(host: str, workers: int, mode: str = "packet") -> Iterator[Listeners]:
    listeners = Listeners(workers, mode)
    listeners.bind([ListenAddress(host, 0)])
    try:
        yield listeners
    finally:
        listeners.close()


@contextlib.contextmanager
def bound_pool(address: ListenAddress, workers: int) -> Iterator[PoolListeners]:
    pool = bind_pool(address, workers)
    try:
        yield pool
    finally:
        pool.close()


def reachable(address: ListenAddress) -> tuple[str, int]:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host), address.port


def received(group: list[socket.socket]) -> list[int]:
    """Empty every UDP socket of a group; return how many datagrams each held."""
    counts = []
    for each in group:
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                each.recv(64)
                count += 1
        counts.append(count)
    return counts


def spread_from_one_socket(pool: PoolListeners, packets: int = PACKETS) -> list[int]:
    target = reachable(pool.address)
    totals = [0] * len(pool.udp)
    with socket.socket(family_of(target[0]), socket.SOCK_DGRAM) as client:
        for number in range(packets):
            client.sendto(b"query", target)
            if number % 100 == 99:
                totals = [a + b for a, b in zip(totals, received(pool.udp), strict=True)]
    return totals


def spread_of_connections(pool: PoolListeners, connections: int) -> list[int]:
    target = reachable(pool.address)
    totals = [0] * len(pool.tcp)
    for _ in range(connections):
        with socket.create_connection(target):
            for index, each in enumerate(pool.tcp):
                with contextlib.suppress(BlockingIOError):
                    each.accept()[0].close()
                    totals[index] += 1
    return totals


# -- binding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
def test_bind_port_0_gives_every_worker_udp_and_tcp_on_one_port(host: str) -> None:
    with listening(host, 3) as listeners:
        (pool,) = listeners.pools
        assert pool.address.port > 0
        assert len(pool.udp) == len(pool.tcp) == 3
        names = {each.getsockname()[:2] for each in (*pool.udp, *pool.tcp)}
        assert names == {(host, pool.address.port)}
        assert all(not each.getblocking() for each in (*pool.udp, *pool.tcp))


def test_bind_port_0_that_is_free_for_udp_only_takes_another() -> None:
    """Whatever port the kernel proposes first, its TCP side is taken here."""
    taken: list[socket.socket] = []

    class Taking(socket.socket):
        def bind(self, address: tuple[str, int]) -> None:
            super().bind(address)
            if self.type == socket.SOCK_DGRAM and not taken:
                with contextlib.suppress(OSError):  # that one's TCP side is somebody's already
                    taken.append(socket.create_server(("127.0.0.1", self.getsockname()[1])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relay.listeners.socket.socket", Taking)
        pool = bind_pool(ListenAddress("127.0.0.1", 0), 2)
    assert taken
    assert pool.address.port != taken[0].getsockname()[1]
    pool.close()
    taken[0].close()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_bind_of_an_address_in_use_is_refused_although_it_is_shared(
    host: str, kind: socket.SocketKind, shared: bool
) -> None:
    with socket.socket(family_of(host), kind) as holder:
        if shared:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, 0))
        if kind is socket.SOCK_STREAM:
            holder.listen()
        address = ListenAddress(host, holder.getsockname()[1])
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ListenError) as caught:
            bind_pool(address, 2)
    protocol = "UDP" if kind is socket.SOCK_DGRAM else "TCP"
    assert str(caught.value).startswith(f"cannot listen on {address} ({protocol}): the address is")
    assert len(os.listdir("/proc/self/fd")) == before - 1  # the holder, which is closed by now


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("workers", [1, 4])
def test_bind_of_what_another_relay_has_is_refused(host: str, workers: int) -> None:
    with listening(host, workers) as first, pytest.raises(ListenError, match="in use by"):
        bind_pool(first.pools[0].address, 4)


def test_bind_of_a_wildcard_over_a_held_address_is_refused() -> None:
    with (
        listening("127.0.0.1", 2) as first,
        pytest.raises(ListenError, match="in use by another pool of this relay"),
    ):
        bind_pool(ListenAddress("0.0.0.0", first.pools[0].address.port), 2)


def test_bind_of_two_families_on_one_port_works() -> None:
    if why_no_ipv6():
        pytest.skip(why_no_ipv6())
    # Not a port of the kernel's choice: one free over IPv6 may be a connection's over IPv4.
    port = free_address("0.0.0.0").port
    with (
        bound_pool(ListenAddress("::", port), 2),
        bound_pool(ListenAddress("0.0.0.0", port), 2),
    ):
        pass


def test_bind_of_an_address_of_no_interface_says_so() -> None:
    with pytest.raises(ListenError, match="no interface of this machine has this address"):
        bind_pool(ListenAddress("192.0.2.1", 5353), 1)


def test_bind_all_or_none() -> None:
    with listening("127.0.0.1", 1) as first:
        listeners = Listeners(2, "packet")
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ListenError):
            listeners.bind([ListenAddress("127.0.0.1", 0), first.pools[0].address])
        assert listeners.pools == []
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("host", HOSTS)
def test_bind_after_connections_in_time_wait_works(host: str) -> None:
    with listening(host, 2) as first:
        address = first.pools[0].address
        client = socket.create_connection(reachable(address))
        accepted = None
        for each in first.pools[0].tcp:
            with contextlib.suppress(BlockingIOError):
                accepted, _ = each.accept()
        assert accepted is not None
        accepted.shutdown(socket.SHUT_WR)  # closed from this side first: TIME_WAIT is on this port
        assert client.recv(1) == b""
        client.close()
        accepted.setblocking(True)
        assert accepted.recv(1) == b""
        accepted.close()
    in_use = os.strerror(errno.EADDRINUSE)
    with socket.socket(family_of(host)) as strict, pytest.raises(OSError, match=in_use):
        strict.bind((host, address.port))
    with bound_pool(address, 2) as second:
        assert second.address == address


def test_bind_gives_udp_sockets_large_buffers() -> None:
    with listening("127.0.0.1", 2) as listeners:
        for each in listeners.pools[0].udp:
            size_bytes = each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            if os.geteuid() == 0:
                assert size_bytes >= BUFFER_BYTES
            else:
                assert size_bytes > 0


# -- steering ----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
def test_steer_packets_of_one_socket_spread_evenly(host: str) -> None:
    with listening(host, 4) as listeners:
        counts = spread_from_one_socket(listeners.pools[0])
    assert sum(counts) == PACKETS
    assert all(0.2 * PACKETS < count < 0.3 * PACKETS for count in counts), counts


@pytest.mark.parametrize("serving", [(1, 2, 3), (0, 3), (2,), (0, 1, 2)])
def test_steer_leaves_out_the_missing_and_spreads_over_the_rest(serving: tuple[int, ...]) -> None:
    with listening("127.0.0.1", 4) as listeners:
        listeners.steer(serving)
        counts = spread_from_one_socket(listeners.pools[0])
        expected = PACKETS / len(serving)
        for index, count in enumerate(counts):
            if index in serving:
                assert abs(count - expected) < 0.25 * expected, counts
            else:
                assert count == 0, counts
        listeners.steer((0, 1, 2, 3))
        assert all(spread_from_one_socket(listeners.pools[0]))


def test_steer_with_nobody_serving_keeps_all_in_rotation() -> None:
    with listening("127.0.0.1", 3) as listeners:
        listeners.steer(())
        assert all(spread_from_one_socket(listeners.pools[0]))


def test_steer_by_flow_keeps_one_socket_with_one_worker() -> None:
    with listening("127.0.0.1", 4, mode="flow") as listeners:
        counts = spread_from_one_socket(listeners.pools[0], 200)
        assert sorted(counts) == [0, 0, 0, 200]
        busy = counts.index(200)
        listeners.steer([index for index in range(4) if index != busy])
        assert spread_from_one_socket(listeners.pools[0], 200)[busy] == 0
        listeners.steer(range(4))
        assert sorted(spread_from_one_socket(listeners.pools[0], 200)) == [0, 0, 0, 200]


@pytest.mark.parametrize("host", ["127.0.0.1", HOSTS[2]])
def test_steer_leaves_missing_workers_out_of_new_connections(host: str) -> None:
    with listening(host, 3) as listeners:
        listeners.steer((0, 2))
        counts = spread_of_connections(listeners.pools[0], 60)
        assert counts[1] == 0
        assert counts[0]
        assert counts[2]
        listeners.steer((0, 1, 2))
        assert all(spread_of_connections(listeners.pools[0], 90))


def test_steer_where_the_kernel_refuses_warns_once_and_goes_by_flow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Option 51 is the program's; 4051 is nobody's, so the refusal is the kernel's own.
    monkeypatch.setattr(steering, "SO_ATTACH_REUSEPORT_CBPF", 4051)
    with listening("127.0.0.1", 4) as listeners:
        listeners.steer((0, 1))
        assert sorted(spread_from_one_socket(listeners.pools[0], 100)) == [0, 0, 0, 100]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "no steering program" in caplog.text


def test_steer_queue_of_a_dead_worker_is_there_for_its_successor() -> None:
    with listening("127.0.0.1", 2) as listeners:
        listeners.steer((0,))
        spread_from_one_socket(listeners.pools[0], 100)
        target = reachable(listeners.pools[0].address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for _ in range(50):
                client.sendto(b"query", target)
        successor = socket.socket(fileno=os.dup(listeners.pools[0].udp[0].fileno()))
        assert received([successor]) == [50]
        successor.close()
