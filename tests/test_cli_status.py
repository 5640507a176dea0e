"""`relay status`, over a real socket from a server that speaks as a relay does, or does not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from relay.cli import cli
from tests.rig import Relay, ScriptedResolver
from tests.rig.terminal import plain, relay_in_terminal

STATUS: dict[str, Any] = {
    "pid": 4321,
    "version": "0.1.0",
    "uptime_s": 93784.5,
    "workers": [
        {"index": 0, "pid": 1, "state": "ready", "restarts": 0},
        {"index": 1, "pid": 2, "state": "starting", "restarts": 2},
    ],
    "pools": [
        {
            "name": "dnstt-out",
            "tunnel": "dnstt",
            "listen": "127.0.0.1:41235",
            "queries": 12345,
            "answers": 12000,
            "failures": 7,
            "dropped": {"client_short": 3, "client_gone": 0},
            "resolvers": [
                {
                    "address": "udp://1.1.1.1:53",
                    "state": "in_use",
                    "latency_ms": 12.34,
                    "loss": 0.0123,
                    "ceiling_qps": 29.6,
                    "sent": 1000,
                    "answered": 900,
                    "refused": 80,
                    "lost": 20,
                    "errors": 1,
                    "fault": None,
                },
                {
                    "address": "tcp://[2001:db8::1]:53",
                    "state": "down",
                    "latency_ms": None,
                    "loss": None,
                    "ceiling_qps": None,
                    "sent": 0,
                    "answered": 0,
                    "refused": 0,
                    "lost": 0,
                    "errors": 5,
                    "fault": "no route",
                },
            ],
        }
    ],
}


def answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@contextmanager
def serving(listener: socket.socket, reply: bytes) -> Iterator[list[bytes]]:
    """Answer one connection with `reply`; the request that came is put in the list."""
    requests: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(4096)
            requests.append(request)
            connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    with listener:
        yield requests
        thread.join(10)


@pytest.fixture
def ask(workdir: Path) -> Callable[..., Result]:
    """Run `relay status` against a Unix socket that gives one reply."""

    def ask(reply: bytes, *arguments: str) -> Result:
        path = workdir / "c.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        with serving(listener, reply) as requests:
            found = CliRunner().invoke(cli, ["status", "--control", str(path), *arguments])
        assert requests[0].startswith(b"GET /status HTTP/1.1\r\n")
        return found

    return ask


def test_status_unix_socket_shows_every_pool_and_resolver(ask: Callable[..., Result]) -> None:
    found = ask(answer(json.dumps(STATUS).encode()))

    assert found.exit_code == 0
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert lines == [
        "relay 0.1.0, pid 4321, up 1d 2h, 1 of 2 workers ready, 2 restarts",
        "",
        "dnstt-out dnstt on 127.0.0.1:41235: 12,345 queries, 12,000 answers, 7 failures; "
        "dropped: client_short 3",
        "resolver state latency loss ceiling sent answered refused lost errors fault",
        "udp://1.1.1.1:53 in_use 12.3 ms 1.2% 30 q/s 1,000 900 80 20 1",
        "tcp://[2001:db8::1]:53 down - - - 0 0 0 0 5 no route",
    ]


@pytest.mark.parametrize("columns", [40, 80])
def test_status_in_a_narrow_terminal_cuts_nothing(workdir: Path, columns: int) -> None:
    long = "https://dns.google:443/dns-query#8.8.8.8,8.8.4.4,2001:4860:4860::8888"
    status = json.loads(json.dumps(STATUS))
    status["pools"][0]["resolvers"][1]["address"] = long
    path = workdir / "c.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    with serving(listener, answer(json.dumps(status).encode())):
        code, text = relay_in_terminal(columns, "status", "--control", path)

    assert code == 0
    shown = plain(text)
    assert "…" not in shown
    for value in ("udp://1.1.1.1:53\n", f"{long}\n", "in_use", "12.3 ms", "1.2%", "30 q/s"):
        assert value in shown
    for value in ("sent 1,000", "answered 900", "refused 80", "lost 20", "fault no route"):
        assert value in shown
    assert all(len(line) <= columns for line in shown.splitlines() if line != long)


def test_status_one_of_each_is_told_in_the_singular(ask: Callable[..., Result]) -> None:
    status = json.loads(json.dumps(STATUS))
    status["workers"][1]["restarts"] = 1
    status["pools"][0] |= {"queries": 1, "answers": 1, "failures": 1}

    shown = ask(answer(json.dumps(status).encode())).stdout

    assert "1 of 2 workers ready, 1 restart\n" in shown
    assert ": 1 query, 1 answer, 1 failure;" in shown


def test_status_search_of_auto_is_one_line_and_who_failed_last(ask: Callable[..., Result]) -> None:
    status = json.loads(json.dumps(STATUS))
    status["pools"][0]["discovery"] = {
        "phase": "searching",
        "want": 10,
        "working": 3,
        "checked": 1200,
        "passed": 4,
        "failed_at": {"plain": 1100, "tunnel": 37},
        "fallback": True,
        "recent": [
            {"address": f"udp://192.0.2.{n}:53", "verdict": f"passes plain, fails {n}"}
            for n in range(1, 10)
        ],
    }

    found = ask(answer(json.dumps(status).encode()))

    assert (
        "auto: searching, 3 of 10 work; 1,200 checked, 4 passed; failed at: plain 1,100, tunnel 37;"
        " nobody reaches the tunnel's server"
    ) in found.stdout
    assert "  udp://192.0.2.9:53 passes plain, fails 9\n" in found.stdout
    assert "192.0.2.4" not in found.stdout


def test_status_loopback_port_is_asked_too() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with serving(listener, answer(json.dumps(STATUS).encode())):
        found = CliRunner().invoke(cli, ["status", "--json", "--control", address])

    assert found.exit_code == 0
    assert json.loads(found.stdout) == STATUS


def test_status_json_is_what_the_relay_gave(ask: Callable[..., Result]) -> None:
    found = ask(answer(json.dumps(STATUS).encode()), "--json")

    assert json.loads(found.stdout) == STATUS


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_status_control_characters_and_markup_are_not_obeyed(
    ask: Callable[..., Result], form: list[str]
) -> None:
    status = json.loads(json.dumps(STATUS))
    status["pools"][0]["name"] = "[red]x\x1b[2J\u202e"
    status["pools"][0]["resolvers"][1]["fault"] = "a\nb\x07:smile:"

    found = ask(answer(json.dumps(status).encode()), *form)

    assert found.exit_code == 0
    assert "[red]x" in found.stdout
    assert ":smile:" in found.stdout
    assert all(line.isprintable() for line in found.stdout.splitlines())


def test_status_fields_that_are_missing_are_shown_as_unknown(ask: Callable[..., Result]) -> None:
    found = ask(answer(b'{"pools": [{"resolvers": [{}]}]}'))

    assert found.exit_code == 0
    assert "relay -, pid -, up 0s" in found.stdout


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer(b"no json"), "does not answer as a relay does"),
        (answer(b"[]"), "does not answer as a relay does"),
        (answer(b'{"pools": 5}'), "does not answer as a relay does"),
        (answer(b"[" * 100_000), "does not answer as a relay does"),
        (answer(b"", "404 Not Found"), "answered 404 Not Found"),
        (b"SSH-2.0-x\r\n", "does not answer as a relay does"),
        (b"", "does not answer as a relay does"),
    ],
)
def test_status_what_is_no_relay_ends_with_1(
    ask: Callable[..., Result], reply: bytes, message: str
) -> None:
    found = ask(reply)

    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith("relay: error: unix:")
    assert message in found.stderr
    assert found.stderr.rstrip("\n").isprintable()


def test_status_nobody_there_ends_with_1(workdir: Path) -> None:
    stale = workdir / "stale.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale))
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()

    for control in (workdir / "none.sock", stale, f"127.0.0.1:{port}"):
        found = CliRunner().invoke(cli, ["status", "--control", str(control)])

        assert found.exit_code == 1
        assert "no relay is running at" in found.stderr


def test_status_without_control_asks_at_the_default_place(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(workdir))

    found = CliRunner().invoke(cli, ["status"])

    assert found.exit_code == 1
    assert f"no relay is running at unix:{workdir}/control.sock" in found.stderr


def test_status_of_a_real_relay_shows_its_pool(workdir: Path) -> None:
    with ScriptedResolver() as resolver, Relay([resolver.address], workdir=workdir) as relay:
        found = CliRunner().invoke(cli, ["status", "--control", relay.control])
        raw = CliRunner().invoke(cli, ["status", "--json", "--control", relay.control])

        assert (found.exit_code, raw.exit_code) == (0, 0)
        assert f"pid {relay.pid}, " in found.stdout
        assert f"default  generic on {relay.address}: 0 queries" in found.stdout
        assert f"udp://{resolver.address}" in found.stdout
        assert json.loads(raw.stdout)["pid"] == relay.pid
