"""Faults are told in the relay's own words: nothing that a server or proxy said is among them."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doh_shell import NAME, entry
from tests.loopback import HOST, Link, Place, Shell, TcpPeer, UdpPeer, on_loop, until
from tests.rig.certs import Authority, Certificate
from tests.rig.doh_server import DohServer, Http2Link, HttpAsked, serve_status
from workers.settings import ResolverEntry
from workers.transports.faults import PROXY_REASONS, in_words, proxy_in_words

SECRET = b"my-secret-name.example"
ESCAPE = b"\x1b]0;" + SECRET + b"\x07\x1b[2J"


def ssl_error(kind: type[ssl.SSLError], text: str) -> ssl.SSLError:
    error = kind(1, text)
    error.reason = text
    return error


def verification_error(code: int, text: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, text)
    error.verify_code = code
    error.verify_message = text
    return error


ERRORS: dict[str, Callable[[int, str], OSError]] = {
    "certificate": verification_error,
    "TLS": lambda _, text: ssl_error(ssl.SSLError, text),
    "TLS, ended": lambda _, text: ssl_error(ssl.SSLEOFError, text),
    "TLS, closed": lambda _, text: ssl_error(ssl.SSLZeroReturnError, text),
    "system": lambda code, text: OSError(code, text),
    "name": lambda code, text: socket.gaierror(-code, text),
    "event loop": lambda _, text: ConnectionError(text),
    "event loop, time": lambda _, text: TimeoutError(text),
    "library": lambda _, text: OSError(text),
    "library, no text": lambda _, text: OSError(None, text),
    "library, number": lambda code, text: OSError(-code, text),
}


@pytest.mark.parametrize("kind", ERRORS)
@given(code=st.integers(0, 130), said=st.text(st.characters(exclude_characters="_"), max_size=60))
def test_words_of_an_error_do_not_depend_on_the_text_in_it(kind: str, code: int, said: str) -> None:
    make = ERRORS[kind]
    said = f"\x1b{said}"  # no name of an error in OpenSSL's table
    words = in_words(make(code, said), "dns.example")
    assert words == in_words(make(code, "\x1bsomething else"), "dns.example")
    assert words.isprintable()
    assert words


@given(code=st.none() | st.integers(-(10**9), 10**9), said=st.text(), is_http=st.booleans())
def test_words_of_a_proxy_do_not_depend_on_the_text_it_sent(
    code: int | None, said: str, is_http: bool
) -> None:
    words = proxy_in_words(code, said, is_http=is_http)
    if said not in PROXY_REASONS:
        assert words == proxy_in_words(code, "something else", is_http=is_http)
    assert words.isprintable()
    assert "proxy" in words


# -- what servers and proxies send --------------------------------------------------------------


async def told_of(caplog: pytest.LogCaptureFixture, place: Place) -> list[str]:
    """Ask a resolver beside a good one until something is said of it; return all that was said."""
    caplog.set_level(logging.DEBUG)
    async with UdpPeer() as other, Shell(place, other.udp) as shell:
        for _ in range(3):
            assert await shell.ask().rcode() == 0
        await until(lambda: any(shell.reasons))
        told = [reason for reason in shell.reasons if reason]
    # The server of the test has a library that logs what it sends itself.
    ours = [record for record in caplog.records if record.name.partition(".")[0] == "workers"]
    assert ours
    return told + [record.getMessage() for record in ours]


def assert_clean(told: list[str]) -> None:
    for each in told:
        assert each.isprintable(), each
        assert "secret" not in each.lower(), each
        assert "]0;" not in each, each


PROXIES = {
    "http reason phrase": ("http", b"HTTP/1.1 403 " + SECRET + b"\r\n\r\n"),
    "http login": ("http", b"HTTP/1.1 407 " + ESCAPE + b"\r\n\r\n"),
    "http status": ("http", b"HTTP/1.1 " + SECRET + b" no\r\n\r\n"),
    "http large status": ("http", b"HTTP/1.1 " + b"7" * 900 + b" no\r\n\r\n"),
    "no http": ("http", ESCAPE + b"\r\n\r\n"),
    "http closed": ("http", b""),
    "socks refused": ("socks5", b"\x05\x00\x05\x05\x00\x03\x16" + SECRET + b"\0\0"),
    "socks code": ("socks5", b"\x05\x00\x05\x99\x00\x03\x16" + SECRET + b"\0\0"),
    "socks bound host": ("socks5", b"\x05\x00\x05\x00\x00\x03\x04\xff\x1b[2\0\0"),
    "socks method": ("socks5", b"\x05\xff" + SECRET),
    "no socks": ("socks5", SECRET),
}


@pytest.mark.parametrize("what", PROXIES)
def test_proxy_that_throws_a_name_back_is_told_of_without_it(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheme, said = PROXIES[what]

    @on_loop
    async def run() -> None:
        def greets(link: Link) -> None:
            link.transport.write(said)
            link.transport.close()

        async with TcpPeer(greets=greets, serve=lambda link, wire: None) as proxy:
            host, port = proxy.address[:2]
            place = ResolverEntry(0, "tcp", HOST, 53, "x", via=f"{scheme}://{host}:{port}")
            told = await told_of(caplog, place)
            assert_clean(told)
            assert any("proxy" in each for each in told)

    run()


def goaway(asked: HttpAsked) -> None:
    assert isinstance(asked.link, Http2Link)
    asked.link.raw((8 + len(ESCAPE)).to_bytes(3, "big") + bytes((7, 0, 0, 0, 0, 0)) + bytes(8))
    asked.link.raw(ESCAPE)
    asked.link.close()


def reset(asked: HttpAsked) -> None:
    assert isinstance(asked.link, Http2Link)
    asked.link.reset(asked, 0x7FFF_FFFF)


def raw(data: bytes) -> Callable[[HttpAsked], None]:
    def serve(asked: HttpAsked) -> None:
        asked.link.raw(data)  # type: ignore[attr-defined]
        asked.link.close()

    return serve


NAMED = SECRET.decode()
SERVERS: dict[str, tuple[str, Callable[[HttpAsked], object]]] = {
    "content type": ("h2", serve_status(200, SECRET, NAMED)),
    "content type with an escape": ("h2", serve_status(200, SECRET, "text/html; \u009b" + NAMED)),
    "status": ("h2", serve_status(418, SECRET, NAMED, location=NAMED)),
    "another question": ("h2", lambda asked: asked.link.answer(asked, bytes(12) + SECRET)),
    "goaway": ("h2", goaway),
    "reset": ("h2", reset),
    "no frame": ("h2", raw(ESCAPE * 900)),
    "content type, 1.1": ("http/1.1", serve_status(200, SECRET, NAMED)),
    "reason phrase, 1.1": ("http/1.1", raw(b"HTTP/1.1 503 " + SECRET + b"\r\n\r\n")),
    "escape, 1.1": ("http/1.1", raw(b"HTTP/1.1 503 " + ESCAPE + b"\r\n\r\n")),
    "header, 1.1": ("http/1.1", raw(b"HTTP/1.1 200 OK\r\n" + SECRET + b"\r\n\r\n")),
    "length, 1.1": ("http/1.1", raw(b"HTTP/1.1 200 OK\r\nContent-Length: " + SECRET + b"\r\n\r\n")),
    "chunk, 1.1": (
        "http/1.1",
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\n"),
    ),
    "no http, 1.1": ("http/1.1", raw(ESCAPE + b"\r\n\r\n")),
}


@pytest.mark.parametrize("what", SERVERS)
def test_http_server_that_throws_a_name_back_is_told_of_without_it(
    what: str, authority: Authority, good: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    alpn, serve = SERVERS[what]

    @on_loop
    async def run() -> None:
        async with DohServer(good, serve, host=HOST, alpn=(alpn,)) as server:
            assert_clean(await told_of(caplog, entry(server, authority)))

    run()


@pytest.mark.parametrize("named", [NAME, "my-secret-name.example"])
def test_certificate_with_names_of_its_own_is_told_of_without_them(
    named: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path, SECRET.decode())
    issued = (stranger if named == NAME else authority).issue([named])

    @on_loop
    async def run() -> None:
        async with TcpPeer(tls=issued.context()) as peer:
            host, port = peer.address[:2]
            ca_file = str(authority.file)
            place = ResolverEntry(0, "dot", host, port, "x", server_name=NAME, ca_file=ca_file)
            told = await told_of(caplog, place)
            assert_clean(told)
            assert any("certificate" in each for each in told)

    run()


@pytest.mark.parametrize(
    "said", [ESCAPE, b"\x15\x03\x01\x00\x02\x02\x28", b"\x16\x03\x03" + SECRET]
)
def test_server_that_says_something_instead_of_a_handshake_is_told_of_without_it(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    @on_loop
    async def run() -> None:
        def greets(link: Link) -> None:
            link.transport.write(said)
            link.transport.close()

        async with TcpPeer(greets=greets, serve=lambda link, wire: None) as peer:
            host, port = peer.address[:2]
            told = await told_of(caplog, ResolverEntry(0, "dot", host, port, "x", insecure=True))
            assert_clean(told)
            assert any("TLS" in each for each in told)

    run()
