"""Proxies to go through and sources to send from, in every form, and what a mistake is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config_errors import AddressError
from relay.ways_out import DIRECT, is_local, parse_bind, parse_via, why_absent


@pytest.mark.parametrize(
    ("text", "proxy", "url"),
    [
        ("socks5://127.0.0.1:1080", ("socks5", "127.0.0.1", 1080, "", ""), None),
        ("SOCKS5H://[0::1]:9050/", ("socks5", "::1", 9050, "", ""), "socks5://[::1]:9050"),
        ("http://P.Example:8080", ("http", "p.example", 8080, "", ""), "http://p.example:8080"),
        ("socks5://u:p@h:1", ("socks5", "h", 1, "u", "p"), None),
        ("http://u%40x:p%3A%2f@h:1", ("http", "h", 1, "u@x", "p:/"), "http://u%40x:p%3A%2F@h:1"),
        ("http://u:p:q@h:1", ("http", "h", 1, "u", "p:q"), "http://u:p%3Aq@h:1"),
        ("http://u@h:1", ("http", "h", 1, "u", ""), "http://u:@h:1"),
    ],
)
def test_parse_via_accepted_form_is_canonical(
    text: str, proxy: tuple[str, str, int, str, str], url: str | None
) -> None:
    found = parse_via(text)

    assert (found.scheme, found.host, found.port, found.user, found.password) == proxy
    assert found.url(found.host) == (url or text)
    assert parse_via(found.url(found.host)) == found
    assert "p" not in str(found).removeprefix("http").replace("p.example", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("127.0.0.1:1080", 'did you mean "socks5://127.0.0.1:1080"?'),
        (
            "socks4://h:1",
            '"socks4://" is neither socks5:// nor http://; did you mean "socks5://h:1"',
        ),
        ("https://h:1", 'did you mean "http://h:1"?'),
        ("ftp://h:1", '"ftp://" is neither'),
        ("socks5://h", 'the port is missing; did you mean "socks5://h:1080"?'),
        ("http://u:secret@[::1]", 'did you mean "http://[::1]:8080"?'),
        ("socks5://h:0", 'port "0" is not a number'),
        ("socks5://:1", "the host is missing"),
        ("socks5://0.0.0.0:1", "0.0.0.0 is not the address of one host"),
        ("http://h:1/x", 'a proxy has no path; did you mean "http://h:1"?'),
        ("http://:secret@h:1", 'the user name before the "@" is missing'),
        ("http://u:secret%@h:1", 'a "%" in a user name or password is written %25'),
        ("http://u:%ff@h:1", "a user name or password is not UTF-8"),
        (f"http://{'secret' * 50}@h:1", "a user name or password has at most 255 bytes"),
        ("secret@h:1", "a proxy is written socks5://HOST:PORT or http://HOST:PORT"),
    ],
)
def test_parse_via_wrong_proxy_says_why_and_no_password(text: str, message: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_via(text)

    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=60) | st.from_regex(r"(socks5|http)://.{0,30}@.{0,20}", fullmatch=True))
def test_parse_via_any_text_gives_a_proxy_or_its_own_error(text: str) -> None:
    try:
        found = parse_via(text)
    except AddressError:
        return
    assert found == DIRECT or parse_via(found.url(found.host)) == found


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("eth0", "eth0"),
        ("wg-home.1", "wg-home.1"),
    ],
)
def test_parse_bind_accepted_form_is_canonical(text: str, bind: str) -> None:
    assert parse_bind(text) == bind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("192.0.2.1:53", 'a source address has no port; did you mean "192.0.2.1"?'),
        ("[2001:db8::1]:0", "a source address has no port"),
        ("0.0.0.0", "is not the address of one host"),
        ("224.0.0.1", "is not the address of one host"),
        ("fe80::1%eth0", 'name its interface; did you mean "eth0"?'),
        ("a/b", "is neither an IP address nor the name of an interface"),
        ("sixteen-letters-", "is neither an IP address nor the name of an interface"),
        ("..", "is neither an IP address nor the name of an interface"),
    ],
)
def test_parse_bind_wrong_source_says_why(text: str, message: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_bind(text)

    assert message in str(caught.value)


@given(st.text(max_size=40) | st.ip_addresses().map(str))
def test_parse_bind_any_text_gives_a_source_or_its_own_error(text: str) -> None:
    try:
        found = parse_bind(text)
    except AddressError:
        return
    assert parse_bind(found) == found


@pytest.mark.parametrize(
    ("bind", "why"),
    [
        ("127.0.0.1", ""),
        ("lo", ""),
        ("192.0.2.1", "this machine does not have the address now"),
        ("no-such-if", "there is no such interface now"),
    ],
)
def test_why_absent_names_what_is_not_there(bind: str, why: str) -> None:
    assert why_absent(bind) == why


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.9", True), ("192.0.2.1", False), ("0.0.0.0", False), ("a.b", False)],
)
def test_is_local_is_about_addresses_of_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local
