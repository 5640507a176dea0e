"""dnsdist in the resolver's place and nsd as the authoritative server.

Both answer questions as they come: no cache, no health checks that would take a backend out of
use, no response rate limiting unless a test asks for it.
"""

from __future__ import annotations

import json
import os
import pwd
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rig.net import Address, Namespace, free_address, listening, program
from tests.rig.process import Program
from tests.rig.zone import Zone


@dataclass(frozen=True, slots=True)
class Limits:
    """What makes a resolver of the rig less than perfect."""

    rate_qps: int | None = None
    """Queries per second from one client address that it answers; None for any number."""
    burst: int | None = None
    """Queries that may come at once within the rate; the rate itself when not given."""
    over_rate: str = "refuse"
    """What happens to the others: refuse, servfail or drop."""
    delay_ms: int = 0
    """Added to every UDP answer."""
    loss: float = 0.0
    """Share of the questions that vanish, 0 to 1."""


_OVER_RATE = {
    "refuse": "RCodeAction(DNSRCode.REFUSED)",
    "servfail": "RCodeAction(DNSRCode.SERVFAIL)",
    "drop": "DropAction()",
}


_WEB_KEY = "rig"  # of a statistics page on loopback


class Dnsdist(Program):
    """A resolver without a cache: hands every question to one of its backends, in turn.

    UDP replies above 4,160 bytes do not fit its receive buffer and are lost.
    """

    def __init__(
        self,
        backends: Sequence[Address],
        *,
        workdir: Path,
        address: Address | None = None,
        limits: Limits | None = None,
        namespace: Namespace | None = None,
        name: str = "dnsdist",
    ) -> None:
        self.address = address or free_address()
        config = workdir / f"{name}-{self.address.port}-{self.address.host.replace(':', '.')}.conf"
        self._statistics = free_address()
        lines = _dnsdist_config(self.address, backends, limits or Limits())
        lines += [
            f'webserver("{self._statistics}")',
            f'setWebserverConfig({{password="{_WEB_KEY}", apiKey="{_WEB_KEY}"}})',
        ]
        config.write_text("\n".join(lines) + "\n")
        command: list[str | Path] = [program("dnsdist"), "--supervised", "--disable-syslog"]
        command += ["-C", config]
        super().__init__(name, namespace.wrap(command) if namespace else command, workdir=workdir)

    def is_ready(self) -> bool:
        return listening(self.pid, self.address)

    def counters(self) -> dict[str, int]:
        """Its own counters by dnsdist's names: queries, responses, rule-refused, rule-drop..."""
        request = urllib.request.Request(
            f"http://{self._statistics}/jsonstat?command=stats", headers={"X-API-Key": _WEB_KEY}
        )
        with urllib.request.urlopen(request, timeout=5.0) as reply:
            counters: dict[str, int] = json.load(reply)
        return counters


def _dnsdist_config(address: Address, backends: Sequence[Address], limits: Limits) -> list[str]:
    lines = [
        f'setLocal("{address}")',
        'setACL({"0.0.0.0/0", "::/0"})',
        'setSecurityPollSuffix("")',
        "setMaxUDPOutstanding(65535)",
        "setServerPolicy(roundrobin)",
    ]
    # setUp: in use whatever the health checks say, so that it goes on asking a silent backend.
    lines += [f'newServer({{address="{backend}"}}):setUp()' for backend in backends]
    if limits.rate_qps is not None:
        burst = limits.burst if limits.burst is not None else limits.rate_qps
        rule = f"MaxQPSIPRule({limits.rate_qps}, 32, 64, {burst})"
        lines.append(f"addAction({rule}, {_OVER_RATE[limits.over_rate]})")
    if limits.loss:
        lines.append(f"addAction(ProbaRule({limits.loss}), DropAction())")
    if limits.delay_ms:
        lines.append(f"addAction(AllRule(), DelayAction({limits.delay_ms}))")
    return lines


class Nsd(Program):
    """An authoritative server; UDP answers as large as the client's advertised size allows."""

    def __init__(
        self,
        zones: Sequence[Zone],
        *,
        workdir: Path,
        addresses: Sequence[Address] = (),
        edns_size_bytes: int = 65_535,
        name: str = "nsd",
    ) -> None:
        self.addresses = list(addresses) or [free_address()]
        self.address = self.addresses[0]
        folder = workdir / f"{name}-{self.address.port}"
        folder.mkdir()
        for zone in zones:
            (folder / zone.origin).write_text(zone.text())
        config = folder / "nsd.conf"
        config.write_text(self._config(folder, zones, edns_size_bytes))
        super().__init__(name, [program("nsd"), "-d", "-c", config], workdir=workdir)

    def _config(self, folder: Path, zones: Sequence[Zone], edns_size_bytes: int) -> str:
        lines = ["server:"]
        lines += [f"  ip-address: {host}@{port}" for host, port in self.addresses]
        lines += [
            f"  username: {pwd.getpwuid(os.getuid()).pw_name}",
            f'  zonesdir: "{folder}"',
            f'  zonelistfile: "{folder}/zone.list"',
            f'  xfrdir: "{folder}"',
            '  database: ""',
            '  xfrdfile: ""',
            '  pidfile: ""',
            "  server-count: 1",
            f"  ipv4-edns-size: {edns_size_bytes}",
            f"  ipv6-edns-size: {edns_size_bytes}",
            "  tcp-count: 500",
            "  minimal-responses: yes",
            "  rrl-ratelimit: 0",
            "remote-control:",
            "  control-enable: no",
        ]
        for zone in zones:
            lines += ["zone:", f'  name: "{zone.origin}"', f'  zonefile: "{zone.origin}"']
        return "\n".join(lines) + "\n"

    def is_ready(self) -> bool:
        bound = all(listening(self.pid, address) for address in self.addresses)
        return bound and "nsd started" in self.log_text()
