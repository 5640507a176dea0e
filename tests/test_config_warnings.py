"""Settings that do nothing as they stand: each gets a warning, and no other does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from relay.cli import cli
from relay.config import Flags, load
from relay.discovery import scan_command
from relay.discovery.scan import End, Result
from relay.lists.store import ListStore


def keep_ranges(tmp_path: Path, country: str) -> None:
    ListStore(tmp_path / "lists").take("zone", b"5.22.0.0/24\n", own=True, country=country)


def warnings_of(tmp_path: Path, pool: dict[str, Any], **flags: Any) -> list[str]:
    path = tmp_path / "relay.json"
    path.write_text(json.dumps({"state": "state.json", "pools": [pool]}))
    return list(load(path, Flags(**flags)).warnings)


def searching(**discovery: Any) -> dict[str, Any]:
    return {"smart_pool": {"discovery": discovery}}


def test_load_setting_without_effect_gets_a_warning_with_its_place(tmp_path: Path) -> None:
    keep_ranges(tmp_path, "DE")
    place = "pools[0].smart_pool.discovery"
    not_checked = "pools[0].domain: not given, so the tunnel's own server is not checked"
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
        ({"tunnel": "dnstt"}, [not_checked]),
        ({"tunnel": "dnstt", "resolvers": ["8.8.8.8", "auto"]}, [not_checked]),
        ({"tunnel": "dnstt", "domain": "t.example.com"}, []),
        ({"tunnel": "dnstt", "resolvers": ["8.8.8.8"]}, []),
        (searching(country="IR"), []),
        (searching(country="IR", sample_ranges=9), [f"{place}.country: no ranges of IR are kept"]),
        (searching(country="DE", sample_ranges=9), []),
        (searching(country="DE"), [f"{place}.country: no resolvers of DE are known; sample_ra"]),
        (searching(country="FR"), [f"{place}.country: neither resolvers nor ranges of FR are"]),
        (searching(country="FR", sample_ranges=9), [f"{place}.country: no ranges of FR are kept"]),
        (searching(sample_ranges=9), [f"{place}.sample_ranges: without a country"]),
        ({"resolvers": ["8.8.8.8"], **searching(country="FR", sample_ranges=9)}, []),
        (
            {"smart_pool": {"per_attempt": "4s", "deadline": "3s"}},
            ["pools[0].smart_pool.per_attempt: an attempt ends with its query, at the deadline of"],
        ),
        ({"smart_pool": {"per_attempt": "3s", "deadline": "3s"}}, []),
        ({"smart_pool": {"deadline": "1s"}}, []),  # what a profile says is nobody's mistake
        ({"tunnel": "iodine", "domain": "t.example.com"}, []),
    ]
    for pool, expected in cases:
        found = warnings_of(tmp_path, pool)
        assert len(found) == len(expected), (pool, found)
        for text, start in zip(found, expected, strict=True):
            assert text.startswith(start), (pool, text)


def test_load_flag_without_effect_is_named_as_the_flag(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, {}, country="FR")[0].startswith("--country: neither ")
    found = load(None, Flags(tunnel="dnstt", state=tmp_path / "state.json")).warnings
    assert found == ("--domain: not given, so the tunnel's own server is not checked",)


def test_ranges_of_a_country_are_known_without_reading_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_ranges(tmp_path, "DE")
    store = ListStore(tmp_path / "lists")
    store.take("resolvers", b"8.8.8.8\n", own=True)
    (tmp_path / "lists" / "damaged.list").write_bytes(b"\xff" * 100_000)
    monkeypatch.setattr(store, "_all", None)

    assert store.countries() == {"DE"}
    assert ListStore(tmp_path / "none").countries() == frozenset()


def test_scan_country_of_a_file_needs_nothing_known_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_command, "_run", lambda *_, **__: Result(end=End.STOPPED))
    (tmp_path / "list").write_text("ip,country\n8.8.8.8,FR\n")
    state = ["--state", str(tmp_path / "state.json"), "--country", "FR"]

    of_file = CliRunner().invoke(cli, ["scan", "--file", str(tmp_path / "list"), *state])
    of_auto = CliRunner().invoke(cli, ["scan", *state])

    assert (of_file.exit_code, of_file.stderr) == (0, "")
    assert of_auto.stderr.startswith("relay: warning: --country: neither resolvers nor ranges")
