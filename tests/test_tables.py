"""The tables that are shipped."""

from __future__ import annotations

import csv
import re
from importlib import resources
from pathlib import Path

import pytest

from relay.endpoints import ip_of
from relay.lists.addresses import is_public
from relay.lists.tables import domestic, domestic_countries, well_known
from relay.state_path import default_state_path, lists_folder
from tests.lists_data import shared_file


def rows() -> list[dict[str, str]]:
    """The rows of the shipped table, with what stands in their comments as "sources"."""
    text = resources.files("relay.lists").joinpath("public.csv").read_text("utf-8")
    lines = [line.partition("#") for line in text.splitlines() if not line.startswith("#")]
    header, *rest = [facts.rstrip().split(",") for facts, _, _ in lines]
    sources = [comment.strip() for _, _, comment in lines[1:]]
    return [
        dict(zip(header, row, strict=True)) | {"sources": each}
        for row, each in zip(rest, sources, strict=True)
    ]


def test_well_known_has_every_address_once_and_looks_few_names_up() -> None:
    found = well_known()

    assert len({address.identity for address in found}) == len(found) > 250
    unpinned = {address.host for address in found if address.unresolved}
    assert unpinned == {
        row["doh_url"].split("/")[2]
        for row in rows()
        if not row["doh_addresses"] and row["doh_url"]
    }
    assert len(unpinned) == 7
    assert {address.scheme for address in found} == {"udp", "dot", "https"}
    for address in found:
        hosts = address.pins or (address.host,)
        assert address.unresolved or all(map(is_public, hosts)), address


def test_well_known_large_unfiltered_services_come_first() -> None:
    found = well_known()
    hosts = [address.host for address in found]

    assert [str(address) for address in found[:4]] == [
        "udp://1.1.1.1:53",
        "udp://1.0.0.1:53",
        "udp://8.8.8.8:53",
        "udp://8.8.4.4:53",
    ]
    unfiltered, filtering = (
        {host for row in rows() if (row["filtering"] in ("none", "unknown")) is kind
         for host in row["addresses"].split() if row["port_53"] == "yes"}
        for kind in (True, False)
    )  # fmt: skip
    assert max(hosts.index(host) for host in unfiltered) < min(map(hosts.index, filtering))


def test_well_known_asks_port_53_only_where_it_answers() -> None:
    plain = {address.host for address in well_known() if address.scheme == "udp"}

    assert "194.242.2.2" not in plain  # Mullvad: encrypted only
    assert "9.9.9.9" in plain
    assert any(a.host == "dns.mullvad.net" and a.pins[0] == "194.242.2.2" for a in well_known())


def test_well_known_has_the_facts_of_the_shared_table_and_no_others() -> None:
    facts = list(csv.DictReader(shared_file("global_resolvers.csv").decode().splitlines()))
    udp: set[str] = set()
    dot: dict[str, set[str]] = {}
    doh: dict[tuple[str, str], set[str]] = {}
    for row in facts:
        hosts = {*row["ipv4"].split(), *row["ipv6"].split()}
        if row["udp53"] == "yes":
            udp |= hosts
        if row["dot_host"]:
            dot[row["dot_host"]] = hosts
        if row["doh_url"]:
            literal = set(row["doh_ip_literal"].split())
            said = f"{row['doh_bootstrap_ips']} {row['doh_ip_literal_unchecked']}".split()
            server, path = row["doh_url"].removeprefix("https://").partition("/")[::2]
            doh[server, f"/{path}"] = literal | set(said)
            doh |= {(host, f"/{path}"): set() for host in literal}

    found = well_known()

    assert {a.host for a in found if a.scheme == "udp"} == udp
    pins = {a.host: set(a.pins) for a in found if a.scheme == "dot"}
    # Whoever is called by an address needs none.
    assert pins == {host: set() if ip_of(host) else hosts for host, hosts in dot.items()}
    assert {(a.host, a.path): set(a.pins) for a in found if a.scheme == "https"} == doh
    assert len(doh) > 70


def test_well_known_names_the_sources_of_every_row() -> None:
    for row in rows():
        assert re.fullmatch(r"[A-Z]+, \d(; unchecked for DoH: .+)?", row["sources"]), row
    facts = csv.DictReader(shared_file("global_resolvers.csv").decode().splitlines())
    by_service = {(row["operator"], row["service"]): row["sources"] for row in rows()}

    assert len(by_service) == len(rows()) == 68
    for row in facts:
        told = by_service.pop((row["operator"], row["variant"]))
        sources, _, unchecked = told.partition("; unchecked for DoH: ")
        assert sources == f"{row['sources']}, {row['min_sources_per_ip']}"
        assert unchecked == row["doh_ip_literal_unchecked"]
    assert by_service == {}


def test_domestic_every_country_of_the_list_has_resolvers_with_a_source() -> None:
    wanted = {"IR", "CN", "RU", "TR", "PK", "EG", "SA", "AE", "BY", "MM"}

    assert set(domestic_countries()) == wanted
    for country in wanted:
        found = domestic(country)
        assert len(found) >= 5
        assert domestic(country.lower()) == found
        assert all(a.scheme == "udp" and a.port == 53 and is_public(a.host) for a in found)
    assert domestic("") == domestic("XX") == domestic("Iran") == ()

    text = resources.files("relay.lists").joinpath("domestic.txt").read_text("utf-8")
    for line in text.splitlines():
        facts, _, source = line.partition("#")
        assert not facts.strip() or "; " in source, line


def test_default_state_path_follows_the_service_then_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert default_state_path({"STATE_DIRECTORY": "/a:/b"}) == Path("/a/state.json")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_state_path({"XDG_STATE_HOME": "/x"}) == Path("/var/lib/relay/state.json")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert default_state_path({"XDG_STATE_HOME": "/x"}) == Path("/x/relay/state.json")
    at_home = Path.home() / ".local/state/relay/state.json"
    assert default_state_path({"XDG_STATE_HOME": "relative"}) == default_state_path({}) == at_home
    assert lists_folder(Path("/x/relay/state.json")) == Path("/x/relay/lists")
