"""A small DoH server over plain HTTP/1.1 that asks one DNS server over UDP.

    python -m tests.rig.doh_backend 127.0.0.1:8053 127.0.0.1:5353

nginx stands in front of it and speaks TLS, HTTP/2 or only HTTP/1.1, and all the wrong answers. It
serves POST and GET as RFC 8484 has them and holds no opinion about the DNS in them.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import socket
from typing import cast

import uvloop
from aiohttp import web

from tests.rig.net import Address

_TYPE = "application/dns-message"
_TIMEOUT_S = 10.0
_BUFFER_BYTES = 4 << 20


class Asker(asyncio.DatagramProtocol):
    """One UDP socket to the server; questions in flight by the ID they have on it."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._next_id = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        waiting = self._waiting.pop(int.from_bytes(data[:2], "big"), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(data)

    def error_received(self, exc: Exception) -> None:
        """The server is not there just now: the question runs into its time-out."""

    async def ask(self, wire: bytes) -> bytes:
        """Return the reply, under the ID of `wire`."""
        assert self._transport is not None
        self._next_id = number = (self._next_id + 1) & 0xFFFF
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._transport.sendto(number.to_bytes(2, "big") + wire[2:])
        async with asyncio.timeout(_TIMEOUT_S):
            return wire[:2] + (await waiting)[2:]


async def _serve(listen: Address, backend: Address) -> None:
    loop = asyncio.get_running_loop()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    udp.setblocking(False)
    udp.connect(backend)
    _, asker = await loop.create_datagram_endpoint(Asker, sock=udp)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            if request.content_type != _TYPE:
                return web.Response(status=415)
            wire = await request.read()
        else:
            text = request.query.get("dns", "")
            try:
                wire = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            except binascii.Error:
                return web.Response(status=400)
        if len(wire) < 12:
            return web.Response(status=400)
        try:
            return web.Response(body=await asker.ask(wire), content_type=_TYPE)
        except TimeoutError:
            return web.Response(status=504)

    server = web.Server(answer, keepalive_timeout=3600.0)
    await loop.create_server(server, listen.host, listen.port, backlog=1024)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="DoH over plain HTTP/1.1, for nginx to front.")
    parser.add_argument("listen", type=Address.parse)
    parser.add_argument("backend", type=Address.parse)
    given = parser.parse_args()
    uvloop.run(_serve(given.listen, given.backend))


if __name__ == "__main__":
    main()
