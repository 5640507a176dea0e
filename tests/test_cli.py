"""The command: its options, what it prints, and the exit status of every kind of end."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import relay
from relay.cli import cli
from relay.config import MAX_WORKERS
from tests.rig import Relay

REPOSITORY = Path(__file__).parent.parent


def invoked(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="relay")


def ran(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relay", *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "relay.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_version_is_that_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    assert invoked("--version").output == f"relay {relay.__version__}\n"
    assert project.get("version", relay.__version__) == relay.__version__


def test_help_lists_only_what_there_is() -> None:
    lines = invoked("--help").output.partition("Commands:")[2].split("\n")

    assert [line.split()[0] for line in lines if line] == [
        "check",
        "lists",
        "run",
        "scan",
        "serve",
        "status",
    ]


@pytest.mark.parametrize("command", ["serve", "run"])
def test_help_names_every_option(command: str) -> None:
    text = invoked(command, "--help").output

    for option in (
        "-c, --config",
        "-u, --resolver, --upstream",
        "-l, --listen HOST:PORT",
        "--tunnel [generic|dnstt|masterdns|soar|iodine|dns2tcp]",
        "--domain",
        "--workers N|auto",
        "--control PATH|HOST:PORT",
        "--state FILE",
        "--log-level [debug|info|warning|error]",
        "--log-format [text|json]",
        "--steering [packet|flow]",
    ):
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sevre"], "No such command 'sevre'"),
        (["serve", "--resolvers", "8.8.8.8"], "No such option"),
        (["serve", "stray"], "Got unexpected extra argument"),
        (["serve", "-u", "8.8.8.8:x"], '"8.8.8.8:x": port "x" is not a number from 1 to 65535'),
        (["serve", "-u", "8.8.8.8,1.1.1.1"], "each goes into an entry of its own"),
        (["serve", "--upstream", "upd://8.8.8.8"], 'did you mean "udp://8.8.8.8"?'),
        (["serve", "--resolver", "https://1.1.1.1"], 'did you mean "https://1.1.1.1/dns-query"?'),
        (["serve", "--bootstrap", "dns.example"], "is written with its IP address"),
        (["serve", "--bootstrap", "https://1.1.1.1/q"], 'did you mean "dot://1.1.1.1"?'),
        (["serve", "--via", "socks4://u:secret@[::1]:1"], '"socks4://...@[::1]:1"'),
        (["serve", "--bind", "10.0.0.1:53"], 'has no port; did you mean "10.0.0.1"?'),
        (["serve", "-l", "53"], 'did you mean "127.0.0.1:53"?'),
        (["serve", "--tunnel", "dnsttt"], "'dnsttt' is not one of"),
        (["serve", "--domain", "a..b"], "the name has an empty label"),
        (["serve", "--workers", "0"], f"expected a whole number from 1 to {MAX_WORKERS}"),
        (["serve", "--workers", "two"], f"expected a whole number from 1 to {MAX_WORKERS}"),
        (["serve", "--control", "0.0.0.0:80"], "loopback only"),
        (["serve", "--state", ""], "is empty"),
        (["serve", "--log-level", "loud"], "'loud' is not one of"),
        (["serve", "--log-format", "xml"], "'xml' is not one of"),
        (["serve", "--steering", "random"], "'random' is not one of"),
        (["serve", "-u", "file:/none"], 'relay: error: --resolver: "/none": No such file'),
        (["serve", "-c", "/none.json"], "relay: error: /none.json: No such file or directory"),
        (["run", "-u", "8.8.8.8"], "Missing argument 'COMMAND...'"),
        (["run", "-u", "8.8.8.8", "--"], "Missing argument 'COMMAND...'"),
        (["run", "-u", "8.8.8", "--", "true"], "is not an IPv4 address"),
        (["check"], "Missing option '-c' / '--config'"),
        (["check", "-c", "/"], "relay: error: /: Is a directory"),
        (["status", "--control", "a\x07"], "holds a control character"),
    ],
)
def test_command_wrong_line_ends_with_2_and_says_why(arguments: list[str], message: str) -> None:
    found = invoked(*arguments)

    assert found.exit_code == 2
    assert message in found.stderr
    assert found.stdout == ""


def test_command_wrong_line_echoes_no_control_character() -> None:
    for arguments in (["serve", "-u", "\x1b[31m.8"], ["check", "-c", "/no\x1b[31mne"]):
        assert "\x1b" not in invoked(*arguments).stderr


def test_check_good_file_is_summed_up(tmp_path: Path) -> None:
    content = {
        "pools": [
            {"name": "a", "tunnel": "dnstt", "domain": "t.a", "listen": "127.0.0.2:53"},
            {"name": "b", "resolvers": ["8.8.8.8", "8.8.8.8:53", "1.1.1.1", "auto"]},
            {"name": "c", "resolvers": ["tcp://[2001:db8::1]"]},
        ]
    }
    path = written(tmp_path, content)

    found = invoked("check", "--config", path)

    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout == (
        f"{path}: OK, 3 pools\n"
        "  a: dnstt on 127.0.0.2:53, auto\n"
        "  b: generic on 127.0.0.1:0, 2 resolvers and auto\n"
        "  c: generic on 127.0.0.1:0, 1 resolver\n"
    )


def test_check_warnings_and_notes_do_not_fail_it(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("8.8.8.8\nbad line\n")
    path = written(
        tmp_path,
        {"pools": [{"name": "a", "smart_pool": False}, {"name": "b", "resolvers": ["file:list"]}]},
    )

    found = invoked("check", "-c", path)

    assert found.exit_code == 0
    assert found.stderr.splitlines() == [
        f'relay: warning: {tmp_path}/list:2: "bad line" has a character that no name has',
        f"relay: note: {path}: pools[0]: smart_pool is off; not run",
    ]


def test_check_bad_file_tells_every_problem_and_ends_with_2(tmp_path: Path) -> None:
    path = written(tmp_path, '{\n "wokers": 2,\n "pools": [{"smart_pool": {"dedline": "5s"}}]\n}')

    found = invoked("check", "-c", path)

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.splitlines() == [
        f'relay: error: {path}:2:2: wokers: unknown field; did you mean "workers"?',
        f"relay: error: {path}:3:28: pools[0].smart_pool.dedline: unknown field; "
        'did you mean "deadline"?',
    ]


def test_serve_bad_file_ends_with_2_before_anything_starts(tmp_path: Path) -> None:
    found = invoked("serve", "-c", written(tmp_path, {"pools": [{"listen": "x"}]}))

    assert found.exit_code == 2
    assert found.stdout == ""
    assert "pools[0].listen" in found.stderr


def test_run_file_of_several_pools_ends_with_2(tmp_path: Path) -> None:
    path = written(tmp_path, {"pools": [{"name": "a"}, {"name": "b"}]})

    found = invoked("run", "-c", path, "--", "true")

    assert found.exit_code == 2
    assert f"relay: error: {path}: run starts one pool, and this file has 2" in found.stderr


def test_serve_file_read_again_keeps_flags_and_tells_mistakes_in_one_line(
    workdir: Path,
) -> None:
    pool = {"name": "a", "resolvers": ["127.0.0.1:5399"]}
    flags = ["--workers", "1", "--log-format", "json"]
    with Relay(config={"workers": 2, "pools": [pool]}, arguments=flags, workdir=workdir) as relay:
        file = relay.control_path.with_name("relay.json")
        file.write_text('{"wokers": 2, "pools": [{"nam": "a"}]}')
        relay.reload()
        relay.wait_for_log("not reloaded")
        (workdir / "list").write_text("127.0.0.2:5399\n8.8.8\n")
        pool["resolvers"] = [f"file:{workdir}/list"]
        file.write_text(json.dumps({"workers": 2, "pools": [pool]}))
        relay.reload()
        relay.wait_for_log("reloaded: ")
        lines = [json.loads(line) for line in relay.log_text().splitlines()[1:]]

    messages = [line["message"] for line in lines if line["level"] in ("warning", "error")]
    assert messages == [
        f'not reloaded, nothing changes: {file}:1:2: wokers: unknown field; did you mean "workers"?'
        f'; {file}:1:26: pools[0].nam: unknown field; did you mean "name"?',
        f'{workdir}/list:2: "8.8.8" is not an IPv4 address',
    ]


def test_process_exit_status_and_streams_are_those_of_the_contract(tmp_path: Path) -> None:
    good = ran("check", "-c", written(tmp_path, "{}"))
    bad = ran("check", "-c", written(tmp_path, "{"))
    usage = ran("serve", "--no-such-option")
    failed = ran("status", "--control", tmp_path / "none.sock")

    assert (good.returncode, good.stderr) == (0, "")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "1:2: the file ends inside the object" in bad.stderr
    assert (usage.returncode, usage.stdout) == (2, "")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == f"relay: error: no relay is running at unix:{tmp_path}/none.sock\n"


def test_process_closed_output_is_no_traceback(tmp_path: Path) -> None:
    path = written(tmp_path, {"pools": [{"name": "n" * 100 + str(i)} for i in range(256)]})
    command = [sys.executable, "-m", "relay", "check", "-c", str(path)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        stderr = process.stderr.read()
        process.wait(30)

    assert "Traceback" not in stderr


def test_process_start_does_not_load_what_it_does_not_need() -> None:
    heavy = ("pydantic", "rich", "aiohttp", "uvloop", "asyncio", "tomllib", "http.client")
    code = "import sys, relay.cli; print([m for m in sys.argv[1:] if m in sys.modules])"

    found = subprocess.run(
        [sys.executable, "-c", code, *heavy],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert all(find_spec(name) for name in heavy)
    assert found.stdout == "[]\n"
