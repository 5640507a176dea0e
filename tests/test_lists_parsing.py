"""Lists in every form and with every fault that is about; no bytes raise."""

from __future__ import annotations

import base64
import ipaddress
import random
import tracemalloc
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.lists import parsing
from relay.lists.addresses import (
    ipv4_number,
    is_public,
    is_public_nowhere,
    is_public_number,
    unglue,
)
from relay.lists.parsing import MOST_ENTRIES, MOST_EXPANDED, WARNINGS_SHOWN, Parsed, read
from relay.lists.ranges import sample
from relay.resolver_address import parse
from tests.lists_data import shared_file


def found(text: str | bytes, *, own: bool = False, country: str = "") -> Parsed:
    return read(text.encode() if isinstance(text, str) else text, own=own, country=country)


def stamp(protocol: int, address: str, *fields: bytes) -> str:
    parts = [bytes([protocol]) + bytes(8), bytes([len(address)]) + address.encode(), *fields]
    return "sdns://" + base64.urlsafe_b64encode(b"".join(parts)).decode().rstrip("=")


def test_read_lines_of_every_kind_gives_canonical_resolvers() -> None:
    cases: dict[str | bytes, list[str]] = {
        "8.8.8.8": ["8.8.8.8"],
        " 8.8.8.8:53 \t\r\n8.8.8.8:5353\r\n": ["8.8.8.8", "8.8.8.8:5353"],
        "8.8.8.8\r8.8.4.4\r": ["8.8.8.8", "8.8.4.4"],
        b"\xef\xbb\xbf8.8.8.8\r\n8.8.4.4": ["8.8.8.8", "8.8.4.4"],
        "8.8.8.8\r\n1.1.1.1\r\n".encode("utf-16"): ["8.8.8.8", "1.1.1.1"],
        "# a\n; b\n// c\n\n8.8.8.8 # Google\n8.8.4.4# 9.9.9.9": ["8.8.8.8", "8.8.4.4"],
        "8.8.8.8 GOOGLE-NET US 1\n1.1.1.1 - 1\n9.9.9.9 A.B US 1": ["8.8.8.8", "1.1.1.1", "9.9.9.9"],
        "nameserver 8.8.8.8": ["8.8.8.8"],
        "server,8.8.8.8\n8.8.4.4": ["8.8.8.8", "8.8.4.4"],
        "[2001:4860:4860:0::8888]:53": ["udp://[2001:4860:4860::8888]:53"],
        "2620:FE::FE\n[2620:fe::9]:9953 Quad9": ["udp://[2620:fe::fe]:53", "udp://[2620:fe::9]:9953"],
        "tls://dns.google#8.8.8.8,8.8.4.4 # x": ["dot://dns.google:853#8.8.8.8,8.8.4.4"],
        "https://dns.google/dns-query": ["https://dns.google:443/dns-query"],
        "tcp://8.8.8.8,udp://8.8.4.4": ["tcp://8.8.8.8:53", "8.8.4.4"],
        # several on a line, and glued
        "8.8.8.8, 8.8.4.4;1.1.1.1|9.9.9.9": ["8.8.8.8", "8.8.4.4", "1.1.1.1", "9.9.9.9"],
        '"8.8.8.8","8.8.4.4"': ["8.8.8.8", "8.8.4.4"],
        "8.8.8.88.8.4.4": ["8.8.8.8", "8.8.4.4"],
        "8.8.8.8:538.8.4.4:53": ["8.8.8.8", "8.8.4.4"],
        "[2620:fe::fe]:53[2620:fe::9]:53": ["udp://[2620:fe::fe]:53", "udp://[2620:fe::9]:53"],
        "dot://8.8.8.8https://8.8.8.8/q": ["dot://8.8.8.8:853", "https://8.8.8.8:443/q"],
        # blocks
        "9.0.0.0/30:53\n9.0.1.4/31:5353": ["9.0.0.1", "9.0.0.2", "9.0.1.4:5353", "9.0.1.5:5353"],
        "9.0.0.7/30\n9.9.9.9/32": ["9.0.0.5", "9.0.0.6", "9.9.9.9"],
        "[2620:fe::/127]:53\n[2620:fe::8]/128:5353": [
            "udp://[2620:fe::]:53",
            "udp://[2620:fe::1]:53",
            "udp://[2620:fe::8]:5353",
        ],
        # from one to another
        "9.0.0.254-9.0.1.1": ["9.0.0.254", "9.0.0.255", "9.0.1.0", "9.0.1.1"],
        "9.0.0.1-9.0.0.2:5353 # two": ["9.0.0.1:5353", "9.0.0.2:5353"],
        "9.0.0.1-9.0.0.1, 8.8.8.8": ["9.0.0.1", "8.8.8.8"],
        # two that belong together
        "8.8.4.4 - 8.8.8.8 Google": ["8.8.4.4", "8.8.8.8"],
        stamp(0, "9.9.9.9:9953"): ["9.9.9.9:9953"],
    }  # fmt: skip
    for text, wanted in cases.items():
        result = found(text)
        assert list(result.resolvers) == wanted, text
        if wanted:
            assert result.bad == 0, result.warnings
        for each in result.resolvers:
            assert parsing.canonical(parse(each)) == each


