"""Many clients, many ports, many connections: each gets its own answers, and nothing is kept."""

from __future__ import annotations

import socket
import time
from collections import Counter, deque
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.load_client import (
    Echo,
    assert_unharmed,
    backlog,
    echoed,
    number_of,
    numbered,
    relay_with,
    settled_pool,
    worker_pids,
    worker_use,
)
from tests.rig import (
    Address,
    Asked,
    Relay,
    Reply,
    Say,
    ScriptedResolver,
    ask_tcp,
    ask_udp,
    receive_all,
    reply_wire,
    udp_client,
)
from tests.rig.net import why_no_ipv6
from tests.rig.wire import SERVFAIL, rcode_of


def mixed_up(asked: Asked) -> Reply:
    """Answers that come in another order than their questions."""
    return Say(reply_wire(asked.wire), after_s=0.02 * (asked.number % 3))


# -- IDs and ports -----------------------------------------------------------------------------


def test_200_clients_all_with_id_0_each_gets_its_own_answers(workdir: Path) -> None:
    clients, rounds = 200, 10
    with (
        ScriptedResolver(mixed_up) as resolver,
        Relay([resolver.address], workdir=workdir, workers=4) as relay,
        ExitStack() as stack,
    ):
        sockets = [stack.enter_context(udp_client(relay.address)) for _ in range(clients)]
        for client, each in enumerate(sockets):
            for place in range(rounds):
                each.send(numbered(client * rounds + place, message_id=0))
        for client, each in enumerate(sockets):
            replies = receive_all(each, rounds)
            wires = [numbered(client * rounds + place, message_id=0) for place in range(rounds)]
            assert sorted(replies, key=number_of) == [reply_wire(wire) for wire in wires]
        for each in sockets:  # and nobody gets anything of anybody else's
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(512)
        ids = {asked.id for asked in resolver.asked}
        assert len(ids) > clients * rounds * 0.9  # the relay's own are drawn at random


def test_one_client_1000_open_queries_with_one_id_all_answered(workdir: Path) -> None:
    count = 1_000
    with (
        ScriptedResolver(lambda asked: Say(reply_wire(asked.wire), after_s=0.2)) as resolver,
        Relay([resolver.address], workdir=workdir, workers=2) as relay,
        udp_client(relay.address) as client,
    ):
        wires = [numbered(number, message_id=4711) for number in range(count)]
        for wire in wires:
            client.send(wire)
        replies = receive_all(client, count)
    assert sorted(replies, key=number_of) == [reply_wire(wire) for wire in wires]


@pytest.mark.alone
def test_20000_queries_open_at_one_resolver_have_ids_of_their_own_and_are_all_answered(
    workdir: Path,
) -> None:
    """More than a socket's IDs can serve well: the resolver gets another socket."""
    count = 20_000
    held: list[Asked] = []

    def answer(asked: Asked) -> Reply:
        held.append(asked)
        if len(held) < count:
            return None
        # At a rate that the buffers of a single client socket can take.
        return [
            Say(reply_wire(each.wire), to=each.client, after_s=place * 0.00004)
            for place, each in enumerate(held)
        ]

    with (
        ScriptedResolver(answer) as resolver,
        relay_with(resolver.address, workdir, per_attempt="20s", deadline="20s") as relay,
        udp_client(relay.address) as client,
    ):
        for number in range(count):
            client.send(numbered(number))
            if number % 250 == 0:
                relay.wait_for(lambda: backlog(relay.address).held_bytes < 1 << 20, "room")
        replies = receive_all(client, count, timeout_s=15.0)
        (use,) = worker_use(relay)
    ids = Counter((asked.client, asked.id) for asked in held)
    print(f"\n{count} open at once: {len({asked.client for asked in held})} sockets, worker {use}")
    assert {number_of(reply) for reply in replies} == set(range(count))
    assert max(ids.values()) == 1
    assert len({asked.client for asked in held}) == 2


PORTS = 20_000
OPEN_AT_ONCE = 200
GROWTH_BYTES = 2 << 20
"""What a worker may grow by. One hundred bytes kept for every port would be as much."""


def ask_from_new_ports(server: Address, count: int) -> int:
    """Ask once from each of `count` sockets, some hundred open at a time; return how many ports."""
    ports = set()
    waiting: deque[tuple[socket.socket, bytes]] = deque()
    for number in range(count + OPEN_AT_ONCE):
        if len(waiting) >= OPEN_AT_ONCE or number >= count:
            if not waiting:
                break
            client, query = waiting.popleft()
            with client:
                assert client.recv(512) == echoed(query)
        if number < count:
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            client.settimeout(10.0)
            client.connect(server)
            ports.add(client.getsockname()[1])
            query = numbered(number)
            client.send(query)
            waiting.append((client, query))
    return len(ports)


def test_client_with_a_new_port_for_each_of_20000_queries_leaves_nothing_behind(
    workdir: Path,
) -> None:
    """A round before the comparison: caches, pools of memory and the like are filled by then."""
    with (
        Echo(workdir=workdir) as resolver,
        Relay([resolver.address], workdir=workdir, workers=2) as relay,
    ):
        pids = worker_pids(relay)
        ask_from_new_ports(relay.address, PORTS // 4)
        before = worker_use(relay)
        started_at = time.monotonic()
        ports = ask_from_new_ports(relay.address, PORTS)
        took_s = time.monotonic() - started_at
        pool = settled_pool(relay)
        after = worker_use(relay)
        assert_unharmed(relay, pids)
    print(
        f"\n{PORTS} queries from {ports} ports in {took_s:.1f} s; descriptors and resident bytes "
        f"of the workers before {before}, after {after}"
    )
    assert pool["answers"] == pool["queries"] == PORTS + PORTS // 4
    assert ports > PORTS // 4  # the kernel hands ports out again, but not at once
    for (descriptors, memory), (descriptors_then, memory_then) in zip(after, before, strict=True):
        assert descriptors == descriptors_then
        assert memory <= memory_then + GROWTH_BYTES


@pytest.mark.parametrize(
    ("listen", "asked"),
    [("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "127.8.9.10"), ("::", "::1")],
)
def test_wildcard_listener_answers_from_the_address_that_was_asked(
    listen: str, asked: str, workdir: Path
) -> None:
    reason = why_no_ipv6() if ":" in listen else ""
    if reason:
        pytest.skip(reason)
    with (
        ScriptedResolver() as resolver,
        Relay([resolver.address], workdir=workdir, workers=2, listen=Address(listen, 0)) as relay,
    ):
        server = Address(asked, relay.address.port)
        for number in range(50):  # a connected socket takes answers from there alone
            assert ask_udp(server, numbered(number)) == reply_wire(numbered(number))
            assert ask_tcp(server, numbered(number)) == reply_wire(numbered(number))


def test_queries_beyond_max_pending_get_servfail_at_once_and_the_rest_their_answers(
    workdir: Path,
) -> None:
    most, count = 100, 300
    with (
        ScriptedResolver(lambda asked: Say(reply_wire(asked.wire), after_s=0.5)) as resolver,
        relay_with(resolver.address, workdir, max_pending=most) as relay,
        udp_client(relay.address) as client,
    ):
        for number in range(count):
            client.send(numbered(number))
        replies = receive_all(client, count)
        pool = settled_pool(relay)
    codes = Counter(rcode_of(reply) for reply in replies)
    assert codes == {0: most, SERVFAIL: count - most}
    assert {number_of(reply) for reply in replies[: count - most]} == set(range(most, count))
    assert pool["dropped"]["client_overload"] == count - most
    assert resolver.count == most
