"""The finder over a scripted network and board: who is let in, who leaves, what is remembered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from relay.discovery import blame as blame_module
from relay.discovery import finder as finder_module
from relay.discovery import keeping as keeping_module
from relay.discovery.candidates import Candidates, Listed, Places
from relay.discovery.finder import Finder, Phase
from relay.discovery.members import Standing
from relay.discovery.verdict import Fitness, ReplySizes, Stage, Verdict
from relay.resolver_address import ResolverAddress, parse
from relay.scores import PoolScores
from workers.engine.health import State

WORKING = Verdict(
    parse("192.0.2.1"),
    True,
    Stage.TUNNEL,
    latency_s=0.01,
    asked=3,
    answered=3,
    honest=True,
    fitness=Fitness(longest_name=253, replies=ReplySizes(1232, 2700)),
)
DEAD = Verdict(parse("192.0.2.1"), False, Stage.PLAIN, "no answer", asked=3)
LIAR = Verdict(parse("192.0.2.1"), False, Stage.HONESTY, "lies", asked=2, answered=2, honest=False)
NO_TUNNEL = Verdict(parse("192.0.2.1"), False, Stage.TUNNEL, "no answer comes back", asked=3,
                    answered=2, honest=True, latency_s=0.01)  # fmt: skip
SELF = Verdict(parse("192.0.2.1"), False, Stage.HONESTY, "itself", answered=2, is_self=True)


def at(number: int) -> ResolverAddress:
    return parse(f"10.0.{number // 250}.{number % 250 + 1}")


class World:
    """The network, the board and the pool, as far as the finder sees them."""

    def __init__(self, count: int, early: int = 0) -> None:
        self.everybody = [at(number) for number in range(count)]
        self.early = self.everybody[:early]
        self.verdicts: dict[ResolverAddress, Verdict] = {}
        self.states: dict[ResolverAddress, State] = {}
        self.answers: dict[ResolverAddress, int] = {}
        self.configured: list[ResolverAddress] = []
        self.members: list[ResolverAddress] = []
        self.ever: set[ResolverAddress] = set()
        self.checks: list[tuple[ResolverAddress, float]] = []
        self.scores = PoolScores()
        self.told_sizes: list[tuple[int, int]] = []
        self.slow_s = 0.0
        """How long checks take of those that do not come early."""

    def set(self, numbers: Iterable[int], verdict: Verdict) -> None:
        for number in numbers:
            self.verdicts[at(number)] = verdict

    # -- the pool ------------------------------------------------------------------------

    def standings(self) -> list[Standing]:
        return [
            Standing(each, self.states.get(each, State.FRESH), self.answers.get(each, 0))
            for each in (*self.configured, *self.members)
        ]

    def let_in(self, addresses: Sequence[ResolverAddress]) -> None:
        self.members = list(addresses)
        self.ever.update(addresses)
        self.told_sizes = [self.scores.sizes(each) for each in addresses]

    # -- the network ---------------------------------------------------------------------

    async def check(self, address: ResolverAddress, timeout_s: float) -> Verdict:
        self.checks.append((address, timeout_s))
        await asyncio.sleep(0 if address in self.early else self.slow_s)
        return replace(self.verdicts.get(address, DEAD), address=address, fitness=Fitness())

    async def measure(self, address: ResolverAddress, timeout_s: float) -> Verdict:
        verdict = await self.check(address, timeout_s)
        return replace(verdict, fitness=self.verdicts.get(address, DEAD).fitness)

    def candidates(self, taken: Iterable[ResolverAddress]) -> Candidates:
        world = self

        class Store:
            def bulk(self) -> Iterable[ResolverAddress]:
                return world.everybody

            def summary(self) -> Sequence[Listed]:
                return ()

            def sample(self, *_: object) -> Sequence[ResolverAddress]:
                return ()

        places = Places(lambda: self.early, lambda _: (), lambda: (), Store())
        return Candidates(places, self.scores, taken=(*self.configured, *taken))

    def finder(self, want: int = 3, concurrency: int = 5) -> Finder:
        return Finder("p", self, self.scores, self.candidates, self.check, self.measure,
                      want=want, concurrency=concurrency)  # fmt: skip


@contextlib.asynccontextmanager
async def running(finder: Finder) -> AsyncIterator[None]:
    task = asyncio.ensure_future(finder.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (finder_module, "TICK_S", 0.01),
        (finder_module, "LOOK_S", 0.05),
        (finder_module, "FIRST_WAIT_S", 0.05),
        (finder_module, "FALLBACK_WAIT_S", 0.02),
        (keeping_module, "RECHECK_S", 0.02),
        (keeping_module, "REPLACE_AFTER_S", 0.2),
        (keeping_module, "BLAME_AFTER_S", 0.05),
    ):
        monkeypatch.setattr(module, name, value)


def test_finder_lets_in_who_passes_at_once_and_stops_at_want() -> None:
    async def main() -> None:
        world = World(200)
        world.set((10, 30, 31, 50, 150), WORKING)
        world.set(range(0, 200, 3), LIAR)
        world.set((30, 150), WORKING)
        finder = world.finder(want=3)
        async with running(finder):
            await asyncio.wait_for(finder.first.wait(), 5)
            assert world.members == [at(10)]
            await until(lambda: finder.phase is Phase.ENOUGH)
            assert world.members == [at(10), at(30), at(31)]
            assert at(150) not in {address for address, _ in world.checks}
            shown = finder.status()
            assert (shown["phase"], shown["working"], shown["want"]) == ("enough", 3, 3)
            assert shown["failed_at"]["honesty"] > 5
            assert all("lies" in each["verdict"] for each in shown["recent"])
            # Who lied before anybody was honest may have had a portal in front of him.
            assert world.scores.value(at(0)) == 0
            assert world.scores.value(at(15)) < -5 < 0 < world.scores.value(at(10))
            assert len(world.ever) == 3

    asyncio.run(main())


def test_finder_measures_sizes_after_letting_in_and_tells_the_pool() -> None:
    async def main() -> None:
        world = World(5)
        world.set((1,), WORKING)
        finder = world.finder(want=1)
        async with running(finder):
            await until(lambda: world.members == [at(1)])
            await until(lambda: world.told_sizes == [(253, 1232)])

    asyncio.run(main())


def test_finder_tells_why_somebody_of_the_pool_fails_his_check_until_he_passes() -> None:
    async def main() -> None:
        world = World(30)
        world.set((1, 2), WORKING)
        finder = world.finder(want=2)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            assert finder.keeping.faults() == {}
            world.set((2,), NO_TUNNEL)
            why = "passes plain, fails the tunnel check: no answer comes back"
            await until(lambda: finder.keeping.faults() == {at(2): why})
            assert at(2) in world.members
            world.set((2,), WORKING)
            await until(lambda: finder.keeping.faults() == {})
            world.set((1,), NO_TUNNEL)
            await until(lambda: at(1) in finder.keeping.faults())
            # The tunnel's own questions are proof as well.
            world.states[at(1)] = State.IN_USE
            world.answers[at(1)] = 1
            finder.keeping.notice()
            assert at(1) not in finder.keeping.faults()

    asyncio.run(main())


def test_finder_asks_saved_good_ones_first_and_the_pool_has_them_again() -> None:
    async def main() -> None:
        world = World(300)
        world.set((250, 260, 270), WORKING)
        for number in (250, 260, 270):
            world.scores.checked(await world.check(at(number), 1))
        world.checks.clear()
        finder = world.finder(want=3)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            assert {address for address, _ in world.checks[:3]} == {at(250), at(260), at(270)}
            assert len(world.checks) < 20

    asyncio.run(main())


def test_finder_refills_when_some_go_down_and_replaces_them_in_the_end() -> None:
    async def main() -> None:
        world = World(100)
        world.set((1, 2, 3, 60, 70), WORKING)
        finder = world.finder(want=3)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            before = world.scores.value(at(1))
            for number in (1, 2):
                world.states[at(number)] = State.DOWN
                world.set((number,), DEAD)
            await until(lambda: {at(60), at(70)} <= set(world.members))
            await until(lambda: set(world.members) == {at(3), at(60), at(70)})
            assert world.scores.value(at(1)) < before

    asyncio.run(main())


def test_finder_notices_the_dead_whom_nobody_asks() -> None:
    async def main() -> None:
        world = World(100)
        world.set((1, 2, 60), WORKING)
        finder = world.finder(want=2)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            world.set((2,), DEAD)
            await until(lambda: at(60) in world.members)
            assert at(1) in world.members

    asyncio.run(main())


def test_finder_does_not_ask_again_whom_the_tunnel_asks() -> None:
    async def main() -> None:
        world = World(20)
        world.set((1,), WORKING)
        finder = world.finder(want=1)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            await until(lambda: len(world.checks) > 2)
            before = world.scores.value(at(1))
            world.states[at(1)] = State.IN_USE
            world.answers[at(1)] = 1
            seen = 0

            def raised() -> bool:
                world.answers[at(1)] += 1
                return world.scores.value(at(1)) >= before + 1

            await until(raised)
            seen = len(world.checks)
            await until(lambda: raised() and world.scores.value(at(1)) >= before + 2)
            assert len(world.checks) == seen

    asyncio.run(main())


def test_finder_throws_out_who_begins_to_lie() -> None:
    async def main() -> None:
        world = World(20)
        world.set((1, 2), WORKING)
        finder = world.finder(want=2)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            world.set((2,), LIAR)
            await until(lambda: world.members == [at(1)])

    asyncio.run(main())


def test_finder_all_down_at_once_changes_no_score_and_drops_nobody() -> None:
    async def main() -> None:
        world = World(120)
        world.set((1, 2, 3), WORKING)
        finder = world.finder(want=3)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            before = {key: score.value for key, score in world.scores.entries.items()}
            world.set((1, 2, 3), DEAD)
            for number in (1, 2, 3):
                world.states[at(number)] = State.DOWN
                await asyncio.sleep(0.015)  # they do not go down in the same moment
            await until(lambda: finder.status()["phase"] == "waiting for the network")
            await asyncio.sleep(0.3)
            assert set(world.members) == {at(1), at(2), at(3)}
            after = {key: score.value for key, score in world.scores.entries.items()}
            assert {key: after[key] for key in before} == before
            world.set((1, 2, 3), WORKING)
            world.states.clear()
            await until(lambda: finder.phase is Phase.ENOUGH)

    asyncio.run(main())


def test_finder_where_all_fail_at_the_tunnel_alone_uses_them_until_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World(40, early=10)
        world.set((2, 4), NO_TUNNEL)
        world.set((3,), LIAR)
        world.set((30,), NO_TUNNEL)
        finder = world.finder(want=2)
        async with running(finder):
            await asyncio.wait_for(finder.first.wait(), 5)
            assert set(world.members) == {at(2), at(4)}
            assert finder.status()["fallback"]
            assert finder.status()["working"] == 0
            await until(lambda: finder.status()["failed_at"]["tunnel"] > 3)
            recent = {each["address"]: each["verdict"] for each in finder.status()["recent"]}
            assert "passes plain, fails the tunnel check" in recent[str(at(2))]
            world.set((4, 30), WORKING)
            await until(lambda: set(world.members) == {at(4), at(30)})
            assert not finder.status()["fallback"]

    asyncio.run(main())
    assert caplog.text.count("nobody reaches the tunnel's server") == 1


def test_finder_whose_tunnel_server_goes_down_keeps_its_pool_and_its_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blame_module, "REACHED_S", 0.0)

    async def main() -> None:
        world = World(30)
        world.set((1, 2, 3), WORKING)
        finder = world.finder(want=3)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            before = world.scores.value(at(1))
            world.set((1, 2, 3), NO_TUNNEL)
            await until(lambda: finder.status()["working"] == 0)
            await until(lambda: finder.phase is Phase.WAITING)
            assert set(world.members) == {at(1), at(2), at(3)}
            assert world.scores.value(at(1)) >= before - 0.01
            world.set((1, 2, 3), WORKING)
            await until(lambda: finder.phase is Phase.ENOUGH)

    asyncio.run(main())


def test_finder_gives_others_time_to_pass_before_it_falls_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def first(*, works: bool) -> set[ResolverAddress]:
        world = World(5_000, early=3)
        world.slow_s = 0.02
        world.set((0, 1, 2), NO_TUNNEL)
        world.set((20,), WORKING if works else DEAD)
        finder = world.finder(want=2)
        async with running(finder):
            await asyncio.wait_for(finder.first.wait(), 5)
            return world.ever

    monkeypatch.setattr(finder_module, "FALLBACK_WAIT_S", 1.0)
    assert asyncio.run(first(works=True)) == {at(20)}
    assert asyncio.run(first(works=False)) <= {at(0), at(1), at(2)}
    monkeypatch.setattr(finder_module, "FALLBACK_WAIT_S", 0.0)
    assert asyncio.run(first(works=True)) <= {at(0), at(1), at(2)}


def test_finder_of_whom_one_reaches_the_tunnel_uses_no_fallback() -> None:
    async def main() -> None:
        world = World(40, early=10)
        world.set((1,), WORKING)
        world.set(range(2, 10), NO_TUNNEL)
        finder = world.finder(want=3)
        async with running(finder):
            await until(lambda: finder.phase is Phase.WAITING)
            assert world.ever == {at(1)}

    asyncio.run(main())


def test_finder_never_uses_the_relay_itself_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World(5, early=5)
        world.set((1,), SELF)
        finder = world.finder(want=3)
        async with running(finder):
            await until(lambda: [address for address, _ in world.checks].count(at(1)) > 2)
            assert not world.members
            assert str(at(1)) not in world.scores.entries

    asyncio.run(main())
    assert caplog.text.count(f"{at(1)} is left out: what it is asked comes back") == 1


def test_finder_at_the_end_of_the_list_begins_again() -> None:
    async def main() -> None:
        world = World(20)
        finder = world.finder(want=1)
        async with running(finder):
            await until(lambda: finder.phase is Phase.WAITING)
            assert not finder.first.is_set()
            world.set((19,), WORKING)
            await until(lambda: world.members == [at(19)])

    asyncio.run(main())


def test_finder_without_candidates_says_so_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World(0)
        finder = world.finder(want=1)
        async with running(finder):
            await until(lambda: caplog.text.count("nobody to check: auto has no candidates") > 1)
            assert finder.has_nobody
            world.everybody.append(at(1))
            await until(lambda: not finder.has_nobody)

    caplog.set_level("INFO")
    asyncio.run(main())
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert caplog.messages[-1].startswith("p: 0 of 1 resolvers work, after all candidates")


def test_finder_in_another_network_asks_its_resolvers_first_and_those_it_has_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finder_module, "LOOK_S", 60.0)  # it is not the look that notices

    async def main() -> None:
        world = World(300, early=1)
        world.set((0, 1), WORKING)
        finder = world.finder(want=2)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            new = parse("192.0.2.77")
            world.early.insert(0, new)
            world.verdicts = {new: WORKING, at(1): WORKING}
            finder.network_changed()
            await until(lambda: new in world.members and at(0) in finder.keeping.faults())
            await asyncio.sleep(keeping_module.REPLACE_AFTER_S)
            finder.keeping.look(2, is_out=False)
            assert set(world.members) == {new, at(1)}

    asyncio.run(main())


def test_finder_counts_configured_resolvers_once_they_have_answered() -> None:
    async def main() -> None:
        world = World(50)
        world.configured = [parse("192.0.2.50"), parse("192.0.2.51")]
        world.set((5, 6, 7), WORKING)
        world.states = {world.configured[0]: State.IN_USE}
        finder = world.finder(want=3, concurrency=1)
        async with running(finder):
            await until(lambda: finder.phase is Phase.ENOUGH)
            assert world.members == [at(5), at(6)]
            assert not {address for address, _ in world.checks} & set(world.configured)

    asyncio.run(main())


def test_finder_asks_early_ones_with_patience_and_long_lists_in_haste() -> None:
    async def main() -> None:
        world = World(60, early=5)
        finder = world.finder(want=1)
        async with running(finder):
            await until(lambda: finder.phase is Phase.WAITING)
            waits = dict(reversed(world.checks[:60]))
            assert {waits[at(number)] for number in range(5)} == {2.0}
            assert {waits[at(number)] for number in range(5, 60)} == {0.3}

    asyncio.run(main())


def test_finder_in_a_network_that_lies_for_everybody_blames_nobody_and_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finder_module, "AGAIN_S", 0.05)

    async def main() -> None:
        # A portal before somebody logs in; the list is so long that it does not end meanwhile.
        world = World(10_000, early=8)
        for number in range(4):
            for _ in range(2):
                world.scores.checked(replace(WORKING, address=at(number)))
        world.set(range(10_000), LIAR)
        finder = world.finder(want=3)
        async with running(finder):
            await until(lambda: [each for each, _ in world.checks].count(at(7)) > 1)
            assert [each for each, _ in world.checks].count(at(0)) > 1
            assert len(world.checks) < 10_000, "asked in the list's next turn only"
            assert not world.ever
            world.verdicts = {at(number): WORKING for number in (0, 2, 7)}
            await until(lambda: finder.phase is Phase.ENOUGH)
            assert set(world.members) == {at(0), at(2), at(7)}
            # One that was in the pool, and the portal is back: not his fault either.
            world.set(range(10_000), LIAR)
            finder.network_changed()
            await until(lambda: not world.members)
        assert min(world.scores.value(at(number)) for number in (0, 1, 2, 3, 7, 50)) >= 0
        assert world.scores.value(at(2)) > 4

    asyncio.run(main())


def test_finder_asks_again_meanwhile_without_blame_for_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finder_module, "AGAIN_S", 0.02)

    async def main() -> None:
        world = World(10_000, early=4)
        world.set((1,), WORKING)
        finder = world.finder(want=3)
        async with running(finder):
            await until(lambda: [each for each, _ in world.checks].count(at(3)) > 10)
        assert -1.1 < world.scores.value(at(3)) < 0

    asyncio.run(main())


def test_finder_asks_the_first_ones_again_before_the_long_lists_are_at_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finder_module, "AGAIN_S", 0.05)

    async def main() -> None:
        world = World(0)
        first = parse("dot://192.0.2.9")
        silent = [parse(f"dot://10.0.0.{number + 1}") for number in range(40)]
        quick = [at(number) for number in range(3_000)]
        world.early, world.everybody = [first], [*silent, *quick]
        asked = 0
        one_ends = asyncio.Semaphore(0)

        async def check(address: ResolverAddress, timeout_s: float) -> Verdict:
            nonlocal asked
            if address in silent:
                asked += 1
                await one_ends.acquire()
                return replace(DEAD, address=address)
            await asyncio.sleep(0.002)
            return await world.check(address, timeout_s)

        finder = Finder("p", world, world.scores, world.candidates, check, check,
                        want=1, concurrency=4)  # fmt: skip
        async with running(finder):
            # All places have been taken, and the others of the list wait for those.
            await until(lambda: asked == 2 and len(world.checks) > 5)
            world.verdicts[first] = WORKING
            await asyncio.sleep(0.2)
            for _ in range(4):
                one_ends.release()
            await until(lambda: world.members == [first])
            assert asked < 10

    asyncio.run(main())
