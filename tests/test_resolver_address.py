"""Addresses of resolvers: every form, one canonical spelling, and what a mistake is told."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.config_errors import AddressError, ConfigError
from relay.endpoints import ListenAddress
from relay.resolver_address import (
    AUTO,
    Options,
    ResolverAddress,
    loops_back,
    parse,
    with_defaults,
)
from relay.ways_out import DIRECT, Proxy

NAME = st.from_regex(r"[a-z][a-z0-9-]{0,20}[a-z0-9](\.[a-z]{2,10}){1,3}", fullmatch=True)
IPV4 = st.ip_addresses(v=4).filter(
    lambda ip: not (ip.is_unspecified or ip.is_multicast or str(ip) == "255.255.255.255")
)
IPV6 = st.ip_addresses(v=6).filter(
    lambda ip: not (ip.is_unspecified or ip.is_multicast or ip.is_link_local or ip.ipv4_mapped)
)
PORT = st.integers(1, 65535)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("8.8.8.8", "udp://8.8.8.8:53"),
        (" 8.8.8.8:5353\t", "udp://8.8.8.8:5353"),
        ("UDP://8.8.8.8", "udp://8.8.8.8:53"),
        ("tcp://8.8.8.8", "tcp://8.8.8.8:53"),
        ("tcp://8.8.8.8:54", "tcp://8.8.8.8:54"),
        ("dot://1.1.1.1", "dot://1.1.1.1:853"),
        ("tls://1.1.1.1:853", "dot://1.1.1.1:853"),
        ("https://cloudflare-dns.com/dns-query", "https://cloudflare-dns.com:443/dns-query"),
        ("https://Dns.Google:443/dns-query{?dns}", "https://dns.google:443/dns-query"),
        ("https://x.example/q?token=a%20b", "https://x.example:443/q?token=a%20b"),
        ("https://[2606:4700::1111]/", "https://[2606:4700::1111]:443/"),
        ("2001:DB8:0:0::1", "udp://[2001:db8::1]:53"),
        ("[2001:db8::1]", "udp://[2001:db8::1]:53"),
        ("[2001:db8::1]:5353", "udp://[2001:db8::1]:5353"),
        ("tcp://2001:db8::1", "tcp://[2001:db8::1]:53"),
        ("::ffff:8.8.8.8", "udp://8.8.8.8:53"),
        ("fe80::1%eth0", "udp://[fe80::1%eth0]:53"),
        ("tcp://[fe80::1%25eth0]:54", "tcp://[fe80::1%eth0]:54"),
        ("Resolver.Example.", "udp://resolver.example:53"),
        ("localhost", "udp://localhost:53"),
        ("my_resolver:53", "udp://my_resolver:53"),
        ("https://dns.google/dns-query#8.8.8.8", "https://dns.google:443/dns-query#8.8.8.8"),
        (
            "dot://dns.google#8.8.8.8, [2001:4860:4860:0::8888],8.8.8.8",
            "dot://dns.google:853#8.8.8.8,2001:4860:4860::8888",
        ),
        ("tls://8.8.8.8#8.8.8.8", "dot://8.8.8.8:853"),
        ("Auto", "auto"),
        ("https://x.example/a,b", "https://x.example:443/a,b"),
    ],
)
def test_parse_accepted_form_gives_canonical_address(text: str, canonical: str) -> None:
    address = parse(text)

    assert str(address) == canonical
    assert parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a" * 1025, "longer than 1,024 characters"),
        ("8.8.8.8\x00", "holds a control character"),
        ("8.8.8.8\n1.1.1.1", "holds a control character"),
        (
            "8.8.8.8,1.1.1.1",
            '"8.8.8.8,1.1.1.1": names several resolvers; each goes into an entry of',
        ),
        ("8.8.8.8; dns.google", "each goes into an entry of its own"),
        ("8.8.8,1.1.1.1", "each goes into an entry of its own"),
        ("auto,8.8.8.8", "each goes into an entry of its own"),
        ("https://a.example/q,https://b.example/q", "each goes into an entry of its own"),
        ("dot://a.example#8.8.8.8,dot://b.example", "each goes into an entry of its own"),
        ("sdns://AA,sdns://BB", "each goes into an entry of its own"),
        ("8.8.8.8,", '"8," has a character that no name has'),
        ("dot://dns.google#8.8.8.8,x", 'stand IP addresses of the server, not "x"'),
        ("8.8.8.8:0", 'port "0" is not a number from 1 to 65535'),
        ("8.8.8.8:65536", 'port "65536" is not a number from 1 to 65535'),
        ("8.8.8.8:+53", 'port "+53" is not'),
        ("8.8.8.8:५३", 'port "५३" is not'),
        ("8.8.8.8:", "the port after the colon is missing"),
        (":53", "the host is missing"),
        ("udp://", "the host is missing"),
        ("8.8.8", '"8.8.8" is not an IPv4 address'),
        ("08.8.8.8", '"08.8.8.8" is not an IPv4 address'),
        ("256.1.1.1", '"256.1.1.1" is not an IPv4 address'),
        ("0x7f000001", "is not an IPv4 address"),
        ("1.2.3.4.5", "is not an IPv4 address"),
        ("2001:db8::g", '"2001:db8::g" is not an IPv6 address'),
        ("1:2:3:4:5:6:7:8:53", 'did you mean "[1:2:3:4:5:6:7:8]:53"?'),
        ("[::1", 'the "[" is not closed; did you mean "[::1]"?'),
        ("[8.8.8.8]:53", 'only an IPv6 address stands in brackets; did you mean "8.8.8.8:53"?'),
        ("[::1]53", 'only ":port" may follow the "]"'),
        ("8.8.8.8%eth0", '"8.8.8.8%eth0" is not an IPv6 address'),
        ("2001:db8::1%eth0", "only a link-local address (fe80::) has a zone; did you mean"),
        ("fe80::1%", "the zone after the % is not an interface's name"),
        ("fe80::1%e/0", "only https:// has a path"),
        ("fe80::1", 'a link-local address needs its interface; did you mean "fe80::1%eth0"?'),
        ("dot://[fe80::1%eth0]", "a link-local address is for udp:// and tcp:// only"),
        ("0.0.0.0", "0.0.0.0 is not the address of one host"),
        ("[::]:53", ":: is not the address of one host"),
        ("224.0.0.1", "is not the address of one host"),
        ("255.255.255.255", "is not the address of one host"),
        ("user@8.8.8.8", 'no user name or password; did you mean "8.8.8.8"?'),
        ("https://a:b@x.example/q", "no user name or password"),
        ("http://x.example/q", 'did you mean "https://x.example/q"?'),
        ("upd://8.8.8.8", 'did you mean "udp://8.8.8.8"?'),
        (
            "quic://8.8.8.8",
            '"quic://" is not udp://, tcp://, dot:// (tls://), https:// or sdns://',
        ),
        ("tcp:/8.8.8.8", 'a scheme is followed by "://"; did you mean "tcp://8.8.8.8"?'),
        ("tcp//8.8.8.8", 'a scheme is followed by "://"; did you mean "tcp://8.8.8.8"?'),
        ("udp://8.8.8.8/x", 'only https:// has a path; did you mean "udp://8.8.8.8"?'),
        ("https://x.example", 'is missing; did you mean "https://x.example/dns-query"?'),
        ("https://x.example/q#f", 'stand IP addresses of the server, not "f"'),
        ("https://x.example/q#", 'stand IP addresses of the server, not ""'),
        ("https://x.example/q#8.8.8.8,", 'stand IP addresses of the server, not ""'),
        ("https://x.example/q#8.8.8.8:443", 'stand IP addresses of the server, not "8.8.8.8:443"'),
        ("https://x.example/q#0.0.0.0", "0.0.0.0 is not the address of one host"),
        ("dot://x.example#fe80::1", "a link-local address needs its interface"),
        ("dot://x.example#" + ",".join(f"10.0.0.{n}" for n in range(9)), "at most 8 addresses"),
        (
            "dot://8.8.8.8#Dns.Google",
            'stand IP addresses of the server, not "Dns.Google"; '
            'did you mean "dot://dns.google#8.8.8.8"?',
        ),
        (
            "https://8.8.8.8:444/q#dns.google",
            'did you mean "https://dns.google:444/q#8.8.8.8"?',
        ),
        (
            "dot://8.8.8.8#8.8.4.4",
            'needs no other one to connect to; did you mean "dot://8.8.8.8:853"?',
        ),
        (
            "8.8.8.8#5353",
            'only dot:// and https:// have addresses after a "#"; did you mean '
            '"udp://8.8.8.8:5353"?',
        ),
        ("tcp://dns.example#8.8.8.8", 'did you mean "tcp://dns.example:53"?'),
        ("https://x.example/a b", "a character that belongs %-escaped"),
        ("https:///q", 'a scheme is followed by "://"'),
        ("https://:443/q", "the host is missing"),
        ("rés.example", "a name is written in ASCII"),
        ("a..example", "the name has an empty label"),
        ("a b.example", '"a b" has a character that no name has'),
        ("-a.example", '"-a" starts or ends with a hyphen'),
        (f"{'a' * 64}.example", "a label of the name has more than 63 characters"),
        (".".join(["abcdefg"] * 32), "a name has at most 253 characters"),
    ],
)
def test_parse_wrong_address_says_why(text: str, message: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse(text)

    assert isinstance(caught.value, ConfigError)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


@given(st.text(max_size=80))
@example("[]:1")
@example("%")
@example("udp://[::1%]:1")
def test_parse_any_text_gives_canonical_address_or_its_own_error(text: str) -> None:
    try:
        found: ResolverAddress | str = parse(text)
    except AddressError as error:
        found = str(error)

    if isinstance(found, str):
        assert found.isprintable()
    else:
        assert parse(str(found)) == found
        assert found.is_auto or 1 <= found.port <= 65535


@given(
    st.lists(
        st.sampled_from(
            [
                "udp",
                "tcp",
                "dot",
                "https",
                "://",
                ":",
                "[",
                "]",
                "::",
                "%",
                "@",
                "/",
                "#",
                ",",
                "sdns",
                ".",
                "1",
                "fe80",
            ]
        ),
        max_size=12,
    )
)
def test_parse_shuffled_parts_give_canonical_address_or_its_own_error(parts: list[str]) -> None:
    try:
        address = parse("".join(parts))
    except AddressError:
        return
    assert parse(str(address)) == address


@given(IPV4 | IPV6, PORT, st.sampled_from(["udp", "tcp", "dot"]))
def test_parse_ip_in_every_spelling_gives_equal_addresses(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, scheme: str
) -> None:
    spellings = (
        [f"[{ip.exploded}]", f"[{ip.compressed}]", f"[{ip.exploded.upper()}]"]
        if ip.version == 6
        else [str(ip)]
    )

    found = {parse(f"{s}://{host}:{port}") for host in spellings for s in (scheme, scheme.upper())}

    assert len(found) == 1
    (address,) = found
    assert ipaddress.ip_address(address.host) == ip
    assert (address.scheme, address.port, address.unresolved) == (scheme, port, "")


@given(NAME, PORT)
def test_parse_name_in_every_case_gives_equal_addresses(name: str, port: int) -> None:
    found = {parse(f"{spelling}:{port}") for spelling in (name, name.upper(), f"{name}.")}

    assert found == {ResolverAddress("udp", name, port)}
    assert next(iter(found)).unresolved == name


def test_parse_default_port_equals_no_port() -> None:
    assert parse("8.8.8.8") == parse("udp://8.8.8.8:53")
    assert parse("tls://1.1.1.1") == parse("DOT://1.1.1.1:853")
    assert parse("8.8.8.8") != parse("tcp://8.8.8.8")


def test_address_auto_is_neither_name_nor_encrypted() -> None:
    assert parse("auto") is AUTO
    assert AUTO.is_auto
    assert not AUTO.unresolved
    assert not AUTO.is_encrypted


@pytest.mark.parametrize(
    ("text", "encrypted"),
    [("8.8.8.8", False), ("tcp://8.8.8.8", False), ("tls://a.b", True), ("https://a.b/q", True)],
)
def test_address_encrypted_follows_scheme(text: str, encrypted: bool) -> None:
    assert parse(text).is_encrypted is encrypted


@pytest.mark.parametrize(
    ("resolver", "listen", "loops"),
    [
        ("127.0.0.1:5300", ("127.0.0.1", 5300), True),
        ("tcp://127.0.0.1:5300", ("127.0.0.1", 5300), True),
        ("127.0.0.9:5300", ("0.0.0.0", 5300), True),
        ("[::1]:5300", ("::", 5300), True),
        ("127.0.0.2:5300", ("127.0.0.1", 5300), False),
        ("127.0.0.1:5301", ("127.0.0.1", 5300), False),
        ("8.8.8.8:53", ("0.0.0.0", 53), False),
        ("localhost:53", ("127.0.0.1", 53), False),
        ("auto", ("127.0.0.1", 0), False),
    ],
)
def test_loops_back_own_listener_is_seen(
    resolver: str, listen: tuple[str, int], loops: bool
) -> None:
    assert loops_back(parse(resolver), ListenAddress(*listen)) is loops


# -- what is said beside an address ------------------------------------------------------------

PROXY = Proxy("socks5", "192.0.2.1", 1080)


@pytest.mark.parametrize(
    ("text", "options", "canonical"),
    [
        ("dns.google", Options(path="/dns-query"), "https://dns.google:443/dns-query"),
        ("https://dns.google", Options(path="/q"), "https://dns.google:443/q"),
        ("https://dns.google/q", Options(path="/q"), "https://dns.google:443/q"),
        ("8.8.8.8:853", Options(server_name="dns.google"), "dot://8.8.8.8:853"),
        ("8.8.8.8", Options(insecure=True), "dot://8.8.8.8:853"),
        ("dns.google#8.8.8.8", Options(ca_file="/ca.pem"), "dot://dns.google:853#8.8.8.8"),
        ("8.8.8.8", Options(path="/q", server_name="a.b"), "https://8.8.8.8:443/q"),
        ("8.8.8.8", Options(weight=3, bind="eth0"), "udp://8.8.8.8:53"),
        ("8.8.8.8", Options(via=DIRECT), "udp://8.8.8.8:53"),
    ],
)
def test_parse_address_with_options_is_of_the_kind_that_they_tell(
    text: str, options: Options, canonical: str
) -> None:
    address = parse(text, options)

    assert str(address) == canonical
    assert (address.server_name, address.ca_file) == (options.server_name, options.ca_file)
    assert (address.insecure, address.weight) == (options.insecure, options.weight)
    assert (address.via, address.bind) == (options.via, options.bind)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("udp://8.8.8.8", Options(server_name="a.b"), '"server_name" is for dot:// and https://'),
        ("tcp://8.8.8.8", Options(insecure=True), 'did you mean "dot://8.8.8.8"?'),
        ("auto", Options(ca_file="/x"), '"ca_file" is for dot:// and https:// only'),
        ("tcp://8.8.8.8", Options(path="/q"), "only https:// has a path; did you mean"),
        ("https://a.b/q", Options(path="/r"), 'has another path than the field "path": /r'),
        ("https://a.b", Options(path="q"), 'the path "q" starts with no "/"'),
        ("https://a.b", Options(weight=2), "the path of an https:// resolver is missing"),
        ("dot://a.b", Options(get=True), '"method" is for https:// only'),
        ("8.8.8.8", Options(via=PROXY), 'did you mean "tcp://8.8.8.8:53"?'),
        ("auto", Options(via=PROXY), '"via" is for tcp://, dot:// and https:// only'),
        ("dot://a.b", Options(insecure=True, ca_file="/x"), '"ca_file" is of no use'),
    ],
)
def test_parse_options_that_do_not_go_together_are_told(
    text: str, options: Options, message: str
) -> None:
    with pytest.raises(AddressError) as caught:
        parse(text, options)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (parse("dot://dns.google"), "dns.google"),
        (parse("dot://dns.google#8.8.8.8"), ""),
        (parse("tcp://dns.google", Options(via=PROXY)), ""),
        (parse("tcp://dns.google", Options(via=DIRECT)), "dns.google"),
        (parse("dot://8.8.8.8", Options(via=Proxy("http", "p.example", 80))), "p.example"),
        (parse("dot://a.b#8.8.8.8", Options(via=Proxy("http", "p.example", 80))), "p.example"),
    ],
)
def test_address_unresolved_is_the_name_that_the_relay_itself_needs(
    address: ResolverAddress, name: str
) -> None:
    assert address.unresolved == name


def test_with_defaults_the_pools_ways_out_are_for_those_that_name_none() -> None:
    other = Proxy("http", "192.0.2.2", 80)
    given = [
        with_defaults(address, PROXY, "eth0")
        for address in (
            parse("tcp://a.b"),
            parse("tcp://a.b", Options(via=other, bind="eth1")),
            parse("tcp://a.b", Options(via=DIRECT)),
            parse("udp://a.b"),
            AUTO,
        )
    ]

    assert [address.proxy for address in given] == [PROXY, other, None, None, None]
    assert [address.bind for address in given] == ["eth0", "eth1", "eth0", "eth0", "eth0"]
    assert given[0].shown == "tcp://a.b:53 via socks5://192.0.2.1:1080 from eth0"
    assert given[4].is_auto


@pytest.mark.parametrize(
    ("text", "via", "bind", "fits"),
    [
        ("8.8.8.8", None, "192.0.2.1", True),
        ("2620:fe::fe", None, "192.0.2.1", False),
        ("dot://a.b#8.8.8.8,2620:fe::fe", None, "192.0.2.1", False),
        ("dot://a.b", None, "192.0.2.1", True),
        ("tcp://2620:fe::fe", PROXY, "192.0.2.1", True),
        ("tcp://8.8.8.8", PROXY, "2001:db8::1", False),
        ("2620:fe::fe", None, "eth0", True),
    ],
)
def test_with_defaults_source_of_the_other_ip_version_is_told(
    text: str, via: Proxy | None, bind: str, fits: bool
) -> None:
    if fits:
        assert with_defaults(parse(text), via, bind).bind == bind
    else:
        with pytest.raises(AddressError, match=f"cannot be (asked|reached) from {bind}"):
            with_defaults(parse(text), via, bind)
