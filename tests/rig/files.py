"""A file over a plain TCP connection: what a tunnel is asked to carry.

The client sends `GET\\n` and gets `<size>\\n<bytes>`, or sends `PUT <size>\\n<bytes>` and gets
the SHA-256 of what arrived. The same code runs in a thread of the test and, for network
namespaces, as a program: `python -m tests.rig.files serve|get|put ...`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import random
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rig.net import Address, free_address

REPO = Path(__file__).resolve().parents[2]
_CHUNK_BYTES = 65_536


def noise(size_bytes: int, seed: int = 1) -> bytes:
    """Bytes that do not compress and are the same in every run."""
    return random.Random(seed).randbytes(size_bytes)


def sha256(data: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Transfer:
    """One file carried one way."""

    size_bytes: int
    digest: str
    """SHA-256 of what arrived, told by the side that received it."""
    seconds: float

    @property
    def mbit_s(self) -> float:
        """Speed in Mbit/s."""
        return self.size_bytes * 8 / self.seconds / 1e6


class FileServer:
    """Serves `payload` to GET, digests what PUT brings; a thread per client."""

    def __init__(self, payload: bytes, address: Address | None = None) -> None:
        self.payload = payload
        self.address = address or free_address()
        self._clients: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = False

    def __enter__(self) -> Self:
        self._listener = socket.create_server(self.address, backlog=16)
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        for each in (self._listener, *list(self._clients)):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(5.0)
        self._listener.close()

    def wait(self) -> None:
        """Serve until the listener fails: for the program form."""
        self._threads[0].join()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.add(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError), client.makefile("rb") as incoming:
            word, *rest = incoming.readline().split()
            if word == b"GET":
                client.sendall(b"%d\n" % len(self.payload))
                client.sendall(self.payload)
            elif word == b"PUT":
                left, digest = int(rest[0]), hashlib.sha256()
                while left and (chunk := incoming.read(min(left, _CHUNK_BYTES))):
                    digest.update(chunk)
                    left -= len(chunk)
                client.sendall(digest.hexdigest().encode() + b"\n")
        self._clients.discard(client)


def fetch(address: Address, timeout_s: float = 60.0) -> Transfer:
    """Get the file; `timeout_s` bounds every wait for bytes, not the whole."""
    started_at = time.monotonic()
    with socket.create_connection(address, timeout_s) as link, link.makefile("rb") as incoming:
        link.sendall(b"GET\n")
        size_bytes = int(incoming.readline())
        data = incoming.read(size_bytes)
    return Transfer(len(data), sha256(data), time.monotonic() - started_at)


def send(address: Address, payload: bytes, timeout_s: float = 60.0) -> Transfer:
    """Put `payload`; the digest is the server's."""
    started_at = time.monotonic()
    with socket.create_connection(address, timeout_s) as link, link.makefile("rb") as incoming:
        link.sendall(b"PUT %d\n" % len(payload))
        for start in range(0, len(payload), _CHUNK_BYTES):
            link.sendall(payload[start : start + _CHUNK_BYTES])
        digest = incoming.readline().decode().strip()
    return Transfer(len(payload), digest, time.monotonic() - started_at)


def program_command(verb: str, address: Address, size_bytes: int) -> list[str | Path]:
    """The command that runs this module as a program; cwd must be the repository."""
    return [sys.executable, "-m", "tests.rig.files", verb, str(address), str(size_bytes)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Carry a file over TCP and check it.")
    parser.add_argument("verb", choices=("serve", "get", "put"))
    parser.add_argument("address", type=Address.parse)
    parser.add_argument("size_bytes", type=int)
    given = parser.parse_args()
    payload = noise(given.size_bytes)
    if given.verb == "serve":
        with FileServer(payload, given.address) as server:
            print("serving", flush=True)
            server.wait()
        return
    done = fetch(given.address) if given.verb == "get" else send(given.address, payload)
    print(done.size_bytes, done.digest, f"{done.seconds:.3f}")


if __name__ == "__main__":
    main()
