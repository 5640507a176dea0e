"""The simulated network itself, and what the engine must already do on it.

The first part sends questions to simulated resolvers by hand, so that it says what the simulation
does, whatever the engine makes of it. The second part has the engines in the middle.
"""

from __future__ import annotations

import errno
import math
from typing import Any

import pytest

from shared import layout
from tests.simnet import IodineClient, Net, lognormal, uniform
from tests.simnet.probe import Ear, ask_at, ask_steadily, question
from tests.simnet.scenarios import blamed
from tests.simnet.wire import NUMBER_AT, recased
from workers.engine.health import State

WORKERS = pytest.mark.parametrize("workers", [1, 2, 4])


def near(value: float, expected: float, samples: int) -> bool:
    """Whether a share of so many samples is within five standard errors of what it should be."""
    return abs(value - expected) < 5 * math.sqrt(expected * (1 - expected) / samples)


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("over", "rcode"), [("refuse", 5), ("servfail", 2), ("drop", None)])
def test_limit_over_used_passes_its_rate_exactly(over: Any, rcode: int | None) -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(limit_qps=20, burst=2, over=over)
        ear = ask_steadily(net, resolver, 100, 10)
        net.run(11)
        assert resolver.answered.per_second()[1:10] == pytest.approx([20] * 9, abs=1)
        assert resolver.answered.total(1, 10) == pytest.approx(20 * 9, abs=1)
        assert resolver.answered.total(0, 10) == ear.rcodes().count(0)
        refused, dropped = sum(resolver.refused), sum(resolver.dropped)
        assert refused + dropped == 1_000 - resolver.answered.total()
        assert (refused == 0) if rcode is None else (ear.rcodes().count(rcode) == refused)


def test_limit_with_a_full_bucket_passes_one_second_more_at_once() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(limit_qps=50, rtt_s=0.0)
        ear = Ear()
        for number in range(200):
            ask_at(net, 5.0, resolver, ear, number)
        net.run(6)
        assert ear.rcodes().count(0) == 50


def test_limit_that_changes_is_followed_and_accounted() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(limit_qps=100, burst=2)
        net.at(2, resolver.set_limit, 30, 2)
        net.at(4, resolver.die)
        net.at(5, resolver.revive)
        ask_steadily(net, resolver, 200, 8)
        net.run(8)
        assert resolver.answered.total(0, 2) == pytest.approx(200, abs=2)
        assert resolver.answered.total(2, 4) == pytest.approx(60, abs=2)
        assert resolver.answered.total(4, 5) == 0
        assert resolver.allowed(0, 8) == 2 * 100 + 2 * 30 + 3 * 30
        assert resolver.allowed(1, 3) == 100 + 30


def test_limit_over_used_with_cooldown_is_silent_for_its_time() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(rtt_s=0.0, limit_qps=10, burst=1, cooldown_s=2.0, cooldown_over=20)
        ear = ask_steadily(net, resolver, 100, 5)
        net.run(5)
        heard_before = [at_s for at_s in ear.times if at_s < 1]
        assert heard_before[-1] < 0.3
        assert ear.rcodes()[: len(heard_before)].count(5) == 21
        assert ear.times[len(heard_before)] - heard_before[-1] == pytest.approx(2.0, abs=0.02)


def test_limit_hardly_used_never_cools_down() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(limit_qps=10, burst=1, cooldown_s=2.0, cooldown_over=20)
        ear = ask_steadily(net, resolver, 20, 10)
        net.run(11)
        assert len(ear.heard) == 200


# -- paths ---------------------------------------------------------------------------------------


def test_loss_on_the_way_there_keeps_questions_from_the_server() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(loss=0.3)
        ear = ask_steadily(net, resolver, 2_000, 5)
        net.run(6)
        assert near(sum(resolver.lost) / 10_000, 0.3, 10_000)
        assert net.server.questions == len(ear.heard) == 10_000 - sum(resolver.lost)


