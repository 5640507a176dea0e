"""Dialling a resolver: its addresses in turn, from where `bind` says, through the proxy of `via`.

Owner: the stream transport of the resolver, which makes one dial at a time. What comes out is a
channel, TCP or TLS, or a `DialFailed` with the reason in words. Nothing is left open after a
failure or a cancelled dial.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from python_socks import ProxyError
from python_socks.async_.asyncio import Proxy

from workers.settings import ResolverEntry
from workers.transports.channel import PlainChannel, TlsChannel
from workers.transports.connection import Channel
from workers.transports.faults import (
    RESOLVER_ERRNOS,
    CannotSendFrom,
    DialFailed,
    in_words,
    proxy_in_words,
)
from workers.transports.tls import handshake, tls_context

if TYPE_CHECKING:
    from workers.pool import Pool

DIAL_TIMEOUT_S: Final = 5.0
"""For one address, TLS handshake and proxy included."""

FURTHER_TIMEOUT_S: Final = 2.0
"""... while there is another address to try."""

ADDRESSES_A_DIAL: Final = 3
"""Addresses tried in one dial; the next dial goes on with the next."""

LOOKS: Final = 8
LOOK_S: Final = 300.0
"""Sessions of TLS are looked at so often in a row, and then once in so long. At every look Python
(3.11 to 3.13 at least) makes a copy of 6 kB that it never frees: a server that resumes nothing and
closes every connection would fill the memory. What is at hand serves until a server refuses it."""

SECURE: Final = frozenset(("dot", "https"))

UNREACHED_BY_PROXY: Final = frozenset((3, 4, 5, 6, 502, 503, 504))
"""Reply codes of SOCKS5 and of HTTP with which a proxy says that the resolver cannot be reached."""


class Dialler:
    """Makes the connections to one resolver."""

    def __init__(self, pool: Pool, entry: ResolverEntry, alpn: tuple[str, ...]) -> None:
        self._pool = pool
        self._entry = entry
        self._alpn = alpn
        self._hosts = [entry.host, *entry.more_hosts]
        self._session: ssl.SSLSession | None = None
        self._session_context: ssl.SSLContext | None = None
        self._look_at = -inf
        if entry.scheme in SECURE:
            # Read the authorities now rather than between queries; a fault is told at the dial.
            with suppress(OSError):
                tls_context(entry.ca_file, entry.insecure, alpn)

    def remember(self, channel: Channel) -> None:
        """Keep the TLS session of a connection that served, for the next handshakes.

        One that was itself resumed has nothing new. See `LOOKS` for the rest.
        """
        if not isinstance(channel, TlsChannel) or channel.resumed:
            return
        look_at = max(self._look_at, monotonic() - LOOKS * LOOK_S) + LOOK_S
        if look_at <= monotonic():
            self._look_at = look_at
            self._session = channel.session
            self._session_context = channel.context

    async def dial(self, timeout_s: float | None = None) -> PlainChannel:
        """Return a connection to the first address that gives one. Raises DialFailed.

        `timeout_s`, DIAL_TIMEOUT_S by default, is for one address; it gets less while there is
        another one to try.
        """
        if timeout_s is None:
            timeout_s = DIAL_TIMEOUT_S
        further_s = min(FURTHER_TIMEOUT_S, timeout_s)
        hosts = self._hosts
        failure: DialFailed | None = None
        for left in range(min(len(hosts), ADDRESSES_A_DIAL), 0, -1):
            try:
                return await self._dial(hosts[0], timeout_s if left == 1 else further_s)
            except DialFailed as error:
                if failure is None or not failure.blamed:
                    failure = error
                hosts.append(hosts.pop(0))
        assert failure is not None
        self._session = None
        try:
            raise failure
        finally:
            del failure  # it knows this frame, and the frame the whole handshake

    async def _dial(self, host: str, timeout_s: float) -> PlainChannel:
        way = "connection through the proxy" if self._entry.via else "connection"
        doing = way
        try:
            async with asyncio.timeout(timeout_s):
                sock = await self._connect(host)
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if self._entry.scheme not in SECURE:
                        return PlainChannel(self._pool, sock)
                    doing = "TLS handshake"
                    return await self._secure(sock)
                except BaseException:
                    sock.close()
                    raise
        except TimeoutError as error:
            blamed = doing != way or not self._entry.via
            raise DialFailed(f"{doing} timed out", blamed=blamed) from error
        except ssl.SSLError as error:
            raise DialFailed(in_words(error, self._server_name), blamed=True) from error
        except OSError as error:
            reason = in_words(error) + (" during the TLS handshake" if doing != way else "")
            raise DialFailed(reason, blamed=error.errno in RESOLVER_ERRNOS) from error
        except ValueError as error:  # what the configuration let through
            raise DialFailed("cannot be dialled: its host is no host", blamed=False) from error

    @property
    def _server_name(self) -> str:
        return self._entry.server_name or self._entry.host

    async def _connect(self, host: str) -> socket.socket:
        entry = self._entry
        if entry.via:
            return await self._connect_via(host)
        return await connect(self._pool.loop, host, entry.port, entry.bind)

    async def _connect_via(self, host: str) -> socket.socket:
        entry = self._entry
        way = cast(Any, _WayToProxy(self._pool, entry.bind))
        proxy = Proxy.from_url(entry.via, loop=self._pool.loop, forward=way)
        try:
            return await proxy.connect(host, entry.port, timeout=2 * DIAL_TIMEOUT_S)
        except ProxyError as error:
            code = error.error_code
            reason = proxy_in_words(code, str(error), is_http=entry.via.startswith("http:"))
            raise DialFailed(reason, blamed=code in UNREACHED_BY_PROXY) from error
        except DialFailed:
            raise
        except OSError as error:
            reason = f"lost the connection to the proxy: {in_words(error)}"
            raise DialFailed(reason, blamed=False) from error
        except Exception as error:  # a proxy's reply that the library chokes on
            raise DialFailed("the proxy's reply makes no sense", blamed=False) from error

    async def _secure(self, sock: socket.socket) -> TlsChannel:
        entry = self._entry
        try:
            context = tls_context(entry.ca_file, entry.insecure, self._alpn)
        except OSError as error:
            reason = f"cannot read the authorities in {entry.ca_file}: {in_words(error)}"
            raise DialFailed(reason, blamed=False) from error
        session = self._session if self._session_context is context else None
        pool = self._pool
        layer = await handshake(
            pool.loop, sock, context, self._server_name, session, pool.handshakes
        )
        return TlsChannel(pool, sock, layer)


class _WayToProxy:
    """Connects to a proxy, from where `bind` says; python-socks calls it for its first hop."""

    def __init__(self, pool: Pool, bind: str) -> None:
        self._loop = pool.loop
        self._bind = bind

    async def connect(self, dest_host: str, dest_port: int, **_: object) -> socket.socket:
        try:
            found = await self._loop.getaddrinfo(dest_host, dest_port, type=socket.SOCK_STREAM)
            return await connect(self._loop, str(found[0][4][0]), dest_port, self._bind)
        except OSError as error:
            reason = f"cannot reach the proxy {dest_host}:{dest_port}: {in_words(error)}"
            raise DialFailed(reason, blamed=False) from error


async def connect(
    loop: asyncio.AbstractEventLoop, host: str, port: int, bind: str
) -> socket.socket:
    """Return a TCP socket connected to an address. Raises OSError."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        bind_source(sock, bind)
        await loop.sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def bind_source(sock: socket.socket, bind: str) -> None:
    """Have a socket send from an address or interface of this machine; "" leaves it to the kernel.

    Raises CannotSendFrom, an OSError with words for people.
    """
    if not bind:
        return
    try:
        try:
            address = ip_address(bind)
        except ValueError:
            kind = "interface"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bind.encode())
        else:
            kind = "address"
            if (address.version == 6) != (sock.family == socket.AF_INET6):
                raise CannotSendFrom(None, f"the resolver's address is not IPv{address.version}")
            sock.bind((bind, 0))
    except OSError as error:
        words = f"cannot send from {kind} {bind}: {in_words(error)}"
        raise CannotSendFrom(error.errno, words) from error
