"""Every "did you mean" can be taken at its word: what it suggests is read without an error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config_errors import BadValue, ConfigProblems
from relay.config_file import Document
from relay.config_model import file_spec
from relay.durations import parse_duration, parse_duration_within
from relay.endpoints import parse_control, parse_listen
from relay.resolver_address import Options, parse
from relay.resolver_list import parse_bootstrap
from relay.ways_out import Proxy, parse_bind, parse_via

HOSTS = [
    "8.8.8.8",
    "8.8.8.8.8",
    "2001:db8::1",
    "[2001:db8::1]",
    "[2001:db8::1",
    "[8.8.8.8]",
    "[dns.example]",
    "1:2:3:4:5:6:7:8:53",
    "2001:db8::1%eth0",
    "fe80::1",
    "fe80::1%eth0",
    "[fe80::1%eth0]",
    "dns.example",
    "-dns.example",
    "d" * 60 + "." + "e" * 60 + ".example",
    "0.0.0.0",
    "224.0.0.1",
    "127.0.0.1",
    "localhost",
    "eth0",
    "",
]
BEFORE = ["", "udp://", "tcp://", "dot://", "tls://", "https://", "http://", "doh://", "h3://"]
BEFORE += ["upd://", "tpc://", "httsp://", "socks5://", "socks://", "tor://", "soks5://", "quic://"]
BEFORE += ["tcp:/", "tcp//", "dot:///", "https:/", "unix:", "auto", "sdns://"]
AFTER = ["", ":53", ":", ":0", ":99999", ":x", "/dns-query", "/", "/a b", ":443/q", "/q{?dns}"]
PINS = [
    "",
    "#",
    "#8.8.8.8",
    "#dns.google",
    "#-bad",
    "#53",
    "#99999",
    "#8.8.8.8,8.8.4.4",
    "#fe80::1",
]
TEXTS = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(BEFORE),
    st.sampled_from(["", "", "user@", "user:pass@", "a@b@", '"@', "@"]),
    st.sampled_from(HOSTS),
    st.sampled_from(AFTER),
    st.sampled_from(PINS),
)
WAYS = [None, Proxy("socks5", "192.0.2.1", 1080), Proxy("direct")]
OPTIONS = st.none() | st.builds(
    Options,
    server_name=st.sampled_from(["", "a.b"]),
    ca_file=st.sampled_from(["", "/ca.pem"]),
    insecure=st.booleans(),
    path=st.sampled_from(["", "/q", "q", "/a b"]),
    get=st.sampled_from([None, True, False]),
    via=st.sampled_from(WAYS),
    bind=st.sampled_from(["", "eth0"]),
)
READERS: list[Callable[[str], object]] = [
    parse,
    parse_bootstrap,
    parse_via,
    parse_bind,
    parse_listen,
    parse_control,
    parse_duration,
    lambda text: parse_duration_within(text, 0.05, 60.0),
]
SHOWN = re.compile(r'did you mean "(.*)"\?$')


def failure_of(read: Callable[[str], object], text: str) -> BadValue | None:
    try:
        read(text)
    except BadValue as error:
        return error
    return None


def assert_suggestion_reads(read: Callable[[str], object], text: str) -> str:
    """Read a text; where that fails with a suggestion, read that one as it is shown."""
    error = failure_of(read, text)
    if error is None or not error.suggestion:
        return ""
    shown = SHOWN.search(str(error))
    assert shown, error
    again = failure_of(read, shown[1])
    assert again is None, f"{error}\nbut: {again}"
    return error.reason


@given(TEXTS | st.text(max_size=40), OPTIONS)
def test_suggestion_for_a_resolver_reads(text: str, options: Options | None) -> None:
    assert_suggestion_reads(lambda each: parse(each, options), text)


@pytest.mark.parametrize("read", READERS)
@given(
    text=TEXTS
    | st.text(max_size=40)
    | st.from_regex(r"[0-9.]{0,40} ?(s|sec|minutes|H|ms|)", fullmatch=True)
)
def test_suggestion_for_any_other_value_reads(read: Callable[[str], object], text: str) -> None:
    assert_suggestion_reads(read, text)


@given(st.integers() | st.floats())
def test_suggestion_for_a_number_that_is_no_duration_reads(number: float) -> None:
    def problem_of(value: object) -> str:
        document = Document(Path("relay.json"), False, "", {"pools": [{"smart_pool": value}]})
        try:
            file_spec(document)
        except ConfigProblems as error:
            return str(error)
        return ""

    for field in ("deadline", "per_attempt", "token_wait", "tcp_idle"):
        if shown := SHOWN.search(problem_of({field: number})):
            assert problem_of({field: shown[1]}) == ""


def test_suggestions_are_not_lost_where_they_help() -> None:
    told: Counter[str] = Counter()
    for before in BEFORE:
        for host in HOSTS:
            for after in AFTER:
                for pins in PINS:
                    text = f"{before}{host}{after}{pins}"
                    told[assert_suggestion_reads(parse, text).partition('"')[0]] += 1
    assert len(told) >= 8, told


@pytest.mark.parametrize(
    ("read", "text", "meant"),
    [
        (parse, "dot://[2001:db8::1", "dot://[2001:db8::1]"),
        (parse, "https://user@dns.example/q", "https://dns.example/q"),
        (parse, "tcp://1:2:3:4:5:6:7:8:53", "tcp://[1:2:3:4:5:6:7:8]:53"),
        (parse, "tcp://fe80::1", "tcp://fe80::1%eth0"),
        (parse_bootstrap, "https://dns.google/dns-query#8.8.8.8", "dot://dns.google#8.8.8.8"),
        (parse_bootstrap, "https://[2001:db8::1]/q", "dot://[2001:db8::1]"),
        (parse_bootstrap, "https://dns.google/dns-query", ""),
        (parse_via, "user@", ""),
        (parse_bind, "fe80::1%eth0", "eth0"),
        (parse_listen, "5300", "127.0.0.1:5300"),
    ],
)
def test_suggestion_keeps_what_was_right(
    read: Callable[[str], object], text: str, meant: str
) -> None:
    with pytest.raises(BadValue) as caught:
        read(text)
    assert caught.value.suggestion == meant
