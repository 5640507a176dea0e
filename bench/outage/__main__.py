"""`python -m bench.outage`: cut the path to every kind of resolver for minutes, join it again."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.outage import WAYS, outage

_WATCHED_S = 15.0
_BEFORE_S = 3.0
_LIMIT_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.outage",
        description="Cut the path to every kind of resolver, join it, and say how soon each"
        " answers again. Needs root for network namespaces.",
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="length of the cut (180)")
    parser.add_argument("--rate", type=float, default=50.0, metavar="QPS", help="of a pool (50)")
    parser.add_argument(
        "--manner",
        choices=("silent", "down", "both"),
        default="both",
        help="packets vanish on the way, or the link itself goes down",
    )
    given = parser.parse_args()
    manners = ("silent", "down") if given.manner == "both" else (given.manner,)
    print(f"| cut for {given.seconds:g} s | {' | '.join(WAYS)} |\n|---|" + "---|" * len(WAYS))
    well = True
    for manner in manners:
        with (
            tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
            outage(Path(folder), given.rate) as path,
        ):
            path.clients[WAYS[0]].wait(_BEFORE_S)
            joined_s = path.cut(given.seconds, manner)
            found = path.recovered_s(joined_s, _WATCHED_S)
        cells = [
            "not back" if found[way] is None else f"back within {found[way]:.2f} s" for way in WAYS
        ]
        print(f"| {manner} | {' | '.join(cells)} |", flush=True)
        well &= all(found[way] is not None and found[way] <= _LIMIT_S for way in WAYS)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
