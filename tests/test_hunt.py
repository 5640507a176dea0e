"""The hunt over scripted candidates: how many at once, how far apart, a network that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from relay.discovery import hunt as hunt_module
from relay.discovery.hunt import MOST_SLOW, Hunt
from relay.discovery.outage import LOCAL_RUN, SILENT_RUN
from relay.discovery.patience import HASTY_FIRST, STEPS_S, Patience
from relay.discovery.verdict import Stage, Verdict
from relay.resolver_address import ResolverAddress, parse


def addresses(count: int, net: str = "10.0") -> list[ResolverAddress]:
    return [parse(f"{net}.{at // 250}.{at % 250 + 1}") for at in range(count)]


class Network:
    """Who answers, and whether the network is there."""

    def __init__(self) -> None:
        self.working: set[ResolverAddress] = set()
        self.refusing: set[ResolverAddress] = set()
        self.is_there = True
        self.is_routed = True
        self.open = self.most_open = 0
        self.asked: list[ResolverAddress] = []
        self.at: list[float] = []
        self.takes_s = 0.0

    async def check(self, address: ResolverAddress) -> Verdict:
        self.asked.append(address)
        self.at.append(time.monotonic())
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.open -= 1
        if not self.is_routed:
            return Verdict(address, False, Stage.PLAIN, "no route", local_fault=True)
        if self.is_there and address in self.working:
            return Verdict(address, True, Stage.TUNNEL, asked=1, answered=1, honest=True)
        answered = int(self.is_there and address in self.refusing)
        return Verdict(address, False, Stage.PLAIN, "no", asked=1, answered=answered)


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt_module, "OUT_LOOK_S", 0.02)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():
            await asyncio.sleep(0.005)


async def hunted(hunt: Hunt, candidates: Iterator[ResolverAddress]) -> tuple[bool, list[Verdict]]:
    found: list[Verdict] = []
    async with asyncio.timeout(10.0):
        ended = await hunt.run(candidates, found.append)
    return ended, found


def test_hunt_checks_everybody_once_and_so_many_at_once() -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(300)
        network.takes_s = 0.001
        network.working = set(everybody[::7])
        hunt = Hunt(network.check, concurrency=20)
        ended, found = await hunted(hunt, iter(everybody))
        assert ended
        assert sorted(map(str, everybody)) == sorted(str(each.address) for each in found)
        assert network.most_open == 20
        assert (hunt.done, hunt.passed) == (300, len(network.working))
        assert hunt.rate > 0

    asyncio.run(main())


def test_hunt_keeps_its_pace_whatever_its_concurrency() -> None:
    async def main() -> None:
        network = Network()
        hunt = Hunt(network.check, concurrency=50, pace_s=0.02)
        await hunted(hunt, iter(addresses(8)))
        gaps = [b - a for a, b in zip(network.at, network.at[1:], strict=False)]
        assert sum(gaps) >= 7 * 0.02 - 0.005

    asyncio.run(main())


def test_hunt_with_a_pace_ends_with_its_last_candidate_or_when_it_is_stopped() -> None:
    async def main() -> None:
        network = Network()
        # As many runners as would wait for 20 s if each waited for a time of its own.
        hunt = Hunt(network.check, concurrency=200, pace_s=0.1)
        ended, found = await hunted(hunt, iter(addresses(3)))
        assert (ended, len(found)) == (True, 3)

        slow = Hunt(network.check, concurrency=5, pace_s=60.0)
        run = asyncio.ensure_future(hunted(slow, iter(addresses(3))))
        await until(lambda: len(network.at) == 4)
        slow.stop()
        assert (await run)[0] is False
        assert len(network.at) == 4

    asyncio.run(main())


def test_hunt_stopped_begins_no_more_and_goes_on_where_it_was() -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(100)
        network.takes_s = 0.001
        network.refusing = set(everybody)
        hunt = Hunt(network.check, concurrency=5)
        rest = iter(everybody)
        found: list[Verdict] = []

        def take(verdict: Verdict) -> None:
            found.append(verdict)
            if len(found) == 30:
                hunt.stop()

        assert not await hunt.run(rest, take)
        assert 30 <= len(found) <= 35
        assert await hunt.run(rest, found.append)
        assert sorted(map(str, everybody)) == sorted(str(each.address) for each in found)

    asyncio.run(main())


def test_hunt_cancelled_loses_no_candidate() -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(40)
        network.takes_s = 0.02
        network.refusing = set(everybody)
        hunt = Hunt(network.check, concurrency=10)
        rest = iter(everybody)
        found: list[Verdict] = []
        task = asyncio.ensure_future(hunt.run(rest, found.append))
        await asyncio.sleep(0.03)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(found) < 40
        assert await hunt.run(rest, found.append)
        assert sorted(map(str, everybody)) == sorted(str(each.address) for each in found)

    asyncio.run(main())


def test_hunt_over_a_long_list_of_the_dead_ends_without_an_outage() -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(10 * SILENT_RUN)
        known = parse("192.0.2.1")
        network.working = {known}
        hunt = Hunt(network.check, concurrency=20, known_good=lambda: [known])
        ended, found = await hunted(hunt, iter(everybody))
        assert ended
        assert len(found) == len(everybody)
        assert 1 <= network.asked.count(known) <= 20

    asyncio.run(main())


def test_hunt_waits_out_a_local_outage_and_burns_nobody() -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(400)
        network.takes_s = 0.001
        known = parse("192.0.2.1")
        network.working = {known, *everybody[-40:]}
        network.is_there = False
        hunt = Hunt(network.check, concurrency=20, known_good=lambda: [known])
        found: list[Verdict] = []
        task = asyncio.ensure_future(hunt.run(iter(everybody), found.append))
        await until(lambda: hunt.is_out)
        await asyncio.sleep(0.1)
        assert hunt.is_out
        assert found == []
        assert network.most_open <= 20 + 8 + 32
        network.is_there = True
        async with asyncio.timeout(10.0):
            assert await task
        assert not hunt.is_out
        assert sorted(map(str, everybody)) == sorted(str(each.address) for each in found)
        assert sum(each.passed for each in found) == 40

    asyncio.run(main())


def test_hunt_without_a_route_waits_although_it_knows_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(30)
        network.working = set(everybody)
        network.is_routed = False
        hunt = Hunt(network.check, concurrency=LOCAL_RUN)
        found: list[Verdict] = []
        task = asyncio.ensure_future(hunt.run(iter(everybody), found.append))
        await until(lambda: hunt.is_out)
        assert found == []
        assert "nobody answers: discovery" in caplog.text
        network.is_routed = True
        hunt.wake()
        async with asyncio.timeout(10.0):
            assert await task
        assert all(each.passed for each in found)
        assert len(found) == 30
        network.is_routed = False
        task = asyncio.ensure_future(hunt.run(iter(everybody), found.append))
        await until(lambda: hunt.is_out)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert "nobody answers any more: discovery" in caplog.text

    asyncio.run(main())


def test_hunt_where_all_known_died_at_once_finds_the_next_by_trying() -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(300)
        network.working = {everybody[200]}
        gone = addresses(10, "192.0")
        hunt = Hunt(network.check, concurrency=20, known_good=lambda: gone)
        ended, found = await hunted(hunt, iter(everybody))
        assert ended
        assert [each.address for each in found if each.passed] == [everybody[200]]

    asyncio.run(main())


def test_hunt_errors_of_one_ip_version_are_no_outage() -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(60)
        sixes = {parse(f"2001:db8::{n}") for n in range(1, 9)}
        network.working = set(everybody)

        async def check(address: ResolverAddress) -> Verdict:
            if address in sixes:
                return Verdict(address, False, Stage.PLAIN, "no route", local_fault=True)
            return await network.check(address)

        hunt = Hunt(check, concurrency=4, known_good=lambda: everybody[:1])
        ended, found = await hunted(hunt, iter([*everybody[:30], *sixes, *everybody[30:]]))
        assert ended
        assert len(found) == 68
        assert sum(each.passed for each in found) == 60

    asyncio.run(main())


def test_hunt_in_doubt_asks_known_ones_by_the_probe_alone() -> None:
    async def main() -> None:
        network, everybody = Network(), addresses(200)
        known = parse("192.0.2.77")
        network.refusing = {known}
        probed = []

        async def probe(address: ResolverAddress) -> Verdict:
            probed.append(address)
            return await network.check(address)

        async def check(address: ResolverAddress) -> Verdict:
            assert address != known, "a whole check, which may take half a minute"
            return await network.check(address)

        hunt = Hunt(check, probe=probe, concurrency=10, known_good=lambda: [known])
        ended, found = await hunted(hunt, iter(everybody))
        assert ended
        assert len(found) == 200
        assert set(probed) == {known}

    asyncio.run(main())


# -- patience ----------------------------------------------------------------------------------


def well(latency_s: float, **more: bool) -> Verdict:
    fields = {"passed": True, "honest": True, **more}
    return Verdict(parse("192.0.2.1"), stage=Stage.TUNNEL, latency_s=latency_s, **fields)  # type: ignore[arg-type]


def test_patience_of_long_lists_follows_those_that_answer_well() -> None:
    patience = Patience()
    assert patience.wait_s(hasty=False) == STEPS_S[-1]
    assert patience.wait_s(hasty=True) == STEPS_S[0]
    patience.take(well(0.001, passed=False, honest=False))  # a forger is always quick
    patience.take(well(0.001, passed=False))  # and who is near by does not reach the tunnel
    assert patience.wait_s(hasty=True) == STEPS_S[0]
    patience.take(well(0.25))
    assert patience.wait_s(hasty=True) == 1.2
    patience.take(well(5.0))
    assert patience.wait_s(hasty=True) == STEPS_S[-1]


def test_patience_is_long_after_haste_was_in_vain() -> None:
    patience = Patience()
    for _ in range(HASTY_FIRST):
        assert patience.wait_s(hasty=True) == STEPS_S[0]
        patience.take(Verdict(parse("192.0.2.1"), False, Stage.PLAIN))
    assert patience.wait_s(hasty=True) == STEPS_S[-1]
    patience.take(well(0.05))
    assert patience.wait_s(hasty=True) == STEPS_S[0]


def test_patience_grows_with_every_list_that_was_not_enough() -> None:
    patience = Patience()
    patience.take(well(0.001))
    waits = []
    for _ in range(5):
        waits.append(patience.wait_s(hasty=True))
        patience.grow()
    assert waits == [*STEPS_S, STEPS_S[-1]]


def streams(count: int) -> list[ResolverAddress]:
    return [parse(f"dot://10.9.{at // 250}.{at % 250 + 1}") for at in range(count)]


def test_hunt_parks_those_that_may_take_long_and_loses_none() -> None:
    async def main() -> None:
        network, slow, quick = Network(), streams(2 * MOST_SLOW), addresses(60)
        named = parse("udp://resolver.example")
        network.refusing = {*quick, *slow, named}
        done = asyncio.Event()
        slow_open = most_slow = 0

        async def check(address: ResolverAddress) -> Verdict:
            nonlocal slow_open, most_slow
            if address in quick:
                return await network.check(address)
            slow_open += 1
            most_slow = max(most_slow, slow_open)
            await done.wait()
            slow_open -= 1
            return await network.check(address)

        urgent = slow[-1]
        hunt = Hunt(check, concurrency=20, is_urgent=lambda each: each == urgent)
        found: list[Verdict] = []
        run = asyncio.ensure_future(hunt.run(iter([named, *slow, *quick]), found.append))
        await until(lambda: len(found) == len(quick))
        assert [each.address for each in found] == quick
        done.set()
        async with asyncio.timeout(5.0):
            assert await run
        assert [each.address for each in found[60:]].index(urgent) <= 20 + 1
        assert len(found) == len({*found}) == len(slow) + len(quick) + 1
        # While there may be others half of all; then all of them.
        assert most_slow == 20

    asyncio.run(main())


def test_hunt_that_is_stopped_or_without_a_network_keeps_the_parked() -> None:
    async def main() -> None:
        network, slow = Network(), streams(30)
        network.takes_s = 0.01
        network.refusing = set(slow)
        hunt = Hunt(network.check, concurrency=4)
        rest = iter(slow)
        found: list[Verdict] = []

        def take(verdict: Verdict) -> None:
            found.append(verdict)
            if len(found) == 5:
                hunt.stop()

        assert not await hunt.run(rest, take)
        assert len(found) < 20
        # Those that were parked are tried too while it waits for the network.
        network.is_routed = False
        run = asyncio.ensure_future(hunt.run(rest, found.append))
        await until(lambda: hunt.is_out)
        before = len(network.asked)
        await until(lambda: len({*network.asked[before:]}) >= 20)
        network.is_routed = True
        async with asyncio.timeout(5.0):
            assert await run
        assert sorted(map(str, slow)) == sorted(str(each.address) for each in found)
        hunt = Hunt(network.check, concurrency=2)
        task = asyncio.ensure_future(hunt.run(iter(slow), found.append))
        await until(lambda: hunt.done > 0)
        hunt.forget()
        hunt.stop()
        assert not await task
        assert await hunt.run(iter(()), found.append)
        assert hunt.done < 10

    asyncio.run(main())
