"""Which worker gets what: packets of one socket spread evenly, or flows kept together.

Every worker has one socket of its own for a resolver, so the resolver tells the workers apart by
the port that asks it.
"""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path

import pytest

from tests.load_client import is_answer_to, number_of, numbered, settled_pool, tell_port
from tests.rig import Address, Relay, ScriptedResolver, receive_all, udp_client
from tests.rig.net import why_no_ipv6

WORKERS = 4
QUERIES = 4_000
WINDOW = 100


def ask_in_windows(client: socket.socket, count: int) -> None:
    """Ask `count` numbered queries, a window at a time, and check every answer."""
    for start in range(0, count, WINDOW):
        queries = {number: numbered(number) for number in range(start, start + WINDOW)}
        for query in queries.values():
            client.send(query)
        replies = {number_of(reply): reply for reply in receive_all(client, WINDOW)}
        assert replies.keys() == queries.keys()
        assert all(is_answer_to(queries[number], reply) for number, reply in replies.items())


def by_worker(resolver: ScriptedResolver) -> Counter[int]:
    return Counter(asked.client[1] for asked in resolver.asked)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_packet_steering_one_socket_each_worker_gets_a_quarter(host: str, workdir: Path) -> None:
    reason = why_no_ipv6() if ":" in host else ""
    if reason:
        pytest.skip(reason)
    with (
        ScriptedResolver(tell_port) as resolver,
        Relay(
            [resolver.address], workdir=workdir, workers=WORKERS, listen=Address(host, 0)
        ) as relay,
        udp_client(relay.address) as client,
    ):
        ask_in_windows(client, QUERIES)
        assert settled_pool(relay)["queries"] == QUERIES
    shares = by_worker(resolver)
    print(f"packet steering on {host}: {sorted(shares.values())} of {QUERIES}")
    assert sum(shares.values()) == QUERIES
    # A fair draw stays within 20 to 30 % with a margin of seven standard deviations.
    assert len(shares) == WORKERS
    assert all(0.20 <= count / QUERIES <= 0.30 for count in shares.values()), shares


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_flow_steering_one_socket_keeps_to_one_worker_and_many_sockets_spread(
    host: str, workdir: Path
) -> None:
    reason = why_no_ipv6() if ":" in host else ""
    if reason:
        pytest.skip(reason)
    with (
        ScriptedResolver(tell_port) as resolver,
        Relay(
            [resolver.address],
            workdir=workdir,
            workers=WORKERS,
            listen=Address(host, 0),
            arguments=["--steering", "flow"],
        ) as relay,
    ):
        for number in range(2):
            resolver.forget()
            with udp_client(relay.address) as client:
                ask_in_windows(client, 400)
            assert len(by_worker(resolver)) == 1, number
        resolver.forget()
        for number in range(64):
            with udp_client(relay.address) as client:
                client.send(numbered(number))
                assert is_answer_to(numbered(number), client.recv(512))
        shares = by_worker(resolver)
    print(f"flow steering on {host}: 64 sockets as {sorted(shares.values())}")
    # Each worker misses all of 64 sockets once in 10^8 runs.
    assert len(shares) == WORKERS
