"""The tables that are shipped."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path

import pytest

from relay.lists.addresses import is_public
from relay.lists.tables import domestic, domestic_countries, well_known
from relay.resolver_address import ResolverAddress
from relay.state_path import default_state_path, lists_folder
from tests.lists_data import shared_file


def test_well_known_needs_no_lookup_and_has_every_address_once() -> None:
    found = well_known()

    assert len({address.identity for address in found}) == len(found) > 250
    assert [str(address) for address in found if address.unresolved] == []
    assert {address.scheme for address in found} == {"udp", "dot", "https"}
    for address in found:
        hosts = address.pins or (address.host,)
        assert all(map(is_public, hosts)), address


def test_well_known_large_unfiltered_services_come_first() -> None:
    found = well_known()
    hosts = [address.host for address in found]

    assert [str(address) for address in found[:4]] == [
        "udp://1.1.1.1:53",
        "udp://1.0.0.1:53",
        "udp://8.8.8.8:53",
        "udp://8.8.4.4:53",
    ]
    text = resources.files("relay.lists").joinpath("public.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    unfiltered, filtering = (
        {host for row in rows if (row["filtering"] in ("none", "unknown")) is kind
         for host in row["addresses"].split() if row["port_53"] == "yes"}
        for kind in (True, False)
    )  # fmt: skip
    assert max(hosts.index(host) for host in unfiltered) < min(map(hosts.index, filtering))


def test_well_known_asks_port_53_only_where_it_answers() -> None:
    plain = {address.host for address in well_known() if address.scheme == "udp"}

    assert "194.242.2.2" not in plain  # Mullvad: encrypted only
    assert "9.9.9.9" in plain
    assert any(a.host == "dns.mullvad.net" and a.pins[0] == "194.242.2.2" for a in well_known())


def test_well_known_has_the_facts_of_the_shared_table() -> None:
    rows = csv.DictReader(shared_file("global_resolvers.csv").decode().splitlines())
    found = well_known()
    by_host: dict[tuple[str, str], ResolverAddress] = {(a.scheme, a.host): a for a in found}

    for row in rows:
        hosts = f"{row['ipv4']} {row['ipv6']}".split()
        for host in hosts:
            assert (("udp", host) in by_host) is (row["udp53"] == "yes"), host
        if row["dot_host"] and row["dot_host"] not in hosts:
            assert set(by_host["dot", row["dot_host"]].pins) == set(hosts)


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
