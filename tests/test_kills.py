"""kill -9 of workers at 3,000 q/s: the relay goes on and little is lost.

The client keeps account of every query. The resolver answers after a few milliseconds and tells
through which worker's socket it was asked, so what a worker had in hand when it died is known.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from tests.load_client import (
    Killing,
    PacedClient,
    all_ready,
    kill_at_once,
    number_of,
    numbered,
    pool_of,
    resolver_port,
    status_of,
    tell_port,
    worker_pids,
)
from tests.rig import Address, Relay, RigError, Say, ScriptedResolver, read_framed
from tests.rig.scripted import Asked, Reply
from tests.rig.wire import framed, message_id, query_wire, reply_wire

pytestmark = pytest.mark.alone

RATE_QPS = 3_000
RESOLVER_DELAY_S = 0.005
SUCCESSOR_S = 0.5
HANGS_S = 5.0
RETRY_S = 0.9
"""A TCP client that finds the listener's queue full tries again after a second."""

TOLERANCE_BYTES = 3 << 20
"""Growth that twenty deaths may leave in a process of 30 to 50 MB: pages of the allocator. What a
worker's sockets, buffers or roster would leave behind twenty times is more."""


TCP_QUERY = query_wire("tcp.load.rig", message_id=4711)


def after_a_moment(asked: Asked) -> Reply:
    return Say(tell_port(asked), after_s=RESOLVER_DELAY_S)


@dataclass(frozen=True, slots=True)
class Use:
    """What the relay's processes hold."""

    descriptors: int
    """Of the supervisor."""
    supervisor_bytes: int
    worker_bytes: int
    """Of the largest worker."""


def use_of(relay: Relay) -> Use:
    """Descriptors, and memory that would be free again without the process (USS)."""
    return Use(
        relay.process.num_fds(),
        relay.process.memory_full_info().uss,
        max(worker.memory_full_info().uss for worker in relay.workers()),
    )


class Connector:
    """Connects over TCP again and again, and asks one question on each connection."""

    def __init__(self, server: Address) -> None:
        self.server = server
        self.refused: list[OSError] = []
        self.broken_at: list[float] = []
        """When the connections that ended without an answer were opened."""
        self.answered = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.01):
            opened_at = time.monotonic()
            try:
                link = socket.create_connection(self.server, 5.0)
            except OSError as error:
                self.refused.append(error)
                continue
            with link:
                try:
                    link.sendall(framed(TCP_QUERY))
                    assert message_id(read_framed(link)) == 4711
                    self.answered += 1
                except (OSError, RigError):
                    self.broken_at.append(opened_at)


@dataclass(frozen=True, slots=True)
class Death:
    """What is known of one killed worker."""

    killing: Killing
    port: int
    """From which it asked the resolver."""
    open: frozenset[int]
    """Queries that the client had sent and had no answer to when the worker was gone."""
    successor_s: float
    """From the kill to the first answer through the successor."""


def kill_one(
    relay: Relay, client: PacedClient, resolver: ScriptedResolver, index: int, ports: set[int]
) -> Death:
    """Kill a worker under load and wait for its successor's first answer. `ports` are the known."""
    queries = pool_of(relay)["queries"]
    pid = worker_pids(relay)[index]
    port = resolver_port(pid, resolver.address)
    killing = kill_at_once(pid)
    still_open = frozenset(range(client.sent)) - client.answered_at.keys()
    new_port, answered_at = client.wait_for_port(ports)
    ports.add(new_port)
    relay.wait_for(lambda: all_ready(relay), "all workers ready")
    assert pool_of(relay)["queries"] >= queries  # a successor carries the counts on
    return Death(killing, port, still_open, answered_at - killing.killed_at)


def assert_lost_only_in_hand(
    lost: list[int], deaths: list[Death], client: PacedClient, resolver: ScriptedResolver
) -> None:
    """Every lost query was open at a death, and in the hands of the worker that died.

    A worker sends a query on as soon as it has read it, so that all but one of what it had in hand
    has reached the resolver, through the port of that worker.
    """
    through = {
        number_of(asked.wire): asked.client[1]
        for asked in resolver.asked
        if asked.wire[2:] != TCP_QUERY[2:]
    }
    first_open = {number: death for death in reversed(deaths) for number in death.open}
    unseen = 0
    for number in lost:
        assert number in first_open, f"query {number} was lost, but not open at any death"
        assert client.sent_at[number] <= max(death.killing.gone_at for death in deaths)
        if number in through:
            assert through[number] in {d.port for d in deaths if number in d.open}, number
        else:
            unseen += 1
    assert unseen <= len(deaths)


def assert_soon(times_s: list[float]) -> None:
    """The median within the 0.5 s asked for: it was 0.36 s with the cores twice overbooked.

    A single one may have had the bad luck of a shared machine that gave its cores to others; all
    that is asked of it is that nothing hangs.
    """
    assert statistics.median(times_s) <= SUCCESSOR_S, times_s
    assert max(times_s) <= HANGS_S, times_s


