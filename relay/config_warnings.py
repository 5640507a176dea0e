"""Settings that do nothing as they stand: no mistakes, but whoever wrote them should know.

Used by: `relay.config`, for every pool. One warning for every matter of a pool, with its place.
Cheap, as every start pays for it: of a stored list no more is read than what it says of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relay.config_errors import Path as Place
from relay.config_errors import path_text
from relay.durations import duration_text
from relay.state_path import lists_folder

if TYPE_CHECKING:
    from relay.config import Flags, PoolConfig, PoolSpec
    from relay.resolver_address import ResolverAddress

_SCANNED: Final = ("concurrency", "pace", "check_command", "size_questions")
"""Fields of `discovery` that a scan uses for those that are named, too."""

_ALWAYS: Final = ("device", "known")
"""Sources that need nothing else."""


def without_effect(
    spec: PoolSpec,
    pool: PoolConfig,
    places: Mapping[ResolverAddress, Place],
    flags: Flags,
    state: Path,
) -> list[str]:
    """Return a warning for every matter of a pool in which settings do nothing.

    `places` tells which entry named a resolver; `flags` are those that are about this pool.
    """
    warnings = list(_of_the_pool(spec, pool, places))
    has_auto = any(each.is_auto for each in pool.resolvers)
    if has_auto and pool.tunnel != "generic" and not pool.domain:
        place = path_text((*spec.path, "domain")) if spec.path else "--domain"
        warnings.append(f"{place}: not given, so the tunnel's own server is not checked")
    if has_auto and flags.searches:
        warnings += _of_the_search(spec, pool, flags, state)
    elif not has_auto and (unused := _unused(spec, flags)):
        warnings.append(f"{unused}: without effect: no resolver of the pool is auto")
    return warnings


def _of_the_pool(
    spec: PoolSpec, pool: PoolConfig, places: Mapping[ResolverAddress, Place]
) -> Iterator[str]:
    smart = (*spec.path, "smart_pool")
    settings = pool.settings
    deadline = duration_text(settings.deadline_s)
    # What a profile says is nobody's mistake.
    if "per_attempt_s" in spec.changes and settings.per_attempt_s > settings.deadline_s:
        place = path_text((*smart, "per_attempt"))
        yield f"{place}: an attempt ends with its query, at the deadline of {deadline}"
    if "token_wait_s" in spec.changes and settings.token_wait_s > settings.deadline_s:
        place = path_text((*smart, "token_wait"))
        yield f"{place}: a query waits no longer than to its deadline of {deadline}"
    heavy = next((at for address, at in places.items() if address.weight != 1), None)
    if heavy is not None and settings.load_balance != "weighted":
        place = path_text((*heavy, "weight"))
        yield f'{place}: without effect: load_balance is "{settings.load_balance}", not "weighted"'


def _unused(spec: PoolSpec, flags: Flags) -> str:
    """Return which settings of a search there are, an empty string for none."""
    said = [name for name in spec.discovery_said if not (flags.is_scan and name in _SCANNED)]
    search = (*spec.path, "smart_pool", "discovery")
    found = [
        "--country" if flags.country else "",
        "--want" if flags.want else "",
        path_text((*search, *said)) if len(said) == 1 else "",
        f"{path_text(search)} ({', '.join(said)})" if len(said) > 1 else "",
    ]
    return ", ".join(filter(None, found))


# -- the search --------------------------------------------------------------------------------


def _of_the_search(spec: PoolSpec, pool: PoolConfig, flags: Flags, state: Path) -> Iterator[str]:
    search = (*spec.path, "smart_pool", "discovery")
    settings = pool.discovery
    country, sources = settings.country, settings.sources
    if not any(source in _ALWAYS for source in sources):
        needs = [_need(source, pool, state) for source in sources]
        if all(needs):
            place = path_text((*search, "sources")) if flags.sources is None else "--sources"
            why = "; ".join(needs) or "there is none; leave sources out for all of them"
            yield f"{place}: nobody to check but those with saved scores: {why}"
            return
    if settings.sample_ranges and not country:
        place = path_text((*search, "sample_ranges"))
        yield f"{place}: without a country there are no ranges to draw from"
    if country:
        place = "--country" if flags.country else path_text((*search, "country"))
        if why := _why_unknown(pool, country, state):
            yield f"{place}: {why}"


def _need(source: str, pool: PoolConfig, state: Path) -> str:
    """Return what a source needs to give candidates; an empty string where it may give some."""
    # Slow to import, and most configurations have other sources.
    from relay.lists.store import ListStore
    from relay.lists.tables import domestic_countries

    store = ListStore(lists_folder(state))
    country = pool.discovery.country
    match source:
        case "lists" if not store.has_resolvers():
            return '"lists" needs a list: `relay lists update`, or `relay lists import FILE`'
        case "country" | "ranges" if not country:
            return f'"{source}" needs a country'
        case "country" if country not in domestic_countries():
            return f'"country" knows no resolvers of {country}'
        case "ranges" if not pool.discovery.sample_ranges:
            return '"ranges" needs sample_ranges above 0'
        case "ranges" if country not in store.countries():
            return f'"ranges" needs those of {country}: `relay lists update --country {country}`'
    return ""


def _why_unknown(pool: PoolConfig, country: str, state: Path) -> str:
    """Return what is missing of a country, an empty string where all that is wanted is there."""
    # Slow to import, and of no use where no country is named.
    from relay.lists.store import ListStore
    from relay.lists.tables import domestic_countries

    samples = bool(pool.discovery.sample_ranges)
    if not samples and country in domestic_countries():
        return ""
    has_ranges = country in ListStore(lists_folder(state)).countries()
    if samples:
        fetch = f"`relay lists update --country {country}` fetches them"
        return "" if has_ranges else f"no ranges of {country} are kept to draw from; {fetch}"
    if has_ranges:
        return f"no resolvers of {country} are known; sample_ranges draws from its kept ranges"
    fetch = f"`relay lists update --country {country}` and sample_ranges"
    return f"neither resolvers nor ranges of {country} are known; {fetch} bring some"
