"""What `relay scan` shows: how far it is, then the ranking as a table or as JSON.

Used by: the command. Where the standard error is a terminal there is a bar, else a line now and
then, and no control codes. Addresses and reasons come from lists and servers: they go through
`printable` and are never read as markup.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from relay.config import PoolConfig
from relay.discovery.scan import GIVE_UP_S, End, Progress, Ranked, Result
from relay.discovery.verdict import REPLY_STEPS, ReplySizes
from relay.lists.parsing import canonical
from relay.resolver_address import LONGEST_ADDRESS
from relay.terminal import is_terminal, new_table, output, show_table
from shared.printable import printable

LINE_S: Final = 5.0
"""From one line to the next where there is no terminal for a bar."""

MOST_ROWS: Final = 100
"""Of the table; JSON has all."""

_LONGEST_MESSAGE: Final = 1_024
_NOBODY: Final = "nobody to check: there are no candidates"
_KINDS: Final = {"https": "doh"}
_ENDS: Final = {
    End.ENOUGH: "; enough",
    End.STOPPED: "; stopped",
    End.NO_NETWORK: f"; given up, nobody answered for {GIVE_UP_S:.0f} s: is there a network?",
}


class View(logging.Handler):
    """The standard error while a scan runs; to be entered. Also shows what is logged.

    `quiet`: only a terminal is told how far the scan is.
    """

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._is_quiet = quiet
        self._next_line_at = time.monotonic() + LINE_S
        self._bar: Bar | None = None
        if is_terminal(sys.stderr):
            console = Console(
                file=sys.stderr, force_terminal=True, highlight=False, markup=False, emoji=False
            )
            self._bar = Bar(
                BarColumn(bar_width=None, table_column=Column(ratio=1)),
                TextColumn(
                    "{task.description}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis"),
                ),
                console=console,
                auto_refresh=False,
                transient=True,
                expand=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> View:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Show how far the scan is."""
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=progress_text(progress),
                completed=progress.done,
                total=progress.total,
                refresh=True,
            )
        elif not self._is_quiet and time.monotonic() >= self._next_line_at:
            self._next_line_at = time.monotonic() + LINE_S
            click.echo(f"relay: {progress_text(progress)}", err=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Show what was logged, above the bar."""
        message = printable(record.getMessage(), _LONGEST_MESSAGE)
        text = f"relay: {record.levelname.lower()}: {message}"
        if self._bar is not None:
            self._bar.console.print(Text(text))
        else:
            click.echo(text, err=True)


def progress_text(progress: Progress) -> str:
    """Return how far a scan is, in a line."""
    if not progress.total:
        return _NOBODY
    text = f"{progress.done:,} of {progress.total:,} checked, {progress.passed:,} passed"
    if progress.is_out:
        return f"waiting for the network: {text}"
    if not progress.done or progress.rate <= 0:
        return text
    left_s = (progress.total - progress.done) / progress.rate
    return f"{text}, {progress.rate:,.0f}/s, {_clock(left_s)} left"


def show_result(result: Result) -> None:
    """Print what was found to standard output."""
    console = output()
    console.print(_headline(result))
    if result.passed:
        console.print()
        show_table(console, _ranking(result.passed[:MOST_ROWS]))
        if (more := len(result.passed) - MOST_ROWS) > 0:
            console.print(Text(f"and {more:,} more that passed: --json has them all"))
    if result.reasons:
        console.print()
        show_table(console, _reasons(result))


def show_json(result: Result, pool: PoolConfig) -> None:
    """Print what was found to standard output as one JSON document, in ASCII."""
    document = {
        "pool": pool.name,
        "tunnel": pool.tunnel,
        "domain": pool.domain,
        "ended": result.end.value,
        "total": result.total,
        "checked": result.done,
        "passed": len(result.passed),
        "seconds": round(result.took_s, 3),
        "rate": round(result.rate, 1),
        "failures": [
            {"stage": stage.value, "reason": reason, "count": count}
            for (stage, reason), count in result.reasons.most_common()
        ],
        "resolvers": [*result.passed, *result.failed],
    }
    # Piece by piece: all rows at once, of a long list, would take more memory than the scan.
    encoder = json.JSONEncoder(indent=2, default=_row_json)
    sys.stdout.writelines(encoder.iterencode(document))
    sys.stdout.write("\n")


def _headline(result: Result) -> Text:
    if not result.total:
        return Text(_NOBODY)
    of_all = "" if result.done == result.total else f" of {result.total:,}"
    return Text(
        f"{result.done:,}{of_all} checked in {_clock(result.took_s)}, {result.rate:,.0f}/s: "
        f"{len(result.passed):,} passed{_ENDS.get(result.end, '')}"
    )


def _ranking(ranked: list[Ranked]) -> Table:
    table = new_table()
    table.add_column("resolver", overflow="fold")
    table.add_column("kind", no_wrap=True)
    for name in ("latency", "loss", "name/reply"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("case", "honest", "tunnel"):
        table.add_column(name, no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    for each in ranked:
        verdict = each.verdict
        fitness = verdict.fitness
        table.add_row(
            Text(printable(canonical(verdict.address), LONGEST_ADDRESS)),
            _kind(each),
            f"{verdict.latency_s * 1e3:.1f} ms",
            f"{verdict.loss:.0%}",
            f"{fitness.longest_name or '-'}/{reply_text(fitness.replies)}",
            _yes(fitness.keeps_case),
            _yes(verdict.honest),
            _yes(verdict.tunnel),
            f"{each.score:.1f}",
        )
    return table


def _reasons(result: Result) -> Table:
    table = new_table()
    table.add_column("failed", justify="right", no_wrap=True)
    table.add_column("at", no_wrap=True)
    table.add_column("why", overflow="fold")
    for (stage, reason), count in result.reasons.most_common():
        table.add_row(f"{count:,}", stage.value, Text(printable(reason, _LONGEST_MESSAGE)))
    return table


def _row_json(each: Ranked) -> dict[str, Any]:
    verdict, fitness = each.verdict, each.verdict.fitness
    return {
        "address": str(verdict.address),
        "kind": _kind(each),
        "passed": verdict.passed,
        "stage": verdict.stage.value,
        "reason": verdict.reason,
        "latency_ms": round(verdict.latency_s * 1e3, 3) if verdict.answered else None,
        "loss": round(verdict.loss, 3),
        "longest_name": fitness.longest_name or None,
        "largest_reply": fitness.replies.largest or None,
        "reply_sizes": dict(zip(map(str, REPLY_STEPS), fitness.replies.steps, strict=True)),
        "keeps_case": fitness.keeps_case,
        "txt": fitness.txt,
        "edns": fitness.edns,
        "honest": verdict.honest,
        "tunnel": verdict.tunnel,
        "score": each.score,
    }


def _kind(each: Ranked) -> str:
    scheme = each.verdict.address.scheme
    return _KINDS.get(scheme, scheme)


def reply_text(sizes: ReplySizes) -> str:
    """Return the largest step that passes, with a + where nothing is known of the next; where
    none does, the first that fails."""
    steps = sizes.steps
    passed = steps.count(True)
    if passed:
        more = "+" if None in steps[passed : passed + 1] else ""
        return f"{REPLY_STEPS[passed - 1]}{more}"
    return f"<{REPLY_STEPS[steps.index(False)]}" if False in steps else "-"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _clock(duration_s: float) -> str:
    if duration_s < 60:
        return f"{duration_s:.1f} s" if duration_s < 10 else f"{duration_s:.0f} s"
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02} min"
