"""Where every word of the board lies, who writes it and in which unit.

A board is one array of signed 64-bit words. It starts with a header; then come one block and one
ring for every worker, one block for every (worker, pool), one for every resolver slot and one for
every (worker, slot). `Layout` turns (block, index) into the position of a block's first word; the
constants below are offsets inside a block.

Ownership, the rule that makes the board safe without locks: every word has one writer, named in the
comment beside it. The exceptions are two kinds of words of a resolver, its buckets (`_BUCKET_AT`,
`_TRIAL_AT`, `_EXPLORE_AT`) and `RESOLVER_REFUSED_AT`: any worker writes them, and a lost race costs
one query too many at most.
A slot that no roster holds belongs to the supervisor, which alone may clear it for its next tenant.

Times are CLOCK_MONOTONIC nanoseconds, the same clock in every process; zero means never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAGIC: Final = 0x52454C41592D4244  # "RELAY-BD"
VERSION: Final = 1
WORD_SIZE_BYTES: Final = 8

# Header. Writer: the supervisor.
HEADER_WORDS: Final = 16
HEADER_MAGIC: Final = 0
HEADER_VERSION: Final = 1
HEADER_WORKERS: Final = 2
HEADER_POOLS: Final = 3
HEADER_SLOTS: Final = 4
HEADER_KEEPERS_EPOCH: Final = 5  # raised after any change of a RESOLVER_KEEPER word

# One block for every worker.
WORKER_WORDS: Final = 16
WORKER_HEARTBEAT_AT: Final = 0  # the worker, at every tick
WORKER_VERDICTS_EPOCH: Final = 1  # the worker, when a verdict of its shard changed
WORKER_LIVING: Final = 2  # the supervisor: 1 while a process serves this index

# One ring for every worker: the slots whose counters it published, so that keepers look at nothing
# else. Writer: the worker.
RING_SLOTS: Final = 255
RING_WORDS: Final = 1 + RING_SLOTS
RING_HEAD: Final = 0  # how many slots were ever written
RING_FIRST: Final = 1  # slot number i stands at RING_FIRST + i % RING_SLOTS

# One block for every (worker, pool). Writer: the worker. All are counts since start.
POOL_WORDS: Final = 32
POOL_QUERIES: Final = 0  # well-formed questions
POOL_ANSWERS: Final = 1  # replies handed to clients, later ones to the same query included
POOL_ANSWERED: Final = 2  # queries that got at least one answer
POOL_FAILURES: Final = 3  # queries that ended without an answer
POOL_RETRIES: Final = 4  # attempts after a refusal, loss or network error
POOL_HEDGES: Final = 5  # attempts because the first was late
POOL_COPIES: Final = 6  # attempts on purpose
POOL_DROPPED: Final = 8  # first of the reasons listed in DROP_REASONS

DROP_REASONS: Final = (
    "client_short",  # too short for a header
    "client_response",  # a response sent to a listener
    "client_notimp",  # opcode other than QUERY, answered NOTIMP
    "client_formerr",  # no question or an undecodable one, answered FORMERR
    "client_overload",  # too many queries pending
    "client_gone",  # the reply could not be handed to the client
    "client_connection_limit",  # a TCP client beyond the bound
    "client_slow",  # a TCP client closed because it does not read
    "reply_unmatched",  # no open attempt has this ID, or the question differs
    "reply_malformed",  # a resolver's packet without header, question or response bit
    "reply_oversize",  # a reply too large for the client's transport, cut
)
"""Names of the words from `POOL_DROPPED` on, in order: input that was dropped or refused."""

# One block for every resolver slot.
RESOLVER_WORDS: Final = 24
RESOLVER_BUCKET_AT: Final = 0  # any worker: GCRA word of its ceiling
RESOLVER_REFUSED_AT: Final = 1  # any worker: when it last refused or lost something
RESOLVER_KEEPER: Final = 2  # the supervisor: index of the keeper, -1 while there is none
RESOLVER_STATE: Final = 3  # the keeper: a workers.engine.health.State
RESOLVER_CEILING: Final = 4  # the keeper: micro-queries per second, 0 for none
RESOLVER_LATENCY: Final = 5  # the keeper: windowed minimum in ns, 0 while unknown
RESOLVER_SRTT: Final = 6  # the keeper: smoothed round trip in ns, 0 while unknown
RESOLVER_RTTVAR: Final = 7  # the keeper: mean deviation of the round trip in ns
RESOLVER_LOSS: Final = 8  # the keeper: estimated loss in parts per million
RESOLVER_COST: Final = 9  # the keeper: ns, what selection compares; 0 while unknown
RESOLVER_STATE_SINCE_AT: Final = 10  # the keeper: when the state was entered
RESOLVER_LOSING: Final = 11  # the keeper: 1 while its loss interval says that it loses
RESOLVER_RATE: Final = 12  # the keeper: recent answers, micro-queries per second
RESOLVER_TRIAL_AT: Final = 13  # any worker: GCRA word of its trials while it is not in use
RESOLVER_EXPLORE_AT: Final = 14  # any worker: GCRA word of queries above its ceiling
RESOLVER_RANDOM_UNTIL: Final = 16  # the keeper: until when losses or refusals say nothing of a rate
RESOLVER_LOSS_ENDED: Final = 15  # the keeper: thousandths of attempts behind RESOLVER_LOSS

# One block for every (worker, slot). Writer: the worker. Counts since start unless told otherwise.
COUNTER_WORDS: Final = 16
COUNTER_SENT: Final = 0  # attempts given to the transport
COUNTER_ANSWERED: Final = 1
COUNTER_REFUSED: Final = 2
COUNTER_LOST: Final = 3  # attempts with no answer within per_attempt
COUNTER_ERRORS: Final = 4  # attempts ended by a network error
COUNTER_RTT_SUM: Final = 5  # ns, over all answers
COUNTER_DEVIATION_SUM: Final = 6  # ns, sum of |round trip - RESOLVER_SRTT|
COUNTER_LIMITED: Final = 7  # refusals that speak of a rate limit
COUNTER_HELD: Final = 8  # times its ceiling kept a query from it
COUNTER_OVERDUE: Final = 9  # attempts open now that another sending has overtaken
COUNTER_EXTRA_AT: Final = 13  # when it was last sent a copy or a query above its ceiling
COUNTER_RTT_MIN: Final = 10  # ns, the worker's windowed minimum; 0 for none
COUNTER_RTT_MIN_UNTIL: Final = 11  # until when COUNTER_RTT_MIN counts
COUNTER_LATE: Final = 12  # answers that came after the query was given up or answered


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the blocks of a board for given numbers of workers, pools and resolver slots."""

    workers: int
    pools: int
    slots: int

    def worker(self, worker: int) -> int:
        """Return the position of a worker's block."""
        return HEADER_WORDS + worker * WORKER_WORDS

    def ring(self, worker: int) -> int:
        """Return the position of a worker's ring."""
        return self.worker(self.workers) + worker * RING_WORDS

    def pool(self, worker: int, pool: int) -> int:
        """Return the position of the block of one pool in one worker."""
        return self.ring(self.workers) + (worker * self.pools + pool) * POOL_WORDS

    def resolver(self, slot: int) -> int:
        """Return the position of a resolver's block."""
        return self.pool(self.workers, 0) + slot * RESOLVER_WORDS

    def counters(self, worker: int, slot: int) -> int:
        """Return the position of one worker's counters of one resolver."""
        return self.resolver(self.slots) + (worker * self.slots + slot) * COUNTER_WORDS

    @property
    def size_bytes(self) -> int:
        """Size of the whole board. The memory file is sparse: untouched pages cost nothing."""
        return self.counters(self.workers, 0) * WORD_SIZE_BYTES