WARM_UP = 2
"""Deaths after which the supervisor has done everything once."""


@pytest.mark.parametrize(("workers", "kills"), [(1, 6), (4, 20)])
def test_workers_killed_in_a_row_at_3000_qps_lose_what_they_had_in_hand_and_leave_nothing_behind(
    workers: int, kills: int, workdir: Path
) -> None:
    deaths: list[Death] = []
    with (
        ScriptedResolver(after_a_moment) as resolver,
        Relay([resolver.address], workdir=workdir, workers=workers) as relay,
        Connector(relay.address) as connector,
        PacedClient(relay.address, RATE_QPS) as client,
    ):
        relay.wait_for(lambda: len(client.ports) == workers, "every worker has answered")
        ports = set(client.ports)
        for number in range(WARM_UP + kills):
            if number == WARM_UP:
                before = use_of(relay)
            deaths.append(kill_one(relay, client, resolver, number % workers, ports))
            # Between two deaths what came meanwhile is worked off, and load is on everybody.
            sent = client.sent
            relay.wait_for(lambda at=sent: client.sent > at + RATE_QPS // 10, "more load")
        client.stop()
        elapsed_s = client.sent_at[-1] - client.sent_at[0]
        relay.wait_for(lambda: use_of(relay).descriptors <= before.descriptors, "descriptors level")
        after = use_of(relay)
        restarts = sum(worker["restarts"] for worker in status_of(relay)["workers"])
    times_s = [death.successor_s for death in deaths]
    print(
        f"\n{workers} workers, {len(deaths)} kills at {client.sent / elapsed_s:.0f} q/s: lost "
        f"{len(client.lost)} of {client.sent}; successor median "
        f"{statistics.median(times_s):.3f} s, worst {max(times_s):.3f} s; TCP answered "
        f"{connector.answered}, broken {len(connector.broken_at)}; supervisor {before} {after}"
    )
    assert restarts == len(deaths)
    assert_lost_only_in_hand(client.lost, deaths, client, resolver)
    assert (client.wrong, client.repeated) == ([], 0)
    assert client.errors == []  # no ECONNREFUSED: the listening socket never closed
    assert connector.refused == []
    for opened_at in connector.broken_at:
        assert any(0.0 < d.killing.gone_at - opened_at < 5.0 for d in deaths), opened_at
    assert connector.answered > len(deaths)
    assert_soon(times_s)
    assert after.supervisor_bytes <= before.supervisor_bytes + TOLERANCE_BYTES
    assert after.worker_bytes <= before.worker_bytes + TOLERANCE_BYTES


def test_all_workers_killed_at_once_at_3000_qps_lose_what_they_had_in_hand_only(
    workdir: Path,
) -> None:
    """The sockets hold what comes until somebody reads it again."""
    workers = 4
    deaths: list[Death] = []
    with (
        ScriptedResolver(after_a_moment) as resolver,
        Relay([resolver.address], workdir=workdir, workers=workers) as relay,
        PacedClient(relay.address, RATE_QPS) as client,
    ):
        relay.wait_for(lambda: len(client.ports) == workers, "every worker has answered")
        known = set(client.ports)
        pids = worker_pids(relay)
        ports = [resolver_port(pid, resolver.address) for pid in pids]
        killings = [kill_at_once(pid) for pid in pids]
        still_open = frozenset(range(client.sent)) - client.answered_at.keys()
        _, answered_at = client.wait_for_port(known)
        deaths = [
            Death(killing, port, still_open, answered_at - killings[0].killed_at)
            for killing, port in zip(killings, ports, strict=True)
        ]
        relay.wait_for(lambda: len(client.ports) == 2 * workers, "every successor has answered")
        client.stop()
    print(
        f"\nall {workers} killed: lost {len(client.lost)} of {client.sent}, first answer after "
        f"{deaths[0].successor_s:.3f} s"
    )
    assert_lost_only_in_hand(client.lost, deaths, client, resolver)
    assert (client.wrong, client.errors) == ([], [])
    # Four processes start at once here, and nothing is promised for that.
    assert deaths[0].successor_s < HANGS_S


def test_worker_killed_400_tcp_clients_that_come_meanwhile_wait_in_the_queue_and_are_served(
    workdir: Path,
) -> None:
    """The queue of the listener is long enough for a burst while nobody accepts."""
    count = 400
    with (
        ScriptedResolver() as resolver,
        Relay([resolver.address], workdir=workdir, workers=1) as relay,
        ExitStack() as stack,
    ):
        kill_at_once(worker_pids(relay)[0])
        links, times_s = [], []
        for _ in range(count):
            started_at = time.monotonic()
            links.append(stack.enter_context(socket.create_connection(relay.address, 5.0)))
            times_s.append(time.monotonic() - started_at)
        for number, link in enumerate(links):
            link.sendall(framed(numbered(number)))
        for number, link in enumerate(links):
            assert read_framed(link) == reply_wire(numbered(number))
    print(f"\n{count} TCP connects without a worker: worst {max(times_s) * 1000:.1f} ms")
    assert max(times_s) < RETRY_S
