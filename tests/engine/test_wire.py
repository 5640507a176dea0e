"""Header and question on the wire: any bytes at all, and what dnspython makes of the same."""

from __future__ import annotations

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rig.wire import (
    labels_of,
    longest_name,
    name_wire,
    opt_wire,
    query_wire,
    question_wire,
    record_wire,
    reply_wire,
)
from workers.engine import wire as dns_wire
from workers.engine.wire import (
    advertised_size,
    error_reply,
    probe,
    question_end,
    same_question,
    truncated,
)

HEADER = bytes.fromhex("1234 0100 0001 0000 0000 0000")

labels = st.lists(st.binary(min_size=1, max_size=63), max_size=10).filter(
    lambda parts: sum(len(part) + 1 for part in parts) < 255
)


def asking(name: bytes, tail: bytes = b"\x00\x10\x00\x01") -> bytes:
    return HEADER + name + tail


# -- question_end -------------------------------------------------------------------------------


@given(st.binary(max_size=600))
def test_question_end_of_any_bytes_is_inside_them_or_negative(wire: bytes) -> None:
    end = question_end(wire)
    assert end == -1 or 17 <= end <= len(wire)


@given(labels, st.integers(0, 65_535), st.binary(max_size=30))
def test_question_end_of_any_name_is_after_its_type_and_class(
    parts: list[bytes], qtype: int, rest: bytes
) -> None:
    question = question_wire(parts, qtype)
    assert question_end(HEADER + question + rest) == 12 + len(question)


@given(labels)
def test_question_end_of_any_name_agrees_with_dnspython(parts: list[bytes]) -> None:
    name = dns.name.Name((*parts, b""))
    wire = dns.message.make_query(name, "TXT", use_edns=0).to_wire()
    end = question_end(wire)
    parsed, used = dns.name.from_wire(wire, 12)
    assert (parsed, 12 + used + 4) == (name, end)


@given(labels, st.integers(1, 400))
def test_question_end_of_a_cut_question_is_negative(parts: list[bytes], cut: int) -> None:
    question = question_wire(parts, 16)
    wire = HEADER + question[: max(0, len(question) - cut)]
    assert question_end(wire) == -1


def test_question_end_of_the_root_is_seventeen() -> None:
    assert question_end(asking(b"\0")) == 17


def test_question_end_of_the_longest_name_is_accepted() -> None:
    wire = asking(name_wire(longest_name("t.example")))
    assert question_end(wire) == len(wire) == 12 + 255 + 4


def test_question_end_of_a_name_of_256_bytes_is_negative() -> None:
    name = (b"\x3f" + b"x" * 63) * 3 + b"\x3e" + b"y" * 62 + b"\0"
    assert len(name) == 256
    assert question_end(asking(name)) == -1


@pytest.mark.parametrize(
    "name",
    [b"\xc0\x0c", b"\x01a\xc0\x0c", b"\xc0", b"\x40" + b"x" * 64 + b"\0", b"\x80\0", b"\x01a"],
    ids=["pointer", "pointer_behind_label", "half_pointer", "label_of_64", "reserved", "no_end"],
)
def test_question_end_of_what_is_no_plain_name_is_negative(name: bytes) -> None:
    assert question_end(asking(name)) == -1


@pytest.mark.parametrize("size", [0, 1, 11, 12])
def test_question_end_of_a_header_or_less_is_negative(size: int) -> None:
    assert question_end(HEADER[:size]) == -1


# -- same_question ------------------------------------------------------------------------------


@given(labels, st.data())
def test_same_question_in_any_ascii_case_is_the_same(
    parts: list[bytes], data: st.DataObject
) -> None:
    ours = question_wire(parts, 16)
    flips = data.draw(st.lists(st.booleans(), min_size=len(parts), max_size=len(parts)))
    theirs = question_wire(
        [part.swapcase() if flip else part for part, flip in zip(parts, flips, strict=True)], 16
    )
    assert same_question(ours, theirs)


def test_same_question_with_eight_bit_labels_compares_them_to_the_bit() -> None:
    # In Latin-1 these two are one letter in two cases; in DNS they are two bytes.
    assert not same_question(question_wire([b"\xe4"], 10), question_wire([b"\xc4"], 10))


def test_same_question_with_a_type_that_looks_like_another_case_differs() -> None:
    # 0x41 and 0x61 are `A` and `a`: types 65 (HTTPS) and 97.
    assert not same_question(question_wire("a.b", 0x0041), question_wire("a.b", 0x0061))
    assert not same_question(question_wire("a.b", 1, 0x0041), question_wire("a.b", 1, 0x0061))


@pytest.mark.parametrize("theirs", [b"", b"\0\x10\0\x01", question_wire("a.bc", 16)])
def test_same_question_of_other_length_differs(theirs: bytes) -> None:
    assert not same_question(question_wire("a.b", 16), theirs)


# -- advertised_size ----------------------------------------------------------------------------


@given(st.binary(max_size=600), st.integers(-5, 700))
def test_advertised_size_of_any_bytes_is_a_size_or_none(wire: bytes, end: int) -> None:
    size = advertised_size(wire, max(end, 12))
    assert size is None or 0 <= size <= 65_535


