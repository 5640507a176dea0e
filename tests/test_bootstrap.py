"""Names looked up with a list of resolvers: real servers, silent ones, liars, the relay itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay import bootstrap as bootstrap_module
from relay.bootstrap import DEFAULT, LIMIT_S, Bootstrap, BootstrapError, hosts_of
from relay.endpoints import ListenAddress
from relay.resolver_address import AUTO, Options, ResolverAddress, parse
from relay.ways_out import Proxy
from tests.loopback import on_loop
from tests.rig import Nsd, ScriptedResolver, Zone
from tests.rig.certs import Authority
from tests.rig.net import free_address, why_no_ipv6, why_not_installed
from tests.rig.process import RigError
from tests.rig.scripted import Answer, Asked, Reply, Say
from tests.rig.tls_servers import TlsDnsdist
from tests.rig.wire import name_wire, record_wire, reply_wire
from tests.rig.zone import Record

TYPE_A, TYPE_CNAME, TYPE_AAAA = 1, 5, 28
SERVFAIL, NXDOMAIN, REFUSED = 2, 3, 5

NAME = "dns.names.rig"
ADDRESS = parse(f"dot://{NAME}")

V4 = [b"\xc0\x00\x02\x07", b"\xc0\x00\x02\x08"]  # 192.0.2.7 and 8
V6 = bytes.fromhex("20010db8000000000000000000000007")


def qtype_of(asked: Asked) -> int:
    return int.from_bytes(asked.question[-4:-2], "big")


def addresses_reply(asked: Asked, v4: list[bytes], v6: list[bytes]) -> bytes:
    kind = qtype_of(asked)
    records = {TYPE_A: v4, TYPE_AAAA: v6}.get(kind, [])
    return reply_wire(asked.wire, [record_wire(kind, data) for data in records])


def both(asked: Asked) -> Reply:
    return addresses_reply(asked, V4, [V6])


def code(rcode: int) -> Answer:
    return lambda asked: reply_wire(asked.wire, rcode=rcode)


def silent(_: Asked) -> Reply:
    return None


def over(*resolvers: ScriptedResolver, listens: tuple[ListenAddress, ...] = ()) -> Bootstrap:
    return Bootstrap([parse(str(each.address)) for each in resolvers], listens)


async def failure_of(bootstrap: Bootstrap, address: ResolverAddress = ADDRESS) -> str:
    with pytest.raises(BootstrapError) as caught:
        await bootstrap.look_up(address)
    return str(caught.value)


# -- real servers ------------------------------------------------------------------------------


@on_loop
async def test_look_up_asks_a_real_server_for_both_ip_versions_and_follows_aliases(
    workdir: Path,
) -> None:
    if why := why_not_installed("nsd"):
        pytest.skip(why)
    records = [
        Record(NAME, TYPE_A, V4[0]),
        Record(NAME, TYPE_A, V4[1]),
        Record(NAME, TYPE_AAAA, V6),
        Record("alias.names.rig", TYPE_CNAME, name_wire(NAME)),
        Record("many.names.rig", TYPE_A, b"\xc0\x00\x02\x01"),
        *(Record("many.names.rig", TYPE_A, bytes([198, 51, n, 1])) for n in range(200)),
    ]
    zone = Zone("names.rig", records, wildcard_text_bytes=None)
    with Nsd([zone], workdir=workdir, edns_size_bytes=512) as nsd:
        for scheme in ("udp", "tcp"):
            bootstrap = Bootstrap([parse(f"{scheme}://{nsd.address}")], [])
            for name in (NAME, "alias.names.rig"):
                found = await bootstrap.look_up(parse(f"https://{name}/q"))
                assert set(found) == {"192.0.2.7", "192.0.2.8", "2001:db8::7"}
                assert set(found[:2]) == {"192.0.2.7", "192.0.2.8"} or found[0] == "2001:db8::7"
            # More than a datagram holds: asked for again over TCP.
            assert len(await bootstrap.look_up(parse("dot://many.names.rig"))) == 8
            missing = await failure_of(bootstrap, parse("dot://missing.names.rig"))
            assert missing == f"no such name ({scheme}://{nsd.address})"


@on_loop
async def test_look_up_over_dot_verifies_the_server(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := why_not_installed("nsd", "dnsdist"):
        pytest.skip(why)
    authority = Authority(workdir)
    zone = Zone("names.rig", [Record(NAME, TYPE_A, V4[0])])
    with (
        Nsd([zone], workdir=workdir) as nsd,
        TlsDnsdist(
            [nsd.address], authority.issue(["dns.rig"]), workdir=workdir, host="127.0.0.1"
        ) as server,
    ):
        right = Bootstrap([parse(f"dot://dns.rig:{server.dot.port}#127.0.0.1")], [])
        assert "the certificate is " in await failure_of(right)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert await right.look_up(ADDRESS) == ["192.0.2.7"]
        wrong = Bootstrap([parse(f"dot://other.rig:{server.dot.port}#127.0.0.1")], [])
        assert "other.rig" in await failure_of(wrong)


# -- the list ----------------------------------------------------------------------------------


@on_loop
async def test_look_up_silent_resolver_is_passed_over_and_does_not_hold_it_up() -> None:
    with ScriptedResolver(silent) as mute, ScriptedResolver(both) as good:
        began_at = time.monotonic()
        assert len(await over(mute, good).look_up(ADDRESS)) == 3
        assert time.monotonic() - began_at < LIMIT_S / 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (code(NXDOMAIN), "no such name"),
        (code(SERVFAIL), "answered SERVFAIL"),
        (code(REFUSED), "answered REFUSED"),
        (lambda asked: reply_wire(asked.wire), "the name has no address"),
        (
            lambda asked: addresses_reply(asked, [bytes(4)], [bytes(16)]),
            "the answer is 0.0.0.0, which is no host",
        ),
    ],
)
def test_look_up_resolver_that_fails_is_passed_over_at_once(answer: Answer, reason: str) -> None:
    @on_loop
    async def run() -> None:
        with ScriptedResolver(answer) as bad, ScriptedResolver(both) as good:
            began_at = time.monotonic()
            assert len(await over(bad, good).look_up(ADDRESS)) == 3
            assert time.monotonic() - began_at < bootstrap_module.NEXT_AFTER_S
            found = await failure_of(over(bad, bad))
            assert found == f"{reason} (udp://{bad.address})" or found.startswith("the answer is ")

    run()


@on_loop
async def test_look_up_port_that_is_closed_is_told() -> None:
    closed = free_address()
    for scheme in ("udp", "tcp", "dot"):
        found = await failure_of(Bootstrap([parse(f"{scheme}://{closed}")], []))
        assert found.startswith("Connection refused (")


@on_loop
async def test_look_up_over_dot_of_a_server_without_tls_is_told() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    place = free_address()
    async with await asyncio.start_server(refuse, *place):
        found = await failure_of(Bootstrap([parse(f"dot://{place}")], []))
    assert found.startswith("does not speak TLS on this port")


@on_loop
async def test_look_up_without_any_answer_ends_in_time_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap_module, "LIMIT_S", 0.3)
    monkeypatch.setattr(bootstrap_module, "NEXT_AFTER_S", 0.05)
    with ScriptedResolver(silent) as one, ScriptedResolver(silent) as two:
        began_at = time.monotonic()
        assert await failure_of(over(one, two)) == f"no answer (udp://{one.address} and 1 more)"
        assert time.monotonic() - began_at < 2.0
    assert len(asyncio.all_tasks()) == 2  # this test, and its time limit


@on_loop
async def test_look_up_in_vain_turns_to_the_next_resolver_first() -> None:
    first = code(NXDOMAIN)
    with ScriptedResolver(both) as one, ScriptedResolver(first) as two:
        bootstrap = over(one, two)
        for turn in range(4):
            await bootstrap.look_up(ADDRESS, turn)
        two.wait_for_count(4)
        assert (one.count, two.count) == (8, 4)


@on_loop
async def test_look_up_one_ip_version_unanswered_gives_the_other() -> None:
    def answer(asked: Asked) -> Reply:
        return both(asked) if qtype_of(asked) == TYPE_AAAA else None

    with ScriptedResolver(answer) as half:
        assert await over(half).look_up(ADDRESS) == ["2001:db8::7"]


@on_loop
async def test_look_up_addresses_without_a_route_come_last() -> None:
    def answer(asked: Asked) -> Reply:
        return addresses_reply(asked, [b"\x7f\0\0\1"], [bytes(15) + b"\1"])

    with ScriptedResolver(answer) as resolver:
        found = await over(resolver).look_up(ADDRESS)
    assert found == ["127.0.0.1", "::1"]


@on_loop
async def test_look_up_only_what_the_source_address_can_reach() -> None:
    with ScriptedResolver(both) as resolver:
        bound = parse(f"dot://{NAME}", Options(bind="127.0.0.99"))
        assert set(await over(resolver).look_up(bound)) == {"192.0.2.7", "192.0.2.8"}
        assert [asked.client[0] for asked in resolver.asked] == ["127.0.0.99"]
        absent = parse(f"dot://{NAME}", Options(bind="192.0.2.99"))
        assert "Cannot assign requested address" in await failure_of(over(resolver), absent)
        interface = parse(f"dot://{NAME}", Options(bind="no-such-if"))
        assert "No such device" in await failure_of(over(resolver), interface)
        assert len(await over(resolver).look_up(parse(f"dot://{NAME}", Options(bind="lo")))) == 3


@on_loop
async def test_look_up_of_a_proxy_is_about_the_proxys_name() -> None:
    with ScriptedResolver(both) as resolver:
        via = Options(via=Proxy("socks5", "proxy.rig", 1080))
        await over(resolver).look_up(parse("dot://dns.rig", via))
        assert {bytes(asked.question[:11]) for asked in resolver.asked} == {b"\x05proxy\x03rig\0"}


@on_loop
async def test_look_up_over_ipv6() -> None:
    if why := why_no_ipv6():
        pytest.skip(why)
    with ScriptedResolver(both, host="::1") as resolver:
        for scheme in ("udp", "tcp"):
            bootstrap = Bootstrap([parse(f"{scheme}://{resolver.address}")], [])
            assert len(await bootstrap.look_up(ADDRESS)) == 3


# -- what is no answer -------------------------------------------------------------------------


@on_loop
async def test_look_up_forged_replies_do_not_count() -> None:
    def answer(asked: Asked) -> Reply:
        right = both(asked)
        assert isinstance(right, bytes)
        lie = addresses_reply(asked, [b"\x06\x06\x06\x06"], [])
        return [
            bytes([lie[0] ^ 1]) + lie[1:],  # of another question
            lie[:20],
            b"",
            Say(lie, spoofed=True),
            lie.replace(b"names", b"nemas"),
            Say(right, after_s=0.05),
        ]

    with ScriptedResolver(answer) as resolver:
        assert "6.6.6.6" not in await over(resolver).look_up(ADDRESS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=80), st.booleans(), st.booleans())
def test_look_up_any_reply_gives_addresses_or_its_own_error(
    tail: bytes, is_framed: bool, has_header: bool
) -> None:
    def answer(asked: Asked) -> Reply:
        head = asked.wire[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + asked.question if has_header else b""
        return Say(head + tail, raw=not is_framed, close=True)

    @on_loop
    async def run() -> None:
        with ScriptedResolver(answer) as resolver:
            bootstrap = Bootstrap([parse(f"tcp://{resolver.address}")], [])
            try:
                found = await bootstrap.look_up(ADDRESS)
            except BootstrapError as error:
                found = [str(error)]
            assert found

    run()


# -- the relay itself, and this machine --------------------------------------------------------


@on_loop
async def test_look_up_never_asks_the_relay_itself() -> None:
    with ScriptedResolver(both) as own, ScriptedResolver(both) as other:
        port = own.address.port
        for listen in (ListenAddress("127.0.0.1", port), ListenAddress("0.0.0.0", port)):
            assert len(await over(own, other, listens=(listen,)).look_up(ADDRESS)) == 3
            found = await failure_of(over(own, listens=(listen,)))
            assert found == "no bootstrap resolver is left: the relay itself listens there"
            over_tcp = Bootstrap([parse(f"tcp://{own.address}")], [listen])
            assert await failure_of(over_tcp) == found
        with pytest.raises(RigError):
            own.wait_for_count(1, 0.1)


@on_loop
async def test_look_up_of_auto_asks_the_devices_own_resolvers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedResolver(both) as own, ScriptedResolver(both) as device:
        found = (parse(str(own.address)), parse(str(device.address)))
        monkeypatch.setattr(bootstrap_module, "device_resolvers", lambda: found)
        listen = ListenAddress(own.address.host, own.address.port)
        assert len(await Bootstrap([AUTO], [listen]).look_up(ADDRESS)) == 3
        assert (own.count, device.count) == (0, 2)


def test_default_list_is_well_known_addresses_and_then_the_devices() -> None:
    assert {"8.8.8.8", "1.1.1.1", "9.9.9.9", "2620:fe::fe"} <= {each.host for each in DEFAULT}
    assert DEFAULT[-1] is AUTO
    assert not any(each.unresolved for each in DEFAULT)


@on_loop
async def test_look_up_hosts_file_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"192.0.2.99 other {NAME} # comment\n")
    read = hosts_of
    monkeypatch.setattr(bootstrap_module, "hosts_of", lambda name: read(name, hosts))
    with ScriptedResolver(both) as resolver:
        assert await over(resolver).look_up(ADDRESS) == ["192.0.2.99"]
        assert resolver.count == 0


def test_hosts_of_reads_what_the_file_says_and_skips_the_rest(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_bytes(
        b"127.0.0.1 localhost\n::1 ip6-localhost Name.Rig.\n"
        b"#192.0.2.1 name.rig\nnonsense name.rig\n"
        b"192.0.2.2\tname.rig#x\n\xff\xfe name.rig\n192.0.2.2 name.rig\n\n192.0.2.3\n"
    )
    assert hosts_of("name.rig", hosts) == ["::1", "192.0.2.2"]
    assert hosts_of("localhost", hosts) == ["127.0.0.1"]
    assert hosts_of("missing.rig", hosts) == []
    assert hosts_of("a.localhost", tmp_path / "none") == ["127.0.0.1", "::1"]