def test_read_bad_lines_are_warnings_with_their_numbers_and_never_the_end() -> None:
    cases: dict[str | bytes, str] = {
        "garbage": 'no address in "garbage"',
        "8.8.8": 'no address in "8.8.8"',
        "999.8.8.8": '"999.8.8.8" is no address',
        "08.8.8.8": '"08.8.8.8" is no address',
        "8.8.8.8:0": '"8.8.8.8:0" is no address',
        "8.8.8.8:99999": '"8.8.8.8:99999" is no address',
        "8.8.8.8/33": '"8.8.8.8/33" is no block of addresses',
        "9.0.0.2-9.0.0.1": '"9.0.0.2-9.0.0.1" is no range of addresses',
        "9.0.0.1-9.0.0.999": '"9.0.0.1-9.0.0.999" is no range of addresses',
        "9.0.0.1-9.0.0.2:0": '"9.0.0.1-9.0.0.2:0" is no range of addresses',
        "9.0.0.1-9": 'no address in "9.0.0.1-9"',
        "1.1.1.112.8.8.8": '"1.1.1.112.8.8.8" is no address',  # two ways to read it
        "224.0.0.1": "224.0.0.1 is not the address of one host",
        "0.0.0.0": "0.0.0.0 is not the address of one host",
        "[2001:db8::zz]:53": "is not an IPv6 address",
        "quic://8.8.8.8": '"quic://8.8.8.8": "quic://" is not udp://',
        "https://dns.google": "the path of an https:// resolver is missing",
        "sdns://AAAA": "the stamp is cut off",
        "dns.example": 'no address in "dns.example"',
        b"\xff\xfe\xfa\x1b(31m": "no address in",
        b"\0\0\0\0": "holds NUL bytes",
        "x" * 100_000: 'no address in "xxxx',
        "https://" + "x" * 100_000: "longer than 1,024 characters",
        "1" * 100_000 + ".1.1.1": "is no address",
    }
    for text, reason in cases.items():
        line = text.encode() if isinstance(text, str) else text
        result = found(b"8.8.8.8\n# c\n" + line + b"\n8.8.4.4\n")
        assert list(result.resolvers) == ["8.8.8.8", "8.8.4.4"], text[:50]
        assert all(warning.startswith("line 3: ") for warning in result.warnings), result.warnings
        assert reason in result.warnings[0], (text[:50], result.warnings)
        assert result.warnings[0].isprintable()
        assert len(result.warnings[0]) < 400


def test_read_nul_bytes_spoil_nothing_else_on_their_line() -> None:
    result = found(b"8.8.8.8\0\0\n\0\0" + b"1.1.1.1\n")

    assert list(result.resolvers) == ["8.8.8.8", "1.1.1.1"]
    assert result.warnings == ["line 1: holds NUL bytes", "line 2: holds NUL bytes"]


