"""Play scenarios from a shell: `python -m tests.simnet [NAME ...] [--seed N] [--workers N]`."""

from __future__ import annotations

import argparse
import time

from tests.simnet import LAYOUTS, SCENARIOS, goodput


def main() -> int:
    """Print the figures of the named scenarios, of all by default; 1 if one does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simnet", description=main.__doc__)
    parser.add_argument("name", nargs="*", metavar="NAME", help="scenarios, by default all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, help="by default those that the line names")
    parser.add_argument("--list", action="store_true", help="print the names and lines")
    parser.add_argument("--layouts", action="store_true", help="dnstt downloads over the layouts")
    arguments = parser.parse_args()
    if unknown := set(arguments.name) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if arguments.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:40} {scenario.line}")
        return 0
    if arguments.layouts:
        for layout in LAYOUTS:
            print_layout(layout, arguments.seed, arguments.workers or 1)
        return 0
    missed = 0
    for name in arguments.name or SCENARIOS:
        scenario = SCENARIOS[name]
        for workers in [arguments.workers] if arguments.workers else scenario.workers:
            started_at = time.perf_counter()
            figures = scenario.play(arguments.seed, workers)
            took_s = time.perf_counter() - started_at
            print(f"{name} workers={workers} seed={arguments.seed} ({took_s:.1f} s)")
            for figure in figures:
                print(f"    {figure}")
                missed += not figure.holds
    print(f"{missed} figures outside their bounds")
    return 1 if missed else 0


def print_layout(layout: str, seed: int, workers: int) -> None:
    """Print the goodput over the first resolver and over the pool."""
    first = goodput(layout, seed=seed, workers=workers, first_only=True)
    pool = goodput(layout, seed=seed, workers=workers)
    ratio = pool / first if first else float("inf")
    print(f"{layout:24} first {first / 125:9.0f} kbit/s, pool {pool / 125:9.0f}, ratio {ratio:.2f}")


if __name__ == "__main__":
    raise SystemExit(main())
