"""Logging to standard error, the same in the supervisor and in every worker.

Owner: any process of the relay, once, before it logs. Two forms: a line of text for people, or a
JSON object a line for programs. Invariant: logging never raises into the caller and never names
what a client asked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

import orjson

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


WRITTEN_BYTES: Final = 4_096
"""A pipe that is writable takes so much at once without waiting (PIPE_BUF, pipe(7))."""


class PatientHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Drops a line rather than wait for a reader that has stopped reading."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or as much of it as can be taken now."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            fd = self.stream.fileno()
            line = (self.format(record) + "\n").encode(errors="replace")
            for start in range(0, len(line), WRITTEN_BYTES):
                if not select.select([], [fd], [], 0)[1]:
                    break
                os.write(fd, line[start : start + WRITTEN_BYTES])


class TextFormatter(logging.Formatter):
    """One line a record: local time with milliseconds, level, role of the process, message."""

    def __init__(self, role: str) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s " + f"{role}: %(message)s")
        self.datefmt = "%Y-%m-%d %H:%M:%S"
        self.converter = time.localtime


class JsonFormatter(logging.Formatter):
    """One JSON object a record: at (UTC), level, role, pid, message, and a traceback as error."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self.role = role
        self.pid = os.getpid()

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        at = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "role": self.role,
            "pid": self.pid,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return orjson.dumps(fields, default=str).decode()


def setup(level: str, log_format: str, role: str) -> None:
    """Send every record from `level` on to standard error.

    `level` is a key of LEVELS, `log_format` is text or json, `role` is what the lines call this
    process. Calling it again replaces what the first call set.
    """
    handler = PatientHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role) if log_format == "json" else TextFormatter(role))
    # A standard error that nobody reads any more must not disturb the work.
    logging.raiseExceptions = False
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    for library in ("asyncio", "hpack"):  # hpack would tell every header field
        logging.getLogger(library).setLevel(max(LEVELS[level], logging.WARNING))
    logging.getLogger("aiohttp.access").disabled = True