def test_read_warnings_are_bounded_in_number() -> None:
    result = found("bad\n" * 1000 + "8.8.8.8")

    assert len(result.warnings) == WARNINGS_SHOWN + 1
    assert result.warnings[-1] == "980 more such lines"
    assert list(result.resolvers) == ["8.8.8.8"]
    assert found("bad\n" * (WARNINGS_SHOWN + 1)).warnings[-1] == "1 more such line"


def test_read_addresses_not_public_only_a_person_may_bring() -> None:
    text = (
        "10.1.2.3\n192.168.0.0/30:53\nfd00::53\ndns.corp\nfe80::1%eth0\ndot://a.b#10.0.0.1\n8.8.8.8"
    )

    fetched, own = found(text), found(text, own=True)

    assert list(fetched.resolvers) == ["8.8.8.8"]
    assert fetched.not_public == 6
    assert "line 1: 10.1.2.3 is not of the public internet, and left out" in fetched.warnings
    assert list(own.resolvers) == [
        "10.1.2.3",
        "192.168.0.1",
        "192.168.0.2",
        "udp://[fd00::53]:53",
        "dns.corp",
        "udp://[fe80::1%eth0]:53",
        "dot://a.b:853#10.0.0.1",
        "8.8.8.8",
    ]
    assert (own.not_public, own.bad) == (0, 0)


def test_read_duplicates_in_any_spelling_count_once() -> None:
    result = found(
        "8.8.8.8\n8.8.8.8:53\nudp://8.8.8.8\nUDP://8.8.8.8:53\n[::ffff:8.8.8.8]:53\n"
        + stamp(0, "8.8.8.8")
        + "\n2620:fe::fe\n[2620:00FE:0::fe]:53\n8.8.8.8/32:53"
    )

    assert list(result.resolvers) == ["8.8.8.8", "udp://[2620:fe::fe]:53"]
    assert result.duplicates == 7

    # The order of the addresses to connect to makes no other resolver; the first one is kept.
    pinned = found(
        "dot://dns.google#8.8.8.8,8.8.4.4\ndot://dns.google#8.8.4.4,8.8.8.8\ndot://dns.google#8.8.8.8"
    )
    assert list(pinned.resolvers) == [
        "dot://dns.google:853#8.8.8.8,8.8.4.4",
        "dot://dns.google:853#8.8.8.8",
    ]
    assert pinned.duplicates == 1


def test_read_blocks_are_taken_for_so_many_addresses_in_all() -> None:
    result = found(
        "9.0.0.0/17:53\n8.8.8.8\n10.0.0.0/15:53\n11.0.0.0/16:53\n[2620::/32]:53\n1.1.1.1"
    )

    assert MOST_EXPANDED - 2 < len(result.resolvers) <= MOST_EXPANDED + 2
    assert {"8.8.8.8", "1.1.1.1", "11.0.0.1"} <= result.resolvers.keys()
    # What is left out takes no room of what is not.
    assert result.warnings[0].startswith("line 3: 10.0.0.0/15:53 is not of the public internet")
    assert result.warnings[1] == (
        "line 4: 11.0.0.0/16:53: the first 32,770 of its 65,534 addresses are kept: the blocks of a"
        " list stand for 65,536 addresses at most (ranges of a country are kept whole with"
        " --country)"
    )
    assert result.warnings[2].startswith("line 5: [2620::/32]:53: left out: the blocks of a list ")


