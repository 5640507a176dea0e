"""The stored lists as a table in a terminal, and as JSON.

Used by: `relay lists show`. Names, origins and countries came from outside: they go through
`printable` and are never read as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text

from relay.lists.store import Summary
from relay.printable import counted
from relay.terminal import new_table, output, show_table
from shared.printable import printable

_COUNTRIES_SHOWN: Final = 8
_DIGEST_SHOWN: Final = 16


def as_json(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return the lists as JSON has them, with the time in ISO 8601."""
    return [
        {
            **{
                name: value
                for name, value in asdict(summary).items()
                if name not in ("fetched_at", "etag", "last_modified", "country")
            },
            "fetched": _when(summary, "seconds"),
        }
        for summary in summaries
    ]


def show(summaries: Sequence[Summary]) -> None:
    """Print the lists to standard output."""
    table = new_table()
    table.add_column("name", no_wrap=True)
    table.add_column("resolvers", justify="right", no_wrap=True)
    table.add_column("ranges", overflow="fold")
    table.add_column("fetched (UTC)", no_wrap=True)
    table.add_column("sha256", no_wrap=True)
    table.add_column("origin", overflow="fold")
    for summary in summaries:
        name = Text(printable(summary.name))
        if summary.fault:
            name.append(f"  {printable(summary.fault)}", style="red")
        table.add_row(
            name,
            f"{summary.entries:,}",
            Text(_ranges(summary)),
            (_when(summary, "minutes") or "-").replace("T", " ").removesuffix("+00:00"),
            Text(printable(summary.sha256, _DIGEST_SHOWN) or "-"),
            Text(printable(summary.origin, 500)),
        )
    show_table(output(), table)


def _ranges(summary: Summary) -> str:
    most = sorted(summary.ranges.items(), key=lambda item: -item[1])
    shown = [f"{printable(country)} {count:,}" for country, count in most[:_COUNTRIES_SHOWN]]
    if len(most) > _COUNTRIES_SHOWN:
        shown.append(counted(len(most) - _COUNTRIES_SHOWN, "more country", "more countries"))
    return ", ".join(shown) or "-"


def _when(summary: Summary, until: str) -> str | None:
    if summary.fetched_at <= 0:
        return None
    try:
        return datetime.fromtimestamp(summary.fetched_at, UTC).isoformat(timespec=until)
    except (OverflowError, OSError, ValueError):
        return None
