"""Encrypted resolvers of every kind through a running relay: they answer, on every way out."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.encrypted import (
    KINDS,
    Ground,
    ask_well,
    blamed,
    burst,
    ground,
    pool,
    relay_of,
    relay_over,
    status_json,
    until_answered,
    wait_for_fault,
    why_not_here,
)
from tests.rig import ScriptedResolver, ask_tcp, ask_udp, free_address, free_port_53
from tests.rig.certs import HOST
from tests.rig.files import FileServer, fetch, noise, sha256
from tests.rig.gate import Gate
from tests.rig.net import why_no_port_53, why_not_installed
from tests.rig.proxies import Microsocks, Tinyproxy
from tests.rig.scripted import Asked, Reply
from tests.rig.tls_servers import PATH, TlsDnsdist, Unbound, doh_url, dot_url, trusting
from tests.rig.tunnels import DOMAIN, Dns2tcpClient, Dns2tcpServer
from tests.rig.wire import (
    NXDOMAIN,
    message_id,
    opt_wire,
    query_wire,
    record_wire,
    reply_wire,
    with_id,
)

pytestmark = pytest.mark.skipif(bool(why_not_here()), reason=why_not_here())

FILE_BYTES = 5_000_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("w")) as made:
        yield made


# -- every kind --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_encrypted_resolver_answers_what_it_says_byte_for_byte(
    servers: Ground, workdir: Path, kind: str
) -> None:
    query = query_wire("MiXeD.t.rig", message_id=0x1234, opt=opt_wire(4096, dnssec_ok=True))
    direct = ask_udp(servers.nsd.address, query)
    with relay_over(workdir, servers.resolver(kind)) as relay:
        through = ask_udp(relay.address, query)
        assert message_id(through) == 0x1234
        if "unbound" in kind:  # it makes the message anew, with its own flags and OPT
            assert through[12 : 12 + 20] == direct[12 : 12 + 20]
            assert len(through) > 900
        else:
            assert through == direct
        assert ask_tcp(relay.address, with_id(query, 7))[2:] == through[2:]
        ask_well(relay.address, 300)
        found = status_json(relay)["pools"][0]["resolvers"][0]
    assert found["state"] == "in_use"
    assert (found["fault"] or "", found["errors"], found["lost"], found["refused"]) == ("", 0, 0, 0)
    assert servers.url(kind) in (found["address"], str(found["address"]).partition("#")[0])


@pytest.mark.parametrize("kind", ["doh-dnsdist", "doh-nginx", "doh1-nginx"])
def test_encrypted_doh_by_get_answers(servers: Ground, workdir: Path, kind: str) -> None:
    with relay_over(workdir, servers.resolver(kind, method="GET")) as relay:
        ask_well(relay.address, 100)
        assert not blamed(relay)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_encrypted_address_as_host_is_checked_against_the_certificate(
    servers: Ground, workdir: Path, host: str
) -> None:
    bare = host.strip("[]")
    with (
        TlsDnsdist(
            [servers.nsd.address],
            servers.authority.issue([bare]),
            workdir=workdir,
            host=bare,
        ) as server,
        relay_of(
            workdir,
            pool("dot", trusting(servers.authority, f"dot://{host}:{server.dot.port}")),
            pool("doh", trusting(servers.authority, f"https://{host}:{server.doh.port}{PATH}")),
        ) as relay,
    ):
        for number in range(2):
            ask_well(relay.pool_address(number), 10)
            assert not blamed(relay, number)


def test_encrypted_reply_too_large_for_a_udp_client_is_cut_with_tc(
    servers: Ground, workdir: Path
) -> None:
    with relay_over(workdir, servers.resolver("doh-dnsdist")) as relay:
        small = ask_udp(relay.address, query_wire("a.t.rig", opt=opt_wire(512)))
        whole = ask_tcp(relay.address, query_wire("a.t.rig", opt=opt_wire(512)))
    assert len(small) <= 512
    assert small[2] & 0x02, "no TC"
    assert len(whole) > 900


# -- names -------------------------------------------------------------------------------------


def test_encrypted_names_are_looked_up_with_bootstrap_and_one_that_fails_harms_no_other(
    servers: Ground, workdir: Path
) -> None:
    names = [f"r{number}.names.rig" for number in range(8)]
    missing = {names[3].encode()}
    certificate = servers.authority.issue(names)

    def answer(asked: Asked) -> Reply:
        labels = asked.question[1:].split(b"\0")[0]
        name = b"r" + labels[1:2] + b".names.rig"
        if name in missing:
            return reply_wire(asked.wire, rcode=NXDOMAIN)
        qtype = int.from_bytes(asked.question[-4:-2], "big")
        return reply_wire(asked.wire, [record_wire(1, b"\x7f\0\0\1")] if qtype == 1 else [])

    with (
        ScriptedResolver(answer) as bootstrap,
        TlsDnsdist([servers.nsd.address], certificate, workdir=workdir) as server,
    ):
        urls = [
            f"dot://{name}:{server.dot.port}"
            if number % 2
            else f"https://{name}:{server.doh.port}{PATH}"
            for number, name in enumerate(names)
        ]
        with relay_of(
            workdir,
            pool(
                "p",
                *(trusting(servers.authority, url) for url in urls),
                bootstrap=[str(bootstrap.address)],
                smart={"load_balance": "roundrobin"},
            ),
        ) as relay:
            until_answered(relay.address)
            ask_well(relay.address, 200)
            found = status_json(relay)["pools"][0]["resolvers"]
            assert len(found) == 8
            faults = {each["address"]: each["fault"] for each in found if each["fault"]}
            assert list(faults) == [urls[3]], faults
            assert names[3] in faults[urls[3]] or "name" in faults[urls[3]], faults
            missing.clear()

            def mended() -> bool:
                ask_well(relay.address, 20)
                one = status_json(relay)["pools"][0]["resolvers"][3]
                return not one["fault"] and one["answered"] > 0

            relay.wait_for(mended, "the missing name is looked up again", 60.0)


def test_encrypted_stamps_name_resolvers_of_every_kind(servers: Ground, workdir: Path) -> None:
    def text(data: bytes) -> bytes:
        return bytes([len(data)]) + data

    def stamp(kind: int, address: str, *rest: bytes) -> str:
        data = bytes([kind]) + bytes(8) + text(address.encode()) + b"".join(rest)
        return "sdns://" + base64.urlsafe_b64encode(data).decode().rstrip("=")

    no_hashes = b"\0"
    dnsdist = servers.dnsdist
    stamps = [
        stamp(0, str(servers.nsd.address)),
        stamp(3, str(dnsdist.dot), no_hashes, text(HOST.encode())),
        stamp(2, str(dnsdist.doh), no_hashes, text(HOST.encode()), text(PATH.encode())),
    ]
    environment = {"SSL_CERT_FILE": str(servers.authority.file)}
    pools = [pool(f"p{number}", each) for number, each in enumerate(stamps)]
    with relay_of(workdir, *pools, environment=environment) as relay:
        for number in range(3):
            ask_well(relay.pool_address(number), 10)


# -- ways out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Microsocks, Tinyproxy])
def test_encrypted_via_a_proxy_every_stream_goes_through_it(
    servers: Ground, workdir: Path, make: type[Microsocks] | type[Tinyproxy]
) -> None:
    if why := why_not_installed(make.__name__.lower()):
        pytest.skip(why)
    named = servers.authority.issue(["localhost"])
    with (
        make(workdir=workdir) as proxy,
        TlsDnsdist([servers.nsd.address], named, workdir=workdir) as local,
        relay_of(
            workdir,
            pool("tcp", f"tcp://{servers.nsd.address}", via=proxy.url),
            pool("dot", servers.resolver("dot-dnsdist"), via=proxy.url),
            pool("doh", servers.resolver("doh-nginx", via=proxy.url)),
            pool("doh1", servers.resolver("doh1-nginx", via=proxy.url)),
            # A name without a pinned address: the proxy looks it up.
            pool(
                "name",
                trusting(servers.authority, doh_url(local.doh, "localhost").partition("#")[0]),
                via=proxy.url,
            ),
        ) as relay,
    ):
        ports = [
            servers.nsd.address.port,
            servers.dnsdist.dot.port,
            servers.nginx.address.port,
            servers.nginx1.address.port,
            local.doh.port,
        ]
        for number, port in enumerate(ports):
            ask_well(relay.pool_address(number), 20)
            assert not blamed(relay, number)
            assert proxy.carried(port) >= 1, f"{port}:\n{proxy.log_text()}"


@pytest.mark.parametrize("make", [Microsocks, Tinyproxy])
def test_encrypted_via_a_proxy_that_refuses_the_password_says_so(
    servers: Ground, workdir: Path, make: type[Microsocks] | type[Tinyproxy]
) -> None:
    if why := why_not_installed(make.__name__.lower()):
        pytest.skip(why)
    with (
        make(workdir=workdir) as proxy,
        relay_of(
            workdir,
            pool("p", servers.resolver("dot-dnsdist"), via=proxy.url.replace("rig:", "rog:")),
            pool("q", servers.resolver("dot-dnsdist"), via=f"socks5://{free_address()}"),
        ) as relay,
    ):
        for number in range(2):
            burst(relay.pool_address(number), 3, timeout_s=0.5)
            wait_for_fault(relay, ["proxy"], number)
            found = status_json(relay)["pools"][number]["resolvers"][0]
            assert proxy.password not in found["fault"]
            assert found["state"] != "down", "a proxy's fault is not the resolver's"


@pytest.mark.parametrize("bind", ["127.0.0.77", "lo"])
def test_encrypted_bind_every_kind_leaves_from_there(
    servers: Ground, workdir: Path, bind: str
) -> None:
    kinds = ("dot-dnsdist", "doh-dnsdist", "doh1-nginx")
    wanted = bind if bind != "lo" else "127.0.0.1"
    with contextlib.ExitStack() as stack:
        udp = stack.enter_context(ScriptedResolver())
        gates = [stack.enter_context(Gate(servers.place(kind))) for kind in kinds]
        gates.append(stack.enter_context(Gate(servers.nsd.address)))
        relay = stack.enter_context(
            relay_of(
                workdir,
                *(
                    pool(kind, servers.resolver(kind, gate.address), bind=bind)
                    for kind, gate in zip(kinds, gates, strict=False)
                ),
                pool("tcp", f"tcp://{gates[-1].address}", bind=bind),
                pool("udp", {"address": str(udp.address), "bind": bind}),
            )
        )
        for number in range(5):
            ask_well(relay.pool_address(number), 5)
        assert {client.host for gate in gates for client in gate.clients} == {wanted}
        assert {asked.client[0] for asked in udp.asked} == {wanted}


# -- a tunnel ----------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@pytest.mark.parametrize("alone", [False, True], ids=["dot-doh-udp", "doh-alone"])
def test_encrypted_tunnel_dns2tcp_file_identical(
    servers: Ground, workdir: Path, alone: bool
) -> None:
    for reason in (why_not_installed("dns2tcpc", "dns2tcpd"), why_no_port_53()):
        if reason:
            pytest.skip(reason)
    payload = noise(FILE_BYTES)
    authority, certificate = servers.authority, servers.certificate
    with (
        FileServer(payload) as files,
        Dns2tcpServer(files.address, workdir=workdir) as tunnel,
        # DoT from unbound: dnsdist would ask the tunnel's server over TCP, which it does not speak.
        Unbound(tunnel.address, certificate, workdir=workdir) as dot,
        TlsDnsdist([tunnel.address], certificate, workdir=workdir) as doh,
    ):
        doh_resolver = trusting(authority, doh_url(doh.doh))
        others = [trusting(authority, dot_url(dot.dot)), str(doh.address)]
        resolvers = [doh_resolver] if alone else [doh_resolver, *others]
        with (
            relay_of(
                workdir,
                pool(
                    "p",
                    *resolvers,
                    tunnel="dns2tcp",
                    domain=DOMAIN,
                    listen=str(free_port_53()),
                ),
                workers=2,
            ) as relay,
            Dns2tcpClient(relay.address, workdir=workdir) as client,
        ):
            assert fetch(client.address).digest == sha256(payload)
            sent = [each["answered"] for each in status_json(relay)["pools"][0]["resolvers"]]
    assert len(sent) == len(resolvers)
    assert min(sent) > sum(sent) / len(sent) / 10, sent
