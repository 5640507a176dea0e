"""The configuration of a relay: what `serve` is started with, complete and checked.

Used by: the command, which loads it, and the supervisor, which runs it. Order of precedence: the
profile of a pool's tunnel, then the file, then the flags. Reading a file is `relay.config_file`
and `relay.config_model`; they are imported only where there is a file, because they are slow to.
Invariant: a `Config` that was loaded can be run as it stands; whatever is wrong was raised, all of
it at once, as `ConfigProblems`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from relay import config_errors, resolver_list
from relay.config_errors import ConfigProblems, Problem, listed
from relay.config_warnings import without_effect
from relay.endpoints import ControlAddress, ListenAddress
from relay.lists.sources import Source
from relay.profiles import SettingsChanges, pool_settings
from relay.resolver_address import AUTO, ResolverAddress, loops_back
from relay.state_path import default_control_path, default_state_path
from relay.ways_out import Proxy, why_absent
from shared.board import MAX_POOLS, MAX_SLOTS, MAX_WORKERS
from shared.printable import quoted
from workers.settings import PoolSettings

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
STEERINGS: Final = ("packet", "flow")
DISCOVERY_SOURCES: Final = ("device", "country", "known", "ranges", "lists")
DEFAULT_POOL_NAME: Final = "default"


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """How `auto` finds resolvers."""

    country: str | None = None
    """ISO code of two capital letters."""
    sample_ranges: int = 0
    """Addresses drawn from the ranges of the country."""
    want: int = 10
    """Working resolvers at which the search pauses."""
    concurrency: int = 100
    """Checks at once."""
    pace_s: float = 0.0
    """The least time from one check to the next."""
    sources: tuple[str, ...] = DISCOVERY_SOURCES
    """Where candidates come from, in this order."""
    check_command: str | None = None
    """A test of the user's own, a command with places for the resolver's address."""
    size_questions: tuple[str, ...] = ()
    """Names and types of questions with large replies; empty: those that the checks know."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """One pool: where it listens, whom it asks, and how."""

    name: str
    tunnel: str
    listen: ListenAddress
    resolvers: tuple[ResolverAddress, ...]
    """In the order of preference, each once; `AUTO` among them stands for those found."""
    settings: PoolSettings
    bootstrap: tuple[ResolverAddress, ...] = ()
    """Whom names are looked up with; empty for the default."""
    discovery: DiscoverySettings = DiscoverySettings()
    domains: tuple[str, ...] = ()
    record_type: str | None = None
    pretest_domains: tuple[str, ...] = ()
    via: Proxy | None = None
    """The proxy of the streams that `auto` finds."""
    path: config_errors.Path = field(default=(), compare=False)
    """Where it stands in the file, as no part of what it is; empty: in none."""

    @property
    def domain(self) -> str | None:
        """The tunnel's domain; the first where it has several."""
        return self.domains[0] if self.domains else None


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that `relay serve` needs to know."""

    workers: int
    control: ControlAddress
    state: Path
    log_level: str
    log_format: str
    steering: str
    """packet: spread the packets of one client socket; flow: keep them together."""
    pools: tuple[PoolConfig, ...]
    lists: tuple[Source, ...] = ()
    """Where `relay lists update` fetches lists from; empty for the usual places."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One pool as a file describes it. None: the file does not say."""

    path: config_errors.Path = ()
    name: str = DEFAULT_POOL_NAME
    tunnel: str = "generic"
    listen: ListenAddress | None = None
    resolvers: tuple[resolver_list.Entry, ...] = ()
    bootstrap: tuple[ResolverAddress, ...] = ()
    via: Proxy | None = None
    bind: str = ""
    changes: SettingsChanges = field(default_factory=dict)
    discovery: DiscoverySettings = DiscoverySettings()
    discovery_said: tuple[str, ...] = ()
    """The fields of `discovery` that are there, by their names in the file."""
    domains: tuple[str, ...] = ()
    record_type: str | None = None
    pretest_domains: tuple[str, ...] = ()
    packet_duplication: int | None = None


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One configuration file, read and checked by itself."""

    pools: tuple[PoolSpec, ...] = ()
    workers: int | None = None
    control: ControlAddress | None = None
    state: Path | None = None
    log_level: str | None = None
    log_format: str | None = None
    steering: str | None = None
    lists: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and why that is no mistake."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says. None, or an empty tuple: nothing."""

    resolvers: tuple[resolver_list.Entry, ...] = ()
    bootstrap: tuple[ResolverAddress, ...] = ()
    via: Proxy | None = None
    bind: str | None = None
    listen: ListenAddress | None = None
    tunnel: str | None = None
    domain: str | None = None
    workers: int | None = None
    control: ControlAddress | None = None
    state: Path | None = None
    log_level: str | None = None
    log_format: str | None = None
    steering: str | None = None
    country: str | None = None
    want: int | None = None
    sources: tuple[str, ...] | None = None
    is_scan: bool = False
    """Whether it is for a scan, which checks those that are named as well."""
    searches: bool = True
    """Whether `auto`, where it is there, is searched for."""
    pool: str | None = None
    """The name of the pool that those about one pool are for, where the file has several."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and what should be said about it although it can be run."""

    config: Config
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load(path: Path | None = None, flags: Flags | None = None) -> Loaded:
    """Return the configuration of a file (if any) and flags; raise `ConfigProblems`."""
    given = flags or Flags()
    if path is None:
        return _build(FileSpec(), given)
    from relay.config_file import read_document
    from relay.config_model import file_spec

    document = read_document(path)
    try:
        return _build(file_spec(document), given)
    except ConfigProblems as error:
        raise ConfigProblems(document.located(error.problems)) from None


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def _build(spec: FileSpec, flags: Flags) -> Loaded:
    pools = spec.pools or (PoolSpec(),)
    problems = _flag_problems(flags, pools)
    about = [flags if flags.pool in (None, pool.name) else Flags() for pool in pools]
    if not problems:
        pools = tuple(map(_with_flags, pools, about))
    warnings: list[str] = []
    built: list[PoolConfig] = []
    places: list[dict[ResolverAddress, config_errors.Path]] = []
    for pool, given in zip(pools, about, strict=True):
        place = ("--resolver",) if given.resolvers else (*pool.path, "resolvers")
        resolvers = pool.resolvers or (AUTO,)
        expanded = resolver_list.expand(resolvers, place, pool.via, pool.bind)
        warnings += expanded.warnings
        problems += expanded.problems
        listen = pool.listen or ListenAddress()
        problems += _resolver_problems(expanded, listen, place)
        problems += _bootstrap_problems(pool, listen, given)
        warnings += _absent_sources(pool, expanded, given)
        built.append(
            PoolConfig(
                name=pool.name,
                tunnel=pool.tunnel,
                listen=listen,
                resolvers=tuple(expanded.resolvers),
                bootstrap=pool.bootstrap,
                settings=pool_settings(
                    pool.name,
                    pool.tunnel,
                    pool.changes,
                    packet_duplication=pool.packet_duplication,
                    probe_name=pool.pretest_domains[0] if pool.pretest_domains else None,
                ),
                discovery=pool.discovery,
                domains=pool.domains,
                record_type=pool.record_type,
                pretest_domains=pool.pretest_domains,
                via=pool.via,
                path=pool.path,
            )
        )
        places.append(expanded.resolvers)
    problems += _together(pools, built)
    if problems:
        raise ConfigProblems(problems)
    config = Config(
        workers=flags.workers or spec.workers or usable_cores(),
        control=flags.control or spec.control or ControlAddress(default_control_path()),
        state=flags.state or spec.state or default_state_path(),
        log_level=flags.log_level or spec.log_level or "info",
        log_format=flags.log_format or spec.log_format or "text",
        steering=flags.steering or spec.steering or "packet",
        pools=tuple(built),
        lists=spec.lists,
    )
    for pool, made, at, given in zip(pools, built, places, about, strict=True):
        warnings += without_effect(pool, made, at, given, config.state)
    return Loaded(config, tuple(warnings), spec.notes)


