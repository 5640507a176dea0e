"""Every line that must hold of the pool, on the simulated network.

The seed is fixed, so a failure is the same every time: `python -m tests.simnet NAME --seed 1
--workers N` shows it again. Every line is played with one number of workers, in turn 1, 2 and 4;
`HOLDING` and `SHARED` with all. `python -m tests.simnet` plays all.
"""

from __future__ import annotations

import pytest

from tests.simnet import SCENARIOS

SEED = 1

HOLDING = (
    "three_equal_share_equally",
    "fast_one_carries_the_load",
    "held_poll_sets_nobody_aside",
    "clean_one_carries_the_load",
    "one_loss_in_twenty_sets_nobody_aside",
    "fast_refuser_is_never_seen",
    "sole_resolver_revived",
    "no_buffers_blames_nobody",
    "no_descriptors_blames_nobody",
    "no_route_blames_nobody",
)
"""Scenarios that need neither ceilings nor waiting nor copies."""

SHARED = (
    "three_limits_add_up",
    "one_dead_of_three_limited",
    "one_failing_name_lowers_no_ceiling",
    "dead_one_comes_back",
)
"""Ceilings, trials and probes are shared over the board; these are also quick to play."""


def plays() -> list[tuple[str, int]]:
    """Names and numbers of workers."""
    chosen = []
    for place, (name, scenario) in enumerate(SCENARIOS.items()):
        turn = scenario.workers[place % len(scenario.workers)]
        counts = scenario.workers if name in HOLDING + SHARED else (turn,)
        chosen += [(name, count) for count in counts]
    return chosen


@pytest.mark.parametrize(("name", "workers"), plays())
def test_scenario_figures_are_within_their_bounds(name: str, workers: int) -> None:
    scenario = SCENARIOS[name]
    figures = scenario.play(SEED, workers)
    told = "\n".join(map(str, figures))
    assert all(figure.holds for figure in figures), f"{scenario.line}\n{told}"
