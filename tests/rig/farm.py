"""Thousands of simulated resolvers on loopback addresses, in one program with a handful of sockets.

    with Farm(workdir=tmp_path) as farm:
        hosts = farm.hosts(5_000)
        farm.forward("t.example.com", server.address)  # a tunnel's server
        farm.set(hosts[:40], "working")
        farm.set(hosts[40:], "refusing", loss=0.1)
        farm.set(hosts[:5], "dead")  # at any time
        ... f"{hosts[0]}:{farm.port}" is a resolver, over UDP and over TCP

`KINDS` names the kinds; every field of `Traits` can be said besides. A host that was never set is
dead. The one UDP socket and the one TCP listener are bound to every address of the device `lo`:
nothing from outside reaches them. Names at or under `ZONES` exist, all others do not; a first label
`text-900` has a TXT of 900 bytes. The replies to the size questions that the checks know have the
sizes of `LARGE_TEXTS`, `KEYS` (1,140 in all) and `ROOT_SOA` (390).

As a program (`python -m tests.rig.farm PORT`) it reads commands from its standard input, a line of
JSON each, and answers each with a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import IO, Any, Final, cast

import uvloop

from tests.rig.files import REPO
from tests.rig.net import Address, free_address
from tests.rig.process import Program
from tests.rig.wire import (
    HEADER_BYTES,
    NXDOMAIN,
    REFUSED,
    SERVFAIL,
    TYPE_A,
    TYPE_TXT,
    record_wire,
    txt_data,
)

LARGE_TEXTS: Final = {b"microsoft.com": 2_700, b"apple.com": 2_200, b"paypal.com": 3_300}
"""Bytes of their TXT."""

ZONES: Final = (
    *("example.com", "example.net", "google.com", "cloudflare.com", "wikipedia.org"),
    *map(bytes.decode, LARGE_TEXTS),
)
TYPE_SOA, TYPE_AAAA, TYPE_DNSKEY = 6, 28, 48

BATCH: Final = 512
IP_PKTINFO: Final = getattr(socket, "IP_PKTINFO", 8)
BUFFER_BYTES: Final = 16 << 20

PUBLIC_A: Final = record_wire(TYPE_A, bytes((93, 184, 215, 14)), ttl_s=60)
PUBLIC_AAAA: Final = record_wire(TYPE_AAAA, bytes.fromhex("2606280002201248189325c81946aaaa"))
LIE: Final = record_wire(TYPE_A, bytes((93, 184, 215, 99)), ttl_s=60)
PORTAL: Final = record_wire(TYPE_A, bytes((192, 168, 1, 1)), ttl_s=60)
TEXT: Final = record_wire(TYPE_TXT, txt_data(20))
KEYS: Final = record_wire(TYPE_DNSKEY, bytes(range(256)) * 4 + bytes(76))
ROOT_SOA: Final = record_wire(TYPE_SOA, bytes(350))
SOA: Final = b"\0" + struct.pack("!HHIH", 6, 1, 60, 22) + bytes(22)
"""Of the root: it is the root that says no."""
OPT: Final = b"\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Traits:
    """How one simulated resolver behaves. Zero: no bound."""

    answers: str = "well"
    """well, never, refused, servfail, lie (an address for every name), portal (one private address
    for every question) or empty (NOERROR without a record)."""
    keeps_case: bool = True
    """Without it names are in lower case in its answers and in what it hands on."""
    edns: bool = True
    """Whether OPT passes; without it no reply is larger than 512."""
    longest_name: int = 0
    """Octets, as written without the last dot; a question with a longer name is not answered."""
    largest_reply: int = 0
    cuts: bool = False
    """A larger reply is cut (TC) instead of dropped; TCP brings it whole."""
    rate_qps: int = 0
    """REFUSED above it, counted by the second."""
    loss: float = 0.0
    """Share of its answers that vanish."""
    delay_ms: float = 0.0
    reaches: bool = True
    """Whether it asks the servers of `Farm.forward`; without it their names do not exist."""
    stub: str = ""
    """`host:port` that every question is handed to."""


KINDS: Final = {
    "working": Traits(),
    "dead": Traits("never"),
    "refusing": Traits("refused"),
    "servfail": Traits("servfail"),
    "lying": Traits("lie"),
    "captive": Traits("portal"),
    "empty": Traits("empty"),
    "recasing": Traits(keeps_case=False),
    "dropping_large": Traits(largest_reply=900),
    "cutting_large": Traits(largest_reply=900, cuts=True),
    "dropping_long": Traits(longest_name=120),
    "rate_limited": Traits(rate_qps=20),
    "no_edns": Traits(edns=False),
    "unreaching": Traits(reaches=False),
}

Settings = dict[str, Any]


class Farm(Program):
    """The farm as a program under test."""

    def __init__(self, *, workdir: Path, port: int = 0, zones: Iterable[str] = ZONES) -> None:
        self.port = port or free_address().port
        draw = random.SystemRandom()
        self._net = f"127.{draw.randrange(2, 250)}"
        command = [sys.executable, "-m", "tests.rig.farm", str(self.port), *zones]
        super().__init__("farm", command, workdir=workdir, environment={"PYTHONPATH": str(REPO)})
        self._asking = threading.Lock()

    def hosts(self, count: int) -> list[str]:
        """Return so many loopback addresses, the same ones at every call."""
        return [f"{self._net}.{at // 250}.{at % 250 + 1}" for at in range(count)]

    def at(self, host: str) -> str:
        """Return a host of the farm as a resolver is written."""
        return f"{host}:{self.port}"

    def set(self, hosts: Iterable[str] | str, kind: str = "working", **traits: Any) -> None:
        """Make the hosts of a kind, with further traits; they may have been of another before."""
        chosen = asdict(replace(KINDS[kind], **traits))
        self._ask({"set": [hosts] if isinstance(hosts, str) else list(hosts), "traits": chosen})

    def forward(self, domain: str, server: Address) -> None:
        """Have the resolvers that reach it ask a real server for the names under a domain."""
        self._ask({"forward": domain, "to": list(server)})

    def hush(self, silent: bool = True) -> None:
        """Let nobody answer, as when the network is gone; or let them again."""
        self._ask({"hush": silent})

    def asked(self) -> dict[str, int]:
        """How many questions each host has had, of those that had any."""
        return cast(dict[str, int], self._ask({"asked": True}))

    def is_ready(self) -> bool:
        return bool(self._ask({"asked": True}) == {})

    def _spawn(self, log_fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            env=self._full_environment(),
            start_new_session=True,
        )

    def kill(self) -> None:
        super().kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, command: Settings) -> Any:
        with self._asking:
            process = self.popen
            stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
            return json.loads(stdout.readline() or b"null")


# -- the program -------------------------------------------------------------------------------


class _Resolver:
    __slots__ = ("asked", "in_second", "second", "stub", "traits")

    def __init__(self) -> None:
        self.traits = KINDS["dead"]
        self.asked = 0
        self.second = 0
        self.in_second = 0
        self.stub: tuple[str, int] | None = None


class _Server:
    """Answers what comes to any loopback address at one port."""

    def __init__(self, port: int, zones: Iterable[str]) -> None:
        self.port = port
        self.resolvers: dict[bytes, _Resolver] = {}
        self.zones = {name.encode() for name in zones}
        self.forwards: dict[bytes, tuple[str, int]] = {}
        self.hushed = False
        self.loop = asyncio.get_running_loop()
        self.draw = random.Random(1)
        self.sock = _udp(port)
        self.onward = _udp(0)
        self.forwarded: dict[bytes, tuple[Any, bytes, bytes, _Resolver]] = {}
        self.next_id = 0
        self.loop.add_reader(self.sock.fileno(), self._readable)
        self.loop.add_reader(self.onward.fileno(), self._replied)

    async def listen(self) -> None:
        """Serve TCP too."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        sock.bind(("0.0.0.0", self.port))
        sock.setblocking(False)
        await self.loop.create_server(lambda: _Link(self), sock=sock, backlog=512)

    # -- packets in ------------------------------------------------------------------------

    def _readable(self) -> None:
        receive = self.sock.recvmsg
        resolvers = self.resolvers
        for _ in range(BATCH):
            try:
                wire, ancillary, _, client = receive(65_535, 64)
            except BlockingIOError:
                return
            asked = ancillary[0][2][8:12]
            resolver = resolvers.get(asked)
            if resolver is not None and len(wire) > HEADER_BYTES:
                resolver.asked += 1
                self.serve(resolver, wire, (client, asked))

    def serve(self, resolver: _Resolver, wire: bytes, to: Any) -> None:
        """Answer a question; `to` is (client, asked address) or a link."""
        traits = resolver.traits
        answers = traits.answers
        if answers == "never" or self.hushed:
            return
        if traits.loss and self.draw.random() < traits.loss:
            return
        end = _question_end(wire)
        if end < 0:
            return
        if traits.longest_name and end - HEADER_BYTES - 6 > traits.longest_name:
            return
        if traits.rate_qps and self._over_rate(resolver):
            self.answer(resolver, wire, end, REFUSED, b"", to)
        elif resolver.stub is not None:
            self._forward(resolver, wire, to, resolver.stub)
        elif answers == "well":
            self._answer_well(resolver, wire, end, to)
        elif answers == "lie" or answers == "portal":
            self.answer(resolver, wire, end, 0, LIE if answers == "lie" else PORTAL, to)
        else:
            rcode = {"refused": REFUSED, "servfail": SERVFAIL, "empty": 0}[answers]
            self.answer(resolver, wire, end, rcode, b"", to)

    @staticmethod
    def _over_rate(resolver: _Resolver) -> bool:
        second = int(monotonic())
        if resolver.second != second:
            resolver.second, resolver.in_second = second, 0
        resolver.in_second += 1
        return resolver.in_second > resolver.traits.rate_qps

    def _answer_well(self, resolver: _Resolver, wire: bytes, end: int, to: Any) -> None:
        labels = _labels(wire[HEADER_BYTES : end - 5].lower())
        kind = wire[end - 4] << 8 | wire[end - 3]
        for count in range(len(labels), 0, -1):
            name = b".".join(labels[-count:])
            server = self.forwards.get(name)
            if server is not None:
                if resolver.traits.reaches:
                    self._forward(resolver, wire, to, server)
                else:
                    self.answer(resolver, wire, end, NXDOMAIN, b"", to)
                return
            if name in self.zones:
                self.answer(resolver, wire, end, 0, _record(labels, kind), to)
                return
        if labels:
            self.answer(resolver, wire, end, NXDOMAIN, b"", to)
        else:
            record = {TYPE_DNSKEY: KEYS, TYPE_SOA: ROOT_SOA}.get(kind, b"")
            self.answer(resolver, wire, end, 0, record, to)

    # -- packets out -----------------------------------------------------------------------

    def answer(
        self, resolver: _Resolver, wire: bytes, end: int, rcode: int, record: bytes, to: Any
    ) -> None:
        """Send an answer of the resolver's own."""
        has_opt = bool(wire[11] and resolver.traits.edns)
        denies = rcode == NXDOMAIN
        counts = bytes((0, 1, 0, bool(record), 0, denies, 0, has_opt))
        if denies:
            record = SOA
        question = wire[HEADER_BYTES:end]
        reply = wire[:2] + bytes((0x80 | wire[2] & 1, 0x80 | rcode)) + counts + question + record
        self._reply(resolver, reply + OPT if has_opt else reply, _advertised(wire, end), to)

    def _reply(self, resolver: _Resolver, reply: bytes, most_bytes: int, to: Any) -> None:
        """Send a reply as the resolver's traits let it pass."""
        traits = resolver.traits
        size = len(reply)
        is_datagram = isinstance(to, tuple)
        if is_datagram and traits.largest_reply and size > traits.largest_reply and not traits.cuts:
            return
        if not traits.edns:
            most_bytes = 512
        if is_datagram and (size > most_bytes or size > (traits.largest_reply or size)):
            end = _question_end(reply)
            head = reply[:2] + bytes((reply[2] | 2, reply[3])) + b"\0\1\0\0\0\0\0\0"
            reply = head + reply[HEADER_BYTES:end]
        if not traits.keeps_case:
            end = _question_end(reply)
            reply = reply[:HEADER_BYTES] + reply[HEADER_BYTES:end].lower() + reply[end:]
        if traits.delay_ms:
            self.loop.call_later(traits.delay_ms / 1000, self._send, reply, to)
        else:
            self._send(reply, to)

    def _send(self, reply: bytes, to: Any) -> None:
        if not isinstance(to, tuple):
            to.say(reply)
            return
        client, asked = to
        source = [(socket.IPPROTO_IP, IP_PKTINFO, bytes(4) + asked + bytes(4))]
        try:
            self.sock.sendmsg((reply,), source, 0, client)
        except OSError:  # a full buffer: lost, as in a network
            return

    # -- questions handed on ---------------------------------------------------------------

    def _forward(self, resolver: _Resolver, wire: bytes, to: Any, server: tuple[str, int]) -> None:
        self.next_id = self.next_id + 1 & 0xFFFF
        drawn = self.next_id.to_bytes(2, "big")
        self.forwarded[drawn] = (to, wire[:2], wire, resolver)
        try:
            end = HEADER_BYTES if resolver.traits.keeps_case else _question_end(wire)
            asked = wire[2:HEADER_BYTES] + wire[HEADER_BYTES:end].lower() + wire[end:]
            self.onward.sendto(drawn + asked, server)
        except OSError:
            return

    def _replied(self) -> None:
        for _ in range(BATCH):
            try:
                reply = self.onward.recv(65_535)
            except BlockingIOError:
                return
            except OSError:
                continue
            found = self.forwarded.pop(reply[:2], None)
            if found is not None and len(reply) > HEADER_BYTES:
                to, drawn, wire, resolver = found
                end = _question_end(wire)
                self._reply(resolver, drawn + reply[2:], _advertised(wire, end), to)

    # -- commands --------------------------------------------------------------------------

    def command(self, said: Settings) -> Any:
        """Do what a line says; return the answer."""
        if "set" in said:
            traits = Traits(**said["traits"])
            stub = Address.parse(traits.stub) if traits.stub else None
            for host in said["set"]:
                resolver = self.resolvers.setdefault(socket.inet_aton(host), _Resolver())
                resolver.traits = traits
                resolver.stub = stub
        elif "forward" in said:
            host, port = said["to"]
            self.forwards[said["forward"].lower().encode()] = (host, port)
        elif "hush" in said:
            self.hushed = said["hush"]
        else:
            return {
                socket.inet_ntoa(packed): resolver.asked
                for packed, resolver in self.resolvers.items()
                if resolver.asked
            }
        return True