def test_read_range_has_the_bounds_of_a_block() -> None:
    result = found("9.0.0.0-9.255.255.255\n10.0.0.0-10.255.255.255\n11.0.0.0-11.0.0.9")

    assert len(result.resolvers) == MOST_EXPANDED
    assert list(result.resolvers)[-1] == "9.0.255.255"
    assert [warning.partition(" (")[0] for warning in result.warnings] == [
        "line 1: 9.0.0.0-9.255.255.255: the first 65,536 of its 16,777,216 addresses are kept: the"
        " blocks of a list stand for 65,536 addresses at most",
        "line 2: 10.0.0.0-10.255.255.255 is not of the public internet, and left out",
        "line 3: 11.0.0.0-11.0.0.9: left out: the blocks of a list stand for 65,536 addresses at"
        " most",
    ]
    assert list(found("127.10.2.0-127.10.2.5", own=True).resolvers) == [
        f"127.10.2.{last}" for last in range(6)
    ]
    assert not found("127.10.2.0-127.10.2.5").resolvers


def test_is_public_nowhere_agrees_with_every_address_of_the_block() -> None:
    for text, expected in (
        ("10.0.0.0/8", True),
        ("10.1.2.3/32", True),
        ("224.0.0.0/4", True),
        ("0.0.0.0/0", False),
        ("192.0.0.0/16", False),
        ("8.8.8.0/24", False),
        ("fd00::/8", True),
        ("fe80::/10", True),
        ("2001:db8::/48", True),
        ("2001::/16", False),
        ("::/0", False),
        ("2606:4700::/32", False),
    ):
        block = ipaddress.ip_network(text)
        ends = int(block.network_address), int(block.broadcast_address)
        assert is_public_nowhere(block.version, *ends) is expected, text
    last = int(IPv4Address("10.255.255.255"))
    assert is_public_nowhere(4, last - 5, last)
    assert not is_public_nowhere(4, last - 5, last + 1)


def test_read_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MOST_ENTRIES", 1000)

    result = found("".join(f"9.9.{i // 200}.{i % 200}\n" for i in range(1500)))
    ranges = found("".join(f"9.{i // 200}.{i % 200}.0/25\n" for i in range(1500)), country="US")

    assert len(result.resolvers) == len(ranges.ranges["US"]) == 1000
    assert result.warnings[0] == (
        "line 1001: a list has at most 1,000 resolvers: 9.9.5.0 is left out"
    )
    assert ranges.bad == 500
    assert MOST_ENTRIES == 200_000


def test_read_csv_by_the_names_of_its_columns() -> None:
    current = (
        "ip_address,name,as_number,as_org,country_code,city,version,error,dnssec,reliability\n"
        '8.8.8.8,dns.google.,15169,"GOOGLE, Inc",US,"Mountain ""View""",9.9.9.9,,true,1.00\n'
        '1.0.0.1,,13335,"never closed,AU,,,,true,1\n'
        "2620:fe::fe,,19281,QUAD9,US,,,,true,1\n"
        "nonsense,,,,US,,,,,\n,,,,,,,,,\n"
        "9.9.9.9,,19281,QUAD9,us,,,,true,1\n"
    )
    result = found(current)
    assert list(result.resolvers) == ["8.8.8.8", "1.0.0.1", "udp://[2620:fe::fe]:53", "9.9.9.9"]
    assert result.warnings == [
        'line 5: "nonsense" is no address',
        'line 6: no address in ",,,,,,,,,"',
    ]
    of_one_country = found(current, country="US")
    assert list(of_one_country.resolvers) == ["8.8.8.8", "udp://[2620:fe::fe]:53", "9.9.9.9"]

    other_order = "\ufeffName;Country;Port;IP\r\ng;US;;8.8.8.8\r\nq;CH;5353;2620:fe::fe\r\n"
    assert list(found(other_order).resolvers) == ["8.8.8.8", "udp://[2620:fe::fe]:5353"]


