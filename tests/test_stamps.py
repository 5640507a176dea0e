"""DNS stamps: those of public lists read as the addresses they stand for; hostile ones are told."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay import stamps
from relay.config_errors import AddressError
from relay.resolver_address import ResolverAddress, parse

CLOUDFLARE = "sdns://AgcAAAAAAAAABzEuMC4wLjEAEmRucy5jbG91ZGZsYXJlLmNvbQovZG5zLXF1ZXJ5"
"""As published in the lists of dnscrypt-proxy."""


def lp(text: str | bytes) -> bytes:
    field = text.encode() if isinstance(text, str) else text
    return bytes([len(field)]) + field


def items(*fields: bytes) -> bytes:
    last = len(fields) - 1
    return b"".join(
        bytes([len(field) | (0x80 if index < last else 0)]) + field
        for index, field in enumerate(fields)
    )


def sdns(protocol: int, *fields: bytes, properties: int = 0) -> str:
    data = bytes([protocol]) + properties.to_bytes(8, "little") + b"".join(fields)
    return "sdns://" + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


NO_HASH = items(b"")
HASH = b"\x07" * 32


@pytest.mark.parametrize(
    ("stamp", "canonical"),
    [
        (CLOUDFLARE, "https://dns.cloudflare.com:443/dns-query#1.0.0.1"),
        (sdns(0x00, lp("8.8.8.8")), "udp://8.8.8.8:53"),
        (sdns(0x00, lp("[2001:DB8::1]:5353"), properties=7), "udp://[2001:db8::1]:5353"),
        (
            sdns(0x02, lp(""), NO_HASH, lp("Dns.Google"), lp("/dns-query")),
            "https://dns.google:443/dns-query",
        ),
        (
            sdns(0x02, lp("127.0.0.1:8443"), NO_HASH, lp("dns.test"), lp("/q")),
            "https://dns.test:8443/q#127.0.0.1",
        ),
        (
            sdns(0x02, lp(":8443"), NO_HASH, lp("dns.test"), lp("")),
            "https://dns.test:8443/dns-query",
        ),
        (
            sdns(0x02, lp("1.1.1.1"), NO_HASH, lp("1.1.1.1"), lp("/dns-query")),
            "https://1.1.1.1:443/dns-query",
        ),
        (
            sdns(0x03, lp("9.9.9.9"), NO_HASH, lp("dns.quad9.net")),
            "dot://dns.quad9.net:853#9.9.9.9",
        ),
        (
            sdns(
                0x03, lp("[2620:fe::fe]:8853"), NO_HASH, lp("dns.quad9.net:8853"), items(b"a", b"b")
            ),
            "dot://dns.quad9.net:8853#2620:fe::fe",
        ),
    ],
)
def test_parse_stamp_reads_as_the_address_it_stands_for(stamp: str, canonical: str) -> None:
    address = parse(stamp)

    assert str(address) == canonical
    assert parse(canonical) == address
    assert parse(stamp + "==") == address
    assert address.remark == ""


def test_parse_stamp_with_hashes_says_that_they_are_not_checked() -> None:
    hashed = sdns(0x03, lp("9.9.9.9"), items(HASH, HASH), lp("dns.quad9.net"))

    address = parse(hashed)

    assert stamps.decode(hashed).hashes == 2
    assert address == parse("dot://dns.quad9.net#9.9.9.9")
    assert address.remark == "the stamp pins certificates; these are verified by name only"


@pytest.mark.parametrize(
    ("stamp", "message"),
    [
        ("sdns://", "there is nothing after sdns://"),
        ("sdns://====", "there is nothing after sdns://"),
        ("sdns://A", "the stamp is not base64url"),
        ("sdns://AgcA*AAA", "the stamp is not base64url"),
        ("sdns://Agc\u00e9", "the stamp is not base64url"),
        (CLOUDFLARE[:-8], "the stamp is cut off"),
        ("sdns://AgcAAA", "the stamp is cut off"),
        (
            sdns(0x01, lp("1.1.1.1")),
            "is a stamp of DNSCrypt; the relay takes those of plain DNS, DoT",
        ),
        (sdns(0x04, lp("1.1.1.1")), "is a stamp of DNS over QUIC"),
        (sdns(0x05), "is a stamp of Oblivious DoH"),
        (sdns(0x81), "is a stamp of a DNSCrypt relay"),
        (sdns(0x85), "is a stamp of an Oblivious DoH relay"),
        (sdns(0x77), "is a stamp of the unknown protocol 0x77"),
        (sdns(0x00, lp("")), "the stamp has no address"),
        (sdns(0x00, lp("dns.google")), "the stamp has a name where an address belongs"),
        (sdns(0x00, lp("0.0.0.0")), "0.0.0.0 is not the address of one host"),
        (sdns(0x00, lp("1.1.1.1:0")), 'port "0" is not a number'),
        (sdns(0x00, lp("1.1.1.1"), b"x"), "the stamp goes on for 1 bytes after its end"),
        (sdns(0x00, lp(b"\xff")), "a text in the stamp is not ASCII"),
        (sdns(0x00, lp("1.1.1.1\n")), "a text in the stamp holds a control character"),
        (
            sdns(0x03, lp("1.1.1.1"), items(b"x"), lp("a.b")),
            "a hash in the stamp is not of 32 bytes",
        ),
        (sdns(0x03, lp("1.1.1.1"), NO_HASH, lp("")), "the host is missing"),
        (sdns(0x03, lp("1.1.1.1"), NO_HASH, lp("a/b")), "has a character that no name has"),
        (sdns(0x03, lp("1.1.1.1"), NO_HASH, lp("8.8.8.8")), "two addresses, 1.1.1.1 and 8.8.8.8"),
        (sdns(0x03, lp("1.1.1.1:54"), NO_HASH, lp("a.b:55")), "names two ports, 54 and 55"),
        (sdns(0x02, lp(""), NO_HASH, lp("a.b"), lp("q")), "the path holds a character"),
        (sdns(0x02, lp(""), NO_HASH, lp("a.b"), lp("/q#x")), "the path holds a character"),
    ],
)
def test_parse_wrong_stamp_says_why(stamp: str, message: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse(stamp)

    assert message in str(caught.value)
    assert str(caught.value).isprintable()


@given(st.binary(max_size=120))
@example(b"\x02" + bytes(8) + b"\x00" + b"\x80" * 40)
@example(b"\x03" + bytes(8) + b"\x00\x00\x01a\x80")
def test_parse_stamp_of_any_bytes_gives_an_address_or_its_own_error(data: bytes) -> None:
    text = "sdns://" + base64.urlsafe_b64encode(data).decode()
    try:
        found: ResolverAddress | str = parse(text)
    except AddressError as error:
        found = str(error)
    if isinstance(found, str):
        assert found.isprintable()
    else:
        assert parse(str(found)) == found


FIELD = st.sampled_from(
    ["", "1.1.1.1", "::1", "[::1]:853", ":853", "a.b", "a.b:1", "/", "/q", "#", "%", "fe80::1%eth0"]
) | st.text(max_size=20)


@given(
    st.sampled_from([0, 2, 3]), FIELD, FIELD, FIELD, st.lists(st.binary(max_size=40), min_size=1)
)
def test_parse_stamp_of_any_fields_gives_an_address_or_its_own_error(
    protocol: int, address: str, name: str, path: str, hashes: list[bytes]
) -> None:
    fields = [lp(address)]
    if protocol:
        fields += [items(*hashes), lp(name)]
    if protocol == 2:
        fields.append(lp(path))
    try:
        found = parse(sdns(protocol, *fields))
    except AddressError:
        return
    assert parse(str(found)) == found


@given(st.text(max_size=60))
def test_decode_any_text_gives_a_stamp_or_its_own_error(text: str) -> None:
    try:
        stamp = stamps.decode("sdns://" + text)
    except AddressError:
        return
    assert stamp.scheme in ("udp", "dot", "https")
