"""Copies: as many as pay, told by the sizes of what comes back, for sockets that are held."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from workers.engine.copies import AnswerSizes, Copies
from workers.engine.held import HeldSockets
from workers.engine.pending import Query
from workers.engine.timers import NEVER

START = 1000.0
EMPTY_BYTES = 40
FULL_BYTES = 900


class Tunnel:
    """Copies that come back 100 a second, beside answers of both sizes."""

    def __init__(self, duplicate: int) -> None:
        self.now = START
        self.copies = Copies(duplicate)
        self.copies.size(self.now, EMPTY_BYTES)
        self.copies.size(self.now, FULL_BYTES)

    @property
    def per_query(self) -> float:
        return self.copies.per_query

    def returned(self, full: bool) -> None:
        size_bytes = FULL_BYTES if full else EMPTY_BYTES
        self.now += 0.01
        self.copies.size(self.now, size_bytes)
        self.copies.returned(self.now, size_bytes)

    def run(self, full_share: float, seconds: float, seed: int = 1) -> None:
        dice = random.Random(seed)
        for _ in range(round(seconds * 100)):
            self.returned(dice.random() < full_share)

    def starve(self) -> None:
        """Let every copy come back empty until there are none."""
        while self.per_query:
            self.returned(full=False)


# -- how many -----------------------------------------------------------------------------------


def test_copies_begin_with_as_many_as_may_be() -> None:
    assert Copies(3).per_query == 2.0
    assert repr(Copies(3)) == "<Copies 2.00 a query, 0 due>"


def test_copies_that_come_back_full_stay_at_the_most() -> None:
    tunnel = Tunnel(duplicate=3)
    tunnel.run(full_share=1.0, seconds=5.0)
    assert tunnel.per_query == 2.0


def test_copies_rise_while_they_come_back_full() -> None:
    tunnel = Tunnel(duplicate=4)
    tunnel.run(full_share=0.0, seconds=0.32)
    seen = [tunnel.per_query]
    for _ in range(30):
        for _ in range(16):
            tunnel.returned(full=True)
        seen.append(tunnel.per_query)
    assert seen[0] == 0.75
    assert seen == sorted(seen)
    assert seen[-1] == 3.0


@pytest.mark.parametrize("seed", range(1, 11))
def test_copies_of_which_half_come_back_empty_become_fewer_within_three_seconds(seed: int) -> None:
    tunnel = Tunnel(duplicate=3)
    tunnel.run(full_share=0.5, seconds=3.0, seed=seed)
    assert tunnel.per_query <= 1.0


@pytest.mark.parametrize("seed", range(1, 11))
def test_copies_of_which_nine_tenths_come_back_full_stay(seed: int) -> None:
    tunnel = Tunnel(duplicate=3)
    tunnel.run(full_share=0.9, seconds=10.0, seed=seed)
    assert tunnel.per_query >= 1.5


def test_copies_that_all_come_back_empty_end() -> None:
    tunnel = Tunnel(duplicate=3)
    tunnel.run(full_share=0.0, seconds=3.0)
    assert tunnel.per_query == 0.0


@pytest.mark.parametrize("duplicate", [2, 3, 5])
def test_copies_wanted_over_many_queries_are_as_many_as_said(duplicate: int) -> None:
    copies = Copies(duplicate)
    copies.per_query = 0.3 * (duplicate - 1)
    wanted = sum(copies.wanted(START) for _ in range(1000))
    assert wanted == pytest.approx(300 * (duplicate - 1), abs=1)


def test_copies_at_none_are_tried_every_two_seconds() -> None:
    tunnel = Tunnel(duplicate=3)
    tunnel.starve()
    ended_at = tunnel.now
    tried = []
    for step in range(1000):
        now = ended_at + step * 0.01
        tried += [now - ended_at] * tunnel.copies.wanted(now)
    assert len(tried) == 16
    for number, at in enumerate(tried):
        assert at == pytest.approx(2.0 * (number // 4 + 1), abs=0.05)


def test_copies_at_none_come_again_when_the_tried_come_back_full() -> None:
    tunnel = Tunnel(duplicate=3)
    tunnel.starve()
    for _ in range(4):
        tunnel.returned(full=True)
    assert tunnel.per_query == 0.25


def test_copies_at_none_stay_so_when_half_of_the_tried_come_back_empty() -> None:
    tunnel = Tunnel(duplicate=3)
    tunnel.starve()
    for number in range(40):
        tunnel.returned(full=number % 2 == 0)
    assert tunnel.per_query == 0.0


# -- when ---------------------------------------------------------------------------------------


def test_copies_are_due_at_their_moment_and_once() -> None:
    copies = Copies(2)
    first, second = (Query(None, None, b"", 0, START + 5.0) for _ in range(2))
    assert copies.next_at == NEVER
    copies.schedule(START + 0.1, first)
    copies.schedule(START + 0.2, second)
    assert copies.next_at == START + 0.1
    assert copies.due(START) == []
    assert copies.due(START + 0.1) == [first]
    assert copies.next_at == START + 0.2
    assert copies.due(START + 1.0) == [second]
    assert copies.due(START + 1.0) == []
    assert copies.next_at == NEVER


# -- sizes --------------------------------------------------------------------------------------


def sizes_of(*sizes_bytes: int) -> AnswerSizes:
    sizes = AnswerSizes()
    for number, size_bytes in enumerate(sizes_bytes):
        sizes.add(START + number * 0.01, size_bytes)
    return sizes


@pytest.mark.parametrize(
    ("low", "high", "empty_bytes"), [(0, 1000, 250), (40, 840, 240), (100, 116, 104)]
)
def test_sizes_empty_is_a_quarter_of_the_way_from_the_smallest_to_the_largest(
    low: int, high: int, empty_bytes: int
) -> None:
    assert sizes_of(low, high).empty_bytes == empty_bytes
    assert sizes_of(high, (low + high) // 2, low).empty_bytes == empty_bytes


@pytest.mark.parametrize("sizes_bytes", [(), (0,), (500,), (500, 515), (0, 15)])
def test_sizes_that_are_about_the_same_count_as_full(sizes_bytes: tuple[int, ...]) -> None:
    assert all(each > sizes_of(*sizes_bytes).empty_bytes for each in sizes_bytes)
    assert sizes_of(*sizes_bytes).empty_bytes == -1


def test_sizes_that_were_long_ago_are_forgotten() -> None:
    sizes = sizes_of(40, 900)
    for second in range(1, 70):
        sizes.add(START + second, 900)
    assert sizes.empty_bytes == -1


def test_sizes_are_remembered_for_half_a_minute_at_least() -> None:
    sizes = sizes_of(40, 900)
    for second in range(1, 30):
        sizes.add(START + second, 900)
    assert sizes.empty_bytes == 255


def test_copies_of_uniform_size_count_as_full() -> None:
    copies = Copies(3)
    copies.per_query = 0.5
    for number in range(200):
        copies.size(START + number * 0.01, 500 + number % 8)
        copies.returned(START + number * 0.01, 500 + number % 8)
    assert copies.per_query == 2.0


# -- held sockets -------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_qps", [5, 100, 1000])
def test_socket_that_asks_again_and_again_is_held(rate_qps: int) -> None:
    sockets = HeldSockets()
    told = [sockets.held(START + number / rate_qps, ("::1", 5000)) for number in range(200)]
    assert not told[0]
    assert all(told[50:])


def test_socket_that_is_new_among_held_ones_is_not_held_until_it_asks_again() -> None:
    sockets = HeldSockets()
    for number in range(200):
        sockets.held(START + number * 0.01, ("127.0.0.1", 5000 + number % 4))
    now = START + 2.0
    assert not sockets.held(now, ("127.0.0.1", 6000))
    assert sockets.held(now + 0.1, ("127.0.0.1", 6000))


def test_socket_that_was_silent_for_long_is_new_again() -> None:
    sockets = HeldSockets()
    for number in range(200):
        sockets.held(START + number * 0.01, "a")
    assert not sockets.held(START + 10.0, "a")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sockets_made_anew_for_every_query_are_never_held(seed: int) -> None:
    dice = random.Random(seed)
    sockets = HeldSockets()
    for number in range(2_400 * 20):
        port = 32_768 + dice.randrange(28_000)
        assert not sockets.held(START + number / 2_400, ("127.0.0.1", port))


def test_sockets_in_any_number_take_little_memory() -> None:
    sockets = HeldSockets()
    tracemalloc.start()
    try:
        for number in range(200_000):
            sockets.held(START + number / 100_000, ("127.0.0.1", number))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3_000_000
