"""The `relay` command.

What a person types becomes a `relay.config.Config`; running it is `relay.process`. Exit statuses:
0 done or stopped as asked, 1 failure while running, 2 wrong command line or configuration. Modules
that are slow to import are imported by the command that needs them.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from relay import __version__
from relay.config import (
    LOG_FORMATS,
    LOG_LEVELS,
    STEERINGS,
    Config,
    Flags,
    Loaded,
    load,
    usable_cores,
)
from relay.config_errors import BadValue, ConfigError, ConfigProblems
from relay.endpoints import (
    ControlAddress,
    no_controls,
    parse_control,
    parse_country,
    parse_domain,
    parse_listen,
)
from relay.profiles import PROFILES
from relay.resolver_list import parse_bootstrap, parse_entry
from relay.state_path import default_control_path
from relay.ways_out import parse_bind, parse_via
from shared.board import MAX_WORKERS
from shared.errors import RelayError
from shared.printable import printable

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
LONGEST_LINE: Final = 8192

log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., Any])


class Failure(click.ClickException):
    """Ends the command with an error on standard error, every line of it marked as the relay's."""

    exit_code = EXIT_FAILURE

    def show(self, file: Any = None) -> None:
        """Print the error."""
        for line in self.message.splitlines() or [""]:
            text = printable(line, LONGEST_LINE)
            click.echo(f"relay: error: {text}", file=file or sys.stderr)


class UsageFailure(Failure):
    """A `Failure` because of what a person typed."""

    exit_code = EXIT_USAGE


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A value that one of the relay's own functions reads."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what the text names, or fail with the place: click names the option."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except BadValue as error:
            self.fail(str(error), param, ctx)


def _parse_workers(text: str) -> int:
    if text == "auto":
        return usable_cores()
    if text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_WORKERS:
        return int(text)
    raise BadValue(f'expected a whole number from 1 to {MAX_WORKERS} or "auto"', text=text)


def parse_path(text: str) -> Path:
    """Return the path that `text` names; raise `BadValue` where it cannot be one."""
    try:
        return Path(no_controls(text, 4096))
    except BadValue as error:
        raise error.about(text) from None


CONFIG_FILE = click.Path(path_type=Path)
_CONTROL = Parsed("PATH|HOST:PORT", parse_control)


