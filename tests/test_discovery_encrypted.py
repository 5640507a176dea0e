"""`auto` over a user's list of UDP, TCP, DoT and DoH servers: good ones and bad ones."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import subprocess
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay.discovery.hunt import MOST_SLOW
from tests.discovery import asking, keep_list, pool_status, relay_with_auto, search
from tests.encrypted import status_json
from tests.rig import Address, Relay, free_address
from tests.rig.certs import Authority
from tests.rig.farm import Farm
from tests.rig.files import REPO
from tests.rig.net import why_not_installed
from tests.rig.relay import relay_command
from tests.rig.tls_servers import TlsDnsdist, Unbound, doh_url, dot_url
from tests.test_stamps import NO_HASH, lp, sdns

NOT_HERE = why_not_installed("dnsdist", "unbound")

SLOW_MS = 20_000

_WAYS = {
    "UDP": "udp",
    "TCP": "tcp",
    "TCP (DNS over TLS)": "dot",
    "TCP (DNS over HTTPS)": "doh",
}


# -- what is no server of DNS --------------------------------------------------------------------


class _Blunt(socketserver.ThreadingTCPServer):
    daemon_threads = True
    says = b""


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Blunt)
        with contextlib.suppress(OSError):
            if server.says:
                self.request.recv(4_096)
                self.request.sendall(server.says)


@contextlib.contextmanager
def blunt(says: bytes = b"") -> Iterator[Address]:
    """A server that closes every connection at once, or says this first, whatever comes."""
    with _Blunt(("127.0.0.1", 0), _Handler) as server:
        server.says = says
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def silence() -> Iterator[int]:
    """A port of every loopback address that takes connections and never says anything."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        sock.bind(("0.0.0.0", 0))
        sock.listen(4_096)
        yield sock.getsockname()[1]


# -- the real ones -------------------------------------------------------------------------------


def with_lines(server: TlsDnsdist, *lines: str) -> TlsDnsdist:
    """The same server, yet to be started, with more in its configuration."""
    with Path(server.command[-1]).open("a") as config:
        config.write("".join(f"{line}\n" for line in lines))
    return server


def served(server: TlsDnsdist) -> dict[str, int]:
    """How many queries a dnsdist had by each way in, by its own account."""
    request = urllib.request.Request(
        f"http://{server._statistics}/api/v1/servers/localhost", headers={"X-API-Key": "rig"}
    )
    with urllib.request.urlopen(request, timeout=5.0) as reply:
        said = json.load(reply)
    return {_WAYS[each["type"]]: each["queries"] for each in said["frontends"]}


