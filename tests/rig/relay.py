"""`relay serve` as a person starts it: its first line of output says where it listens."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.rig.net import Address, Namespace
from tests.rig.process import Program, RigError

_UNIX_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class Usage:
    """What a group of processes uses at one moment."""

    descriptors: int
    uss_bytes: int
    """Memory of their own: what would be free again without them."""
    rss_bytes: int


def relay_command() -> str:
    """Path of the installed `relay`, beside the Python that runs the tests."""
    path = Path(sys.executable).with_name("relay")
    if not path.exists():
        raise RigError(f"{path} is missing: install the package into this environment")
    return str(path)


class Relay(Program):
    """`relay serve` with flags, or with a configuration file when `config` is given.

    With `config` (a mapping written as JSON, or the text of a file) no flag but --control and
    --state is added; without it the flags are made from the other arguments. `arguments` are
    added at the end.
    """

    ready_timeout_s = 20.0

    def __init__(
        self,
        resolvers: Sequence[Address | str] = (),
        *,
        workdir: Path,
        listen: Address | str = "127.0.0.1:0",
        tunnel: str | None = None,
        domain: str | None = None,
        workers: int | str = 1,
        config: Mapping[str, Any] | str | None = None,
        arguments: Sequence[str] = (),
        namespace: Namespace | None = None,
        environment: Mapping[str, str] | None = None,
        name: str = "relay",
    ) -> None:
        runtime = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=workdir))
        self.control_path = runtime / "control.sock"
        if len(str(self.control_path)) > _UNIX_PATH_BYTES:
            raise RigError(f"{workdir} is too long for a socket's path: use the workdir fixture")
        command: list[str | Path] = [relay_command(), "serve"]
        command += ["--control", f"unix:{self.control_path}"]
        command += ["--state", runtime / "state.json"]
        if config is not None:
            text = config if isinstance(config, str) else json.dumps(config, indent=2)
            file = runtime / "relay.json"
            file.write_text(text)
            command += ["-c", file]
        else:
            command += ["--listen", str(listen), "--workers", str(workers)]
            command += [word for each in resolvers for word in ("--resolver", str(each))]
            command += ["--tunnel", tunnel] if tunnel else []
            command += ["--domain", domain] if domain else []
        command += arguments
        self.ready: dict[str, Any] = {}
        """The ready line."""
        self.more_output: list[str] = []
        """Lines on standard output after the ready line: there must be none."""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        super().__init__(
            name,
            namespace.wrap(command) if namespace else command,
            workdir=workdir,
            environment=environment,
        )

    def _spawn(self, log_fd: int) -> subprocess.Popen[bytes]:
        self.ready = {}
        self._lines = queue.SimpleQueue()
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            env=self._full_environment(),
            start_new_session=True,
        )
        assert process.stdout is not None
        self._reader = threading.Thread(
            target=self._read_lines, args=(process.stdout, self._lines), daemon=True
        )
        self._reader.start()
        return process

    def _read_lines(self, stdout: Any, lines: queue.SimpleQueue[str | None]) -> None:
        with stdout:
            for line in stdout:
                lines.put(line.decode(errors="replace"))
        lines.put(None)

    def is_ready(self) -> bool:
        self._drain_output()
        return bool(self.ready)

    def _drain_output(self) -> None:
        while not self._lines.empty():
            line = self._lines.get()
            if line is None:
                return
            if self.ready:
                self.more_output.append(line)
                continue
            try:
                self.ready = json.loads(line)
            except ValueError:
                raise RigError(f"the first line is not JSON: {line!r}") from None
            assert self.ready.get("event") == "ready", self.ready

    def kill(self) -> None:
        super().kill()
        self._reader.join(5.0)
        self._drain_output()

    # -- what it said ----------------------------------------------------------------------

    @property
    def address(self) -> Address:
        """Where the first pool listens."""
        return self.pool_address(0)

    def pool_address(self, pool: int | str) -> Address:
        """Where a pool listens, by its place or its name."""
        pools = self.ready["pools"]
        if isinstance(pool, str):
            return Address.parse(next(each["listen"] for each in pools if each["name"] == pool))
        return Address.parse(pools[pool]["listen"])

    @property
    def control(self) -> str:
        """Where the control API listens, as the ready line says it."""
        return str(self.ready["control"])

    # -- its processes ---------------------------------------------------------------------

    def workers(self) -> list[psutil.Process]:
        """The worker processes, oldest first."""
        children = self.process.children()
        return sorted(children, key=lambda each: (each.create_time(), each.pid))

    def wait_for_workers(
        self, count: int, *, without: Sequence[psutil.Process] = (), timeout_s: float = 5.0
    ) -> list[psutil.Process]:
        """Wait until `count` workers live, none of them in `without`."""

        def there() -> bool:
            living = self.workers()
            return len(living) == count and not set(living) & set(without)

        self.wait_for(there, f"{count} workers", timeout_s)
        return self.workers()

    def usage(self) -> Usage:
        """Descriptors and memory of all its processes together."""
        family = self.family()
        memory = [each.memory_full_info() for each in family]
        return Usage(
            descriptors=sum(each.num_fds() for each in family),
            uss_bytes=sum(each.uss for each in memory),
            rss_bytes=sum(each.rss for each in memory),
        )

    def reload(self) -> None:
        """Ask it to read its configuration again."""
        self.popen.send_signal(signal.SIGHUP)