def test_loss_on_the_way_back_costs_the_servers_answers() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(loss_after=0.1)
        ear = ask_steadily(net, resolver, 2_000, 5)
        net.run(6)
        assert net.server.questions == 10_000
        assert near(1 - len(ear.heard) / 10_000, 0.1, 10_000)


def test_loss_of_numbered_questions_loses_those() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(lose=(2, 5))
        ear = ask_steadily(net, resolver, 10, 1)
        net.run(2)
        numbers = [int(wire[NUMBER_AT], 16) for _, wire in ear.heard]
        assert numbers == [0, 2, 3, 5, 6, 7, 8, 9]


def test_delay_fixed_is_exact() -> None:
    with Net(seed=1) as net:
        ear = ask_steadily(net, net.resolver(rtt_s=0.25), 10, 1)
        net.run(2)
        assert ear.times == pytest.approx([number / 10 + 0.25 for number in range(10)])


def test_delay_uniform_stays_within_and_fills_its_bounds() -> None:
    with Net(seed=1) as net:
        ear = Ear()
        for number in range(5_000):
            ask_at(
                net, 1, net.resolvers[0] if number else net.resolver(rtt_s=uniform(0.1, 0.3)), ear
            )
        net.run(2)
        delays = [at_s - 1 for at_s in ear.times]
        assert 0.1 <= min(delays) < 0.105
        assert 0.295 < max(delays) <= 0.3
        assert sum(delays) / 5_000 == pytest.approx(0.2, abs=0.004)


def test_delay_lognormal_has_its_percentiles() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(rtt_s=lognormal(0.040, 0.900))
        ear = Ear()
        for number in range(20_000):
            ask_at(net, 1, resolver, ear, number)
        net.run(3_600)
        delays = sorted(at_s - 1 for at_s in ear.times)
        assert delays[10_000] == pytest.approx(0.040, rel=0.06)
        assert delays[19_800] == pytest.approx(0.900, rel=0.15)


def test_resolver_dead_says_nothing_or_that_its_port_is_closed() -> None:
    with Net(seed=1) as net:
        silent, closed = net.resolver(dead=True), net.resolver(dead=True, icmp=True, rtt_s=0.02)
        first, second = Ear(), Ear()
        ask_at(net, 1, silent, first)
        ask_at(net, 1, closed, second)
        net.run(2)
        assert not first.heard
        assert not first.unreachable_at
        assert second.unreachable_at == pytest.approx([1.02])


def test_resolver_with_patterns_answers_by_label() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(silent_for=b"mute", servfail_for=b"bad")
        ears = {label: Ear() for label in (b"mute", b"bad", b"good")}
        for label, ear in ears.items():
            ask_at(net, 1, resolver, ear, 0xBAD, label)
        net.run(2)
        assert [ear.rcodes() for ear in ears.values()] == [[], [2], [0]]


def test_resolver_that_recases_changes_letters_of_the_name_only() -> None:
    wire = question(0xABC, b"Label-7")
    ours = wire[12 : len(wire) - 11]
    with Net(seed=1) as net:
        ear = Ear()
        ask_at(net, 1, net.resolver(recase=True), ear, 0xABC, b"Label-7")
        net.run(2)
        theirs = ear.heard[0][1][12 : 12 + len(ours)]
        assert theirs == recased(ours) != ours
        assert theirs.lower() == ours.lower()
        assert theirs[-4:] == ours[-4:]


# -- the server ----------------------------------------------------------------------------------


def test_server_that_holds_one_poll_flushes_it_by_the_next_question() -> None:
    with Net(seed=1) as net:
        near_one, far_one = net.resolver(rtt_s=0.0), net.resolver(rtt_s=0.2)
        net.server.set(fill=0.0, hold_s=1.0)
        first, second = Ear(), Ear()
        ask_at(net, 1.0, near_one, first, 1)
        ask_at(net, 1.2, far_one, second, 2)
        net.run(5)
        assert first.times == pytest.approx([1.3])  # when the other reached the server
        assert second.times == pytest.approx([2.4])  # a second there, then the way back
        assert len(first.heard[0][1]) == len(second.heard[0][1])


