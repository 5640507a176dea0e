"""Client programs and bytes sent by hand through the relay: nothing is lost or changed."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rig import (
    Address,
    Asked,
    Nsd,
    Record,
    Relay,
    Reply,
    Say,
    ScriptedResolver,
    Zone,
    ask_tcp,
    ask_udp,
    by_id,
    dnsperf,
    read_framed,
    receive_all,
    reply_of_size,
    reply_wire,
    run_tool,
    udp_client,
)
from tests.rig.net import why_no_ipv6, why_not_installed
from tests.rig.wire import (
    FLAG_RD,
    NOERROR,
    NXDOMAIN,
    TYPE_A,
    TYPE_NULL,
    TYPE_PRIVATE,
    TYPE_TXT,
    answer_count,
    framed,
    is_truncated,
    longest_name,
    message_id,
    opt_wire,
    query_wire,
    question_of,
    rcode_of,
    record_wire,
    txt_data,
)
from tests.rig.zone import presentation

ZONE = "t.rig"
EIGHT_BIT = [bytes([0, 1, 127, 128, 200, 255]), b"a.b c\\d", b"t", b"rig"]
LONGEST = longest_name(ZONE, b"\xc3")
UDP_REPLY_BYTES, TCP_REPLY_BYTES = 4_700, 60_000
HEAD_BYTES = 64
"""More than header, question and record head of a reply in this zone take."""


def zone() -> Zone:
    """Names and types of every kind that tunnels use, and two large answers."""
    return Zone(
        ZONE,
        records=[
            Record(f"NullName.{ZONE}", TYPE_NULL, b"\x00\xff" * 300),
            Record(f"private.{ZONE}", TYPE_PRIVATE, bytes(range(256))),
            Record(f"large-udp.{ZONE}", TYPE_NULL, secrets.token_bytes(UDP_REPLY_BYTES)),
            Record(f"large-tcp.{ZONE}", TYPE_NULL, secrets.token_bytes(TCP_REPLY_BYTES)),
            Record(f"address.{ZONE}", TYPE_A, bytes([192, 0, 2, 7])),
            Record(EIGHT_BIT, TYPE_TXT, txt_data(20)),
            Record(LONGEST, TYPE_NULL, b"at the longest name"),
        ],
    )


@dataclass(frozen=True, slots=True)
class Served:
    """A relay before an authoritative server, which can also be asked directly."""

    relay: Address
    server: Address


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    reason = why_not_installed("nsd")
    if reason:
        pytest.skip(reason)
    workdir = tmp_path_factory.mktemp("w")
    with (
        Nsd([zone()], workdir=workdir) as server,
        Relay([server.address], workdir=workdir, workers=2) as relay,
    ):
        yield Served(relay.address, server.address)


def need(*programs: str) -> None:
    """Skip where a program is not there."""
    reason = why_not_installed(*programs)
    if reason:
        pytest.skip(reason)


def at(server: Address) -> list[str]:
    """A server as dig and kdig take it."""
    return [f"@{server.host}", "-p", str(server.port)]


# -- programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["+notcp", "+tcp"])
def test_dig_over_each_transport_gets_answer(served: Served, transport: str) -> None:
    need("dig")
    options = [transport, "+tries=1", "+time=3", "+norecurse"]
    said = run_tool("dig", *at(served.relay), *options, f"address.{ZONE}", "A")
    assert "status: NOERROR" in said
    assert "192.0.2.7" in said
    assert ";; Warning" not in said
    missing = run_tool("dig", *at(served.relay), *options, f"a.address.{ZONE}", "A")
    assert "status: NXDOMAIN" in missing


@pytest.mark.parametrize(
    ("name", "qtype", "expected"),
    [
        (f"NULLNAME.{ZONE}.", "NULL", "00FF00FF"),
        (f"private.{ZONE}.", "TYPE65399", "000102030405"),
        (presentation(EIGHT_BIT), "TXT", "t" * 20),
        (presentation(LONGEST), "NULL", b"at the longest".hex().upper()),
    ],
    ids=["NULL", "TYPE65399", "8-bit-labels", "255-bytes"],
)
def test_dig_odd_names_and_types_get_answer(
    served: Served, name: str, qtype: str, expected: str
) -> None:
    need("dig")
    said = run_tool("dig", *at(served.relay), "+tries=1", "+time=3", name, qtype)
    assert "status: NOERROR" in said
    assert expected in said


def test_kdig_keepopen_several_questions_answered_on_one_connection(served: Served) -> None:
    need("kdig")
    names = [f"Question{number}.{ZONE}" for number in range(8)]
    asked = [word for name in names for word in (name, "TXT")]
    said = run_tool("kdig", *at(served.relay), "+noidn", "+tcp", "+keepopen", "+retry=0", *asked)
    assert said.count("status: NOERROR") == len(names)
    assert all(f";; {name}." in said for name in names)
    assert "WARNING" not in said


def test_dnsperf_50_clients_no_error_no_loss(served: Served, workdir: Path) -> None:
    need("dnsperf")
    questions = workdir / "questions.txt"
    questions.write_text("".join(f"Tunnel-{n:05}.{ZONE} TXT\n" for n in range(10_000)))
    load = dnsperf(served.relay, questions, clients=50, outstanding=100, runs=2, edns=True)
    assert (load.sent, load.completed, load.lost) == (20_000, 20_000, 0)
    assert load.rcodes == {"NOERROR": 20_000}
    assert not load.complaints


def test_dnsperf_50_tcp_clients_no_error_no_loss(served: Served, workdir: Path) -> None:
    need("dnsperf")
    questions = workdir / "questions.txt"
    questions.write_text("".join(f"Tunnel-{n:05}.{ZONE} TXT\n" for n in range(5_000)))
    load = dnsperf(served.relay, questions, clients=50, outstanding=100, runs=1, tcp=True)
    assert (load.sent, load.completed, load.lost) == (5_000, 5_000, 0)
    assert load.rcodes == {"NOERROR": 5_000}


# -- large replies ----------------------------------------------------------------------------


def test_reply_of_4700_bytes_over_udp_arrives_whole(served: Served) -> None:
    query = query_wire(f"large-udp.{ZONE}", TYPE_NULL, opt=opt_wire(65_000))
    through = ask_udp(served.relay, query)
    assert len(through) >= UDP_REPLY_BYTES
    assert through == ask_udp(served.server, query)


def test_reply_of_60000_bytes_over_tcp_arrives_whole(served: Served) -> None:
    query = query_wire(f"large-tcp.{ZONE}", TYPE_NULL, opt=opt_wire(1232))
    through = ask_tcp(served.relay, query)
    assert len(through) >= TCP_REPLY_BYTES
    assert through == ask_tcp(served.server, query)


def test_truncated_reply_of_resolver_reaches_udp_client_as_it_is(served: Served) -> None:
    query = query_wire(f"large-tcp.{ZONE}", TYPE_NULL, opt=opt_wire(1232))
    through = ask_udp(served.relay, query)
    assert is_truncated(through)
    assert through == ask_udp(served.server, query)


@pytest.mark.parametrize(
    ("advertised_bytes", "cut"), [(None, True), (1232, True), (4_700, True), (8_192, False)]
)
def test_reply_fetched_over_tcp_for_generic_is_cut_to_what_client_takes(
    workdir: Path, advertised_bytes: int | None, cut: bool
) -> None:
    def answer(asked: Asked) -> Reply:
        return reply_of_size(asked.wire, 5_000)

    with (
        ScriptedResolver(answer) as resolver,
        Relay([f"tcp://{resolver.address}"], workdir=workdir) as relay,
    ):
        opt = opt_wire(advertised_bytes) if advertised_bytes else b""
        query = query_wire("a.t.rig", TYPE_NULL, opt=opt)
        reply = ask_udp(relay.address, query)
        assert is_truncated(reply) is cut
        assert len(reply) <= (advertised_bytes or 512)
        assert question_of(reply) == question_of(query)
        assert answer_count(reply) == (0 if cut else 1)
        if not cut:
            assert reply == reply_of_size(query, 5_000)
        whole = ask_tcp(relay.address, query)
        assert whole == reply_of_size(query, 5_000)


# -- bytes ------------------------------------------------------------------------------------

Scripted = tuple[Relay, dict[str, ScriptedResolver]]

QUERIES = {
    "plain": query_wire("a.t.rig"),
    "upper-case": query_wire("MiXeD.CaSe.t.RIG"),
    "8-bit-labels": query_wire(EIGHT_BIT),
    "every-byte": query_wire([bytes(range(start, start + 60)) for start in (0, 60, 120, 180)]),
    "255-bytes": query_wire(LONGEST),
    "root": query_wire(""),
    "null": query_wire("n.t.rig", TYPE_NULL),
    "private": query_wire("p.t.rig", TYPE_PRIVATE),
    "type-0": query_wire("z.t.rig", 0),
    "id-0": query_wire("i.t.rig", message_id=0),
    "no-rd": query_wire("f.t.rig", flags=0),
    "ad-cd-z": query_wire("f.t.rig", flags=FLAG_RD | 0x0070),
    "opt": query_wire("o.t.rig", opt=opt_wire(4096)),
    "opt-do": query_wire("o.t.rig", opt=opt_wire(1232, dnssec_ok=True)),
    "opt-options": query_wire(
        "o.t.rig",
        opt=opt_wire(
            65_535,
            options=[
                (10, b"\x01" * 8),
                (65_001, b""),
                (8, b"\0\x01\x18\0\x7f\0\0"),
                (12, b"\0" * 90),
            ],
        ),
    ),
    "trailing-bytes": query_wire("t.t.rig") + b"\xde\xad\xbe\xef",
}


@pytest.fixture(scope="module")
def scripted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scripted]:
    """One relay with a pool on a UDP resolver and a pool on a TCP resolver, both scripted."""
    workdir = tmp_path_factory.mktemp("w")
    with ScriptedResolver() as over_udp, ScriptedResolver() as over_tcp:
        pools = [
            {
                "name": scheme,
                "listen": "127.0.0.1:0",
                "resolvers": [f"{scheme}://{resolver.address}"],
                "smart_pool": {"enabled": True},
            }
            for scheme, resolver in (("udp", over_udp), ("tcp", over_tcp))
        ]
        with Relay(workdir=workdir, config={"workers": 1, "pools": pools}) as relay:
            yield relay, {"udp": over_udp, "tcp": over_tcp}


def odd_reply(asked: Asked) -> Reply:
    """A reply with records in an order, with TTLs, types and classes that a parser would touch."""
    records = [
        record_wire(TYPE_A, bytes([9, 9, 9, n]), ttl_s=ttl_s)
        for n, ttl_s in ((3, 0), (1, 0x7FFFFFFF), (2, 0xFFFFFFFF))
    ]
    records.append(record_wire(TYPE_PRIVATE, secrets.token_bytes(100), qclass=254))
    opt = opt_wire(512, options=[(65_002, b"\xff\0")])
    return reply_wire(asked.wire, records, flags=0x85F0, opt=opt) + b"tail"


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.parametrize("resolver_scheme", ["udp", "tcp"])
def test_bytes_both_ways_only_id_changes(
    scripted: Scripted,
    resolver_scheme: str,
    transport: str,
    name: str,
) -> None:
    relay, resolvers = scripted
    resolver = resolvers[resolver_scheme]
    resolver.forget()
    said: list[bytes] = []

    def answer(asked: Asked) -> Reply:
        reply = odd_reply(asked)
        assert isinstance(reply, bytes)
        said.append(reply)
        return reply

    resolver.answer = answer
    query = QUERIES[name]
    ask = ask_udp if transport == "udp" else ask_tcp
    reply = ask(relay.pool_address(resolver_scheme), query)
    (asked,) = resolver.wait_for_count(1)
    assert asked.transport == resolver_scheme
    assert asked.wire[2:] == query[2:]
    assert message_id(reply) == message_id(query)
    assert reply[2:] == said[0][2:]


def test_reply_with_question_in_other_case_gets_clients_own_question_back(
    scripted: Scripted,
) -> None:
    relay, resolvers = scripted

    def answer(asked: Asked) -> Reply:
        reply = reply_of_size(asked.wire, 300)
        return reply.replace(question_of(reply), question_of(reply).swapcase())

    resolvers["udp"].answer = answer
    query = query_wire("CaSe.IN.The.t.rig", TYPE_NULL)
    assert ask_udp(relay.pool_address("udp"), query) == reply_of_size(query, 300)


@pytest.mark.parametrize("rcode", [NOERROR, NXDOMAIN])
def test_reply_without_data_is_an_answer(scripted: Scripted, rcode: int) -> None:
    relay, resolvers = scripted
    resolvers["udp"].forget()
    resolvers["udp"].answer = lambda asked: reply_wire(asked.wire, rcode=rcode)
    query = query_wire("none.t.rig")
    reply = ask_udp(relay.pool_address("udp"), query)
    assert rcode_of(reply) == rcode
    assert reply == reply_wire(query, rcode=rcode)
    assert resolvers["udp"].count == 1


# -- many at once -----------------------------------------------------------------------------


def out_of_order(asked: Asked) -> Reply:
    """Every second answer comes later than the one after it."""
    return Say(reply_of_size(asked.wire, 200), after_s=0.02 * (asked.number % 2))


def test_udp_many_in_flight_on_one_socket_each_gets_its_own_reply(
    scripted: Scripted,
) -> None:
    relay, resolvers = scripted
    resolvers["udp"].answer = out_of_order
    queries = [query_wire(f"q{n}.t.rig", TYPE_NULL, message_id=n * 7) for n in range(500)]
    with udp_client(relay.pool_address("udp")) as client:
        for query in queries:
            client.send(query)
        replies = by_id(receive_all(client, len(queries)))
    assert replies == {message_id(query): reply_of_size(query, 200) for query in queries}


def test_udp_same_id_on_one_socket_each_question_answered(
    scripted: Scripted,
) -> None:
    relay, resolvers = scripted
    resolvers["udp"].answer = out_of_order
    queries = [query_wire(f"q{n}.t.rig", TYPE_NULL, message_id=0) for n in range(100)]
    with udp_client(relay.pool_address("udp")) as client:
        for query in queries:
            client.send(query)
        replies = receive_all(client, len(queries))
    assert sorted(replies) == sorted(reply_of_size(query, 200) for query in queries)


@pytest.mark.parametrize("resolver_scheme", ["udp", "tcp"])
def test_tcp_pipelined_in_one_segment_all_answered_on_that_connection(
    scripted: Scripted, resolver_scheme: str
) -> None:
    relay, resolvers = scripted
    resolvers[resolver_scheme].answer = out_of_order
    queries = [query_wire(f"q{n}.t.rig", TYPE_NULL, message_id=n) for n in range(100)]
    with socket.create_connection(relay.pool_address(resolver_scheme), 5.0) as client:
        client.sendall(b"".join(framed(query) for query in queries))
        replies = by_id([read_framed(client) for _ in queries])
    assert replies == {message_id(query): reply_of_size(query, 200) for query in queries}


def test_tcp_query_split_into_single_bytes_is_answered(
    scripted: Scripted,
) -> None:
    relay, resolvers = scripted
    resolvers["udp"].answer = lambda asked: reply_of_size(asked.wire, 200)
    query = query_wire("split.t.rig", TYPE_NULL)
    with socket.create_connection(relay.pool_address("udp"), 5.0) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed(query):
            client.sendall(bytes([byte]))
        assert read_framed(client) == reply_of_size(query, 200)


# -- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize("resolver_scheme", ["udp", "tcp"])
def test_ipv6_client_and_resolver_answered_over_udp_and_tcp(
    workdir: Path, resolver_scheme: str
) -> None:
    reason = why_no_ipv6()
    if reason:
        pytest.skip(reason)
    with (
        ScriptedResolver(lambda asked: reply_of_size(asked.wire, 300), host="::1") as resolver,
        Relay(
            [f"{resolver_scheme}://{resolver.address}"], workdir=workdir, listen="[::1]:0"
        ) as relay,
    ):
        assert relay.address.host == "::1"
        for ask in (ask_udp, ask_tcp):
            query = query_wire("six.t.rig", TYPE_NULL)
            assert ask(relay.address, query) == reply_of_size(query, 300)


def test_relay_stopped_by_term_says_nothing_but_ready_line(workdir: Path) -> None:
    with ScriptedResolver() as resolver, Relay([resolver.address], workdir=workdir) as relay:
        assert rcode_of(ask_udp(relay.address, query_wire("a.t.rig"))) == NOERROR
        assert relay.ready["event"] == "ready"
        assert relay.ready["pid"] == relay.pid
        assert relay.stop() == 0
        assert relay.more_output == []
