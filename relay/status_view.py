"""The state of a running relay as tables in a terminal.

Used by: `relay status`. Everything shown came from another process, so it goes through
`printable` and is never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from relay.printable import counted
from relay.terminal import new_table, output, show_table
from shared.printable import printable

_STATE_STYLES: Final = {"in_use": "green", "fresh": "cyan", "aside": "yellow", "down": "red"}
_COUNTS: Final = ("sent", "answered", "refused", "lost", "errors")
_RECENT_SHOWN: Final = 5


def show_status(status: Mapping[str, Any]) -> None:
    """Print `status`, as `GET /status` gives it, to standard output."""
    console = output()
    console.print(_headline(status))
    for pool in status["pools"]:
        console.print()
        console.print(_pool_line(pool))
        if pool.get("discovery"):
            for line in _discovery_lines(pool["discovery"]):
                console.print(line)
        show_table(console, _resolver_table(pool))


def _headline(status: Mapping[str, Any]) -> Text:
    workers = status.get("workers", [])
    ready = sum(1 for worker in workers if worker.get("state") == "ready")
    restarts = sum(worker.get("restarts", 0) for worker in workers)
    return Text(
        f"relay {_plain(status.get('version'))}, pid {_plain(status.get('pid'))}, "
        f"up {_age(status.get('uptime_s') or 0)}, "
        f"{ready} of {len(workers)} workers ready, {counted(restarts, 'restart')}"
    )


def _pool_line(pool: Mapping[str, Any]) -> Text:
    line = Text(_plain(pool.get("name")), style="bold")
    line.append(
        f"  {_plain(pool.get('tunnel'))} on {_plain(pool.get('listen'))}: "
        f"{_counted(pool.get('queries'), 'query', 'queries')}, "
        f"{_counted(pool.get('answers'), 'answer')}, {_counted(pool.get('failures'), 'failure')}",
        style="not bold",
    )
    dropped = {reason: n for reason, n in (pool.get("dropped") or {}).items() if n}
    if dropped:
        reasons = ", ".join(f"{_plain(reason)} {_count(n)}" for reason, n in dropped.items())
        line.append(f"; dropped: {reasons}", style="not bold")
    return line


def _discovery_lines(search: Mapping[str, Any]) -> Iterator[Text]:
    failed = (f"{_plain(at)} {_count(n)}" for at, n in (search.get("failed_at") or {}).items())
    line = Text(
        f"auto: {_plain(search.get('phase'))}, {_count(search.get('working'))} of "
        f"{_count(search.get('want'))} work; {_count(search.get('checked'))} checked, "
        f"{_count(search.get('passed'))} passed"
    )
    if reasons := ", ".join(failed):
        line.append(f"; failed at: {reasons}")
    if search.get("fallback"):
        line.append("; nobody reaches the tunnel's server", style="yellow")
    yield line
    # Of an unfinished search it is of interest who fails, and why.
    if search.get("phase") != "enough":
        for each in (search.get("recent") or [])[-_RECENT_SHOWN:]:
            yield Text(f"  {_plain(each.get('address'))} {_plain(each.get('verdict'))}", "dim")


def _resolver_table(pool: Mapping[str, Any]) -> Table:
    table = new_table()
    table.add_column("resolver", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("latency", "loss", "ceiling", *_COUNTS):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fault", overflow="fold")
    for resolver in pool.get("resolvers", []):
        state = _plain(resolver.get("state"))
        table.add_row(
            Text(_plain(resolver.get("address"))),
            Text(state, style=_STATE_STYLES.get(state, "")),
            _measure(resolver.get("latency_ms"), "{:.1f} ms"),
            _measure(resolver.get("loss"), "{:.1%}"),
            _measure(resolver.get("ceiling_qps"), "{:.0f} q/s"),
            *(_count(resolver.get(name)) for name in _COUNTS),
            Text(_plain(resolver.get("fault") or "")),
        )
    return table


def _plain(value: object) -> str:
    return "-" if value is None else printable(str(value))


def _measure(value: object, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else "-"


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _counted(value: object, what: str, several: str = "") -> str:
    return counted(value, what, several) if isinstance(value, int) else f"- {several or what + 's'}"


def _age(age_s: float) -> str:
    minutes, seconds = divmod(int(age_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    shown = [f"{count}{unit}" for count, unit in parts if count]
    return " ".join(shown[:2]) or "0s"