def test_read_dnscrypt_markdown_takes_the_stamps_and_not_the_prose() -> None:
    doh = stamp(2, "9.9.9.9", b"\0", b"\x0ddns.quad9.net", b"\x0a/dns-query")
    text = (
        "# public-resolvers\n\nAn extensive list, see 1.2.3.4.\n--\n\n## plain\nAsks 4.3.2.1\n"
        f"{stamp(0, '8.8.8.8')}\n\n## doh\nhttps://elsewhere.example/page\n{doh}\n\n"
        f"## dnscrypt\n{stamp(1, '1.2.3.4', b'x')}\nsdns://AQ\n## bad\nsdns://!!\n"
    )

    result = found(text)

    assert list(result.resolvers) == ["8.8.8.8", "https://dns.quad9.net:443/dns-query#9.9.9.9"]
    assert result.unspoken == 2
    assert result.warnings == ['line 18: "sdns://!!": the stamp is not base64url']


REGISTRY = """2|ripencc|1786147199|7|19830705|20260807|+0200
ripencc|*|ipv4|*|4|summary
# comment
ripencc|IR|ipv4|5.22.0.0|768|20120402|allocated|uuid
ripencc|IR|ipv4|5.22.3.0|256|20120402|assigned|uuid
ripencc|FR|ipv4|2.0.0.0|1048576|20100712|allocated|uuid
ripencc|IR|ipv6|2001:db8:5::/x|48|20100712|allocated|uuid
ripencc|IR|ipv6|2a01:5ec0::|29|20100712|allocated|uuid
ripencc|IR|asn|6736|1|19961010|allocated|uuid
ripencc||ipv4|5.100.0.0|1024||available|
ripencc|ZZ|ipv4|5.101.0.0|1024||reserved|
ripencc|IR|ipv4|255.255.255.0|512|20120402|allocated|uuid
ripencc|IR|ipv4|5.22.0.0|0|20120402|allocated|uuid
garbage
"""


def test_read_registry_file_gives_the_ranges_of_countries() -> None:
    everything, iran = found(REGISTRY), found(REGISTRY, country="IR")

    start = int(IPv4Address("5.22.0.0"))
    assert iran.ranges["IR"].ipv4 == [(start, start + 1023)]  # counts, and put together
    assert [last - first + 1 for first, last in iran.ranges["IR"].ipv6] == [1 << 99]
    assert set(iran.ranges) == {"IR"}
    assert set(everything.ranges) == {"IR", "FR"}
    assert everything.ranges["FR"].ipv4_addresses == 1_048_576
    assert [warning.split(":")[0] for warning in iran.warnings] == [
        "line 7",
        "line 12",
        "line 13",
        "line 14",
    ]
    assert not iran.resolvers


def test_read_cidr_list_of_a_named_country_gives_its_ranges() -> None:
    text = "# IR\n5.22.0.0/17\n5.22.128.0/17\n10.0.0.0/8\n2a01:5ec0::/29\n9.9.9.9\n9.0.0.0/31:53"

    result = found(text, country="IR")

    start = int(IPv4Address("5.22.0.0"))
    assert result.ranges["IR"].ipv4 == [(start, start + 65_535)]
    assert len(result.ranges["IR"].ipv6) == 1
    assert list(result.resolvers) == ["9.9.9.9", "9.0.0.0", "9.0.0.1"]
    own = found(text, own=True, country="IR").ranges["IR"]
    assert (10 << 24, (11 << 24) - 1) in own.ipv4


def test_read_list_of_a_named_country_gives_its_ranges_from_one_to_another() -> None:
    # The second as the registries' databases write them.
    text = (
        "5.22.0.0-5.22.127.255\n5.22.128.0 - 5.22.255.255\n10.0.0.0-10.0.0.9\n"
        "8.8.8.8 - 8.8.4.4\n9.0.0.0-9.0.0.1:53"
    )

    result = found(text, country="IR")

    start = int(IPv4Address("5.22.0.0"))
    assert result.ranges["IR"].ipv4 == [(start, start + 65_535)]
    assert list(result.resolvers) == ["8.8.8.8", "8.8.4.4", "9.0.0.0", "9.0.0.1"]
    assert result.warnings == [
        "line 3: 10.0.0.0-10.0.0.9 is not of the public internet, and left out"
    ]
    own = found(text, own=True, country="IR").ranges["IR"]
    assert (10 << 24, (10 << 24) + 9) in own.ipv4


