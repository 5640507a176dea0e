"""The relay's own questions that come back to it: answered at once, never sent on."""

from __future__ import annotations

from shared.own_question import OwnQuestion
from tests.engine.driver import Driver, answers
from tests.rig.wire import TYPE_A, query_wire
from workers.engine.health import State

OWN = OwnQuestion.new()
HOW = {"own_label": OWN.label.decode(), "own_proof": OWN.proof.decode()}
TYPE_DS = 43


def test_own_question_whatever_the_pool_is_doing_is_answered_at_once_and_not_sent() -> None:
    pools = {
        "in use": Driver("a", **HOW),
        "without a resolver": Driver(**HOW),
        "down": Driver("a", state=State.DOWN, **HOW),
        "silent on failure": Driver(silent_failure=True, **HOW),
        "full": Driver("a", max_pending=0, **HOW),
    }
    for what, driver in pools.items():
        for stream in (False, True):
            for qtype in (TYPE_A, 16):
                name = OWN.question_name(what).swapcase()
                asked = driver.ask(query_wire(name, qtype), stream=stream)
                assert OWN.is_proof(asked.reply), what
        driver.advance(3.0)
        assert [sent for sent in driver.sent if OWN.is_own(sent.wire)] == []
        counters = driver.engines[0].counters
        assert (counters.queries, counters.pending, driver.all_dropped) == (0, 0, {}), what


def test_own_question_without_a_label_is_sent_on() -> None:
    driver = Driver("a")
    driver.ask(query_wire(OWN.question_name("")))
    assert len(driver.sent_to("a")) == 1


def test_question_that_is_nearly_own_is_sent_on() -> None:
    driver = Driver("a", **HOW)
    names = [OwnQuestion.new().question_name(""), "x" * 40 + ".com"]
    for name in names:
        driver.ask(query_wire(name))
    driver.ask(query_wire(OWN.question_name(""), TYPE_DS))
    driver.play("a", answers(0.01))
    asked = driver.ask()
    driver.advance(0.1)
    assert len(driver.sent_to("a")) == 4
    assert len(asked.replies) == 1