def test_server_that_holds_each_poll_answers_with_the_data_that_comes() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(rtt_s=0.0)
        net.server.set(hold_s=4.0, hold="each")
        net.server.set_data(0.0)
        ear = Ear()
        ask_at(net, 1.0, resolver, ear, 1)
        ask_at(net, 1.5, resolver, ear, 2)
        net.at(3.0, net.server.set_data, 1_000.0)
        net.run(3.1)
        assert len(ear.heard) == 2
        assert 3.0 < ear.times[0] < ear.times[1] < 3.02
        assert min(len(wire) for _, wire in ear.heard) > 900


def test_server_out_of_order_fails_or_is_silent() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver()
        ears = [Ear(), Ear(), Ear()]
        net.at(2, lambda: net.server.set(outage="servfail"))
        net.at(3, lambda: net.server.set(outage="silent"))
        for second, ear in enumerate(ears, start=1):
            ask_at(net, second + 0.5, resolver, ear)
        net.run(5)
        assert [ear.rcodes() for ear in ears] == [[0], [2], []]


def test_server_that_tells_copies_fills_them_by_their_own_share() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver()
        net.server.set(fill_again=0.0)
        ear = Ear()
        for number in (1, 1, 2, 1, 2):
            ask_at(net, 1, resolver, ear, number)
        net.run(2)
        assert [len(wire) > 900 for _, wire in ear.heard] == [True, False, True, False, False]


def test_server_with_work_to_do_answers_one_after_the_other() -> None:
    with Net(seed=1) as net:
        resolver = net.resolver(rtt_s=0.0)
        net.server.set(service_s=0.1)
        ear = Ear()
        for number in range(5):
            ask_at(net, 1, resolver, ear, number)
        net.run(2)
        assert ear.times == pytest.approx([1.1, 1.2, 1.3, 1.4, 1.5])


def test_session_without_acknowledgement_sends_again_after_its_time() -> None:
    with Net(seed=1) as net:
        session = net.server.session(b"s", window=2)
        assert [session.take(1.0), session.take(1.0), session.take(1.0)] == [0, 1, None]
        session.acks[b"number-1"] = (0, [1])
        session.take_acks(1.1, b"number-1")
        assert session.take(1.1) == 2  # 1 has arrived, its place is free
        assert session.take(1.15) is None
        assert session.take(1.21) == 0  # not acknowledged within 0.2 s
        session.acks[b"number-2"] = (3, [])
        session.take_acks(1.3, b"number-2")
        assert [session.take(1.3), session.take(1.3), session.take(1.3)] == [3, 4, None]
        assert session.resent == 1


# -- clients, with an engine in the middle -------------------------------------------------------


def test_closed_loop_keeps_its_window_in_flight() -> None:
    with Net(seed=1) as net:
        net.resolver(rtt_s=0.1)
        client = net.closed_loop(50)
        net.run(10)
        assert sum(client.asked) - sum(client.answered) == 50
        assert net.rate(2, 10) == pytest.approx(500, rel=0.02)
        assert client.latency_s(0.5) == pytest.approx(0.1)


@pytest.mark.parametrize("poisson", [False, True])
def test_open_loop_asks_at_its_rate_whatever_comes_back(poisson: bool) -> None:
    with Net(seed=1) as net:
        net.resolver(dead=True)
        client = net.open_loop(200, poisson=poisson)
        net.run(20)
        assert client.asked.rate(0, 20) == pytest.approx(200, rel=0.08 if poisson else 0.001)


