"""Hostile replies: a resolver that forges, and one over TCP that breaks its frames.

What the client gets is the genuine answer, byte by byte; the counters say what was dropped.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile_messages import (
    INPUT_DROPS,
    MALFORMED,
    UNMATCHED,
    forgeries,
)
from tests.load_client import (
    assert_unharmed,
    number_of,
    numbered,
    settled_pool,
    worker_pids,
)
from tests.rig import (
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
from tests.rig.scripted import Answer
from tests.rig.wire import (
    HEADER_BYTES,
    TYPE_NULL,
    framed,
    question_of,
    record_wire,
)

SEED = 20_240_301


# -- replies -----------------------------------------------------------------------------------


def recased(reply: bytes) -> bytes:
    """The reply with the case of its question changed."""
    end = HEADER_BYTES + len(question_of(reply)) - 4
    return reply[:HEADER_BYTES] + reply[HEADER_BYTES:end].swapcase() + reply[end:]


def genuine(query: bytes) -> bytes:
    return reply_wire(query, [record_wire(TYPE_NULL, query[14:22])])


class Forger:
    """Answers every question, but first with everything that is no answer.

    Every fiftieth question gets a burst of a thousand forged replies too, every fifth is answered
    in another case. `sent` counts what should be dropped, by the counter it belongs to.
    """

    BURST = 1_000

    def __init__(self) -> None:
        self.draw = random.Random(SEED)
        self.sent: Counter[str] = Counter()
        self.spoofed = 0
        self._stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stranger.bind(("127.0.0.9", 0))

    def close(self) -> None:
        self._stranger.close()

    def answer(self, asked: Asked) -> Reply:
        forged = forgeries(asked.wire, self.draw)
        if asked.number % 50 == 49:
            reply = reply_wire(asked.wire, [record_wire(TYPE_NULL, b"burst")])
            ids = self.draw.sample(range(65_536), self.BURST + 1)
            wires = [each.to_bytes(2, "big") + reply[2:] for each in ids if each != asked.id]
            forged += [(wire, UNMATCHED) for wire in wires[: self.BURST]]
        self.draw.shuffle(forged)
        self.sent.update(reason for _, reason in forged)
        says = [Say(wire) for wire, _ in forged]
        true = genuine(asked.wire)
        if asked.transport == "udp":
            lie = reply_wire(asked.wire, [record_wire(TYPE_NULL, b"another port")])
            says.insert(0, Say(lie, spoofed=True))
            self._stranger.sendto(lie, asked.client)
            self.spoofed += 2
        says.append(Say(recased(true) if asked.number % 5 == 0 else true))
        return says


def test_forgeries_are_what_their_reasons_say() -> None:
    """The generator itself: plenty of each kind, and none that a strict reader would accept."""
    query = numbered(3)
    forged = forgeries(query, random.Random(1))
    assert Counter(reason for _, reason in forged).keys() == {UNMATCHED, MALFORMED}
    assert len(forged) > 60
    for wire, _ in forged:
        matches = wire[:2] == query[:2] and wire[HEADER_BYTES:].startswith(question_of(query))
        assert not (matches and wire[2] & 0x80)


@pytest.mark.parametrize(
    ("scheme", "workers", "window"), [("udp", 1, 1), ("udp", 4, 20), ("tcp", 2, 20)]
)
def test_resolver_that_forges_before_it_answers_only_the_genuine_reaches_the_client(
    scheme: str, workers: int, window: int, workdir: Path
) -> None:
    queries = 400
    forger = Forger()
    with (
        contextlib.closing(forger),
        ScriptedResolver(forger.answer) as resolver,
        Relay([f"{scheme}://{resolver.address}"], workdir=workdir, workers=workers) as relay,
        udp_client(relay.address) as client,
    ):
        pids = worker_pids(relay)
        for start in range(0, queries, window):
            wires = [numbered(number) for number in range(start, start + window)]
            for wire in wires:
                client.send(wire)
            replies = receive_all(client, window)
            assert sorted(replies, key=number_of) == [genuine(wire) for wire in wires]
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(512)
        assert ask_tcp(relay.address, numbered(queries)) == genuine(numbered(queries))
        dropped = settled_pool(relay)["dropped"]
        assert_unharmed(relay, pids)
        assert resolver.count == queries + 1
    print(f"\n{scheme}, {workers} workers: {dict(forger.sent)} and {forger.spoofed} from elsewhere")
    assert {reason: dropped[reason] for reason in (UNMATCHED, MALFORMED)} == forger.sent
    assert sum(dropped[key] for key in INPUT_DROPS) == 0


# -- a TCP resolver with bad framing -----------------------------------------------------------


def cut_off(asked: Asked) -> Say:
    """Half a frame, and the end of the connection."""
    return Say(framed(genuine(asked.wire))[:9], raw=True, close=True)


def overlong(asked: Asked) -> Say:
    """Ten bytes of 65,535, and the end of the connection."""
    return Say(b"\xff\xff" + genuine(asked.wire)[:10], raw=True, close=True)


def closed(_: Asked) -> Say:
    return Say(None, close=True)


def noise(asked: Asked) -> Say:
    """Frames of nothing and of random bytes, then what cannot be a frame's end, then the end."""
    draw = random.Random(asked.number)
    junk = [draw.randbytes(draw.randrange(200)) for _ in range(20)]
    wire = bytes(20) + b"".join(framed(each) for each in junk) + b"\x10"
    return Say(wire, raw=True, close=True)


