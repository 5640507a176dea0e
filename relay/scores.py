"""What is remembered of every resolver from one run to the next: a score, and what it lets through.

Owner: the supervisor (and `relay scan`). A score runs from -10 to 10, per pool (its key: kind of
tunnel, record type, name) and address; 0 is somebody unknown. What changes it, all in this place:

| what happened | score |
|---|---|
| it passed a check | + PASSED |
| it failed one | - FAILED; - LIED where it lied; - NO_TUNNEL where only the tunnel's check failed |
| it answered queries of the tunnel, every time the finder looks | + ANSWERED |
| it went down while others work | - WENT_DOWN, and - STAYS_DOWN every time the finder looks |
| time goes by | towards 0, half of it in HALF_LIFE_S |

Nothing changes it while this machine's own network is at fault: the finder asks for no change then.
From GOOD up an address is asked first on the next start; from BAD down it is asked last.

Two relays may share the file: what is written is, per address, the newer of both. Times in the file
are of the wall clock, since they outlive the machine's uptime; no other clock is compared with
them. On a machine that starts in 1970, until it has asked for the time, those in the file are of
the future: they stay, or the right time would make nothing of all scores. A clock that was ahead
costs no more than a decay.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from relay.config_errors import AddressError
from relay.discovery.verdict import AT_TUNNEL, Fitness, Verdict
from relay.resolver_address import ResolverAddress, folded, parse
from relay.state_file import StateFile

LOWEST: Final = -10.0
HIGHEST: Final = 10.0

PASSED: Final = 2.0
FAILED: Final = 1.0
LIED: Final = 6.0
NO_TUNNEL: Final = 2.0
ANSWERED: Final = 0.5
WENT_DOWN: Final = 2.0
STAYS_DOWN: Final = 0.5
HALF_LIFE_S: Final = 7 * 86_400.0

GOOD: Final = 0.5
BAD: Final = -5.0

MOST: Final = 5_000
"""Addresses kept of one pool: the best ones, and of the rest the newest."""

_LONGEST_KEY: Final = 1_024
_LONGEST_NAME: Final = 255
_LARGEST_REPLY: Final = 65_535
_LONGEST_LATENCY_MS: Final = 60_000.0
_LATEST: Final = 1 << 40

MOST_POOLS: Final = 32
"""Pools in the file beside those of this relay. Those of pools that are no more would stay for
ever: the ones that were used last are kept."""


@dataclass(frozen=True, slots=True)
class Score:
    """What is remembered of one address."""

    value: float = 0.0
    seen: int = 0
    """When it was last changed, in seconds of the wall clock."""
    longest_name: int = 0
    """Octets of the longest name that it answered; 0: not known."""
    largest_reply: int = 0
    """Octets of the largest reply that came through it whole; 0: not known."""
    reply_limit: int = 0
    """Octets of the largest reply that passes, where larger ones do not; 0: no limit known."""
    latency_ms: float = 0.0

    def at(self, now: float) -> float:
        """Return the value at `now`, in seconds of the wall clock: nearer to 0 the older it is."""
        return self.value * math.exp2(-max(0.0, now - self.seen) / HALF_LIFE_S)

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in the file."""
        return {
            "score": round(self.value, 3),
            "seen": self.seen,
            "longest_name": self.longest_name,
            "largest_reply": self.largest_reply,
            "reply_limit": self.reply_limit,
            "latency_ms": round(self.latency_ms, 3),
        }