def test_read_list_that_names_no_country_says_that_a_country_changes_nothing() -> None:
    said = "names no country and no ranges, so IR changes nothing: all its resolvers are kept"
    for text, country, warnings in (
        ("8.8.8.8\n1.1.1.1", "IR", [said]),
        ("8.8.8.8\n9.0.0.0/31:53", "IR", [said]),
        ("ip,port\n8.8.8.8,53", "IR", [said]),
        (stamp(0, "9.9.9.9"), "IR", [said]),
        ("8.8.8.8", "", []),
        ("8.8.8.8\n5.22.0.0/24", "IR", []),
        ("8.8.8.8\n5.22.0.0-5.22.0.9", "IR", []),
        ("ip,country\n8.8.8.8,IR", "IR", []),
        ("ip,country\n8.8.8.8,US", "IR", []),
        (REGISTRY.partition("ripencc|IR|ipv6")[0], "IR", []),
    ):
        assert found(text, country=country).warnings == warnings, text


@pytest.mark.parametrize("name", ["public_list_plain.txt", "public_list_extended.txt"])
def test_read_published_list_is_complete(name: str) -> None:
    result = read(shared_file(name), own=False)

    assert (len(result.resolvers), result.bad, result.duplicates) == (12_939, 0, 0)


def test_unglue_only_where_there_is_one_way() -> None:
    assert unglue("8.8.8.88.8.4.4") == [("8.8.8.8", 53), ("8.8.4.4", 53)]
    assert unglue("1.2.3.255200.3.4.5") == [("1.2.3.255", 53), ("200.3.4.5", 53)]
    assert unglue("8.8.8.8:53538.8.4.4:5353") == []
    assert unglue("8.8.8.8:5300" + "9.9.9.9") == [("8.8.8.8", 5300), ("9.9.9.9", 53)]
    assert unglue("1.1.1.112.8.8.8") == unglue("8.8.8.8") == unglue("1" * 300) == []
    assert unglue("8.8.8.8" * 36) != []


def test_sample_draws_different_addresses_of_the_ranges_only() -> None:
    start = int(IPv4Address("5.22.0.0"))
    blocks = [(start, start + 255), (start + 1024, start + 1024 + 300)]

    drawn = sample(blocks, 100, random.Random(1))

    assert len(set(drawn)) == 100
    numbers = [ipv4_number(each) or 0 for each in drawn]
    assert all(any(first <= number <= last for first, last in blocks) for number in numbers)
    assert all(number & 255 not in (0, 255) for number in numbers)
    assert any(number > start + 255 for number in numbers)
    assert len(sample(blocks, 10_000, random.Random(1))) == 254 + 254 + 44
    assert sample([], 5, random.Random(1)) == sample(blocks, 0, random.Random(1)) == []
    assert len(sample([(0, (1 << 32) - 1)], 50, random.Random(1))) == 50


def test_is_public_number_agrees_with_the_blocks_that_no_release_of_python_disputes() -> None:
    for text, wanted in {
        "9.255.255.255": True, "10.0.0.0": False, "10.255.255.255": False, "11.0.0.0": True,
        "100.63.255.255": True, "100.64.0.0": False, "100.128.0.0": True, "127.0.0.1": False,
        "169.254.1.1": False, "172.15.255.255": True, "172.31.255.255": False, "172.32.0.0": True,
        "192.0.2.1": False, "192.167.255.255": True, "192.169.0.0": True, "198.19.0.1": False,
        "198.51.100.7": False, "203.0.113.7": False, "223.255.255.255": True, "224.0.0.1": False,
        "255.255.255.255": False, "0.1.2.3": False, "1.0.0.0": True,
        "2620:fe::fe": True, "fd00::1": False, "2001:db8::1": False, "::1": False, "2002::1": False,
        "64:ff9b::1": False, "name": False,
    }.items():  # fmt: skip
        assert is_public(text) is wanted, text


