"""The life of the workers: who is started when, who is killed, and when the relay ends. Pure.

Owner: the supervisor process; `relay.process` feeds it events and does what it says. No clock, no
process, no socket in here: `now` is passed in (monotonic seconds), every method returns actions.

Theory of operation. All workers are started at once. When each has reported ready, the relay
*serves* and says so. A worker that dies has a successor at once: the listening sockets stay open
and hold what comes in meanwhile. What must be slowed is an endless series of deaths, not a burst:
every worker has a credit of immediate restarts. A death after serving takes a little of it, a death
before ever being ready takes half of all, and time spent serving gives it back. Without credit the
start waits, twice as long each time. The relay gives up when nobody serves and each worker has used
up its waits.

A worker shows that it lives by a word on the board. `Supervisor.tick` adds up the time in which it
saw that word stand still, and counts at most two intervals for each look. So a machine that was
suspended, or a supervisor that was itself starved, adds next to nothing. A worker silent for a
while is *stalled*: it stays, but the kernel sends it nothing new. Silent for longer, it is killed.

A worker that cannot start exits with EXIT_BOOT_FAILED. While the relay itself starts, that ends the
relay: its configuration or machine is wrong. Later it is tried a few times and then given up.

To drain, those who serve are told to take no new queries and to leave when the open ones have had
their answers.

Invariant: every worker is in one state, moved by TRANSITIONS alone; a pair that is not listed there
changes nothing. One process at most per index: a start follows an exit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, Literal

EXIT_BOOT_FAILED: Final = 3
"""Exit status of a worker that cannot start at all."""


class State(StrEnum):
    """Of one worker."""

    WAITING = "waiting"
    """There is no process; a start is due."""
    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    """Serves, or should, but has given no sign of life for a while."""
    KILLED = "killed"
    """Told to die; its exit is awaited."""
    DRAINING = "draining"
    GONE = "gone"
    """There is no process and there will be none."""


class Event(Enum):
    """What happens to one worker."""

    LAUNCH = "launch"
    READY = "ready"
    SILENCE = "silence"
    BEAT = "beat"
    KILL = "kill"
    DRAIN = "drain"
    EXIT = "exit"
    GIVE_UP = "give up"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.WAITING, Event.LAUNCH): State.STARTING,
    (State.WAITING, Event.GIVE_UP): State.GONE,
    (State.STARTING, Event.READY): State.READY,
    (State.STARTING, Event.KILL): State.KILLED,
    (State.STARTING, Event.EXIT): State.WAITING,
    (State.READY, Event.SILENCE): State.STALLED,
    (State.READY, Event.KILL): State.KILLED,
    (State.READY, Event.DRAIN): State.DRAINING,
    (State.READY, Event.EXIT): State.WAITING,
    (State.STALLED, Event.BEAT): State.READY,
    (State.STALLED, Event.KILL): State.KILLED,
    (State.STALLED, Event.DRAIN): State.DRAINING,
    (State.STALLED, Event.EXIT): State.WAITING,
    (State.KILLED, Event.EXIT): State.WAITING,
    (State.DRAINING, Event.KILL): State.KILLED,
    (State.DRAINING, Event.EXIT): State.GONE,
}
"""The whole machine of a worker."""


class Phase(Enum):
    """Of the relay; it only moves down this list."""

    BOOTING = 0
    SERVING = 1
    DRAINING = 2
    STOPPING = 3
    """Everybody is told to die; exits are awaited for a moment."""
    FINISHED = 4


@dataclass(frozen=True, slots=True)
class Timing:
    """The constants of the machine, in one place."""

    tick_s: float = 0.5
    """How often `tick` is due."""
    stalled_after_s: float = 1.5
    hung_after_s: float = 5.0
    start_limit_s: float = 30.0
    """A worker that is not ready by then counts as hung."""
    drain_margin_s: float = 1.0
    """What a draining worker gets beyond the deadline of its queries."""
    stop_limit_s: float = 2.0
    """How long killed workers are awaited at the end."""
    credit: float = 30.0
    """Deaths after serving that are followed by an immediate start."""
    credit_regained_s: float = 3.0
    """Time of serving that gives back one."""
    stable_s: float = 5.0
    """Time of serving after which a death is the first again."""
    first_wait_s: float = 0.1
    longest_wait_s: float = 10.0
    waits: int = 5
    """Waits in a row after which a worker counts as one that keeps dying."""
    boot_failures: int = 5
    """Failed starts in a row after which a worker is given up."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the process of a worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process of a worker, now."""

    worker: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Tell a worker to finish what it has, for `deadline_s` at most, and to leave."""

    worker: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Steer:
    """Let new queries go to these workers only (to all, where there is none)."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let these workers keep the resolvers (nothing changes where there is none)."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Announce:
    """Every worker serves for the first time: say so."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The relay goes down: say so. Comes once, before Finish."""


