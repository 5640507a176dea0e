"""The demonstration behind `deploy/demo`: a file through a real tunnel, told step by step."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

from tests.rig.files import FileServer, Transfer, fetch, noise, send, sha256
from tests.rig.net import (
    DNS_PORT,
    Address,
    free_port_53,
    is_free,
    why_no_port_53,
    why_not_installed,
)
from tests.rig.process import Program, RigError
from tests.rig.relay import Relay
from tests.rig.servers import Dnsdist
from tests.rig.tunnels import DOMAIN, Dns2tcpClient, Dns2tcpServer

_RESOLVERS = 3
_FAVOURITE = Address("127.0.0.2", DNS_PORT)


class Story:
    """Numbers the steps and prints them."""

    def __init__(self) -> None:
        self._number = 0

    def step(self, text: str) -> None:
        self._number += 1
        print(f"{self._number}. {text}", flush=True)

    def command(self, item: Program) -> None:
        """The command that was started, as a person would type it."""
        words = [os.path.basename(item.command[0]), *item.command[1:]]
        print(f"     $ {shlex.join(words)}", flush=True)

    def note(self, text: str) -> None:
        print(f"     {text}", flush=True)


def run(size_bytes: int, also_up: bool) -> bool:
    """Carry the file; return whether it arrived unchanged every time."""
    story = Story()
    payload = noise(size_bytes)
    with contextlib.ExitStack() as stack:
        workdir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-demo-")))
        files = stack.enter_context(FileServer(payload))
        story.step(f"A file of {size_bytes:,} bytes is served at {files.address}.")
        story.note(f"sha256 {sha256(payload)}")

        server = stack.enter_context(Dns2tcpServer(files.address, workdir=workdir))
        story.step(f"The tunnel's server answers for {DOMAIN} at {server.address}:")
        story.command(server)

        resolvers = [
            stack.enter_context(Dnsdist([server.address], workdir=workdir))
            for _ in range(_RESOLVERS)
        ]
        where = ", ".join(str(each.address) for each in resolvers)
        story.step(f"{_RESOLVERS} resolvers, each a dnsdist without a cache: {where}")

        listen = _FAVOURITE if is_free(_FAVOURITE) else free_port_53()
        relay = stack.enter_context(
            Relay(
                [each.address for each in resolvers],
                workdir=workdir,
                listen=listen,
                tunnel="dns2tcp",
                domain=DOMAIN,
            )
        )
        story.step("The relay stands between the tunnel's client and the resolvers:")
        story.command(relay)
        story.note(f"ready at {relay.address}")

        client = stack.enter_context(Dns2tcpClient(relay.address, workdir=workdir))
        story.step("The tunnel's client knows one resolver only, the relay:")
        story.command(client)

        story.step("The file comes down through the tunnel ...")
        same = tell(story, fetch(client.address), sha256(payload))
        if also_up:
            story.step("The file goes up through the tunnel ...")
            same &= tell(story, send(client.address, payload), sha256(payload))

        counts = [each.counters()["queries"] for each in resolvers]
        story.step(
            f"{sum(counts):,} questions went out: "
            + " + ".join(f"{count:,}" for count in counts)
            + " over the three resolvers."
        )
    return same


def tell(story: Story, carried: Transfer, digest: str) -> bool:
    """Say how a transfer went; return whether it arrived unchanged."""
    same = carried.digest == digest
    story.note(
        f"{carried.size_bytes:,} bytes in {carried.seconds:.1f} s: {carried.mbit_s:.1f} Mbit/s"
    )
    story.note(f"sha256 {carried.digest}: {'identical' if same else 'NOT the same'}")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="deploy/demo", description="Carry a file through a DNS tunnel and the relay."
    )
    parser.add_argument("--size", type=int, default=5_000_000, metavar="BYTES")
    parser.add_argument("--up", action="store_true", help="carry it up again too (slower)")
    given = parser.parse_args()
    missing = why_not_installed("dnsdist", "dns2tcpd", "dns2tcpc")
    if missing:
        print(
            f"demo: {missing}\ndemo: as root, deploy/setup installs it (Debian, Ubuntu)",
            file=sys.stderr,
        )
        return 1
    if why_no_port_53():
        print(
            f"demo: {why_no_port_53()}\n"
            "demo: dns2tcp's client asks port 53 only, so the relay must listen on 127.0.0.2:53.\n"
            "demo: run it as root: sudo deploy/demo",
            file=sys.stderr,
        )
        return 1
    try:
        return 0 if run(given.size, given.up) else 1
    except (RigError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
