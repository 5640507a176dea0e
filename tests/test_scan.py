"""`relay scan` as a person starts it, over the farm; and what it shows."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from relay.cli import cli
from relay.config import Flags, load
from relay.discovery import scan, scan_command, scan_view
from relay.discovery.scan import End, Progress, Ranked, Result
from relay.discovery.verdict import Stage, Verdict
from relay.resolver_address import parse
from tests.discovery import keep_list
from tests.rig.farm import Farm
from tests.rig.files import REPO
from tests.rig.net import free_address
from tests.rig.process import wait_until
from tests.rig.terminal import plain, relay_in_terminal

QUICK = ("--timeout", "400ms", "--concurrency", "500")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with Farm(workdir=tmp_path_factory.mktemp("farm")) as farm:
        yield farm


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "relay", "scan", *map(str, arguments)]


def scanned(*arguments: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=REPO, capture_output=True, text=True, timeout=60, **how
    )


def written(folder: Path, lines: Iterable[str]) -> Path:
    path = folder / "list.txt"
    path.write_text("\n".join(lines), newline="\n")
    return path


def saved(state: Path, key: str = "generic||default") -> dict[str, Any]:
    pools: dict[str, Any] = json.loads(state.read_bytes())["pools"]
    return dict(pools[key])


def test_scan_of_a_list_ranks_who_passes_and_sums_up_the_rest(farm: Farm, tmp_path: Path) -> None:
    hosts = farm.hosts(60)
    farm.set(hosts, "refusing")
    farm.set(hosts[::10], "working")
    farm.set(hosts[1::10], "lying")
    farm.set(hosts[2], "recasing", delay_ms=60)
    lines = [farm.at(host) for host in hosts]
    lines[5:5] = ["", "# a comment", "no\x1b]0;resolver\x07", "300.1.2.3"]
    state = tmp_path / "state.json"

    done = scanned("--file", written(tmp_path, lines), "--state", state, *QUICK)

    assert done.returncode == 0, done.stderr
    assert "line 8: no address in" in done.stderr
    assert "line 9: " in done.stderr
    shown = done.stdout + done.stderr
    assert all(char.isprintable() or char == "\n" for char in shown)
    head, _, table = done.stdout.partition("\n\n")
    ranking, _, failures = table.partition("\n\n")
    assert head.startswith("60 checked in ")
    assert head.endswith(": 7 passed")
    rows = [line.split() for line in ranking.splitlines()]
    assert " ".join(rows[0]) == "resolver kind latency loss name/reply case honest tunnel score"
    assert {row[0] for row in rows[1:]} == {farm.at(host) for host in [*hosts[::10], hosts[2]]}
    assert rows[-1][0] == farm.at(hosts[2])  # the slowest, of equal scores
    assert rows[1][4:] == ["0%", "253/4096", "yes", "yes", "-", "2.0"]
    assert rows[-1][5:] == ["253/4096", "no", "yes", "-", "2.0"]
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    told = [line.split(None, 2) for line in failures.splitlines()[1:]]
    assert [(line[0], line[1], line[2].strip()) for line in told] == [
        ("47", "plain", "answers REFUSED"),
        ("6", "honesty", "lies: answers a name that does not exist"),
    ]
    scores = saved(state)
    assert scores[f"udp://{farm.at(hosts[0])}"]["largest_reply"] == 2_765
    assert scores[f"udp://{farm.at(hosts[1])}"]["score"] == -6


def test_scan_json_is_one_document_and_with_all_names_who_failed(
    farm: Farm, tmp_path: Path
) -> None:
    hosts = farm.hosts(4)
    farm.set(hosts, "working")
    farm.set(hosts[1], "dropping_large")
    farm.set(hosts[2], "captive")
    farm.set(hosts[3], "dead")
    named = [word for host in hosts for word in ("--resolver", farm.at(host))]
    state = tmp_path / "state.json"

    done = scanned(*named, "--want", "1", "--all", "--json", "--state", state, *QUICK)

    assert done.returncode == 0
    assert done.stderr == ""
    found = json.loads(done.stdout)
    resolvers = found.pop("resolvers")
    assert found.pop("seconds") > 0
    assert found.pop("rate") > 0
    assert found == {
        "pool": "default",
        "tunnel": "generic",
        "domain": None,
        "ended": "complete",
        "total": 4,
        "checked": 4,
        "passed": 2,
        "failures": [
            {
                "stage": "honesty",
                "reason": "gives an address that is not public for a public name",
                "count": 1,
            },
            {"stage": "plain", "reason": "no answer", "count": 1},
        ],
    }
    by_address = {each["address"].removeprefix("udp://"): each for each in resolvers}
    assert [each["passed"] for each in resolvers] == [True, True, False, False]
    working, limited, captive, dead = (by_address[farm.at(host)] for host in hosts)
    assert working.pop("latency_ms") > 0
    assert working == {
        "address": f"udp://{farm.at(hosts[0])}",
        "kind": "udp",
        "passed": True,
        "stage": "fitness",
        "reason": "",
        "loss": 0,
        "longest_name": 253,
        "largest_reply": 2_765,
        "reply_sizes": {"512": True, "1232": True, "4096": True},
        "keeps_case": True,
        "txt": True,
        "edns": True,
        "honest": True,
        "tunnel": None,
        "score": 2,
    }
    # What does not pass for its size is no loss.
    assert (limited["loss"], limited["largest_reply"] < 900) == (0, True)
    assert limited["reply_sizes"] == {"512": True, "1232": False, "4096": False}
    assert (captive["honest"], captive["score"]) == (False, -6)
    assert (dead["latency_ms"], dead["loss"], dead["honest"]) == (None, 1, None)


def test_scan_that_nobody_passes_ends_with_1_and_says_why(farm: Farm, tmp_path: Path) -> None:
    hosts = farm.hosts(3)
    farm.set(hosts, "unreaching")
    farm.forward("t.example.com", free_address())
    file = written(tmp_path, map(farm.at, hosts))
    tunnel = ("--tunnel", "dnstt", "--domain", "t.example.com")

    state = tmp_path / "state.json"

    done = scanned("--file", file, *tunnel, "--state", state, *QUICK)

    assert done.returncode == 1
    assert "3 checked" in done.stdout
    assert "0 passed" in done.stdout
    assert "tunnel" in done.stdout
    assert "works, but does not reach the tunnel's server" in done.stdout
    assert not state.exists()  # that is the server's fault, or the domain's: no score changes


@pytest.mark.parametrize("is_routed", [True, False])
def test_scan_without_a_network_gives_up_and_keeps_what_was_found(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_routed: bool
) -> None:
    hosts = farm.hosts(13)
    farm.set(hosts, "dead")
    addresses = [parse(farm.at(host)) for host in hosts]
    if is_routed:
        farm.set(hosts[0], "working")
    else:  # no socket can be bound there
        addresses = [replace(each, bind="192.0.2.77") for each in addresses]
    monkeypatch.setattr(scan, "GIVE_UP_S", 0.5)
    pool = load(None, Flags(state=tmp_path / "state.json")).config.pools[0]
    pool = replace(pool, discovery=replace(pool.discovery, concurrency=1))
    order = scan.Order(pool, tmp_path / "state.json", tuple(addresses), None, timeout_s=0.1)
    told: list[Progress] = []

    def show(progress: Progress) -> None:
        told.append(progress)
        if progress.passed:  # whoever answered is gone from now on
            farm.set(hosts[0], "dead")

    async def main() -> Result:
        async with asyncio.timeout(20.0):
            return await scan.Scan(order, show).run()

    result = asyncio.run(main())

    assert result.end is End.NO_NETWORK
    assert any(each.is_out for each in told)
    assert [each.verdict.address for each in result.passed] == addresses[:is_routed]
    assert (result.total, result.done) == (13, is_routed)  # and nobody is blamed
    if is_routed:
        assert list(saved(tmp_path / "state.json")) == [f"udp://{farm.at(hosts[0])}"]


def test_scan_given_up_says_so_and_ends_with_1_whoever_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Ranked(Verdict(parse("192.0.2.1"), True, Stage.FITNESS, honest=True), 2.0)
    for end, status in ((End.NO_NETWORK, 1), (End.STOPPED, 0), (End.COMPLETE, 0)):
        result = Result(end=end, total=9, done=1, took_s=31.0, passed=[row])
        monkeypatch.setattr(scan_command, "_run", lambda *_, result=result, **__: result)

        found = CliRunner().invoke(cli, ["scan", "--resolver", "192.0.2.1"], prog_name="relay")

        assert found.exit_code == status
        assert "192.0.2.1  udp" in found.stdout
        assert ("given up, nobody answered for 30 s" in found.stdout) is bool(status)


def test_scan_of_auto_stops_at_want_and_begins_with_the_best_saved(
    farm: Farm, tmp_path: Path
) -> None:
    hosts = farm.hosts(200)
    farm.set(hosts, "refusing")
    farm.set(hosts[-1], "working")
    state = keep_list(tmp_path, map(farm.at, hosts))
    auto = ("--sources", "lists", "--state", state, "--json", *QUICK)

    first = json.loads(scanned(*auto).stdout)
    farm.set(hosts, "working")
    again = json.loads(scanned(*auto, "--want", "1", "--concurrency", "1").stdout)

    assert (first["ended"], first["checked"], first["passed"]) == ("complete", 200, 1)
    assert (again["ended"], again["checked"], again["total"]) == ("enough", 1, 200)
    assert again["resolvers"][0]["address"] == f"udp://{farm.at(hosts[-1])}"
    assert again["resolvers"][0]["score"] == 4


def test_scan_interrupted_keeps_what_was_found(farm: Farm, tmp_path: Path) -> None:
    hosts = farm.hosts(500)
    farm.set(hosts, "refusing")
    farm.set(hosts[:3], "working")
    farm.set(hosts[3], "dead")
    before = farm.asked().get(hosts[20], 0)
    state = tmp_path / "state.json"
    slowly = ("--pace", "20ms", "--timeout", "30s", "--state", state)
    process = subprocess.Popen(
        command("--file", written(tmp_path, map(farm.at, hosts)), *slowly),
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: farm.asked().get(hosts[20], 0) > before, "some were checked", 20)
        process.send_signal(signal.SIGINT)
        # The dead one is not waited for.
        output, errors = process.communicate(timeout=10)
    finally:
        process.kill()

    assert (process.returncode, errors) == (0, "")
    assert " of 500 checked in " in output
    assert "3 passed; stopped" in output
    assert all(farm.at(host) in output for host in hosts[:3])
    assert all(saved(state)[f"udp://{farm.at(host)}"]["score"] == 2 for host in hosts[:3])


def test_scan_in_a_terminal_shows_a_bar_and_leaves_the_terminal_as_it_was(
    farm: Farm, tmp_path: Path
) -> None:
    hosts = farm.hosts(100)
    farm.set(hosts, "working")
    file = written(tmp_path, map(farm.at, hosts))

    status, text = relay_in_terminal(
        70, "scan", "--file", file, "--state", tmp_path / "state.json", "--pace", "5ms"
    )

    assert status == 0
    assert " of 100 checked, " in text
    assert " left" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is there again
    assert "100 checked in " in text


@pytest.mark.parametrize("columns", [40, 100])
def test_scan_in_a_narrow_terminal_cuts_nothing(farm: Farm, tmp_path: Path, columns: int) -> None:
    hosts = farm.hosts(3)
    farm.set(hosts, "working")
    farm.set(hosts[0], "captive")
    farm.set(hosts[1], "working", delay_ms=20)
    named = [word for host in hosts for word in ("--resolver", farm.at(host))]

    status, text = relay_in_terminal(
        columns, "scan", *named, "--state", tmp_path / "state.json", *QUICK
    )

    assert status == 0
    result = "3 checked in " + text.rpartition("3 checked in ")[2]
    words = " ".join(result.split())
    assert "…" not in result
    for host in hosts[1:]:
        assert f"{farm.at(host)} " in words
    for value in ("udp", "0%", "253/4096", "2.0", "honesty"):
        assert value in result
    assert "gives an address that is not public for a public name" in words
    assert all(len(line) <= columns for line in plain(result).splitlines())
    has_table = words.count("name/reply") == 1
    assert has_table is (columns == 100)


def test_scan_of_one_of_several_pools_uses_what_the_file_says_of_it(
    farm: Farm, tmp_path: Path
) -> None:
    hosts = farm.hosts(2)
    farm.set(hosts, "working")
    here = free_address()
    config = tmp_path / "relay.json"
    pools = [
        {"name": "one", "resolvers": [farm.at(hosts[0])]},
        {"name": "two", "tunnel": "iodine", "resolvers": [farm.at(hosts[1])], "listen": str(here)},
    ]
    config.write_text(json.dumps({"pools": pools, "state": "state.json"}))

    none = scanned("-c", config)
    two = scanned("-c", config, "--pool", "two", "--json", *QUICK)
    # A pool's own listener is no candidate, whatever a file says.
    file = written(tmp_path, [str(here), farm.at(hosts[0])])
    other = scanned("-c", config, "--pool", "two", "--file", file, "--json", *QUICK)

    assert none.returncode == 2
    assert 'name one with --pool: "one" or "two"' in none.stderr
    assert [each["address"] for each in json.loads(two.stdout)["resolvers"]] == [
        f"udp://{farm.at(hosts[1])}"
    ]
    assert json.loads(other.stdout)["total"] == 1
    assert len(saved(tmp_path / "state.json", "iodine||two")) == 2


def test_flags_for_one_pool_change_that_one_alone(tmp_path: Path) -> None:
    config = tmp_path / "relay.json"
    pools = [{"name": "one", "resolvers": ["8.8.8.8"]}, {"name": "two"}]
    config.write_text(json.dumps({"pools": pools}))
    flags = Flags(pool="two", tunnel="dnstt", domain="t.example.com", resolvers=(parse("9.9.9.9"),))

    one, two = load(config, flags).config.pools

    assert (one.tunnel, one.domain, one.resolvers) == ("generic", None, (parse("8.8.8.8"),))
    assert (two.tunnel, two.domain, two.resolvers) == (
        "dnstt",
        "t.example.com",
        (parse("9.9.9.9"),),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "/none"], "relay: error: --file: /none: No such file"),
        (["--file", "/dev/null"], "names no resolver and no range of addresses"),
        (["--sources", "lists,contry"], '"contry" is no source; did you mean "country"?'),
        (["--want", "0"], "0 is not in the range"),
        (["--pace", "5"], 'a duration needs a unit; did you mean "5s"?'),
        (["--timeout", "2h"], '"2h": expected a duration from 50ms to 30s'),
        (["--check-command", "'"], "is no command: no closing quotation"),
        (["--pool", "p"], '"p" is no pool here; there is "default"'),
        (["--resolver", "8.8.8.8:x"], 'port "x" is not a number'),
        (["--country", "IRN"], "expected an ISO country code"),
        (["stray"], "Got unexpected extra argument"),
    ],
)
def test_scan_wrong_options_end_with_2_and_say_why(arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(cli, ["scan", *arguments], prog_name="relay")

    assert (found.exit_code, message in found.stderr) == (2, True), found.stderr


def test_result_shown_is_bounded_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    address = parse("https://dns.example/dns-query")
    row = Ranked(Verdict(address, True, Stage.FITNESS, latency_s=0.5, honest=True), 2.0)
    result = Result(
        total=500,
        done=500,
        passed=[row] * 150,
        reasons=Counter({(Stage.COMMAND, "\x1b[2J[red]\x07"): 350}),
    )

    scan_view.show_result(result)

    shown = capsys.readouterr().out
    assert shown.count("https://dns.example:443/dns-query") == scan_view.MOST_ROWS
    assert "  doh " in shown
    assert "and 50 more that passed: --json has them all" in shown
    assert "\\x1b[2J[red]\\x07" in shown
    assert "\x1b" not in shown


def test_scan_without_candidates_says_that_there_are_none(tmp_path: Path) -> None:
    state = ("--state", tmp_path / "state.json")

    shown = scanned("--sources", "lists", *state)
    found = scanned("--sources", "lists", "--json", *state)

    assert (shown.returncode, found.returncode) == (1, 1)
    assert shown.stdout == "nobody to check: there are no candidates\n"
    assert shown.stderr.startswith("relay: warning: --sources: nobody to check ")
    assert json.loads(found.stdout)["total"] == 0
    assert scan_view.progress_text(Progress(0)) == shown.stdout.strip()


def test_progress_says_how_far_it_is_and_when_the_network_is_gone() -> None:
    progress = Progress(58_000, 29_000, 12, 145.0)

    assert scan_view.progress_text(progress) == (
        "29,000 of 58,000 checked, 12 passed, 145/s, 3:20 min left"
    )
    out = Progress(58_000, 29_000, 12, 145.0, is_out=True)
    assert scan_view.progress_text(out).startswith("waiting for the network: 29,000 of 58,000")


def test_view_without_a_terminal_writes_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with scan_view.View(quiet=False) as view, scan_view.View(quiet=True) as quiet:
        for _ in range(30):
            now += 0.5
            view.show(Progress(10, 5, 1))
            quiet.show(Progress(10, 5, 1))

    assert capsys.readouterr().err == "relay: 5 of 10 checked, 1 passed\n" * 3
