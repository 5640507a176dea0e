"""What becomes of the resolvers, for the log: one line a change, at most a few at a time.

Owner: the supervisor, which looks at the board once a second. A resolver that changes to and fro
between two looks is not told; the log says what matters to a person, `/status` what is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from relay.roster import Member
from shared import layout
from shared.board import Board
from workers.engine.health import State

LOOK_S: Final = 1.0
"""Time between two looks."""

MOST_LINES: Final = 10
"""Changes told one by one per look; of more only the number is told."""

_TOLD: Final = {
    State.FRESH: "answers again",
    State.IN_USE: "is in use",
    State.ASIDE: "stands aside: slower or lossier than the best",
    State.DOWN: "is down",
}


class StateLog:
    """Remembers the states seen last, by slot, and the pools in which nobody answered."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._seen: dict[int, State] = {}
        self._dead: set[str] = set()

    def look(self, pools: Sequence[tuple[str, Sequence[Member]]]) -> Iterator[tuple[int, str]]:
        """Yield level and text of what changed in the pools, given by name and members."""
        seen: dict[int, State] = {}
        changes: list[tuple[int, str]] = []
        for name, members in pools:
            states = []
            for entry in (member.entry for member in members if member.entry is not None):
                state = self._state(entry.slot)
                states.append(state)
                seen[entry.slot] = state
                before = self._seen.get(entry.slot, State.FRESH)
                if state is not before:
                    level = logging.WARNING if state is State.DOWN else logging.INFO
                    changes.append((level, f"{name}: {entry.name} {_TOLD[state]}"))
            yield from self._pool(name, states)
        self._seen = seen
        yield from changes[:MOST_LINES]
        if len(changes) > MOST_LINES:
            yield logging.INFO, f"{len(changes) - MOST_LINES} more resolvers changed their state"

    def _pool(self, name: str, states: Sequence[State]) -> Iterator[tuple[int, str]]:
        """Yield the end and the return of a pool's last resolver."""
        dead = bool(states) and all(state is State.DOWN for state in states)
        if dead and name not in self._dead:
            self._dead.add(name)
            yield logging.WARNING, f"{name}: no resolver answers"
        elif not dead and name in self._dead:
            self._dead.discard(name)
            yield logging.INFO, f"{name}: a resolver answers again"

    def _state(self, slot: int) -> State:
        words = self._board.words
        return State(words[self._board.at.resolver(slot) + layout.RESOLVER_STATE])
