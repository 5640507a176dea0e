"""Round trips of a path: how long, and how much they vary."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from random import Random
from typing import Final

Delay = Callable[[Random], float]
"""Draws a round trip in seconds."""

P99_SCORE: Final = 2.3263
"""Standard score below which 99 % of a normal distribution lie."""


def uniform(low_s: float, high_s: float) -> Delay:
    """Round trips anywhere between two bounds."""
    span_s = high_s - low_s
    return lambda random: low_s + span_s * random.random()


def lognormal(p50_s: float, p99_s: float) -> Delay:
    """Round trips with a long tail: half are below `p50_s`, one in a hundred is above `p99_s`."""
    mu = log(p50_s)
    sigma = (log(p99_s) - mu) / P99_SCORE
    return lambda random: random.lognormvariate(mu, sigma)