def _pool_options(command: Command) -> Command:
    """Give a command the options that make up a configuration."""
    options = (
        click.option("-c", "--config", type=CONFIG_FILE, help="Configuration file, JSON or TOML."),
        click.option(
            "--resolver",
            "-u",
            "--upstream",
            "resolvers",
            type=Parsed("ADDRESS", parse_entry),
            multiple=True,
            help="Resolver to use, as 8.8.8.8, tcp://8.8.8.8:53, dot://1.1.1.1,"
            " https://dns.google/dns-query, sdns://..., auto or file:PATH; repeatable."
            "  [default: auto]",
        ),
        click.option(
            "--bootstrap",
            type=Parsed("ADDRESS", parse_bootstrap),
            multiple=True,
            help="Resolver to look names of resolvers up with; repeatable."
            "  [default: well-known ones]",
        ),
        click.option(
            "--via",
            type=Parsed("URL", parse_via),
            help="Proxy for TCP, DoT and DoH: socks5://USER:PASSWORD@HOST:PORT or http://...",
        ),
        click.option(
            "--bind",
            type=Parsed("ADDRESS|INTERFACE", parse_bind),
            help="Source address or interface to ask from.",
        ),
        click.option(
            "-l",
            "--listen",
            type=Parsed("HOST:PORT", parse_listen),
            help="Where clients ask.  [default: 127.0.0.1:0, a free port]",
        ),
        click.option(
            "--tunnel",
            type=click.Choice(tuple(PROFILES)),
            help="Kind of tunnel.  [default: generic]",
        ),
        click.option("--domain", type=Parsed("DOMAIN", parse_domain), help="Domain of the tunnel."),
        click.option(
            "--country",
            type=Parsed("CODE", parse_country),
            help="Country whose resolvers auto tries first, as IR.",
        ),
        click.option(
            "--want",
            type=click.IntRange(1, 10_000),
            metavar="N",
            help="Working resolvers at which auto stops searching.  [default: 10]",
        ),
        click.option(
            "--workers",
            type=Parsed("workers", _parse_workers),
            metavar="N|auto",
            help="Worker processes.  [default: auto, one for each core]",
        ),
        click.option("--control", type=_CONTROL, help="Where the control API listens."),
        click.option(
            "--state",
            type=Parsed("FILE", parse_path),
            help="File that keeps scores; lists are beside it.",
        ),
        click.option("--log-level", type=click.Choice(LOG_LEVELS), help="[default: info]"),
        click.option("--log-format", type=click.Choice(LOG_FORMATS), help="[default: text]"),
        click.option(
            "--steering",
            type=click.Choice(STEERINGS),
            help="Spread packets over workers, or keep flows together.  [default: packet]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


class Commands(click.Group):
    """The commands; those of `_LATE` are imported when somebody asks for them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *_LATE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None where there is none of that name."""
        if cmd_name not in _LATE:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(_LATE[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


_LATE: Final = {"lists": "relay.lists.commands", "scan": "relay.discovery.scan_command"}
"""Commands with a module of their own, which has the command under its name."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="relay", message="%(prog)s %(version)s")
def cli() -> None:
    """A smart resolver pool for DNS tunnels."""


@cli.command()
@_pool_options
def serve(config: Path | None, **flags: Any) -> None:
    """Run the pools until stopped."""
    given = Flags(**flags)
    settings = _configured(config, given)
    from relay import process

    def reload() -> Config:
        try:
            return _logged(load(config, given))
        except ConfigProblems as error:  # for a log: one line
            raise ConfigError("; ".join(map(str, error.problems))) from None

    sys.exit(_run(lambda: process.serve(settings, reload if config else None)))


@cli.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    short_help="Start a pool, then a command that uses it.",
)
@_pool_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(config: Path | None, command: tuple[str, ...], **flags: Any) -> None:
    """Start a pool, then COMMAND, and end with its exit status.

    In COMMAND, {resolver} stands for the pool's address as host:port, {host} and {port} for its
    parts.
    """
    settings = _configured(config, Flags(**flags))
    if len(settings.pools) > 1:
        message = f"{config}: run starts one pool, and this file has {len(settings.pools)}"
        raise UsageFailure(message)
    from relay import process

    sys.exit(_run(lambda: process.run(settings, list(command))))


@cli.command()
@click.option(
    "-c", "--config", type=CONFIG_FILE, required=True, help="Configuration file, JSON or TOML."
)
def check(config: Path) -> None:
    """Say what is wrong with a configuration."""
    loaded = loaded_config(config, Flags())
    for kind, messages in (("warning", loaded.warnings), ("note", loaded.notes)):
        for message in messages:
            click.echo(f"relay: {kind}: {message}", err=True)
    click.echo(_summary(config, loaded.config))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that the relay gives.")
@click.option("--control", type=_CONTROL, help="Where the control API of the relay listens.")
def status(as_json: bool, control: ControlAddress | None) -> None:
    """Show the state of every pool and resolver of the running relay."""
    from relay.status_client import fetch_status

    try:
        answer = fetch_status(control or ControlAddress(default_control_path()))
    except RelayError as error:
        raise Failure(str(error)) from None
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from relay.status_view import show_status

    show_status(answer)


def main() -> None:
    """Run the command; the entry point of the console script."""
    cli(prog_name="relay")


def loaded_config(path: Path | None, flags: Flags) -> Loaded:
    """Return the configuration of a file (if any) and flags; raise `UsageFailure`."""
    try:
        return load(path, flags)
    except ConfigError as error:
        raise UsageFailure(str(error)) from None


def _configured(path: Path | None, flags: Flags) -> Config:
    loaded = loaded_config(path, flags)
    from relay.authorities import authority_warnings

    more = authority_warnings(os.environ, loaded.config.pools)
    loaded = replace(loaded, warnings=(*loaded.warnings, *more))
    if loaded.warnings or loaded.notes:
        from workers import logs

        logs.setup(loaded.config.log_level, loaded.config.log_format, "relay")
    return _logged(loaded)


def _logged(loaded: Loaded) -> Config:
    """Return the configuration, after logging what is to be said about it."""
    for message in loaded.warnings:
        log.warning("%s", message)
    for message in loaded.notes:
        log.info("%s", message)
    return loaded.config


def _run(start: Callable[[], int]) -> int:
    try:
        return start()
    except ConfigError as error:
        raise UsageFailure(str(error)) from None
    except RelayError as error:
        raise Failure(str(error)) from None


def _summary(path: Path, config: Config) -> str:
    count = len(config.pools)
    lines = [f"{printable(str(path), 4096)}: OK, {count} pool{'s' if count > 1 else ''}"]
    for pool in config.pools:
        named = sum(1 for resolver in pool.resolvers if not resolver.is_auto)
        parts = [f"{named} resolver{'s' if named != 1 else ''}"] if named else []
        parts += ["auto"] if len(pool.resolvers) > named else []
        lines.append(
            f"  {printable(pool.name)}: {pool.tunnel} on {pool.listen}, {' and '.join(parts)}"
        )
    return "\n".join(lines)
