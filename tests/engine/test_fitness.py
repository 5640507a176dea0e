"""Queries go to resolvers that let their name and their reply through."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.engine.driver import Ask, Driver, answers, is_silent
from tests.rig.wire import opt_wire, query_wire
from workers.engine import wire as dns
from workers.engine.fitness import MOST_GROUPS, reply_bytes
from workers.engine.health import State
from workers.engine.pending import COPY, FIRST, HEDGE, RETRY, Query

POLICIES = ["auto", "roundrobin", "weighted", "lowest_latency"]

SHORT = "q.t.example"
LONG = ".".join(["x" * 50] * 4)
"""203 octets."""


def ask(driver: Driver, name: str = SHORT, size: int = 0, **how: bool) -> Ask:
    """Ask for a name, with an OPT record that advertises `size` if that is not 0."""
    return driver.ask(query_wire(name, opt=opt_wire(size) if size else b""), **how)


def order(driver: Driver, *asked: tuple[str, int]) -> str:
    """Ask one after the other; return who got them."""
    driver.sent.clear()
    for name, size in asked:
        ask(driver, name, size)
    return " ".join(sent.name for sent in driver.sent)


def all_answer(driver: Driver, delay_s: float = 0.020) -> None:
    for each in driver.entries:
        driver.play(each.name, answers(delay_s))


# -- the equals -----------------------------------------------------------------------------------


def test_names_are_measured_as_written_without_the_last_dot() -> None:
    driver = Driver("a", "b", limits={"a": (len(LONG), 0)})
    assert order(driver, (LONG, 0), (LONG, 0)) == "a b"
    assert order(driver, (LONG + "x", 0), (LONG + "x", 0)) == "b b"


def test_largest_reply_is_compared_with_what_the_client_takes() -> None:
    assert order(Driver("a", "b", limits={"a": (0, 512)}), *[(SHORT, 0)] * 2) == "a b"
    assert order(Driver("a", "b", limits={"a": (0, 512)}), *[(SHORT, 100)] * 2) == "a b"
    assert order(Driver("a", "b", limits={"a": (0, 512)}), *[(SHORT, 513)] * 2) == "b b"
    assert order(Driver("a", "b", limits={"a": (0, 1232)}), *[(SHORT, 1232)] * 2) == "a b"
    assert order(Driver("a", "b", limits={"a": (0, 1232)}), *[(SHORT, 1233)] * 2) == "b b"


def test_largest_that_checks_know_is_no_limit() -> None:
    driver = Driver("a", "b", limits={"a": (253, 4096)})
    assert order(driver, *[(LONG, 65_535)] * 4) == "a b a b"


def test_skipped_resolver_keeps_its_place() -> None:
    driver = Driver("a", "b", "c", limits={"a": (100, 0)})
    asked = [(LONG, 0)] * 5 + [(SHORT, 0)] * 4 + [(LONG, 0)] * 2 + [(SHORT, 0)] * 2
    assert order(driver, *asked) == "b c b c b" + " a c b a" + " c b" + " a c"


def test_many_short_ones_in_front_do_not_hide_the_others() -> None:
    """Twenty that never get a long query stay in front for ever; so many are not looked through."""
    short = [f"s{number}" for number in range(20)]
    driver = Driver(*short, "b", "c", limits=dict.fromkeys(short, (100, 0)))
    assert order(driver, *[(LONG, 0)] * 4) == "b c b c"
    assert sorted(order(driver, *[(SHORT, 0)] * 20).split()) == sorted(short)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_obeys_the_limits_and_shares_the_rest(policy: str) -> None:
    driver = Driver(
        "name", "reply", "any", load_balance=policy, limits={"name": (100, 0), "reply": (0, 512)}
    )
    all_answer(driver)
    got: dict[tuple[str, int], Counter[str]] = {}
    asked = [(LONG, 4096), (LONG, 0), (SHORT, 4096), (SHORT, 0)]
    for number in range(400):
        kind = asked[number % 4]
        driver.sent.clear()
        ask(driver, *kind)
        driver.advance(0.025)
        got.setdefault(kind, Counter()).update(s.name for s in driver.sent if s.kind == FIRST)
    assert set(got[LONG, 4096]) == {"any"}
    assert set(got[LONG, 0]) <= {"any", "reply"}
    assert set(got[SHORT, 4096]) <= {"any", "name"}
    total = sum(got.values(), Counter())
    if policy != "lowest_latency":
        assert min(total["name"], total["reply"]) >= 60  # each has half of the queries to share


def test_weighted_draws_by_weight_among_those_that_pass() -> None:
    driver = Driver(
        "weight8:a", "weight3:b", "c", load_balance="weighted", limits={"weight8:a": (100, 0)}
    )
    share = Counter(order(driver, *[(LONG, 0)] * 400).split())
    assert set(share) == {"weight3:b", "c"}
    assert share["weight3:b"] > 1.5 * share["c"]


def test_all_with_the_same_limits_are_one_queue() -> None:
    driver = Driver("a", "b", limits={"a": (100, 512), "b": (100, 512)})
    assert order(driver, *[(LONG, 4096)] * 4) == "a b a b"


def test_name_that_nobody_lets_through_is_asked_of_all_in_turn() -> None:
    driver = Driver("a", "b", limits={"a": (100, 0), "b": (63, 0)})
    assert order(driver, *[(LONG, 0)] * 4) == "a b a b"


def test_more_kinds_than_looked_at_are_taken_in_steps() -> None:
    names = [f"r{length}" for length in range(60, 250)]
    driver = Driver(*names, limits={name: (int(name[1:]), 0) for name in names})
    driver.sent.clear()
    for _ in range(400):
        ask(driver, "x" * 50 + "." + "x" * 49)  # 100 octets
    lengths = {int(sent.name[1:]) for sent in driver.sent}
    assert min(lengths) >= 100
    assert len(lengths) > 100
    assert len(driver.engines[0]._selection._fitness.groups) <= MOST_GROUPS


# -- room -----------------------------------------------------------------------------------------


def limited(driver: Driver, name: str) -> None:
    """Teach the pool a ceiling."""
    resolver = driver.resolver(name)
    driver.engines[0]._selection.refused(driver.now, resolver)
    assert resolver.interval_ns


def test_reply_limit_is_no_matter_when_the_others_have_no_room() -> None:
    driver = Driver("a", "b", limits={"a": (0, 512)})
    limited(driver, "b")
    assert order(driver, (SHORT, 4096)) == "a"


def test_name_limit_is_kept_when_the_others_have_no_room() -> None:
    driver = Driver("a", "b", limits={"a": (100, 0)}, token_wait_s=0.3)
    limited(driver, "b")
    asked = ask(driver, LONG)
    assert asked.replies == []
    driver.advance(0.2)
    assert [(sent.name, sent.kind) for sent in driver.sent] == [("b", FIRST)]
    assert order(driver, (SHORT, 0)) == "a"


def test_long_name_goes_to_one_aside_that_lets_it_through_but_a_large_reply_does_not() -> None:
    driver = Driver("a", "slow", limits={"a": (100, 512)})
    driver.play("a", answers(0.020))
    driver.play("slow", answers(0.200))
    for _ in range(300):
        ask(driver)
        driver.advance(0.050)
    assert driver.states == {"a": State.IN_USE, "slow": State.ASIDE}
    assert set(order(driver, *[(LONG, 0)] * 20).split()) == {"slow"}
    driver.advance(1.0)
    share = Counter(order(driver, *[(SHORT, 4096)] * 20).split())
    assert share["a"] >= 19  # a trial may be due


# -- whatever else sends --------------------------------------------------------------------------


def test_hedge_and_retry_of_a_long_name_pass_those_by_that_drop_it() -> None:
    driver = Driver("a", "s", "b", limits={"s": (100, 0)})
    ask(driver, LONG)
    driver.last.refuse()
    assert [(sent.name, sent.kind) for sent in driver.sent] == [("a", FIRST), ("b", RETRY)]
    driver = Driver("a", "s", "b", limits={"s": (100, 0)})
    driver.play("a", is_silent)
    all_answer(driver)
    driver.play("a", is_silent)
    asked = ask(driver, LONG)
    ask(driver)
    driver.advance(3.0)
    assert len(asked.replies) == 1
    assert ("b", HEDGE) in [(sent.name, sent.kind) for sent in driver.sent]
    assert [sent for sent in driver.sent_to("s") if len(sent.wire) > 200] == []


def test_copies_of_a_long_name_go_to_those_that_let_it_through() -> None:
    driver = Driver("a", "b", duplicate=2, limits={"a": (100, 0)})
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.022))
    client = ask(driver).client
    for _ in range(50):
        for name in (SHORT, LONG):
            driver.ask(query_wire(name), client=client)
            driver.advance(0.020)
    copies = driver.shares(COPY)
    assert set(copies) == {"a", "b"}
    assert {sent.name for sent in driver.sent if len(sent.wire) > 200} == {"b"}


@pytest.mark.parametrize("state", [State.FRESH, State.ASIDE, State.DOWN])
def test_trial_waits_for_a_query_that_the_resolver_lets_through(state: State) -> None:
    driver = Driver("a", limits={"new": (100, 0)})
    driver.play("a", answers(0.020))
    driver.set_roster("a", "new")
    driver.know(driver.slot("new"), state, 0.5, 0.1)
    driver.set_roster("a", "new")
    driver.play("new", answers(0.5))
    for engine in driver.engines:
        engine.set_usable(driver.resolver("new"), False)
        engine.set_usable(driver.resolver("new"), True)
    driver.advance(0.1)
    for _ in range(200):
        ask(driver, LONG)
        driver.advance(0.020)
    assert driver.shares(FIRST)["new"] + driver.shares(COPY)["new"] == 0
    for _ in range(200):
        ask(driver, SHORT)
        driver.advance(0.020)
    assert len(driver.sent_to("new")) >= 1


# -- the roster -----------------------------------------------------------------------------------


def test_new_limits_of_a_resolver_are_obeyed_and_it_goes_on_as_it_was() -> None:
    driver = Driver("a", "b")
    before = driver.resolver("a")
    assert order(driver, *[(LONG, 0)] * 2) == "a b"
    driver.entries[0] = replace(driver.entries[0], longest_name=100)
    assert driver.set_roster("a", "b") == ([], [])
    assert driver.resolver("a") is before
    assert order(driver, *[(LONG, 0)] * 2) == "b b"
    driver.entries[0] = replace(driver.entries[0], longest_name=0)
    driver.set_roster("a", "b")
    assert sorted(order(driver, *[(LONG, 0)] * 2).split()) == ["a", "b"]


def test_reply_bytes_of_odd_messages_is_bounded() -> None:
    plain = query_wire(SHORT)
    end = dns.question_end(plain)
    with_opt = query_wire(SHORT, opt=opt_wire(1232))
    record = b"\x00\x00\x10\x00\x01" + bytes(6)  # a TXT of the root before the OPT
    behind = with_opt[:10] + b"\x00\x02" + with_opt[12:end] + record + opt_wire(4096)
    table = {
        plain: 512,
        with_opt: 1232,
        query_wire(SHORT, opt=opt_wire(100)): 512,
        query_wire(SHORT, opt=opt_wire(65_535)): 65_535,
        behind: 4096,
        **{with_opt[:size]: 512 for size in range(end, end + 5)},
    }
    for wire, size in table.items():
        assert reply_bytes(Query(None, None, wire, end, 0.0)) == size, wire
