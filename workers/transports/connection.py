"""What a stream transport and the kinds of its connections know of each other.

    StreamTransport (the owner)  -- one per resolver and worker: dials, waits, retires, sends again
        Connection               -- one connection as its protocol speaks: framing, HTTP/2, HTTP/1.1
            Channel              -- its bytes, over plain TCP or TLS

Owner of this module: the stream transports. How a kind is written: derive from `Connection` and

* implement `send`: put the attempt under an ID of this connection with `opened` and keep its
  bytes; return False where there is no room (IDs, streams, unsent bytes) or while `closing`;
* implement `write_out`: write everything kept with one `channel.write`, so that what was sent in
  one wake-up of the loop leaves in one TLS record and one segment. The pool has it called once per
  wake-up, through `flush`. What is to be written besides attempts is announced with `line_up`;
* implement `data_received`: hand what is complete to the engine, give the client its reply, and
  call `answered(now)` once per batch in which an open attempt got its answer. The pool is flushed
  by the caller;
* say `owner.again(self, attempts)` for attempts that the server surely did not serve: they are sent
  once more, without blame; a second time they fail, unless the connection is `closing` and serves
  others;
* set `closing` when the server will take no more (before `again` and `answered`): the owner closes
  the connection once `table` is empty, and dials another when it needs one;
* say `owner.broken(self, reason)` when the peer breaks the protocol; nothing is called after it;
* override `at_end` where a message may end with the connection;
* override `check` where there is a better sign of life than answers: it is called from half of
  `per_attempt` on after an attempt was sent that is still unanswered.

Invariants: `table` holds exactly the open attempts of the connection by their ID (the engine takes
out those that it closes); nothing here raises towards the event loop for what a peer sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from workers.engine.pending import Attempt
from workers.engine.resolver import Resolver

if TYPE_CHECKING:
    from workers.pool import Pool

IDLE_BEFORE_S: Final = 0.2
"""A connection that stood unused for so long may be closed by its server as a query leaves."""


class Channel(Protocol):
    """The bytes of one connection. Made by `dial`."""

    alpn: str
    """Protocol agreed on in the TLS handshake: `h2`, `http/1.1`, or empty."""

    unsent_bytes: int
    """How much of what was written the kernel has not taken yet."""

    def write(self, data: bytes) -> None:
        """Send bytes. Never raises: a broken connection is reported in a later turn of the loop."""

    def close(self) -> None:
        """Close at once, for the owner of the connection; nothing is reported after it."""


class Owner(Protocol):
    """The keeper of the connections of one worker to one resolver."""

    pool: Pool
    resolver: Resolver

    def again(self, connection: Connection, attempts: list[Attempt]) -> None:
        """Send attempts that `connection` did not serve once more elsewhere, without blame."""

    def broken(self, connection: Connection, reason: str) -> None:
        """Close a connection whose peer breaks the protocol; `reason` is in words for people."""

    waiting: deque[Attempt]
    """Attempts that wait for room on a connection."""

    def proven(self, connection: Connection) -> None:
        """A connection got its first answer."""

    def attend(self, connection: Connection) -> None:
        """A connection has room for what waits, or is done with what it had."""

    def watch(self) -> None:
        """A connection waits for an answer from now on: see that `check` is called."""


class Connection(ABC):
    """One connection to a resolver: its open attempts, and how its protocol carries them."""

    most_connections: int = 4
    """How many of the kind one worker keeps to one resolver."""

    def __init__(self, pool: Pool, owner: Owner, channel: Channel, now: float) -> None:
        self.pool = pool
        self.owner = owner
        self.channel = channel
        self.table: dict[bytes, Attempt] = {}
        self.has_answered = False
        self.may_be_stale = False
        """It stood unused before it was sent to: its end may have crossed the query."""
        self.turned_away = False
        """Queries were handed back unserved before it answered any."""
        self.closing = False
        """The server takes no more on it."""
        self.made_at = now
        self.idle_since = now
        """When it was made, or answered last."""
        self.silent_since = 0.0
        """Since when it owes an answer and gave none; 0 while it owes none."""
        self._lined_up = False

    @abstractmethod
    def send(self, now: float, attempt: Attempt) -> bool:
        """Take an attempt to be written by the next `flush`; False when there is no room."""

    @abstractmethod
    def write_out(self) -> None:
        """Write what was taken since the last flush."""

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Take in bytes of the server."""

    def at_end(self) -> None:  # noqa: B027 - most protocols say where a message ends
        """Take in that the server closed in order; the owner is told after it."""

    def check(self, now: float) -> float:
        """Return in how many seconds to be checked again; 0 for a connection of no more use.

        One that gave no answer at all since its oldest unanswered query was sent, `per_attempt`
        ago, swallows what is written to it. Bytes alone prove nothing: once a length is wrong, all
        that follows is swallowed by it.
        """
        per_attempt_s = self.pool.engine.settings.per_attempt_s
        return max(self.silent_since + per_attempt_s - now, 0.0)

    def opened(self, now: float, attempt: Attempt) -> bytes:
        """Enter an attempt under a fresh ID and line up for `flush`; return the ID."""
        table = self.table
        drawn = self.pool.ids.draw(table)
        attempt.id = drawn
        attempt.table = table
        if attempt.waits:
            attempt.leave(now)
        table[drawn] = attempt
        if not self.silent_since:
            self.silent_since = now
            if now - self.idle_since > IDLE_BEFORE_S:
                self.may_be_stale = True
            self.owner.watch()
        if not self._lined_up:
            self.line_up()
        return drawn

    def line_up(self) -> None:
        """Have `flush` called before the loop goes on."""
        if not self._lined_up:
            self._lined_up = True
            self.pool.unflushed.append(self)

    def flush(self) -> None:
        """Write what was taken since the last flush."""
        self._lined_up = False
        self.write_out()

    def answered(self, now: float) -> None:
        """An open attempt got its answer, whatever it said; to be called after the batch."""
        self.idle_since = now
        self.silent_since = now if self.table else 0.0
        if not self.has_answered:
            self.has_answered = True
            self.owner.proven(self)
        if self.closing or self.owner.waiting:
            self.owner.attend(self)


Kind = Callable[["Pool", Owner, Channel, float], Connection]
"""Makes the connection that fits a channel, given the time."""
