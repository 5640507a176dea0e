"""A plain round-robin forwarder, the relay's yardstick: `python -m bench.tunnels.forwarder`.

The next question goes to the next resolver, and whatever comes back goes to who asked. One socket
per resolver; no health, no ceilings, no second attempt. It changes the message ID only, so that
two clients may use the same one.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import selectors
import socket
from collections.abc import Sequence
from typing import Any

from tests.rig.net import Address, family_of

_RECEIVE_BYTES = 65_535
_BUFFER_BYTES = 4 << 20
_BURST = 64
_IDS = 65_536


class Upstream:
    """One resolver: its socket, and who asked what is open there."""

    def __init__(self, address: Address) -> None:
        self.socket = _udp_socket(address)
        self.socket.connect(address)
        self._asked: dict[bytes, tuple[bytes, Any]] = {}
        self._number = 0

    def ask(self, wire: bytes, client: Any) -> None:
        """Send a question on; an older one with the same number is forgotten."""
        self._number = (self._number + 1) % _IDS
        number = self._number.to_bytes(2, "big")
        self._asked[number] = wire[:2], client
        with contextlib.suppress(OSError):  # full or refused: lost, as on any network
            self.socket.send(number + wire[2:])

    def hand_back(self, listener: socket.socket) -> None:
        """Give the answers that have come to those who asked."""
        for _ in range(_BURST):
            try:
                wire = self.socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error about an earlier question
            if asked := self._asked.pop(wire[:2], None):
                number, client = asked
                with contextlib.suppress(OSError):
                    listener.sendto(number + wire[2:], client)


def forward(listen: Address, resolvers: Sequence[Address]) -> None:
    """Forward until killed."""
    listener = _udp_socket(listen)
    listener.bind(listen)
    upstreams = [Upstream(each) for each in resolvers]
    turns = itertools.cycle(upstreams)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    for upstream in upstreams:
        selector.register(upstream.socket, selectors.EVENT_READ, upstream)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                key.data.hand_back(listener)
                continue
            for _ in range(_BURST):
                try:
                    wire, client = listener.recvfrom(_RECEIVE_BYTES)
                except BlockingIOError:
                    break
                except OSError:
                    continue  # an ICMP error about an earlier answer
                next(turns).ask(wire, client)


def _udp_socket(address: Address) -> socket.socket:
    udp = socket.socket(family_of(address.host), socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    udp.setblocking(False)
    return udp


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tunnels.forwarder")
    parser.add_argument("listen", type=Address.parse, metavar="HOST:PORT")
    parser.add_argument("resolvers", type=Address.parse, nargs="+", metavar="RESOLVER:PORT")
    given = parser.parse_args()
    forward(given.listen, given.resolvers)


if __name__ == "__main__":
    main()
