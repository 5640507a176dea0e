"""The listening socket of the control API, and its file.

Owner: the supervisor. Invariants: a socket file is for its owner alone (0600, in a directory made
0700), never takes the place of a living relay's, and is removed at exit only while it is still the
one that was made. TCP is bound on loopback only, because nothing here asks who is calling.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relay.endpoints import ControlAddress, bracketed, ip_of
from relay.listeners import holder_of
from shared.errors import RelayError

BACKLOG: Final = 64
PROBE_TIMEOUT_S: Final = 1.0


log = logging.getLogger(__name__)


class ControlError(RelayError):
    """The control API cannot listen where it should."""


class ControlInUse(ControlError):
    """Another relay answers at this control address."""


@dataclass(slots=True)
class ControlSocket:
    """A listening socket. `shown` is its path or host:port, as people and programs are told."""

    sock: socket.socket
    shown: str
    path: Path | None = None
    _identity: tuple[int, int] = (0, 0)

    def close(self) -> None:
        """Close it, and remove its file unless another relay has put its own there."""
        self.sock.close()
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            if _identity(self.path) == self._identity:
                self.path.unlink()
        self.path = None


def open_control(address: ControlAddress, *, is_default: bool) -> ControlSocket:
    """Listen at `address`; raise ControlError where that cannot be.

    Where another relay is at the default path, this one takes a path with its pid beside it: two
    relays that nobody gave a control address shall both run.
    """
    if address.path is None:
        return _open_tcp(address)
    try:
        return _open_unix(address.path, is_default=is_default)
    except ControlInUse as error:
        if not is_default:
            raise
        beside = address.path.with_name(f"{address.path.stem}-{os.getpid()}.sock")
        log.warning("%s; this one takes %s", error, beside)
    return _open_unix(beside, is_default=True)


def _open_tcp(address: ControlAddress) -> ControlSocket:
    ip = ip_of(address.host)
    if ip is None or not ip.is_loopback:
        raise ControlError(f"the control API listens on loopback only, not on {address}")
    sock = socket.socket(socket.AF_INET6 if ip.version == 6 else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            holder = holder_of("TCP", address.host, address.port)
            reason = f"in use by {holder}" if holder else "already in use"
        raise ControlError(f"the control address {address} cannot be used: {reason}") from error
    sock.setblocking(False)
    return ControlSocket(sock, f"{bracketed(address.host)}:{sock.getsockname()[1]}")


def _open_unix(path: Path, *, is_default: bool) -> ControlSocket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_default:
            _check_owner(path.parent)
        _remove_stale(path)
        # The mode is that of the moment of bind(): nobody else gets in, not even for an instant.
        mask = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(mask)
        sock.listen(BACKLOG)
        identity = _identity(path)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise ControlError(f"the control socket {path} cannot be made: {reason}") from error
    except ControlError:
        sock.close()
        raise
    sock.setblocking(False)
    return ControlSocket(sock, str(path), path, identity)


def _check_owner(directory: Path) -> None:
    """Refuse a directory that another user laid out for this one, as can be done under /tmp."""
    owner = directory.stat().st_uid
    if owner not in (os.geteuid(), 0):
        raise ControlError(f"the directory {directory} of the control socket is another user's")


def _remove_stale(path: Path) -> None:
    """Remove the socket of a relay that is gone; raise where one answers, or it is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ControlError(f"{path} is there already and is no socket; it is left alone")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except TimeoutError:
            pass  # its queue is full: somebody is there
    raise ControlInUse(f"another relay uses the control socket {path}")


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
