"""The state file: one JSON object that outlives the relay, and perhaps is shared by several.

Owner: the supervisor (and `relay scan`). Whatever stands at the path, nothing here raises: a file
that cannot be read or written costs what it would have remembered, and is said once. Invariants: a
reader sees a whole file, the old or the new one; a file that makes no sense is kept beside it as
`.bad`; what is not a file (a device, a pipe) is never opened for long nor replaced. Two relays
write in turn, under a lock beside the file, and each reads again before it writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from relay.private_files import make_file, make_folder
from shared.printable import printable

VERSION: Final = 1

LARGEST_BYTES: Final = 32 << 20
"""Far more than the scores of every pool can be."""

LOCK_LIMIT_S: Final = 2.0
"""How long another relay's writing is waited for. It takes some milliseconds."""

_LOCK_LOOK_S: Final = 0.02

Content = dict[str, Any]

log = logging.getLogger(__name__)


class _Senseless(Exception):
    """The file holds no state; says what it holds."""


class StateFile:
    """The state file at `path`. Its methods block; they may be called from any one thread."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        self._shown = printable(str(path), 4096)
        self._said: set[str] = set()

    def read(self) -> Content:
        """Return the content, empty where there is none that can be read."""
        try:
            try:
                return _parsed(_bytes_of(self.path))
            except _Senseless as error:
                return self._read_again(str(error))
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._say("cannot be read", error.strerror or str(error))
        return {}

    def update(self, change: Callable[[Content], Content]) -> bool:
        """Put `change` of what stands in the file now into the file; False where that failed."""
        try:
            make_folder(self.path.parent)
            with self._locked():
                # Where it is there and cannot be read, what it holds is not lost for that.
                data = orjson.dumps({**change(self._read_locked()), "version": VERSION})
                self._replace(data)
        except OSError as error:
            self._say("cannot be written", error.strerror or str(error))
            return False
        self._said.clear()
        return True

    def _read_locked(self) -> Content:
        """Read it while nobody else writes. Raises OSError."""
        try:
            return _parsed(_bytes_of(self.path))
        except FileNotFoundError:
            return {}
        except _Senseless as error:
            self._set_aside(str(error))
        return {}

    def _read_again(self, why: str) -> Content:
        """Read a file that made no sense: another relay may have put a good one there by now."""
        try:
            with self._locked():
                return self._read_locked()
        except OSError as error:
            self._say(f"is of no use, and left where it is: {error.strerror or error}", why)
        return {}

    def _replace(self, data: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
        # One name for all: who writes has the lock, and a killed one's leftover is in nobody's way.
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            with os.fdopen(make_file(temporary, os.O_WRONLY), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        # The name, too, shall be there after a power cut.
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # A file of its own: the state file itself is another one after every write.
        name = self.path.with_name(f".{self.path.name}.lock")
        try:
            lock = make_file(name, os.O_RDWR)
        except FileExistsError:
            lock = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            until = time.monotonic() + LOCK_LIMIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise OSError(errno.EAGAIN, "another relay holds its lock") from None
                    time.sleep(_LOCK_LOOK_S)
            yield
        finally:
            os.close(lock)

    def _set_aside(self, why: str) -> None:
        bad = self.path.with_name(f"{self.path.name}.bad")
        try:
            self.path.replace(bad)
            kept = f"kept as {printable(bad.name, 255)}"
        except OSError as error:
            kept = f"left where it is: {error.strerror or error}"
        self._say(f"is of no use, and {kept}", why)

    def _say(self, what: str, why: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("the state file %s %s: %s", self._shown, what, why)


def _bytes_of(path: Path) -> bytes:
    # Opening a pipe would wait for somebody who writes.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise _Senseless(f"it is larger than {LARGEST_BYTES >> 20} MiB")
    return data


def _parsed(data: bytes) -> Content:
    if not data:
        return {}
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise _Senseless("it is not JSON" if data.strip(b"\0") else "it is all zeros") from None
    if not isinstance(content, dict):
        raise _Senseless("it is not a JSON object")
    version = content.get("version")
    if version != VERSION or isinstance(version, bool):
        raise _Senseless("it is not of this version")
    if not isinstance(content.get("pools"), dict):
        raise _Senseless('its "pools" are not a JSON object')
    return content
