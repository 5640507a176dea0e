"""A command in a terminal of a given width, as a person sees what it prints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from tests.rig.files import REPO

_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def relay_in_terminal(columns: int, *arguments: str | Path) -> tuple[int, str]:
    """Run the relay command in a terminal; return its status and all that it wrote there.

    The lines of that end with CR LF, as a terminal has them, and hold its control codes.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "relay", *map(str, arguments)],
        cwd=REPO,
        env={**environment, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    try:
        # The end is an error: how a terminal says that the other side is gone.
        with contextlib.suppress(OSError):
            while data := os.read(ours, 65_536):
                written += data
    finally:
        os.close(ours)
        process.kill()
    return process.wait(), written.decode()


def plain(text: str) -> str:
    """Return what a terminal was sent without its control codes."""
    return _CODE.sub("", text).replace("\r", "")
