"""Readings of a group of processes: CPU time to the microsecond, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.rig import Address

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


def read_connections(servers: Sequence[Address]) -> set[tuple[int, int]]:
    """The TCP connections to servers that stand or ended within the last minute, as port pairs.

    Whichever side closes first keeps a connection in TIME_WAIT for a minute, so what two readings
    differ by are all the connections made between them, were they ever so short.
    """
    ports = {each.port for each in servers}
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        row = line.split()
        near, far = (int(side.rpartition(":")[2], 16) for side in row[1:3])
        if far in ports:
            found.add((far, near))
        elif near in ports and far:
            found.add((near, far))
    return found


@dataclass(frozen=True, slots=True)
class Memory:
    """The largest of a group of processes."""

    rss_bytes: int
    uss_bytes: int


def read_memory(processes: Sequence[psutil.Process]) -> Memory:
    """Memory of the largest process: resident, and its own alone."""
    readings = [each.memory_full_info() for each in processes]
    return Memory(max(each.rss for each in readings), max(each.uss for each in readings))
