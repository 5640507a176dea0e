"""DoH towards servers that do as they like with streams, connections and the protocol itself."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic

import pytest

from tests.doh_shell import (
    NOERROR,
    ask_many,
    connections,
    counted,
    entry,
    rcodes,
)
from tests.loopback import HOST, Shell, UdpPeer, on_loop, settle, until
from tests.rig.certs import Authority, Certificate
from tests.rig.doh_server import (
    DohServer,
    Http1Link,
    Http2Link,
    HttpAsked,
    SettingCodes,
    serve_nothing,
    serve_plainly,
)
from tests.rig.wire import (
    SERVFAIL,
    query_wire,
    reply_wire,
)
from workers.transports import doh, http2
from workers.transports.http2_frames import (
    INITIAL_WINDOW_SIZE,
    MAX_STREAM_ID,
    PING,
    frame,
    settings,
)

# -- what a server does with its streams --------------------------------------------------------


def test_doh_resolver_that_refuses_a_stream_gets_it_again_without_blame(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            if len(server.heard) <= 3:
                server.link.reset(asked, 7)
            else:
                serve_plainly(asked)

        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            assert await rcodes(ask_many(shell, 3)) == [NOERROR] * 3
            assert len(server.heard) == 6
            assert len(server.links) == 1
            assert counted(shell) == (0, 0, 0)

    run()


def test_doh_resolver_that_refuses_every_stream_refuses_the_query_with_the_second(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            server.link.reset(asked, 7)

        async with (
            DohServer(good, serve, host=HOST) as server,
            UdpPeer() as other,
            Shell(entry(server, authority), other.udp) as shell,
        ):
            assert await rcodes(ask_many(shell, 2)) == [NOERROR] * 2
            await until(lambda: shell.resolver().refused)
            assert len(server.heard) == 2 * shell.resolver().refused
            assert len(server.links) == 1
            resolver = shell.resolver()
            assert (resolver.lost, resolver.errors) == (0, 0)
            assert resolver.limited == resolver.refused
            assert not any(shell.reasons)

    run()


def test_doh_resolver_that_resets_a_stream_fails_it_with_the_reason(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            server.link.reset(asked, 2)

        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            assert await shell.ask().rcode() == SERVFAIL
            assert counted(shell)[2] == 1
            assert "the server reset the request: internal error" in shell.reasons

    run()


def test_doh_resolver_saying_goaway_in_mid_batch_loses_no_query(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, serve_nothing, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            asked = ask_many(shell, 40)
            await until(lambda: len(server.heard) == 40)
            first = server.link
            server.serve = serve_plainly
            first.say_goaway(39)  # the first twenty were taken
            await until(lambda: len(server.heard) == 60)
            assert len(server.links) == 2
            assert not first.ended
            for request in server.heard[:20]:
                serve_plainly(request)
            assert await rcodes(asked) == [NOERROR] * 40
            assert counted(shell) == (0, 0, 0)
            assert shell.resolver().answered == 40
            await until(lambda: first.ended)
            assert await shell.ask().rcode() == NOERROR
            assert len(server.links) == 2

    run()


def test_doh_resolver_saying_goaway_and_closing_loses_no_query(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with DohServer(good, host=HOST) as server, Shell(entry(server, authority)) as shell:
            assert await shell.ask().rcode() == NOERROR
            server.serve = serve_nothing
            asked = ask_many(shell, 10)
            await until(lambda: len(server.heard) == 11)
            server.serve = serve_plainly
            server.link.say_goaway(5)
            server.link.close()
            assert await rcodes(asked) == [NOERROR] * 10
            assert counted(shell) == (0, 0, 0)

    run()


def test_doh_resolver_serving_one_query_a_connection_is_served_by(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            link = asked.link
            assert isinstance(link, Http2Link)
            serve_plainly(asked)
            link.say_goaway(asked.stream)

        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            for _ in range(5):
                assert await shell.ask().rcode() == NOERROR
            assert counted(shell) == (0, 0, 0)
            await until(lambda: all(link.ended for link in server.links))

    run()


def test_doh_queries_beyond_the_streams_of_one_connection_use_several(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        bounds = {SettingCodes.MAX_CONCURRENT_STREAMS: 100}
        async with (
            DohServer(good, serve_nothing, settings=bounds, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            first = shell.ask()
            await until(lambda: server.heard)
            serve_plainly(server.heard[0])
            assert await first.rcode() == NOERROR
            asked = ask_many(shell, 350)
            await until(lambda: len(server.heard) == 351)
            assert len(server.links) == 4
            assert max(len(link.heard) for link in server.links) <= 101
            for request in server.heard[1:]:
                serve_plainly(request)
            assert await rcodes(asked) == [NOERROR] * 350
            assert counted(shell) == (0, 0, 0)

    run()


def test_doh_queries_beyond_all_streams_wait_for_room(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        bounds = {SettingCodes.MAX_CONCURRENT_STREAMS: 10}
        async with (
            DohServer(good, settings=bounds, host=HOST) as server,
            Shell(entry(server, authority)) as shell,
        ):
            assert await rcodes(ask_many(shell, 200)) == [NOERROR] * 200
            assert len(server.links) <= 4
            assert counted(shell) == (0, 0, 0)

    run()


def test_doh_server_that_allows_no_more_streams_is_waited_for_and_then_dialled_anew(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        none = {SettingCodes.MAX_CONCURRENT_STREAMS: 0}
        some = {SettingCodes.MAX_CONCURRENT_STREAMS: 100}
        async with (
            DohServer(good, settings=some, host=HOST) as server,
            Shell(entry(server, authority), per_attempt_s=1.0) as shell,
        ):
            for number in range(4):  # as many connections as there may be
                assert await shell.ask().rcode() == NOERROR
                assert len(server.links) == number + 1
                server.link.say_settings(none)
                await until(lambda: not any(each.session.room for each in connections(shell)))
            waiting = ask_many(shell, 20)
            await settle()
            assert not any(each.replies for each in waiting)
            server.link.say_settings(some)
            assert await rcodes(waiting) == [NOERROR] * 20
            assert len(server.links) == 4
            server.link.say_settings(none)
            await until(lambda: not any(each.session.room for each in connections(shell)))
            assert await rcodes(ask_many(shell, 20)) == [NOERROR] * 20
            assert len(server.links) == 5
            assert counted(shell) == (0, 0, 0)

    run()


def test_doh_queries_that_nobody_waits_for_give_their_streams_back(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        bounds = {SettingCodes.MAX_CONCURRENT_STREAMS: 4}

        def serve(asked: HttpAsked) -> None:
            if b"held" not in asked.wire:
                serve_plainly(asked)

        async with (
            DohServer(good, serve, settings=bounds, host=HOST) as server,
            Shell(
                entry(server, authority), deadline_s=0.3, per_attempt_s=5.0, down_after=1_000
            ) as shell,
        ):
            assert await shell.ask().rcode() == NOERROR
            held = [shell.ask(query_wire(f"held{n}.example")) for n in range(4)]
            assert await rcodes(held) == [SERVFAIL] * 4
            assert await shell.ask().rcode() == NOERROR
            assert len(server.links) == 1
            await until(lambda: len(server.link.resets) == 4)
            assert {code for _, code in server.link.resets} == {8}

    run()


def test_doh_connection_whose_identifiers_run_out_is_replaced(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with DohServer(good, host=HOST) as server, Shell(entry(server, authority)) as shell:
            assert await shell.ask().rcode() == NOERROR
            (connection,) = connections(shell)
            session = connection.session
            assert isinstance(session, http2.Http2Session)
            session.next_stream = MAX_STREAM_ID - 4
            for _ in range(6):
                assert await shell.ask().rcode() == NOERROR
            assert len(server.links) == 2
            await until(lambda: server.links[0].ended)
            assert counted(shell) == (0, 0, 0)

    run()


def test_doh_server_that_opens_no_window_gets_as_much_as_it_allows(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with DohServer(good, host=HOST) as server, Shell(entry(server, authority)) as shell:
            assert await shell.ask().rcode() == NOERROR
            link = server.link
            link.raw(settings({INITIAL_WINDOW_SIZE: 0}))
            await settle()
            asked = shell.ask()
            await settle()
            assert len(server.heard) == 1
            link.raw(settings({INITIAL_WINDOW_SIZE: 1_000}))
            assert await asked.rcode() == NOERROR

    run()


@pytest.mark.parametrize("length", ["0", "20", "65535", "9" * 5_000, "-1", "x"])
def test_doh_body_of_another_length_than_its_header_says_is_no_answer(
    authority: Authority, good: Certificate, length: str
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            asked.link.answer(asked, reply_wire(asked.wire), content_length=length)

        async with (
            DohServer(good, serve, host=HOST) as server,
            UdpPeer() as other,
            Shell(entry(server, authority), other.udp) as shell,
        ):
            assert await rcodes(ask_many(shell, 2)) == [NOERROR] * 2
            await until(lambda: shell.resolver().errors)
            assert "answered with a body of another length than its header says" in shell.reasons
            assert shell.resolver().answered == 0

    run()


@pytest.mark.parametrize("cut_off", [False, True])
def test_doh_response_over_http1_that_the_end_of_the_connection_ends(
    cut_off: bool, authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            link = asked.link
            assert isinstance(link, Http1Link)
            reply = reply_wire(asked.wire)
            link.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/dns-message\r\n\r\n" + reply)
            if cut_off:  # no word of TLS that it is the end: there may be more to the answer
                raw = link.transport.get_extra_info("socket")
                asyncio.get_running_loop().call_later(0.02, raw.shutdown, socket.SHUT_RDWR)
            else:
                link.close()

        async with (
            DohServer(good, serve, host=HOST, alpn=["http/1.1"]) as server,
            Shell(entry(server, authority)) as shell,
        ):
            codes = await rcodes(ask_many(shell, 5))
            if cut_off:
                assert codes == [SERVFAIL] * 5
                assert shell.resolver().answered == 0
                assert any(shell.reasons)
            else:
                assert codes == [NOERROR] * 5
                assert counted(shell) == (0, 0, 0)
                assert shell.resolver().answered == 5

    run()


# -- signs of life ------------------------------------------------------------------------------


@pytest.mark.alone
def test_doh_connection_that_swallows_everything_is_replaced_before_per_attempt(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with (
            DohServer(good, host=HOST) as server,
            Shell(entry(server, authority), per_attempt_s=2.0) as shell,
        ):
            assert await shell.ask().rcode() == NOERROR
            server.link.deaf = True
            started_at = monotonic()
            assert await rcodes(ask_many(shell, 5)) == [NOERROR] * 5
            assert monotonic() - started_at < 1.95
            assert len(server.links) == 2
            assert counted(shell) == (0, 0, 0)

    run()


def test_doh_connection_that_only_answers_pings_is_replaced_at_per_attempt(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            if asked.link is not server.links[0] or len(server.heard) == 1:
                serve_plainly(asked)

        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority), per_attempt_s=1.0) as shell,
        ):
            assert await shell.ask().rcode() == NOERROR
            shell.ask()
            await until(lambda: len(server.heard) == 2)
            link = server.link
            await until(lambda: link.ended)
            assert 1 <= link.pings <= 4
            assert await shell.ask().rcode() == NOERROR

    run()


def test_doh_query_after_a_long_pause_brings_a_ping_with_it(
    authority: Authority, good: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doh, "PING_IDLE_S", 0.05)

    @on_loop
    async def run() -> None:
        async with DohServer(good, host=HOST) as server, Shell(entry(server, authority)) as shell:
            assert await shell.ask().rcode() == NOERROR
            connections(shell)[0].idle_since -= 1.0
            assert await shell.ask().rcode() == NOERROR
            assert server.link.pings == 1
            assert await shell.ask().rcode() == NOERROR
            assert server.link.pings == 1

    run()


# -- hostile servers ----------------------------------------------------------------------------


def test_doh_server_that_breaks_the_protocol_is_told_and_left(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            server.link.raw(frame(PING, 0, 0, b"seven.."))

        async with (
            DohServer(good, serve, host=HOST) as server,
            UdpPeer() as other,
            Shell(entry(server, authority), other.udp) as shell,
        ):
            assert await rcodes(ask_many(shell, 2)) == [NOERROR] * 2
            await until(lambda: shell.resolver().errors)
            assert "breaks HTTP/2: a ping has the wrong form" in shell.reasons
            await until(lambda: all(link.ended for link in server.links))
            assert server.link.goaway == 6

    run()


def test_doh_server_that_agrees_on_h2_and_speaks_http1_is_told_apart(
    authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with DohServer(good, host=HOST) as server:
            greet = Http2Link.connection_made
            async with Shell(entry(server, authority)) as shell:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(
                        Http2Link,
                        "connection_made",
                        lambda link, made: (
                            super(Http2Link, link).connection_made(made),
                            made.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
                        ),
                    )
                    assert await shell.ask().rcode() == SERVFAIL
                assert "breaks HTTP/2: it answers in HTTP/1" in shell.reasons
            assert Http2Link.connection_made is greet

    run()
