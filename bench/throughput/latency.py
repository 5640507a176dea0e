"""Round trips at a fixed rate from one socket, as a tunnel client has it.

Sends on schedule whether or not answers come (open loop), so that a slow subject cannot slow the
question rate down and hide. The time of a query runs from its real sending.
"""

from __future__ import annotations

import gc
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.rig.clients import udp_client
from tests.rig.net import Address
from tests.rig.wire import with_id

_LAST_ANSWERS_S = 1.0
_IDS = 65_536


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Sorted round trips of one run, in seconds."""

    sorted_s: Sequence[float]
    lost: int

    def quantile_s(self, share: float) -> float:
        """The round trip that `share` of the queries did not exceed."""
        return self.sorted_s[min(len(self.sorted_s) - 1, int(share * len(self.sorted_s)))]


def measure_round_trips(
    server: Address, queries: Sequence[bytes], *, rate_qps: float, seconds: float
) -> RoundTrips:
    """Ask `server` at `rate_qps` for `seconds`, the queries in turn."""
    count = int(rate_qps * seconds)
    assert count <= _IDS, "IDs would repeat"
    wires = [with_id(queries[n % len(queries)], n) for n in range(count)]
    sent_at = [0.0] * count
    trips: list[float] = []
    gc.collect()
    gc.disable()
    try:
        with udp_client(server) as client:
            client.setblocking(False)
            started_at = time.monotonic()
            sent = 0
            while len(trips) < count:
                now = time.monotonic()
                if sent < count and now >= started_at + sent / rate_qps:
                    sent_at[sent] = time.monotonic()
                    client.send(wires[sent])
                    sent += 1
                    continue
                if sent < count:
                    until = started_at + sent / rate_qps
                else:
                    until = sent_at[-1] + _LAST_ANSWERS_S
                    if now > until:
                        break
                # select() waits with the resolution of the kernel's timers, poll() in milliseconds.
                if not select.select([client], [], [], max(0.0, until - now))[0]:
                    continue
                reply = client.recv(65_535)
                trips.append(time.monotonic() - sent_at[int.from_bytes(reply[:2], "big")])
    finally:
        gc.enable()
    return RoundTrips(sorted(trips), count - len(trips))
