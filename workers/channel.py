"""The channel between the supervisor and a worker: JSON objects, one a line, over a socket pair.

Both ends use this class. Supervisor to worker: `setup` (index, settings and descriptors of every
pool), `roster` (the whole list of a pool's resolvers), `drain`. Worker to supervisor: `ready`,
`drained`, `fault` (what keeps a resolver from being used). The end of the stream means that the
other process is gone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import orjson

LINE_LIMIT_BYTES = 64 << 20
"""A roster of tens of thousands of resolvers fits."""


class Channel:
    """One end of a channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Channel:
        """Take over one end of a socket pair."""
        reader, writer = await asyncio.open_connection(sock=sock, limit=LINE_LIMIT_BYTES)
        return cls(reader, writer)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; it is dropped when the other process is gone."""
        if not self._writer.is_closing():
            self._writer.write(orjson.dumps(message) + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None when the other process is gone."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = orjson.loads(line)
        return message

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self.receive()) is not None:
            yield message

    async def flush(self) -> None:
        """Wait until what was sent is with the kernel."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        """Close this end."""
        self._writer.close()
