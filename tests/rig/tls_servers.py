"""Real servers that speak DNS over TLS and over HTTPS: dnsdist, unbound and nginx.

    with (
        Nsd([Zone("t.rig")], workdir=workdir) as nsd,
        TlsDnsdist([nsd.address], authority.issue(), workdir=workdir) as server,
        Relay(workdir=workdir, config=relay_config(trusting(authority, server.doh_url()))),
    ):

Every server listens on loopback; `dot_url` and `doh_url` name it as `dns.rig`, pinned to where it
is, or as whatever the test wants. nginx speaks HTTP/2 or only HTTP/1.1, limits rates with 429 and
has a path for every wrong answer; the DNS behind it comes from `DohBackend`.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.rig.certs import HOST, Authority, Certificate
from tests.rig.files import REPO
from tests.rig.net import Address, Namespace, free_address, is_bound, program
from tests.rig.process import Program
from tests.rig.servers import Dnsdist, Limits

PATH = "/dns-query"
MANY_REQUESTS = 1_000_000_000


def dot_url(address: Address, host: str = HOST) -> str:
    """The server at `address` as a DoT resolver that must prove to be `host`."""
    return f"dot://{host}:{address.port}#{address.host}"


def doh_url(address: Address, host: str = HOST, path: str = PATH) -> str:
    """The server at `address` as a DoH resolver that must prove to be `host`."""
    return f"https://{host}:{address.port}{path}#{address.host}"


def trusting(authority: Authority, address: str, **fields: Any) -> dict[str, Any]:
    """A resolver of a configuration file whose certificate `authority` has signed."""
    return {"address": address, "ca_file": str(authority.file), **fields}


class TlsDnsdist(Dnsdist):
    """dnsdist with a DoT and a DoH (HTTP/2) frontend beside the plain one.

    What comes by DoH goes to the backends over UDP, what comes by DoT over TCP. Both frontends
    close a connection that was idle for `idle_s`.
    """

    def __init__(
        self,
        backends: Sequence[Address],
        certificate: Certificate,
        *,
        workdir: Path,
        idle_s: int = 30,
        limits: Limits | None = None,
        host: str = "127.0.0.1",
        namespace: Namespace | None = None,
        name: str = "dnsdist-tls",
    ) -> None:
        # The host may be one of another network namespace, where no port can be tried.
        plain, self.dot, self.doh = (Address(host, free_address().port) for _ in range(3))
        super().__init__(
            backends,
            workdir=workdir,
            address=plain,
            limits=limits,
            namespace=namespace,
            name=name,
        )
        files = f'"{certificate.chain}", "{certificate.key}"'
        with Path(self.command[-1]).open("a") as config:
            config.write(
                f"setTCPRecvTimeout({idle_s})\n"
                "setMaxTCPClientThreads(2)\n"
                "setMaxTCPConnectionsPerClient(0)\n"
                # Without it a connection is served one question at a time.
                f'addTLSLocal("{self.dot}", {files}, {{maxInFlight=65535, provider="openssl"}})\n'
                f'addDOHLocal("{self.doh}", {files}, "{PATH}", {{idleTimeout={idle_s}}})\n'
            )

    def is_ready(self) -> bool:
        bound = all(is_bound(self.pid, "tcp", each) for each in (self.dot, self.doh))
        return bound and super().is_ready()


class Unbound(Program):
    """unbound with DoT and DoH (HTTP/2), asking one server over UDP; nothing stays in its cache."""

    def __init__(
        self,
        backend: Address,
        certificate: Certificate,
        *,
        workdir: Path,
        idle_s: float = 30.0,
        max_streams: int = 100,
        name: str = "unbound",
    ) -> None:
        self.dot = free_address()
        self.doh = free_address()
        config = workdir / f"{name}-{self.dot.port}.conf"
        config.write_text(
            "server:\n"
            f"  interface: {self.dot.host}@{self.dot.port}\n"
            f"  interface: {self.doh.host}@{self.doh.port}\n"
            f"  tls-port: {self.dot.port}\n"
            f"  https-port: {self.doh.port}\n"
            f'  http-endpoint: "{PATH}"\n'
            f"  http-max-streams: {max_streams}\n"
            f'  tls-service-pem: "{certificate.chain}"\n'
            f'  tls-service-key: "{certificate.key}"\n'
            f"  tcp-idle-timeout: {round(idle_s * 1000)}\n"
            "  incoming-num-tcp: 200\n"
            "  outgoing-range: 4096\n"
            "  num-queries-per-thread: 4096\n"
            "  num-threads: 1\n"
            "  so-reuseport: no\n"
            "  do-ip6: no\n"
            "  do-not-query-localhost: no\n"
            "  access-control: 127.0.0.0/8 allow\n"
            '  module-config: "iterator"\n'
            # A question that the server holds is not lost: do not ask it again within a second.
            "  infra-cache-min-rtt: 2000\n"
            "  unknown-server-time-limit: 2000\n"
            "  use-syslog: no\n"
            '  chroot: ""\n'
            '  pidfile: ""\n'
            f'  username: "{pwd.getpwuid(os.getuid()).pw_name}"\n'
            f'  directory: "{workdir}"\n'
            "remote-control:\n"
            "  control-enable: no\n"
            "forward-zone:\n"
            '  name: "."\n'
            f"  forward-addr: {backend.host}@{backend.port}\n"
            "  forward-no-cache: yes\n"
        )
        super().__init__(name, [program("unbound"), "-d", "-p", "-c", config], workdir=workdir)

    def is_ready(self) -> bool:
        bound = all(is_bound(self.pid, "tcp", each) for each in (self.dot, self.doh))
        return bound and "start of service" in self.log_text()


class DohBackend(Program):
    """DoH over HTTP/1.1 that asks one server over UDP: `python -m tests.rig.doh_backend`.

    Without a certificate it is what nginx stands in front of.
    """

    def __init__(
        self,
        backend: Address,
        *,
        workdir: Path,
        address: Address | None = None,
        name: str = "doh-backend",
    ) -> None:
        self.address = address or free_address()
        command = [sys.executable, "-m", "tests.rig.doh_backend", str(self.address), str(backend)]
        super().__init__(name, command, workdir=workdir, environment={"PYTHONPATH": str(REPO)})

    def is_ready(self) -> bool:
        return is_bound(self.pid, "tcp", self.address)


class Nginx(Program):
    """nginx with TLS in front of a `DohBackend`: HTTP/2, or only HTTP/1.1 with `http2=False`.

    `requests` is how many it serves on one connection: then it says GOAWAY, or closes. Paths:
    `/dns-query` answers; `/limited` answers `rate_qps` and says 429 to the others, `/limited-wait`
    too, with Retry-After; `/moved`, `/denied` and `/unavailable` say 302, 403 and 503; `/html`,
    `/empty` and `/text` say 200 with a page, with nothing, and with a DNS type that is none.
    """

    def __init__(
        self,
        backend: Address,
        certificate: Certificate,
        *,
        workdir: Path,
        http2: bool = True,
        idle_s: int = 60,
        requests: int = MANY_REQUESTS,
        max_streams: int = 128,
        rate_qps: int = 50,
        address: Address | None = None,
        name: str = "nginx",
    ) -> None:
        self.address = address or free_address()
        folder = workdir / f"{name}-{self.address.port}"
        folder.mkdir()
        kept = "".join(
            f"  {kind}_temp_path {folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        ask = (
            "proxy_pass http://backend/dns-query$is_args$args; proxy_http_version 1.1;"
            ' proxy_set_header Connection "";'
        )
        limit = f"limit_req zone=asked burst={max(rate_qps // 10, 1)} nodelay;"
        config = folder / "nginx.conf"
        config.write_text(
            "daemon off;\n"
            "worker_processes 1;\n"
            "error_log stderr warn;\n"
            f"user {pwd.getpwuid(os.getuid()).pw_name};\n"
            f"pid {folder}/pid;\n"
            "events { worker_connections 4096; }\n"
            "http {\n"
            "  access_log off;\n"
            f"{kept}"
            f"  upstream backend {{ server {backend}; keepalive 256; }}\n"
            f"  limit_req_zone $binary_remote_addr zone=asked:1m rate={rate_qps}r/s;\n"
            "  limit_req_status 429;\n"
            "  limit_req_log_level info;\n"
            "  server {\n"
            f"    listen {self.address} ssl{' http2' if http2 else ''};\n"
            f"    ssl_certificate {certificate.chain};\n"
            f"    ssl_certificate_key {certificate.key};\n"
            f"    keepalive_timeout {idle_s}s;\n"
            f"    keepalive_requests {requests};\n"
            f"    http2_max_concurrent_streams {max_streams};\n"
            f"    location {PATH} {{ {ask} }}\n"
            f"    location /limited {{ {limit} {ask} }}\n"
            "    location /limited-wait {\n"
            f"      {limit} {ask}\n"
            "      error_page 429 @wait;\n"
            "    }\n"
            "    location @wait { add_header Retry-After 1 always; return 429; }\n"
            "    location /moved { return 302 https://elsewhere.rig/dns-query; }\n"
            "    location /denied { return 403; }\n"
            "    location /unavailable { return 503; }\n"
            '    location /html { default_type text/html; return 200 "<html>Log in</html>"; }\n'
            '    location /text { default_type text/plain; return 200 "not a DNS message"; }\n'
            '    location /empty { default_type application/dns-message; return 200 ""; }\n'
            "  }\n"
            "}\n"
        )
        super().__init__(name, [program("nginx"), "-c", config, "-p", folder], workdir=workdir)

    def is_ready(self) -> bool:
        return is_bound(self.pid, "tcp", self.address)
