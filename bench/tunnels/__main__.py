"""`python -m bench.tunnels`: downloads through real tunnels over eight layouts of resolvers."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.tunnels.download import Download, download
from bench.tunnels.layouts import LAYOUTS, Layout, resolvers_of
from bench.tunnels.programs import (
    FIRST,
    ROUND_ROBIN,
    Tunnel,
    Via,
    installed_tunnels,
    pool_from,
    relay_with,
    tunnel_from,
)
from bench.tunnels.quick import CHECKS
from bench.tunnels.report import Results, Run
from tests.rig import Address, Dnsdist, RigError
from tests.rig.files import FileServer, noise
from tests.rig.net import why_no_port_53, why_not_installed

RESULTS = Path(__file__).resolve().parents[1] / "results"
FILE_BYTES = 128 * 1024
_ENDLESS_BYTES = 128 << 20
"""More than any tunnel carries in its time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    tunnels: Sequence[Tunnel]
    layouts: Sequence[Layout]
    vias: Sequence[Via]
    rounds: int
    seconds: float
    """Of a download over a layout without limits."""
    limited_s: float
    """The longest that the file over a limited layout may take."""


class Bench:
    """Starts everything afresh for every download."""

    def __init__(self, files: Address, folder: Path) -> None:
        self._files = files
        self._folder = folder

    @contextlib.contextmanager
    def up(
        self, tunnel: Tunnel, layout: Layout, via: Via
    ) -> Iterator[tuple[Address, list[Dnsdist]]]:
        """The whole way: where the tunnel's client listens, and the resolvers."""
        workdir = Path(tempfile.mkdtemp(dir=self._folder))
        with (
            tunnel.start(self._files, workdir) as server,
            resolvers_of(layout, server.address, workdir) as resolvers,
            via.start(tunnel, [each.address for each in resolvers], workdir) as address,
            server.client(address) as client,
        ):
            yield client.address, resolvers  # type: ignore[attr-defined]

    def measure(self, plan: Plan, results: Results) -> None:
        """All rounds; every round begins with another program."""
        for number in range(plan.rounds):
            turn = number % len(plan.vias)
            for tunnel in plan.tunnels:
                for layout in plan.layouts:
                    for via in [*plan.vias[turn:], *plan.vias[:turn]]:
                        with self.up(tunnel, layout, via) as (client, resolvers):
                            found = download(
                                client,
                                resolvers,
                                most_s=plan.limited_s if layout.is_limited else plan.seconds,
                                most_bytes=FILE_BYTES if layout.is_limited else None,
                            )
                        run = _run(tunnel, layout, via, number, found)
                        results.runs.append(run)
                        print(_progress(plan, run), file=sys.stderr, flush=True)

    def check(self, tunnel: Tunnel, vias: Sequence[Via]) -> int:
        """Print what the quick checks find; return how many do not hold."""
        missed = 0
        for check in CHECKS:
            for via in vias:
                with self.up(tunnel, LAYOUTS[check.layout], via) as (client, resolvers):
                    found = download(client, resolvers, most_s=check.seconds, after_s=check.after_s)
                print(f"{check.layout}, {via.name}: {found.kbit_s:,.0f} kbit/s")
                for finding in check.find(found):
                    print(f"    {finding}", flush=True)
                    missed += not finding.holds
        return missed


def _run(tunnel: Tunnel, layout: Layout, via: Via, number: int, found: Download) -> Run:
    questions = sum(each.questions for each in found.counts) or 1
    return Run(
        tunnel=tunnel.name,
        layout=layout.name,
        via=via.name,
        round=number,
        size_bytes=found.size_bytes,
        seconds=found.seconds,
        is_complete=found.is_complete,
        kbit_s=found.kbit_s,
        questions_per_s=found.questions_per_s,
        answers_per_s=found.answers_per_s,
        answer_bytes=found.answer_bytes,
        shares=tuple(each.questions / questions for each in found.counts),
    )


