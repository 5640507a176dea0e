"""Counts over time, in bins of a tenth of a second of virtual time."""

from __future__ import annotations

from typing import Final

BIN_S: Final = 0.1
BINS_PER_SECOND: Final = 10


class Series(list[int]):
    """One count for every bin. Times are seconds since the start of the simulation.

    The simulation appends a zero when a bin begins; whoever counts does
    `series[net.bin] += 1`.
    """

    def total(self, from_s: float = 0.0, to_s: float | None = None) -> int:
        """The count from `from_s` to `to_s`, both rounded to whole bins; to the end by default."""
        first = round(from_s * BINS_PER_SECOND)
        return sum(self[first:] if to_s is None else self[first : round(to_s * BINS_PER_SECOND)])

    def rate(self, from_s: float, to_s: float) -> float:
        """The count per second between two times."""
        return self.total(from_s, to_s) / (to_s - from_s)

    def per_second(self) -> list[int]:
        """The count of every second; the last one may be unfinished."""
        return [
            sum(self[first : first + BINS_PER_SECOND])
            for first in range(0, len(self), BINS_PER_SECOND)
        ]