@given(st.integers(0, (1 << 32) - 1))
def test_is_public_number_takes_nothing_that_is_private(number: int) -> None:
    if IPv4Address(number).is_private or IPv4Address(number).is_multicast:
        relay_disputes = number >> 8 == int(IPv4Address("192.0.0.0")) >> 8
        assert not is_public_number(number) or relay_disputes


TOKENS = st.sampled_from(
    [b"8.8.8.8", b"1.1.1.1:53", b"[2620:fe::fe]:53", b"9.0.0.0/30:53", b"\0", b"\r", b"\n", b"|",
     b",", b'"', b" ", b"-", b" - ", b"#", b"sdns://", b"https://", b"## x", b"ip_address,port",
     b"\xef\xbb\xbf",
     b"\xff\xfe", b"2|apnic|20260807|1|", b"apnic|CN|ipv4|1.0.1.0|256|2011|allocated", b"/", b":",
     b"apnic|CN|ipv6|2001:250::|35|2000|allocated", b"\x80", b"[", b"]", b"%", b"0", b"255", b"."]
)  # fmt: skip


@given(
    st.one_of(st.binary(max_size=400), st.lists(TOKENS, max_size=40).map(b"".join)),
    st.booleans(),
    st.sampled_from(["", "CN"]),
)
def test_read_any_bytes_gives_usable_addresses_and_never_raises(
    data: bytes, own: bool, country: str
) -> None:
    result = read(data, own=own, country=country)

    for text in result.resolvers:
        address = parse(text)
        assert not address.is_auto
        if not own and ":" not in address.host and ipv4_number(address.host) is not None:
            assert ipaddress.ip_address(address.host).is_global
    assert len(result.warnings) <= WARNINGS_SHOWN + 1
    assert all(warning.isprintable() for warning in result.warnings)
    for ranges in result.ranges.values():
        for blocks in (ranges.ipv4, ranges.ipv6):
            assert all(first <= last for first, last in blocks)
            assert blocks == sorted(blocks)


@given(st.lists(st.ip_addresses(v=4).filter(lambda ip: ip.is_global and int(ip) >> 28 < 14)))
def test_read_good_addresses_all_come_back(hosts: list[IPv4Address]) -> None:
    wanted = list(dict.fromkeys(str(ip) for ip in hosts if is_public(str(ip))))

    for glue in ("\n", ", ", "\r\n"):
        assert list(found(glue.join(wanted)).resolvers) == wanted


def test_read_files_put_together_keep_the_lines_behind_their_marks() -> None:
    kept = read(b"\xef\xbb\xbf8.8.8.8\r\n\xef\xbb\xbf9.9.9.9\r1.1.1.1", own=True)
    assert list(kept.resolvers) == ["8.8.8.8", "9.9.9.9", "1.1.1.1"]
    assert not kept.warnings


def test_read_lines_across_pieces_are_whole_and_their_numbers_right() -> None:
    lines = [f"8.8.{at // 250}.{at % 250 + 1}" for at in range(20_000)]
    data = "\n".join([*lines, "none of it"]).encode()
    kept = read(data, own=True)
    assert list(kept.resolvers) == lines
    assert kept.warnings == ['line 20001: no address in "none of it"']


def test_read_of_many_empty_lines_takes_little_memory() -> None:
    data = b"8.8.8.8\n" + b"\n" * (1 << 18)
    tracemalloc.start()
    try:
        kept = read(data, own=True)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert list(kept.resolvers) == ["8.8.8.8"]
    assert most < 1 << 20  # a list of the lines alone would take two


def test_read_rows_far_too_long_cost_no_cells() -> None:
    header = b"ip_address,name\n"
    kept = read(header + b"9.9.9.9," + b"x," * 100_000 + b"\n8.8.8.8,b\n", own=True)
    assert list(kept.resolvers) == ["8.8.8.8"]
    assert len(kept.warnings) == 1
