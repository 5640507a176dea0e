"""The frames of HTTP/2 as bytes (RFC 9113), and what a client says first."""

from __future__ import annotations

from struct import Struct
from typing import Final

from workers.transports.http_exchange import MAX_BODY_BYTES, MAX_HEADER_BYTES, HttpError

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

ERROR_NAMES: Final = (
    "no error",
    "protocol error",
    "internal error",
    "flow control error",
    "settings timeout",
    "stream closed",
    "frame size error",
    "refused stream",
    "cancel",
    "compression error",
    "connect error",
    "enhance your calm",
    "inadequate security",
    "HTTP/1.1 required",
)

MAX_FRAME_BYTES: Final = 16_384
"""Payload of one frame, in both directions: what every peer must take, and all we allow."""

MAX_STREAM_ID: Final = 2**31 - 1
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
STREAM_WINDOW: Final = 2 * (MAX_BODY_BYTES + 1)
CONNECTION_WINDOW: Final = 4 << 20

HEAD: Final = Struct(">HBBBI")
SETTING: Final = Struct(">HI")
WORD: Final = Struct(">I")
HEAD_BYTES: Final = 9

PING_DATA: Final = bytes(8)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame; its payload is at most `MAX_FRAME_BYTES` long."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, WORD.pack(size))


PREFACE: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + settings(
        {
            ENABLE_PUSH: 0,
            INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
    )
    + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
)


class Http2Error(HttpError):
    """The server breaks HTTP/2. `code` is told to it."""

    def __init__(self, what: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(f"breaks HTTP/2: {what}")
        self.code = code


def error_name(code: int) -> str:
    """Return an error code of HTTP/2 in words."""
    return ERROR_NAMES[code] if code < len(ERROR_NAMES) else f"error {code}"


def unpadded(payload: bytes) -> bytes:
    """Return what a padded frame carries."""
    if not payload or payload[0] >= len(payload):
        raise Http2Error("more padding than frame")
    return payload[1 : len(payload) - payload[0]]
