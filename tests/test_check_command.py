"""The user's own check: a command for a candidate."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from pathlib import Path

import psutil
import pytest

from relay.discovery.check_command import MOST_AT_ONCE, CannotRun, CheckCommand
from relay.resolver_address import parse
from tests.loopback import on_loop, until

ADDRESS = parse("dot://[2001:db8::1]")


def python(code: str, *words: str) -> str:
    return shlex.join([sys.executable, "-S", "-c", code, *words])


@on_loop
async def test_command_gets_its_words_without_a_shell(tmp_path: Path) -> None:
    out = tmp_path / "words"
    code = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"
    words = ["{resolver}", "at={address}", "{host}", "{port}", "$(id)", "a b;c"]
    assert await CheckCommand(python(code, str(out), *words)).why_failed(ADDRESS) == ""
    told = ["[2001:db8::1]:853", "at=dot://[2001:db8::1]:853", "2001:db8::1", "853"]
    assert out.read_text() == repr([*told, "$(id)", "a b;c"])


@on_loop
async def test_command_that_fails_is_told_with_its_status() -> None:
    command = CheckCommand(python("raise SystemExit(3)"))
    assert await command.why_failed(ADDRESS) == "the check command failed with status 3"
    command = CheckCommand(python("import os; os.kill(os.getpid(), 9)"))
    assert await command.why_failed(ADDRESS) == "the check command was ended by signal 9"


@on_loop
async def test_command_that_fails_has_its_last_words_in_the_debug_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    code = (
        "import os, subprocess, sys\n"
        "os.write(2, b'y' * 500_000 + b'\\nno \\x1b[31m tunnel\\xff' + b'z' * 900 + b'\\n \\n')\n"
        # Who keeps the descriptor is not waited for.
        "subprocess.Popen(['sleep', '60'], start_new_session=sys.argv[1] == 'escape')\n"
        "raise SystemExit(3)"
    )
    fault = "the check command failed with status 3"

    assert await CheckCommand(python(code, "")).why_failed(ADDRESS) == fault
    assert caplog.text == ""

    caplog.set_level(logging.DEBUG, "relay.discovery.check_command")
    assert await CheckCommand(python(code, "")).why_failed(ADDRESS) == fault
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(f"{ADDRESS}: {fault}; it said: no \\x1b[31m tunnel\ufffdzzz")
    assert told.isprintable()
    assert len(told) < 450

    caplog.clear()
    assert await CheckCommand(python("import os; os.write(2, b'hm')")).why_failed(ADDRESS) == ""
    assert await CheckCommand(python("raise SystemExit(3)")).why_failed(ADDRESS) == fault
    assert caplog.text == ""


@on_loop
async def test_command_that_cannot_be_run_is_nobodys_fault() -> None:
    for words in ("/no/such/program", "/"):
        with pytest.raises(CannotRun):
            await CheckCommand(words).why_failed(ADDRESS)
    for words in ("", "  ", "'", "''", "sh \0"):
        with pytest.raises(ValueError, match=r"empty|quotation|zero"):
            CheckCommand(words)


@on_loop
async def test_command_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    out = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid) + '.')\n"
        "time.sleep(float(sys.argv[2]))"
    )

    def child() -> int:
        text = out.read_text() if out.exists() else ""
        return int(text[:-1]) if text.endswith(".") else 0

    def gone(pid: int) -> bool:
        if not psutil.pid_exists(pid):
            return True
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)

    slow = CheckCommand(python(code, str(out), "60"), timeout_s=0.5)
    assert await slow.why_failed(ADDRESS) == "the check command did not end within 0.5 s"
    await until(lambda: gone(child()))

    out.unlink()
    given_up = asyncio.create_task(CheckCommand(python(code, str(out), "60")).why_failed(ADDRESS))
    await until(child)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await until(lambda: gone(child()))

    out.unlink()  # one that ends by itself leaves nothing either
    assert await CheckCommand(python(code, str(out), "0")).why_failed(ADDRESS) == ""
    await until(lambda: gone(child()))


@on_loop
async def test_few_commands_run_at_once(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    command = CheckCommand(f"cat {shlex.quote(str(hold))}")
    running = [asyncio.create_task(command.why_failed(ADDRESS)) for _ in range(MOST_AT_ONCE + 4)]

    def cats() -> int:
        children = psutil.Process().children()
        return sum(str(hold) in each.cmdline() for each in children)

    await until(lambda: cats() == MOST_AT_ONCE)
    await asyncio.sleep(0.1)
    assert cats() == MOST_AT_ONCE
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await until(lambda: not cats())
