"""The worker processes of a relay: started, told what they must know, and heard.

Owner: the supervisor. When one is started, killed or drained is decided by the machine in
`relay.supervisor`; here it is done, and what became of it is told through `ready` and `exited`.
Invariant: what a process says or does after another took its place changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from relay.config import Config
from relay.listeners import Listeners
from relay.roster import Roster
from relay.worker_process import Message, WorkerProcess
from shared import layout
from shared.board import Board
from shared.own_question import OwnQuestion

log = logging.getLogger(__name__)


class Fleet:
    """The processes, by the index of their worker.

    `ready` is called with the index of a worker that serves, `exited` with that of one that ended
    and its exit status (minus the signal that ended it), or why it could not be started.
    """

    def __init__(
        self,
        config: Config,
        board: Board,
        listeners: Listeners,
        roster: Roster,
        own: OwnQuestion,
        *,
        ready: Callable[[int], None],
        exited: Callable[[int, int | str], None],
    ) -> None:
        self._config = config
        self._board = board
        self._listeners = listeners
        self._roster = roster
        self._own = own
        self._ready = ready
        self._exited = exited
        self._processes: dict[int, WorkerProcess] = {}
        self.faults: dict[int, dict[int, str]] = {}
        """By slot: what keeps its resolver from being used, as each worker says that says so."""

    def start(self, index: int) -> None:
        """Start a worker."""
        try:
            self._processes[index] = WorkerProcess(
                index,
                self._board.fd,
                self._listeners.descriptors(index),
                lambda: self._opening(index),
                self._heard,
                self._ended,
            )
        except OSError as error:
            self._exited(index, error.strerror or str(error))

    def kill(self, index: int) -> None:
        """End a worker now. It may be gone already, with its exit not yet told."""
        if process := self._processes.get(index):
            process.kill()

    def drain(self, index: int, deadline_s: float) -> None:
        """Let a worker answer what is open, and end."""
        if process := self._processes.get(index):
            process.send({"op": "drain", "deadline_s": deadline_s})

    def close(self) -> None:
        """End all that still run."""
        for process in self._processes.values():
            process.kill()
            process.close()

    def pid(self, index: int) -> int | None:
        """Return the process ID of a worker, None while it has no process."""
        process = self._processes.get(index)
        return process.pid if process else None

    def beats(self) -> list[int]:
        """Return when each worker last gave a sign of life, as it stands on the board."""
        words, at = self._board.words, self._board.at
        return [words[at.worker(k) + layout.WORKER_HEARTBEAT_AT] for k in range(at.workers)]

    def send_roster(self, pool: int) -> None:
        """Tell the workers; what they said of resolvers that left is forgotten."""
        held = {
            entry.slot
            for index in range(len(self._roster.pools))
            for entry in self._roster.entries(index)
        }
        for slot in self.faults.keys() - held:
            del self.faults[slot]
        message = self._roster_message(pool)
        for process in self._processes.values():
            process.send(message)

    def _opening(self, index: int) -> list[Message]:
        """Return what a worker is told first: its settings and descriptors, then every roster."""
        label, proof = self._own.label.decode(), self._own.proof.decode()
        pools = []
        for number, (pool, sockets) in enumerate(
            zip(self._config.pools, self._listeners.pools, strict=True)
        ):
            pools.append(
                {
                    "index": number,
                    "settings": {
                        **pool.settings.to_json(),
                        "own_label": label,
                        "own_proof": proof,
                    },
                    "udp_fds": [sockets.udp[index].fileno()],
                    "tcp_fds": [sockets.tcp[index].fileno()],
                }
            )
        setup = {
            "op": "setup",
            "index": index,
            "workers": self._config.workers,
            "log_level": self._config.log_level,
            "log_format": self._config.log_format,
            "pools": pools,
        }
        return [setup, *(self._roster_message(number) for number in range(len(pools)))]

    def _roster_message(self, pool: int) -> Message:
        entries = [entry.to_json() for entry in self._roster.entries(pool)]
        return {"op": "roster", "pool": pool, "resolvers": entries}

    def _heard(self, process: WorkerProcess, message: Message) -> None:
        index = process.index
        if self._processes.get(index) is not process:
            return
        match message:
            case {"op": "ready"}:
                self._mark_living(index, living=True)
                self._ready(index)
            case {"op": "fault", "slot": int(slot), "reason": str(reason)}:
                said = self.faults.setdefault(slot, {})
                said[index] = reason
                if not reason:
                    del said[index]
            case {"op": "drained"}:
                pass  # its exit, which follows, says the same
            case _:
                log.warning("worker %d says something unknown: %s", index, message.get("op"))

    def _ended(self, process: WorkerProcess, status: int) -> None:
        index = process.index
        if self._processes.get(index) is not process:
            return
        del self._processes[index]
        process.close()
        self._mark_living(index, living=False)
        for said in self.faults.values():
            said.pop(index, None)
        self._exited(index, status)

    def _mark_living(self, index: int, *, living: bool) -> None:
        position = self._board.at.worker(index) + layout.WORKER_LIVING
        self._board.words[position] = int(living)
