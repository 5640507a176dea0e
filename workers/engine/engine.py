"""The engine of one pool in one worker: takes messages and the time, says what to send.

Pure: it owns no socket, clock, randomness or log. The shell calls `query` for every message of a
client, `answer` for every message of a resolver, `wake` when the wheel is due and `tick` every
`TICK_S`. What is to be sent besides their direct results waits in `outbox`: attempts for resolvers
and queries whose `reply` goes to the client. The shell empties it after every batch.

Life of a query. It is sent to one resolver as an attempt. A refusal sends it on at once. When the
attempt is late it is also sent elsewhere, but the attempt stays open until `per_attempt`, and its
answer still counts: tunnel servers hold polls, and their late answers carry data. Every answer goes
to the client. Without one, the query fails when no attempt is open and nobody is left to ask, at
the latest at its deadline; the client then gets one error or, by the profile, silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from shared import layout
from shared.board import Board
from shared.own_question import NAME_LENGTH, OwnQuestion
from workers.engine import wire as dns
from workers.engine.attempts import REFUSALS, Attempts
from workers.engine.copies import DELAY_SHARE, Copies
from workers.engine.counters import PoolCounters
from workers.engine.health import State
from workers.engine.held import HeldSockets
from workers.engine.keeper import Keeper
from workers.engine.pending import (
    COPY,
    FIRST,
    RETRY,
    Attempt,
    Client,
    Query,
)
from workers.engine.publishing import Publisher
from workers.engine.resolver import Resolver
from workers.engine.scouting import Scouting
from workers.engine.selection import Selection
from workers.engine.timers import TimingWheel
from workers.settings import PoolSettings, ResolverEntry

TICK_S: Final = 0.02
"""How often counters are published and verdicts read."""

SORT_S: Final = 1.0
"""How often the resolvers are sorted by cost although no verdict changed."""

REBUILD_S: Final = 0.0002
"""Time per resolver between two readings of all verdicts: it keeps their share of the CPU."""

NOT_ANSWERS: Final = REFUSALS | {dns.FORMERR, dns.NOTIMP}
"""... and those by which it says that it cannot read this question: another resolver may."""


class Engine:
    """One pool in one worker. See the module for how it is driven."""

    __slots__ = (
        "_attempts",
        "_board",
        "_copies",
        "_deadline_s",
        "_epochs",
        "_fitness",
        "_hedging",
        "_held_sockets",
        "_keeper",
        "_keepers_epoch",
        "_max_pending",
        "_own",
        "_own_length",
        "_per_attempt_s",
        "_publisher",
        "_rebuild_at",
        "_resolvers",
        "_scouting",
        "_selection",
        "_settings",
        "_sort_at",
        "_stale",
        "_waiting",
        "_wheel",
        "_worker",
        "counters",
        "outbox",
    )

    def __init__(
        self,
        board: Board,
        worker: int,
        pool: int,
        settings: PoolSettings,
        random: Callable[[], float],
    ) -> None:
        self._board = board
        self._worker = worker
        self._settings = settings
        self._per_attempt_s = settings.attempt_limit_s
        self._deadline_s = settings.deadline_s
        self._max_pending = settings.max_pending
        self._own: OwnQuestion | None = None
        self._own_length = -1  # of a name's first label: none is like that
        if settings.own_label:
            self._own = OwnQuestion(settings.own_label.encode(), settings.own_proof.encode())
            self._own_length = NAME_LENGTH
        self._selection = Selection(board, worker, settings.load_balance, random)
        self._fitness = self._selection.fitness
        self._copies = Copies(settings.duplicate) if settings.duplicate > 1 else None
        self._held_sockets = HeldSockets()
        self._resolvers: dict[int, Resolver] = {}
        self._keeper = Keeper(board, settings)
        self._wheel: TimingWheel[Attempt] = TimingWheel()
        self._epochs = [-1] * board.at.workers
        self._keepers_epoch = -1
        self._publisher = Publisher(board, worker, pool)
        self._stale = True
        self._rebuild_at = 0.0
        self._sort_at = 0.0
        self.counters = PoolCounters(board, worker, pool)
        self.outbox: deque[Attempt | Query] = deque()
        self._attempts = Attempts(
            board,
            settings,
            self._selection,
            self._publisher,
            self.counters,
            self._wheel,
            self.outbox,
        )
        self._waiting = self._attempts.waiting
        self._hedging = self._attempts.hedging
        self._scouting = Scouting(
            board,
            settings,
            self._selection,
            self._keeper,
            self._attempts,
            self.counters,
            self.outbox,
        )

    def __repr__(self) -> str:
        return f"<Engine {self._settings.name} pending={self.counters.pending} {self._selection!r}>"

    @property
    def settings(self) -> PoolSettings:
        """The settings of the pool."""
        return self._settings

    @property
    def resolvers(self) -> list[Resolver]:
        """The resolvers of the pool, in the order of their roster."""
        return list(self._resolvers.values())

    @property
    def wake_at(self) -> float:
        """When `wake` has work again; infinity while nothing is open."""
        at = self._wheel.next_at
        if self._copies is not None and self._copies.next_at < at:
            at = self._copies.next_at
        if self._waiting:
            at = min(at, self._waiting.next_at)
        return at

    # -- roster -----------------------------------------------------------------------------

    def set_roster(
        self, now: float, entries: list[ResolverEntry]
    ) -> tuple[list[Resolver], list[Resolver]]:
        """Take over a roster; return the resolvers that joined and those that left.

        Unchanged entries keep their state. The caller gives the joined a transport and closes
        those of the left once their attempts are over.
        """
        before = self._resolvers
        after: dict[int, Resolver] = {}
        joined: list[Resolver] = []
        for entry in entries:
            resolver = before.get(entry.slot)
            if resolver is None or not resolver.entry.is_same_server(entry):
                resolver = Resolver(entry, self._board, self._worker, self._per_attempt_s)
                joined.append(resolver)
            else:
                resolver.set_entry(entry)
            after[entry.slot] = resolver
        left = [resolver for slot, resolver in before.items() if after.get(slot) is not resolver]
        self._resolvers = after
        self._publisher.set_resolvers(after.values())
        self._keeper.assign(now, list(after), self._worker)
        self._selection.rebuild(after.values())
        return joined, left

    def set_usable(self, resolver: Resolver, usable: bool) -> None:
        """Note a fault of this machine, or its end: no resolver is blamed for it."""
        if resolver.usable != usable:
            resolver.usable = usable
            self._stale = True

    # -- packets ----------------------------------------------------------------------------

    def query(self, now: float, client: Client, address: Any, wire: bytes) -> Attempt | None:
        """Take a message of a client; return its first attempt, or None.

        Replies of the relay's own, to what is no query, and copies are in `outbox`.
        """
        if len(wire) < dns.HEADER_BYTES:
            self.counters.drop("client_short")
            return None
        if wire[2] & 0xF8 or wire[4:6] != dns.ONE_QUESTION:
            self._refuse_input(client, address, wire)
            return None
        end = dns.question_end(wire)
        if end < 0:
            self._refuse_input(client, address, wire)
            return None
        if wire[dns.HEADER_BYTES] == self._own_length and self._came_back(client, address, wire):
            return None
        counters = self.counters
        counters.queries += 1
        counters.pending += 1
        query = Query(client, address, wire, end, now + self._deadline_s)
        if counters.pending > self._max_pending:
            counters.drop("client_overload")
            self._attempts.fail(query)
            return None
        selection = self._selection
        resolver = None if self._waiting else selection.choose(now, query)
        if resolver is None:
            self._attempts.wait_or_fail(now, query)
            return None
        if selection.revivals or selection.strangers:
            self._scouting.beside(now, query, resolver)
        if self._copies is not None:
            self._plan_copies(now, query, self._copies)
        return self._attempts.open(now, query, resolver, FIRST)

    def answer(self, now: float, table: dict[bytes, Attempt], wire: bytes) -> Query | None:
        """Take a message that came on the socket whose open attempts are `table`.

        Returns the query when its `reply` is to go to the client now. A message counts only if
        its ID and its question match an open attempt; case may differ, since some resolvers
        change it, and the client gets its own question back.
        """
        attempt = table.get(wire[:2])
        if attempt is None:
            self.counters.drop(
                "reply_unmatched" if len(wire) >= dns.HEADER_BYTES else "reply_malformed"
            )
            return None
        query = attempt.query
        asked = query.wire
        end = query.end
        size_bytes = len(wire)
        if size_bytes < dns.HEADER_BYTES or not (flags := wire[2]) & dns.QR:
            self.counters.drop("reply_malformed")
            return None
        rcode = wire[3] & 0x0F
        questions = wire[4:6]
        question = asked[dns.HEADER_BYTES : end]
        if questions == dns.ONE_QUESTION and wire.startswith(question, dns.HEADER_BYTES):
            reply = asked[:2] + wire[2:]
        elif questions == dns.ONE_QUESTION and dns.same_question(
            question, wire[dns.HEADER_BYTES : end]
        ):
            reply = asked[:2] + wire[2 : dns.HEADER_BYTES] + question + wire[end:]
        elif questions == dns.NO_QUESTION and rcode in NOT_ANSWERS:
            reply = asked[:2] + wire[2:]  # some servers leave the question out of their errors
        else:
            self.counters.drop("reply_unmatched")
            return None
        del table[attempt.id]
        attempt.closed = True
        query.open -= 1
        resolver = attempt.resolver
        if attempt.overdue:
            resolver.overdue -= 1
        client = query.client
        if client is None and resolver.state is not State.DOWN:
            self._attempts.watched_replied(resolver)
            self._stale = True  # somebody is there
            return None
        if rcode in NOT_ANSWERS:
            self._attempts.refused(now, attempt, reply, rcode)
            return None
        round_trip = now - attempt.sent_at
        resolver.answered += 1
        resolver.rtt_sum_s += round_trip
        deviation = round_trip - resolver.srtt_s
        resolver.deviation_sum_s += deviation if deviation > 0.0 else -deviation
        if round_trip < resolver.rtt_min_s:
            resolver.rtt_min_s = round_trip
        hedging = self._hedging
        if attempt.sent_at > hedging.newest_answered_at:
            hedging.newest_answered_at = attempt.sent_at
        if round_trip > hedging.slowest_s:
            hedging.slowest_s = round_trip
        if resolver.watched:
            self._attempts.watched_replied(resolver)
        if client is None:
            return None
        largest_reply = self._fitness.largest_reply
        if largest_reply is not None and (size_bytes > largest_reply.span_bytes or flags & dns.TC):
            largest_reply.came(attempt, wire)
        if self._copies is not None:
            size_bytes -= end
            self._copies.size(now, size_bytes)
            if attempt.kind == COPY:
                self._copies.returned(now, size_bytes)
        if client.is_stream:
            if query.answered:
                resolver.late += 1
                return None
            if flags & dns.TC and not attempt.over_stream:
                self._fetch_over_tcp(now, attempt, reply)
                return None
        elif attempt.over_stream:
            reply = self._fit(query, reply)
        counters = self.counters
        if query.answered:
            resolver.late += 1
        else:
            query.answered = True
            counters.answered += 1
            counters.pending -= 1
            if query.refused_by is not None:
                self._attempts.heed_refusals(query)
            if query.doubted is not None and not query.doubted.closed:
                self._attempts.overtaken(now, query.doubted)
        counters.answers += 1
        query.reply = reply
        return query

    def failed(self, now: float, attempt: Attempt) -> None:
        """A network error ended an attempt: the resolver's port is closed, its connection broke."""
        if self._attempts.close(attempt):
            attempt.resolver.errors += 1
            self._publisher.urgent[attempt.resolver.slot] = attempt.resolver
            self._attempts.go_on(now, attempt)

    def unreachable(self, resolver: Resolver) -> None:
        """No connection could be made, and nobody waits for it any more: an error all the same."""
        resolver.errors += 1
        self._publisher.urgent[resolver.slot] = resolver

    def limited(self, now: float, attempt: Attempt) -> None:
        """The server said beside DNS (HTTP 429) that it is asked too often: as by REFUSED."""
        if self._attempts.close(attempt):
            self._attempts.refused(now, attempt, b"", dns.REFUSED)

    def unsent(self, now: float, attempt: Attempt) -> None:
        """A fault of this machine kept an attempt from being sent: nobody is blamed."""
        if self._attempts.close(attempt):
            self._attempts.go_on(now, attempt)

    # -- time -------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Do what is due: late attempts are hedged, old ones end, copies and waiters go out."""
        for attempt in self._wheel.due(now):
            if attempt.closed:
                continue
            if now >= attempt.expires_at:
                # One that had to wait has its time from when it left, and until then only its
                # query's deadline.
                began_at = now if attempt.waits else attempt.sent_at
                attempt.expires_at = min(began_at + self._per_attempt_s, attempt.query.deadline_at)
            if now >= attempt.expires_at:
                self._attempts.expired(now, attempt)
            else:
                due_at = min(self._attempts.late(now, attempt), attempt.expires_at)
                self._wheel.add(due_at, attempt)
        if self._copies is not None and now >= self._copies.next_at:
            for query in self._copies.due(now):
                self._send_copy(now, query)
        if self._waiting:
            self._waiting.serve(now)

    def tick(self, now: float) -> None:
        """Publish the counters, judge the shard, read the verdicts, line up trials and probes."""
        words = self._board.words
        at = self._board.at
        self._publisher.publish(now)
        self._publisher.publish_pool(self.counters.words())
        keepers_epoch = words[layout.HEADER_KEEPERS_EPOCH]
        if keepers_epoch != self._keepers_epoch:
            self._keepers_epoch = keepers_epoch
            self._keeper.assign(now, list(self._resolvers), self._worker)
        epoch = self._keeper.epoch
        self._keeper.tick(now)
        if self._keeper.epoch != epoch:
            words[at.worker(self._worker) + layout.WORKER_VERDICTS_EPOCH] += 1
        for worker in range(at.workers):
            verdicts_epoch = words[at.worker(worker) + layout.WORKER_VERDICTS_EPOCH]
            if verdicts_epoch != self._epochs[worker]:
                self._epochs[worker] = verdicts_epoch
                self._stale = True
        if (self._stale and now >= self._rebuild_at) or now >= self._sort_at:
            self._rebuild(now)
        self._selection.call_trials(now)
        self._hedging.tick(now)
        if self._fitness.largest_reply is not None:
            self._fitness.largest_reply.tick(now, self.counters.answers)
        self._scouting.tick(now, self._resolvers.values())
        if self._waiting:
            self._waiting.serve(now)

    # -- rules ------------------------------------------------------------------------------

    def _fetch_over_tcp(self, now: float, attempt: Attempt, reply: bytes) -> None:
        """Ask again over TCP what came truncated over UDP, for a client that can take it whole."""
        attempt.query.reply = reply  # better than an error, if TCP brings nothing
        again = self._attempts.open(now, attempt.query, attempt.resolver, RETRY)
        again.over_stream = True
        self.outbox.append(again)

    def _fit(self, query: Query, reply: bytes) -> bytes:
        """Cut a reply fetched over a stream to what the UDP client can take."""
        size_bytes = dns.MAX_UDP_BYTES
        if self._settings.cut_to_client_size:
            advertised = dns.advertised_size(query.wire, query.end) or 0
            size_bytes = min(size_bytes, max(advertised, dns.CLASSIC_SIZE_BYTES))
        if len(reply) <= size_bytes:
            return reply
        self.counters.drop("reply_oversize")
        return dns.truncated(reply, query.wire, query.end)

    def _plan_copies(self, now: float, query: Query, copies: Copies) -> None:
        """Have copies of a query sent a little after it, if its socket is held and they pay."""
        if query.client is None or query.client.is_stream:
            return
        if not self._held_sockets.held(now, query.address):
            return
        target = self._selection.copy_target(query)
        if target is None:
            return
        for number in range(copies.wanted(now)):
            copies.schedule(now + (number + 1) * DELAY_SHARE * target.latency_s, query)

    def _send_copy(self, now: float, query: Query) -> None:
        """Send a copy to the resolver without a ceiling that answers soonest and surest."""
        target = self._selection.copy_target(query)
        if target is not None and not target.interval_ns and now < query.deadline_at:
            self.counters.copies += 1
            target.extra_at = now
            self.outbox.append(self._attempts.open(now, query, target, COPY))

    def _refuse_input(self, client: Client, address: Any, wire: bytes) -> None:
        """Count a message that is no query; answer it where the RFCs ask for an answer."""
        if wire[2] & dns.QR:
            self.counters.drop("client_response")
            return
        if wire[2] & dns.OPCODE:
            reason, rcode = "client_notimp", dns.NOTIMP
        else:
            reason, rcode = "client_formerr", dns.FORMERR
        self.counters.drop(reason)
        end = dns.question_end(wire) if wire[4:6] == dns.ONE_QUESTION else -1
        query = Query(client, address, wire, end, 0.0)
        query.reply = dns.error_reply(wire, rcode, end)
        self.outbox.append(query)

    def _came_back(self, client: Client, address: Any, wire: bytes) -> bool:
        """Answer a question of the relay's own, which must not go round; tell whether it is one."""
        if self._own is None or not self._own.is_own(wire):
            return False
        query = Query(client, address, wire, -1, 0.0)
        query.reply = self._own.reply(wire)
        self.outbox.append(query)
        return True

    def _rebuild(self, now: float) -> None:
        """Read all verdicts and sort the resolvers anew; the more there are, the less often."""
        resolvers = self._resolvers.values()
        self._stale = False
        self._rebuild_at = now + REBUILD_S * len(resolvers)
        self._sort_at = now + max(SORT_S, 10 * REBUILD_S * len(resolvers))
        for resolver in resolvers:
            resolver.read_verdict(now)
            if resolver.interval_ns:
                self._publisher.urgent[resolver.slot] = resolver
        self._selection.rebuild(resolvers)
