"""Names of resolvers under `relay serve`: a server that moves is followed, a stable one is left."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.load_client import numbered, resolver_of
from tests.rig import Address, Asked, Relay, ScriptedResolver, ask_udp, free_address, reply_wire
from tests.rig.scripted import Reply
from tests.rig.wire import NOERROR, rcode_of, record_wire
from tests.test_bootstrap import TYPE_A, qtype_of

NAME = "moving.rig"


class Directory:
    """A name server that knows one name, and where that is."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.server = ScriptedResolver(self._answer)

    def _answer(self, asked: Asked) -> Reply:
        hosts = self.hosts if qtype_of(asked) == TYPE_A else ()
        packed = [bytes(map(int, host.split("."))) for host in hosts]
        return reply_wire(asked.wire, [record_wire(TYPE_A, data) for data in packed])


def relay_over(directory: Directory, address: str, workdir: Path, **smart: Any) -> Relay:
    pool = {
        "name": "p",
        "listen": "127.0.0.1:0",
        "resolvers": [address],
        "bootstrap": [str(directory.server.address)],
        "smart_pool": {"per_attempt": "200ms", "deadline": "1s", **smart},
    }
    return Relay(workdir=workdir, config={"workers": 2, "pools": [pool]})


def until_answered(relay: Relay, server: ScriptedResolver, timeout_s: float) -> None:
    """Ask on and on until `server` has answered one. Not all workers hear of it at once."""
    end_at = time.monotonic() + timeout_s
    number = 0
    while not server.count:
        assert time.monotonic() < end_at, f"{server.address} is not asked"
        with contextlib.suppress(TimeoutError):
            ask_udp(relay.address, numbered(number), timeout_s=1.5)
        number += 1
    while rcode_of(ask_udp(relay.address, numbered(number))) != NOERROR:
        assert time.monotonic() < end_at, f"{relay.address} does not answer well"


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_serve_follows_a_server_that_moved_without_help(workdir: Path, scheme: str) -> None:
    old = free_address("127.0.41.1")
    new = Address("127.0.41.2", old.port)
    directory = Directory(old.host)
    with directory.server, ScriptedResolver(address=new) as there:
        first = ScriptedResolver(address=old)
        first.start()
        with relay_over(directory, f"{scheme}://{NAME}:{old.port}", workdir) as relay:
            until_answered(relay, first, 5.0)
            assert there.count == 0
            first.stop()
            directory.hosts = (new.host,)
            until_answered(relay, there, 20.0)
            assert resolver_of(relay)["address"] == f"{scheme}://{NAME}:{old.port}"
            assert not resolver_of(relay)["fault"]


def test_serve_reload_takes_over_another_bootstrap_list(workdir: Path) -> None:
    lost = Directory()
    found = Directory("127.0.0.1")
    with lost.server, found.server, ScriptedResolver() as resolver:
        relay = relay_over(lost, f"udp://{NAME}:{resolver.address.port}", workdir)
        with relay:
            relay.wait_for(lambda: lost.server.count >= 2, "the name is asked for", 5.0)
            wanted = f"the name has no address (udp://{lost.server.address})"
            relay.wait_for(lambda: resolver_of(relay)["fault"] == wanted, wanted, 5.0)
            file = relay.control_path.with_name("relay.json")
            config = json.loads(file.read_text())
            config["pools"][0]["bootstrap"] = [str(found.server.address)]
            file.write_text(json.dumps(config))
            relay.reload()
            until_answered(relay, resolver, 10.0)
