"""Connections to encrypted resolvers: idle closes, restarts, handshakes, GOAWAY, streams, stalls.

Every server is a real program; a `Gate` in front of it counts connections and disturbs them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.closed_loop import OpenLoop
from tests.encrypted import (
    KINDS,
    Ground,
    ask_well,
    blame_of_all,
    blamed,
    burst,
    failures_of,
    ground,
    pool,
    relay_of,
    relay_over,
    why_not_here,
)
from tests.load_client import resolver_of
from tests.rig import (
    Address,
    Program,
    Relay,
    ScriptedResolver,
    free_address,
    reply_wire,
    wait_until,
)
from tests.rig.gate import Gate
from tests.rig.scripted import Asked, Reply, Say
from tests.rig.tls_servers import DohBackend, Nginx, TlsDnsdist, Unbound
from tests.rig.wire import NOERROR

pytestmark = pytest.mark.skipif(bool(why_not_here()), reason=why_not_here())

IDLE_LIMITS_S = (1, 5, 10)
AROUND_S = {
    1: (-0.05, -0.01, 0.0, 0.01, 0.05, 0.5),
    5: (-0.02, 0.0, 0.02, 0.5),
    10: (-0.02, 0.0, 0.02, 0.5),
}
"""By idle limit: when queries come, from the moment at which the server closes the connection."""

AT_ONCE = 5
RATE_QPS = 500
PER_ATTEMPT_S = 2.0
DEADLINE_S = 5.0
GATED = ("dot-dnsdist", "doh-dnsdist", "doh1-nginx")
RESTARTED = ("dot-dnsdist", "doh-nginx", "doh1-nginx")

WAYS = pytest.mark.parametrize("kind", ["dot-dnsdist", "doh-dnsdist", "doh1-nginx"])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("w")) as made:
        yield made


# -- idle closes -------------------------------------------------------------------------------


class Visits(threading.Thread):
    """Asks a pool, waits `pause_s` from its last answer on, and asks again, until `end_at`."""

    def __init__(self, server: Address, pause_s: float, end_at: float) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.pause_s = pause_s
        self.end_at = end_at
        self.codes: list[int] = []
        self.missing = 0

    def run(self) -> None:
        number = 0
        while True:
            codes = burst(self.server, AT_ONCE, first=number)
            last_at = time.monotonic()
            number += AT_ONCE
            self.codes += codes
            self.missing += AT_ONCE - len(codes)
            if last_at + self.pause_s > self.end_at:
                return
            time.sleep(last_at + self.pause_s - time.monotonic())


@pytest.mark.long
def test_encrypted_server_closes_idle_connections_no_query_fails_and_none_is_blamed(
    workdir: Path,
) -> None:
    visits: dict[str, Visits] = {}
    with contextlib.ExitStack() as stack:
        grounds = {}
        for idle_s in IDLE_LIMITS_S:
            folder = workdir / str(idle_s)
            folder.mkdir()
            grounds[idle_s] = stack.enter_context(ground(folder, idle_s=idle_s))
        plan = [
            (idle_s, kind, around_s)
            for idle_s, around in AROUND_S.items()
            for kind in KINDS
            for around_s in around
        ]
        labels = [f"{kind} {idle_s} s {around_s:+.2f}" for idle_s, kind, around_s in plan]
        relay = stack.enter_context(
            relay_of(
                workdir,
                *(
                    pool(label, grounds[idle_s].resolver(kind))
                    for label, (idle_s, kind, _) in zip(labels, plan, strict=True)
                ),
            )
        )
        # Twice over the longest limit: before a lifetime is learned and after.
        end_at = time.monotonic() + 2.15 * IDLE_LIMITS_S[-1]
        for number, (label, (idle_s, _, around_s)) in enumerate(zip(labels, plan, strict=True)):
            visit = Visits(relay.pool_address(number), idle_s + around_s, end_at)
            visits[label] = visit
            visit.start()
        for visit in visits.values():
            visit.join()
        blames = blame_of_all(relay)
        trouble = {
            label: (visit.missing, sorted(set(visit.codes)), blames[label])
            for label, visit in visits.items()
            if visit.missing or set(visit.codes) != {NOERROR} or blames[label]
        }
        assert not trouble
        assert min(len(visit.codes) for visit in visits.values()) >= 2 * AT_ONCE
        # The servers do close what idles, and the relay does not keep what they have closed. (nginx
        # has another, longer limit for a connection of HTTP/1.1 that was made and not yet used.)
        (worker,) = relay.workers()
        shortest = grounds[IDLE_LIMITS_S[0]]
        ports = {shortest.place(kind).port for kind in KINDS if kind != "doh1-nginx"}

        def none_stands() -> bool:
            rows = worker.net_connections("tcp")
            return not [row for row in rows if row.raddr and row.raddr.port in ports]

        relay.wait_for(none_stands, "idle connections are closed", 4.0)


SETTLE_S = 0.03
"""In which connections that were begun besides are there: one cut in its handshake is an error."""


@WAYS
def test_encrypted_close_as_a_query_leaves_is_sent_again_without_blame(
    servers: Ground, workdir: Path, kind: str
) -> None:
    rounds = 60
    with (
        Gate(servers.place(kind)) as gate,
        relay_over(workdir, servers.resolver(kind, gate.address)) as relay,
    ):
        ask_well(relay.address, 5)
        for number in range(rounds):
            gate.close_soon(0.0001 * (number % 20))
            ask_well(relay.address, 3, first=10 * number)
            time.sleep(SETTLE_S)
        assert gate.accepted > rounds / 4
        assert not blamed(relay)
        assert failures_of(relay) == 0
        assert resolver_of(relay)["state"] == "in_use"


# -- restarts ----------------------------------------------------------------------------------


@contextlib.contextmanager
def server_of(kind: str, servers: Ground, workdir: Path) -> Iterator[tuple[Program, Address]]:
    """A server of this kind that a test may stop and start."""
    certificate = servers.certificate
    made: Program
    if kind.endswith("dnsdist"):
        made = dnsdist = TlsDnsdist([servers.nsd.address], certificate, workdir=workdir)
        place = dnsdist.dot if kind.startswith("dot") else dnsdist.doh
    elif kind.endswith("unbound"):
        made = unbound = Unbound(servers.nsd.address, certificate, workdir=workdir)
        place = unbound.dot if kind.startswith("dot") else unbound.doh
    else:
        made = nginx = Nginx(
            servers.backend.address, certificate, workdir=workdir, http2=kind == "doh-nginx"
        )
        place = nginx.address
    with made:
        yield made, place


@pytest.mark.alone
def test_encrypted_server_restart_under_load_fails_only_what_was_in_flight(
    servers: Ground, workdir: Path
) -> None:
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(server_of(kind, servers, workdir)) for kind in RESTARTED]
        relay = stack.enter_context(
            relay_of(
                workdir,
                *(
                    pool(kind, servers.resolver(kind, place))
                    for kind, (_, place) in zip(RESTARTED, places, strict=True)
                ),
            )
        )
        clients = [
            stack.enter_context(OpenLoop(relay.pool_address(number), RATE_QPS))
            for number in range(len(RESTARTED))
        ]
        clients[0].wait(1.0)
        wait_until(lambda: max(client.open for client in clients) < 20, "all keep up", 10.0)
        in_flight, killed_s = [], []
        for client, (server, _) in zip(clients, places, strict=True):
            open_before = client.open
            server.kill()
            killed_s.append(time.monotonic() - client.started_at)
            # Those that were asked while it died were in flight too.
            in_flight.append(open_before + client.open)
        back_s = []
        for client, (server, _) in zip(clients, places, strict=True):
            server.start()
            back_s.append(time.monotonic() - client.started_at)
        clients[0].wait(back_s[-1] + 2.0)
        for client in clients:
            client.rate_qps = 0.0
        for number, kind in enumerate(RESTARTED):
            client, from_s = clients[number], back_s[number]
            wait_until(
                lambda client=client: not client.open,  # type: ignore[misc]
                f"{kind}: all ended",
                DEADLINE_S,
            )
            failed_s = client.failed_s()
            later = [asked_s for asked_s in failed_s if asked_s > killed_s[number]]
            assert not later, f"{kind}: asked after {killed_s[number]:.3f} s, and failed: {later}"
            assert len(failed_s) <= in_flight[number], f"{kind}: {failed_s}"
            assert client.rate(from_s + 1.0, from_s + 1.9) > 0.97 * RATE_QPS, kind
            found = resolver_of(relay, pool=number)
            assert found["state"] in ("in_use", "fresh"), found


# -- handshakes --------------------------------------------------------------------------------


@WAYS
def test_encrypted_queries_during_a_slow_handshake_share_it(
    servers: Ground, workdir: Path, kind: str
) -> None:
    with (
        Gate(servers.place(kind)) as gate,
        relay_over(workdir, servers.resolver(kind, gate.address)) as relay,
    ):
        gate.hold_s = 1.0
        started_at = time.monotonic()
        ask_well(relay.address, 50)
        took_s = time.monotonic() - started_at
        assert took_s >= 1.0
        if kind != "doh1-nginx":  # without multiplexing, others follow once it stands
            assert gate.accepted == 1
        assert gate.accepted_at[1:2] == [] or gate.accepted_at[1] - gate.accepted_at[0] >= 1.0
        assert not blamed(relay)
        assert resolver_of(relay)["latency_ms"] < 500, "the handshake counts into the latency"


@contextlib.contextmanager
def gated_pools(servers: Ground, workdir: Path, **smart: Any) -> Iterator[tuple[Relay, list[Gate]]]:
    """A relay with a pool for each of `GATED`, each with a gate before its one resolver."""
    with contextlib.ExitStack() as stack:
        gates = [stack.enter_context(Gate(servers.place(kind))) for kind in GATED]
        pools = [
            pool(kind, servers.resolver(kind, gate.address), smart=smart)
            for kind, gate in zip(GATED, gates, strict=True)
        ]
        yield stack.enter_context(relay_of(workdir, *pools)), gates


@contextlib.contextmanager
def load_on_all(relay: Relay, rate_qps: float) -> Iterator[list[OpenLoop]]:
    """A client for every pool of `gated_pools`."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(OpenLoop(relay.pool_address(number), rate_qps))
            for number in range(len(GATED))
        ]


