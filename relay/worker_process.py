"""One process of a worker, as the supervisor sees it: start, talk, end.

Owner: the supervisor. A worker is started by exec, never by fork of a process with a running loop,
and gets descriptors only: the board, its end of the channel, its listening sockets. What it has to
know comes over the channel. Invariant: the supervisor keeps no copy of the worker's end, so the
channel ends when the process does, whatever ended it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from relay.child import when_ended
from workers.channel import Channel

STDERR_FILENO: Final = 2

log = logging.getLogger(__name__)

Message = dict[str, Any]


class WorkerProcess:
    """A running worker. Raises OSError where it cannot be started.

    `opening` is sent first; `received` gets what the worker says; `ended` gets its exit status,
    minus the signal that ended it.
    """

    def __init__(
        self,
        index: int,
        board_fd: int,
        listening: Sequence[int],
        opening: Callable[[], list[Message]],
        received: Callable[[WorkerProcess, Message], None],
        ended: Callable[[WorkerProcess, int], None],
    ) -> None:
        self.index = index
        self._channel: Channel | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(index, board_fd, theirs.fileno(), listening)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self.pid = self._process.pid
        when_ended(self._process, lambda status: ended(self, status))
        self._task = asyncio.get_running_loop().create_task(self._talk(ours, opening, received))

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.index} pid={self.pid} status={self._process.returncode}>"

    def send(self, message: Message) -> None:
        """Send a message. Before `opening` went out nothing is sent: it is part of that."""
        if self._channel is not None:
            self._channel.send(message)

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def close(self) -> None:
        """Let go of the channel. A process that still runs then ends itself."""
        self._task.cancel()
        if self._channel is not None:
            self._channel.close()

    async def _talk(
        self,
        ours: socket.socket,
        opening: Callable[[], list[Message]],
        received: Callable[[WorkerProcess, Message], None],
    ) -> None:
        try:
            self._channel = await Channel.open(ours)
            for message in opening():
                self._channel.send(message)
            async for message in self._channel:
                received(self, message)
        except asyncio.CancelledError:
            if self._channel is None:
                ours.close()
            raise
        except Exception:
            log.exception("worker %d: its channel broke; killed", self.index)
            self.kill()


def _spawn(
    index: int, board_fd: int, channel_fd: int, listening: Sequence[int]
) -> subprocess.Popen[bytes]:
    # -P: a folder named `workers` where somebody happens to stand is not ours.
    command = [sys.executable, "-P", "-m", "workers", "--index", str(index)]
    command += ["--board-fd", str(board_fd), "--channel-fd", str(channel_fd)]
    return subprocess.Popen(
        command,
        pass_fds=(board_fd, channel_fd, *listening),
        stdin=subprocess.DEVNULL,
        stdout=STDERR_FILENO,  # standard output is for the ready line alone
        start_new_session=True,  # what happens in the terminal is for the supervisor to judge
    )