class PoolScores:
    """The scores of one pool. Addresses are keys as `key_of` makes them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.entries: dict[str, Score] = {}
        self.changed = False
        """Whether there is something that is not in the file."""
        self._parsed: dict[str, ResolverAddress] = {}
        """What the keys of those that were good at the last look stand for."""

    def value(self, address: ResolverAddress) -> float:
        """Return the score of an address now."""
        score = self.entries.get(key_of(address))
        return score.at(self._clock()) if score else 0.0

    def sizes(self, address: ResolverAddress) -> tuple[int, int]:
        """Return the longest name and the largest reply that it lets through; 0: no limit known."""
        score = self.entries.get(key_of(address))
        if score is None:
            return 0, 0
        return score.longest_name, score.reply_limit

    def good(self) -> list[ResolverAddress]:
        """Return the addresses that were good, the best first, of equals the fastest.

        Scores that are the same to one decimal are equal: they decay from different seconds.
        """
        now = self._clock()
        ranked = sorted(
            (-round(value, 1), score.latency_ms, key)
            for key, score in self.entries.items()
            if (value := score.at(now)) >= GOOD
        )
        parsed: dict[str, ResolverAddress] = {}
        for _, _, key in ranked:
            try:
                parsed[key] = self._parsed.get(key) or parse(key)
            except AddressError:
                del self.entries[key]  # from a file that somebody wrote by hand
        self._parsed = parsed
        return [address for address in parsed.values() if not address.is_auto]

    def bad(self) -> frozenset[str]:
        """Return the keys of those that are asked last."""
        now = self._clock()
        return frozenset(key for key, score in self.entries.items() if score.at(now) <= BAD)

    def checked(self, verdict: Verdict) -> None:
        """Take what a check found out. One that this machine could not make changes nothing."""
        if verdict.local_fault or verdict.is_self:
            return
        change = PASSED if verdict.passed else -_loss(verdict)
        self._change(
            verdict.address, change, latency_ms=verdict.latency_s * 1e3, **_sizes(verdict.fitness)
        )

    def measured(self, verdict: Verdict) -> None:
        """Take what a second, longer look found out beside what `checked` was told already."""
        self._change(verdict.address, 0.0, **_sizes(verdict.fitness))

    def answered(self, address: ResolverAddress) -> None:
        """Take note that it answers the tunnel's queries."""
        self._change(address, ANSWERED)

    def went_down(self, address: ResolverAddress) -> None:
        """Take note that it went down while others work."""
        self._change(address, -WENT_DOWN)

    def stays_down(self, address: ResolverAddress) -> None:
        """Take note that it is still down while others work."""
        self._change(address, -STAYS_DOWN)

    def take_in(self, others: Mapping[str, Score]) -> None:
        """Take what another relay knows newer than this one."""
        for key, score in others.items():
            own = self.entries.get(key)
            if own is None or own.seen < score.seen:
                self.entries[key] = score

    def _change(
        self, address: ResolverAddress, by: float, latency_ms: float = 0.0, **sizes: Any
    ) -> None:
        now = self._clock()
        old = self.entries.get(key_of(address), Score())
        value = min(HIGHEST, max(LOWEST, old.at(now) + by))
        known: dict[str, Any] = {"latency_ms": latency_ms} if latency_ms else {}
        seen = max(int(now), old.seen)
        self.entries[key_of(address)] = replace(old, value=value, seen=seen, **known, **sizes)
        self.changed = True
        if len(self.entries) > 2 * MOST:
            self.entries = bounded(self.entries, now)


