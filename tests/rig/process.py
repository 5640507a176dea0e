"""Programs under test: started, awaited, stopped, and never left behind.

Invariants: a program runs in a process group of its own, so that whatever it forks goes with it;
its output is in a file, which `logs_to_show` lists so that a failing test can show it; a
program that ends by itself while something waits for it fails that wait at once, with its log.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

LOG_TAIL_BYTES = 8_000
POLL_S = 0.01
STOP_TIMEOUT_S = 8.0

_running: set[Program] = set()
_started: list[Program] = []


class RigError(Exception):
    """A program of the rig did not do what the test needs of it."""


def wait_until(ready: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    """Poll `ready` until it is true; RigError names `what` when it is not in time."""
    give_up_at = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > give_up_at:
            raise RigError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_S)


class Program:
    """One program; a context manager. Subclasses say in `is_ready` when it can be used."""

    ready_timeout_s = 15.0
    stop_signal = signal.SIGTERM

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        workdir: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.workdir = workdir
        self.environment = dict(environment or {})
        self.log_path = _fresh_log(workdir, name)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} pid={self._process and self._process.pid}>"

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it and return once it is ready; RigError with its log where it is not."""
        assert self._process is None or self._process.poll() is not None, f"{self.name} runs"
        with self.log_path.open("ab") as log:
            log.write(f"$ {shlex.join(self.command)}\n".encode())
            log.flush()
            self._process = self._spawn(log.fileno())
        _running.add(self)
        _started.append(self)
        try:
            self.wait_for(self.is_ready, "ready", self.ready_timeout_s)
        except BaseException:
            self.stop()
            raise

    def _spawn(self, log_fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            env=self._full_environment(),
            start_new_session=True,
        )

    def _full_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def is_ready(self) -> bool:
        """Say whether it can be used; asked again and again after the start."""
        return True

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ask it to stop, kill it if it does not, clear its group; return its exit status."""
        process = self.popen
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(self.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        self.kill()
        return process.returncode

    def kill(self) -> None:
        """Kill it and its whole group now; nothing to do for one that was stopped already."""
        process = self.popen
        if self not in _running:
            return
        _running.discard(self)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    # -- looking at it ---------------------------------------------------------------------

    @property
    def popen(self) -> subprocess.Popen[bytes]:
        """The child as subprocess knows it."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def pid(self) -> int:
        """Process ID."""
        return self.popen.pid

    @property
    def process(self) -> psutil.Process:
        """The child as psutil knows it."""
        return psutil.Process(self.pid)

    def children(self) -> list[psutil.Process]:
        """Its living descendants."""
        children: list[psutil.Process] = self.process.children(recursive=True)
        return children

    def family(self) -> list[psutil.Process]:
        """It and its living descendants."""
        return [self.process, *self.children()]

    def log_text(self) -> str:
        """All that it has written so far."""
        return self.log_path.read_text(errors="replace")

    def wait_for(self, ready: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
        """Wait until `ready`; RigError with the log when time is up or the program has ended."""
        __tracebackhide__ = True

        def check() -> bool:
            status = self.popen.poll()
            if status is not None:
                raise RigError(f"{self.name} ended with status {status} before {what}")
            return ready()

        try:
            wait_until(check, f"{self.name}: {what}", timeout_s)
        except RigError as error:
            raise RigError(f"{error}\n{log_tail(self.log_path)}") from None

    def wait_for_log(self, text: str, timeout_s: float = 10.0) -> None:
        """Wait until `text` is in the log."""
        self.wait_for(lambda: text in self.log_text(), f"log says {text!r}", timeout_s)


# -- for the test session ----------------------------------------------------------------------


def log_tail(path: Path, size_bytes: int = LOG_TAIL_BYTES) -> str:
    """The end of a log, for people."""
    if not path.exists():
        return "(no log)"
    text = path.read_bytes()
    cut = "…" if len(text) > size_bytes else ""
    return cut + text[-size_bytes:].decode(errors="replace")


def logs_to_show() -> list[tuple[str, Path]]:
    """Name and log of every program that ran since `forget_ended` was called."""
    return [(program.name, program.log_path) for program in dict.fromkeys(_started)]


def forget_ended() -> None:
    """Leave the logs of programs that have ended out of what `logs_to_show` returns."""
    _started[:] = [program for program in _started if program in _running]


def stop_everything() -> list[str]:
    """Kill what still runs; return the names. A clean test leaves nothing to do here."""
    left = sorted(program.name for program in _running)
    for program in list(_running):
        program.kill()
    return left


def _fresh_log(workdir: Path, name: str) -> Path:
    number = 0
    while True:
        path = workdir / f"{name}{f'-{number}' if number else ''}.log"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path


atexit.register(stop_everything)
