"""Another network is noticed: addresses, default routes, resolvers, and a sleep in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from relay.discovery import network_watch
from relay.discovery.network_watch import picture, watch

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
DEFAULT = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
NEAR = "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
ZERO = "0" * 32


def six(target: str, length: str, gateway: str, device: str) -> str:
    return f"{target} {length} {ZERO} 00 {gateway} 00000400 00000003 0 00000003 {device}\n"


def address(text: str) -> SimpleNamespace:
    ip = network_watch.ip_of(text.partition("%")[0])
    family = 0 if ip is None else {4: 2, 6: 10}[ip.version]
    return SimpleNamespace(family=family, address=text)


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Iterator[SimpleNamespace]:  # type: ignore[no-untyped-def]
    made = SimpleNamespace(
        interfaces={"eth0": [address("192.0.2.2")]},
        routes=tmp_path / "route",
        routes_v6=tmp_path / "route6",
        resolvers=("192.0.2.1",),
        slept_s=0.0,
    )
    made.routes.write_text(HEAD + DEFAULT)
    made.routes_v6.write_text("")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: made.interfaces)
    monkeypatch.setattr(network_watch, "_ROUTES", made.routes)
    monkeypatch.setattr(network_watch, "_ROUTES_V6", made.routes_v6)
    monkeypatch.setattr(network_watch, "device_resolvers", lambda: made.resolvers)
    monkeypatch.setattr(network_watch, "asleep_s", lambda: made.slept_s)
    return made


def test_picture_changes_with_what_matters_and_nothing_else(machine: SimpleNamespace) -> None:
    first = picture()
    machine.interfaces["veth1"] = [address("fe80::1%veth1"), address("aa:bb:cc:dd:ee:ff")]
    machine.interfaces["lo"] = [address("127.0.0.1"), address("::1")]
    machine.routes.write_text(HEAD + DEFAULT + NEAR)
    machine.routes_v6.write_text(
        six("fd" + "0" * 30, "40", ZERO, "eth0") + six(ZERO, "00", ZERO, "lo")
    )
    assert picture() == first
    seen = {first}
    machine.interfaces["wlan0"] = [address("198.51.100.7")]
    seen.add(picture())
    machine.routes.write_text(HEAD + DEFAULT.replace("010200C0", "020200C0"))
    seen.add(picture())
    machine.routes_v6.write_text(six(ZERO, "00", "fe80" + "0" * 28, "eth0"))
    seen.add(picture())
    machine.resolvers = ("192.0.2.9",)
    seen.add(picture())
    machine.routes.unlink()
    machine.routes_v6.write_bytes(b"\xff\x00 garbage\n\n1 2 3\n")
    seen.add(picture())
    assert len(seen) == 6


def test_watch_tells_each_change_once_and_a_sleep_by_its_name(machine: SimpleNamespace) -> None:
    told: list[str] = []

    async def main() -> None:
        task = asyncio.ensure_future(watch(told.append, look_s=0.01))
        await asyncio.sleep(0.05)
        assert told == []
        machine.resolvers = ()
        await asyncio.sleep(0.05)
        machine.slept_s += 60
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert told == ["this machine's network changed", "this machine was suspended"]


def test_picture_of_this_machine_stays_the_same() -> None:
    assert picture() == picture()
