"""The messages of the checks: what they are made of, and what is read from any bytes."""

from __future__ import annotations

import dns.flags
import dns.message
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.discovery.check_messages import (
    MAX_NAME_LENGTH,
    TYPE_A,
    TYPE_TXT,
    filled,
    is_public,
    is_reply,
    keeps_case,
    mixed_case,
    name_wire,
    question,
    read,
    texts,
)
from relay.discovery.check_tunnels import tunnel_check
from shared.own_question import OwnQuestion
from tests.rig.wire import opt_wire, record_wire, reply_wire

ASKED = question(name_wire("Www.Example.com"), TYPE_A)


def test_question_in_every_form_is_what_a_parser_makes_of_it() -> None:
    plain = dns.message.from_wire(ASKED)
    assert plain.question[0].to_text() == "Www.Example.com. IN A"
    assert plain.edns < 0
    assert plain.flags == dns.flags.RD
    large = dns.message.from_wire(question(name_wire("."), 48, 4096, dnssec=True))
    assert large.question[0].to_text() == ". IN DNSKEY"
    assert large.payload == 4096
    assert large.ednsflags == dns.flags.DO


@pytest.mark.parametrize("length", [253, 252, 189, 130, 64, 40])
def test_filled_name_has_exactly_the_length_asked_for(length: int) -> None:
    suffix = name_wire("t.example.com")
    name = filled(suffix, length)
    written = dns.message.from_wire(question(name, TYPE_TXT)).question[0].name
    assert len(written.to_text(omit_final_dot=True)) == length
    assert len(name) == length + 2
    assert name.endswith(suffix)


def test_name_that_cannot_be_one_is_an_error() -> None:
    for name in ("a..b", "a" * 64 + ".com", ".".join(["a" * 63] * 4), "ä.example"):
        with pytest.raises(ValueError, match=r"label|octets|ordinal"):
            name_wire(name)
    assert len(name_wire(".".join(["a" * 63] * 3 + ["a" * 61]))) == MAX_NAME_LENGTH + 2


def test_mixed_case_has_letters_of_both_kinds() -> None:
    for _ in range(200):
        mixed = mixed_case(name_wire("a.bc"))
        assert mixed.lower() == name_wire("a.bc")
        assert mixed not in (mixed.lower(), mixed.upper())


def test_read_gives_code_answers_and_edns() -> None:
    records = [record_wire(5, b"\x01x\0"), record_wire(TYPE_A, bytes((1, 2, 3, 4)))]
    reply = read(reply_wire(ASKED, records, opt=opt_wire()))
    assert reply.rcode == 0
    assert reply.edns
    assert reply.whole
    assert reply.data(TYPE_A) == [bytes((1, 2, 3, 4))]
    assert read(reply_wire(ASKED, rcode=5)).code == "REFUSED"
    assert read(reply_wire(ASKED, flags=0x8380)).truncated


def test_read_of_a_denial_names_the_zone_that_denies() -> None:
    wire = bytearray(reply_wire(ASKED, [record_wire(6, bytes(22))], rcode=3))
    wire[6:8], wire[8:10] = b"\0\0", b"\0\1"  # it stands in the authority section
    at = wire.index(b"\xc0\x0c")
    wire[at : at + 2] = b"\xc0\x10"  # example.com in the question
    assert read(bytes(wire)).soa == name_wire("example.com")
    wire[at : at + 2] = b"\xc0" + bytes((at,))  # a pointer to itself
    assert read(bytes(wire)).soa is None


@given(st.binary(max_size=600))
def test_no_bytes_make_reading_raise(data: bytes) -> None:
    own = OwnQuestion.new()
    tunnels = [
        tunnel_check(kind, "t.example.com", record)
        for kind in ("dnstt", "dns2tcp", "iodine", "generic")
        for record in (None, "NULL", "KEY")
    ]
    for wire in (data, ASKED[:12] + data, reply_wire(ASKED)[:4] + b"\0\1\0\4\0\4\0\4" + data):
        reply = read(wire)
        assert len(reply.answers) <= 1_000
        assert isinstance(reply.code, str)
        is_reply(ASKED, wire)
        own.is_proof(wire)
        for tunnel in tunnels:
            tunnel.flaw(tunnel.question(), wire)
    texts(data)


@given(st.binary(max_size=300))
def test_cut_replies_are_not_whole(data: bytes) -> None:
    wire = reply_wire(ASKED, [record_wire(TYPE_TXT, data)], opt=opt_wire())
    assert read(wire).data(TYPE_TXT) == [data]
    for end in range(12, len(wire), 7):
        assert not read(wire[:end]).whole


def test_reply_is_one_only_with_the_question_that_was_asked() -> None:
    good = reply_wire(ASKED)
    assert is_reply(ASKED, good)
    assert is_reply(ASKED, good.lower())
    assert keeps_case(ASKED, good)
    assert keeps_case(ASKED, good.replace(b"Www", b"wwW")) is False
    assert not is_reply(ASKED, ASKED)
    assert not is_reply(ASKED, good.replace(b"Www", b"Wwx"))
    assert not is_reply(ASKED, reply_wire(question(name_wire("Www.Example.com"), TYPE_TXT)))
    # Some servers refuse without the question.
    assert is_reply(ASKED, good[:2] + b"\x81\x05" + bytes(8))
    assert not is_reply(ASKED, good[:2] + b"\x81\x00" + bytes(8))


def test_public_addresses_are_told_from_all_others() -> None:
    private = (
        "0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 169.254.1.1 172.16.0.1 172.31.255.1 192.168.0.1 "
        "192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.9 224.0.0.1 255.255.255.255"
    )
    public = "1.1.1.1 9.9.9.9 100.128.0.1 172.32.0.1 192.1.2.3 198.20.0.1 203.0.114.1 223.1.1.1"
    for address in private.split():
        assert not is_public(bytes(map(int, address.split("."))))
    for address in public.split():
        assert is_public(bytes(map(int, address.split("."))))
    assert not is_public(b"\1\1")
