"""TLS towards resolvers: contexts, and the handshake on a connected socket.

Contexts are cached, since reading the system's authorities takes 20 ms. A session is resumed only
under the context that it came from, and only for the resolver that it came from: the resumed
handshake does not look at the certificate again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

HANDSHAKE_BYTES: Final = 16_384


@dataclass(slots=True)
class TlsLayer:
    """TLS of one connection with the buffers between it and its socket."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


def tls_context(ca_file: str, insecure: bool, alpn: tuple[str, ...]) -> ssl.SSLContext:
    """Return the context for these settings; a changed file is read anew. Raises OSError."""
    changed_ns = os.stat(ca_file).st_mtime_ns if ca_file and not insecure else 0
    return _context(ca_file, changed_ns, insecure, alpn)


@lru_cache(maxsize=64)
def _context(
    ca_file: str, changed_ns: int, insecure: bool, alpn: tuple[str, ...]
) -> ssl.SSLContext:
    if insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


async def handshake(
    loop: asyncio.AbstractEventLoop,
    sock: socket.socket,
    context: ssl.SSLContext,
    server_name: str,
    session: ssl.SSLSession | None,
    turns: asyncio.Lock,
) -> TlsLayer:
    """Shake hands on a connected socket. Raises OSError, of which SSLError is one.

    Handshakes that share `turns` compute one after another, and let the loop do its other work in
    between: each takes some 2 ms, and a pool of many resolvers may begin hundreds at once.
    """
    incoming = ssl.MemoryBIO()
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=server_name, session=session)
    while True:
        try:
            complete = await _step(tls, turns)
        except ssl.SSLError:
            with suppress(OSError):  # a server that is gone needs no reason
                await _send(loop, sock, outgoing)
            raise
        await _send(loop, sock, outgoing)
        if complete:
            return TlsLayer(tls, incoming, outgoing)
        data = await loop.sock_recv(sock, HANDSHAKE_BYTES)
        if not data:
            raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "end of stream")
        incoming.write(data)


async def _step(tls: ssl.SSLObject, turns: asyncio.Lock) -> bool:
    """Go as far as what has come allows; tell whether that is the end. Raises SSLError."""
    async with turns:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        else:
            return True
        finally:
            await asyncio.sleep(0)


async def _send(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, outgoing: ssl.MemoryBIO
) -> None:
    data = outgoing.read()
    if data:
        await loop.sock_sendall(sock, data)
