"""`relay serve` with `auto` over a farm of simulated resolvers, as real programs."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from relay.config import DiscoverySettings, load
from relay.discovery import finder as finder_module
from relay.discovery import network_watch
from relay.discovery import service as service_module
from relay.discovery.service import Discovery
from relay.endpoints import ListenAddress
from relay.roster import Roster
from shared.board import Board
from shared.own_question import OwnQuestion
from tests.discovery import (
    asking,
    hosts_in,
    keep_list,
    pool_status,
    relay_with_auto,
    search,
    spread,
)
from tests.rig import Relay, ask_udp, free_address, free_port_53, query_wire
from tests.rig.farm import Farm
from tests.rig.files import FileServer, fetch, noise, sha256
from tests.rig.net import why_no_port_53, why_not_installed
from tests.rig.tunnels import DOMAIN, Dns2tcpClient, Dns2tcpServer
from tests.rig.wire import rcode_of

HOSTS = 300


def enough(relay: Relay) -> bool:
    return bool(search(relay)["phase"] == "enough")


def test_serve_over_a_farm_finds_keeps_replaces_and_remembers(workdir: Path) -> None:
    with Farm(workdir=workdir) as farm:
        hosts = farm.hosts(HOSTS)
        working = {hosts[at] for at in spread(16, HOSTS, last=4)}
        others = [host for host in hosts if host not in working]
        liars = set(others[::9]) | set(others[1::9]) | set(others[2::9])
        farm.set(others, "dead")
        farm.set(others[::9], "lying")
        farm.set(others[1::9], "captive")
        farm.set(others[2::9], "empty")
        farm.set(others[3::9], "refusing")
        farm.set(working)
        farm.set(sorted(working)[:3], "recasing")
        state = keep_list(workdir / "state", map(farm.at, hosts))

        with relay_with_auto(state, workdir, want=6) as relay:
            assert rcode_of(ask_udp(relay.address, query_wire("example.com"))) == 0
            relay.wait_for(lambda: enough(relay), "enough resolvers")
            found = hosts_in(relay, farm)
            assert set(found) < working
            with asking(relay.address):
                relay.wait_for(lambda: pool_status(relay)["answers"] > 100, "traffic")
                farm.set(found[:3], "dead")
                relay.wait_for(
                    lambda: len(set(hosts_in(relay, farm, alive=True)) - set(found[:3])) >= 6,
                    "three others",
                    30.0,
                )
            assert not set(hosts_in(relay, farm)) & liars
            shown = search(relay)
            assert shown["passed"] >= 9
            assert set(shown["failed_at"]) == {"plain", "honesty"}

        kept = json.loads(state.read_bytes())["pools"]["generic||p"]
        good = {key for key, entry in kept.items() if entry["score"] >= 0.5}
        assert {farm.at(host) for host in found[3:]} <= {key.removeprefix("udp://") for key in good}
        assert any(entry["largest_reply"] >= 1000 for entry in kept.values())

        with relay_with_auto(state, workdir, want=6) as relay:
            relay.wait_for(lambda: enough(relay), "enough resolvers")
            # Others that were asked at the same time may have been quicker than the last of them.
            again = {f"udp://{farm.at(host)}" for host in hosts_in(relay, farm)}
            assert len(again & good) >= 5


def test_serve_never_asks_itself_by_address_or_through_somebody_else(workdir: Path) -> None:
    with Farm(workdir=workdir) as farm:
        listen = free_address()
        direct, roundabout, fine = farm.hosts(3)
        farm.set(roundabout, stub=str(listen))
        farm.set(fine)
        # The relay begins with a resolver of its own, so that what comes back would be answered.
        state = keep_list(
            workdir / "state", [str(listen), *map(farm.at, (direct, roundabout, fine))]
        )
        pool = {"listen": str(listen), "resolvers": [farm.at(fine), "auto"]}
        with relay_with_auto(state, workdir, pool=pool, want=3) as relay:
            relay.wait_for_log(f"{farm.at(roundabout)} is left out: what it is asked comes back")
            assert hosts_in(relay, farm) == [fine]
            assert not any(str(listen) in each["address"] for each in search(relay)["recent"])


def test_serve_where_nobody_reaches_the_tunnel_uses_the_honest_and_says_so(workdir: Path) -> None:
    with Farm(workdir=workdir) as farm:
        hosts = farm.hosts(12)
        farm.set(hosts[:4])
        farm.set(hosts[4:8], "lying")
        farm.forward(DOMAIN, free_address())  # nobody is there
        state = keep_list(workdir / "state", map(farm.at, hosts))
        pool = {"tunnel": "dns2tcp", "domain": DOMAIN}
        with relay_with_auto(state, workdir, pool=pool, want=4) as relay:
            assert search(relay)["fallback"]
            assert set(hosts_in(relay, farm)) == set(hosts[:4])
            assert "nobody reaches the tunnel's server" in relay.log_text()
            told = [each["verdict"] for each in search(relay)["recent"]]
            why = "passes plain, fails the tunnel check"
            assert any(text.startswith(why) for text in told)
            assert all(each["fault"].startswith(why) for each in pool_status(relay)["resolvers"])


def test_serve_dns2tcp_comes_up_over_those_that_reach_its_server(workdir: Path) -> None:
    if reason := why_not_installed("dns2tcpc", "dns2tcpd") or why_no_port_53():
        pytest.skip(reason)
    payload = noise(200_000)
    with (
        FileServer(payload) as files,
        Dns2tcpServer(files.address, workdir=workdir) as server,
        Farm(workdir=workdir) as farm,
    ):
        hosts = farm.hosts(120)
        reaching = set(hosts[5::20])
        farm.set(hosts, "unreaching")
        farm.set(reaching)
        farm.forward(DOMAIN, server.address)
        state = keep_list(workdir / "state", map(farm.at, hosts))
        pool = {"tunnel": "dns2tcp", "domain": DOMAIN, "listen": str(free_port_53())}
        with (
            relay_with_auto(state, workdir, pool=pool, want=3) as relay,
            Dns2tcpClient(relay.address, workdir=workdir) as client,
        ):
            assert fetch(client.address).digest == sha256(payload)
            assert set(hosts_in(relay, farm)) <= reaching
            assert search(relay)["failed_at"]["tunnel"] > 3


def test_serve_with_an_unusable_state_file_serves_all_the_same(workdir: Path) -> None:
    with Farm(workdir=workdir) as farm:
        hosts = farm.hosts(3)
        farm.set(hosts)
        state = keep_list(workdir / "state", map(farm.at, hosts))
        state.write_bytes(b"\0" * 999)
        with relay_with_auto(state, workdir, want=3) as relay:
            relay.wait_for(lambda: enough(relay), "enough resolvers")
            assert "kept as state.json.bad: it is all zeros" in relay.log_text()
        assert len(json.loads(state.read_bytes())["pools"]["generic||p"]) == 3


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        (["127.98.0.1:9"], "nobody has passed the checks yet; the search goes on"),
        ([], "ready all the same, with nobody to ask"),
    ],
)
def test_discovery_that_finds_nobody_is_ready_all_the_same_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    candidates: list[str],
    said: str,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(service_module, "READY_LIMIT_S", 0.5)
    config = load().config
    (pool,) = config.pools
    settings = DiscoverySettings(sources=("lists",))
    config = replace(
        config, state=tmp_path / "state.json", pools=(replace(pool, discovery=settings),)
    )
    if candidates:
        keep_list(tmp_path, candidates)
    listens = [ListenAddress("127.0.0.1", 1)]
    board = Board.create(1, 1, 8)

    async def look_up(*_: object) -> list[str]:
        raise AssertionError("nobody is looked up")

    async def main() -> None:
        discovery = Discovery(config, listens, OwnQuestion.new(), look_up, lambda _: None)
        discovery.start(board, Roster(board, listens, discovery.sizes))
        async with asyncio.timeout(5):
            await discovery.first_pass()
        assert discovery.status(0) is not None
        await discovery.stop()

    try:
        asyncio.run(main())
    finally:
        board.close()
    assert f"default: {said}" in caplog.text


def test_discovery_saves_scores_and_checks_again_in_another_network_while_it_runs(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(service_module, "SAVE_S", 0.1)
    monkeypatch.setattr(finder_module, "LOOK_S", 600.0)
    monkeypatch.setattr(network_watch, "watch", partial(network_watch.watch, look_s=0.05))
    network = "home"
    monkeypatch.setattr(network_watch, "picture", lambda: (network,))
    with Farm(workdir=workdir) as farm:
        hosts = farm.hosts(5)
        farm.set(hosts, "working")
        state = keep_list(workdir, map(farm.at, hosts))
        config = load().config
        (pool,) = config.pools
        settings = DiscoverySettings(sources=("lists",), want=5)
        config = replace(config, state=state, pools=(replace(pool, discovery=settings),))
        listens = [ListenAddress("127.0.0.1", 1)]
        board = Board.create(1, 1, 8)

        async def look_up(*_: object) -> list[str]:
            raise AssertionError("nobody is looked up")

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(10):
                while not condition():
                    await asyncio.sleep(0.02)

        def settled() -> bool:
            """Nobody is asked any more."""
            before = farm.asked()
            time.sleep(0.3)
            return farm.asked() == before

        async def main() -> None:
            nonlocal network
            discovery = Discovery(config, listens, OwnQuestion.new(), look_up, lambda _: None)
            roster = Roster(board, listens, discovery.sizes)
            roster.set_resolvers(0, config.pools[0].resolvers, 0.0)
            discovery.start(board, roster)
            await until(lambda: (discovery.status(0) or {})["working"] == 5)
            await until(state.exists)
            while not await asyncio.to_thread(settled):
                pass
            asked = farm.asked()
            network = "away"
            await until(lambda: all(farm.asked()[host] > asked[host] for host in hosts))
            await discovery.stop()

        try:
            asyncio.run(main())
        finally:
            board.close()
    assert caplog.text.count("this machine's network changed: resolvers are checked again") == 1