def _progress(plan: Plan, run: Run) -> str:
    return (
        f"round {run.round + 1}/{plan.rounds}: {run.tunnel}, {run.layout}, {run.via}: "
        f"{run.kbit_s:,.0f} kbit/s in {run.seconds:.1f} s"
    )


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tunnels",
        description="Download speed of real DNS tunnels over eight layouts of resolvers.",
    )
    parser.add_argument("--quick", action="store_true", help="check behaviour on dns2tcp, 2 min")
    parser.add_argument("--tunnel", action="append", metavar="NAME", help="by default all here")
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of unlimited downloads (5)")
    parser.add_argument(
        "--limited-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="the longest that 128 KiB over limited resolvers may take (60)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[1, 2],
        metavar="N",
        help="worker counts of the relay (1 2)",
    )
    parser.add_argument(
        "--pool-command",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another pool; {listen} and {resolvers} are replaced",
    )
    parser.add_argument(
        "--server-command",
        metavar="COMMAND",
        help="another tunnel's server; {listen} {target} {domain} are replaced",
    )
    parser.add_argument(
        "--client-command",
        metavar="COMMAND",
        help="its client; {listen} {resolver} {domain} are replaced",
    )
    parser.add_argument(
        "--profile", default="generic", help="what the relay is told that this other tunnel is"
    )
    return parser


def _tunnels(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[Tunnel]:
    known = installed_tunnels()
    if given.server_command and given.client_command:
        name = given.tunnel[0] if given.tunnel else "other"
        return [tunnel_from(name, given.server_command, given.client_command, given.profile)]
    if given.server_command or given.client_command:
        parser.error("--server-command and --client-command go together")
    names = [tunnel.name for tunnel in known]
    if unknown := set(given.tunnel or ()) - set(names):
        parser.error(
            f"no such tunnel: {', '.join(unknown)}; there are {', '.join(names)}, "
            "and any other with --server-command and --client-command"
        )
    for tunnel in known:
        if tunnel.why_not and tunnel.name in (given.tunnel or names):
            print(f"{tunnel.name} is left out: {tunnel.why_not}", file=sys.stderr)
    wanted = given.tunnel or names
    return [tunnel for tunnel in known if tunnel.name in wanted and not tunnel.why_not]


def main() -> int:
    parser = _arguments()
    given = parser.parse_args()
    relays = [relay_with(count) for count in given.workers]
    others = []
    for word in given.pool_command:
        name, equals, command = word.partition("=")
        if not equals:
            parser.error(f"--pool-command is NAME=COMMAND, not {word!r}")
        others.append(pool_from(name, command))
    tunnels = _tunnels(parser, given)
    if missing := why_not_installed("dnsdist") or why_no_port_53():
        print(f"bench.tunnels: {missing}", file=sys.stderr)
        return 1
    if not tunnels:
        print("bench.tunnels: no tunnel to measure", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
        FileServer(noise(_ENDLESS_BYTES)) as files,
    ):
        bench = Bench(files.address, Path(folder))
        if given.quick:
            missed = bench.check(tunnels[0], relays)
            print(f"{missed} outside their bounds")
            return 1 if missed else 0
        plan = Plan(
            tunnels=tunnels,
            layouts=[LAYOUTS[name] for name in given.layout],
            vias=[FIRST, *relays, ROUND_ROBIN, *others],
            rounds=given.rounds,
            seconds=given.seconds,
            limited_s=given.limited_seconds,
        )
        results = Results(settings=vars(given), file_bytes=FILE_BYTES)
        bench.measure(plan, results)
    print(results.markdown())
    print("Everything measured: {}, chart: {}".format(*results.write(RESULTS)))
    return 0


if __name__ == "__main__":
    # As any other end: what runs is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except RigError as error:
        sys.exit(f"bench.tunnels: {error}")