@dataclass(frozen=True, slots=True)
class Finish:
    """All is done: leave with this exit status."""

    status: int


@dataclass(frozen=True, slots=True)
class Report:
    """Tell people."""

    level: Literal["info", "warning", "error"]
    text: str


Action = Start | Kill | Drain | Steer | HandOver | Announce | Stopping | Finish | Report


@dataclass(slots=True)
class Worker:
    """What the machine knows of one worker."""

    index: int
    credit: float
    state: State = State.WAITING
    ready_at: float | None = None
    """When the present process became ready."""
    start_at: float = 0.0
    """When the next start is due, while it waits."""
    beat: int = 0
    silence_s: float = 0.0
    """Observed time without a sign of life; while starting: without being ready."""
    waits: int = 0
    boot_failures: int = 0
    restarts: int = 0

    def move(self, event: Event) -> bool:
        """Apply an event; False where it means nothing in this state."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            return False
        self.state = state
        return True


@dataclass(slots=True)
class Supervisor:
    """The machine. See the module's docstring."""

    count: int
    timing: Timing = field(default_factory=Timing)
    phase: Phase = Phase.BOOTING
    workers: list[Worker] = field(init=False)
    _status: int = 0
    _last_tick_at: float = 0.0
    _until: float = 0.0
    """End of the drain, then end of the wait for exits."""
    _serving: tuple[int, ...] = ()
    _living: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.workers = [Worker(index, self.timing.credit) for index in range(self.count)]
        # Until all are ready for the first time nobody is missing: nothing moves to and fro.
        self._serving = self._living = tuple(range(self.count))

    def start(self, now: float) -> list[Action]:
        """Start everybody."""
        self._last_tick_at = now
        return [action for worker in self.workers for action in self._launch(worker)]

    def ready(self, now: float, index: int) -> list[Action]:
        """Take note that a worker serves."""
        worker = self.workers[index]
        if not worker.move(Event.READY):
            return []
        worker.ready_at = now
        worker.silence_s = 0.0
        worker.boot_failures = 0
        return [Report("info", f"worker {index} serves"), *self._settle()]

    def exited(self, now: float, index: int, cause: int | str) -> list[Action]:
        """Take note that a worker's process is no more.

        `cause` is its exit status, minus the signal that ended it, or why it could not be started.
        """
        worker = self.workers[index]
        was_draining = worker.state is State.DRAINING
        if not worker.move(Event.EXIT):
            return []
        served_s = None if worker.ready_at is None else now - worker.ready_at
        worker.ready_at = None
        if self.phase not in (Phase.BOOTING, Phase.SERVING):
            worker.move(Event.GIVE_UP)
            actions: list[Action] = []
            if was_draining and cause != 0:
                actions.append(
                    Report("warning", f"worker {index} {_told(cause)} with queries open")
                )
            return actions + self._finish_if_gone()
        if cause == EXIT_BOOT_FAILED:
            return self._boot_failed(now, worker)
        return self._replace(now, worker, served_s, _told(cause))

    def tick(self, now: float, beats: Sequence[int]) -> list[Action]:
        """Look at the clock and at the heartbeat words; due at `wake_at`."""
        timing = self.timing
        observed_s = min(now - self._last_tick_at, 2 * timing.tick_s)
        self._last_tick_at = now
        actions: list[Action] = []
        if self.phase in (Phase.BOOTING, Phase.SERVING):
            for worker in self.workers:
                actions += self._look(now, worker, beats[worker.index], observed_s)
            actions += self._settle()
        elif self.phase is Phase.DRAINING and now >= self._until:
            late = [w.index for w in self.workers if w.state is State.DRAINING]
            if late:
                actions.append(Report("warning", f"workers {late} did not drain in time"))
            actions += self._stop(now)
        elif self.phase is Phase.STOPPING and now >= self._until:
            self.phase = Phase.FINISHED
            actions += [Report("error", "killed workers do not exit"), Finish(self._status)]
        return actions

    def wake_at(self) -> float | None:
        """Return when the next `tick` is due, None once all is finished."""
        if self.phase is Phase.FINISHED:
            return None
        due = self._last_tick_at + self.timing.tick_s
        if self.phase in (Phase.DRAINING, Phase.STOPPING):
            return min(due, self._until)
        waiting = [w.start_at for w in self.workers if w.state is State.WAITING]
        return min([due, *waiting])

    def drain(self, now: float, deadline_s: float) -> list[Action]:
        """Stop as asked: no new queries, the open ones get their answers within `deadline_s`."""
        if self.phase not in (Phase.BOOTING, Phase.SERVING):
            return []
        self.phase = Phase.DRAINING
        self._until = now + deadline_s + self.timing.drain_margin_s
        actions: list[Action] = [Stopping()]
        for worker in self.workers:
            if worker.move(Event.DRAIN):
                actions.append(Drain(worker.index, deadline_s))
            elif worker.move(Event.KILL):
                actions.append(Kill(worker.index))
            else:
                worker.move(Event.GIVE_UP)
        return actions + self._finish_if_gone()

    def stop(self, now: float) -> list[Action]:
        """Stop now, as asked."""
        if self.phase in (Phase.STOPPING, Phase.FINISHED):
            return []
        opening: list[Action] = [] if self.phase is Phase.DRAINING else [Stopping()]
        return opening + self._stop(now)

    def fail(self, now: float, reason: str) -> list[Action]:
        """Stop now because something is wrong; the exit status is 1."""
        if self.phase in (Phase.STOPPING, Phase.FINISHED):
            return []
        self._status = 1
        return [Report("error", reason), *self.stop(now)]

    # -- steps ----------------------------------------------------------------------------------

    def _launch(self, worker: Worker) -> list[Action]:
        worker.move(Event.LAUNCH)
        worker.silence_s = 0.0
        return [Start(worker.index)]

    def _replace(
        self, now: float, worker: Worker, served_s: float | None, told: str
    ) -> list[Action]:
        """Start a successor of a worker that died, at once or after a wait."""
        timing = self.timing
        worker.restarts += 1
        if served_s is None:
            worker.credit -= timing.credit / 2
        else:
            regained = worker.credit + served_s / timing.credit_regained_s
            worker.credit = min(timing.credit, regained) - 1
        worker.credit = max(worker.credit, -1.0)
        if served_s is not None and served_s >= timing.stable_s:
            worker.waits = 0
        when = "" if served_s is not None else " before it was ready"
        if worker.credit >= 0:
            text = f"worker {worker.index} {told}{when}; it is replaced at once"
            return [*self._settle(), *self._launch(worker), Report("warning", text)]
        if self.phase is Phase.BOOTING:
            return self.fail(now, f"worker {worker.index} keeps dying: it {told}{when}")
        wait_s = min(timing.longest_wait_s, timing.first_wait_s * 2.0**worker.waits)
        worker.start_at = now + wait_s
        worker.waits += 1
        if self._all_keep_dying():
            return self.fail(
                now, f"all workers keep dying; the last, worker {worker.index}, {told}{when}"
            )
        text = f"worker {worker.index} {told}{when}; it is replaced in {wait_s:.1f} s"
        return [*self._settle(), Report("warning", text)]

    def _boot_failed(self, now: float, worker: Worker) -> list[Action]:
        told = f"worker {worker.index} cannot start; its own message says why"
        if self.phase is Phase.BOOTING:
            return self.fail(now, told)
        worker.boot_failures += 1
        if worker.boot_failures < self.timing.boot_failures:
            return self._replace(now, worker, None, "cannot start")
        worker.move(Event.GIVE_UP)
        if self._all_keep_dying():
            return self.fail(now, f"no worker is left: {told}")
        return [*self._settle(), Report("error", f"{told}; it is given up")]

    def _all_keep_dying(self) -> bool:
        """Whether nobody serves and nobody is likely to."""
        return all(
            worker.state is State.GONE
            or (worker.ready_at is None and worker.waits >= self.timing.waits)
            for worker in self.workers
        )

    def _look(self, now: float, worker: Worker, beat: int, observed_s: float) -> list[Action]:
        timing = self.timing
        if worker.state is State.WAITING:
            return self._launch(worker) if now >= worker.start_at else []
        if worker.state is State.STARTING:
            worker.silence_s += observed_s
            if worker.silence_s < timing.start_limit_s:
                return []
            return self._kill(worker, f"is not ready after {timing.start_limit_s:.0f} s")
        if worker.state not in (State.READY, State.STALLED):
            return []
        if beat != worker.beat:
            worker.beat = beat
            worker.silence_s = 0.0
            if worker.move(Event.BEAT):
                return [Report("info", f"worker {worker.index} moves again")]
            return []
        worker.silence_s += observed_s
        if worker.silence_s >= timing.hung_after_s:
            return self._kill(worker, f"hangs for {worker.silence_s:.1f} s")
        if worker.silence_s >= timing.stalled_after_s and worker.move(Event.SILENCE):
            return [Report("warning", f"worker {worker.index} does not move; it gets nothing new")]
        return []

    def _kill(self, worker: Worker, why: str) -> list[Action]:
        worker.move(Event.KILL)
        return [Report("error", f"worker {worker.index} {why}; killed"), Kill(worker.index)]

    def _stop(self, now: float) -> list[Action]:
        self.phase = Phase.STOPPING
        self._until = now + self.timing.stop_limit_s
        actions: list[Action] = []
        for worker in self.workers:
            if worker.move(Event.KILL):
                actions.append(Kill(worker.index))
            else:
                worker.move(Event.GIVE_UP)
        return actions + self._finish_if_gone()

    def _finish_if_gone(self) -> list[Action]:
        if self.phase is Phase.FINISHED or any(w.state is not State.GONE for w in self.workers):
            return []
        self.phase = Phase.FINISHED
        return [Finish(self._status)]

    def _settle(self) -> list[Action]:
        """Say who gets queries and who keeps resolvers, where that changed."""
        actions: list[Action] = []
        if self.phase is Phase.BOOTING and all(w.state is State.READY for w in self.workers):
            self.phase = Phase.SERVING
            actions.append(Announce())
        if self.phase is not Phase.SERVING:
            return []
        serving = tuple(w.index for w in self.workers if w.state is State.READY)
        living = tuple(w.index for w in self.workers if w.state in (State.READY, State.STALLED))
        if serving != self._serving:
            self._serving = serving
            actions.append(Steer(serving))
        if living != self._living:
            self._living = living
            actions.append(HandOver(living))
        return actions


def _told(cause: int | str) -> str:
    """Return in words how a process ended."""
    if isinstance(cause, str):
        return f"could not be started ({cause})"
    if cause < 0:
        return f"was ended by signal {-cause}"
    return f"exited with status {cause}"
