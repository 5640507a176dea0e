"""Real programs, scripted resolvers and raw sockets for tests that have the relay in their middle.

Everything that runs is a context manager that is ready when entered and gone when left:

    with (
        Nsd([Zone("t.rig")], workdir=workdir) as nsd,
        Relay([nsd.address], workdir=workdir) as relay,
    ):
        reply = ask_udp(relay.address, query_wire("a.t.rig"))

Modules: process (Program), net (addresses, namespaces, what this machine allows), wire (messages
by the byte), zone, servers (Dnsdist, Nsd), scripted (ScriptedResolver), relay (Relay), clients
(dnsperf, dig, raw UDP and TCP), files (a file carried and checked), tunnels (dns2tcp, iodine,
dnstt), certs (an authority of its own), tls_servers (TlsDnsdist, Unbound, Nginx: DoT and DoH),
gate (counts, delays and cuts connections), proxies (Microsocks, Tinyproxy), farm (thousands of
simulated resolvers), terminal (a command in a terminal of a given width).
"""

from tests.rig.clients import (
    Load,
    ask_tcp,
    ask_udp,
    by_id,
    dnsperf,
    read_framed,
    receive_all,
    run_tool,
    udp_client,
)
from tests.rig.net import Address, Namespace, free_address, free_port_53, joined_namespaces
from tests.rig.process import Program, RigError, wait_until
from tests.rig.relay import Relay, Usage
from tests.rig.scripted import Asked, Reply, Say, ScriptedResolver, echo
from tests.rig.servers import Dnsdist, Limits, Nsd
from tests.rig.wire import query_wire, reply_of_size, reply_wire
from tests.rig.zone import Record, Zone

__all__ = [
    "Address",
    "Asked",
    "Dnsdist",
    "Limits",
    "Load",
    "Namespace",
    "Nsd",
    "Program",
    "Record",
    "Relay",
    "Reply",
    "RigError",
    "Say",
    "ScriptedResolver",
    "Usage",
    "Zone",
    "ask_tcp",
    "ask_udp",
    "by_id",
    "dnsperf",
    "echo",
    "free_address",
    "free_port_53",
    "joined_namespaces",
    "query_wire",
    "read_framed",
    "receive_all",
    "reply_of_size",
    "reply_wire",
    "run_tool",
    "udp_client",
    "wait_until",
]
