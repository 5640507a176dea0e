"""TCP clients: many, idle, slow and greedy ones; each gets its answers, and all is bounded."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from tests.load_client import (
    assert_unharmed,
    many_descriptors,
    number_of,
    numbered,
    pool_of,
    relay_with,
    settled_pool,
    small_buffer_link,
    worker_pids,
    worker_use,
)
from tests.rig import (
    Asked,
    Relay,
    Reply,
    Say,
    ScriptedResolver,
    ask_tcp,
    ask_udp,
    read_framed,
    reply_of_size,
    reply_wire,
)
from tests.rig.process import RigError
from tests.rig.wire import SERVFAIL, TYPE_NULL, framed, query_wire, rcode_of


def is_closed(link: socket.socket) -> bool:
    """Whether the other side has closed or reset an idle connection, now."""
    link.setblocking(False)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_tcp_1000_idle_connections_are_served_and_one_more_is_turned_away(workdir: Path) -> None:
    most = 1_000
    with (
        many_descriptors(most),
        ScriptedResolver() as resolver,
        Relay([resolver.address], workdir=workdir, workers=1) as relay,
        ExitStack() as stack,
    ):
        pids = worker_pids(relay)
        links = [
            stack.enter_context(socket.create_connection(relay.address, 5.0)) for _ in range(most)
        ]
        # The last of the thousand is in: the worker has taken all.
        links[-1].sendall(framed(numbered(1)))
        assert read_framed(links[-1]) == reply_wire(numbered(1))
        turned_away = [
            stack.enter_context(socket.create_connection(relay.address, 5.0)) for _ in range(10)
        ]
        relay.wait_for(lambda: all(map(is_closed, turned_away)), "ten more turned away")
        assert settled_pool(relay)["dropped"]["client_connection_limit"] == 10
        for number, link in enumerate(links):
            link.sendall(framed(numbered(number)))
        for number, link in enumerate(links):
            assert read_framed(link) == reply_wire(numbered(number))
        assert ask_udp(relay.address, numbered(5)) == reply_wire(numbered(5))
        memory = worker_use(relay)
        # Room that becomes free is given to the next.
        links.pop().close()

        def is_served() -> bool:
            try:
                return ask_tcp(relay.address, numbered(6)) == reply_wire(numbered(6))
            except (OSError, RigError):
                return False

        relay.wait_for(is_served, "room for another")
        assert not any(map(is_closed, links))
        assert_unharmed(relay, pids)
    print(f"\n{most} TCP connections: descriptors and resident bytes of the worker {memory}")


def test_tcp_idle_half_asked_and_half_closed_connections_end_after_the_idle_time(
    workdir: Path,
) -> None:
    """Half a message does not keep a connection open; one on which something happens stays."""
    with (
        ScriptedResolver() as resolver,
        relay_with(resolver.address, workdir, tcp_idle="500ms") as relay,
        ExitStack() as stack,
    ):

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(relay.address, 5.0))

        idle, half, busy = connected(), connected(), connected()
        half.sendall(framed(numbered(1))[:7])
        opened_at = time.monotonic()
        while not (is_closed(idle) and is_closed(half)):
            assert time.monotonic() - opened_at < 5.0
            busy.settimeout(5.0)
            busy.sendall(framed(numbered(2)))
            assert read_framed(busy) == reply_wire(numbered(2))
            time.sleep(0.05)
        assert time.monotonic() - opened_at > 0.4
        busy.sendall(framed(numbered(3)))
        assert read_framed(busy) == reply_wire(numbered(3))


def large(asked: Asked) -> Reply:
    return reply_of_size(asked.wire, 60_000, TYPE_NULL)


def test_tcp_client_that_never_reads_is_closed_with_memory_bounded_and_others_served(
    workdir: Path,
) -> None:
    queries = 500
    with (
        ScriptedResolver(large) as resolver,
        Relay([f"tcp://{resolver.address}"], workdir=workdir, workers=1) as relay,
        small_buffer_link(relay.address) as slow,
        small_buffer_link(relay.address) as other,
    ):
        pids = worker_pids(relay)
        query = numbered(1)
        other.sendall(framed(query))
        assert read_framed(other) == reply_of_size(query, 60_000, TYPE_NULL)
        (worker,) = relay.workers()
        before = worker.memory_info().rss
        slow.sendall(b"".join(framed(numbered(number)) for number in range(queries)))
        peak = 0

        def is_dropped() -> bool:
            nonlocal peak
            peak = max(peak, worker.memory_info().rss)
            return bool(pool_of(relay)["dropped"]["client_slow"])

        relay.wait_for(is_dropped, "the slow client closed")
        other.sendall(framed(query))
        assert read_framed(other) == reply_of_size(query, 60_000, TYPE_NULL)
        assert_unharmed(relay, pids)
        dropped = settled_pool(relay)["dropped"]
    print(f"\nslow reader: worker grew by {(peak - before) >> 10} KiB at most, {dropped}")
    assert dropped["client_slow"] == 1
    # 30 MB were asked for. 4 MiB may be held for the client; as much again is on its way through
    # the buffers of the resolver's side at times, and an allocator does not give back all at once.
    assert peak - before < 24 << 20


def test_tcp_client_that_reads_slowly_gets_everything(workdir: Path) -> None:
    queries = 60
    with (
        ScriptedResolver(large) as resolver,
        Relay([f"tcp://{resolver.address}"], workdir=workdir, workers=1) as relay,
        small_buffer_link(relay.address) as slow,
    ):
        wires = {number: numbered(number) for number in range(queries)}
        slow.sendall(b"".join(map(framed, wires.values())))
        relay.wait_for(lambda: pool_of(relay)["answers"] == queries, "all answered inside")
        for _ in range(queries):
            reply = read_framed(slow)
            assert reply == reply_of_size(wires.pop(number_of(reply)), 60_000, TYPE_NULL)
        assert settled_pool(relay)["dropped"]["client_slow"] == 0


def test_tcp_300_pipelined_queries_are_answered_in_the_order_of_the_answers(workdir: Path) -> None:
    """The first third is answered last: nothing waits for what was asked before."""
    queries = 300

    def answer(asked: Asked) -> Reply:
        first_third = number_of(asked.wire) < queries // 3
        return Say(reply_wire(asked.wire), after_s=0.4 if first_third else 0.0)

    with (
        ScriptedResolver(answer) as resolver,
        Relay([resolver.address], workdir=workdir, workers=2) as relay,
        socket.create_connection(relay.address, 5.0) as link,
    ):
        wires = [numbered(number) for number in range(queries)]
        stream = b"".join(map(framed, wires))
        draw = random.Random(7)
        at = 0
        while at < len(stream):  # segments that begin and end anywhere
            size = draw.randrange(1, 3_000)
            link.sendall(stream[at : at + size])
            at += size
        replies = [read_framed(link) for _ in range(queries)]
    assert sorted(replies, key=number_of) == [reply_wire(wire) for wire in wires]
    late = {number_of(reply) for reply in replies[-queries // 3 :]}
    assert late == set(range(queries // 3))


def test_tcp_5000_pipelined_queries_on_one_connection_all_answered(workdir: Path) -> None:
    """Far more than may be in flight: the relay reads on as answers leave.

    The client says at once that it will ask no more (RFC 7766, 6.2.4), and is closed in the end.
    """
    queries = 5_000
    with (
        ScriptedResolver() as resolver,
        Relay([resolver.address], workdir=workdir, workers=1) as relay,
        socket.create_connection(relay.address, 10.0) as link,
    ):
        stream = b"".join(framed(numbered(number)) for number in range(queries))

        def send() -> None:
            link.sendall(stream)
            link.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        reader = link.makefile("rb")
        seen = set()
        for _ in range(queries):
            reply = reader.read(int.from_bytes(reader.read(2), "big"))
            seen.add(number_of(reply))
        sender.join()
        assert reader.read() == b""
    assert seen == set(range(queries))


def test_tcp_client_of_the_largest_query_gets_an_answer(workdir: Path) -> None:
    """65,535 bytes fit a TCP resolver; over UDP nobody can be asked, and nothing is harmed."""
    huge = query_wire("huge.load.rig", TYPE_NULL)
    huge += bytes(65_535 - len(huge))
    with (
        ScriptedResolver() as resolver,
        Relay([f"tcp://{resolver.address}"], workdir=workdir, workers=1) as over_tcp,
        Relay([resolver.address], workdir=workdir, workers=1) as over_udp,
    ):
        assert ask_tcp(over_tcp.address, huge) == reply_wire(huge)
        assert rcode_of(ask_tcp(over_udp.address, huge)) == SERVFAIL
        assert ask_tcp(over_udp.address, numbered(1)) == reply_wire(numbered(1))