def test_client_with_fresh_sockets_closes_them_and_loses_what_comes_later() -> None:
    with Net(seed=1, per_attempt_s=2.0) as net:
        net.resolver(rtt_s=lognormal(0.02, 0.5))
        net.resolver(rtt_s=lognormal(0.02, 0.5))
        client = net.closed_loop(20, sockets=0, timeout_s=0.5, on_error="ignore")
        net.run(10)
        assert sum(client.answered) == sum(client.delivered) > 2_000
        assert len(net.ports) == 20  # one for each question in flight, no more
        assert net.undelivered > 10


@WORKERS
def test_clients_that_share_an_id_get_their_own_answers(workers: int) -> None:
    with Net(seed=1, workers=workers) as net:
        net.resolver(rtt_s=uniform(0.01, 0.1), recase=True)
        clients = [net.closed_loop(10, zero_ids=True) for _ in range(5)]
        net.run(5)
        assert [client.strays for client in clients] == [0] * 5
        assert all(sum(client.answered) > 500 for client in clients)
        assert net.failures() == 0


def test_client_over_tcp_gets_whole_what_was_truncated() -> None:
    with Net(seed=1) as net:
        net.resolver(rtt_s=0.01, truncate=True)
        datagrams, stream = net.closed_loop(5), net.closed_loop(5, stream=True)
        net.run(5)
        assert sum(datagrams.full) == 0
        assert sum(stream.full) == sum(stream.answered) > 500


def test_dnstt_client_over_a_clean_path_gets_packets_in_order_and_once() -> None:
    with Net(seed=1, tunnel="dnstt") as net:
        net.resolver(rtt_s=0.02)
        net.server.set(hold_s=1.0)
        client = net.dnstt(packets=5_000)
        net.run(10)
        assert client.packets == 5_000
        assert client.again == client.session.resent == 0
        assert sum(client.good_bytes) == 5_000 * net.server.payload_bytes
        assert client.asked.rate(8, 10) < 10  # nothing left: it polls


def test_dnstt_client_over_a_lossy_path_gets_all_by_resending() -> None:
    with Net(seed=1, tunnel="dnstt") as net:
        net.resolver(rtt_s=0.02, loss=0.05, loss_after=0.05)
        client = net.dnstt(packets=2_000)
        net.run(30)
        assert client.packets == 2_000
        assert client.session.resent > 50


def test_iodine_client_fetches_one_packet_in_a_round_trip() -> None:
    with Net(seed=1, tunnel="iodine") as net:
        net.resolver(rtt_s=0.05)
        net.server.set(hold_s=4.0, hold="session")
        client: IodineClient = net.iodine(packets=100)
        net.run(30)
        assert client.packets == 100
        assert sum(client.good_bytes[: 5 * 10]) == pytest.approx(100 * 900, rel=0.05)
        assert client.asked.rate(10, 30) < 0.5  # the server holds its question
        assert sum(client.silent) == 0


# -- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_packets", [False, True])
def test_suspend_lets_an_hour_pass_for_the_network_alone(keeps_packets: bool) -> None:
    with Net(seed=1) as net:
        net.resolver(rtt_s=0.1)
        client = net.closed_loop(10, timeout_s=1e6)
        net.at(10.05, lambda: net.suspend(3_600, keeps_packets=keeps_packets))
        net.run(3_609)
        asked = sum(client.asked)
        assert client.asked.total(10.2) == 0
        net.run(5)
        assert sum(client.asked) > asked + 100


def test_cut_stops_every_packet_until_it_is_mended() -> None:
    with Net(seed=1) as net:
        net.resolver(rtt_s=0.01)
        net.closed_loop(10)
        net.at(5, net.cut)
        net.at(8, net.mend)
        net.run(20)
        assert net.rate(5.1, 8) == 0
        assert net.rate(15, 20) == pytest.approx(1_000, rel=0.02)


def test_fault_of_one_resolvers_sockets_leaves_the_others_alone() -> None:
    with Net(seed=1) as net:
        broken, sound = net.resolver(rtt_s=0.01), net.resolver(rtt_s=0.01)
        net.closed_loop(10)
        net.at(5, net.set_fault, errno.ENETUNREACH, [broken])
        net.run(10)
        assert broken.sent.total(5.1, 10) == 0
        assert sound.sent.rate(6, 10) == pytest.approx(1_000, rel=0.02)
        assert blamed(net) == net.failures() == 0