def _flag_problems(flags: Flags, pools: tuple[PoolSpec, ...]) -> list[Problem]:
    """Return what is wrong with flags about one pool where there are several."""
    names = [pool.name for pool in pools]
    if flags.pool is not None and flags.pool not in names:
        known = listed([quoted(name) for name in names])
        return [Problem(f"{quoted(flags.pool)} is no pool here; there is {known}", ("--pool",))]
    if len(pools) == 1 or flags.pool is not None:
        return []
    return [
        Problem(f"does not say which of the {len(pools)} pools of the file it is for", (flag,))
        for flag, value in (
            ("--resolver", flags.resolvers),
            ("--bootstrap", flags.bootstrap),
            ("--via", flags.via),
            ("--bind", flags.bind),
            ("--listen", flags.listen),
            ("--tunnel", flags.tunnel),
            ("--domain", flags.domain),
            ("--country", flags.country),
            ("--want", flags.want),
        )
        if value
    ]


def _with_flags(pool: PoolSpec, flags: Flags) -> PoolSpec:
    return replace(
        pool,
        resolvers=flags.resolvers or pool.resolvers,
        bootstrap=flags.bootstrap or pool.bootstrap,
        via=flags.via or pool.via,
        bind=flags.bind or pool.bind,
        listen=flags.listen or pool.listen,
        tunnel=flags.tunnel or pool.tunnel,
        domains=(flags.domain,) if flags.domain else pool.domains,
        discovery=replace(
            pool.discovery,
            country=flags.country or pool.discovery.country,
            want=flags.want or pool.discovery.want,
            sources=pool.discovery.sources if flags.sources is None else flags.sources,
        ),
    )


