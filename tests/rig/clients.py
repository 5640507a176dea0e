"""Who asks a resolver: dnsperf, dig, kdig, and plain bytes over UDP and TCP."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rig.net import Address, family_of, program
from tests.rig.process import RigError
from tests.rig.wire import framed, message_id

_RECEIVE_BYTES = 65_535


@dataclass(frozen=True, slots=True)
class Load:
    """What dnsperf says of one run."""

    sent: int
    completed: int
    lost: int
    rate_qps: float
    seconds: float
    rcodes: dict[str, int]
    latency_mean_s: float
    query_bytes: int
    """Average size."""
    reply_bytes: int
    """Average size."""
    complaints: list[str]
    """Warnings it wrote: send failures, unexpected IDs, timeouts."""


def dnsperf(
    server: Address,
    questions: Path,
    *,
    clients: int = 1,
    outstanding: int = 100,
    seconds: float | None = None,
    runs: int | None = None,
    rate_qps: int | None = None,
    threads: int = 1,
    edns: bool = False,
    tcp: bool = False,
    query_timeout_s: float = 5.0,
) -> Load:
    """Run dnsperf over a file of questions for `seconds` or `runs` times through the file."""
    finished = subprocess.run(
        dnsperf_command(
            server,
            questions,
            clients=clients,
            outstanding=outstanding,
            seconds=seconds,
            runs=runs,
            rate_qps=rate_qps,
            threads=threads,
            edns=edns,
            tcp=tcp,
            query_timeout_s=query_timeout_s,
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=(seconds or 60.0) + query_timeout_s + 30.0,
    )
    if finished.returncode:
        raise RigError(f"dnsperf failed:\n{finished.stdout}\n{finished.stderr}")
    return _read_dnsperf(finished.stdout, finished.stderr)


def dnsperf_command(
    server: Address,
    questions: Path,
    *,
    clients: int,
    outstanding: int,
    seconds: float | None,
    runs: int | None,
    rate_qps: int | None,
    threads: int,
    edns: bool,
    tcp: bool,
    query_timeout_s: float,
) -> list[str]:
    """The command line, for whoever runs dnsperf beside something else."""
    command = [program("dnsperf"), "-s", server.host, "-p", str(server.port), "-d", str(questions)]
    command += ["-f", "inet6" if family_of(server.host) is socket.AF_INET6 else "inet"]
    command += ["-c", str(clients), "-q", str(outstanding), "-T", str(threads)]
    command += ["-t", f"{query_timeout_s:g}", "-m", "tcp" if tcp else "udp"]
    command += ["-l", f"{seconds:g}"] if seconds is not None else []
    command += ["-n", str(runs)] if runs is not None else []
    command += ["-Q", str(rate_qps)] if rate_qps is not None else []
    command += ["-e"] if edns else []
    return command


def _read_dnsperf(report: str, complaints: str) -> Load:
    def number(pattern: str) -> float:
        found = re.search(pattern, report)
        if found is None:
            raise RigError(f"dnsperf's report lacks {pattern!r}:\n{report}")
        return float(found[1])

    codes = re.search(r"Response codes:\s+(.*)", report)
    return Load(
        sent=int(number(r"Queries sent:\s+(\d+)")),
        completed=int(number(r"Queries completed:\s+(\d+)")),
        lost=int(number(r"Queries lost:\s+(\d+)")),
        rate_qps=number(r"Queries per second:\s+([\d.]+)"),
        seconds=number(r"Run time \(s\):\s+([\d.]+)"),
        rcodes={code: int(n) for code, n in re.findall(r"(\w+) (\d+)", codes[1] if codes else "")},
        latency_mean_s=number(r"Average Latency \(s\):\s+([\d.]+)"),
        query_bytes=int(number(r"request (\d+)")),
        reply_bytes=int(number(r"response (\d+)")),
        complaints=[line for line in complaints.splitlines() if line.strip()],
    )


def run_tool(*words: str, timeout_s: float = 30.0) -> str:
    """Output of dig, kdig and the like; RigError where it fails."""
    done = subprocess.run(
        [program(words[0]), *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    if done.returncode:
        raise RigError(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


# -- bytes in, bytes out ------------------------------------------------------------------------


def ask_udp(server: Address, wire: bytes, timeout_s: float = 5.0) -> bytes:
    """Send one query from a fresh socket and return the first datagram that comes back."""
    with udp_client(server, timeout_s) as client:
        client.send(wire)
        return client.recv(_RECEIVE_BYTES)


def ask_tcp(server: Address, wire: bytes, timeout_s: float = 5.0) -> bytes:
    """Send one query over a connection of its own and return the reply."""
    with socket.create_connection(server, timeout_s) as client:
        client.sendall(framed(wire))
        return read_framed(client)


def udp_client(server: Address, timeout_s: float = 5.0) -> socket.socket:
    """A connected UDP socket: only answers from the address asked arrive."""
    client = socket.socket(family_of(server.host), socket.SOCK_DGRAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    client.settimeout(timeout_s)
    client.connect(server)
    return client


def read_framed(client: socket.socket) -> bytes:
    """One message from a TCP connection."""
    size_bytes = int.from_bytes(_read_exactly(client, 2), "big")
    return _read_exactly(client, size_bytes)


def _read_exactly(client: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        more = client.recv(size_bytes - len(data))
        if not more:
            raise RigError(f"connection closed after {len(data)} of {size_bytes} bytes")
        data += more
    return data


def receive_all(client: socket.socket, count: int, timeout_s: float = 10.0) -> list[bytes]:
    """Receive `count` datagrams within `timeout_s`; fewer when time is up."""
    give_up_at = time.monotonic() + timeout_s
    received: list[bytes] = []
    while len(received) < count and (left_s := give_up_at - time.monotonic()) > 0:
        client.settimeout(left_s)
        try:
            received.append(client.recv(_RECEIVE_BYTES))
        except TimeoutError:
            break
    return received


def by_id(wires: Sequence[bytes]) -> dict[int, bytes]:
    """Messages by their ID."""
    return {message_id(wire): wire for wire in wires}
