"""`python -m bench.throughput`: the relay with 1, 2 and 4 workers and dnsdist, in turns."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.throughput.encrypted import Ground, encrypted_servers, two_pools
from bench.throughput.encrypted import subjects as encrypted_subjects
from bench.throughput.latency import measure_round_trips
from bench.throughput.meter import read_connections, read_cpu, read_memory
from bench.throughput.report import BesideRun, LatencyRun, LoadRun, MemoryRun, Results
from bench.throughput.subjects import (
    DNSDIST,
    LARGE_ZONE,
    SMALL_ZONE,
    Running,
    Subject,
    authoritative_servers,
    one_server,
    question_file,
    question_wires,
    relay_with,
)
from tests.rig import Address, Load, dnsperf

RESULTS = Path(__file__).resolve().parents[1] / "results"
ZONES = {"large": LARGE_ZONE, "small": SMALL_ZONE}
_WARM_UP_S = 0.5
_BESIDE_QPS = 500.0
_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    rounds: int
    seconds: float
    """Of each load."""
    latency_seconds: float
    latency_qps: float
    rate_qps: int | None
    """Rate of the loads; None for as fast as it goes."""
    outstanding: int
    sockets: list[int]
    replies: list[str]
    busy_qps: int | None
    """Rate of the busy pool beside which round trips are taken; None for as fast as it goes."""


class Bench:
    """Runs a plan and collects its results."""

    def __init__(self, plan: Plan, workdir: Path, servers: list[Address]) -> None:
        self.plan = plan
        self.workdir = workdir
        self.servers = servers
        self.files = {reply: question_file(workdir, zone) for reply, zone in ZONES.items()}
        self.wires = question_wires(LARGE_ZONE)
        self._pool = ThreadPoolExecutor(1)

    def run(self, subjects: list[Subject], results: Results) -> None:
        """All rounds; every round starts with another subject."""
        for number in range(self.plan.rounds):
            turn = number % len(subjects)
            for subject in subjects[turn:] + subjects[:turn]:
                print(f"round {number + 1}/{self.plan.rounds}: {subject.name}", file=sys.stderr)
                with subject.start(self.workdir, self.servers) as running:
                    self._loads(subject.name, number, running, results)
                    self._latency(subject.name, number, running, results)
                    memory = read_memory(running.workers())
                    results.memories.append(
                        MemoryRun(subject.name, number, memory.rss_bytes, memory.uss_bytes)
                    )

    def _loads(self, name: str, number: int, running: Running, results: Results) -> None:
        plan = self.plan
        dnsperf(running.address, self.files["large"], seconds=_WARM_UP_S, edns=True)
        for sockets in plan.sockets:
            for reply in plan.replies:
                connected = read_connections(running.servers)
                before = read_cpu(running.processes())
                load = dnsperf(
                    running.address,
                    self.files[reply],
                    clients=sockets,
                    outstanding=plan.outstanding,
                    seconds=plan.seconds,
                    rate_qps=plan.rate_qps,
                    edns=True,
                )
                used_s = read_cpu(running.processes()).since(before)
                made = len(read_connections(running.servers) - connected)
                results.loads.append(
                    LoadRun(
                        subject=name,
                        round=number,
                        sockets=sockets,
                        reply=reply,
                        rate_qps=load.rate_qps,
                        cpu_us=used_s * _MICRO / load.completed,
                        lost=load.lost,
                        query_bytes=load.query_bytes,
                        reply_bytes=load.reply_bytes,
                        completed=load.completed,
                        connections=made if running.servers else None,
                    )
                )

    def _latency(self, name: str, number: int, running: Running, results: Results) -> None:
        plan = self.plan
        direct, through = (
            measure_round_trips(
                server, self.wires, rate_qps=plan.latency_qps, seconds=plan.latency_seconds
            )
            for server in (self.servers[0], running.address)
        )
        results.latencies.append(
            LatencyRun(
                subject=name,
                round=number,
                rate_qps=plan.latency_qps,
                direct_p50_us=direct.quantile_s(0.5) * _MICRO,
                direct_p99_us=direct.quantile_s(0.99) * _MICRO,
                p50_us=through.quantile_s(0.5) * _MICRO,
                p99_us=through.quantile_s(0.99) * _MICRO,
                lost=through.lost,
            )
        )

    def beside(self, ground: Ground, results: Results) -> None:
        """Round trips over UDP while another pool of the same worker is busy, and while not."""
        plan = self.plan
        for number in range(plan.rounds):
            for busy in ("", "UDP", "DoT", "DoH"):
                print(f"beside {busy or 'nothing'}", file=sys.stderr)
                with two_pools(self.workdir, ground, self.servers, busy or "UDP") as places:
                    measured, other = places
                    load = self._start_load(other) if busy else None
                    trips = measure_round_trips(
                        measured, self.wires, rate_qps=_BESIDE_QPS, seconds=plan.latency_seconds
                    )
                    results.besides.append(
                        BesideRun(
                            busy=busy,
                            round=number,
                            busy_qps=load.result().rate_qps if load else 0.0,
                            rate_qps=_BESIDE_QPS,
                            p50_us=trips.quantile_s(0.5) * _MICRO,
                            p99_us=trips.quantile_s(0.99) * _MICRO,
                            most_us=trips.quantile_s(1.0) * _MICRO,
                            lost=trips.lost,
                        )
                    )

    def _start_load(self, server: Address) -> Future[Load]:
        """Load `server` in another thread, for longer than the round trips take."""
        plan = self.plan
        dnsperf(server, self.files["large"], seconds=_WARM_UP_S, edns=True)
        load = self._pool.submit(
            dnsperf,
            server,
            self.files["large"],
            outstanding=plan.outstanding,
            seconds=plan.latency_seconds + 2 * _WARM_UP_S,
            rate_qps=plan.busy_qps,
            edns=True,
        )
        time.sleep(_WARM_UP_S)
        return load


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput",
        description="CPU per query, rate, added latency and memory of the relay, beside dnsdist.",
    )
    parser.add_argument("--quick", action="store_true", help="one short round: is it alive?")
    parser.add_argument("--rounds", type=int, help="rounds to take the medians of (3)")
    parser.add_argument("--seconds", type=float, help="length of each load (4)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument(
        "--resolvers",
        type=int,
        nargs="+",
        metavar="N",
        help="one worker over pools of so many resolvers, instead of the other subjects",
    )
    parser.add_argument(
        "--rate", type=int, metavar="QPS", help="load at this rate instead of as fast as it goes"
    )
    parser.add_argument(
        "--one-socket", action="store_true", help="only loads from one client socket, as a tunnel"
    )
    parser.add_argument("--sockets", type=int, default=50, help="the other number of sockets (50)")
    parser.add_argument("--reply", choices=("large", "small", "both"), default="both")
    parser.add_argument("--outstanding", type=int, default=60, help="queries in flight (60)")
    parser.add_argument("--servers", type=int, default=3, help="authoritative servers (3)")
    parser.add_argument("--latency-rate", type=float, default=1000.0, metavar="QPS")
    parser.add_argument("--without-dnsdist", action="store_true")
    parser.add_argument(
        "--busy-rate",
        type=int,
        default=2_000,
        metavar="QPS",
        help="load on the pool beside which the latency of UDP is taken (2,000)",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--encrypted", action="store_true", help="only the rows of DoT and DoH")
    only.add_argument("--plain", action="store_true", help="all but the rows of DoT and DoH")
    given = parser.parse_args()
    plan = Plan(
        rounds=given.rounds or (1 if given.quick else 3),
        seconds=given.seconds or (2.0 if given.quick else 4.0),
        latency_seconds=2.0 if given.quick else 5.0,
        latency_qps=given.latency_rate,
        rate_qps=given.rate,
        outstanding=given.outstanding,
        sockets=[1] if given.one_socket else [1, given.sockets],
        replies=["large", "small"] if given.reply == "both" else [given.reply],
        busy_qps=given.busy_rate,
    )
    results = Results(settings=vars(given))
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, ExitStack() as stack:
        workdir = Path(folder)
        if given.resolvers:
            servers = stack.enter_context(one_server(workdir, max(given.resolvers)))
            subjects = [relay_with(1, resolvers) for resolvers in given.resolvers]
            ground = None
        else:
            servers = stack.enter_context(authoritative_servers(workdir, given.servers))
            subjects = [] if given.encrypted else [relay_with(count) for count in given.workers]
            subjects += [] if given.encrypted or given.without_dnsdist else [DNSDIST]
            ground = (
                None
                if given.plain
                else stack.enter_context(encrypted_servers(workdir, given.servers))
            )
        if ground:
            subjects += [
                each
                for each in encrypted_subjects(ground)
                if not (given.without_dnsdist and each.name.startswith("dnsdist"))
            ]
        bench = Bench(plan, workdir, servers)
        bench.run(subjects, results)
        if ground:
            bench.beside(ground, results)
    print(results.markdown())
    print(f"\nEverything measured: {results.write(RESULTS)}")


if __name__ == "__main__":
    main()
