"""The order of candidates, each once, and never the relay itself."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from relay.discovery import candidates as candidates_module
from relay.discovery.candidates import Candidates, Listed, Places, is_own
from relay.discovery.verdict import Stage, Verdict
from relay.endpoints import ListenAddress
from relay.resolver_address import Options, ResolverAddress, parse
from relay.scores import PoolScores
from relay.ways_out import Proxy


def addresses(*texts: str) -> tuple[ResolverAddress, ...]:
    return tuple(map(parse, texts))


@dataclass
class Shelf:
    lists: Sequence[ResolverAddress] = ()
    ranges: Sequence[ResolverAddress] = ()
    read: int = 0

    def summary(self) -> Sequence[Listed]:
        return [SimpleNamespace(entries=len(self.lists))]

    def bulk(self) -> Iterator[ResolverAddress]:
        for each in self.lists:
            self.read += 1
            yield each

    def sample(self, country: str, count: int, rng: random.Random) -> Sequence[ResolverAddress]:
        assert country == "IR"
        return self.ranges[:count]


SHELF = Shelf(addresses("6.0.0.1", "2.0.0.1:53", "6.0.0.2"), addresses("5.0.0.1", "5.0.0.2"))


def made(shelf: Shelf = SHELF, device: Iterable[ResolverAddress] = (), **more: Any) -> Candidates:
    places = Places(
        device=lambda: device,
        domestic=lambda country: addresses("3.0.0.1") if country == "IR" else (),
        well_known=lambda: addresses("4.0.0.1", "dot://dns.example#4.0.0.2"),
        store=shelf,
    )
    more.setdefault("scores", PoolScores())
    return Candidates(places, **more)


def shown(found: Iterable[ResolverAddress]) -> list[str]:
    return [str(each).removeprefix("udp://").removesuffix(":53") for each in found]


def test_candidates_come_in_order_of_their_sources_each_once() -> None:
    found = made(device=addresses("2.0.0.1", "udp://2.0.0.1:53"), country="IR", sample_ranges=1)
    assert shown(found) == [
        "2.0.0.1",
        "3.0.0.1",
        "4.0.0.1",
        "dot://dns.example:853#4.0.0.2",
        "5.0.0.1",
        "6.0.0.1",
        "6.0.0.2",
    ]
    assert found.is_early(parse("3.0.0.1"))
    assert found.left == 0
    assert not found.is_early(parse("6.0.0.1"))


def test_candidates_whose_pins_have_another_order_come_once_as_first_written() -> None:
    first, again = "https://dns.example/q#8.8.8.8,8.8.4.4", "https://dns.example/q#8.8.4.4,8.8.8.8"
    other = "https://dns.example/q#8.8.8.8"
    for before, after in ((first, again), (again, first)):
        shelf, named = Shelf(addresses(after, other)), addresses(before)
        of_all = made(shelf, device=named, sources=("device", "lists"))
        assert list(of_all) == [parse(before), parse(other)]
        assert list(made(shelf, taken=named, sources=("lists",))) == [parse(other)]

    scores = PoolScores()
    scores.checked(Verdict(parse(first), False, Stage.HONESTY, honest=False))
    found = made(Shelf(addresses(again, "6.0.0.1")), scores=scores, sources=("lists",))
    assert list(found) == [parse("6.0.0.1"), parse(again)]


def test_candidates_without_country_have_no_ranges_and_sources_can_be_chosen() -> None:
    assert shown(made(sample_ranges=2, sources=("ranges", "known"))) == [
        "4.0.0.1",
        "dot://dns.example:853#4.0.0.2",
    ]


def test_candidates_with_a_good_score_come_first_and_bad_ones_last() -> None:
    scores = PoolScores()
    for text, passed, honest in (
        ("6.0.0.2", True, True),
        ("9.0.0.9", True, True),
        ("4.0.0.1", False, False),
        ("6.0.0.1", False, True),
    ):
        scores.checked(Verdict(parse(text), passed, Stage.HONESTY, honest=honest))
    scores.answered(parse("9.0.0.9"))
    found = made(scores=scores, sources=("known", "lists"))
    assert shown(found) == [
        "9.0.0.9",
        "6.0.0.2",
        "dot://dns.example:853#4.0.0.2",
        "6.0.0.1",
        "2.0.0.1",
        "4.0.0.1",
    ]


def test_candidates_read_no_further_than_they_are_asked_for() -> None:
    shelf = Shelf(addresses(*(f"10.0.0.{n}" for n in range(1, 200))))
    found = made(shelf, sources=("known", "lists"))
    walk = iter(found)
    next(walk)
    assert (shelf.read, found.left) == (0, None)
    for _ in range(4):
        next(walk)
    assert (shelf.read, found.left) == (3, 196)


def test_candidates_early_are_over_when_the_long_lists_begin() -> None:
    found = made(sources=("known", "lists"))
    walk = iter(found)
    over = [found.early_over for _ in walk]
    assert over == [False, False, True, True, True]


def test_candidates_leave_out_who_is_in_the_pool_and_the_relay_itself() -> None:
    found = made(
        sources=("known", "lists"),
        taken=addresses("4.0.0.1"),
        listens=[ListenAddress("6.0.0.1", 53), ListenAddress("127.0.0.1", 0)],
    )
    assert shown(found) == ["dot://dns.example:853#4.0.0.2", "2.0.0.1", "6.0.0.2"]


def test_candidates_go_the_way_of_their_pool() -> None:
    proxy = Proxy("socks5", "192.0.2.1", 1080)
    auto = parse("auto", Options(bind="192.0.2.7", weight=3))
    shelf = Shelf(addresses("2001:db8::1", "6.0.0.1"))
    plain, dot, listed = made(shelf, auto=auto, via=proxy, sources=("known", "lists"))
    assert (plain.via, plain.bind, plain.weight) == (None, "192.0.2.7", 3)
    assert (dot.via, dot.bind) == (proxy, "192.0.2.7")
    assert listed.host == "6.0.0.1"


@pytest.mark.parametrize(
    ("text", "listen", "own"),
    [
        ("127.0.0.1:5300", ListenAddress("127.0.0.1", 5300), True),
        ("127.0.0.1:5301", ListenAddress("127.0.0.1", 5300), False),
        ("127.0.0.7:5300", ListenAddress("0.0.0.0", 5300), True),
        ("192.0.2.1:5300", ListenAddress("0.0.0.0", 5300), False),
        ("192.0.2.99:5300", ListenAddress("0.0.0.0", 5300), True),
        ("[2001:db8::1]:5300", ListenAddress("0.0.0.0", 5300), False),
        ("[::ffff:127.0.0.1]:5300", ListenAddress("127.0.0.1", 5300), True),
        ("dot://x.example:5300#127.0.0.1", ListenAddress("127.0.0.1", 5300), True),
        ("tcp://name.example:5300", ListenAddress("127.0.0.1", 5300), False),
    ],
)
def test_is_own_knows_the_relays_listeners(
    monkeypatch: pytest.MonkeyPatch, text: str, listen: ListenAddress, own: bool
) -> None:
    local = ("192.0.2.99",)
    monkeypatch.setattr(
        candidates_module, "is_local", lambda host: host.startswith("127.") or host in local
    )
    assert is_own(parse(text), listen) is own
