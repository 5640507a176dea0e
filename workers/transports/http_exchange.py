"""A request over HTTP and what became of it, the same for HTTP/1.1 and HTTP/2.

Both sessions (`http1`, `http2`) are pure: they take bytes and give bytes, and own no socket and no
clock. They know requests and responses; that these carry DNS is the matter of `doh`.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Final, Protocol

from shared.errors import RelayError
from workers.engine.pending import Attempt

DNS_MESSAGE: Final = b"application/dns-message"

MAX_BODY_BYTES: Final = 65_535
"""The longest DNS message."""

MAX_HEADER_BYTES: Final = 16_384
"""What the header fields of one response may take; servers of DNS use some hundreds."""

MAX_INTERIM: Final = 16
"""Interim responses (1xx) to one request."""

MAX_GET_MESSAGE_BYTES: Final = 1_024
"""A longer question is posted even where GET is asked for: servers bound the length of a URL."""

PENDING: Final = 0  # under way
ANSWERED: Final = 1  # the response is complete
UNSERVED: Final = 2  # the server says that it did not look at it
RESET: Final = 3  # ended by the server without a response
OVERSIZE: Final = 4  # given up: the body is longer than any DNS message
MALFORMED: Final = 5  # given up: the response breaks the rules of HTTP
REFUSED: Final = 6  # the server has no room for it now, and did not look at it


class HttpError(RelayError):
    """The server breaks the protocol; nothing more can be made of the connection."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked on a connection."""

    authority: bytes
    """Host, and port where it is not 443, as in the URL."""
    path: bytes
    """Path of the URL, with its query if it has one."""
    get: bool = False
    """Ask by GET where the message is short enough."""

    def get_path(self, message: bytes) -> bytes:
        """Return path and query of a GET (RFC 8484, 4.1.1 and 6: base64url without padding)."""
        joint = b"&dns=" if b"?" in self.path else b"?dns="
        return self.path + joint + urlsafe_b64encode(message).rstrip(b"=")


class Exchange:
    """One request and its response. The header fields that matter are kept, no others.

    `length` is how long the body is to be as its header says: -1 where it says nothing or where the
    session sees to it, -2 where it says no length.

    `window`, `unsent`, `early` and `interim` are HTTP/2's: how much of the body may go now, what
    has not gone, the message where it was sent before the server's settings were known, and how
    many interim responses came.
    """

    __slots__ = (
        "attempt",
        "body",
        "content_type",
        "early",
        "error",
        "interim",
        "length",
        "outcome",
        "status",
        "stream",
        "unsent",
        "window",
    )

    def __init__(self, attempt: Attempt, stream: int = 0) -> None:
        self.attempt = attempt
        self.stream = stream
        self.outcome = PENDING
        self.status = 0
        self.content_type = b""
        self.length = -1
        self.body: bytes | bytearray = b""
        self.error = ""
        self.window = 0
        self.unsent = b""
        self.early = b""
        self.interim = 0

    def __repr__(self) -> str:
        return f"<Exchange {self.stream} outcome={self.outcome} status={self.status}>"

    def add(self, data: bytes) -> bool:
        """Add a piece of the body; False when it gets too long."""
        body = self.body
        if not body:
            self.body = data
            return len(data) <= MAX_BODY_BYTES
        if len(body) + len(data) > MAX_BODY_BYTES:
            return False
        if isinstance(body, bytearray):
            body += data
        else:
            self.body = bytearray(body + data)
        return True


class Session(Protocol):
    """The protocol of one connection, without its socket."""

    closing: bool
    """No further request can be made."""
    ended: list[Exchange]
    """What ended since the caller emptied the list, `outcome` says how."""
    left: list[Attempt]
    """What was asked for earlier and has left since the caller emptied the list."""

    @property
    def room(self) -> bool:
        """Whether a request can be made now."""

    @property
    def held(self) -> int:
        """How many requests are under way, given up or not."""

    @property
    def has_output(self) -> bool:
        """Whether `take` has something."""

    def request(self, attempt: Attempt, message: bytes) -> None:
        """Ask. Only while there is `room`."""

    def receive(self, data: bytes) -> None:
        """Take in bytes of the server. Raises HttpError; `ended` holds what ended before."""

    def receive_end(self) -> None:
        """Take in that the server closed in order; `ended` holds what that completes."""

    def take(self) -> bytes:
        """Return the bytes to be sent, once."""

    def drop_closed(self) -> None:
        """Give up the requests whose attempts are closed."""

    def ping(self) -> bool:
        """Ask for a sign of life; False where the protocol has none."""
