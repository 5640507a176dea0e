"""Encrypted resolvers under load and over time: nothing leaks, nothing needs help to come back."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.encrypted import Ground, ask_well, ground, pool, relay_of, why_not_here
from tests.outage import WAYS, outage
from tests.rig import Relay, Usage, dnsperf
from tests.rig.gate import Gate
from tests.rig.net import why_no_tunnel_devices, why_not_installed
from workers.transports.dial import DIAL_TIMEOUT_S

pytestmark = pytest.mark.skipif(
    bool(why_not_here() or why_not_installed("dnsperf")), reason=why_not_here() or "no dnsperf"
)

QUERIES = 100_000
WARM_UP = 20_000
ROOM_BYTES = 4_000_000
"""What all processes together may grow by: caches that fill, and pages that malloc keeps."""

MOST_CONNECTIONS = 3 * 4 + 3
"""To three resolvers at their bound, and three dials at the gates."""

CUT_S = 7.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("w")) as made:
        yield made


class Cancelling(threading.Thread):
    """Breaks handshakes off: by a reset from the far side, and by dropping the resolver.

    The configuration is read again and again, with and without the resolvers behind the gates,
    whose handshakes never end.
    """

    def __init__(self, relay: Relay, file: Path, texts: tuple[str, str], gates: list[Gate]) -> None:
        super().__init__(daemon=True)
        self.relay = relay
        self.file = file
        self.texts = texts
        self.gates = gates
        self.stopping = threading.Event()
        self.rounds = 0

    def run(self) -> None:
        while not self.stopping.wait(0.15):
            self._replace(self.texts[self.rounds % 2])
            self.rounds += 1
            if self.rounds % 4 == 0:
                for gate in self.gates:
                    gate.cut()
                    gate.swallow()
        # Drop them once more without a load: memory is given back then, and compared at its lowest.
        for text in reversed(self.texts):
            self._replace(text)
            time.sleep(0.3)

    def _replace(self, text: str) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.file)
        self.relay.reload()


def _at_rest(relay: Relay, cancelling: Cancelling) -> Usage:
    """What the relay uses once nothing disturbs it, without the descriptors of its connections.

    A resolver may have one or several of these, as the load had it, and dials may be under way.
    """
    cancelling.stopping.set()
    cancelling.join()
    ask_well(relay.address, 20)
    usage = _without_connections(relay)
    # The lowest: a closing may be under way, or a dial, which takes all of its time at the gates.
    end_at = time.monotonic() + DIAL_TIMEOUT_S + 2.0
    while time.monotonic() < end_at:
        time.sleep(0.2)
        now = _without_connections(relay)
        if now.descriptors < usage.descriptors:
            usage = now
    return usage


def _without_connections(relay: Relay) -> Usage:
    rows = [row for worker in relay.workers() for row in worker.net_connections("tcp")]
    connections = [row for row in rows if row.raddr]
    assert len(connections) <= MOST_CONNECTIONS
    usage = relay.usage()
    return replace(usage, descriptors=usage.descriptors - len(connections))


@pytest.mark.timeout(240)
@pytest.mark.alone
def test_encrypted_hundred_thousand_queries_with_cancelled_handshakes_leave_nothing_behind(
    servers: Ground, workdir: Path
) -> None:
    kinds = ("dot-dnsdist", "doh-dnsdist", "doh-nginx")
    questions = workdir / "questions"
    questions.write_text("".join(f"q{number}.load.rig TXT\n" for number in range(10_000)))
    with contextlib.ExitStack() as stack:
        gates = [stack.enter_context(Gate(servers.place(kind))) for kind in kinds]
        for gate in gates:
            gate.swallow()
        with_gates = [servers.resolver(k, g.address) for k, g in zip(kinds, gates, strict=True)]
        without = [servers.resolver(kind) for kind in kinds]
        smart = {"deadline": "5s", "load_balance": "roundrobin"}
        relay = stack.enter_context(relay_of(workdir, pool("p", *without, smart=smart)))
        file = Path(relay.command[relay.command.index("-c") + 1])
        text = file.read_text()
        entries = json.loads(text)
        entries["pools"][0]["resolvers"] += with_gates
        cancelling = Cancelling(relay, file, (json.dumps(entries), text), gates)

        def load(queries: int) -> None:
            done = dnsperf(
                relay.address, questions, runs=queries // 10_000, clients=4, outstanding=60
            )
            assert done.sent == queries
            assert done.lost == 0
            assert done.rcodes.get("NOERROR", 0) >= 0.999 * queries, done.rcodes

        cancelling.start()
        load(WARM_UP)
        before = _at_rest(relay, cancelling)
        cancelling = Cancelling(relay, file, (json.dumps(entries), text), gates)
        cancelling.start()
        load(QUERIES)
        rounds = cancelling.rounds
        after = _at_rest(relay, cancelling)
    assert rounds > 40
    assert sum(gate.accepted for gate in gates) > 40
    assert after.descriptors <= before.descriptors
    assert after.uss_bytes <= before.uss_bytes + ROOM_BYTES, (before, after)


@pytest.mark.alone
@pytest.mark.skipif(bool(why_no_tunnel_devices()), reason=why_no_tunnel_devices())
def test_encrypted_path_that_was_cut_comes_back_without_help_on_every_transport(
    workdir: Path,
) -> None:
    with outage(workdir, 50) as path:
        path.clients[WAYS[0]].wait(1.5)
        assert min(path.rates(0.5, 1.5).values()) > 45
        joined_s = path.cut(CUT_S)
        assert max(path.rates(joined_s - 1.0, joined_s - 0.1).values()) == 0
        recovered_s = path.recovered_s(joined_s, 5.0)
    assert None not in recovered_s.values(), recovered_s
    assert max(each for each in recovered_s.values() if each is not None) <= 3.0, recovered_s
