"""Slots, keepers and names of the roster, on a hand-moved clock and scripted look-ups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.endpoints import ListenAddress
from relay.resolver_address import AUTO, Options, ResolverAddress, parse
from relay.roster import (
    DEFAULT_SLOTS,
    QUIET_S,
    Roster,
    RosterError,
    Slots,
    entry_of,
    keeper_of,
    slots_for,
)
from relay.ways_out import Proxy
from shared import layout
from shared.board import MAX_SLOTS, Board
from workers.settings import ResolverEntry

LISTEN = ListenAddress("127.0.0.1", 5300)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(workers=3, pools=2, slots=8)
    yield made
    made.close()


@pytest.fixture
def roster(board: Board) -> Roster:
    return Roster(board, [LISTEN, ListenAddress("127.0.0.1", 5301)])


def addresses(*texts: str) -> list[ResolverAddress]:
    return [parse(text) for text in texts]


def shown(roster: Roster, pool: int = 0) -> list[tuple[int, str, int]]:
    return [(entry.slot, entry.host, entry.port) for entry in roster.entries(pool)]


def keepers(board: Board, count: int) -> list[int]:
    return [board.words[board.at.resolver(slot) + layout.RESOLVER_KEEPER] for slot in range(count)]


def epoch(board: Board) -> int:
    return board.words[layout.HEADER_KEEPERS_EPOCH]


# -- slots -------------------------------------------------------------------------------------


def test_slots_freed_rest_before_their_next_tenant_and_are_clean_then(board: Board) -> None:
    slots = Slots(board)
    assert [slots.take(0.0) for _ in range(8)] == list(range(8))
    board.words[board.at.counters(2, 5) + layout.COUNTER_SENT] = 7
    slots.give_back(5, 100.0)
    with pytest.raises(RosterError, match="all 8 slots"):
        slots.take(100.0 + QUIET_S - 0.1)
    assert slots.take(100.0 + QUIET_S) == 5
    assert board.counter_total(5, layout.COUNTER_SENT) == 0


@pytest.mark.parametrize(
    ("resolvers", "slots"), [(1, DEFAULT_SLOTS), (3000, 6000), (50_000, MAX_SLOTS)]
)
def test_slots_for_grows_with_the_configuration(resolvers: int, slots: int) -> None:
    assert slots_for(resolvers) == slots


# -- membership --------------------------------------------------------------------------------


def test_roster_addresses_are_there_at_once_in_order(roster: Roster) -> None:
    assert roster.set_resolvers(0, addresses("9.9.9.9", "tcp://[2620:fe::fe]:54"), 0.0)
    assert [entry.name for entry in roster.entries(0)] == [
        "udp://9.9.9.9:53",
        "tcp://[2620:fe::fe]:54",
    ]
    assert shown(roster) == [(0, "9.9.9.9", 53), (1, "2620:fe::fe", 54)]
    assert roster.entries(1) == []


def test_roster_resolver_that_stays_keeps_its_slot(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("1.1.1.1", "8.8.8.8"), 0.0)
    assert roster.set_resolvers(0, addresses("9.9.9.9", "8.8.8.8"), 1.0)
    assert shown(roster) == [(2, "9.9.9.9", 53), (1, "8.8.8.8", 53)]
    assert not roster.set_resolvers(0, addresses("9.9.9.9", "8.8.8.8"), 2.0)


def test_roster_same_resolver_in_two_pools_has_two_slots(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("1.1.1.1"), 0.0)
    roster.set_resolvers(1, addresses("1.1.1.1"), 0.0)
    assert shown(roster, 0)[0][0] != shown(roster, 1)[0][0]


def test_roster_without_a_free_slot_leaves_the_rest_out_and_says_so(
    roster: Roster, caplog: pytest.LogCaptureFixture
) -> None:
    roster.set_resolvers(0, addresses(*(f"10.0.0.{n}" for n in range(1, 11))), 0.0)
    assert len(roster.entries(0)) == 8
    assert [bool(member.fault) for member in roster.pools[0]] == [False] * 8 + [True] * 2
    assert "udp://10.0.0.9:53 is left out: all 8 slots" in caplog.text


def test_roster_auto_stands_for_what_was_found_but_not_the_relay_itself(
    roster: Roster, caplog: pytest.LogCaptureFixture
) -> None:
    roster.set_resolvers(0, [*addresses("1.1.1.1"), AUTO, *addresses("9.9.9.9")], 0.0)
    assert [entry.host for entry in roster.entries(0)] == ["1.1.1.1", "9.9.9.9"]
    found = addresses("127.0.0.1:5300", "192.0.2.53", "1.1.1.1")
    assert roster.set_found(0, found, 1.0)
    assert [entry.host for entry in roster.entries(0)] == ["1.1.1.1", "192.0.2.53", "9.9.9.9"]
    assert [member.is_found for member in roster.pools[0]] == [False, True, False]
    assert "udp://127.0.0.1:5300 is left out" in caplog.text
    slot = roster.entries(0)[1].slot
    assert roster.set_found(0, addresses("192.0.2.54", "192.0.2.53"), 2.0)
    assert [entry.host for entry in roster.entries(0)][1:3] == ["192.0.2.54", "192.0.2.53"]
    assert roster.entries(0)[2].slot == slot
    assert roster.set_found(0, (), 3.0)
    assert [entry.host for entry in roster.entries(0)] == ["1.1.1.1", "9.9.9.9"]


def test_roster_tells_what_sizes_are_known_and_keeps_the_slot_as_they_change(board: Board) -> None:
    known = {"1.1.1.1": (253, 0)}
    roster = Roster(board, [LISTEN], lambda _, address: known.get(address.host, (0, 0)))
    roster.set_resolvers(0, [AUTO, *addresses("9.9.9.9")], 0.0)
    roster.set_found(0, addresses("1.1.1.1"), 0.0)
    sizes = [(entry.longest_name, entry.largest_reply) for entry in roster.entries(0)]
    assert sizes == [(253, 0), (0, 0)]
    slots = [entry.slot for entry in roster.entries(0)]
    assert not roster.set_found(0, addresses("1.1.1.1"), 1.0)
    known["1.1.1.1"] = (253, 1232)
    assert roster.set_found(0, addresses("1.1.1.1"), 1.0)
    assert roster.entries(0)[0].largest_reply == 1232
    assert [entry.slot for entry in roster.entries(0)] == slots


# -- keepers -----------------------------------------------------------------------------------


def test_keepers_at_start_are_the_home_workers(roster: Roster, board: Board) -> None:
    roster.set_resolvers(0, addresses(*(f"10.0.0.{n}" for n in range(1, 7))), 0.0)
    assert keepers(board, 8) == [0, 1, 2, 0, 1, 2, -1, -1]
    assert epoch(board) > 0


def test_keepers_when_a_worker_dies_only_its_slots_move_and_come_back(
    roster: Roster, board: Board
) -> None:
    roster.set_resolvers(0, addresses(*(f"10.0.0.{n}" for n in range(1, 9))), 0.0)
    before = epoch(board)
    roster.hand_over((0, 2))
    assert keepers(board, 8) == [0, 0, 2, 0, 2, 2, 0, 0]
    assert epoch(board) == before + 1
    roster.hand_over((0, 2))
    assert epoch(board) == before + 1
    roster.hand_over((0, 1, 2))
    assert keepers(board, 8) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert epoch(board) == before + 2


def test_keepers_with_nobody_living_stay(roster: Roster, board: Board) -> None:
    roster.set_resolvers(0, addresses("10.0.0.1", "10.0.0.2"), 0.0)
    before = epoch(board)
    roster.hand_over(())
    assert keepers(board, 2) == [0, 1]
    assert epoch(board) == before


def test_keepers_of_a_resolver_that_joins_are_living_workers(roster: Roster, board: Board) -> None:
    roster.hand_over((2,))
    roster.set_resolvers(0, addresses("10.0.0.1", "10.0.0.2"), 0.0)
    assert keepers(board, 2) == [2, 2]


@given(
    workers=st.integers(1, 16),
    slot=st.integers(0, 5000),
    living=st.sets(st.integers(0, 15), min_size=1),
    dead=st.integers(0, 15),
)
def test_keeper_of_any_slot_lives_and_moves_only_with_its_keeper(
    workers: int, slot: int, living: set[int], dead: int
) -> None:
    there = sorted(index for index in living if index < workers) or [0]
    keeper = keeper_of(slot, workers, there)
    assert keeper in there
    if keeper == slot % workers and dead != keeper:
        rest = [index for index in there if index != dead]
        assert keeper_of(slot, workers, rest) == keeper


def test_keeper_of_the_slots_of_a_dead_worker_are_dealt_evenly() -> None:
    counts = dict.fromkeys((0, 1, 3), 0)
    for slot in range(2, 1200, 4):
        counts[keeper_of(slot, 4, (0, 1, 3))] += 1
    assert counts == {0: 100, 1: 100, 3: 100}


# -- what workers are told ---------------------------------------------------------------------


def test_roster_pinned_resolver_is_there_at_once(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("https://dns.google/dns-query#8.8.8.8,8.8.4.4"), 0.0)
    (entry,) = roster.entries(0)
    assert entry == ResolverEntry(
        slot=0,
        scheme="https",
        host="8.8.8.8",
        port=443,
        name="https://dns.google:443/dns-query#8.8.8.8,8.8.4.4",
        more_hosts=("8.8.4.4",),
        server_name="dns.google",
        path="/dns-query",
    )


@pytest.mark.parametrize(
    ("text", "options", "host", "server_name"),
    [
        ("dot://8.8.8.8", None, "8.8.8.8", ""),
        ("dot://8.8.8.8", Options(server_name="dns.google"), "8.8.8.8", "dns.google"),
        ("dot://dns.google#8.8.8.8", None, "8.8.8.8", "dns.google"),
        ("dot://dns.google#8.8.8.8", Options(server_name="a.b"), "8.8.8.8", "a.b"),
        ("tcp://8.8.8.8", None, "8.8.8.8", ""),
    ],
)
def test_entry_of_a_resolver_names_whom_its_certificate_must_name(
    text: str, options: Options | None, host: str, server_name: str
) -> None:
    address = parse(text, options)
    entry = entry_of(0, address, address.pins or (address.host,))
    assert (entry.host, entry.server_name) == (host, server_name)


def test_entry_of_a_resolver_has_everything_that_was_said_of_it() -> None:
    options = Options(
        server_name="a.b",
        ca_file="/ca.pem",
        get=True,
        via=Proxy("http", "192.0.2.1", 8080),
        bind="eth0",
        weight=7,
    )
    entry = entry_of(3, parse("https://8.8.8.8:444/q", options), ["8.8.8.8"])
    assert entry == ResolverEntry(
        slot=3,
        scheme="https",
        host="8.8.8.8",
        port=444,
        name="https://8.8.8.8:444/q as a.b by GET via http://192.0.2.1:8080 from eth0 weight 7",
        weight=7,
        server_name="a.b",
        ca_file="/ca.pem",
        path="/q",
        get=True,
        via="http://192.0.2.1:8080",
        bind="eth0",
    )


def test_roster_same_server_under_its_name_says_who_it_is(roster: Roster) -> None:
    first = parse("dot://192.0.2.1", Options(server_name="dns.example"))
    again = parse("dot://dns.example#192.0.2.1")

    roster.set_resolvers(0, [first, again], 0.0)
    assert [member.fault for member in roster.pools[0]] == [
        "",
        "192.0.2.1 is in the pool already, as dot://192.0.2.1:853 as dns.example",
    ]

    roster.set_resolvers(0, [again], 1.0)
    assert (roster.pools[0][0].fault, len(roster.entries(0))) == ("", 1)


def test_roster_same_server_by_another_way_or_path_is_another_resolver(roster: Roster) -> None:
    different = [
        parse("https://8.8.8.8/a"),
        parse("https://8.8.8.8/b"),
        parse("https://8.8.8.8/a", Options(bind="eth0")),
        parse("https://8.8.8.8/a", Options(via=Proxy("http", "192.0.2.1", 80))),
        parse("https://8.8.8.8/a", Options(server_name="a.b")),
    ]
    roster.set_resolvers(0, different, 0.0)
    assert len(roster.entries(0)) == 5
