"""The lifecycle machine on a hand-moved clock: literal times in, literal actions out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.supervisor import (
    EXIT_BOOT_FAILED,
    TRANSITIONS,
    Action,
    Announce,
    Drain,
    Event,
    Finish,
    HandOver,
    Kill,
    Phase,
    Report,
    Start,
    State,
    Steer,
    Stopping,
    Supervisor,
    Timing,
)

DEADLINE_S = 5.0


def silent(actions: Iterable[Action]) -> list[Action]:
    """The actions but for what is only told to people."""
    return [action for action in actions if not isinstance(action, Report)]


def told(actions: Iterable[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Report))


def serving(count: int, timing: Timing | None = None) -> Supervisor:
    """A machine whose workers were all ready at 1.0."""
    machine = Supervisor(count, timing or Timing())
    machine.start(0.0)
    for index in range(count):
        machine.ready(1.0, index)
    assert machine.phase is Phase.SERVING
    return machine


def beats(*values: int) -> list[int]:
    return list(values)


def test_start_of_three_starts_each_once() -> None:
    machine = Supervisor(3)
    assert machine.start(0.0) == [Start(0), Start(1), Start(2)]
    assert [w.state for w in machine.workers] == [State.STARTING] * 3


def test_ready_of_all_but_one_announces_nothing() -> None:
    machine = Supervisor(2)
    machine.start(0.0)
    assert silent(machine.ready(0.1, 1)) == []
    assert machine.phase is Phase.BOOTING


def test_ready_of_the_last_announces_once() -> None:
    machine = Supervisor(2)
    machine.start(0.0)
    machine.ready(0.1, 1)
    assert silent(machine.ready(0.2, 0)) == [Announce()]
    assert silent(machine.ready(0.3, 0)) == []


def test_ready_of_a_worker_that_stalled_at_boot_announces_when_it_moves_again() -> None:
    machine = Supervisor(2)
    machine.start(0.0)
    machine.ready(0.0, 0)
    now = 0.0
    for _ in range(4):
        now += 0.5
        machine.tick(now, beats(0, 0))
    assert machine.workers[0].state is State.STALLED
    assert silent(machine.ready(now, 1)) == []
    assert silent(machine.tick(now + 0.5, beats(1, 1))) == [Announce()]


def test_exit_of_a_worker_steers_away_hands_over_and_starts_at_once() -> None:
    machine = serving(3)
    actions = silent(machine.exited(20.0, 1, -9))
    assert actions == [Steer((0, 2)), HandOver((0, 2)), Start(1)]
    assert machine.workers[1].restarts == 1


def test_ready_of_a_successor_puts_it_back() -> None:
    machine = serving(3)
    machine.exited(20.0, 1, -9)
    assert silent(machine.ready(20.1, 1)) == [Steer((0, 1, 2)), HandOver((0, 1, 2))]


def test_exit_of_all_workers_steers_to_none_and_starts_all() -> None:
    machine = serving(2)
    machine.exited(20.0, 0, -9)
    assert silent(machine.exited(20.0, 1, -9)) == [Steer(()), HandOver(()), Start(1)]


def test_exit_with_status_0_unasked_is_a_death() -> None:
    machine = serving(1)
    assert Start(0) in machine.exited(20.0, 0, 0)


def test_exit_thirty_times_in_a_row_after_serving_is_always_replaced_at_once() -> None:
    machine = serving(1)
    now = 1.0
    for _ in range(30):
        now += 0.2
        assert Start(0) in machine.exited(now, 0, -9)
        now += 0.2
        machine.ready(now, 0)


def test_exit_after_the_credit_is_used_up_waits_twice_as_long_each_time() -> None:
    machine = serving(1, Timing(credit=2.0, waits=10))
    for _ in range(2):
        assert Start(0) in machine.exited(1.0, 0, -9)
        machine.ready(1.0, 0)
    now, waits = 1.0, []
    for _ in range(9):
        assert Start(0) not in machine.exited(now, 0, -9)
        waits.append(round(machine.workers[0].start_at - now, 3))
        now = machine.workers[0].start_at
        assert Start(0) in machine.tick(now, beats(0))
        machine.ready(now, 0)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_exit_after_a_stable_time_waits_as_if_it_were_the_first() -> None:
    machine = serving(1, Timing(credit=1.0, credit_regained_s=1000.0))
    machine.exited(1.0, 0, -9)
    for now in (1.0, 2.0, 3.0):
        machine.ready(now, 0)
        machine.exited(now, 0, -9)
        now = machine.workers[0].start_at
        machine.tick(now, beats(0))
    assert machine.workers[0].waits == 3
    machine.ready(10.0, 0)
    machine.exited(16.0, 0, -9)
    assert machine.workers[0].start_at == 16.1


def test_exit_before_ready_uses_half_the_credit() -> None:
    machine = serving(2)
    machine.exited(2.0, 0, -9)
    assert Start(0) in machine.exited(2.1, 0, 1)
    actions = machine.exited(2.2, 0, 1)
    assert silent(actions) == []
    assert "replaced in 0.1 s" in told(actions)
    assert machine.wake_at() == pytest.approx(0.5)  # the tick that has been due since the start


def test_exit_before_ready_at_boot_is_tried_again_and_then_ends_the_relay() -> None:
    machine = Supervisor(2)
    machine.start(0.0)
    assert silent(machine.exited(0.1, 0, 1)) == [Start(0)]
    assert silent(machine.exited(0.2, 0, 1)) == [Start(0)]
    actions = machine.exited(0.3, 0, 1)
    assert silent(actions) == [Stopping(), Kill(1)]
    assert "worker 0 keeps dying: it exited with status 1 before it was ready" in told(actions)
    assert silent(machine.exited(0.4, 1, -9)) == [Finish(1)]


def test_boot_failure_at_boot_ends_the_relay_with_1() -> None:
    machine = Supervisor(2)
    machine.start(0.0)
    actions = machine.exited(0.1, 1, EXIT_BOOT_FAILED)
    assert silent(actions) == [Stopping(), Kill(0)]
    assert "worker 1 cannot start" in told(actions)
    assert machine.exited(0.2, 0, -9) == [Finish(1)]


def test_boot_failure_later_is_tried_a_few_times_while_others_serve() -> None:
    machine = serving(2)
    machine.exited(1.0, 0, -9)
    now, starts = 1.0, 0
    while machine.workers[0].state is not State.GONE:
        machine.exited(now, 0, EXIT_BOOT_FAILED)
        if machine.workers[0].state is State.WAITING:
            now = machine.workers[0].start_at
            assert Start(0) in machine.tick(now, beats(0, int(now * 10)))
        starts += 1
        assert starts < 10
    assert starts == 5
    assert machine.phase is Phase.SERVING
    assert machine.workers[1].state is State.READY


def test_boot_failure_of_all_later_ends_the_relay_with_1() -> None:
    machine = serving(2)
    machine.exited(1.0, 0, -9)
    machine.exited(1.0, 1, -9)
    now = 1.0
    actions: list[Action] = []
    for _ in range(200):
        now += 0.5
        actions += machine.tick(now, beats(0, 0))
        for worker in machine.workers:
            if worker.state is State.STARTING:
                actions += machine.exited(now, worker.index, EXIT_BOOT_FAILED)
        if machine.phase is Phase.FINISHED:
            break
    assert actions[-1] == Finish(1)


def test_exits_of_all_over_and_over_end_the_relay_with_1() -> None:
    machine = serving(2)
    machine.exited(1.0, 0, 1)
    machine.exited(1.0, 1, 1)
    now = 1.0
    actions: list[Action] = []
    while machine.phase is not Phase.FINISHED:
        now += 0.1
        actions += machine.tick(now, beats(0, 0))
        for worker in machine.workers:
            if worker.state is State.STARTING:
                actions += machine.exited(now, worker.index, 1)
        assert now < 30.0
    assert actions[-1] == Finish(1)
    assert "all workers keep dying" in told(actions)
    assert actions.count(Stopping()) == 1


def test_exits_of_one_over_and_over_never_end_the_relay_while_another_serves() -> None:
    machine = serving(2)
    machine.exited(1.0, 0, 1)
    now, beat = 1.0, 0
    while now < 120.0:
        now += 0.5
        beat += 1
        machine.tick(now, beats(0, beat))
        if machine.workers[0].state is State.STARTING:
            machine.exited(now, 0, 1)
    assert machine.phase is Phase.SERVING
    assert machine.workers[0].state is State.WAITING
    assert 5 < machine.workers[0].restarts < 25


def test_failed_start_counts_as_a_death_and_says_why() -> None:
    machine = serving(2)
    machine.exited(1.0, 0, -9)
    actions = machine.exited(1.0, 0, "Cannot allocate memory")
    assert "could not be started (Cannot allocate memory)" in told(actions)
    assert silent(actions) == [Start(0)]


def test_silence_first_steers_away_then_kills() -> None:
    machine = serving(2)
    now, log = 1.0, []
    for beat in range(1, 14):
        now += 0.5
        log += [(now, action) for action in silent(machine.tick(now, beats(0, beat)))]
    # The first look counts two intervals: the one before it was the start, at 0.0.
    assert log == [(2.0, Steer((1,))), (5.5, Kill(0)), (5.5, HandOver((1,)))]
    assert machine.workers[0].state is State.KILLED


def test_silence_that_ends_brings_the_worker_back() -> None:
    machine = serving(2)
    now = 1.0
    for beat in range(1, 6):
        now += 0.5
        machine.tick(now, beats(0, beat))
    assert machine.workers[0].state is State.STALLED
    assert silent(machine.tick(now + 0.5, beats(1, 9))) == [Steer((0, 1))]
    assert machine.workers[0].state is State.READY


def test_silence_while_the_machine_was_suspended_kills_nobody() -> None:
    machine = serving(2)
    machine.tick(1.5, beats(1, 1))
    assert silent(machine.tick(3600.0, beats(1, 1))) == []
    assert silent(machine.tick(3600.5, beats(2, 2))) == []
    assert [w.state for w in machine.workers] == [State.READY, State.READY]


def test_silence_of_a_starting_worker_beyond_the_limit_kills_it() -> None:
    machine = Supervisor(1, Timing(start_limit_s=2.0))
    machine.start(0.0)
    assert silent(machine.tick(0.5, beats(0))) == []
    assert silent(machine.tick(1.0, beats(0))) == []
    assert silent(machine.tick(1.5, beats(0))) == []
    assert silent(machine.tick(2.0, beats(0))) == [Kill(0)]
    assert silent(machine.exited(2.1, 0, -9)) == [Start(0)]


def test_drain_tells_everyone_and_finishes_when_all_have_left() -> None:
    machine = serving(2)
    assert machine.drain(10.0, DEADLINE_S) == [
        Stopping(),
        Drain(0, DEADLINE_S),
        Drain(1, DEADLINE_S),
    ]
    assert machine.exited(10.1, 1, 0) == []
    assert machine.exited(10.2, 0, 0) == [Finish(0)]
    assert machine.wake_at() is None


def test_drain_beyond_deadline_and_margin_kills() -> None:
    machine = serving(2)
    machine.drain(10.0, DEADLINE_S)
    machine.exited(10.1, 1, 0)
    now = 10.0
    while (wake_at := machine.wake_at()) is not None and wake_at < 16.0:
        now = max(now + 0.01, wake_at)
        assert silent(machine.tick(now, beats(0, 0))) == []
    assert machine.wake_at() == 16.0
    assert silent(machine.tick(16.0, beats(0, 0))) == [Kill(0)]
    assert machine.exited(16.1, 0, -9) == [Finish(0)]


def test_drain_with_a_death_meanwhile_starts_nobody() -> None:
    machine = serving(2)
    machine.drain(10.0, DEADLINE_S)
    actions = machine.exited(10.1, 0, -11)
    assert silent(actions) == []
    assert "signal 11 with queries open" in told(actions)
    assert machine.exited(10.2, 1, 0) == [Finish(0)]


def test_drain_while_one_starts_and_one_waits_leaves_only_the_kill_to_await() -> None:
    machine = serving(3)
    machine.exited(2.0, 0, -9)
    for _ in range(3):
        machine.exited(2.0, 1, 1)
    assert [w.state for w in machine.workers] == [State.STARTING, State.WAITING, State.READY]
    assert machine.drain(2.0, DEADLINE_S) == [Stopping(), Kill(0), Drain(2, DEADLINE_S)]
    machine.exited(2.1, 2, 0)
    assert machine.exited(2.2, 0, -9) == [Finish(0)]


def test_drain_twice_means_nothing_the_second_time() -> None:
    machine = serving(1)
    machine.drain(10.0, DEADLINE_S)
    assert machine.drain(10.1, DEADLINE_S) == []


def test_stop_during_drain_kills_at_once_with_status_0() -> None:
    machine = serving(2)
    machine.drain(10.0, DEADLINE_S)
    assert machine.stop(10.1) == [Kill(0), Kill(1)]
    machine.exited(10.2, 0, -9)
    assert machine.exited(10.2, 1, -9) == [Finish(0)]


def test_stop_without_any_exit_finishes_all_the_same() -> None:
    machine = serving(1)
    assert machine.stop(10.0) == [Stopping(), Kill(0)]
    assert silent(machine.tick(11.0, beats(0))) == []
    assert silent(machine.tick(12.0, beats(0))) == [Finish(0)]


def test_fail_reports_and_finishes_with_1() -> None:
    machine = serving(1)
    assert machine.fail(10.0, "broken") == [Report("error", "broken"), Stopping(), Kill(0)]
    assert machine.exited(10.1, 0, -9) == [Finish(1)]


def test_transitions_table_is_complete_for_every_living_state() -> None:
    living = {State.STARTING, State.READY, State.STALLED, State.KILLED, State.DRAINING}
    for state in living:
        assert (state, Event.EXIT) in TRANSITIONS
    for state in living - {State.KILLED}:
        assert TRANSITIONS[state, Event.KILL] is State.KILLED
    assert not any(state is State.GONE for state, _ in TRANSITIONS)


class Life(RuleBasedStateMachine):
    """Any order of events: never two processes for one index, and always an end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.machine = Supervisor(3)
        self.processes: set[int] = set()
        self.finished: list[int] = []
        self.announced = 0
        self.stoppings = 0
        self.serving: tuple[int, ...] = (0, 1, 2)
        self.beats = [0, 0, 0]
        self.take(self.machine.start(self.now))

    def take(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(worker):
                    assert worker not in self.processes
                    assert not self.finished
                    self.processes.add(worker)
                case Kill(worker) | Drain(worker, _):
                    assert worker in self.processes
                case Steer(workers):
                    self.serving = workers
                case Announce():
                    self.announced += 1
                case Stopping():
                    self.stoppings += 1
                case Finish(status):
                    self.finished.append(status)

    @rule(index=st.sampled_from(range(3)))
    def ready(self, index: int) -> None:
        if index in self.processes:
            self.take(self.machine.ready(self.now, index))

    @rule(index=st.sampled_from(range(3)), cause=st.sampled_from([0, 1, -9, 3]))
    def exits(self, index: int, cause: int) -> None:
        if index in self.processes:
            self.processes.discard(index)
            self.take(self.machine.exited(self.now, index, cause))

    @rule(step_s=st.floats(0.01, 8.0), beating=st.sets(st.sampled_from(range(3))))
    def time_passes(self, step_s: float, beating: set[int]) -> None:
        self.now += step_s
        for index in beating:
            self.beats[index] += 1
        self.take(self.machine.tick(self.now, self.beats))

    @precondition(lambda self: self.machine.phase.value < Phase.DRAINING.value)
    @rule(how=st.sampled_from(["drain", "stop", "fail"]), luck=st.sampled_from(range(10)))
    def ends(self, how: str, luck: int) -> None:
        if luck == 0:
            arguments = {"drain": (DEADLINE_S,), "stop": (), "fail": ("because",)}[how]
            self.take(getattr(self.machine, how)(self.now, *arguments))

    @invariant()
    def holds(self) -> None:
        assert self.announced <= 1
        assert self.stoppings <= 1
        assert len(self.finished) <= 1
        living = {State.STARTING, State.READY, State.STALLED, State.KILLED, State.DRAINING}
        if self.machine.phase is not Phase.FINISHED:
            assert {w.index for w in self.machine.workers if w.state in living} == self.processes
        if self.machine.phase is Phase.SERVING:
            ready = tuple(w.index for w in self.machine.workers if w.state is State.READY)
            assert self.serving == ready

    def teardown(self) -> None:
        self.take(self.machine.stop(self.now))
        for index in sorted(self.processes):
            self.exits(index, -9)
        assert len(self.finished) == 1
        assert self.stoppings == 1


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_wake_at_is_never_in_the_past_of_a_tick() -> None:
    machine = serving(2)
    now = 1.0
    for beat in itertools.count(1):
        wake_at = machine.wake_at()
        assert wake_at is not None
        now = max(now, wake_at)
        machine.tick(now, beats(beat, beat))
        after = machine.wake_at()
        assert after is not None
        assert after > now
        if now > 10.0:
            break
