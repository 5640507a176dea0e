"""Medians over the rounds: markdown tables, JSON with every run, and a chart."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.throughput.report import describe_machine
from bench.tunnels.chart import Group, bars
from bench.tunnels.layouts import LAYOUTS

FIRST, UNLIMITED = "first", "one-unlimited"


@dataclass(frozen=True, slots=True)
class Run:
    """One download."""

    tunnel: str
    layout: str
    via: str
    round: int
    size_bytes: int
    seconds: float
    is_complete: bool
    kbit_s: float
    questions_per_s: float
    answers_per_s: float
    answer_bytes: float
    """Payload per answer of the tunnel's server."""
    shares: tuple[float, ...]
    """Of the questions, by resolver."""


@dataclass(slots=True)
class Results:
    """All that was measured."""

    settings: dict[str, Any]
    file_bytes: int
    """What is downloaded over limited layouts."""
    runs: list[Run] = field(default_factory=list)

    def of(self, tunnel: str, layout: str, via: str) -> list[Run]:
        return [
            run for run in self.runs if (run.tunnel, run.layout, run.via) == (tunnel, layout, via)
        ]

    def median(
        self, tunnel: str, layout: str, via: str, value: Callable[[Run], float]
    ) -> float | None:
        """Median over the rounds; None where nothing was measured."""
        runs = self.of(tunnel, layout, via)
        return statistics.median(map(value, runs)) if runs else None

    def tunnels(self) -> list[str]:
        return _each_once(run.tunnel for run in self.runs)

    def layouts(self, tunnel: str) -> list[str]:
        return _each_once(run.layout for run in self.runs if run.tunnel == tunnel)

    def vias(self, tunnel: str) -> list[str]:
        return _each_once(run.via for run in self.runs if run.tunnel == tunnel)

    # -- what the limits allow -----------------------------------------------------------------

    def bound_answers_per_s(self, layout: str, answer_bytes: float, count: int) -> float:
        """Answers per second that the first `count` resolvers allow over one file.

        Each lets a second's worth through at once in the beginning: the buckets are full then.
        """
        rate_qps = LAYOUTS[layout].rate_qps(count)
        answers = self.file_bytes / answer_bytes
        seconds = max(answers / rate_qps - 1.0, answers / rate_qps / 2)
        return answers / seconds

    def bound_kbit_s(self, tunnel: str, layout: str, via: str) -> float | None:
        """Speed that the limits allow, at the payload per answer of the unlimited run."""
        answer_bytes = self.median(tunnel, UNLIMITED, FIRST, lambda run: run.answer_bytes)
        if not LAYOUTS[layout].is_limited or not answer_bytes:
            return None
        count = 1 if via == FIRST else len(LAYOUTS[layout].resolvers)
        return self.bound_answers_per_s(layout, answer_bytes, count) * answer_bytes * 8 / 1000

    # -- on paper ------------------------------------------------------------------------------

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write every run as JSON and the medians as a chart; return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = time.strftime("tunnels-%Y%m%d-%H%M%S")
        data, chart = folder / f"{stem}.json", folder / f"{stem}.svg"
        data.write_text(json.dumps({"machine": describe_machine(), **asdict(self)}, indent=1))
        chart.write_text(self.chart())
        return data, chart

    def chart(self) -> str:
        """The medians, each layout's longest bar being its fastest program."""
        groups = []
        for tunnel in self.tunnels():
            for layout in self.layouts(tunnel):
                medians = {
                    via: self.median(tunnel, layout, via, lambda run: run.kbit_s) or 0.0
                    for via in self.vias(tunnel)
                }
                groups.append(Group(f"{tunnel}: {layout}", medians))
        title = f"Download speed in kbit/s ({time.strftime('%Y-%m-%d')}, {platform.machine()})"
        return bars(title, groups)

    def markdown(self) -> str:
        """The tables for people."""
        lines: list[str] = []
        for tunnel in self.tunnels():
            lines += [f"### {tunnel}: kbit/s, and in brackets the ratio to `first`", ""]
            lines += [*self._speeds(tunnel), "", "Questions/s → answers/s, share of the first", ""]
            lines += [*self._questions(tunnel), ""]
            limited = self._limits(tunnel)
            lines += ["What the limits allow", "", *limited, ""] if limited else []
        return "\n".join(lines)

    def _speeds(self, tunnel: str) -> list[str]:
        vias = self.vias(tunnel)
        lines = [_row("layout", *vias, "bound"), _rule(len(vias) + 2)]
        for layout in self.layouts(tunnel):
            first = self.median(tunnel, layout, FIRST, lambda run: run.kbit_s)
            cells = []
            for via in vias:
                speed = self.median(tunnel, layout, via, lambda run: run.kbit_s)
                if speed is None:
                    cells.append("")
                    continue
                broken = any(not run.is_complete for run in self.of(tunnel, layout, via))
                ratio = f" ({speed / first:.2f})" if first and via != FIRST else ""
                cells.append(f"{speed:,.0f}{ratio}{' †' if broken else ''}")
            bound = self.bound_kbit_s(tunnel, layout, "all")
            lines.append(_row(layout, *cells, f"{bound:,.0f}" if bound else ""))
        if any(not run.is_complete for run in self.runs if run.tunnel == tunnel):
            lines += ["", "† a download was not complete: it broke off, or its time was up"]
        return lines

    def _questions(self, tunnel: str) -> list[str]:
        vias = self.vias(tunnel)
        lines = [_row("layout", *vias), _rule(len(vias) + 1)]
        for layout in self.layouts(tunnel):
            cells = []
            for via in vias:
                asked = self.median(tunnel, layout, via, lambda run: run.questions_per_s)
                told = self.median(tunnel, layout, via, lambda run: run.answers_per_s)
                share = self.median(tunnel, layout, via, lambda run: run.shares[0])
                cells.append(
                    ""
                    if asked is None or told is None or share is None
                    else f"{asked:,.0f} → {told:,.0f}, {share:.0%}"
                )
            lines.append(_row(layout, *cells))
        return lines

    def _limits(self, tunnel: str) -> list[str]:
        rows = []
        for layout in self.layouts(tunnel):
            for via in self.vias(tunnel):
                bound = self.bound_kbit_s(tunnel, layout, via)
                runs = self.of(tunnel, layout, via)
                if bound is None or not runs:
                    continue
                speed = statistics.median(run.kbit_s for run in runs)
                answers = statistics.median(run.answers_per_s for run in runs)
                answer_bytes = statistics.median(run.answer_bytes for run in runs)
                count = 1 if via == FIRST else len(LAYOUTS[layout].resolvers)
                rows.append(
                    _row(
                        layout,
                        via,
                        f"{LAYOUTS[layout].rate_qps(count)}",
                        f"{answers:.1f}",
                        f"{answer_bytes:.0f}",
                        f"{speed:,.0f}",
                        f"{bound:,.0f}",
                        f"{speed / bound:.2f}",
                    )
                )
        if not rows:
            return []
        columns = ("layout", "via", "limit q/s", "answers/s", "bytes/answer", "kbit/s", "bound")
        return [_row(*columns, "of the bound"), _rule(8), *rows]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def _each_once(names: Sequence[str] | Any) -> list[str]:
    return list(dict.fromkeys(names))
