"""Addresses, ports and network namespaces for the programs of the rig.

Ports are drawn below the kernel's ephemeral range, so that no outgoing socket of a program can
take one between its choice and its use; each is handed out once in a session. Sessions that
pytest-xdist runs beside each other draw from ranges of their own.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.rig.process import RigError

DNS_PORT = 53
_FIRST_PORT, _LAST_PORT = 10_000, 30_000


def _own_ports() -> range:
    """The ports of this process of pytest-xdist: all, where it is the only one."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = (_LAST_PORT - _FIRST_PORT) // count
    return range(_FIRST_PORT + number * size, _FIRST_PORT + (number + 1) * size)


_given: set[tuple[str, int]] = set()
_draw = random.Random(os.getpid() ^ time.monotonic_ns())


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port` or `[host]:port`."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]"), int(port))


def family_of(host: str) -> socket.AddressFamily:
    """AF_INET or AF_INET6 for an IP literal."""
    return socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET


def free_address(host: str = "127.0.0.1") -> Address:
    """A port on `host` that is free for UDP and TCP."""
    for _ in range(500):
        address = Address(host, _draw.choice(_own_ports()))
        if address not in _given and is_free(address):
            _given.add(address)
            return address
    raise RigError(f"no free port on {host}")


def free_port_53() -> Address:
    """Port 53 on a loopback address that nobody uses, for programs that ask port 53 only."""
    for _ in range(200):
        host = f"127.{_draw.randrange(1, 255)}.{_draw.randrange(256)}.{_draw.randrange(1, 255)}"
        address = Address(host, DNS_PORT)
        if address not in _given and is_free(address):
            _given.add(address)
            return address
    raise RigError("no loopback address with port 53 free")


def why_no_port_53() -> str:
    """Why port 53 on loopback cannot be used here; empty where it can."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.53.53.53", DNS_PORT))
    except OSError as error:
        return f"port 53 on loopback cannot be bound: {error.strerror}"
    return ""


def why_no_ipv6() -> str:
    """Why ::1 cannot be used here; empty where it can."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return f"no IPv6 loopback: {error.strerror}"
    return ""


def why_not_installed(*programs: str) -> str:
    """Which of these programs are not in PATH; empty where all are."""
    missing = [name for name in programs if find_program(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def find_program(name: str) -> str | None:
    """Path of a program; the sbin folders are looked into even where PATH lacks them."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"])
    return shutil.which(name, path=path)


def program(name: str) -> str:
    """Path of a program that must be there."""
    path = find_program(name)
    if path is None:
        raise RigError(f"{name} is not installed (deploy/setup installs it)")
    return path


def is_free(address: Address) -> bool:
    """Whether a program can listen on `address` over UDP and TCP."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(family_of(address.host), kind) as probe:
            if kind is socket.SOCK_STREAM:
                # Connections of an earlier test in TIME_WAIT do not make a port taken.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError:
                return False
    return True


def is_bound(pid: int, kind: str, address: Address) -> bool:
    """Whether a socket of `kind` (udp or tcp) has `address` in the network namespace of `pid`."""
    if family_of(address.host) is socket.AF_INET6:
        table, packed = f"{kind}6", socket.inet_pton(socket.AF_INET6, address.host)
    else:
        table, packed = kind, socket.inet_pton(socket.AF_INET, address.host)
    words = [packed[i : i + 4][::-1].hex().upper() for i in range(0, len(packed), 4)]
    wanted = f"{''.join(words)}:{address.port:04X}"
    try:
        lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    except OSError:
        return False
    listening = {"0A"} if kind == "tcp" else {"07"}
    rows = (line.split() for line in lines)
    return any(row[1] == wanted and row[3] in listening for row in rows)


# -- network namespaces ------------------------------------------------------------------------


class Namespace:
    """A network namespace; commands are run in it with `wrap`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def wrap(self, command: Sequence[str | Path]) -> list[str | Path]:
        """The command, to be run in this namespace (same process ID: `ip` becomes the command)."""
        return [program("ip"), "netns", "exec", self.name, *command]


@contextlib.contextmanager
def joined_namespaces() -> Iterator[tuple[Namespace, Address, Namespace, Address]]:
    """Two namespaces joined by a veth pair: (near, its address, far, its address), port 0."""
    tag = secrets.token_hex(3)
    near, far = Namespace(f"rig-{tag}-a"), Namespace(f"rig-{tag}-b")
    with contextlib.ExitStack() as undo:
        for namespace in (near, far):
            _ip("netns", "add", namespace.name)
            undo.callback(_ip, "netns", "del", namespace.name)
        near_side, far_side = f"rig{tag}a", f"rig{tag}b"
        _ip(
            *("link", "add", near_side, "netns", near.name),
            *("type", "veth", "peer", "name", far_side, "netns", far.name),
        )
        for namespace, link, host in (
            (near, near_side, "10.77.0.1"),
            (far, far_side, "10.77.0.2"),
        ):
            _ip("-n", namespace.name, "addr", "add", f"{host}/24", "dev", link)
            _ip("-n", namespace.name, "link", "set", "lo", "up")
            _ip("-n", namespace.name, "link", "set", link, "up")
        yield near, Address("10.77.0.1", 0), far, Address("10.77.0.2", 0)


def why_no_tunnel_devices() -> str:
    """Why namespaces with a tun device cannot be made here; empty where they can."""
    missing = why_not_installed("ip")
    if missing:
        return missing
    try:
        with joined_namespaces() as (near, _, _, _):
            _ip("-n", near.name, "tuntap", "add", "dev", "rigtun", "mode", "tun")
    except RigError as error:
        return f"no network namespaces or no tun: {error}"
    return ""


def listening(pid: int, address: Address, *, kinds: Sequence[str] = ("udp", "tcp")) -> bool:
    """Whether `address` is bound for all of `kinds`, seen from the namespace of `pid`."""
    return all(is_bound(pid, kind, address) for kind in kinds)


def _ip(*words: str) -> None:
    done = subprocess.run([program("ip"), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = re.sub(r"\s+", " ", done.stderr).strip()
        raise RigError(f"ip {' '.join(words)}: {reason}")
