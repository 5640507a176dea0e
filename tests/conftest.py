"""Fixtures that many modules use: a folder, certificates, and the logs of programs on failure."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.rig.process import forget_ended, log_tail, logs_to_show, stop_everything

if TYPE_CHECKING:
    from tests.rig.certs import Authority, Certificate

# The relay is started hundreds of times: where Python is told to keep no bytecode, every process of
# it compiles the package anew, which is a third of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long things take is no matter of the suite: machines are shared, and the first text drawn on a
# fresh one waits for tables to be made.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# No relay of the suite, in this process or another, looks at the state of a relay in real use.
os.environ["STATE_DIRECTORY"] = tempfile.mkdtemp(prefix="relay-tests-")


REPOSITORY = Path(__file__).resolve().parent.parent
OURS = ("relay", "workers", "shared")


@pytest.fixture
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for one test's programs, with a path short enough for a Unix socket in it."""
    return tmp_path_factory.mktemp("w")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of a module's servers."""
    from tests.rig.certs import Authority  # slow to import, and most modules need none

    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def good(authority: Authority) -> Certificate:
    """A certificate for the name and the address of `tests.loopback`'s servers."""
    from tests.loopback import HOST
    from tests.rig.certs import HOST as NAME

    return authority.issue([NAME, HOST])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long: the last test must not be waited for by all processes."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of every program's log under a failed test."""
    report = yield
    if report.failed:
        for name, path in logs_to_show():
            report.sections.append((f"log of {name}: {path}", log_tail(path)))
    elif report.when == "teardown":
        forget_ended()
    return report


@pytest.fixture(autouse=True)
def no_callback_failed() -> Iterator[None]:
    """A callback of ours that raises ends no test: the event loop only logs it. Here it fails."""
    failed: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            trace = record.exc_info[2] if record.exc_info else None
            files = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)}
            if any(Path(file).is_relative_to(REPOSITORY / each) for file in files for each in OURS):
                failed.append(record.getMessage())

    handler = Listening(logging.ERROR)
    logging.getLogger("asyncio").addHandler(handler)
    yield
    logging.getLogger("asyncio").removeHandler(handler)
    assert not failed, failed[0]


@pytest.fixture(autouse=True)
def no_relay_logged_a_traceback(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nor does what a relay in another process had to log, unless the test makes it fail."""
    yield
    if request.node.get_closest_marker("breaks") is None:
        for name, path in logs_to_show():
            assert b"Traceback (most recent" not in path.read_bytes(), f"{name}: {log_tail(path)}"


@pytest.fixture(scope="session", autouse=True)
def no_program_left_behind() -> Iterator[None]:
    """A session that leaves programs running is at fault, and leaves none running."""
    yield
    left = stop_everything()
    assert not left, f"programs still running at the end: {', '.join(left)}"
