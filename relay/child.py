"""Notice at once that a child process ended.

Owner: the supervisor. uvloop keeps SIGCHLD to itself, and pidfds are not allowed everywhere; a
thread that waits works on every kernel, costs nothing while it waits and cannot confuse one child
with another. It is a daemon thread: the relay does not wait for it at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Callable


def when_ended(process: subprocess.Popen[bytes], then: Callable[[int], None]) -> None:
    """Call `then` on the running loop with the exit status (minus the signal) of `process`."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        status = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            loop.call_soon_threadsafe(then, status)

    threading.Thread(target=wait, name=f"wait for {process.pid}", daemon=True).start()
