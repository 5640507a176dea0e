"""The command `relay scan`.

Imported by the `relay` command when somebody asks for it; what it needs to run is imported then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli import (
    CONFIG_FILE,
    Parsed,
    UsageFailure,
    loaded_config,
    parse_path,
)
from relay.config import DISCOVERY_SOURCES, Config, Flags, PoolConfig
from relay.config_errors import BadValue, did_you_mean, listed
from relay.durations import parse_duration_within
from relay.endpoints import parse_country, parse_domain
from relay.profiles import PROFILES
from relay.resolver_address import AUTO, ResolverAddress
from relay.resolver_list import Entry, parse_bootstrap, parse_entry
from shared.printable import printable, quoted

if TYPE_CHECKING:
    from relay.discovery.scan import Order, Result
    from relay.discovery.scan_view import View

DRAWN: Final = 1_000
"""Addresses drawn from a file that has ranges, where `sample_ranges` does not say."""

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.05, 30.0
_LONGEST_PACE_S: Final = 60.0


def _parse_sources(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in DISCOVERY_SOURCES:
            known = f"; expected some of {', '.join(DISCOVERY_SOURCES)}"
            near = did_you_mean(name, DISCOVERY_SOURCES)
            raise BadValue(f"{quoted(name)} is no source{near or known}")
    return tuple(dict.fromkeys(names))


def _duration(lowest_s: float, highest_s: float) -> Parsed:
    return Parsed("DURATION", lambda text: parse_duration_within(text, lowest_s, highest_s))


def _parse_command(text: str) -> str:
    from relay.discovery.check_command import words_of

    try:
        words_of(text)
    except ValueError as error:
        raise BadValue(f"is no command: {str(error).lower()}", text=text) from None
    return text


@click.command()
@click.option("-c", "--config", type=CONFIG_FILE, help="Configuration file, JSON or TOML.")
@click.option("--pool", metavar="NAME", help="Pool of the file, where it has several.")
@click.option(
    "--tunnel",
    type=click.Choice(tuple(PROFILES)),
    help="Kind of tunnel.  [default: generic]",
)
@click.option("--domain", type=Parsed("DOMAIN", parse_domain), help="Domain of the tunnel.")
@click.option(
    "--country",
    type=Parsed("CODE", parse_country),
    help="Country whose resolvers are tried, as IR; of a FILE that names countries, its lines.",
)
@click.option(
    "--file",
    "files",
    type=click.Path(path_type=Path, allow_dash=True),
    multiple=True,
    help="List to check, in any form that `relay lists import` takes; repeatable.",
)
@click.option(
    "--resolver",
    "-u",
    "--upstream",
    "resolvers",
    type=Parsed("ADDRESS", parse_entry),
    multiple=True,
    help="Resolver to check, or auto; repeatable.  [default: those of the pool, else auto]",
)
@click.option(
    "--sources",
    type=Parsed("SOURCE,...", _parse_sources),
    help=f"Where auto takes candidates from.  [default: {','.join(DISCOVERY_SOURCES)}]",
)
@click.option(
    "--want",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Stop when so many have passed; some more may, as many are checked at once."
    "  [default: with auto that of the pool, 10; else all]",
)
@click.option(
    "--all", "to_the_end", is_flag=True, help="Check all; with --json, show who failed as well."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Checks at once.  [default: that of the pool, 100]",
)
@click.option(
    "--pace",
    type=_duration(0, _LONGEST_PACE_S),
    help="From one check to the next.  [default: that of the pool, 0]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=_duration(_SHORTEST_WAIT_S, _LONGEST_WAIT_S),
    default=2.0,
    help="How long a question may take with its repetitions.  [default: 2s]",
)
@click.option(
    "--check-command",
    type=Parsed("COMMAND", _parse_command),
    help="Test of your own: status 0 passes; {resolver}, {address}, {host}, {port} are filled in."
    "  [default: that of the pool, none]",
)
@click.option(
    "--bootstrap",
    type=Parsed("ADDRESS", parse_bootstrap),
    multiple=True,
    help="Resolver to look names of resolvers up with; repeatable.  [default: well-known ones]",
)
@click.option(
    "--state",
    type=Parsed("FILE", parse_path),
    help="File that keeps scores; lists are beside it.  [default: as `relay serve`]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result for programs.")
def scan(config: Path | None, to_the_end: bool, as_json: bool, **given: Any) -> None:
    """Check candidates now, and rank those that pass.

    Needs no running relay. The scores are saved, so that the next `relay serve` of the same tunnel
    begins with the best. Ctrl-C ends it and keeps what was found; so does a network in which
    nobody answers for 30 s. Status: 0 somebody passed, or it was stopped; 1 nobody passed, or it
    was given up.
    """
    order = _order(config, to_the_end, given)
    result = _run(order, quiet=as_json)
    from relay.discovery import scan_view
    from relay.discovery.scan import End

    if as_json:
        scan_view.show_json(result, order.pool)
    else:
        scan_view.show_result(result)
    failed = not result.passed and result.end is not End.STOPPED
    if failed or result.end is End.NO_NETWORK:
        raise click.exceptions.Exit(1)


def _order(path: Path | None, to_the_end: bool, given: dict[str, Any]) -> Order:
    """Return what the options ask for. Raises UsageFailure."""
    resolvers: tuple[Entry, ...] = given["resolvers"]
    files: tuple[Path, ...] = given["files"]
    sources: tuple[str, ...] | None = given["sources"]
    is_asked = bool(resolvers or files or sources)
    asks_auto = AUTO in resolvers or bool(sources)
    flags = Flags(
        # With `auto`, whether it is asked for or not: it has the pool's ways out.
        resolvers=(*resolvers, AUTO) if is_asked else (),
        bootstrap=given["bootstrap"],
        tunnel=given["tunnel"],
        domain=given["domain"],
        # Of a file it only chooses lines; nothing need be known of it.
        country=given["country"] if asks_auto or not is_asked else None,
        sources=sources,
        is_scan=True,
        searches=asks_auto or not is_asked,
        state=given["state"],
        pool=given["pool"],
    )
    loaded = loaded_config(path, flags)
    for warning in loaded.warnings:
        _warn(warning)
    if given["country"] and is_asked and not (asks_auto or files):
        _warn("--country: without effect: neither auto nor a file is to be checked")
    pool = _chosen(loaded.config, path, given["pool"])
    changes: dict[str, Any] = {
        name: value
        for name, value in (
            ("concurrency", given["concurrency"]),
            ("pace_s", given["pace"]),
            ("check_command", given["check_command"]),
        )
        if value is not None
    }
    pool = replace(pool, discovery=replace(pool.discovery, **changes))
    from relay.authorities import authority_warnings
    from relay.discovery.scan import Order, together

    auto = next((each for each in pool.resolvers if each.is_auto), None)
    named = [each for each in pool.resolvers if not each.is_auto]
    for file in files:
        named += _read(file, given["country"] or "", pool.discovery.sample_ranges or DRAWN)
    with_auto = asks_auto if is_asked else auto is not None
    want = given["want"] or (pool.discovery.want if with_auto else None)
    checked = together(named, auto or AUTO, pool)
    asked = replace(pool, resolvers=(*checked, AUTO) if with_auto else checked)
    for warning in authority_warnings(os.environ, (asked,)):
        _warn(warning)
    return Order(
        pool,
        loaded.config.state,
        checked,
        auto if with_auto else None,
        tuple(each.listen for each in loaded.config.pools),
        None if to_the_end else want,
        given["timeout_s"],
        keep_failed=to_the_end,
    )


def _chosen(config: Config, path: Path | None, name: str | None) -> PoolConfig:
    pools = config.pools
    if name is None and len(pools) > 1:
        names = listed([quoted(pool.name) for pool in pools])
        raise UsageFailure(f"{path}: has {len(pools)} pools; name one with --pool: {names}")
    return next(pool for pool in pools if name in (None, pool.name))


def _read(path: Path, country: str, drawn: int) -> Iterator[ResolverAddress]:
    """Yield the resolvers of a list, then addresses drawn from its ranges. Raises UsageFailure."""
    from relay.lists import parsing, ranges
    from relay.lists.store import LARGEST_REGISTRY_BYTES
    from relay.resolver_address import parse

    try:
        with click.open_file(str(path), "rb") as opened:
            data = opened.read(LARGEST_REGISTRY_BYTES + 1)
    except OSError as error:
        raise UsageFailure(f"--file: {path}: {error.strerror or error}") from None
    if len(data) > LARGEST_REGISTRY_BYTES:
        raise UsageFailure(f"--file: {path}: larger than {LARGEST_REGISTRY_BYTES >> 20} MiB")
    found = parsing.read(data, own=True, country=country)
    for warning in found.warnings:
        _warn(f"{path}: {warning}")
    if not found.resolvers and not found.ranges:
        raise UsageFailure(f"--file: {path}: names no resolver and no range of addresses")
    yield from map(parse, found.resolvers)
    all_ranges = ranges.Ranges()
    for each in found.ranges.values():
        all_ranges.ipv4 += each.ipv4
    all_ranges.merge()
    for host in ranges.sample(all_ranges.ipv4, drawn, random.Random()):  # noqa: S311
        yield ResolverAddress("udp", host, 53)


def _warn(text: str) -> None:
    click.echo(f"relay: warning: {printable(text, 4_096)}", err=True)


def _run(order: Order, *, quiet: bool) -> Result:
    import uvloop

    from relay.discovery.scan_view import View

    async def main(view: View) -> Result:
        from relay.discovery.scan import Scan

        scan = Scan(order, view.show)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, scan.stop)
        return await scan.run()

    with View(quiet=quiet) as view:
        logging.basicConfig(level=logging.WARNING, handlers=[view], force=True)
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        return uvloop.run(main(view))
