"""Every line that must hold of the pool, on the simulated network.

The seed is fixed, so a failure is the same every time: `python -m tests.simnet NAME --seed 1
--workers N` shows it again. Every line is played with one number of workers, in turn 1, 2 and 4;
those whose rules are about sharing between workers with all. `python -m tests.simnet` plays all.
"""

from __future__ import annotations

import pytest

from tests.simnet import SCENARIOS

SEED = 1

ALL_WORKERS = (
    "three_limits_add_up",
    "one_dead_of_three_limited",
    "fast_refuser_is_never_seen",
    "one_failing_name_lowers_no_ceiling",
    "dead_one_comes_back",
    "sole_resolver_revived",
)
"""Ceilings, trials and probes are shared over the board; these are also quick to play."""


def plays() -> list[tuple[str, int]]:
    """Names and numbers of workers."""
    chosen = []
    for place, (name, scenario) in enumerate(SCENARIOS.items()):
        turn = scenario.workers[place % len(scenario.workers)]
        counts = scenario.workers if name in ALL_WORKERS else (turn,)
        chosen += [(name, count) for count in counts]
    return chosen


@pytest.mark.parametrize(("name", "workers"), plays())
def test_scenario_figures_are_within_their_bounds(name: str, workers: int) -> None:
    scenario = SCENARIOS[name]
    figures = scenario.play(SEED, workers)
    told = "\n".join(map(str, figures))
    assert all(figure.holds for figure in figures), f"{scenario.line}\n{told}"
