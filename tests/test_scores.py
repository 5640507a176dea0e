"""What raises and lowers a score, what a file may hold, and two relays with one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay import scores as scores_module
from relay.discovery.verdict import Fitness, ReplySizes, Stage, Verdict
from relay.resolver_address import Options, ResolverAddress, parse
from relay.scores import (
    BAD,
    GOOD,
    HALF_LIFE_S,
    HIGHEST,
    LOWEST,
    MOST_POOLS,
    PoolScores,
    Scores,
    bounded,
    key_of,
    pool_key,
)
from relay.state_file import StateFile

KEY = pool_key("dnstt", None, "main")


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def address(number: int = 1) -> ResolverAddress:
    return parse(f"192.0.2.{number}")


def verdict(number: int = 1, *, passed: bool = True, **more: Any) -> Verdict:
    stage = more.pop("stage", Stage.HONESTY if passed else Stage.PLAIN)
    return Verdict(address(number), passed, stage, **more)


def values(pool: PoolScores, *numbers: int) -> list[float]:
    return [pool.value(address(number)) for number in numbers]


def test_score_is_changed_by_each_thing_in_the_right_direction() -> None:
    pool = PoolScores(Clock())
    pool.checked(verdict(1))
    pool.checked(verdict(2, passed=False))
    pool.checked(verdict(3, passed=False, stage=Stage.TUNNEL, honest=True))
    pool.checked(verdict(4, passed=False, stage=Stage.HONESTY, honest=False))
    passed, silent, no_tunnel, lied = values(pool, 1, 2, 3, 4)
    assert passed >= GOOD > 0 > silent > no_tunnel > BAD > lied
    pool.answered(address(1))
    assert pool.value(address(1)) > passed
    pool.went_down(address(1))
    down = pool.value(address(1))
    pool.stays_down(address(1))
    assert passed > down > pool.value(address(1))


def test_score_of_a_check_that_was_not_the_resolvers_fault_stays() -> None:
    pool = PoolScores(Clock())
    pool.checked(verdict(1, passed=False, local_fault=True))
    pool.checked(verdict(1, passed=False, is_self=True))
    assert not pool.entries
    assert not pool.changed


def test_score_stays_between_its_bounds() -> None:
    pool = PoolScores(Clock())
    for _ in range(30):
        pool.checked(verdict(1))
        pool.checked(verdict(2, passed=False))
    assert values(pool, 1, 2) == [HIGHEST, LOWEST]


def test_score_goes_towards_zero_with_time() -> None:
    clock = Clock()
    pool = PoolScores(clock)
    pool.checked(verdict(1))
    before = pool.value(address(1))
    clock.now += HALF_LIFE_S
    assert pool.value(address(1)) == pytest.approx(before / 2)
    clock.now -= 2 * HALF_LIFE_S  # a clock that was set back
    assert pool.value(address(1)) == before


def test_scores_good_are_ranked_by_score_then_speed_and_bad_are_known() -> None:
    pool = PoolScores(Clock())
    pool.checked(verdict(1, latency_s=0.05))
    pool.checked(verdict(2, latency_s=0.01))
    for _ in range(2):
        pool.checked(verdict(3, latency_s=0.9))
    pool.checked(verdict(4, passed=False, honest=False))
    assert pool.good() == [address(3), address(2), address(1)]
    assert pool.bad() == {str(address(4))}


def test_scores_good_of_equal_score_to_one_decimal_begin_with_the_fastest() -> None:
    clock = Clock()
    pool = PoolScores(clock)
    for number in (1, 2, 3):  # the fastest was checked first, so its score has decayed the most
        pool.checked(verdict(number, latency_s=0.01 * number))
        clock.now += 600
    assert pool.value(address(1)) < pool.value(address(3))
    assert pool.good() == [address(1), address(2), address(3)]


def test_scores_good_reads_a_key_once_and_forgets_it_with_the_good_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    monkeypatch.setattr(scores_module, "parse", lambda key: (read.append(key), parse(key))[1])
    pool = PoolScores(Clock())
    for number in (1, 2):
        pool.checked(verdict(number))
    assert pool.good() == pool.good() == [address(1), address(2)]
    assert read == [str(address(1)), str(address(2))]
    pool.went_down(address(1))
    assert pool.good() == [address(2)]
    pool.checked(verdict(1))
    assert pool.good() == [address(1), address(2)]
    assert read[2:] == [str(address(1))]


def test_scores_have_one_entry_for_every_spelling_and_way() -> None:
    pool = PoolScores(Clock())
    pool.checked(Verdict(parse("udp://[2001:DB8:0::1]:53"), True, Stage.PLAIN))
    assert pool.value(parse("2001:db8::1", Options(bind="eth0"))) > 0


def test_scores_have_one_entry_for_every_order_of_pins(tmp_path: Path) -> None:
    first, again = (parse(f"dot://dns.example#{pins}") for pins in (
        "2001:db8::1,192.0.2.2,192.0.2.1", "192.0.2.1,2001:db8::1,192.0.2.2"))  # fmt: skip
    pool = PoolScores(Clock())
    pool.checked(Verdict(first, True, Stage.PLAIN))
    pool.checked(Verdict(again, True, Stage.PLAIN))
    assert pool.value(first) == pool.value(again) == 4.0
    # What is kept can be asked; fewer networks carry IPv6.
    assert pool.good() == [parse("dot://dns.example#192.0.2.1,192.0.2.2,2001:db8::1")]

    # A file from before may have both, of which the newer counts.
    path = tmp_path / "state.json"
    entries = {str(first): {"score": 5, "seen": 1_000_000}, str(again): {"score": 1, "seen": 9}}
    path.write_bytes(orjson.dumps({"version": 1, "pools": {KEY: entries}}))
    assert Scores(StateFile(path), Clock()).pool(KEY).value(again) == 5.0


def test_scores_remember_sizes_until_a_later_measurement() -> None:
    pool = PoolScores(Clock())
    limited = Fitness(longest_name=253, replies=ReplySizes(900, 1_140))
    pool.measured(verdict(1, fitness=limited))
    pool.checked(verdict(1))
    assert pool.sizes(address(1)) == (253, 900)
    assert pool.entries[key_of(address(1))].largest_reply == 900
    # The largest that there was to ask for is no limit.
    pool.measured(verdict(1, fitness=Fitness(longest_name=120, replies=ReplySizes(1_140))))
    assert pool.sizes(address(1)) == (120, 0)
    assert pool.entries[key_of(address(1))].largest_reply == 1140


def test_scores_are_the_same_after_a_restart(tmp_path: Path) -> None:
    path, clock = tmp_path / "state.json", Clock()
    scores = Scores(StateFile(path), clock)
    scores.pool(KEY).checked(verdict(1, latency_s=0.25, fitness=Fitness(longest_name=200)))
    scores.save()
    assert not scores.changed
    again = Scores(StateFile(path), clock).pool(KEY)
    assert again.entries == scores.pool(KEY).entries
    assert orjson.loads(path.read_bytes()) == {
        "version": 1,
        "pools": {
            "dnstt||main": {
                "udp://192.0.2.1:53": {
                    "score": 2.0,
                    "seen": 1_000_000,
                    "longest_name": 200,
                    "largest_reply": 0,
                    "reply_limit": 0,
                    "latency_ms": 250.0,
                }
            }
        },
    }


def test_scores_of_two_relays_in_one_file_are_both_kept_the_newer_of_each(tmp_path: Path) -> None:
    file, clock = tmp_path / "state.json", Clock()
    one, other = Scores(StateFile(file), clock), Scores(StateFile(file), clock)
    for scores, number in ((one, 1), (other, 2)):
        scores.pool(KEY).checked(verdict(number))
        scores.pool(KEY).checked(verdict(3))
    clock.now += 5
    other.pool(KEY).checked(verdict(3, passed=False))
    other.save()
    one.save()
    other.pool("generic||side").checked(verdict(9))
    other.save()
    found = Scores(StateFile(file), clock)
    assert all(value > 0 for value in values(found.pool(KEY), 1, 2))
    for each in (one, other, found):
        assert values(each.pool(KEY), 3) == [pytest.approx(1.0, abs=0.01)]
    assert values(found.pool("generic||side"), 9) == [2.0]


def test_scores_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.touch()
    scores = Scores(StateFile(folder / "state.json"), Clock())
    scores.pool(KEY).checked(verdict(1))
    scores.save()
    assert scores.changed
    folder.unlink()
    scores.save()
    assert not scores.changed
    assert (folder / "state.json").exists()


def test_scores_of_the_future_do_not_outlive_those_of_now(tmp_path: Path) -> None:
    path, clock = tmp_path / "state.json", Clock()
    entry = {"score": -9, "seen": 99_999_999_999}
    path.write_bytes(orjson.dumps({"version": 1, "pools": {KEY: {str(address(1)): entry}}}))
    scores = Scores(StateFile(path), clock)
    clock.now += 1
    scores.pool(KEY).checked(verdict(1))
    scores.save()
    assert Scores(StateFile(path), clock).pool(KEY).value(address(1)) == pytest.approx(-7, abs=0.01)


def test_scores_bounded_keep_the_best_and_of_the_rest_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scores_module, "MOST", 3)
    entries = {
        name: scores_module.Score(value, seen)
        for name, value, seen in [
            ("bad old", -9.0, 100),
            ("good old", 9.0, 100),
            ("bad new", -1.0, 900),
            ("better", 9.5, 100),
            ("bad newer", -1.0, 901),
        ]
    }
    assert set(bounded(entries, 1000)) == {"good old", "better", "bad newer"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["score", "seen", "longest_name", "latency_ms", "1.1.1.1", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=9,
)


@given(_JSON)
def test_scores_of_any_json_are_within_bounds(content: Any) -> None:
    class File(StateFile):
        def __init__(self) -> None: ...

        def read(self) -> dict[str, Any]:
            return {"pools": {KEY: content}}

    pool = Scores(File(), Clock()).pool(KEY)
    for score in pool.entries.values():
        assert LOWEST <= score.at(Clock.now) <= HIGHEST
        assert 0 <= score.longest_name <= 255
    assert all(isinstance(each, ResolverAddress) for each in pool.good())
    pool.bad()


def test_scores_on_a_machine_that_starts_in_1970_outlive_the_right_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "state.json", Clock()
    scores = Scores(StateFile(path), clock)
    for number in (1, 2):
        scores.pool(KEY).checked(verdict(number))
    scores.save()
    today, clock.now = clock.now, 60.0
    scores = Scores(StateFile(path), clock)
    assert scores.pool(KEY).value(address(1)) == 2.0
    scores.pool(KEY).checked(verdict(1))
    scores.save()
    clock.now = today + 120.0
    for pool in (scores.pool(KEY), Scores(StateFile(path), clock).pool(KEY)):
        assert values(pool, 1, 2) == pytest.approx([4.0, 2.0], abs=0.01)


def test_scores_of_pools_that_are_no_more_leave_the_file_in_the_end(tmp_path: Path) -> None:
    path, clock = tmp_path / "state.json", Clock()
    for number in range(MOST_POOLS + 5):
        clock.now += 1
        scores = Scores(StateFile(path), clock)
        scores.pool(f"p{number}").checked(verdict(1))
        scores.save()
    kept = orjson.loads(path.read_bytes())["pools"]
    assert set(kept) == {f"p{number}" for number in range(4, MOST_POOLS + 5)}
