"""`relay serve` over a farm: what tests and the benchmark of discovery have in common."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relay.endpoints import ControlAddress
from relay.lists.store import ListStore
from relay.status_client import fetch_status
from tests.rig import Address, Relay
from tests.rig.farm import Farm
from tests.rig.wire import query_wire


def keep_list(folder: Path, addresses: Iterable[str]) -> Path:
    """Keep a list in the state folder; return the path of the state file."""
    ListStore(folder / "lists").take("farm", "\n".join(addresses).encode(), own=True)
    return folder / "state.json"


def relay_with_auto(
    state: Path,
    workdir: Path,
    *,
    pool: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    **discovery: Any,
) -> Relay:
    """A relay whose only candidates are those of the lists beside its state file."""
    settings = {"sources": ["lists"], **discovery}
    made = {
        "name": "p",
        "listen": "127.0.0.1:0",
        "resolvers": ["auto"],
        "smart_pool": {"discovery": settings, "per_attempt": "500ms"},
        **(pool or {}),
    }
    return Relay(
        workdir=workdir,
        config={"workers": 1, "pools": [made]},
        arguments=["--state", str(state)],
        environment=environment,
    )


def pool_status(relay: Relay) -> dict[str, Any]:
    """What `/status` says of the first pool."""
    pool: dict[str, Any] = fetch_status(ControlAddress(relay.control_path))["pools"][0]
    return pool


def search(relay: Relay) -> dict[str, Any]:
    """What `/status` says of the search of the first pool."""
    found: dict[str, Any] = pool_status(relay)["discovery"]
    return found


def hosts_in(relay: Relay, farm: Farm, *, alive: bool = False) -> list[str]:
    """The hosts of the farm that the first pool has, without those that are down if `alive`."""
    return [
        each["address"].removeprefix("udp://").removesuffix(f":{farm.port}")
        for each in pool_status(relay)["resolvers"]
        if not (alive and each["state"] == "down")
    ]


@contextlib.contextmanager
def asking(address: Address, every_s: float = 0.005) -> Iterator[None]:
    """Ask all the while, as a tunnel does."""
    stop = threading.Event()

    def ask() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            while not stop.wait(every_s):
                with contextlib.suppress(OSError):
                    sock.sendto(query_wire("example.com"), tuple(address))
                with contextlib.suppress(BlockingIOError):
                    while sock.recv(4096):
                        pass

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def spread(count: int, over: int, last: int = 0) -> list[int]:
    """Places of `count` among `over`, `last` of them at the very end."""
    few = count - last
    step = (over - last) / few
    return [*(int((at + 0.5) * step) for at in range(few)), *range(over - last, over)]


def seconds_until(condition: Any, limit_s: float) -> float | None:
    """How long it took until `condition` held; None where it did not."""
    began_at = time.monotonic()
    while time.monotonic() - began_at < limit_s:
        if condition():
            return time.monotonic() - began_at
        time.sleep(0.02)
    return None
