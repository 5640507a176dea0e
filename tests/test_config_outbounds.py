"""The configuration of a tunnel core, taken as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.config import Flags, Loaded, load
from relay.config_errors import ConfigProblems
from relay.endpoints import ListenAddress
from relay.resolver_address import AUTO, parse

TWO = """
{
  "log": {"level": "warn"},
  "outbounds": [
    {
      "type": "dnstt",
      "tag": "dnstt-out",
      "domain": "t.example.com",
      "pubkey": "00ff",
      "udp-workers": 300,
      "record-type": "TXT",
      "resolvers": ["auto", "8.8.8.8:53"],
      "smart_pool": { "enabled": true, "load_balance": "lowest_latency" }
    },
    {
      "type": "masterdns",
      "tag": "masterdns-out",
      "domains": ["v.example.com", "w.example.com"],
      "resolvers": ["auto"],
      "key": "secret",
      "packet_duplication": 4,
      "pretest_domain": "probe.example",
      "smart_pool": true
    },
    { "type": "vless", "tag": "proxy", "server": "192.0.2.1" },
    { "type": "soar", "tag": "soar-out", "smart_pool": { "load_balance": "weighted" } },
    { "type": "soar", "tag": "plain", "resolvers": ["nonsense!"] },
    "garbage",
  ],
}
"""


def loaded(tmp_path: Path, content: object, flags: Flags | None = None) -> Loaded:
    path = tmp_path / "core.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load(path, flags)


def problems_of(tmp_path: Path, content: object) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        loaded(tmp_path, content)
    return [line.removeprefix(f"{tmp_path}/core.json:") for line in str(caught.value).splitlines()]


def outbound(**fields: object) -> dict[str, object]:
    return {"outbounds": [{"type": "dnstt", "tag": "a", "smart_pool": True, **fields}]}


def test_outbounds_tunnels_whose_pool_is_on_become_pools(tmp_path: Path) -> None:
    first, second = loaded(tmp_path, TWO).config.pools

    assert (first.name, first.tunnel, first.domain) == ("dnstt-out", "dnstt", "t.example.com")
    assert first.listen == ListenAddress("127.0.0.1", 0)
    assert first.resolvers == (AUTO, parse("8.8.8.8"))
    assert first.record_type == "TXT"
    assert first.settings.load_balance == "lowest_latency"
    assert first.settings.duplicate == 2
    assert (second.name, second.tunnel) == ("masterdns-out", "masterdns")
    assert second.domains == ("v.example.com", "w.example.com")
    assert second.settings.duplicate == 4
    assert second.settings.probe_name == "probe.example"


def test_outbounds_what_is_not_used_gets_one_note_each(tmp_path: Path) -> None:
    notes = [note.removeprefix(f"{tmp_path}/core.json: ") for note in loaded(tmp_path, TWO).notes]

    assert notes == [
        "outbounds[0] (dnstt-out): not used: pubkey, udp-workers",
        "outbounds[1] (masterdns-out): not used: key",
        "outbounds[3] (soar-out): smart_pool is off; not run",
        "outbounds[4] (plain): smart_pool is off; not run",
        "2 other outbounds ignored",
    ]


def test_outbounds_one_other_is_one(tmp_path: Path) -> None:
    found = loaded(tmp_path, {"outbounds": [*outbound()["outbounds"], {"type": "socks"}]})

    assert found.notes[-1].endswith(": 1 other outbound ignored")


def test_outbounds_relays_own_settings_beside_them_are_left_out_with_a_note(
    tmp_path: Path,
) -> None:
    found = loaded(tmp_path, {"workers": 7, "log_level": "x", **outbound()}, Flags(workers=1))

    assert (found.config.workers, found.config.log_level) == (1, "info")
    assert [note.split(": ", 1)[1] for note in found.notes] == [
        "workers: ignored beside outbounds; use --workers",
        "log_level: ignored beside outbounds; use --log-level",
    ]


def test_outbounds_without_tag_is_named_by_type_and_place(tmp_path: Path) -> None:
    (pool,) = loaded(tmp_path, outbound(tag=None)).config.pools

    assert pool.name == "dnstt-0"


@pytest.mark.parametrize("empty", [0, None])
def test_outbounds_unset_duplication_leaves_the_profile(tmp_path: Path, empty: object) -> None:
    (pool,) = loaded(tmp_path, outbound(type="masterdns", packet_duplication=empty)).config.pools

    assert pool.settings.duplicate == 3


def test_outbounds_single_text_stands_for_a_list(tmp_path: Path) -> None:
    (pool,) = loaded(tmp_path, outbound(resolvers="8.8.8.8", domain=["a.b", "c.d"])).config.pools

    assert pool.resolvers == (parse("8.8.8.8"),)
    assert pool.domains == ("a.b", "c.d")


def test_outbounds_toml_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "core.toml"
    path.write_text('[[outbounds]]\ntype = "soar"\ntag = "s"\nsmart_pool = true\n')

    assert [pool.name for pool in load(path).config.pools] == ["s"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"outbounds": {}}, "1:2: outbounds: expected a list, not an object"),
        ({"outbounds": []}, "no outbound of type dnstt, masterdns or soar has smart_pool on"),
        (outbound(smart_pool=False), "has smart_pool on"),
        ({"pools": [], **outbound()}, 'pools: a file has either "pools" or "outbounds", not both'),
        (
            outbound(smart_pool={"enabled": True, "dedline": "5s"}),
            'outbounds[0].smart_pool.dedline: unknown field; did you mean "deadline"?',
        ),
        (outbound(smart_pool="on"), 'smart_pool: expected true, false or an object, not "on"'),
        (outbound(smart_pool={"enabled": 1}), "enabled: expected true or false, not 1"),
        (outbound(resolvers=["x y"]), 'outbounds[0].resolvers[0]: "x y"'),
        (outbound(resolvers=["dot://1.1.1.1:x"]), 'port "x" is not a number'),
        (outbound(domain=7), "outbounds[0].domain: expected a list, not 7"),
        (outbound(packet_duplication=99), "expected a whole number from 1 to 16, not 99"),
        (
            {"outbounds": [*outbound()["outbounds"], *outbound()["outbounds"]]},  # type: ignore[misc]
            'outbounds[1].tag: "a" is already the name of outbounds[0]',
        ),
    ],
)
def test_outbounds_mistake_is_told_with_its_place(
    tmp_path: Path, content: object, message: str
) -> None:
    (found,) = problems_of(tmp_path, content)

    assert message in found


def test_outbounds_mistakes_of_several_are_told_together(tmp_path: Path) -> None:
    content = """{ "outbounds": [
  { "type": "soar", "tag": "a", "smart_pool": { "enabled": true, "down_after": "8" } },
  { "type": "soar", "tag": "b", "smart_pool": true, "resolvers": ["8.8.8"] }
] }"""

    assert [line.split(": ")[:2] for line in problems_of(tmp_path, content)] == [
        ["2:66", "outbounds[0].smart_pool.down_after"],
        ["3:67", "outbounds[1].resolvers[0]"],
    ]


def test_outbounds_notes_hold_no_control_character(tmp_path: Path) -> None:
    found = loaded(tmp_path, outbound(tag="a\u001b[31m\n", **{"k\u0007": 1}))

    assert all(note.isprintable() for note in found.notes)
