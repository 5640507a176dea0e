"""Hostile input to the listener: nothing falls over, honest queries beside it are answered, and the
counters say what was dropped.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.hostile_messages import (
    INPUT_DROPS,
    QUERY,
    fate_of_query,
    hostile_queries,
    hostile_streams,
    messages_in,
)
from tests.load_client import (
    Backlog,
    Echo,
    PacedClient,
    assert_unharmed,
    backlog,
    echoed,
    numbered,
    settled_pool,
    worker_pids,
)
from tests.rig import (
    Address,
    Relay,
    ScriptedResolver,
    ask_udp,
    read_framed,
    reply_wire,
    udp_client,
)
from tests.rig.wire import (
    FORMERR,
    HEADER_BYTES,
    NOTIMP,
    framed,
    message_id,
    rcode_of,
)

SEED = 20_240_229
DATAGRAMS = 200_000
STREAMS = 4_000
HONEST_QPS = 200


def is_echo(query: bytes, reply: bytes) -> bool:
    return reply == echoed(query)


class HonestTcp:
    """One TCP connection that asks all the while; every answer must be exact."""

    def __init__(self, server: Address) -> None:
        self.answered = 0
        self.trouble: list[str] = []
        self._link = socket.create_connection(server, 5.0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._link.close()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.005):
                query = numbered(self.answered)
                self._link.sendall(framed(query))
                if read_framed(self._link) != echoed(query):
                    self.trouble.append(f"wrong answer to {query!r}")
                self.answered += 1
        except Exception as error:
            self.trouble.append(repr(error))


def assert_all_answered(client: PacedClient) -> None:
    assert (client.lost, client.wrong, client.repeated, client.errors) == ([], [], 0, [])


# -- the listener ------------------------------------------------------------------------------

HELD_BYTES = 1 << 20
"""The sender waits while the kernel holds more than this for the relay: nothing may overflow."""


def wait_for_room(server: Address) -> Backlog:
    deadline_at = time.monotonic() + 20.0
    while (now := backlog(server)).held_bytes > HELD_BYTES:
        assert time.monotonic() < deadline_at, f"the relay does not read: {now}"
        time.sleep(0.002)
    return now


def test_listener_200000_hostile_datagrams_each_counted_and_honest_queries_answered(
    workdir: Path,
) -> None:
    fates: Counter[str] = Counter()
    with (
        Echo(workdir=workdir) as resolver,
        Relay([resolver.address], workdir=workdir, workers=2) as relay,
        contextlib.ExitStack() as sockets,
        HonestTcp(relay.address) as over_tcp,
        PacedClient(relay.address, HONEST_QPS, proper=is_echo) as honest,
    ):
        pids = worker_pids(relay)
        attackers = [sockets.enter_context(udp_client(relay.address)) for _ in range(8)]
        started_at = time.monotonic()
        for number, message in enumerate(hostile_queries(SEED, DATAGRAMS)):
            fates[fate_of_query(message)] += 1
            attackers[number % 8].send(message)
            if number % 250 == 0:
                wait_for_room(relay.address)
        took_s = time.monotonic() - started_at
        honest.stop()
        over_tcp.__exit__()
        pool = settled_pool(relay)
        lost_by_kernel = backlog(relay.address).dropped
        assert_unharmed(relay, pids)
    print(
        f"\n{DATAGRAMS} datagrams in {took_s:.1f} s, {lost_by_kernel} lost by the kernel; expected "
        f"{dict(fates)}; counted {pool['queries']} queries, {pool['dropped']}; honest: "
        f"{honest.sent} over UDP, {over_tcp.answered} over TCP"
    )
    assert_all_answered(honest)
    assert over_tcp.trouble == []
    assert lost_by_kernel == 0
    assert {key: pool["dropped"][key] for key in INPUT_DROPS} == {
        key: fates[key] for key in INPUT_DROPS
    }
    assert pool["queries"] == fates[QUERY] + honest.sent + over_tcp.answered
    assert pool["answers"] + pool["failures"] == pool["queries"]
    assert all(fates[key] > DATAGRAMS // 50 for key in (*INPUT_DROPS, QUERY)), fates


def test_listener_hostile_datagrams_one_by_one_get_the_error_or_the_silence_due(
    workdir: Path,
) -> None:
    """In lock step with an honest query: what comes before its answer is about the hostile one."""
    with (
        ScriptedResolver() as resolver,
        Relay([resolver.address], workdir=workdir, workers=1) as relay,
        udp_client(relay.address) as client,
    ):
        for number, message in enumerate(hostile_queries(SEED + 1, 1_500)):
            fate = fate_of_query(message)
            if fate == QUERY:
                continue
            honest = numbered(number, 0xAAAA ^ message_id(message + b"\0\0"))
            client.send(message)
            client.send(honest)
            said = client.recv(65_535)
            if fate in ("client_short", "client_response"):
                assert said == reply_wire(honest), message
                continue
            assert said[:2] == message[:2]
            assert rcode_of(said) == (NOTIMP if fate == "client_notimp" else FORMERR), message
            assert said[2] & 0x80
            assert len(said) <= max(len(message) + 11, HEADER_BYTES)  # no use for amplification
            assert client.recv(65_535) == reply_wire(honest)


@contextlib.contextmanager
def raw_sender() -> Iterator[socket.socket]:
    """A socket that lets its user write UDP headers, or a skip."""
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    except PermissionError:
        pytest.skip("no raw sockets without CAP_NET_RAW")
    with raw:
        yield raw


def test_listener_datagrams_with_impossible_senders_harm_nobody(workdir: Path) -> None:
    """Port 0, which nobody can be answered at, and the relay's own address, as if it asked itself.

    Its answer to itself is a response, and so ends there.
    """
    with (
        raw_sender() as raw,
        ScriptedResolver() as resolver,
        Relay([resolver.address], workdir=workdir, workers=1) as relay,
    ):
        pids = worker_pids(relay)
        to = relay.address.port
        for number in range(200):
            for source in (0, to):
                wire = numbered(number) if number % 2 else numbered(number)[:14]
                header = struct.pack("!4H", source, to, 8 + len(wire), 0)  # 0: no checksum
                raw.sendto(header + wire, (relay.address.host, 0))
            assert ask_udp(relay.address, numbered(number)) == reply_wire(numbered(number))
        dropped = settled_pool(relay)["dropped"]
        assert_unharmed(relay, pids)
    assert dropped["client_response"] == 200
    assert dropped["client_gone"] == 200
    assert dropped["client_formerr"] == 200


# -- TCP clients -------------------------------------------------------------------------------

STREAMS_AT_ONCE = 50


def read_to_end(link: socket.socket) -> bytes:
    data = b""
    while more := link.recv(65_536):
        data += more
    return data


def reset(link: socket.socket) -> None:
    """Close so that the other side gets a reset."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def test_listener_4000_hostile_streams_each_counted_closed_and_honest_queries_answered(
    workdir: Path,
) -> None:
    """Half of the streams end in order, and are read to their end; each fourth is reset."""
    sure: Counter[str] = Counter()
    perhaps: Counter[str] = Counter()
    with (
        Echo(workdir=workdir) as resolver,
        Relay([resolver.address], workdir=workdir, workers=2) as relay,
        HonestTcp(relay.address) as over_tcp,
        PacedClient(relay.address, HONEST_QPS, proper=is_echo) as honest,
    ):
        pids = worker_pids(relay)
        relay.wait_for(lambda: over_tcp.answered > 0, "an honest answer")
        descriptors = sum(worker.num_fds() for worker in relay.workers())
        dribblers = [socket.create_connection(relay.address, 5.0) for _ in range(20)]
        dribbled = framed(numbered(7))
        streams = list(hostile_streams(SEED + 2, STREAMS))
        for start in range(0, STREAMS, STREAMS_AT_ONCE):
            links = []
            for number in range(start, start + STREAMS_AT_ONCE):
                link = socket.create_connection(relay.address, 10.0)
                link.sendall(streams[number])
                tally = Counter(fate_of_query(each) for each in messages_in(streams[number]))
                match number % 4:
                    case 0:
                        reset(link)
                        perhaps += tally
                    case 1:
                        link.close()
                        perhaps += tally
                    case _:
                        link.shutdown(socket.SHUT_WR)
                        links.append(link)
                        sure += tally
            for link in links:
                with link:
                    read_to_end(link)  # the relay closes once it has said all
            place = start // STREAMS_AT_ONCE
            for dribbler in dribblers:  # a byte now, another then
                dribbler.sendall(dribbled[place : place + 1])
        for dribbler in dribblers:
            with dribbler:
                dribbler.sendall(dribbled[STREAMS // STREAMS_AT_ONCE :])
                assert read_framed(dribbler) == echoed(numbered(7))
        relay.wait_for(
            lambda: sum(worker.num_fds() for worker in relay.workers()) <= descriptors,
            "connections closed",
        )
        honest.stop()
        over_tcp.__exit__()
        pool = settled_pool(relay)
        assert_unharmed(relay, pids)
    counted = {key: pool["dropped"][key] for key in INPUT_DROPS}
    print(
        f"\n{STREAMS} streams: expected {dict(sure)} to {dict(sure + perhaps)}; counted {counted}; "
        f"{pool['queries']} queries; honest: {honest.sent} over UDP, {over_tcp.answered} over TCP"
    )
    assert_all_answered(honest)
    assert over_tcp.trouble == []
    for key in INPUT_DROPS:
        assert sure[key] <= counted[key] <= sure[key] + perhaps[key], key
    asked = pool["queries"] - honest.sent - over_tcp.answered - len(dribblers)
    assert sure[QUERY] <= asked <= sure[QUERY] + perhaps[QUERY]
    assert all(sure[key] > STREAMS // 50 for key in (*INPUT_DROPS, QUERY)), sure
    assert pool["dropped"]["client_connection_limit"] == 0