class Scores:
    """The scores of all pools, and their file."""

    def __init__(
        self, file: StateFile | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = file
        self._clock = clock
        content = file.read() if file else {}
        self._read = {
            key: _entries(value, clock()) for key, value in content.get("pools", {}).items()
        }
        self._pools: dict[str, PoolScores] = {}

    def pool(self, key: str) -> PoolScores:
        """Return the scores of a pool; see `pool_key`."""
        if key not in self._pools:
            made = PoolScores(self._clock)
            made.entries = self._read.pop(key, {})
            self._pools[key] = made
        return self._pools[key]

    @property
    def changed(self) -> bool:
        """Whether there is something that is not in the file."""
        return any(pool.changed for pool in self._pools.values())

    def snapshot(self) -> Callable[[], dict[str, dict[str, Score]] | None]:
        """Return a function that writes the scores as they are now, for another thread.

        It returns what the file holds then, for `adopt`; None where it was not written.
        """
        file, now = self._file, self._clock()
        ours = {key: dict(pool.entries) for key, pool in self._pools.items()}
        for pool in self._pools.values():
            pool.changed = False

        def write() -> dict[str, dict[str, Score]] | None:
            merged: dict[str, dict[str, Score]] = {}

            def change(content: dict[str, Any]) -> dict[str, Any]:
                pools = dict(content.get("pools", {}))
                for key, entries in ours.items():
                    merged[key] = _merged(entries, _entries(pools.get(key), now), now)
                    pools[key] = {at: score.to_json() for at, score in merged[key].items()}
                return {**content, "pools": _pools_kept(pools, ours)}

            return merged if file is not None and file.update(change) else None

        return write

    def adopt(self, merged: dict[str, dict[str, Score]] | None) -> None:
        """Take what a write came to. After one that failed everything is still to be written."""
        for key, pool in self._pools.items():
            if merged is None:
                pool.changed = self._file is not None
            else:
                pool.take_in(merged.get(key, {}))

    def save(self) -> None:
        """Write the scores now, in this thread."""
        if self.changed:
            self.adopt(self.snapshot()())


def pool_key(tunnel: str, record_type: str | None, name: str) -> str:
    """Return what the scores of a pool are filed under."""
    return f"{tunnel}|{record_type or ''}|{name}"


def key_of(address: ResolverAddress) -> str:
    """Return what an address is filed under: the same for every spelling and order of its pins."""
    return folded(str(address))


def bounded(entries: dict[str, Score], now: float) -> dict[str, Score]:
    """Return the entries that are worth keeping, at most `MOST`."""
    if len(entries) <= MOST:
        return entries

    def worth(item: tuple[str, Score]) -> tuple[float, int]:
        value = item[1].at(now)
        return (value if value >= GOOD else 0.0, item[1].seen)

    return dict(heapq.nlargest(MOST, entries.items(), key=worth))


def _loss(verdict: Verdict) -> float:
    if verdict.honest is False:
        return LIED
    return NO_TUNNEL if verdict.stage in AT_TUNNEL else FAILED


def _merged(ours: dict[str, Score], theirs: dict[str, Score], now: float) -> dict[str, Score]:
    both = dict(theirs)
    for key, score in ours.items():
        other = both.get(key)
        if other is None or other.seen <= score.seen:
            both[key] = score
    return bounded(both, now)


def _pools_kept(pools: dict[str, Any], ours: Collection[str]) -> dict[str, Any]:
    """Return our pools and the others that were used last."""
    if len(pools) <= len(ours) + MOST_POOLS:
        return pools

    def used_at(key: str) -> float:
        entries = pools[key].values() if isinstance(pools[key], dict) else ()
        return max(
            (_number(each, "seen", 0, _LATEST) for each in entries if isinstance(each, dict)),
            default=0.0,
        )

    others = heapq.nlargest(MOST_POOLS, (key for key in pools if key not in ours), key=used_at)
    return {key: pools[key] for key in pools if key in ours or key in others}


def _sizes(fitness: Fitness) -> dict[str, Any]:
    """Return what was measured, as fields of a `Score`; what was not stays as it was known."""
    sizes: dict[str, Any] = {}
    if fitness.longest_name:
        sizes["longest_name"] = min(fitness.longest_name, _LONGEST_NAME)
    if fitness.replies.largest:
        sizes["largest_reply"] = min(fitness.replies.largest, _LARGEST_REPLY)
        sizes["reply_limit"] = min(fitness.replies.limit, _LARGEST_REPLY)
    return sizes


def _entries(value: object, now: float) -> dict[str, Score]:
    """Return what a file says of one pool, without the parts that are none."""
    if not isinstance(value, dict):
        return {}
    found: dict[str, Score] = {}
    for written, fields in value.items():
        if len(written) > _LONGEST_KEY or not isinstance(fields, dict):
            continue
        key = folded(written)
        seen = int(_number(fields, "seen", 0, _LATEST))
        if key in found and found[key].seen >= seen:
            continue
        found[key] = Score(
            value=_number(fields, "score", LOWEST, HIGHEST),
            seen=seen,
            longest_name=int(_number(fields, "longest_name", 0, _LONGEST_NAME)),
            largest_reply=int(_number(fields, "largest_reply", 0, _LARGEST_REPLY)),
            reply_limit=int(_number(fields, "reply_limit", 0, _LARGEST_REPLY)),
            latency_ms=_number(fields, "latency_ms", 0, _LONGEST_LATENCY_MS),
        )
    return bounded(found, now)


def _number(fields: Mapping[str, Any], name: str, lowest: float, highest: float) -> float:
    value = fields.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0.0
    return min(highest, max(lowest, value))