BREAKERS: dict[str, Answer] = {
    "cut-off": cut_off,
    "overlong": overlong,
    "closed": closed,
    "noise": noise,
}


def every_second_time(bad: Answer) -> Answer:
    """Answer the first question of each connection and do what `bad` does at the second."""
    asked_on: Counter[object] = Counter()

    def answer(asked: Asked) -> Reply:
        asked_on[asked.client] += 1
        return bad(asked) if asked_on[asked.client] % 2 == 0 else genuine(asked.wire)

    return answer


Breaking = tuple[Relay, dict[str, ScriptedResolver]]


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Breaking]:
    """For every breaker two pools: alone and at times honest, and always broken beside a good one.

    The resolvers go by the names of the pools.
    """
    with contextlib.ExitStack() as stack:
        good = stack.enter_context(ScriptedResolver(lambda asked: genuine(asked.wire)))
        resolvers = {}
        pools = []
        for name, bad in BREAKERS.items():
            sole = stack.enter_context(ScriptedResolver(every_second_time(bad)))
            always = stack.enter_context(ScriptedResolver(bad))
            resolvers |= {f"{name}-sole": sole, f"{name}-beside": always}
            for pool, members in ((f"{name}-sole", [sole]), (f"{name}-beside", [always, good])):
                listed = [f"tcp://{each.address}" for each in members]
                smart_pool = {"enabled": True}
                pools.append({"name": pool, "resolvers": listed, "smart_pool": smart_pool})
        relay = Relay(workdir=tmp_path_factory.mktemp("w"), config={"workers": 1, "pools": pools})
        yield stack.enter_context(relay), resolvers


@pytest.mark.parametrize("breaker", BREAKERS)
def test_tcp_resolver_that_breaks_its_connection_costs_no_query_once_it_has_answered(
    breaker: str, breaking: Breaking
) -> None:
    relay, resolvers = breaking
    pids = worker_pids(relay)
    server = relay.pool_address(f"{breaker}-sole")
    for number in range(60):
        assert ask_udp(server, numbered(number)) == genuine(numbered(number))
    assert resolvers[f"{breaker}-sole"].accepted >= 30
    assert_unharmed(relay, pids)


@pytest.mark.parametrize("breaker", BREAKERS)
def test_tcp_resolver_that_only_breaks_connections_beside_a_good_one_is_not_noticed(
    breaker: str, breaking: Breaking
) -> None:
    relay, resolvers = breaking
    pids = worker_pids(relay)
    wires = [numbered(number) for number in range(200)]
    with udp_client(relay.pool_address(f"{breaker}-beside")) as client:
        for wire in wires:
            client.send(wire)
        assert sorted(receive_all(client, 200), key=number_of) == [genuine(wire) for wire in wires]
    assert resolvers[f"{breaker}-beside"].count > 0
    assert_unharmed(relay, pids)


BROKEN_FRAME = b"\xff\xff" + bytes(10)
"""Announces 65,535 bytes and brings ten: whatever follows is taken for the rest."""


def fall_silent(_: Asked) -> Reply:
    return None


def go_on(asked: Asked) -> Reply:
    return genuine(asked.wire)


@pytest.mark.parametrize("after", [fall_silent, go_on])
def test_tcp_resolver_that_loses_its_framing_gets_a_fresh_connection(
    after: Answer, workdir: Path
) -> None:
    """Nothing on that connection can be understood any more, whether it is silent or goes on."""
    broken: set[object] = set()

    def answer(asked: Asked) -> Reply:
        if not broken:
            broken.add(asked.client)
            return Say(BROKEN_FRAME, raw=True)
        return after(asked) if asked.client in broken else genuine(asked.wire)

    with ScriptedResolver(answer) as resolver:
        pool = {
            "name": "p",
            "listen": "127.0.0.1:0",
            "resolvers": [f"tcp://{resolver.address}"],
            "smart_pool": {"enabled": True, "per_attempt": "300ms"},
        }
        with Relay(workdir=workdir, config={"workers": 1, "pools": [pool]}) as relay:
            started_at = time.monotonic()
            answered = 0
            while answered < 20:
                # What the pool makes of the attempts that were lost meanwhile is another matter.
                assert time.monotonic() - started_at < 5.0, f"{answered} answers"
                query = numbered(answered)
                answered += ask_udp(relay.address, query, 10.0) == genuine(query)
            assert resolver.accepted == 2
