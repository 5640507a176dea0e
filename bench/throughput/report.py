"""Medians over the rounds, as markdown tables and as JSON."""

from __future__ import annotations

import json
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.rig.net import program

BASELINE = "relay, 1 worker"


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One run of dnsperf against one subject."""

    subject: str
    round: int
    sockets: int
    """Client sockets that dnsperf used."""
    reply: str
    """large or small."""
    rate_qps: float
    cpu_us: float
    """CPU of all the subject's processes per completed query."""
    lost: int
    query_bytes: int
    reply_bytes: int
    completed: int
    connections: int | None = None
    """TCP connections that the subject made meanwhile; None for one that asks over UDP."""


@dataclass(frozen=True, slots=True)
class LatencyRun:
    """Round trips through one subject, beside those straight to the server just before."""

    subject: str
    round: int
    rate_qps: float
    direct_p50_us: float
    direct_p99_us: float
    p50_us: float
    p99_us: float
    lost: int


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """The largest worker after the loads."""

    subject: str
    round: int
    rss_bytes: int
    uss_bytes: int


@dataclass(frozen=True, slots=True)
class BesideRun:
    """Round trips of a pool over UDP while another pool of the same worker is kept busy."""

    busy: str
    """What the busy pool asks over; empty where it is left alone."""
    round: int
    busy_qps: float
    rate_qps: float
    p50_us: float
    p99_us: float
    most_us: float
    lost: int


R = TypeVar("R")
Run = TypeVar("Run", LoadRun, LatencyRun, MemoryRun)


@dataclass(slots=True)
class Results:
    """All that was measured."""

    settings: dict[str, Any]
    loads: list[LoadRun] = field(default_factory=list)
    latencies: list[LatencyRun] = field(default_factory=list)
    memories: list[MemoryRun] = field(default_factory=list)
    besides: list[BesideRun] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        """Write everything as JSON under `folder`; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / time.strftime("throughput-%Y%m%d-%H%M%S.json")
        path.write_text(json.dumps({"machine": describe_machine(), **asdict(self)}, indent=1))
        return path

    def markdown(self) -> str:
        """The tables for people."""
        tables = [self._loads(), self._latencies(), self._memories()]
        tables += [self._besides()] if self.besides else []
        return "\n\n".join("\n".join(table) for table in tables)

    def _loads(self) -> list[str]:
        lines = [
            "| | client sockets | reply bytes | q/s | CPU µs/query | of one worker's | lost "
            "| reused |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for sockets, reply in sorted({(run.sockets, run.reply) for run in self.loads}):
            rows = [run for run in self.loads if (run.sockets, run.reply) == (sockets, reply)]
            base = _median([r for r in rows if r.subject == BASELINE], lambda run: run.cpu_us)
            for subject, runs in _by_subject(rows):
                cpu_us = _median(runs, lambda run: run.cpu_us)
                lines.append(
                    f"| {subject} | {sockets} | {runs[0].reply_bytes} "
                    f"| {_median(runs, lambda run: run.rate_qps):,.0f} | {cpu_us:.1f} "
                    f"| {f'{cpu_us / base:.2f} x' if base else ''} "
                    f"| {sum(run.lost for run in runs)} | {_reuse(runs)} |"
                )
        return lines

    def _latencies(self) -> list[str]:
        lines = [
            "| | q/s | direct p50 ms | added p50 ms | added p99 ms | lost |",
            "|---|---|---|---|---|---|",
        ]
        for subject, runs in _by_subject(self.latencies):
            added_p50_us = _median(runs, lambda run: run.p50_us - run.direct_p50_us)
            added_p99_us = _median(runs, lambda run: run.p99_us - run.direct_p99_us)
            lines.append(
                f"| {subject} | {runs[0].rate_qps:,.0f} "
                f"| {_median(runs, lambda run: run.direct_p50_us) / 1000:.3f} "
                f"| {added_p50_us / 1000:.3f} | {added_p99_us / 1000:.3f} "
                f"| {sum(run.lost for run in runs)} |"
            )
        return lines

    def _memories(self) -> list[str]:
        lines = ["| | largest worker: RSS MB | USS MB |", "|---|---|---|"]
        for subject, runs in _by_subject(self.memories):
            rss_bytes = max(run.rss_bytes for run in runs)
            uss_bytes = max(run.uss_bytes for run in runs)
            lines.append(f"| {subject} | {rss_bytes / 1e6:.1f} | {uss_bytes / 1e6:.1f} |")
        return lines

    def _besides(self) -> list[str]:
        lines = [
            "| UDP beside | its q/s | p50 ms | p99 ms | longest ms | lost |",
            "|---|---|---|---|---|---|",
        ]
        for busy in dict.fromkeys(run.busy for run in self.besides):
            runs = [run for run in self.besides if run.busy == busy]
            lines.append(
                f"| {f'a busy {busy} resolver' if busy else 'nothing'} "
                f"| {_median(runs, lambda run: run.busy_qps):,.0f} "
                f"| {_median(runs, lambda run: run.p50_us) / 1000:.3f} "
                f"| {_median(runs, lambda run: run.p99_us) / 1000:.3f} "
                f"| {_median(runs, lambda run: run.most_us) / 1000:.3f} "
                f"| {sum(run.lost for run in runs)} |"
            )
        return lines


def _reuse(runs: Sequence[LoadRun]) -> str:
    """Share of the queries that needed no new connection, over all rounds."""
    made = [run.connections for run in runs if run.connections is not None]
    if not made:
        return ""
    return f"{1 - sum(made) / sum(run.completed for run in runs):.3%}"


def _by_subject(
    runs: Sequence[Run],
) -> list[tuple[str, list[Run]]]:
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.subject, []).append(run)
    return list(grouped.items())


def _median(runs: Sequence[R], value: Callable[[R], float]) -> float:
    return statistics.median(map(value, runs)) if runs else 0.0


def describe_machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpu": model[1] if model else platform.processor(),
        "cpus": psutil.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "dnsdist": _first_line("dnsdist", "--version"),
        "nsd": _first_line("nsd", "-v"),
        "unbound": _first_line("unbound", "-V"),
        "dnsperf": _first_line("dnsperf", "-h"),
    }


def _first_line(*command: str) -> str:
    done = subprocess.run(
        [program(command[0]), *command[1:]], capture_output=True, text=True, check=False
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "ersion" in line]
    lines = lines or (done.stdout + done.stderr).splitlines()
    return lines[0].strip() if lines else "unknown"
