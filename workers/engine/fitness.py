"""Which resolvers let a query of this size through.

Resolvers on the way of a tunnel drop what they find too long: names, or replies. Sent to such a one
a large query is lost, so without this rule the one with the smallest limit sets the MTU of the
whole pool. The limits come with the roster (what checks found out); 0 is none known. Two rules:

- **Names.** A resolver that drops long names certainly loses this query, and the loss would tell
  against it although it serves shorter ones well. It is no candidate while any resolver that
  answers, equal or aside, lets the name through: a slow answer is better than none. At their
  ceilings the query waits for room as in any full pool. Trials, hedges, retries and copies obey it
  too. If nobody lets the name through, what the checks found is of no use, and the rule is off.
- **Replies.** A query needs the smaller of two: what its client can take (512 without EDNS), and
  the largest reply that came lately in this worker, through whomever. Many a client says 4,096 and
  never gets a third of it; by its word alone the few that pass 4,096 would carry everything. What
  will come nobody knows, so among the equals one with a known smaller limit stands back, but
  nobody worse is asked for it, and it is used when the others have no room.

Replies may grow at any time: a client tries for a larger MTU, a download begins. The first larger
one raises what all queries need at once. So does one that a resolver cut (TC), to above the limit
of that one. Where they are dropped nothing comes that could, so a query that was late or lost once
needs what its client can take, and its reply is the first larger one. As long as few replies are
known that holds for every query.

Turns stay fair. The resolvers are grouped by their limits; each group has its queue, every
resolver the number of its last turn, and a query takes the head that waited longest of the groups
that let it through. That is one queue in which who cannot take a query keeps his place. A choice
costs by the number of groups, never of resolvers. A pool of one group, as nearly all are, does
without: `mixed` is false, and nothing of this is looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from workers.engine import wire as dns
from workers.engine.health import State
from workers.engine.pending import Attempt, Query
from workers.engine.resolver import NO_LIMIT, Resolver

NAME_OVERHEAD: Final = dns.HEADER_BYTES + 4 + 2
"""The end of a question less the length of its name as written without the last dot: the header,
type and class, a length byte in front and the root behind."""

MOST_GROUPS: Final = 16
"""With more kinds of limits than this, names are taken in steps of `NAME_STEP`."""

NAME_STEP: Final = 32

LATELY_S: Final = 300.0
"""The largest reply counts for so long after it came, and at most for twice as long: a tunnel that
is idle for some minutes does not lose questions when its download goes on."""

FEW_REPLIES: Final = 100
"""While no more came in that time, clients are taken at their word: the replies of a tunnel that
begins, or that only polls now and then, say little of what will come."""

NOBODY: Final[deque[Resolver]] = deque()


class Group:
    """Resolvers with the same limits: `ready` take turns, `rest` stand by, the cheapest first."""

    __slots__ = ("copy_target", "largest_reply", "longest_name", "ready", "rest")

    def __init__(self, limits: tuple[int, int]) -> None:
        self.longest_name, self.largest_reply = limits
        self.ready: deque[Resolver] = deque()
        self.rest: list[Resolver] = []
        self.copy_target: Resolver | None = None

    def __repr__(self) -> str:
        return f"<Group {self.longest_name}/{self.largest_reply} {self.ready!r} {self.rest!r}>"


class LargestReply:
    """The largest reply that came lately: `size_bytes`, or `NO_LIMIT` while few came.

    Time goes in spans of `LATELY_S`, of which this one and the one before count. Replies above
    `span_bytes`, the largest of this one, and those that are cut are to be told; no others.
    """

    __slots__ = (
        "_answers_at_turn",
        "_answers_before",
        "_before_bytes",
        "_turn_at",
        "size_bytes",
        "span_bytes",
    )

    def __init__(self) -> None:
        self._turn_at = 0.0
        self._answers_before = self._answers_at_turn = 0
        self._before_bytes = 0
        self.size_bytes = NO_LIMIT
        self.span_bytes = 0

    def came(self, attempt: Attempt, wire: bytes) -> None:
        """Take in a reply as it came from a resolver."""
        size_bytes = len(wire)
        if wire[2] & dns.TC and not attempt.over_stream:
            limit_bytes = attempt.resolver.largest_reply
            if limit_bytes < advertised_bytes(attempt.query):  # else it is the client's that cuts
                size_bytes = limit_bytes + 1
        self.span_bytes = max(self.span_bytes, size_bytes)
        self.size_bytes = max(self.size_bytes, size_bytes)

    def tick(self, now: float, answers: int) -> None:
        """Let time pass. `answers` is how many the pool has had so far."""
        if now >= self._turn_at:
            self._answers_before = self._answers_at_turn if self._turn_at else answers
            self._answers_at_turn = answers
            self._before_bytes = self.span_bytes
            self.span_bytes = 0
            self._turn_at = now + LATELY_S
        few = answers - self._answers_before <= FEW_REPLIES
        self.size_bytes = NO_LIMIT if few else max(self._before_bytes, self.span_bytes)


class Fitness:
    """The groups of a pool in one worker. There is always one at least.

    `largest_reply` is None while all have the same limit for replies.
    """

    __slots__ = (
        "_longest_name",
        "_smallest_limit",
        "_turn",
        "groups",
        "largest_reply",
        "mixed",
    )

    def __init__(self) -> None:
        self.groups = [Group((NO_LIMIT, NO_LIMIT))]
        self.mixed = False
        self.largest_reply: LargestReply | None = None
        self._longest_name = 0
        self._smallest_limit = NO_LIMIT
        self._turn = 0

    def order(self) -> list[Resolver]:
        """Return those that take turns, the least recently used first."""
        ready = [resolver for group in self.groups for resolver in group.ready]
        return sorted(ready, key=lambda resolver: resolver.turn) if self.mixed else ready

    def sort(self, ready: Sequence[Resolver], rest: Sequence[Resolver]) -> None:
        """Group the resolvers anew, those that take turns in this order and those that stand by."""
        answering = (*ready, *rest)
        limits = {(resolver.longest_name, resolver.largest_reply) for resolver in answering}
        step = 1 if len(limits) <= MOST_GROUPS else NAME_STEP
        groups: dict[tuple[int, int], Group] = {}
        for resolver in answering:
            key = (resolver.longest_name // step * step, resolver.largest_reply)
            resolver.group = groups.setdefault(key, Group(key))
        for turn, resolver in enumerate(ready):
            resolver.turn = turn
            resolver.group.ready.append(resolver)
        for resolver in rest:
            resolver.group.rest.append(resolver)
        self._turn = len(ready)
        self.groups = list(groups.values()) or [Group((NO_LIMIT, NO_LIMIT))]
        self.mixed = len(self.groups) > 1
        limits_of_replies = {group.largest_reply for group in self.groups}
        self._smallest_limit = min(limits_of_replies)
        if len(limits_of_replies) == 1:
            self.largest_reply = None
        elif self.largest_reply is None:
            self.largest_reply = LargestReply()
        self._longest_name = max((group.longest_name for group in groups.values()), default=0)

    def set_copy_targets(self, candidates: Iterable[Resolver]) -> None:
        """Learn who may get copies, the best first."""
        for resolver in candidates:
            if resolver.group.copy_target is None:
                resolver.group.copy_target = resolver

    def took(self, resolver: Resolver) -> None:
        """A resolver had its turn."""
        self._turn += 1
        resolver.turn = self._turn

    def passes(self, query: Query, resolver: Resolver) -> bool:
        """Tell whether a resolver may have a query, by the rule for names."""
        name = query.end - NAME_OVERHEAD
        return name <= resolver.longest_name or name > self._longest_name

    def passes_whole(self, query: Query, resolver: Resolver) -> bool:
        """... and by the rule for replies."""
        name, size = self._sizes(query)
        return name <= resolver.longest_name and size <= resolver.largest_reply

    def ready(self, query: Query) -> deque[Resolver]:
        """Return the queue whose head has the next turn at this query; empty if there is none."""
        name, size = self._sizes(query)
        passing: deque[Resolver] | None = None
        others: deque[Resolver] | None = None
        passing_turn = others_turn = 0
        for group in self.groups:
            line = group.ready
            if line and group.longest_name >= name:
                turn = line[0].turn
                if group.largest_reply >= size:
                    if passing is None or turn < passing_turn:
                        passing = line
                        passing_turn = turn
                elif others is None or turn < others_turn:
                    others = line
                    others_turn = turn
        return passing or others or NOBODY

    def lines(self, query: Query) -> list[deque[Resolver]]:
        """Return all queues that may have a query, as `ready` would come to them."""
        name, size = self._sizes(query)
        groups = [group for group in self.groups if group.ready and group.longest_name >= name]
        groups.sort(key=lambda group: (group.largest_reply < size, group.ready[0].turn))
        return [group.ready for group in groups]

    def rests(self, query: Query) -> list[list[Resolver]]:
        """Return the lines of those that stand by and may have a query, the best head first."""
        name, size = self._sizes(query)
        groups = [group for group in self.groups if group.rest and group.longest_name >= name]
        groups.sort(key=lambda group: _rest_rank(group, size))
        return [group.rest for group in groups]

    def rest(self, query: Query) -> list[Resolver]:
        """Return the first of `rests`; empty if there is none."""
        return next(iter(self.rests(query)), [])

    def copy_target(self, query: Query) -> Resolver | None:
        """Return who gets a copy of a query."""
        name, size = self._sizes(query)
        targets = [
            (group.largest_reply < size, target.cost_s, target)
            for group in self.groups
            if (target := group.copy_target) is not None and group.longest_name >= name
        ]
        return min(targets, key=lambda ranked: ranked[:2])[2] if targets else None

    def _sizes(self, query: Query) -> tuple[int, int]:
        """Return how long a name and how large a reply are to pass; 0 for either if no matter."""
        name = query.end - NAME_OVERHEAD
        if name > self._longest_name:
            name = 0
        if self.largest_reply is None:
            return name, 0
        size = self.largest_reply.size_bytes
        if query.late or size > self._smallest_limit:
            advertised = advertised_bytes(query)
            if query.late or advertised < size:
                size = advertised
        return name, size


def advertised_bytes(query: Query) -> int:
    """Return how large a reply the client of a query can take over UDP."""
    wire = query.wire
    end = query.end
    if wire[end : end + 3] == dns.OPT_HEAD:  # nearly always: an OPT record comes next
        size_bytes = wire[end + 3] << 8 | wire[end + 4] if end + 4 < len(wire) else 0
    else:
        size_bytes = dns.advertised_size(wire, end) or 0
    return max(size_bytes, dns.CLASSIC_SIZE_BYTES)


def _rest_rank(group: Group, size: int) -> tuple[bool, bool, float]:
    """Order of lines by their heads: equals first, and among these who lets the reply through."""
    head = group.rest[0]
    if head.state is State.IN_USE:
        return False, group.largest_reply < size, head.cost_s or inf
    return True, False, head.cost_s or inf