@given(st.binary(min_size=12, max_size=400))
def test_advertised_size_of_any_followed_question_does_not_raise(tail: bytes) -> None:
    wire = query_wire("q.t.example")
    wire = wire[:6] + b"\xff\xff\xff\xff\xff\xff" + wire[12:] + tail
    size = advertised_size(wire, question_end(wire))
    assert size is None or 0 <= size <= 65_535


@given(st.integers(0, 65_535), st.booleans())
def test_advertised_size_of_dnspythons_query_is_what_it_says(payload: int, dnssec: bool) -> None:
    query = dns.message.make_query("q.t.example", "TXT", want_dnssec=dnssec)
    query.use_edns(0, 0, payload, options=[dns.edns.GenericOption(65_001, b"abc")])
    wire = query.to_wire()
    assert advertised_size(wire, question_end(wire)) == payload


def test_advertised_size_without_opt_is_none() -> None:
    wire = query_wire("q.t.example")
    assert advertised_size(wire, len(wire)) is None


def test_advertised_size_behind_another_additional_record_is_found() -> None:
    wire = query_wire("q.t.example")
    end = len(wire)
    both = wire[:10] + b"\x00\x02" + wire[12:] + record_wire(1, bytes(4)) + opt_wire(1410)
    assert advertised_size(both, end) == 1410


@pytest.mark.parametrize("cut", [1, 5, 10, 11])
def test_advertised_size_of_a_cut_opt_is_none(cut: int) -> None:
    wire = query_wire("q.t.example", opt=opt_wire(4096))
    assert advertised_size(wire[:-cut], question_end(wire)) is None


# -- error_reply --------------------------------------------------------------------------------


@given(st.binary(min_size=12, max_size=600), st.sampled_from([1, 2, 4, 5]))
def test_error_reply_to_any_message_is_a_response_no_longer_than_it(
    wire: bytes, rcode: int
) -> None:
    end = question_end(wire)
    reply = error_reply(wire, rcode, end)
    assert reply[:2] == wire[:2]
    assert reply[2] & 0x80
    assert reply[3] & 0x0F == rcode
    assert len(reply) <= max(len(wire), 12) + 11


@given(
    labels,
    st.integers(0, 65_535),
    st.sampled_from([dns.rcode.FORMERR, dns.rcode.SERVFAIL, dns.rcode.NOTIMP, dns.rcode.REFUSED]),
    st.booleans(),
    st.booleans(),
)
def test_error_reply_is_what_dnspython_takes_for_a_response(
    parts: list[bytes], number: int, rcode: dns.rcode.Rcode, recursion: bool, edns: bool
) -> None:
    query = dns.message.make_query(
        dns.name.Name((*parts, b"")),
        "NULL",
        id=number,
        flags=dns.flags.RD if recursion else 0,
        use_edns=0 if edns else False,
        payload=4096 if edns else None,
    )
    wire = query.to_wire()
    reply = dns.message.from_wire(error_reply(wire, rcode, question_end(wire)))
    assert query.is_response(reply)
    assert reply.rcode() == rcode
    assert bool(reply.flags & dns.flags.RD) == recursion
    assert reply.flags & dns.flags.RA
    assert reply.edns == (0 if edns else -1)
    assert not reply.answer + reply.authority + reply.additional


def test_error_reply_keeps_the_opcode() -> None:
    query = dns.message.make_query("q.t.example", "SOA")
    query.set_opcode(dns.opcode.NOTIFY)
    wire = query.to_wire()
    reply = dns.message.from_wire(error_reply(wire, dns_wire.NOTIMP, question_end(wire)))
    assert reply.opcode() == dns.opcode.NOTIFY
    assert reply.rcode() == dns.rcode.NOTIMP


def test_error_reply_without_a_question_is_a_bare_header() -> None:
    reply = error_reply(bytes.fromhex("abcd 0100 0000 0000 0000 0000"), dns_wire.FORMERR, -1)
    assert reply == bytes.fromhex("abcd 8181 0000 0000 0000 0000")


# -- truncated ----------------------------------------------------------------------------------


def test_truncated_is_the_question_with_tc_and_no_record() -> None:
    query = query_wire("q.t.example", message_id=77)
    whole = reply_wire(query, [record_wire(16, b"\x03abc")] * 3, rcode=3)
    cut = dns.message.from_wire(truncated(whole, query, question_end(query)))
    assert cut.id == 77
    assert cut.flags & dns.flags.TC
    assert cut.flags & dns.flags.AA
    assert cut.rcode() == dns.rcode.NXDOMAIN
    assert cut.question == dns.message.from_wire(query).question
    assert not cut.answer + cut.authority + cut.additional


# -- probe ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["example.com", "example.com.", "a.b.c.d", "."])
def test_probe_is_a_plain_recursive_question(name: str) -> None:
    asked = probe(name)
    parsed = dns.message.from_wire(asked)
    expected = dns.message.make_query(name, "A", id=0)
    assert parsed == expected
    assert question_end(asked) == len(asked)
    assert name_wire(labels_of(name)) in asked