def test_encrypted_server_that_takes_no_handshake_is_not_dialled_in_a_storm(
    servers: Ground, workdir: Path
) -> None:
    with gated_pools(servers, workdir, deadline="1s") as (relay, gates):
        for gate in gates:
            gate.swallow()
        with load_on_all(relay, 100) as clients:
            clients[0].wait(2.0)
        assert [gate.accepted for gate in gates] == [1] * len(GATED)
        for gate in gates:
            gate.open()
            gate.hold_s = 0.0
        server = Gate(free_address())  # where a connection is taken and reset at once
        for gate in gates:
            gate.server, gate.accepted = server.address, 0
            gate.close_connections()
        with load_on_all(relay, 100) as clients:
            clients[0].wait(2.0)
        assert max(gate.accepted for gate in gates) <= 12, [gate.accepted for gate in gates]
        for gate, kind in zip(gates, GATED, strict=True):
            gate.server = servers.place(kind)
        with load_on_all(relay, 100) as clients:
            clients[0].wait(3.0)
        assert [client.rate(2.0, 3.0) > 95 for client in clients] == [True] * len(GATED)


# -- HTTP/2: GOAWAY, streams -------------------------------------------------------------------


@pytest.mark.parametrize("http2", [True, False], ids=["goaway", "close"])
def test_encrypted_server_that_ends_connections_in_mid_batch_loses_nothing(
    servers: Ground, workdir: Path, http2: bool
) -> None:
    with (
        Nginx(
            servers.backend.address,
            servers.certificate,
            workdir=workdir,
            http2=http2,
            requests=30,
        ) as server,
        Gate(server.address) as gate,
        relay_over(workdir, servers.resolver("doh-nginx", gate.address)) as relay,
    ):
        for number in range(10):
            ask_well(relay.address, 100, first=100 * number)
        assert gate.accepted >= 1_000 / 30 - 1
        assert not blamed(relay)
        assert resolver_of(relay)["state"] == "in_use"


