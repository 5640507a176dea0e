"""The check that a user brings along: a command that is run for a candidate.

No shell is in between. Words of the command may hold `{resolver}` (the whole address, such as
`udp://192.0.2.1:53`), `{address}` (host and port), `{host}` and `{port}`. Status 0 passes. A
command runs in a process group of its own; what is left of it is killed when the command ends, when
its time is up and when the check is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from typing import Final

from relay.endpoints import bracketed
from relay.resolver_address import ResolverAddress
from shared.errors import RelayError

MOST_AT_ONCE: Final = 8
"""Commands that run at the same time: a tunnel's client may be among them."""

TIMEOUT_S: Final = 30.0
"""The longest that one may take: a tunnel needs some seconds to come up."""


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
            "{resolver}": str(address),
            "{address}": f"{host}:{address.port}",
            "{host}": address.host,
            "{port}": str(address.port),
        }
        words = [_with_values(word, values) for word in self._words]
        async with self._room:
            return await self._run(words)

    async def _run(self, words: list[str]) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
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


def _with_values(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
