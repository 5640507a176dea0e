"""Settings that do nothing as they stand: no mistakes, but whoever wrote them should know.

Used by: `relay.config`, for every pool. Cheap, as every start pays for it: of a stored list no more
is read than what it says of itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from relay.config_errors import path_text
from relay.durations import duration_text
from relay.state_path import lists_folder

if TYPE_CHECKING:
    from relay.config import Flags, PoolConfig, PoolSpec


def without_effect(spec: PoolSpec, pool: PoolConfig, flags: Flags, state: Path) -> list[str]:
    """Return a warning for every setting of a pool that does nothing, with its place.

    `flags` are those that are about this pool.
    """
    smart = (*spec.path, "smart_pool")
    warnings = []
    settings = pool.settings
    if "per_attempt_s" in spec.changes and settings.per_attempt_s > settings.deadline_s:
        deadline = duration_text(settings.deadline_s)
        place = path_text((*smart, "per_attempt"))
        warnings.append(f"{place}: an attempt ends with its query, at the deadline of {deadline}")
    if not any(each.is_auto for each in pool.resolvers):
        return warnings
    if pool.tunnel != "generic" and not pool.domain:
        place = path_text((*spec.path, "domain")) if spec.path else "--domain"
        warnings.append(f"{place}: not given, so the tunnel's own server is not checked")
    search = (*smart, "discovery")
    country = pool.discovery.country
    if pool.discovery.sample_ranges and not country:
        place = path_text((*search, "sample_ranges"))
        warnings.append(f"{place}: without a country there are no ranges to draw from")
    if country:
        place = "--country" if flags.country else path_text((*search, "country"))
        if why := _why_unknown(pool, country, state):
            warnings.append(f"{place}: {why}")
    return warnings


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