@contextlib.contextmanager
def holding_server(
    servers: Ground, workdir: Path, hold_s: float, max_streams: int, http2: bool = True
) -> Iterator[Gate]:
    """nginx before a server that answers everything after `hold_s`, with a gate before it."""

    def hold(asked: Asked) -> Reply:
        return Say(reply_wire(asked.wire), after_s=hold_s)

    with (
        ScriptedResolver(hold) as slow,
        DohBackend(slow.address, workdir=workdir) as backend,
        Nginx(
            backend.address,
            servers.certificate,
            workdir=workdir,
            max_streams=max_streams,
            http2=http2,
        ) as server,
        Gate(server.address) as gate,
    ):
        yield gate


def test_encrypted_two_hundred_streams_at_once_on_one_connection(
    servers: Ground, workdir: Path
) -> None:
    with (
        holding_server(servers, workdir, 0.7, 256) as gate,
        relay_over(workdir, servers.resolver("doh-nginx", gate.address)) as relay,
    ):
        ask_well(relay.address, 10)  # past the time in which a fresh resolver gets one at a time
        started_at = time.monotonic()
        ask_well(relay.address, 200, first=1_000)
        took_s = time.monotonic() - started_at
        assert took_s < 1.3, "not all at once"
        assert gate.accepted == 1
        assert not blamed(relay)


