"""Queries go to resolvers that let their name and their reply through."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.engine.driver import Ask, Driver, Sent, answers, is_silent
from tests.rig.wire import FLAG_QR, FLAG_TC, opt_wire, query_wire, reply_of_size
from workers.engine import wire as dns
from workers.engine.engine import TICK_S
from workers.engine.fitness import (
    FEW_REPLIES,
    LATELY_S,
    MOST_GROUPS,
    LargestReply,
    advertised_bytes,
)
from workers.engine.health import State
from workers.engine.pending import COPY, FIRST, HEDGE, RETRY, Attempt, Query
from workers.engine.resolver import NO_LIMIT
from workers.engine.wire import HEADER_BYTES

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


def fills(sent: Sent) -> None:
    """Answer after 20 ms with half of what the client can take."""
    size_bytes = advertised_bytes(sent.attempt.query) // 2
    sent.driver.later(0.020, lambda: sent.say(reply_of_size(sent.wire, size_bytes)))


def gets(driver: Driver, size_bytes: int, count: int = 1, **how: bool) -> None:
    """Ask with 4,096, have each answered with so many octets, and let a tick pass."""
    for _ in range(count):
        ask(driver, SHORT, 4096, **how)
        driver.last.say(reply_of_size(driver.last.wire, size_bytes))
    driver.advance(TICK_S)


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
    for name in driver.states:
        driver.play(name, fills)
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
    assert len(driver.engines[0]._selection.fitness.groups) <= MOST_GROUPS


# -- replies that came ----------------------------------------------------------------------------


def test_largest_reply_that_came_is_what_queries_need() -> None:
    driver = Driver("a", "b", limits={"a": (0, 1232)})
    gets(driver, 1232, FEW_REPLIES)
    assert order(driver, *[(SHORT, 4096)] * 3) == "b b b"
    gets(driver, 300)
    assert sorted(order(driver, *[(SHORT, 4096)] * 4).split()) == ["a", "a", "b", "b"]


def test_what_a_client_takes_bounds_what_its_queries_need() -> None:
    driver = Driver("a", "b", limits={"a": (0, 1232)})
    gets(driver, 2_500, FEW_REPLIES + 1)
    assert sorted(order(driver, *[(SHORT, 1232)] * 4).split()) == ["a", "a", "b", "b"]
    assert set(order(driver, *[(SHORT, 1233)] * 4).split()) == {"b"}


@pytest.mark.parametrize("name", ["b", "tcp:b"])
@pytest.mark.parametrize("stream", [False, True])
def test_larger_reply_raises_what_all_need_at_once(name: str, stream: bool) -> None:
    driver = Driver("a", name, limits={"a": (0, 1232)})
    gets(driver, 300, FEW_REPLIES + 1)
    assert set(order(driver, *[(SHORT, 4096)] * 4).split()) == {"a", name}
    ask(driver, SHORT, 4096, stream=stream)
    ask(driver, SHORT, 4096, stream=stream)
    sent = driver.sent_to(name)[-1]
    sent.say(reply_of_size(sent.wire, 1_233))
    assert set(order(driver, *[(SHORT, 4096)] * 4).split()) == {name}


def test_cut_reply_raises_the_need_above_the_limit_of_who_cut_it() -> None:
    cut = FLAG_QR | FLAG_TC
    driver = Driver("a", "b", "c", limits={"a": (0, 512), "b": (0, 1232)})
    gets(driver, 300, FEW_REPLIES + 1)
    ask(driver, SHORT, 512)  # whoever cuts this does it for the client's sake
    driver.last.answer(flags=cut)
    ask(driver, SHORT, 512)
    driver.last.answer(flags=cut)
    assert set(order(driver, *[(SHORT, 4096)] * 6).split()) == {"a", "b", "c"}
    ask(driver, SHORT, 4096)
    ask(driver, SHORT, 4096)
    ask(driver, SHORT, 4096)
    driver.sent_to("c")[-1].answer(flags=cut)  # it passes all: the server has cut that
    assert set(order(driver, *[(SHORT, 4096)] * 6).split()) == {"a", "b", "c"}
    driver.sent_to("a")[-2].answer(flags=cut)
    assert set(order(driver, *[(SHORT, 4096)] * 6).split()) == {"b", "c"}


def test_cut_reply_that_came_over_tcp_is_of_its_own_size() -> None:
    driver = Driver("tcp:a", "b", limits={"tcp:a": (0, 512)})
    gets(driver, 300, FEW_REPLIES + 1)
    ask(driver, SHORT, 4096)
    ask(driver, SHORT, 4096)
    driver.sent_to("tcp:a")[-1].answer(flags=FLAG_QR | FLAG_TC)
    assert set(order(driver, *[(SHORT, 4096)] * 4).split()) == {"tcp:a", "b"}


def settle(driver: Driver) -> None:
    """Have it know that replies are small, and the turn be at "a"."""
    gets(driver, 300, FEW_REPLIES + 1)
    while driver.last.name != "any":
        gets(driver, 300)


def test_late_query_goes_to_one_that_passes_what_its_client_takes() -> None:
    driver = Driver("a", "b", "any", limits={"a": (0, 512), "b": (0, 512)})
    settle(driver)
    ask(driver, SHORT, 4096)
    driver.advance(0.05)
    assert [(each.name, each.kind) for each in driver.sent[-2:]] == [("a", FIRST), ("any", HEDGE)]


def test_query_that_has_not_left_yet_goes_to_whom_it_would_have_gone_anyway() -> None:
    driver = Driver("tcp:a", "b", "any", limits={"tcp:a": (0, 512), "b": (0, 512)})
    settle(driver)
    ask(driver, SHORT, 4096)
    driver.last.attempt.waits = True
    driver.advance(0.05)
    sent = [(each.name, each.kind) for each in driver.sent[-2:]]
    assert sent == [("tcp:a", FIRST), ("b", HEDGE)]


def test_lost_query_goes_to_one_that_passes_what_its_client_takes() -> None:
    driver = Driver(
        *("a", "b", "any"),
        limits={"a": (0, 512), "b": (0, 512)},
        hedge_only_losing=True,
        per_attempt_s=0.2,
    )
    settle(driver)
    driver.advance(15.0)  # no poll is known to be answered so late
    ask(driver, SHORT, 4096)
    driver.advance(0.3)
    assert [(each.name, each.kind) for each in driver.sent[-2:]] == [("a", FIRST), ("any", RETRY)]


def test_refused_query_goes_to_whom_it_would_have_gone_anyway() -> None:
    driver = Driver("a", "b", "any", limits={"a": (0, 512), "b": (0, 512)})
    settle(driver)
    ask(driver, SHORT, 4096)
    driver.last.refuse()
    assert [(each.name, each.kind) for each in driver.sent[-2:]] == [("a", FIRST), ("b", RETRY)]


def test_copy_goes_by_the_largest_reply_that_came() -> None:
    driver = Driver("a", "b", limits={"a": (0, 512)}, duplicate=2)
    driver.know(driver.slot("a"), State.IN_USE, 0.018, 0.001)
    selection = driver.engines[0]._selection
    driver.advance(1.1)  # sorted by cost
    wire = query_wire(SHORT, opt=opt_wire(4096))
    query = Query(None, None, wire, dns.question_end(wire), 0.0)
    assert selection.copy_target(query) is driver.resolver("b")
    gets(driver, 300, FEW_REPLIES + 1)
    assert selection.copy_target(query) is driver.resolver("a")


def test_largest_reply_is_remembered_over_a_pause_and_then_forgotten() -> None:
    largest = LargestReply()
    query = Query(None, None, bytes(HEADER_BYTES), HEADER_BYTES, 0.0)
    attempt = Attempt(query, Driver("a").resolver("a"), FIRST, 0.0, 0.0)
    answers = 7  # of before
    largest.tick(1000.0, answers)
    answers += FEW_REPLIES
    largest.came(attempt, bytes(1_100))
    largest.tick(1000.1, answers)
    assert largest.size_bytes == NO_LIMIT
    largest.tick(1000.2, answers + 1)
    assert largest.size_bytes == 1_100
    for at, size_bytes, kept in [
        (999.0 + LATELY_S, 80, 1_100),
        (1000.0 + LATELY_S, 80, 1_100),
        (1000.1 + LATELY_S, 90, 1_100),
        (999.0 + 2 * LATELY_S, 80, 1_100),
        (1000.0 + 2 * LATELY_S, 70, 90),
    ]:
        answers += FEW_REPLIES + 1
        if size_bytes > largest.span_bytes:
            largest.came(attempt, bytes(size_bytes))
        largest.tick(at, answers)
        assert largest.size_bytes == kept, at
    largest.tick(1000.0 + 3 * LATELY_S, answers + 3)
    assert largest.size_bytes == NO_LIMIT  # a few polls


def test_replies_are_measured_only_while_limits_differ() -> None:
    driver = Driver("a", "b", limits={"a": (100, 512), "b": (0, 512)})
    fitness = driver.engines[0]._selection.fitness
    gets(driver, 300, FEW_REPLIES + 1)
    assert fitness.mixed
    assert fitness.largest_reply is None
    driver.entries[1] = replace(driver.entries[1], largest_reply=0)
    driver.set_roster("a", "b")
    driver.advance(TICK_S)
    assert set(order(driver, *[(SHORT, 4096)] * 4).split()) == {"b"}
    gets(driver, 300, FEW_REPLIES + 1)
    assert set(order(driver, *[(SHORT, 4096)] * 4).split()) == {"a", "b"}
    driver.advance(2.0)  # sorted anew, and nothing forgotten
    assert set(order(driver, *[(SHORT, 4096)] * 4).split()) == {"a", "b"}


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
    driver.play("b", answers(0.020))
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


def test_advertised_bytes_of_odd_messages_is_bounded() -> None:
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
        assert advertised_bytes(Query(None, None, wire, end, 0.0)) == size, wire
