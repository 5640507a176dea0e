"""The question by which a relay recognises itself, on the wire."""

from __future__ import annotations

import random
import re

import dns.flags
import dns.message
import dns.rcode
import pytest

from shared.own_question import LABEL_CHARS, NAME_LENGTH, OwnQuestion
from tests.rig.wire import (
    TYPE_A,
    TYPE_TXT,
    opt_wire,
    query_wire,
    question_of,
    record_wire,
    reply_wire,
)

TYPE_DS = 43


def mixed_case(name: str, seed: int = 3) -> str:
    """Return `name` with the case of its letters drawn by dice, as with 0x20."""
    dice = random.Random(seed)
    return "".join(dice.choice((char.upper(), char.lower())) for char in name)


def test_new_twice_differs_and_fits_a_label() -> None:
    one, other = OwnQuestion.new(), OwnQuestion.new()
    assert one.label != other.label
    assert one.proof != other.proof
    assert re.fullmatch(rb"[a-z0-9]{%d}" % LABEL_CHARS, one.label)
    assert 16 <= len(one.proof) <= 255


def test_question_name_of_any_random_part_is_wire_safe_and_differs() -> None:
    own = OwnQuestion.new()
    parts: list[bytes | str] = [b"", b"\x00\xff.", "udp://8.8.8.8:53", "a" * 500, "\u06f1.\u06f2"]
    names = [own.question_name(part) for part in parts]
    assert len(set(names)) == len(parts)
    for name in names:
        first, parent = name.split(".")
        assert first.startswith(own.label.decode())
        assert parent == "com"
        assert re.fullmatch(r"[a-z0-9]+", first)
        assert len(first) == NAME_LENGTH <= 63
        assert own.is_own(query_wire(name))


def test_is_own_of_other_questions_is_false() -> None:
    own, other = OwnQuestion.new(), OwnQuestion.new()
    name = own.question_name("x")
    yes = query_wire(name)
    no = {
        "another relay's": query_wire(other.question_name("x")),
        "under another name": query_wire(name + ".example"),
        "not the first label": query_wire("www." + name),
        "the label alone": query_wire(f"{own.label.decode()}.com"),
        "for a DS": query_wire(name, TYPE_DS),
        "a reply": reply_wire(yes),
        "empty": b"",
        **{f"cut at {size}": yes[:size] for size in range(len(yes))},
    }
    assert own.is_own(yes)
    assert own.is_own(query_wire(name, TYPE_A, opt=opt_wire()))
    assert [what for what, wire in no.items() if own.is_own(wire)] == []


@pytest.mark.parametrize("rtype", [TYPE_A, TYPE_TXT])
@pytest.mark.parametrize("opt", [b"", opt_wire()])
def test_reply_to_a_recased_question_echoes_it_with_the_proof(rtype: int, opt: bytes) -> None:
    own = OwnQuestion.new()
    name = mixed_case(own.question_name("x"))
    wire = query_wire(name, rtype, message_id=0xBEEF, opt=opt)
    assert own.is_own(wire)
    reply = own.reply(wire)
    assert reply[12:].startswith(question_of(wire))
    message = dns.message.from_wire(reply)
    assert message.id == 0xBEEF
    assert message.rcode() == dns.rcode.NOERROR
    assert message.flags & dns.flags.QR
    assert message.edns == (0 if opt else -1)
    (records,) = message.answer
    assert (records.name.to_text(), records.rdtype, records.ttl) == (f"{name}.", rtype, 0)
    (record,) = records
    if rtype == TYPE_TXT:
        assert record.strings == (own.proof,)
    else:
        assert record.address.startswith("24")
    assert own.is_proof(reply)
    assert not OwnQuestion.new().is_proof(reply)


def test_is_proof_of_anything_else_is_false() -> None:
    own = OwnQuestion.new()
    wire = query_wire(own.question_name("x"))
    portal = reply_wire(wire, (record_wire(TYPE_A, b"\xc0\xa8\x01\x01"),))
    for message in (b"", b"\x00" * 12, wire, portal, reply_wire(wire, rcode=3), own.proof):
        assert not own.is_proof(message)
    reply = own.reply(wire)
    assert [size for size in range(len(reply)) if own.is_proof(reply[:size])] == []


def test_settings_of_a_wrong_size_are_refused() -> None:
    for label, proof in (
        (b"", b""),
        (b"a" * LABEL_CHARS, b""),
        (b"a", b"p"),
        (b"a" * 20, b"p" * 256),
    ):
        with pytest.raises(ValueError, match="own question"):
            OwnQuestion(label, proof)
