"""Log lines as people and programs get them, from a process of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys

PROGRAM = """
import logging, sys
from workers import logs
logs.setup(sys.argv[1], sys.argv[2], "worker 3")
log = logging.getLogger("x")
log.debug("too quiet")
log.info("%d of %d", 1, 2)
from hpack import Decoder, Encoder
Decoder().decode(Encoder().encode([(b"location", b"my-secret-name.example")]))
try:
    raise ValueError("why")
except ValueError:
    log.exception("failed")
"""


def logged(level: str, log_format: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level, log_format],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_logs_text_has_time_level_role_and_message() -> None:
    lines = logged("info", "text")
    pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO    worker 3: 1 of 2"
    assert re.fullmatch(pattern, lines[0])
    assert lines[-1] == "ValueError: why"


def test_logs_json_is_one_object_a_line() -> None:
    first, second = (json.loads(line) for line in logged("info", "json"))
    assert (first["level"], first["role"], first["message"]) == ("info", "worker 3", "1 of 2")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["at"])
    assert isinstance(first["pid"], int)
    assert second["error"].endswith("ValueError: why")


def test_logs_below_the_level_are_left_out() -> None:
    assert len(logged("debug", "json")) == 3
    assert len(logged("error", "json")) == 1


def test_logs_of_a_library_do_not_tell_what_a_server_said() -> None:
    assert not [line for line in logged("debug", "text") if "secret" in line]


def test_logs_to_a_closed_standard_error_disturb_nobody() -> None:
    shell = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", PROGRAM, "info", "text"]
    assert subprocess.run(shell, check=False).returncode == 0
