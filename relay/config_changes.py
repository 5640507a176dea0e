"""What differs between two configurations beside what a running relay can take over.

Used by: the supervisor, when it reads its configuration again. Fields are named as in a
configuration file. Pure. Invariant: where anything differs that takes a restart, a field is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from relay.config import Config, PoolConfig
from relay.config_errors import Path as Place
from relay.config_errors import path_text

_NAMED: Final = 6
"""Fields; of more only the number is told."""

_TAKEN_OVER: Final = ("resolvers", "bootstrap")
_NAMES: Final = {
    "domains": "domain",
    "pretest_domains": "pretest_domain",
    "hedge_only_losing": "hedge",
    "silent_failure": "on_failure",
    "probe_name": "pretest_domain",
}
"""Of fields that are called otherwise in a file."""


def restart_needed(before: Config, after: Config) -> str:
    """Return which fields changed that take a restart; an empty string where none did."""
    found = list(dict.fromkeys(map(path_text, _changed(before, after))))
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return ", ".join([*found[:_NAMED], *more])


def _changed(before: Config, after: Config) -> Iterator[Place]:
    for name in _differing(before, after):
        if name != "pools":
            yield (name,)
        elif len(before.pools) != len(after.pools):
            yield ("pools",)
        else:
            for old, new in zip(before.pools, after.pools, strict=True):
                yield from _changed_in_pool(old, new)


def _changed_in_pool(before: PoolConfig, after: PoolConfig) -> Iterator[Place]:
    smart = (*after.path, "smart_pool")
    for name in _differing(before, after):
        if name in _TAKEN_OVER:
            continue
        if name == "discovery":
            for inner in _differing(before.discovery, after.discovery):
                yield (*smart, "discovery", _name(inner))
        elif name != "settings":
            yield (*after.path, _name(name))
        elif before.tunnel == after.tunnel:  # else these are mostly the other profile's
            for inner in _differing(before.settings, after.settings):
                told = _name(inner)
                around = after.path if told in ("name", "pretest_domain") else smart
                yield (*around, told)


def _differing(before: Any, after: Any) -> Iterator[str]:
    """Yield the names of the fields of two dataclasses that differ."""
    for each in fields(before):
        if each.compare and getattr(before, each.name) != getattr(after, each.name):
            yield each.name


def _name(name: str) -> str:
    return _NAMES.get(name, name.removesuffix("_s"))
