"""What the supervisor tells a worker: settings of the pools and the roster of their resolvers.

Owner: the supervisor builds these, a worker only reads them. They travel as JSON over the channel
(see `workers.channel`), so every field is a plain number, string, boolean or list.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Settings of one pool after profile, file and flags are merged. Durations in seconds."""

    name: str
    tunnel: str = "generic"
    """Profile name: generic, dnstt, masterdns, soar, iodine, dns2tcp."""
    load_balance: str = "auto"
    """auto, roundrobin, weighted or lowest_latency."""
    deadline_s: float = 5.0
    """The longest a query may take over all its attempts."""
    per_attempt_s: float = 2.0
    """The longest one attempt may take."""
    probe_interval_s: float = 5.0
    """How often a down resolver is probed while there is no traffic."""
    down_after: int = 8
    """Failures in a row that set a resolver down."""
    duplicate: int = 1
    """How many times a query may be sent in all."""
    token_wait_s: float = 0.3
    """How long a query may wait for room under the ceilings."""
    hedge_only_losing: bool = False
    """Send a late query elsewhere only when it is taken for lost, not when it may be held."""
    silent_failure: bool = False
    """When everything fails: say nothing (true) or answer SERVFAIL (false)."""
    cut_to_client_size: bool = True
    """Truncate (TC) a stream-fetched reply that the client's advertised size cannot hold."""
    max_pending: int = 50_000
    """Queries of this pool that one worker holds open at most; more are refused at once."""
    max_connections: int = 1_000
    """TCP clients of this pool that one worker serves at most."""
    tcp_idle_s: float = 30.0
    """A TCP client with nothing in flight is closed after this long."""
    probe_name: str = "example.com"
    """Question name of a probe of the relay's own."""
    own_label: str = ""
    """What the relay's own questions begin with, see `shared.own_question`; empty: it asks none."""
    own_proof: str = ""
    """What they are answered with. Both are the same in all pools of a relay."""

    @property
    def attempt_limit_s(self) -> float:
        """How long an attempt really may take: it ends with its query."""
        return min(self.per_attempt_s, self.deadline_s)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> PoolSettings:
        """Build from what `to_json` returned."""
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class ResolverEntry:
    """One resolver of a roster. The slot is its row on the board, the same in every worker."""

    slot: int
    scheme: str
    """udp, tcp, dot or https."""
    host: str
    """Where to connect: an IPv4 or IPv6 literal, the latter without brackets. With `via` it may be
    a name, which the proxy resolves."""
    port: int
    name: str
    """Canonical address as shown to people, such as `udp://8.8.8.8:53`."""
    weight: int = 1
    more_hosts: tuple[str, ...] = ()
    """Further addresses of the same server, tried in turn when a dial fails."""
    server_name: str = ""
    """Whom the certificate must name: a host name or an IP literal; empty for `host`."""
    ca_file: str = ""
    """A PEM file of the authorities to trust; empty for the system's."""
    insecure: bool = False
    """Take any certificate."""
    path: str = ""
    """Path of the URL of a DoH resolver."""
    get: bool = False
    """Ask by GET instead of POST (DoH)."""
    via: str = ""
    """Proxy to go through, `socks5://user:pass@host:port` or `http://...`; not for udp."""
    bind: str = ""
    """Source address or interface name to send from; empty for the kernel's choice."""
    longest_name: int = 0
    """Octets of the longest question name that it lets through, without the last dot; 0: not known.
    253 is no limit."""
    largest_reply: int = 0
    """Octets of the largest reply that came through it whole; 0: not known. From 4,096 on, the
    largest that checks ask for, there is no limit."""

    def is_same_server(self, other: ResolverEntry) -> bool:
        """Tell whether both are reached alike; what is known of their limits may differ."""
        return self == replace(
            other, longest_name=self.longest_name, largest_reply=self.largest_reply
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ResolverEntry:
        """Build from what `to_json` returned; JSON makes lists of tuples."""
        return cls(**{**fields, "more_hosts": tuple(fields.get("more_hosts", ()))})
