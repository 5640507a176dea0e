"""A tunnel with one question in flight, as dns2tcp has: every loss that nobody hedges stalls it."""

from __future__ import annotations

import pytest

from tests.simnet import Net

WORKERS = pytest.mark.parametrize("workers", [1, 4])


@WORKERS
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_in_flight_over_a_dropping_limit_adds_up(workers: int, seed: int) -> None:
    with Net(seed=seed, workers=workers, tunnel="dns2tcp") as net:
        for limit_qps, over in ((20, "refuse"), (30, "refuse"), (40, "drop")):
            net.resolver(rtt_s=0.001, limit_qps=limit_qps, over=over)
        net.closed_loop(1, timeout_s=1.0, on_error="ignore")
        net.run(30)
        assert net.rate(5, 30) >= 86


@WORKERS
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_in_flight_beside_a_dead_resolver_starts_at_once(workers: int, seed: int) -> None:
    with Net(seed=seed, workers=workers, tunnel="dns2tcp") as net:
        for limit_qps in (30, 40):
            net.resolver(rtt_s=0.001, limit_qps=limit_qps)
        net.resolver(rtt_s=0.001, dead=True)
        net.closed_loop(1, timeout_s=1.0, on_error="ignore")
        net.run(30)
        assert net.rate(1, 5) >= 56
        assert net.rate(5, 30) >= 66