class _Link(asyncio.Protocol):
    """A TCP client."""

    transport: asyncio.Transport

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        host = transport.get_extra_info("sockname")[0]
        self._resolver = self._server.resolvers.get(socket.inet_aton(host))
        if self._resolver is None or self._resolver.traits.answers == "never":
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= 2 and self._resolver is not None:
            end = 2 + int.from_bytes(self._held[:2], "big")
            if len(self._held) < end:
                return
            wire, self._held = self._held[2:end], self._held[end:]
            self._resolver.asked += 1
            self._server.serve(self._resolver, wire, self)

    def say(self, wire: bytes) -> None:
        self.transport.write(len(wire).to_bytes(2, "big") + wire)


def _udp(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    sock.bind(("0.0.0.0", port))
    return sock


def _question_end(wire: bytes) -> int:
    """Position behind the question, or -1."""
    at, size = HEADER_BYTES, len(wire)
    while at < size:
        length = wire[at]
        if not length:
            return at + 5 if at + 5 <= size else -1
        at += length + 1
    return -1


def _labels(name: bytes) -> list[bytes]:
    labels = []
    at = 0
    while name[at : at + 1] not in (b"\0", b""):
        labels.append(name[at + 1 : at + 1 + name[at]])
        at += 1 + name[at]
    return labels


def _advertised(wire: bytes, end: int) -> int:
    """The size that a question with OPT as its only further record advertises; else 512."""
    if wire[11] and wire[end : end + 3] == b"\0\0\x29":
        return max(512, cast(int, struct.unpack_from("!H", wire, end + 3)[0]))
    return 512


def _record(labels: list[bytes], kind: int) -> bytes:
    if kind == TYPE_A:
        return PUBLIC_A
    if kind == TYPE_AAAA:
        return PUBLIC_AAAA
    if kind == TYPE_TXT:
        if large := LARGE_TEXTS.get(b".".join(labels)):
            return record_wire(TYPE_TXT, txt_data(large))
        front, _, size = labels[0].partition(b"-")
        if front == b"text" and size.isdigit():
            return record_wire(TYPE_TXT, txt_data(min(int(size), 60_000)))
        return TEXT
    return b""


async def _serve(port: int, zones: list[str]) -> None:
    server = _Server(port, zones)
    await server.listen()
    reader = asyncio.StreamReader(limit=16 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        print(json.dumps(server.command(json.loads(line))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated resolvers on loopback addresses.")
    parser.add_argument("port", type=int)
    parser.add_argument("zones", nargs="*", help="names that exist, with all below them")
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(given.port, given.zones or list(ZONES)))


if __name__ == "__main__":
    main()
