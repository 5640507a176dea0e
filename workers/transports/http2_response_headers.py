"""The header blocks of a server's responses: put together, decompressed, read (RFC 9113, 4.3).

Owner: `http2.Http2Session`. A block is at most `MAX_HEADER_BYTES` long and has at most `MAX_FIELDS`
fields, in a HEADERS frame and at most `MAX_CONTINUATIONS` others. Every block is decompressed, also
one of a stream that is over, since its fields may enter the table that later ones refer to.
"""

from __future__ import annotations

from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError

from workers.transports.http2_frames import (
    COMPRESSION_ERROR,
    END_HEADERS,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    PADDED,
    PRIORITY,
    Http2Error,
    unpadded,
)
from workers.transports.http_exchange import MAX_HEADER_BYTES

MAX_FIELDS: Final = 100
"""Servers of DNS say ten to thirty. A field may be one byte, and takes some 6 µs all the same."""

MAX_CONTINUATIONS: Final = 8
MAX_LENGTH_DIGITS: Final = 9

Fields = list[tuple[bytes, bytes]]


class ResponseHeaders:
    """Reads the blocks of one connection; every block that comes must be read, in order."""

    __slots__ = ("_block", "_decoder", "_parts", "flags", "stream")

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._block = bytearray()
        self._parts = 0
        self.flags = 0
        """Of the HEADERS frame that began the latest block of several frames."""
        self.stream: int | None = None
        """Whose block is not complete: nothing but a CONTINUATION of this stream may come now."""

    def begin(self, stream: int, flags: int, payload: bytes) -> Fields | None:
        """Take in a HEADERS frame; return its fields, None where more frames are to come.

        Raises Http2Error, as `go_on` does.
        """
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & PRIORITY:
            if len(payload) < 5:
                raise Http2Error("a frame is too short", FRAME_SIZE_ERROR)
            payload = payload[5:]
        if flags & END_HEADERS:
            return self._decoded(payload)
        self._block = bytearray(payload)
        self._parts = 0
        self.stream = stream
        self.flags = flags
        return None

    def go_on(self, flags: int, payload: bytes) -> Fields | None:
        """Take in a CONTINUATION frame; return the fields once they are complete."""
        if self.stream is None:
            raise Http2Error("header fields without a beginning")
        block = self._block
        block += payload
        self._parts += 1
        if len(block) > MAX_HEADER_BYTES or self._parts > MAX_CONTINUATIONS:
            raise Http2Error("header fields are too long", ENHANCE_YOUR_CALM)
        if not flags & END_HEADERS:
            return None
        self.stream = None
        self._block = bytearray()
        return self._decoded(bytes(block))

    def _decoded(self, block: bytes) -> Fields:
        try:
            fields: Fields = list(self._decoder.decode(block, raw=True))
        except (HPACKError, IndexError, ValueError) as error:
            raise Http2Error("header fields cannot be decoded", COMPRESSION_ERROR) from error
        if len(fields) > MAX_FIELDS:
            raise Http2Error("too many header fields", ENHANCE_YOUR_CALM)
        return fields


def read_fields(fields: Fields) -> tuple[bytes, bytes, int]:
    """Return status, content type and length of the body; b"" where a text is not said.

    The length is -1 where it is not said, -2 where what is said is no length.
    """
    status = b""
    content_type = b""
    length = -1
    for name, value in fields:
        if name == b":status":
            status = value
        elif name == b"content-type":
            content_type = value
        elif name == b"content-length":
            length = int(value) if value.isdigit() and len(value) <= MAX_LENGTH_DIGITS else -2
    return status, content_type, length
