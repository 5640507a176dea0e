"""Readings of a group of processes: CPU time to the microsecond, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MICRO = 1e6


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU time, user and system, that processes have used since they started."""

    pids: tuple[int, ...]
    seconds: float

    def since(self, earlier: CpuReading) -> float:
        """Seconds used since an earlier reading of the very same processes."""
        if self.pids != earlier.pids:
            raise RuntimeError(f"processes changed while measured: {earlier.pids} -> {self.pids}")
        return self.seconds - earlier.seconds


def read_cpu(processes: Sequence[psutil.Process]) -> CpuReading:
    """Read the scheduler's own account: exact, where utime and stime step in 10 ms."""
    return CpuReading(
        tuple(sorted(each.pid for each in processes)), sum(map(_cpu_seconds, processes))
    )


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        threads = list(Path(f"/proc/{process.pid}/task").iterdir())
        return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9
    except FileNotFoundError:  # a kernel without CONFIG_SCHED_INFO
        times = process.cpu_times()
        return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Memory:
    """The largest of a group of processes."""

    rss_bytes: int
    uss_bytes: int


def read_memory(processes: Sequence[psutil.Process]) -> Memory:
    """Memory of the largest process: resident, and its own alone."""
    readings = [each.memory_full_info() for each in processes]
    return Memory(max(each.rss for each in readings), max(each.uss for each in readings))
