"""Which errors of a socket are whose fault.

A closed port and a broken connection are the resolver's. Everything else (no route, no buffers, no
descriptors, an interface that went away) is this machine's, and no resolver is blamed for it.
"""

from __future__ import annotations

import errno
import os
import ssl
from typing import Final

from shared.errors import RelayError

RESOLVER_ERRNOS: Final = frozenset(
    (
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EPIPE,
        errno.ETIMEDOUT,
    )
)

PACKET_ERRNOS: Final = frozenset((errno.EMSGSIZE, errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM))
"""One packet could not go; the socket itself is sound."""


class Backoff:
    """Waiting times that double from `first_s` to `most_s`."""

    __slots__ = ("_first_s", "_most_s", "_next_s")

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return how long to wait now; the next time will be twice as long."""
        wait_s = self._next_s
        self._next_s = min(wait_s * 2, self._most_s)
        return wait_s

    def reset(self) -> None:
        """Start over: it worked."""
        self._next_s = self._first_s


class CannotSendFrom(OSError):
    """A socket cannot be bound to the address or interface asked for. The message is for people."""


class DialFailed(RelayError):
    """A connection could not be made. The message is for people.

    `blamed` tells whether it is the resolver's fault, and not this machine's or a proxy's.
    """

    def __init__(self, reason: str, *, blamed: bool) -> None:
        super().__init__(reason)
        self.blamed = blamed


CERTIFICATE_REASONS: Final = {
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate is signed by itself, not by a trusted authority",
    19: "the certificate is not signed by a trusted authority",
    20: "the certificate is not signed by a trusted authority",
    21: "the certificate is not signed by a trusted authority",
    62: "the certificate is for another host",
    64: "the certificate is for another host",
}
"""Results of OpenSSL's verification (X509_V_ERR_*) in words."""

NOT_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"))
"""Reasons of OpenSSL for a handshake whose other side speaks something else."""


def in_words(error: OSError | None, server_name: str = "") -> str:
    """Say in words for people what ended a connection; None is its orderly end."""
    if error is None:
        return "closed the connection unasked"
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = CERTIFICATE_REASONS.get(error.verify_code)
        if reason is None:
            return f"the certificate is not accepted: {error.verify_message}"
        return f"{reason} than {server_name}" if error.verify_code in (62, 64) else reason
    if isinstance(error, ssl.SSLEOFError):
        return "closed the connection during the TLS handshake"
    if isinstance(error, ssl.SSLError):
        if error.reason in NOT_TLS:
            return "does not speak TLS on this port"
        return f"TLS error: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if error.errno is None or error.errno <= 0 or isinstance(error, CannotSendFrom):
        return error.strerror or str(error)
    return os.strerror(error.errno)  # uvloop puts addresses into its errors
