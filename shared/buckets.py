"""Token buckets of one shared word each: the generic cell rate algorithm (GCRA).

The word is the time from which the next query may go, in monotonic ns (ITU-T I.371 calls it the
theoretical arrival time). Any worker takes tokens; there is no lock that a dead process could hold.
Two workers that read the same word at the same moment send one query too many: that is the bound,
and it is why a ceiling of a few queries per second stays exact over any number of workers, where
a quota split among them would starve.
"""

from __future__ import annotations


def take(
    words: memoryview[int], position: int, now_ns: int, interval_ns: int, burst_ns: int
) -> bool:
    """Take one token from the bucket at `position`, if it has one.

    `interval_ns` is the time between two tokens (1e9 / ceiling); `burst_ns` is how far the bucket
    may fill up: burst_ns / interval_ns tokens beyond the first may be taken at once.
    """
    free_at = words[position]
    if free_at > now_ns:
        return False
    earliest = now_ns - burst_ns
    words[position] = (free_at if free_at > earliest else earliest) + interval_ns
    return True


def hold_until(words: memoryview[int], position: int, until_ns: int) -> None:
    """Leave the bucket without a token until `until_ns`, whatever it held."""
    words[position] = until_ns