@dataclass(frozen=True, slots=True)
class Ground:
    """Servers that work and servers that do not, and a list with all of them."""

    authority: Authority
    farm: Farm
    dnsdist: TlsDnsdist
    unbound: Unbound
    liar: TlsDnsdist
    late: str
    """A host of the farm that is dead at first."""
    good: dict[str, str]
    """Kind of each resolver that works, by its address as the relay writes it."""
    bad: dict[str, tuple[str, str]]
    """Kind of each one that does not, and a part of the reason."""
    lines: list[str]

    @property
    def environment(self) -> dict[str, str]:
        """What has a program trust the rig's authority as it does those of the system."""
        return {"SSL_CERT_FILE": str(self.authority.file)}

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the relay."""
        return subprocess.run(
            [relay_command(), *map(str, words)],
            env={**os.environ, **self.environment},
            cwd=REPO,
            capture_output=True,
            text=True,
            timeout=60.0,
        )


@contextlib.contextmanager
def ground(workdir: Path) -> Iterator[Ground]:
    """All of them, up."""
    authority = Authority(workdir)
    good = authority.issue()
    expired, misnamed = authority.issue(expired=True), authority.issue(hosts=["other.rig"])
    stranger = Authority(workdir, "stranger").issue()
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        farm = start(Farm(workdir=workdir))
        host, slow_host, late, dead = farm.hosts(4)
        farm.set(host)
        farm.set(slow_host, delay_ms=SLOW_MS)
        backend = Address(host, farm.port)
        dnsdist = start(TlsDnsdist([backend], good, workdir=workdir))
        unbound = start(Unbound(backend, good, workdir=workdir))
        liar = TlsDnsdist([backend], good, workdir=workdir, name="liar")
        start(with_lines(liar, 'addAction(AllRule(), SpoofAction("93.184.215.99"))'))
        at = {name: free_address() for name in ("stranger", "misnamed", "expired", "denied")}
        slow = TlsDnsdist([Address(slow_host, farm.port)], good, workdir=workdir, name="slow")
        start(
            with_lines(
                slow,
                f'addTLSLocal("{at["stranger"]}", "{stranger.chain}", "{stranger.key}")',
                f'addTLSLocal("{at["expired"]}", "{expired.chain}", "{expired.key}")',
                f'addDOHLocal("{at["misnamed"]}", "{misnamed.chain}", "{misnamed.key}")',
                f'addDOHLocal("{at["denied"]}", "{good.chain}", "{good.key}", "/dns-query")',
                'getDOHFrontend(2):setResponsesMap({newDOHResponseMapEntry("^/", 403, "no")})',
            )
        )
        silent = Address("127.0.0.1", start(silence()))
        closing = start(blunt())
        talking = start(blunt(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
        works = {
            dot_url(dnsdist.dot): "dot",
            f"dot://127.0.0.1:{dnsdist.dot.port}": "dot",
            doh_url(dnsdist.doh): "doh",
            f"tcp://{dnsdist.address}": "tcp",
            f"udp://{dnsdist.address}": "udp",
            dot_url(unbound.dot): "dot",
            doh_url(unbound.doh): "doh",
        }
        fails = {
            dot_url(at["stranger"]): ("dot", "not signed by a trusted authority"),
            doh_url(at["misnamed"]): ("doh", "for another host than dns.rig"),
            dot_url(at["expired"]): ("dot", "the certificate has expired"),
            doh_url(at["denied"]): ("doh", "HTTP 403 from the server"),
            dot_url(talking): ("dot", "does not speak TLS on this port"),
            doh_url(closing): ("doh", "during the TLS handshake"),
            dot_url(liar.dot): ("dot", "lies: answers a name that does not exist"),
            doh_url(liar.doh): ("doh", "lies: answers a name that does not exist"),
            f"udp://{liar.address}": ("udp", "lies: answers a name that does not exist"),
            doh_url(slow.doh): ("doh", "no answer"),
            dot_url(silent): ("dot", "TLS handshake timed out"),
            f"tcp://{silent}": ("tcp", "no answer"),
            dot_url(free_address()): ("dot", os.strerror(111)),
            f"udp://{dead}:{farm.port}": ("udp", "no answer"),
        }
        stamped = {
            dot_url(unbound.dot): sdns(
                3, lp(str(unbound.dot)), NO_HASH, lp(f"dns.rig:{unbound.dot.port}")
            ),
            doh_url(unbound.doh): sdns(
                2,
                lp(str(unbound.doh)),
                NO_HASH,
                lp(f"dns.rig:{unbound.doh.port}"),
                lp("/dns-query"),
            ),
        }
        lines = [stamped.get(each, each) for each in (*fails, *works)]
        lines += [farm.at(late)]
        yield Ground(authority, farm, dnsdist, unbound, liar, late, works, fails, lines)


def in_pool(relay: Relay) -> set[str]:
    return {each["address"] for each in pool_status(relay)["resolvers"]}


def scores(state: Path) -> dict[str, float]:
    try:
        kept = json.loads(state.read_bytes())["pools"]["generic||p"]
    except FileNotFoundError:
        return {}
    return {address: entry["score"] for address, entry in kept.items()}


def told(relay: Relay) -> dict[str, str]:
    """Why those failed of whom `relay status` says it."""
    recent = status_json(relay)["pools"][0]["discovery"]["recent"]
    return {each["address"]: each["verdict"] for each in recent}


def all_answer(relay: Relay, addresses: Iterable[str], count: int) -> bool:
    answered = {each["address"]: each["answered"] for each in pool_status(relay)["resolvers"]}
    return all(answered.get(address, 0) >= count for address in addresses)


# -- tests ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE)
def test_serve_over_a_list_of_all_kinds_uses_what_works_and_tells_of_the_rest(
    workdir: Path,
) -> None:
    with ground(workdir) as servers:
        good, bad = servers.good, servers.bad
        own_list = workdir / "mine.txt"
        own_list.write_text("# my own\n" + "\n".join(servers.lines) + "\n")
        state = workdir / "state" / "state.json"
        done = servers.run("lists", "import", own_list, "--state", state)
        assert done.returncode == 0, done.stderr
        how: dict[str, Any] = {"want": len(good), "environment": servers.environment}
        of_unbound = {dot_url(servers.unbound.dot), doh_url(servers.unbound.doh)}
        late = f"udp://{servers.farm.at(servers.late)}"

        with relay_with_auto(state, workdir, **how) as relay:
            relay.wait_for(lambda: in_pool(relay) == set(good), "all that work")
            ever = in_pool(relay)
            with asking(relay.address):
                relay.wait_for(lambda: all_answer(relay, good, 20), "queries over all of them")
                # Its own server counts what came by each protocol.
                carried: dict[str, int] = dict.fromkeys(_WAYS.values(), 0)
                for each in pool_status(relay)["resolvers"]:
                    if each["address"] not in of_unbound:
                        carried[good[each["address"]]] += each["answered"]
                counted = served(servers.dnsdist)
                assert all(counted[way] >= carried[way] >= 20 for way in carried), counted

                servers.farm.set(servers.late)
                servers.unbound.kill()
                relay.wait_for(lambda: late in in_pool(relay), "another one instead", 40.0)
                shown = servers.run("status", "--control", str(relay.control_path)).stdout
                relay.wait_for(
                    lambda: max(scores(state).get(each, 9) for each in of_unbound) < 1,
                    "lower scores",
                    40.0,
                )
                ever |= in_pool(relay)
            words = told(relay)
            lies = served(servers.liar)
        assert not ever & set(bad)
        assert sum(lies.values()) < 100, lies  # checks, and nothing of the tunnel's
        for address, (_, reason) in bad.items():
            # Of a list it is told why a server is refused, not that another is silent.
            if not reason.startswith(("no answer", "TLS handshake timed", os.strerror(111))):
                assert reason in words[address], (address, words)
        assert " fails the " in shown, shown

        # The list is gone: who is in the pool now is there by what was remembered.
        assert servers.run("lists", "remove", "mine", "--state", state).returncode == 0
        good_now = set(good) - of_unbound | {late}
        with relay_with_auto(state, workdir, **how) as relay:
            relay.wait_for(lambda: in_pool(relay) == good_now, "those of before")


@pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE)
def test_scan_of_a_list_of_all_kinds_says_of_each_what_it_is(workdir: Path) -> None:
    with ground(workdir) as servers:
        own_list = workdir / "mine.txt"
        own_list.write_text("\n".join(servers.lines))
        options = ("--state", workdir / "state.json", "--timeout", "500ms", "--all", "--json")
        done = servers.run("scan", "--file", own_list, *options)
        assert done.returncode == 0, done.stderr
        said = {each["address"]: each for each in json.loads(done.stdout)["resolvers"]}
        for address, kind in servers.good.items():
            assert said[address]["passed"], said[address]
            assert said[address]["kind"] == kind
            assert said[address]["longest_name"] == 253
            assert said[address]["largest_reply"] >= 1_000
        for address, (kind, reason) in servers.bad.items():
            assert not said[address]["passed"], said[address]
            assert said[address]["kind"] == kind
            assert reason in said[address]["reason"], said[address]


def test_serve_over_a_list_that_begins_with_silent_servers_has_those_behind_at_once(
    workdir: Path,
) -> None:
    with silence() as port, Farm(workdir=workdir) as farm:
        hosts = farm.hosts(4)
        farm.set(hosts)
        silent = [f"dot://127.77.{at // 250}.{at % 250 + 1}:{port}" for at in range(500)]
        state = keep_list(workdir / "state", [*silent, *map(farm.at, hosts)])
        with relay_with_auto(state, workdir, want=4) as relay:
            assert in_pool(relay), "it was ready without anybody"
            relay.wait_for(lambda: len(in_pool(relay)) == 4, "all of UDP")
            # None of them waited for a second lot of the silent ones.
            assert search(relay)["failed_at"].get("plain", 0) <= 2 * MOST_SLOW