@pytest.mark.parametrize("http2", [True, False], ids=["h2", "http1"])
def test_encrypted_few_streams_take_several_connections_and_never_many(
    servers: Ground, workdir: Path, http2: bool
) -> None:
    with (
        holding_server(servers, workdir, 0.05, 32, http2) as gate,
        relay_over(workdir, servers.resolver("doh-nginx", gate.address)) as relay,
    ):
        ask_well(relay.address, 10)
        codes = burst(relay.address, 200, first=1_000)
        assert codes == [NOERROR] * 200
        assert 2 <= gate.accepted <= 64, gate.accepted
        assert gate.standing <= (8 if http2 else 64)
        assert not blamed(relay)


# -- a connection that swallows what is written ------------------------------------------------


def test_encrypted_stalled_connection_is_retired_and_its_queries_are_answered(
    servers: Ground, workdir: Path
) -> None:
    with (
        gated_pools(servers, workdir) as (relay, gates),
        load_on_all(relay, 50) as clients,
    ):
        clients[0].wait(1.0)
        before = [gate.accepted for gate in gates]
        for gate in gates:
            gate.stall()
        stalled_s = time.monotonic() - clients[0].started_at
        back_s = stalled_s + PER_ATTEMPT_S + 1.0
        clients[0].wait(back_s + 2.0)
        for number, kind in enumerate(GATED):
            client = clients[number]
            assert gates[number].accepted > before[number], kind
            assert client.rate(back_s, back_s + 1.5) > 48, kind
            bad = sum(1 for each in client.heard if each.rcode != NOERROR)
            assert (bad, client.given_up) == (0, 0), kind
            assert resolver_of(relay, pool=number)["state"] in ("in_use", "fresh"), kind
            assert failures_of(relay, number) == 0, kind
