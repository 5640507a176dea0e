"""A path that is cut and joined again: the relay on one side, every kind of resolver on the other.

The two sides are network namespaces. A cut is silent, as far away on a long path: nothing is
refused or reset, packets just do not arrive. Or the link itself is down, which the kernel notices.
`Outage` asks one pool for each transport at a steady rate all the while; `recovered_s` is how long
after the path is joined each is answered as before.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from tests.closed_loop import OpenLoop
from tests.encrypted import ZONES, pool, relay_of
from tests.rig import (
    Address,
    Namespace,
    Nsd,
    Program,
    Relay,
    free_address,
    joined_namespaces,
    run_tool,
)
from tests.rig.certs import Authority
from tests.rig.tls_servers import DohBackend, Nginx, TlsDnsdist, doh_url, dot_url, trusting

T = TypeVar("T")
P = TypeVar("P", bound=Program)
Manner = Literal["silent", "down"]
CLONE_NEWNET = 0x40000000
WAYS = ("udp", "tcp", "dot", "doh", "doh over HTTP/1.1")
GOOD_SHARE = 0.95
STEP_S = 0.25


def in_namespace(namespace: Namespace, call: Callable[[], T]) -> T:
    """Return what `call` returns in a thread whose network is that of `namespace`."""
    libc = ctypes.CDLL(None, use_errno=True)
    results: list[T] = []

    def run() -> None:
        descriptor = os.open(f"/var/run/netns/{namespace.name}", os.O_RDONLY)
        try:
            if libc.setns(descriptor, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            results.append(call())
        finally:
            os.close(descriptor)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


class Outage:
    """A relay with a pool for each of `WAYS`, asked at a steady rate, and the path to cut."""

    def __init__(self, relay: Relay, way: Way, clients: list[OpenLoop]) -> None:
        self.relay = relay
        self.clients = dict(zip(WAYS, clients, strict=True))
        self._way = way
        self.rate_qps = clients[0].rate_qps

    @property
    def age_s(self) -> float:
        """Seconds since the clients began."""
        return time.monotonic() - self.clients[WAYS[0]].started_at

    def cut(self, for_s: float, manner: Manner = "silent") -> float:
        """Cut the path for so long; return when it was joined, as `age_s`."""
        self._way.cut(manner)
        time.sleep(for_s)
        self._way.join(manner)
        return self.age_s

    def rates(self, from_s: float, to_s: float) -> dict[str, float]:
        """Good answers per second by transport."""
        return {way: client.rate(from_s, to_s) for way, client in self.clients.items()}

    def recovered_s(self, joined_s: float, within_s: float) -> dict[str, float | None]:
        """How long after `joined_s` each is answered as before; None: not `within_s`."""
        end_s = joined_s + within_s
        self.clients[WAYS[0]].wait(end_s)
        found: dict[str, float | None] = {}
        for way, client in self.clients.items():
            at_s = joined_s
            while at_s + 2 * STEP_S <= end_s:
                if client.rate(at_s, at_s + 2 * STEP_S) >= GOOD_SHARE * self.rate_qps:
                    break
                at_s += STEP_S
            found[way] = at_s - joined_s if at_s + 2 * STEP_S <= end_s else None
        return found


@contextlib.contextmanager
def outage(workdir: Path, rate_qps: float) -> Iterator[Outage]:
    """Everything up, and asked."""
    authority = Authority(workdir)
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        near, _, far, far_address = start(joined_namespaces())
        certificate = authority.issue()
        places = [Address(far_address.host, free_address().port) for _ in range(3)]
        nsd = start(_placed(far, Nsd(ZONES, workdir=workdir, addresses=places[:1])))
        backend = start(_placed(far, DohBackend(nsd.address, workdir=workdir, address=places[1])))
        dnsdist = start(
            TlsDnsdist(
                [nsd.address],
                certificate,
                workdir=workdir,
                host=far_address.host,
                namespace=far,
            )
        )
        nginx = Nginx(backend.address, certificate, workdir=workdir, http2=False, address=places[2])
        start(_placed(far, nginx))
        resolvers = (
            f"udp://{nsd.address}",
            f"tcp://{nsd.address}",
            trusting(authority, dot_url(dnsdist.dot)),
            trusting(authority, doh_url(dnsdist.doh)),
            trusting(authority, doh_url(nginx.address)),
        )
        pools = [pool(way, each) for way, each in zip(WAYS, resolvers, strict=True)]
        relay = start(relay_of(workdir, *pools, namespace=near))
        path = Way(near, far, far_address.host)
        clients = [
            start(in_namespace(near, partial(OpenLoop, relay.pool_address(number), rate_qps)))
            for number in range(len(WAYS))
        ]
        yield Outage(relay, path, clients)


def _placed(namespace: Namespace, server: P) -> P:
    """A program that has not been started, to be started in `namespace`."""
    server.command = [str(word) for word in namespace.wrap(server.command)]
    return server


class Way:
    """The link between the namespaces. `near` knows the other end's address for good."""

    def __init__(self, near: Namespace, far: Namespace, far_host: str) -> None:
        self._far = far
        self._far_link = _link(far)
        hardware = json.loads(_ip(far, "-j", "link", "show", "dev", self._far_link))[0]["address"]
        # Else the silent far side would soon be taken for gone, and the kernel would say so.
        known = ("neigh", "replace", far_host, "lladdr", hardware, "nud", "permanent")
        _ip(near, *known, "dev", _link(near))
        _ip(far, "rule", "add", "pref", "10", "lookup", "local")
        _ip(far, "rule", "del", "pref", "0")

    def cut(self, manner: Manner) -> None:
        if manner == "silent":
            _ip(self._far, "rule", "add", "pref", "5", "blackhole")
        else:
            _ip(self._far, "link", "set", self._far_link, "down")

    def join(self, manner: Manner) -> None:
        if manner == "silent":
            _ip(self._far, "rule", "del", "pref", "5")
        else:
            _ip(self._far, "link", "set", self._far_link, "up")


def _link(namespace: Namespace) -> str:
    links = json.loads(_ip(namespace, "-j", "link", "show", "type", "veth"))
    return str(links[0]["ifname"])


def _ip(namespace: Namespace, *words: str) -> str:
    return run_tool("ip", "-n", namespace.name, *words)
