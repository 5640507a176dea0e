"""Messages on a stream: each is preceded by its length in two bytes (RFC 1035, 4.2.2).

Used by TCP and DoT in both directions.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 65_535


def frame(message: bytes) -> bytes:
    """Return the message with its length before it."""
    return len(message).to_bytes(2) + message


class Deframer:
    """Cuts a byte stream into messages, however it was split into segments."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished message is held: 65,536 bytes at most."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Take in a segment; return the messages that it completes."""
        if self._held:
            data = self._held + data
        messages: list[bytes] = []
        position = 0
        size = len(data)
        while position + 2 <= size:
            end = position + 2 + (data[position] << 8 | data[position + 1])
            if end > size:
                break
            messages.append(data[position + 2 : end])
            position = end
        self._held = data[position:]
        return messages
