"""What the tests of encrypted resolvers share: the kinds of servers, pools, the relay's account.

`Ground` starts one server of every kind before one nsd; `KINDS` names the ways in: DoT and DoH of
dnsdist and unbound, nginx with HTTP/2 and with HTTP/1.1 alone.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.load_client import numbered, pool_of, resolver_of, status_of
from tests.rig import Address, Nsd, Relay, Zone, udp_client, wait_until
from tests.rig.certs import Authority, Certificate
from tests.rig.clients import receive_all
from tests.rig.net import why_not_installed
from tests.rig.process import POLL_S
from tests.rig.relay import relay_command
from tests.rig.tls_servers import DohBackend, Nginx, TlsDnsdist, Unbound, doh_url, dot_url, trusting
from tests.rig.wire import NOERROR, rcode_of

Resolver = str | dict[str, Any]

PROGRAMS = ("nsd", "dnsdist", "unbound", "nginx")
KINDS = (
    "dot-dnsdist",
    "dot-unbound",
    "doh-dnsdist",
    "doh-unbound",
    "doh-nginx",
    "doh1-nginx",
)
ZONES = [Zone("load.rig"), Zone("t.rig", wildcard_text_bytes=900)]


def why_not_here() -> str:
    """Why these tests cannot run here; empty where they can."""
    return why_not_installed(*PROGRAMS)


@dataclass(frozen=True, slots=True)
class Ground:
    """One server of every kind, all with the same certificate before the same nsd."""

    authority: Authority
    certificate: Certificate
    nsd: Nsd
    backend: DohBackend
    dnsdist: TlsDnsdist
    unbound: Unbound
    nginx: Nginx
    nginx1: Nginx

    def place(self, kind: str) -> Address:
        """Where a kind listens."""
        places = (
            self.dnsdist.dot,
            self.unbound.dot,
            self.dnsdist.doh,
            self.unbound.doh,
            self.nginx.address,
            self.nginx1.address,
        )
        return dict(zip(KINDS, places, strict=True))[kind]

    def url(self, kind: str, at: Address | None = None) -> str:
        """The resolver of a kind, or what stands at `at` in front of it."""
        return (dot_url if kind.startswith("dot") else doh_url)(at or self.place(kind))

    def resolver(self, kind: str, at: Address | None = None, **fields: Any) -> dict[str, Any]:
        """The same as an entry of a configuration, with the rig's authority."""
        return trusting(self.authority, self.url(kind, at), **fields)


@contextlib.contextmanager
def ground(workdir: Path, *, idle_s: int = 60, requests: int | None = None) -> Iterator[Ground]:
    """All the servers, up."""
    authority = Authority(workdir)
    certificate = authority.issue()
    nginx_options = {"idle_s": idle_s, **({} if requests is None else {"requests": requests})}
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        nsd = start(Nsd(ZONES, workdir=workdir))
        backend = start(DohBackend(nsd.address, workdir=workdir))
        yield Ground(
            authority,
            certificate,
            nsd,
            backend,
            start(TlsDnsdist([nsd.address], certificate, workdir=workdir, idle_s=idle_s)),
            start(Unbound(nsd.address, certificate, workdir=workdir, idle_s=idle_s)),
            start(Nginx(backend.address, certificate, workdir=workdir, **nginx_options)),
            start(
                Nginx(
                    backend.address,
                    certificate,
                    workdir=workdir,
                    http2=False,
                    name="nginx1",
                    **nginx_options,
                )
            ),
        )


def pool(
    name: str, *resolvers: Resolver, smart: dict[str, Any] | None = None, **fields: Any
) -> Any:
    """One entry of `pools`, on a free port."""
    return {
        "name": name,
        "listen": "127.0.0.1:0",
        "resolvers": list(resolvers),
        "smart_pool": {"enabled": True, **(smart or {})},
        **fields,
    }


def relay_of(workdir: Path, *pools: Any, workers: int = 1, **options: Any) -> Relay:
    """A relay with these pools."""
    return Relay(workdir=workdir, config={"workers": workers, "pools": list(pools)}, **options)


def relay_over(workdir: Path, *resolvers: Resolver, workers: int = 1, **smart: Any) -> Relay:
    """A relay with one pool over these resolvers."""
    return relay_of(workdir, pool("p", *resolvers, smart=smart), workers=workers)


def status_json(relay: Relay) -> dict[str, Any]:
    """What `relay status --json` prints."""
    done = subprocess.run(
        [relay_command(), "status", "--json", "--control", str(relay.control_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=10.0,
    )
    status: dict[str, Any] = json.loads(done.stdout)
    return status


# -- asking ------------------------------------------------------------------------------------


def burst(server: Address, count: int, *, first: int = 0, timeout_s: float = 8.0) -> list[int]:
    """Ask `count` questions at once from one socket; return the codes of the replies that came."""
    with udp_client(server) as client:
        for number in range(first, first + count):
            client.send(numbered(number))
        return [rcode_of(wire) for wire in receive_all(client, count, timeout_s)]


def ask_well(server: Address, count: int = 1, *, first: int = 0) -> None:
    """Ask questions, all of which must be answered without error."""
    codes = burst(server, count, first=first)
    assert codes == [NOERROR] * count, f"{len(codes)} of {count} replies: {sorted(set(codes))}"


def until_answered(server: Address, timeout_s: float = 15.0) -> None:
    """Ask again and again until a question is answered without error."""
    wait_until(lambda: burst(server, 1, timeout_s=1.0) == [NOERROR], f"{server} answers", timeout_s)


# -- the relay's account -----------------------------------------------------------------------

BLAME = ("refused", "lost", "errors")


def blamed(relay: Relay, at: int = 0) -> dict[str, int]:
    """What the resolver of a pool is blamed for, where it is for anything."""
    time.sleep(0.1)  # workers publish every 20 ms
    found = resolver_of(relay, pool=at)
    return {name: found[name] for name in BLAME if found[name]}


def blame_of_all(relay: Relay) -> dict[str, dict[str, int]]:
    """The same for the first resolver of every pool, by the pool's name."""
    time.sleep(0.1)
    firsts = {each["name"]: each["resolvers"][0] for each in status_of(relay)["pools"]}
    return {
        pool: {name: found[name] for name in BLAME if found[name]} for pool, found in firsts.items()
    }


def fault_of(relay: Relay, at: int = 0) -> str:
    """What is said to be wrong with the resolver of a pool."""
    return str(resolver_of(relay, pool=at)["fault"] or "")


def wait_for_fault(relay: Relay, words: Sequence[str], at: int = 0, timeout_s: float = 8.0) -> str:
    """Wait until the fault of a pool's resolver has all these words; return it."""
    end_at = time.monotonic() + timeout_s
    while True:
        fault = fault_of(relay, at)
        if all(word.lower() in fault.lower() for word in words):
            return fault
        assert time.monotonic() < end_at, f"fault is {fault!r}, not of {words}"
        time.sleep(POLL_S)


def failures_of(relay: Relay, at: int = 0) -> int:
    """Queries of a pool that failed."""
    return int(pool_of(relay, at)["failures"])
