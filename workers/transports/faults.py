"""Which errors of a socket are whose fault, and their words for people.

A closed port and a broken connection are the resolver's. Everything else (no route, no buffers, no
descriptors, an interface that went away) is this machine's, and no resolver is blamed for it.

The words are the relay's own, or the system's for a number. What a server or a proxy says is not in
them, nor what a library makes of it: it may be a question thrown back, or made for a terminal.
"""

from __future__ import annotations

import errno
import os
import re
import socket
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
    """A socket cannot be bound to the address or interface asked for. `words` are for people."""

    def __init__(self, number: int | None, words: str) -> None:
        super().__init__(number, words)
        self.words = words


class Floods(OSError):
    """The server sends without end what answers nothing."""


class DialFailed(RelayError):
    """A connection could not be made. The message is for people.

    `blamed` tells whether it is the resolver's fault, and not this machine's or a proxy's.
    """

    def __init__(self, reason: str, *, blamed: bool) -> None:
        super().__init__(reason)
        self.blamed = blamed


FLOODS: Final = "floods its connections with what answers nothing"

CERTIFICATE_REASONS: Final = {
    2: "the certificate is not signed by a trusted authority",
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate is signed by itself, not by a trusted authority",
    19: "the certificate is not signed by a trusted authority",
    20: "the certificate is not signed by a trusted authority",
    21: "the certificate is not signed by a trusted authority",
    23: "the certificate was revoked",
    24: "the certificate is signed by one that is no authority",
    26: "the certificate is not for servers",
    62: "the certificate is for another host",
    64: "the certificate is for another host",
    66: "the key of the certificate is too weak",
    67: "the key of an authority of the certificate is too weak",
    68: "a signature of the certificate is too weak",
}
"""Results of OpenSSL's verification (X509_V_ERR_*) in words."""

NOT_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"))
"""Reasons of OpenSSL for a handshake whose other side speaks something else."""

TOO_OLD: Final = "speaks no version of TLS from 1.2 on"

TLS_REASONS: Final = {
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "refuses the TLS handshake",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "wants a certificate of ours in the TLS handshake",
    "TLSV1_ALERT_PROTOCOL_VERSION": TOO_OLD,
    "TLSV1_UNRECOGNIZED_NAME": "refuses the TLS handshake for this host",
    "UNSUPPORTED_PROTOCOL": TOO_OLD,
}
"""Reasons of OpenSSL in words, where its own would say little to most people."""

OPENSSL_REASON: Final = re.compile(r"[A-Z0-9_]{3,64}")
"""Names in OpenSSL's table of errors."""

WRONG_LOGIN: Final = 407

SOCKS_REASONS: Final = {
    1: "general failure",
    2: "its rules do not allow it",
    3: "the resolver's network cannot be reached",
    4: "the resolver cannot be reached",
    5: "the resolver refused the connection",
    6: "the resolver is too far away",
    7: "it makes no connections",
    8: "it does not take this kind of address",
}
"""Reply codes of SOCKS5 (RFC 1928, 6) in words."""

PROXY_REASONS: Final = {
    "Username and password authentication failure": "the user name or password is wrong",
    "Invalid authentication response": "the user name or password is wrong",
    "No acceptable authentication methods were offered": "it wants another way to log in",
    "Connection closed unexpectedly": "nothing, and closed the connection",
}
"""What python-socks says where no code came, in words. Its other texts quote what came."""


def in_words(error: OSError | None, server_name: str = "") -> str:
    """Say in words for people what ended a connection; None is its orderly end."""
    if error is None:
        return "closed the connection unasked"
    if isinstance(error, Floods):
        return FLOODS
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = CERTIFICATE_REASONS.get(error.verify_code)
        if reason is None:
            return f"the certificate is not accepted: reason {int(error.verify_code)} of OpenSSL"
        return f"{reason} than {server_name}" if error.verify_code in (62, 64) else reason
    if isinstance(error, ssl.SSLEOFError):
        return "closed the connection during the TLS handshake"
    if isinstance(error, ssl.SSLError):
        if error.reason in NOT_TLS:
            return "does not speak TLS on this port"
        if error.reason in TLS_REASONS:
            return TLS_REASONS[error.reason]
        if OPENSSL_REASON.fullmatch(error.reason or ""):
            return f"TLS error: {error.reason.lower().replace('_', ' ')}"
        return "TLS error"
    if isinstance(error, CannotSendFrom):
        return error.words
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return "timed out" if isinstance(error, TimeoutError) else "the connection broke"


def proxy_in_words(code: int | None, text: str, *, is_http: bool) -> str:
    """Say in words for people what a proxy said, given its code or the library's text instead."""
    if code is None:
        words = PROXY_REASONS.get(text)
        return f"the proxy says: {words}" if words else "the proxy's reply makes no sense"
    if not is_http:
        return f"the proxy says: {SOCKS_REASONS.get(code, f'code {int(code)}')}"
    if code == WRONG_LOGIN:
        return f"the proxy says: HTTP {code}, the user name or password is wrong"
    if 100 <= code <= 999:
        return f"the proxy says: HTTP {int(code)}"
    return "the proxy's reply makes no sense"
