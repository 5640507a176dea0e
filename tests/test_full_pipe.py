"""Standard output or error that nobody reads any more: the relay serves all the same."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from relay.endpoints import ControlAddress
from relay.status_client import ControlError, fetch_status
from tests.rig import (
    Relay,
    ScriptedResolver,
    ask_tcp,
    ask_udp,
    free_address,
    query_wire,
    wait_until,
)
from tests.rig.wire import message_id

NAME = "a.t.example"
PAGE_BYTES = 4096
ENDS_WITHIN_S = 5.0

LONG_LINE = """
import logging, sys
from workers import logs
logs.setup("info", "text", "worker 3")
for _ in range(3):
    logging.getLogger("x").info("y" * int(sys.argv[1]))
"""


class UnreadPipe:
    """A pipe of a few pages whose reader never reads."""

    def __init__(self, size_bytes: int = PAGE_BYTES) -> None:
        self.read_fd, self.write_fd = os.pipe()
        fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)

    def fill(self) -> None:
        """Leave no room for a single byte."""
        os.set_blocking(self.write_fd, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.write_fd, b"x" * PAGE_BYTES)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.write_fd, b"x")
        # The flag belongs to the pipe's end, which the relay is to get as a shell makes it.
        os.set_blocking(self.write_fd, True)

    @property
    def is_full(self) -> bool:
        return not select.select([], [self.write_fd], [], 0)[1]


class UnheardRelay(Relay):
    """A relay whose log goes into a pipe."""

    def __init__(self, stderr: UnreadPipe, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.stderr = stderr

    def _spawn(self, log_fd: int) -> subprocess.Popen[bytes]:
        return super()._spawn(self.stderr.write_fd)


@pytest.fixture
def resolver() -> Iterator[ScriptedResolver]:
    with ScriptedResolver() as made:
        yield made


def status_of(control: Path) -> dict[str, Any]:
    return fetch_status(ControlAddress(control))


def assert_serves(relay: Relay) -> None:
    assert [each["state"] for each in status_of(relay.control_path)["workers"]] == ["ready"] * 2
    for number in range(20):
        query = query_wire(f"{number}.t.example", message_id=number)
        assert message_id(ask_udp(relay.address, query)) == number
    assert message_id(ask_tcp(relay.address, query_wire(NAME, message_id=78))) == 78


def assert_ends(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    assert process.wait(ENDS_WITHIN_S) == 0


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("size_bytes", [PAGE_BYTES, 4 * PAGE_BYTES])
def test_serve_whose_log_nobody_reads_goes_on_when_the_pipe_is_full(
    resolver: ScriptedResolver, workdir: Path, size_bytes: int, log_format: str
) -> None:
    arguments = ["--log-level", "debug", "--log-format", log_format]
    with (
        UnreadPipe(size_bytes) as pipe,
        UnheardRelay(
            pipe, [resolver.address], workdir=workdir, workers=2, arguments=arguments
        ) as relay,
    ):

        def fill() -> bool:
            relay.reload()  # it says so
            return pipe.is_full

        relay.wait_for(fill, "a full pipe", 20.0)
        for _ in range(20):
            relay.reload()
            time.sleep(0.01)  # signals that come together are one
        assert_serves(relay)
        assert_ends(relay.popen)


def test_serve_whose_log_is_full_from_the_start_serves(
    resolver: ScriptedResolver, workdir: Path
) -> None:
    with UnreadPipe() as pipe:
        pipe.fill()
        with UnheardRelay(pipe, [resolver.address], workdir=workdir, workers=2) as relay:
            assert_serves(relay)
            assert_ends(relay.popen)


def test_serve_whose_log_is_full_replaces_a_worker_that_was_killed(
    resolver: ScriptedResolver, workdir: Path
) -> None:
    with UnreadPipe() as pipe:
        pipe.fill()
        with UnheardRelay(pipe, [resolver.address], workdir=workdir, workers=2) as relay:
            killed = relay.workers()[0]
            killed.kill()
            relay.wait_for_workers(2, without=[killed])
            relay.wait_for(
                lambda: all(
                    each["state"] == "ready" for each in status_of(relay.control_path)["workers"]
                ),
                "a successor",
            )
            assert_serves(relay)
            assert_ends(relay.popen)


def test_serve_whose_log_is_full_ends_with_a_query_open(workdir: Path) -> None:
    with UnreadPipe() as pipe, ScriptedResolver(lambda _: None) as silent:
        pipe.fill()
        with UnheardRelay(pipe, [silent.address], workdir=workdir, workers=2) as relay:
            with pytest.raises(TimeoutError):
                ask_udp(relay.address, query_wire(NAME), timeout_s=0.3)
            relay.popen.terminate()
            assert relay.popen.wait(2 * ENDS_WITHIN_S) == 0


def test_serve_with_standard_output_full_before_the_ready_line_serves(
    resolver: ScriptedResolver, workdir: Path
) -> None:
    relay = Relay([resolver.address], workdir=workdir, workers=2, listen=free_address())
    listen = relay.command[relay.command.index("--listen") + 1]

    def ready() -> bool:
        try:
            workers = status_of(relay.control_path)["workers"]
        except ControlError:
            return False
        return all(each["state"] == "ready" for each in workers)

    with UnreadPipe() as pipe, relay.log_path.open("wb") as log:
        pipe.fill()
        process = subprocess.Popen(
            relay.command, stdin=subprocess.DEVNULL, stdout=pipe.write_fd, stderr=log
        )
        try:
            wait_until(ready, "all workers ready", 20.0)
            relay.ready = {"pools": [{"name": "default", "listen": listen}]}
            assert_serves(relay)
            assert_ends(process)
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("line_bytes", [100, 3_000, 10_000])
def test_logs_into_a_pipe_that_nobody_reads_never_wait_however_long_the_line(
    line_bytes: int,
) -> None:
    with UnreadPipe() as pipe:
        command = [sys.executable, "-c", LONG_LINE, str(line_bytes)]
        done = subprocess.run(command, stderr=pipe.write_fd, timeout=ENDS_WITHIN_S, check=False)
    assert done.returncode == 0