def test_resolver_that_joins_later_is_used() -> None:
    with Net(seed=1, workers=2) as net:
        net.resolver(rtt_s=0.01)
        net.closed_loop(10)
        net.run(5)
        joined = net.resolver(rtt_s=0.01)
        net.run(5)
        assert joined.sent.rate(7, 10) == pytest.approx(500, rel=0.1)


@pytest.mark.parametrize("steering", ["random", "flow"])
def test_steering_spreads_packets_or_keeps_a_socket_with_a_worker(steering: Any) -> None:
    with Net(seed=1, workers=4, steering=steering) as net:
        net.resolver(rtt_s=0.01)
        net.closed_loop(40)
        net.run(10)
        at = net.board.at
        queries = [net.board.words[at.pool(worker, 0)] for worker in range(4)]
        assert sum(queries) == pytest.approx(sum(net.clients[0].asked), abs=200)
        if steering == "random":
            assert min(queries) > 0.22 * sum(queries)
        else:
            assert sorted(queries)[:3] == [0, 0, 0]


# -- the same again ------------------------------------------------------------------------------


def eventful(seed: int, workers: int) -> tuple[Any, Any]:
    """A run with a little of everything; return its trace and fingerprint."""
    with Net(seed=seed, workers=workers, record=True) as net:
        net.resolver(rtt_s=lognormal(0.02, 0.2), loss=0.05)
        net.resolver(rtt_s=uniform(0.01, 0.03), limit_qps=100)
        dying = net.resolver(rtt_s=0.015, recase=True)
        net.server.set(fill=0.7, hold_s=0.5)
        net.closed_loop(20)
        net.open_loop(50, poisson=True, sockets=0)
        net.at(2, dying.die, True)
        net.at(4, dying.revive)
        net.at(5, net.set_fault, errno.ENOBUFS)
        net.at(5.5, net.set_fault, 0)
        net.run(7)
        return net.trace, net.fingerprint()


@WORKERS
def test_run_with_the_same_seed_is_the_same(workers: int) -> None:
    trace, fingerprint = eventful(7, workers)
    again, fingerprint_again = eventful(7, workers)
    assert len(trace) > 2_000
    assert trace == again
    assert fingerprint == fingerprint_again
    assert eventful(8, workers)[0] != trace


def test_failure_inside_a_net_names_its_seed() -> None:
    with pytest.raises(AssertionError) as caught, Net() as net:  # noqa: PT012 - the whole body
        seed = net.seed
        net.resolver()
        net.run(0.1)
        raise AssertionError("it does not hold")
    note = caught.value.__notes__[0]
    assert f"Net(seed={seed})" in note
    assert "SimResolver 0" in note


# -- what the engine must do already -------------------------------------------------------------


@WORKERS
def test_resolver_that_dies_is_set_down_and_comes_back(workers: int) -> None:
    with Net(seed=1, workers=workers) as net:
        dying = net.resolver(rtt_s=0.01)
        net.resolver(rtt_s=0.01)
        net.closed_loop(20)
        net.at(5, dying.die)
        net.at(15, dying.revive)
        net.run(17)
        (_, first), (down_s, second), (back_s, third) = net.states_of(dying)[:3]
        assert [first, second, third] == [State.IN_USE, State.DOWN, State.FRESH]
        assert 5 < down_s <= 7.5
        assert 15 < back_s <= 16.3
        assert dying.sent.rate(8, 15) <= 1.2  # a copy of one live query every second
        assert net.failures() == 0
        counted = net.board.counter_total(0, layout.COUNTER_ANSWERED)
        assert counted == pytest.approx(sum(dying.answered), abs=100)  # up to a tick behind