def _resolver_problems(
    expanded: resolver_list.Expanded, listen: ListenAddress, place: config_errors.Path
) -> list[Problem]:
    problems = []
    for address, path in expanded.resolvers.items():
        if loops_back(address, listen):
            problems.append(
                Problem(f"{quoted(str(address))}: the pool itself listens on {listen}", path)
            )
    if expanded.had_list and not expanded.resolvers and not expanded.problems:
        problems.append(Problem("the lists name no resolver at all", place))
    return problems


def _bootstrap_problems(pool: PoolSpec, listen: ListenAddress, flags: Flags) -> list[Problem]:
    return [
        Problem(
            f"{quoted(str(address))}: the pool itself listens on {listen}",
            ("--bootstrap",) if flags.bootstrap else (*pool.path, "bootstrap", index),
        )
        for index, address in enumerate(pool.bootstrap)
        if loops_back(address, listen)
    ]


def _absent_sources(pool: PoolSpec, expanded: resolver_list.Expanded, flags: Flags) -> list[str]:
    """Return a warning for every `bind` that is not there now; it may come, so it is no mistake."""
    places: dict[str, config_errors.Path] = {}
    if pool.bind:
        places[pool.bind] = ("--bind",) if flags.bind else (*pool.path, "bind")
    for address, path in expanded.resolvers.items():
        if address.bind:
            places.setdefault(address.bind, path)
    return [
        f"{config_errors.path_text(path)}: {quoted(bind)}: {why}"
        for bind, path in places.items()
        if (why := why_absent(bind))
    ]


def _together(specs: tuple[PoolSpec, ...], pools: list[PoolConfig]) -> list[Problem]:
    """Return what is wrong with the pools as a whole."""
    problems = []
    names: dict[str, PoolSpec] = {}
    listens: dict[ListenAddress, PoolSpec] = {}
    for spec, pool in zip(specs, pools, strict=True):
        if (first := names.setdefault(pool.name, spec)) is not spec:
            problems.append(
                Problem(
                    f"{quoted(pool.name)} is already the name of "
                    f"{config_errors.path_text(first.path)}",
                    (*spec.path, "tag" if spec.path[:1] == ("outbounds",) else "name"),
                )
            )
        if pool.listen.port and (first := listens.setdefault(pool.listen, spec)) is not spec:
            problems.append(
                Problem(
                    f'"{pool.listen}" is already where '
                    f"{config_errors.path_text(first.path)} listens",
                    (*spec.path, "listen"),
                )
            )
    if len(pools) > MAX_POOLS:
        problems.append(Problem(f"at most {MAX_POOLS} pools can run, not {len(pools)}"))
    count = sum(len(pool.resolvers) for pool in pools)
    if count > MAX_SLOTS:
        problems.append(
            Problem(f"the pools name {count:,} resolvers; at most {MAX_SLOTS:,} can be used")
        )
    return problems
