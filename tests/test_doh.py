"""DoH towards resolvers, on real sockets with TLS: how it asks, and what a response is worth."""

from __future__ import annotations

from time import monotonic

import pytest

from tests.doh_shell import (
    NAME,
    NOERROR,
    ask_many,
    connections,
    counted,
    entry,
    rcodes,
)
from tests.loopback import HOST, Asked, Shell, UdpPeer, on_loop, settle, until
from tests.rig.certs import Authority, Certificate
from tests.rig.doh_server import (
    DNS_TYPE,
    DohServer,
    Http1Link,
    HttpAsked,
    Serve,
    serve_nothing,
    serve_plainly,
    serve_status,
)
from tests.rig.wire import (
    NXDOMAIN,
    REFUSED,
    SERVFAIL,
    query_wire,
    reply_of_size,
    reply_wire,
)
from workers.settings import ResolverEntry
from workers.transports import doh
from workers.transports.doh import target_of
from workers.transports.http_exchange import Target

VERSIONS = pytest.mark.parametrize("alpn", ["h2", "http/1.1"])


# -- asking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("get", [False, True])
@VERSIONS
def test_doh_resolver_is_asked_by_the_rules(
    authority: Authority, good: Certificate, alpn: str, get: bool
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, alpn=[alpn], host=HOST) as server,
            Shell(entry(server, authority, get=get)) as shell,
        ):
            asked = shell.ask(query_wire("AbC.t.example", message_id=0x1234))
            reply = await asked.reply()
            assert reply == b"\x12\x34" + reply_wire(asked.wire)[2:]
            (request,) = server.heard
            assert request.wire == b"\0\0" + asked.wire[2:]
            headers = request.headers
            name = headers[":authority"] if alpn == "h2" else headers["host"]
            assert name == f"{NAME}:{server.address.port}"
            assert headers["accept"] == DNS_TYPE
            assert request.method == ("GET" if get else "POST")
            assert request.path.partition("?")[0] == "/dns-query"
            assert "=" not in request.path.partition("dns=")[2]
            assert headers.get("content-type") == (None if get else DNS_TYPE)
            assert shell.resolver().answered == 1

    run()


def test_target_names_the_server_as_in_its_url() -> None:
    def made(host: str, port: int, name: str = "") -> Target:
        fields = ResolverEntry(0, "https", host, port, "x", server_name=name, path="/p")
        return target_of(fields)

    assert made("1.1.1.1", 443) == Target(b"1.1.1.1", b"/p")
    assert made("2001:db8::1", 443) == Target(b"[2001:db8::1]", b"/p")
    assert made("2001:db8::1", 8443) == Target(b"[2001:db8::1]:8443", b"/p")
    assert made("1.1.1.1", 443, "one.example") == Target(b"one.example", b"/p")


