"""Learning the rate limit of one resolver from what it answers.

Owner: the keeper of the resolver, which feeds it on the tick with what all workers counted. A
public resolver says nothing about its limit; it refuses or drops what exceeds it. So its *ceiling*
follows the rate at which it really answers:

- a refusal sets the ceiling a little above the recent answer rate: the refused query is tried again
  at once, so being slightly too high costs little and keeps the resolver saturated;
- a loss, while other queries are answered, sets it a little below: a loss shows only after a
  time-out and costs the tunnel a resend;
- while it answers, the ceiling grows; when it no longer holds anything back, it is gone.

A resolver may also lose by chance, whatever the rate. To follow that down would strangle it, so the
ceiling looks whether being lower changed anything, and is removed where it did not. For refusals
by chance see `workers.engine.chance`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from workers.engine.chance import Chance

RATE_WINDOW_S: Final = 3.0
"""The recent rate is taken over this long, or over the time in use where that is shorter."""

MIN_SPAN_S: Final = 0.1
"""... but never over less: a rate over a few milliseconds is no rate."""

REFUSAL_FACTOR: Final = 1.2
"""Ceiling after a refusal, as a multiple of the recent answer rate."""

LOSS_FACTOR: Final = 0.9
"""Ceiling after a loss, as a multiple of the recent answer rate."""

GROWTH_PER_S: Final = 1.1
"""Growth of the ceiling while the resolver answers: 10 % a second."""

EXTRA_GRACE_S: Final = 1.0
"""For this long after extra traffic (copies, exploration) refusals do not lower the ceiling."""

QUIET_SHARE: Final = 0.5
"""A resolver is quiet while it is sent less than this share of its ceiling."""

QUIET_FLOOR: Final = 0.7
"""After a quiet spell or an outage one refusal leaves at least this share of the ceiling."""

QUIET_GRACE_S: Final = 1.0
"""... and so do all that come within this time: they are refusals of one burst, or of what was sent
before the outage ended."""

FIRST_ANSWERS: Final = 10
"""A refusal before so many answers counts as if there had been so many in one second. Losses never
lower the ceiling beneath this rate: a tunnel that is idle asks less, and has no rate to learn from.
"""

MUTE_AFTER_S: Final = 1.0
MUTE_REFUSALS: Final = 8
"""Refusals alone for this long, and so many, are an outage, not a limit. Fewer may be chance where
little is asked."""

LOSSES: Final = 3
"""Losses within the window that say something; fewer are chance."""

UNHELD_S: Final = 3.0
"""A ceiling that has kept no query back for this long is removed."""

MIN_CEILING_QPS: Final = 0.5
"""The lowest ceiling: one query every two seconds, as for a resolver that stands aside."""

PROOF_S: Final = 0.5
"""After a loss has lowered the ceiling, what is sent in this time is watched for its losses. Until
they can be known, per_attempt later, further losses are those of queries sent before, and do not
lower it again."""

PROOF_FROM_S: Final = 0.1
"""... from this long after the lowering on: by then every worker keeps to it."""

PROOF_ATTEMPTS: Final = 8
"""So many must have been watched to say anything."""

RANDOM_SHARE: Final = 0.5
"""When at least this share of the loss is left under the lower ceiling, the rate is not what
causes it: the ceiling is removed."""

RANDOM_MOST: Final = 0.5
"""... but a resolver that loses more than this is not left without one."""

RANDOM_LOSS_S: Final = 60.0
"""... and losses do not lower it for this long, unless they become markedly more."""


class Ceiling:
    """The learned limit of one resolver in queries per second; `qps` is 0 while there is none."""

    __slots__ = (
        "_answered",
        "_answered_at",
        "_at",
        "_chance",
        "_floor_qps",
        "_floor_until",
        "_growing_s",
        "_held_at",
        "_loss_before",
        "_lowered_at",
        "_mute",
        "_per_attempt_s",
        "_proof_answered",
        "_proof_lost",
        "_qps_answered",
        "_qps_before_mute",
        "_random_loss",
        "_random_until",
        "_refused_in_a_row",
        "_samples",
        "_second",
        "_second_answers",
        "_second_before",
        "_since_at",
        "_window_answered",
        "_window_lost",
        "_window_sent",
        "qps",
    )

    def __init__(self, now: float, per_attempt_s: float, qps: float = 0.0) -> None:
        self._per_attempt_s = per_attempt_s
        self.restart(now, qps)

    def restart(self, now: float, qps: float = 0.0) -> None:
        """Begin anew, as for a resolver that was down: what it allows now is not known."""
        self._chance = Chance(now)
        self._begin(now, qps)

    def _begin(self, now: float, qps: float) -> None:
        self.qps = qps
        self._at = now
        self._since_at = now
        self._answered = 0
        self._answered_at = now
        self._qps_answered = qps
        self._growing_s = 0.0
        self._mute = False
        self._refused_in_a_row = 0
        self._qps_before_mute = 0.0
        self._floor_qps = 0.0
        self._floor_until = 0.0
        self._samples: deque[tuple[float, int, int, int]] = deque()
        self._window_sent = 0
        self._window_answered = 0
        self._window_lost = 0
        self._held_at = now
        self._second = int(now)
        self._second_answers = 0
        self._second_before = 0
        self._loss_before = 0.0
        self._lowered_at = -self._per_attempt_s
        self._proof_answered = 0
        self._proof_lost = 0
        self._random_loss = 0.0
        self._random_until = 0.0

    def __repr__(self) -> str:
        return f"<Ceiling {self.qps:.1f} q/s, answers {self.rate(self._at):.1f} q/s>"

    @property
    def random_until(self) -> float:
        """Until when its losses, or its refusals, are taken to have nothing to do with the rate."""
        return max(self._random_until, self._chance.until)

    def rate(self, now: float) -> float:
        """Return the recent rate of answers."""
        return self._window_answered / self._span_s(now)

    def observe(
        self,
        now: float,
        *,
        sent: int,
        answered: int,
        limited: int,
        lost: int,
        held: int,
        extra_at: float,
        losing: bool,
    ) -> None:
        """Take in what was counted since the last call.

        `limited` are refusals that speak of a rate limit, `held` queries that the ceiling kept
        back, `extra_at` is when it was last sent extra traffic; `losing` tells whether its losses
        exceed what chance explains.
        """
        elapsed_s = min(now - self._at, 1.0)
        self._at = now
        self._answered += answered
        self._count_window(now, sent, answered, lost)
        self._refused_in_a_row = 0 if answered else self._refused_in_a_row + limited
        if held:
            self._held_at = now
        if answered:
            if self._mute:
                self._resume(now)
            self._answered_at = now
            self._qps_answered = self._chance.ceiling_qps or self.qps
        if self._judge_refusals(now, answered, limited):
            return
        self._raise_to_whole_seconds(now, answered)
        self._watch_proof(now, answered, lost)
        self._growing_s += elapsed_s
        if limited:
            if now - extra_at >= EXTRA_GRACE_S:
                self._lower_after_refusal(now)
        elif lost and losing and self._window_answered:
            self._lower_after_loss(now)
        elif answered and self.qps:
            self.qps *= GROWTH_PER_S**self._growing_s
            self._growing_s = 0.0
        if self.qps and now - self._held_at > UNHELD_S:
            self.qps = 0.0

    def _judge_refusals(self, now: float, answered: int, limited: int) -> bool:
        """Let the refusals be judged; True while a test has the ceiling."""
        chance = self._chance
        if self._loss_before:
            chance.begin(now)  # a ceiling lowered for its losses is being watched
            return False
        was_testing = chance.is_testing
        self.qps = chance.count(now, answered, limited, self.qps)
        if was_testing:
            self._held_at = now
            self._growing_s = 0.0
        return was_testing or chance.is_testing

    def _resume(self, now: float) -> None:
        """Take up after an outage what was before it."""
        self._begin(now, self._qps_before_mute)
        self._floor_qps = self.qps * QUIET_FLOOR
        self._floor_until = now + QUIET_GRACE_S

    def _span_s(self, now: float) -> float:
        return max(min(now - self._since_at, RATE_WINDOW_S), MIN_SPAN_S)

    def _count_window(self, now: float, sent: int, answered: int, lost: int) -> None:
        samples = self._samples
        samples.append((now, sent, answered, lost))
        self._window_sent += sent
        self._window_answered += answered
        self._window_lost += lost
        while samples[0][0] <= now - RATE_WINDOW_S:
            _, old_sent, old_answered, old_lost = samples.popleft()
            self._window_sent -= old_sent
            self._window_answered -= old_answered
            self._window_lost -= old_lost

    def _lower_after_refusal(self, now: float) -> None:
        rate = self.rate(now)
        self._growing_s = 0.0
        silent = now - self._answered_at > MUTE_AFTER_S and self._refused_in_a_row >= MUTE_REFUSALS
        if self._answered and not self._mute and silent:
            # It answers nothing at all: out of service, not at a limit. When it answers again it
            # has the ceiling back that it had.
            self._mute = True
            self._qps_before_mute = self._qps_answered
        if self._mute:
            self._chance.outage(now)
        elif now < self._chance.until:
            return
        if self._answered < FIRST_ANSWERS or self._mute:
            rate = max(rate, float(FIRST_ANSWERS))
        ceiling = max(rate * REFUSAL_FACTOR, MIN_CEILING_QPS)
        if not self.qps:
            self.qps = ceiling
            self._held_at = now
            self._chance.begin(now)
            return
        quiet = self._window_sent / self._span_s(now) < self.qps * QUIET_SHARE
        if quiet and now >= self._floor_until:
            self._floor_qps = self.qps * QUIET_FLOOR
            self._floor_until = now + QUIET_GRACE_S
        if now < self._floor_until:
            ceiling = max(ceiling, self._floor_qps)
        self.qps = min(self.qps, ceiling)

    def _lower_after_loss(self, now: float) -> None:
        if self._window_lost < LOSSES:
            return
        share = self._window_lost / (self._window_lost + self._window_answered)
        if self._loss_before:
            # What the last lowering brought is not known yet; these losses are from before it.
            self._loss_before = max(self._loss_before, share)
            return
        if now < self._random_until and share <= self._random_loss * 1.5 + 0.02:
            return
        self._loss_before = share
        self._lowered_at = now
        self._proof_answered = 0
        self._proof_lost = 0
        ceiling = max(self.rate(now), float(FIRST_ANSWERS)) * LOSS_FACTOR
        self.qps = min(self.qps or ceiling, ceiling)
        self._held_at = now

    def _watch_proof(self, now: float, answered: int, lost: int) -> None:
        """See whether the lower ceiling did away with the loss that lowered it."""
        if not self._loss_before:
            return
        sent_at = self._lowered_at + PROOF_FROM_S
        if sent_at < now <= sent_at + PROOF_S:
            self._proof_answered += answered
        known_at = sent_at + self._per_attempt_s
        if now > known_at:
            self._proof_lost += lost
        if now <= known_at + PROOF_S:
            return
        watched = self._proof_lost + self._proof_answered
        share = self._proof_lost / max(watched, 1)
        left = self._loss_before * RANDOM_SHARE <= share <= RANDOM_MOST
        if watched >= PROOF_ATTEMPTS and left:
            self._random_loss = share
            self._random_until = now + RANDOM_LOSS_S
            self.qps = 0.0
        self._loss_before = 0.0

    def _raise_to_whole_seconds(self, now: float, answered: int) -> None:
        """Raise a ceiling that the answers of two whole seconds have shown to be too low."""
        second = int(now)
        if second != self._second:
            whole = self._second_answers if second == self._second + 1 else 0
            if self.qps and min(whole, self._second_before) > self.qps:
                self.qps = float(whole)
            self._second_before = whole
            self._second_answers = 0
            self._second = second
        self._second_answers += answered
