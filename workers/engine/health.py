"""The states of a resolver and every way from one to another.

Theory of operation. A resolver enters the pool *fresh*: it gets one query at a time until it has
answered eight, refusals included, because it may be many times slower than the rest and a share of
an ordered stream in it would stall the stream. After that its cost decides: among the equals it
is *in use*, otherwise it stands *aside* and is tried with one query every two seconds. A row of
failures without an answer between sets it *down*: then it gets a copy of one live query every
second while there is traffic and a probe of its own while there is none. The first answer brings
it back, as fresh.

Only the keeper of a resolver moves it (`workers.engine.keeper`); every worker reads the state from
the board.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class State(IntEnum):
    """The state of a resolver, as it stands on the board."""

    FRESH = 0
    IN_USE = 1
    ASIDE = 2
    DOWN = 3


class Event(IntEnum):
    """What the keeper notices about a resolver."""

    PROVEN_EQUAL = 0
    """It has its first replies and its cost is among the lowest."""
    PROVEN_WORSE = 1
    """It has its first replies and is clearly slower or lossier than the best."""
    FAILED = 2
    """`down_after` failures in a row."""
    ANSWERED = 3
    """It answered."""


FRESH_REPLIES: Final = 8
"""Replies, refusals included, after which a fresh resolver is judged by its cost."""

ASIDE_TRIAL_S: Final = 2.0
"""Time between two queries to a resolver that stands aside."""

DOWN_TRIAL_S: Final = 1.0
"""Time between two copies of live queries to a resolver that is down."""

FIRST_TRIAL_S: Final = {
    State.FRESH: 0.0,
    State.IN_USE: 0.0,
    State.ASIDE: ASIDE_TRIAL_S,
    State.DOWN: DOWN_TRIAL_S,
}
"""Time from entering a state to the first query that its bucket lets through."""

TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.FRESH, Event.PROVEN_EQUAL): State.IN_USE,
    (State.FRESH, Event.PROVEN_WORSE): State.ASIDE,
    (State.FRESH, Event.FAILED): State.DOWN,
    (State.IN_USE, Event.PROVEN_WORSE): State.ASIDE,
    (State.IN_USE, Event.FAILED): State.DOWN,
    (State.ASIDE, Event.PROVEN_EQUAL): State.IN_USE,
    (State.ASIDE, Event.FAILED): State.DOWN,
    (State.DOWN, Event.ANSWERED): State.FRESH,
}
"""The whole machine. A pair that is not listed changes nothing."""