def test_doh_resolver_gets_queries_of_one_wake_up_in_one_write(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with DohServer(good, host=HOST) as server, Shell(entry(server, authority)) as shell:
            assert await shell.ask().rcode() == NOERROR
            (connection,) = connections(shell)
            written: list[bytes] = []
            write = connection.channel.write
            connection.channel.write = lambda data: (written.append(data), write(data))[1]  # type: ignore[method-assign]
            asked = []
            for n in range(50):
                wire = query_wire(f"q{n}.t.example")
                one = Asked(wire, False)
                attempt = shell.engine.query(monotonic(), _client(one), None, wire)
                assert attempt is not None
                attempt.resolver.transport.send(attempt)
                asked.append(one)
            shell.pool.flush()
            assert len(written) == 1
            assert await rcodes(asked) == [NOERROR] * 50
            assert len(server.links) == 1

    run()


class _client:
    def __init__(self, asked: Asked) -> None:
        self.is_stream = asked.is_stream
        self.reply = asked.reply_to


def test_doh_resolver_answering_out_of_order_answers_each_client_its_own(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, serve_nothing, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            asked = ask_many(shell, 20)
            await until(lambda: len(server.heard) == 20)
            for request in reversed(server.heard):
                serve_plainly(request)
            for each in asked:
                reply = await each.reply()
                assert reply[:2] == b"\0\7"
                assert reply[12 : len(each.wire)] == each.wire[12:]

    run()


@VERSIONS
def test_doh_resolver_with_the_largest_reply_passes_it(
    authority: Authority, good: Certificate, alpn: str
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            asked.link.answer(asked, reply_of_size(asked.wire, 65_535))

        async with (
            DohServer(good, serve, alpn=[alpn], host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            for _ in range(3):
                assert len(await shell.ask(stream=True).reply()) == 65_535

    run()


def test_doh_resolver_with_a_reply_too_large_for_a_udp_client_is_cut(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            asked.link.answer(asked, reply_of_size(asked.wire, 3_000))

        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            reply = await shell.ask().reply()
            assert len(reply) < 512
            assert reply[2] & 0x02

    run()


def test_doh_resolver_of_http1_serves_many_over_several_connections(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, alpn=["http/1.1"], host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            assert await rcodes(ask_many(shell, 100)) == [NOERROR] * 100
            assert 1 <= len(server.links) <= 16
            assert counted(shell) == (0, 0, 0)

    run()


def test_doh_resolver_with_no_protocol_agreed_on_is_asked_over_http1(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, alpn=[], host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            assert await shell.ask().rcode() == NOERROR
            assert isinstance(server.links[0], Http1Link)

    run()


# -- what a response is worth -------------------------------------------------------------------

FLAWS: list[tuple[Serve, str]] = [
    (serve_status(302, location="https://elsewhere.rig/"), "HTTP 302 from the server"),
    (serve_status(400), "HTTP 400 from the server"),
    (serve_status(403, b"<html>"), "HTTP 403 from the server"),
    (serve_status(404, bytes(12), DNS_TYPE), "HTTP 404 from the server"),
    (serve_status(415), "HTTP 415 from the server"),
    (serve_status(500), "HTTP 500 from the server"),
    (serve_status(503, retry_after="1"), "HTTP 503 from the server"),
    (serve_status(200, b"<html>Log in</html>"), "answered text/html instead of DNS"),
    (
        serve_status(200, b"{}", "application/dns-json; x=1"),
        "answered application/dns-json instead of DNS",
    ),
    (serve_status(200, bytes(40), ""), "answered without a content type"),
    (serve_status(200, b"", DNS_TYPE), "answered with an empty body"),
    (serve_status(200, b"short", DNS_TYPE), "answered something else than the question"),
    (serve_status(200, bytes(40), DNS_TYPE), "answered something else than the question"),
    (
        serve_status(200, reply_wire(query_wire("other.example")), DNS_TYPE),
        "answered something else than the question",
    ),
    (serve_status(200, bytes(65_536), DNS_TYPE), "answered with more than 65,535 bytes"),
]


@pytest.mark.parametrize(("serve", "reason"), FLAWS)
@VERSIONS
def test_doh_response_of_no_use_is_a_failed_attempt_with_its_reason(
    authority: Authority, good: Certificate, alpn: str, serve: Serve, reason: str
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, serve, alpn=[alpn], host=HOST) as server,
            UdpPeer() as other,
            Shell(entry(server, authority), other.udp) as shell,
        ):
            asked = ask_many(shell, 2)
            assert await rcodes(asked) == [NOERROR] * 2
            await until(lambda: shell.resolver().errors)
            assert counted(shell)[:2] == (0, 0)
            assert reason in shell.reasons
            assert len(server.heard) == shell.resolver().errors

    run()


@pytest.mark.parametrize("kind", [DNS_TYPE, "Application/DNS-Message", f"{DNS_TYPE}; charset=x"])
def test_doh_response_of_the_right_type_is_taken_however_it_is_written(
    authority: Authority, good: Certificate, kind: str
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            asked.link.answer(asked, reply_wire(asked.wire), kind=kind)

        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            assert await shell.ask().rcode() == NOERROR

    run()


def test_doh_response_of_a_hostile_type_is_shown_short_and_printable(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        kind = "text/\x1b[31m" + "x" * 5_000
        async with (
            DohServer(good, serve_nothing, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            asked = shell.ask()
            await until(lambda: server.heard)
            link = server.link
            link.h2.config.validate_outbound_headers = False
            link.answer(server.heard[0], b"x", kind=kind)
            assert await asked.rcode() == SERVFAIL
            shown = next(reason for reason in shell.reasons if "instead" in reason)
            assert len(shown) < 100
            assert shown.isprintable()

    run()


@pytest.mark.parametrize("code", [SERVFAIL, REFUSED])
@VERSIONS
def test_doh_response_that_refuses_is_a_refusal(
    authority: Authority, good: Certificate, alpn: str, code: int
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            asked.link.answer(asked, reply_wire(asked.wire, rcode=code))

        async with (
            DohServer(good, serve, alpn=[alpn], host=HOST) as server,
            UdpPeer() as other,
            Shell(entry(server, authority), other.udp) as shell,
        ):
            assert await rcodes(ask_many(shell, 2)) == [NOERROR] * 2
            await until(lambda: shell.resolver().refused)
            assert counted(shell)[1:] == (0, 0)
            assert not any(shell.reasons)

    run()


@pytest.mark.parametrize("headers", [{}, {"retry_after": "3600"}])
@VERSIONS
def test_doh_response_429_is_a_refusal_that_speaks_of_a_limit(
    authority: Authority, good: Certificate, alpn: str, headers: dict[str, str]
) -> None:
    @on_loop
    async def run() -> None:
        serve = serve_status(429, b"slow down", **headers)
        async with (
            DohServer(good, serve, alpn=[alpn], host=HOST) as server,
            UdpPeer() as other,
            Shell(entry(server, authority), other.udp) as shell,
        ):
            assert await rcodes(ask_many(shell, 2)) == [NOERROR] * 2
            await until(lambda: shell.resolver().refused)
            resolver = shell.resolver()
            assert counted(shell)[1:] == (0, 0)
            assert resolver.limited == resolver.refused
            assert not any(shell.reasons)

    run()


def test_doh_response_429_of_the_only_resolver_fails_the_query_once(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, serve_status(429), host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            asked = shell.ask()
            assert await asked.rcode() == SERVFAIL
            await settle()
            assert len(asked.replies) == 1

    run()


def test_doh_resolver_that_says_nxdomain_answers(authority: Authority, good: Certificate) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            asked.link.answer(asked, reply_wire(asked.wire, rcode=NXDOMAIN))

        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            assert await shell.ask().rcode() == NXDOMAIN

    run()


def test_doh_reason_goes_when_the_answers_are_good_again(
    authority: Authority, good: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doh, "TELL_S", 0.05)

    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, serve_status(403), host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            assert await shell.ask().rcode() == SERVFAIL
            assert shell.reasons[-1] == "HTTP 403 from the server"
            server.serve = serve_plainly

            async def good_again() -> None:
                while shell.reasons[-1]:
                    assert await shell.ask().rcode() == NOERROR

            await good_again()

    run()


def test_doh_reasons_that_change_with_every_answer_are_told_now_and_then(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            asked.link.answer(asked, b"x", kind=f"text/{asked.stream}")

        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority), down_after=1_000) as shell,
        ):
            for _ in range(50):
                await shell.ask().reply()
            assert len(server.heard) >= 40
            assert len([reason for reason in shell.reasons if reason]) <= 3

    run()
