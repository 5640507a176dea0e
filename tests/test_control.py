"""The control API: its socket, and what it says, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.control.app import make_app, serve_app
from relay.control.control_socket import ControlError, ControlInUse, open_control
from relay.control.status import (
    ill_health,
    pool_counts,
    resolver_status,
    resolvers_status,
    worker_status,
)
from relay.endpoints import ControlAddress, ListenAddress
from relay.resolver_address import Options, parse
from relay.roster import Roster
from relay.supervisor import State as WorkerState
from relay.supervisor import Worker
from relay.ways_out import Proxy
from shared import layout
from shared.board import Board
from workers.engine.health import State

# -- the socket --------------------------------------------------------------------------------


def test_socket_is_for_its_owner_alone_and_gone_after_close(workdir: Path) -> None:
    path = workdir / "new" / "deep" / "control.sock"
    control = open_control(ControlAddress(path), is_default=False)
    assert control.shown == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    control.close()
    assert not path.exists()


def test_socket_of_a_dead_relay_is_replaced(workdir: Path) -> None:
    path = workdir / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    control = open_control(ControlAddress(path), is_default=False)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    control.close()


def test_socket_of_a_living_relay_is_refused_and_left_alone(workdir: Path) -> None:
    path = workdir / "control.sock"
    first = open_control(ControlAddress(path), is_default=False)
    with pytest.raises(ControlInUse, match="another relay uses the control socket"):
        open_control(ControlAddress(path), is_default=False)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    first.close()


def test_socket_at_the_default_path_of_a_living_relay_gets_a_path_beside_it(
    workdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = workdir / "control.sock"
    first = open_control(ControlAddress(path), is_default=True)
    second = open_control(ControlAddress(path), is_default=True)
    assert second.shown == str(workdir / f"control-{os.getpid()}.sock")
    assert second.shown in caplog.text
    second.close()
    first.close()


def test_socket_path_that_is_a_file_is_refused_and_left_alone(workdir: Path) -> None:
    path = workdir / "control.sock"
    path.write_text("precious")
    with pytest.raises(ControlError, match="is no socket"):
        open_control(ControlAddress(path), is_default=False)
    assert path.read_text() == "precious"


def test_socket_close_leaves_the_file_of_a_successor(workdir: Path) -> None:
    path = workdir / "control.sock"
    first = open_control(ControlAddress(path), is_default=False)
    path.unlink()
    second = open_control(ControlAddress(path), is_default=False)
    first.close()
    assert path.exists()
    second.close()


def test_socket_in_a_directory_that_cannot_be_made_says_which(workdir: Path) -> None:
    (workdir / "file").write_text("")
    with pytest.raises(ControlError, match=r"control socket .*file/control\.sock cannot be made"):
        open_control(ControlAddress(workdir / "file" / "control.sock"), is_default=False)


def test_socket_in_a_default_directory_of_another_user_is_refused(workdir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(workdir, 12345, 12345)
    with pytest.raises(ControlError, match="another user's"):
        open_control(ControlAddress(workdir / "control.sock"), is_default=True)


def test_socket_on_loopback_tcp_shows_its_port() -> None:
    control = open_control(ControlAddress(None, "127.0.0.1", 0), is_default=False)
    port = control.sock.getsockname()[1]
    assert control.shown == f"127.0.0.1:{port}"
    with pytest.raises(ControlError, match=f"127.0.0.1:{port} cannot be used: in use by"):
        open_control(ControlAddress(None, "127.0.0.1", port), is_default=False)
    control.close()


def test_socket_beyond_loopback_is_refused() -> None:
    with pytest.raises(ControlError, match="loopback only"):
        open_control(ControlAddress(None, "0.0.0.0", 0), is_default=False)


# -- the application ---------------------------------------------------------------------------


def fetch(status: dict[str, Any], health: str, path: Path, *wanted: str) -> list[tuple[int, Any]]:
    """Serve an application on a socket at `path` and return status and JSON of what is asked."""

    async def ask() -> list[tuple[int, Any]]:
        control = open_control(ControlAddress(path), is_default=False)
        runner = await serve_app(make_app(lambda: status, lambda: health), control.sock)
        answers = []
        connector = aiohttp.UnixConnector(path=str(path))
        async with aiohttp.ClientSession("http://relay", connector=connector) as client:
            for each in wanted:
                async with client.get(each) as answer:
                    is_json = answer.content_type == "application/json"
                    content = await answer.json() if is_json else await answer.text()
                    answers.append((answer.status, content))
        await runner.cleanup()
        control.close()
        return answers

    return asyncio.run(ask())


def test_app_gives_status_and_health(workdir: Path) -> None:
    answers = fetch({"pid": 7}, "", workdir / "c.sock", "/status", "/healthz", "/nothing")
    assert answers[:2] == [(200, {"pid": 7}), (200, {"status": "ok"})]
    assert answers[2][0] == 404


def test_app_in_ill_health_answers_503_with_the_reason(workdir: Path) -> None:
    answers = fetch({}, "worker 1 is away", workdir / "c.sock", "/healthz")
    assert answers == [(503, {"status": "unavailable", "reason": "worker 1 is away"})]


# -- what the board says -----------------------------------------------------------------------


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(workers=2, pools=1, slots=4)
    yield made
    made.close()


@pytest.fixture
def roster(board: Board) -> Roster:
    made = Roster(board, [ListenAddress("127.0.0.1", 5300)])
    made.set_resolvers(0, [parse("1.1.1.1"), parse("udp://dns.example")], 0.0)
    return made


def test_status_of_a_resolver_sums_workers_and_converts_units(board: Board, roster: Roster) -> None:
    words, at = board.words, board.at
    for worker, sent in ((0, 100), (1, 23)):
        words[at.counters(worker, 0) + layout.COUNTER_SENT] = sent
    words[at.counters(1, 0) + layout.COUNTER_ANSWERED] = 90
    words[at.resolver(0) + layout.RESOLVER_STATE] = State.IN_USE
    words[at.resolver(0) + layout.RESOLVER_LATENCY] = 12_500_000
    words[at.resolver(0) + layout.RESOLVER_LOSS] = 250_000
    words[at.resolver(0) + layout.RESOLVER_CEILING] = 30_500_000
    (member, *_) = roster.pools[0]
    assert member.entry is not None
    member.entry = replace(member.entry, longest_name=120, largest_reply=1_232)
    assert resolver_status(board, member, {0: {1: "no route to host"}}) == {
        "address": "udp://1.1.1.1:53",
        "state": "in_use",
        "latency_ms": 12.5,
        "loss": 0.25,
        "ceiling_qps": 30.5,
        "longest_name": 120,
        "largest_reply": 1_232,
        "sent": 123,
        "answered": 90,
        "refused": 0,
        "lost": 0,
        "errors": 0,
        "fault": "no route to host",
    }


def test_status_of_a_resolver_never_asked_knows_nothing(board: Board, roster: Roster) -> None:
    shown = resolver_status(board, roster.pools[0][0], {})
    assert shown["state"] == "fresh"
    unknown = ("latency_ms", "loss", "ceiling_qps", "longest_name", "largest_reply", "fault")
    assert [shown[name] for name in unknown] == [None] * 6


def test_status_of_a_name_without_an_address_is_down(board: Board, roster: Roster) -> None:
    shown = resolver_status(board, roster.pools[0][1], {})
    assert (shown["address"], shown["state"]) == ("udp://dns.example:53", "down")
    assert shown["fault"] == "its name is being resolved"


def test_status_of_a_resolver_tells_the_check_it_failed_unless_it_is_worse(
    board: Board, roster: Roster
) -> None:
    why = "passes plain, fails the tunnel check: no answer comes back"
    first, second = roster.pools[0]
    failed = {first.address: why, second.address: why}
    faults = [each["fault"] for each in resolvers_status(board, [first, second], {}, failed)]
    assert faults == [why, "its name is being resolved"]


OPTIONS = st.builds(
    Options,
    server_name=st.sampled_from(["", "a.example", "b.example"]),
    ca_file=st.sampled_from(["", "/a/ca.pem"]),
    get=st.sampled_from([None, True]),
    via=st.none()
    | st.builds(
        Proxy,
        st.just("socks5"),
        st.just("192.0.2.1"),
        st.just(1080),
        st.sampled_from(["", "one", "two"]),
        st.sampled_from(["", "password"]),
    ),
    bind=st.sampled_from(["", "eth0"]),
    weight=st.sampled_from([1, 2]),
)


@given(st.lists(OPTIONS, min_size=2, max_size=8, unique=True))
def test_status_of_resolvers_that_differ_only_in_options_tells_them_apart(
    options: list[Options],
) -> None:
    with contextlib.closing(Board.create(1, 1, 16)) as board:
        roster = Roster(board, [ListenAddress("127.0.0.1", 5300)])
        roster.set_resolvers(0, [parse("https://8.8.8.8/q", each) for each in options], 0.0)
        shown = [each["address"] for each in resolvers_status(board, roster.pools[0], {}, {})]
    assert len(set(shown)) == len(shown)
    assert not [each for each in shown if "password" in each]


def test_status_of_a_resolver_says_what_was_said_beside_its_address(board: Board) -> None:
    roster = Roster(board, [ListenAddress("127.0.0.1", 5300)])
    login = Proxy("socks5", "192.0.2.1", 1080, "one", "password")
    told = {
        "as a.example": Options(server_name="a.example"),
        "by GET": Options(get=True),
        "unverified": Options(insecure=True),
        "via socks5://192.0.2.1:1080 (1)": Options(via=login),
        "via socks5://192.0.2.1:1080 (2)": Options(via=replace(login, user="two")),
        "from eth0": Options(bind="eth0"),
        "weight 3": Options(weight=3),
    }
    wanted = [parse("https://8.8.8.8/q", each) for each in told.values()]
    roster.set_resolvers(0, wanted, 0.0)
    shown = [each["address"] for each in resolvers_status(board, roster.pools[0], {}, {})]
    assert shown == [f"https://8.8.8.8:443/q {each}" for each in told]


def test_status_of_a_pool_names_every_reason(board: Board) -> None:
    words, at = board.words, board.at
    words[at.pool(0, 0) + layout.POOL_QUERIES] = 5
    words[at.pool(1, 0) + layout.POOL_QUERIES] = 6
    words[at.pool(1, 0) + layout.POOL_DROPPED + 1] = 9
    counts = pool_counts(board, 0)
    assert counts["queries"] == 11
    assert tuple(counts["dropped"]) == layout.DROP_REASONS
    assert counts["dropped"]["client_response"] == 9


def test_status_of_a_worker_names_its_state() -> None:
    worker = Worker(1, 0.0, WorkerState.STALLED, restarts=4)
    shown = {"index": 1, "pid": 42, "state": "stalled", "restarts": 4}
    assert worker_status(worker, 42) == shown


def test_health_names_workers_that_are_not_ready(board: Board, roster: Roster) -> None:
    workers = [Worker(0, 0.0, WorkerState.READY), Worker(1, 0.0, WorkerState.STARTING)]
    pools = {"p": roster.pools[0]}
    assert ill_health(board, workers, pools) == "not ready: worker 1"
    workers[1].state = WorkerState.READY
    assert ill_health(board, workers, pools) == ""


def test_health_names_a_pool_whose_resolvers_are_all_down(board: Board, roster: Roster) -> None:
    workers = [Worker(0, 0.0, WorkerState.READY)]
    board.words[board.at.resolver(0) + layout.RESOLVER_STATE] = State.DOWN
    assert ill_health(board, workers, {"p": roster.pools[0]}) == "every resolver of pool p is down"
