"""Asks a running relay for its state over the control address.

Used by: `relay status`. Standard library only, because the command is to come up at once.
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, Final

from relay.endpoints import ControlAddress
from shared.errors import RelayError

TIMEOUT_S: Final = 5.0
LARGEST_ANSWER_BYTES: Final = 64 << 20


class ControlError(RelayError):
    """No relay answers at the control address, or not as a relay does."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def fetch_status(control: ControlAddress) -> dict[str, Any]:
    """Return what `GET /status` says at `control`; raise `ControlError`."""
    connection = (
        _UnixConnection(str(control.path))
        if control.path
        else http.client.HTTPConnection(control.host, control.port, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", "/status", headers={"Accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read(LARGEST_ANSWER_BYTES + 1)
    except (FileNotFoundError, ConnectionRefusedError):
        raise ControlError(f"no relay is running at {control}") from None
    except TimeoutError:
        raise ControlError(f"no answer from {control} within {TIMEOUT_S:g} s") from None
    except http.client.HTTPException:  # before OSError, because one of them is both
        raise ControlError(f"{control} does not answer as a relay does") from None
    except OSError as error:
        raise ControlError(f"{control}: {error.strerror or error}") from None
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise ControlError(f"{control} answered {answer.status} {answer.reason}")
    try:
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ValueError
        status = json.loads(body)
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict) or not isinstance(status.get("pools"), list):
        raise ControlError(f"{control} does not answer as a relay does")
    return status
