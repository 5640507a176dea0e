"""What of a configuration that was read again takes a restart, by the names of its fields."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from relay.config import Config, load
from relay.config_changes import restart_needed

POOL = {"name": "a", "domain": "a.example", "resolvers": ["auto"], "listen": "127.0.0.1:5300"}


def config(folder: Path, *pools: dict[str, Any], **top: Any) -> Config:
    path = folder / "relay.json"
    path.write_text(json.dumps({"workers": 1, "pools": [*pools], **top}))
    return load(path).config


def test_restart_needed_names_the_fields_as_in_the_file(tmp_path: Path) -> None:
    before = config(tmp_path, POOL)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        ({"resolvers": ["8.8.8.8"], "bootstrap": ["9.9.9.9"]}, ""),
        ({"listen": "127.0.0.1:5301"}, "pools[0].listen"),
        ({"name": "b"}, "pools[0].name"),
        ({"tunnel": "dnstt"}, "pools[0].tunnel"),
        ({"domain": "b.example"}, "pools[0].domain"),
        ({"via": "socks5://u:secret@127.0.0.1:1"}, "pools[0].via"),
        ({"pretest_domain": ["b.example"]}, "pools[0].pretest_domain"),
        (
            {"smart_pool": {"deadline": "9s", "hedge": "losing", "discovery": {"pace": "1s"}}},
            "pools[0].smart_pool.deadline, pools[0].smart_pool.hedge, "
            "pools[0].smart_pool.discovery.pace",
        ),
    ]
    for change, expected in cases:
        assert restart_needed(before, config(tmp_path, {**POOL, **change})) == expected
    assert restart_needed(before, config(tmp_path, POOL, workers=2, log_level="debug")) == (
        "workers, log_level"
    )
    second = {**POOL, "name": "b", "listen": "127.0.0.1:5301"}
    off = {"smart_pool": False}
    assert restart_needed(before, config(tmp_path, POOL, second)) == "pools"
    # Counted as in the file, where one is left out.
    moved = config(tmp_path, off, {**POOL, "listen": "127.0.0.1:5309"})
    assert restart_needed(before, moved) == "pools[1].listen"
    assert restart_needed(before, config(tmp_path, off, POOL)) == ""


def test_restart_needed_many_fields_are_summed_up(tmp_path: Path) -> None:
    smart = {"deadline": "9s", "per_attempt": "8s", "probe_interval": "7s", "down_after": 6}
    more = {"token_wait": "1s", "duplicate": 2, "max_pending": 3, "tcp_idle": "4s"}
    told = restart_needed(
        config(tmp_path, POOL), config(tmp_path, {**POOL, "smart_pool": {**smart, **more}})
    )
    assert told.count("pools[0].smart_pool.") == 6
    assert told.endswith(", 2 more")


def test_restart_needed_sees_every_field_of_a_pool(tmp_path: Path) -> None:
    before = config(tmp_path, POOL)
    (pool,) = before.pools
    other: Any = object()
    for each in fields(pool):
        if each.name in ("resolvers", "bootstrap", "path", "settings", "discovery"):
            continue
        changed = replace(before, pools=(replace(pool, **{each.name: other}),))
        assert restart_needed(before, changed), each.name
    for inside in ("settings", "discovery"):
        for each in fields(getattr(pool, inside)):
            made = replace(getattr(pool, inside), **{each.name: other})
            changed = replace(before, pools=(replace(pool, **{inside: made}),))
            assert restart_needed(before, changed), each.name
