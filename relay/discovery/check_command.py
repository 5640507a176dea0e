"""The check that a user brings along: a command that is run for a candidate.

No shell is in between. Words of the command may hold `{resolver}` (host:port, as in `relay run`),
`{address}` (all of it, such as `udp://192.0.2.1:53`), `{host}` and `{port}`. Status 0 passes. A
command runs in a process group of its own; what is left of it is killed when the command ends, when
its time is up and when the check is given up. What one that fails said last goes to the debug log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
from typing import Final

from relay.endpoints import bracketed
from relay.resolver_address import ResolverAddress
from shared.errors import RelayError
from shared.printable import printable

MOST_AT_ONCE: Final = 8
"""Commands that run at the same time: a tunnel's client may be among them."""

TIMEOUT_S: Final = 30.0
"""The longest that one may take: a tunnel needs some seconds to come up."""

LONGEST_LINE: Final = 300
"""Characters that are told of what a command said."""

_PIPE_BYTES: Final = 65_536
_TAIL_BYTES: Final = 4_096

log = logging.getLogger(__name__)


class CannotRun(RelayError):
    """The command cannot be started: that says nothing about the resolver."""


def words_of(command: str) -> list[str]:
    """Return a command cut into words. Raises ValueError where it cannot be, or holds none."""
    words = shlex.split(command)
    if not words or not words[0]:
        raise ValueError("the command is empty")
    if "\0" in command:
        raise ValueError("the command holds a zero byte")
    return words


class CheckCommand:
    """Runs a command for one candidate after another."""

    def __init__(self, command: str, timeout_s: float = TIMEOUT_S) -> None:
        self._words = words_of(command)
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    async def why_failed(self, address: ResolverAddress) -> str:
        """Run it; return why the candidate does not pass, "" where it does. Raises CannotRun."""
        host = bracketed(address.host)
        values = {
            "{resolver}": f"{host}:{address.port}",
            "{address}": str(address),
            "{host}": address.host,
            "{port}": str(address.port),
        }
        words = [_with_values(word, values) for word in self._words]
        async with self._room:
            if not log.isEnabledFor(logging.DEBUG):
                return await self._run(words, asyncio.subprocess.DEVNULL)
            with LastWords() as said:
                reason = await self._run(words, said.written)
        if reason and (line := said.line()):
            log.debug("%s: %s; it said: %s", address, reason, line)
        return reason

    async def _run(self, words: list[str], stderr: int) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise CannotRun(f"the check command cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await process.wait()
        except TimeoutError:
            return f"the check command did not end within {self._timeout_s:g} s"
        finally:
            # Also what it left behind in its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
        if status < 0:
            return f"the check command was ended by signal {-status}"
        return f"the check command failed with status {status}" if status else ""


class LastWords:
    """The last line of what is written to `written`, a descriptor; to be entered on a loop.

    Nobody waits for its end: what a command left behind may keep it open.
    """

    _read: int
    written: int

    def __enter__(self) -> LastWords:
        try:
            self._read, self.written = os.pipe()
        except OSError as error:
            raise CannotRun(f"the check command cannot be run: {error.strerror}") from error
        os.set_blocking(self._read, False)
        self._tail = b""
        asyncio.get_running_loop().add_reader(self._read, self._take)
        return self

    def __exit__(self, *_details: object) -> None:
        # What the pipe still holds was written before the command ended. Two, as others may write.
        for _ in range(2):
            self._take()
        os.close(self.written)
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)

    def line(self) -> str:
        """Return the last line that says anything, cut and safe to print."""
        text = self._tail.decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines()]
        return printable(next(filter(None, reversed(lines)), ""), LONGEST_LINE)

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._tail = (self._tail + os.read(self._read, _PIPE_BYTES))[-_TAIL_BYTES:]


def _with_values(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
