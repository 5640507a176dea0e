"""`python -m bench.discovery`: how soon `auto` has resolvers that work, on simulated ones."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.discovery import (
    asking,
    hosts_in,
    keep_list,
    pool_status,
    relay_with_auto,
    search,
    seconds_until,
    spread,
)
from tests.rig import Relay
from tests.rig.farm import Farm

_HOSTS = 5_000
_WORKING = 40
_LAST = 10
_MANY = 58_000
_DESCRIPTORS = 1_024


class Figure(NamedTuple):
    """One line of the result."""

    what: str
    value: float | None
    unit: str
    bound: float
    at_most: bool = True

    @property
    def is_well(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.discovery",
        description="Find resolvers among thousands of simulated ones, most of which are dead.",
    )
    parser.add_argument(
        "--only", choices=("few", "many"), help="the 5,000 of which 40 work, or the 58,000"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        figures = _few(Path(folder)) if given.only != "many" else []
        figures += _many(Path(folder)) if given.only != "few" else []
    print("| what | measured | bound |\n|---|---|---|")
    for figure in figures:
        value = "never" if figure.value is None else f"{figure.value:,.2f} {figure.unit}"
        sign = "≤" if figure.at_most else "≥"
        mark = "" if figure.is_well else " **missed**"
        print(f"| {figure.what} | {value}{mark} | {sign} {figure.bound:g} {figure.unit} |")
    return 0 if all(figure.is_well for figure in figures) else 1


def _few(folder: Path) -> list[Figure]:
    """Find 10 of 40 among 5,000; lose 5; start again."""
    with Farm(workdir=folder) as farm:
        hosts = farm.hosts(_HOSTS)
        working = {hosts[at] for at in spread(_WORKING, _HOSTS, last=_LAST)}
        others = [host for host in hosts if host not in working]
        liars = {*others[::50], *others[1::50], *others[2::50]}
        farm.set(others, "dead")
        farm.set(others[::50], "lying")
        farm.set(others[1::50], "captive")
        farm.set(others[2::50], "empty")
        usual, odd = sorted(working)[12:], sorted(working)[:12]
        farm.set(usual)
        farm.set(odd[:4], "recasing")
        farm.set(odd[4:8], "dropping_large")
        farm.set(odd[8:], "rate_limited", rate_qps=200)
        state = keep_list(folder / "few", map(farm.at, hosts))
        figures = []
        with _started(lambda: relay_with_auto(state, folder)) as (relay, ready_s):
            figures.append(Figure("first start: ready", ready_s, "s", 2.0))
            took_s = seconds_until(lambda: search(relay)["working"] >= 10, 60)
            figures.append(Figure("ten work, after ready", took_s, "s", 20.0))
            found = hosts_in(relay, farm)
            with asking(relay.address):
                seconds_until(lambda: pool_status(relay)["answers"] > 500, 10)
                farm.set(found[:5], "dead")

                def others_came() -> bool:
                    living = set(hosts_in(relay, farm, alive=True))
                    return len(living - set(found)) >= 5

                figures.append(
                    Figure("five others, after five died", seconds_until(others_came, 60), "s", 20)
                )
            lied = len(set(hosts_in(relay, farm)) & liars)
            figures.append(Figure("liars in the pool", lied, "", 0))
        began_at = time.monotonic()
        with _started(lambda: relay_with_auto(state, folder)) as (relay, ready_s):
            seconds_until(lambda: search(relay)["working"] >= 10, 60)
            figures.append(Figure("second start: ready", ready_s, "s", 2.0))
            took_s = time.monotonic() - began_at
            figures.append(Figure("second start: ten work", took_s, "s", 2.0))
            figures.append(Figure("ten work, after ready", took_s - ready_s, "s", 1.0))
        return figures


def _many(folder: Path) -> list[Figure]:
    """Go through 58,000 with few descriptors: they refuse at once, then they are dead."""
    # For good, and for all that is started: nothing comes after this.
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    figures = []
    with Farm(workdir=folder) as farm:
        hosts = farm.hosts(_MANY)
        state = keep_list(folder / "many", map(farm.at, hosts))
        for kind in ("refusing", "dead"):
            farm.set(hosts, kind)
            with relay_with_auto(state, folder, concurrency=1_000) as relay:
                rate = 0.0
                rss_bytes = 0

                def over() -> bool:
                    nonlocal rate, rss_bytes
                    shown = search(relay)
                    rate = max(rate, shown["rate"])
                    rss_bytes = max(rss_bytes, relay.process.memory_info().rss)
                    return bool(shown["phase"].startswith("waiting to"))

                took_s = seconds_until(over, 180)
            figures += [
                Figure(f"{_MANY:,} that are {kind}: all checked, after ready", took_s, "s", 180),
                Figure("supervisor's memory", rss_bytes / (1 << 20), "MiB", 150),
            ]
            if kind == "refusing":
                figures.append(Figure("checks per second", rate, "/s", 2_000, at_most=False))
    return figures


class _started:
    """A relay, and how long it took until it was ready."""

    def __init__(self, make: Callable[[], Relay]) -> None:
        self._make = make

    def __enter__(self) -> tuple[Relay, float]:
        began_at = time.monotonic()
        self._relay = self._make().__enter__()
        return self._relay, time.monotonic() - began_at

    def __exit__(self, *error: Any) -> None:
        self._relay.__exit__(*error)


if __name__ == "__main__":
    sys.exit(main())
