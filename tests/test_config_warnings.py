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
    nobody = f"{place}.sources: nobody to check but those with saved scores: "
    no_auto = "without effect: no resolver of the pool is auto"
    heavy = ["8.8.8.8", *({"address": f"8.8.4.{n}", "weight": n} for n in (4, 5))]
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
        # Nobody at all to check.
        (
            searching(sources=[]),
            [f"{place}.sources: nobody to check but those with saved scores: th"],
        ),
        (searching(sources=["country"]), [f'{nobody}"country" needs a country']),
        (
            searching(sources=["country"], country="FR"),
            [f'{nobody}"country" knows no resolvers of'],
        ),
        (searching(sources=["country"], country="IR"), []),
        (searching(sources=["ranges"]), [f'{nobody}"ranges" needs a country']),
        (
            searching(sources=["ranges"], country="DE"),
            [f'{nobody}"ranges" needs sample_ranges above 0'],
        ),
        (
            searching(sources=["ranges"], country="FR", sample_ranges=9),
            [f'{nobody}"ranges" needs those of FR: `relay lists update --country FR`'],
        ),
        (searching(sources=["ranges"], country="DE", sample_ranges=9), []),
        (
            searching(sources=["lists", "country"]),
            [
                f'{nobody}"lists" needs a list: `relay lists update`, or `relay lists import FILE`'
                '; "country" needs a country'
            ],
        ),
        (searching(sources=["lists", "device"]), []),
        (searching(sources=["known"]), []),
        # Nobody is searched for.
        (
            {"resolvers": ["8.8.8.8"], **searching(country="FR", sample_ranges=9)},
            [f"{place} (country, sample_ranges): {no_auto}"],
        ),
        (
            {"resolvers": ["8.8.8.8"], **searching(want=10)},  # as it is said, though the default
            [f"{place}.want: {no_auto}"],
        ),
        ({"resolvers": ["8.8.8.8"], **searching()}, []),
        ({"resolvers": ["8.8.8.8", "auto"], **searching(want=3)}, []),
        # Settings of the pool.
        (
            {"resolvers": heavy},
            ['pools[0].resolvers[1].weight: without effect: load_balance is "au'],
        ),
        ({"resolvers": heavy, "smart_pool": {"load_balance": "weighted"}}, []),
        (
            {"smart_pool": {"token_wait": "2s", "deadline": "1s"}},
            ["pools[0].smart_pool.token_wait: a query waits no longer than to its deadline of 1s"],
        ),
        ({"smart_pool": {"token_wait": "1s", "deadline": "1s"}}, []),
        ({"smart_pool": {"deadline": "100ms"}}, []),
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
    without_auto = {"resolvers": ["8.8.8.8"], **searching(concurrency=9)}
    (found,) = warnings_of(tmp_path, without_auto, country="IR", want=3)
    assert found.startswith("--country, --want, pools[0].smart_pool.discovery.concurrency: without")
    (found,) = warnings_of(tmp_path, searching(sources=["known"]), sources=("lists",))
    assert found.startswith("--sources: nobody to check ")
    found = load(None, Flags(tunnel="dnstt", state=tmp_path / "state.json")).warnings
    assert found == ("--domain: not given, so the tunnel's own server is not checked",)


def test_lists_that_are_kept_give_somebody_to_check(tmp_path: Path) -> None:
    only_lists = searching(sources=["lists"])
    keep_ranges(tmp_path, "DE")  # a list, and yet no resolver
    assert len(warnings_of(tmp_path, only_lists)) == 1
    damaged = tmp_path / "lists" / "damaged.list"
    damaged.write_text("8.8.8.8\n")  # as the store, which reads what is left
    assert warnings_of(tmp_path, only_lists) == []
    damaged.unlink()
    ListStore(tmp_path / "lists").take("mine", b"8.8.8.8\n", own=True)
    assert warnings_of(tmp_path, only_lists) == []


def test_load_outbounds_setting_without_effect_is_told_with_its_place(tmp_path: Path) -> None:
    outbound = {"type": "dnstt", "domain": "t.example.com", "resolvers": ["8.8.8.8"]}
    smart = {"enabled": True, "discovery": {"want": 3}}
    path = tmp_path / "core.json"
    path.write_text(
        json.dumps({"outbounds": [{"type": "direct"}, {**outbound, "smart_pool": smart}]})
    )
    (found,) = load(path).warnings
    assert found.startswith("outbounds[1].smart_pool.discovery.want: without effect: no resolver")


def test_scan_warns_of_what_does_nothing_in_a_scan_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_command, "_run", lambda *_, **__: Result(end=End.STOPPED))
    (tmp_path / "list").write_text("8.8.8.8\n")
    file = tmp_path / "relay.json"

    def scan(pool: dict[str, Any], *options: str) -> str:
        file.write_text(json.dumps({"state": "state.json", "pools": [pool]}))
        return CliRunner().invoke(cli, ["scan", "-c", str(file), *options]).stderr

    named = {"resolvers": ["8.8.8.8"]}
    nobody = searching(sources=[])
    assert scan({**named, **searching(concurrency=9, pace="1s", check_command="true")}) == ""
    assert "discovery (country, want): without" in scan(
        {**named, **searching(country="IR", want=9)}
    )
    assert scan(nobody).startswith("relay: warning: pools[0].smart_pool.discovery.sources: nobody")
    assert scan(nobody, "--file", str(tmp_path / "list")) == ""
    assert scan(nobody, "--sources", "known") == ""
    assert scan({}, "--sources", "lists").startswith("relay: warning: --sources: nobody to check")
    assert "--country: without effect" in scan({}, "--resolver", "8.8.8.8", "--country", "IR")


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
