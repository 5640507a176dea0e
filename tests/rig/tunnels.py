"""Real DNS tunnels: dns2tcp, iodine and dnstt, each as its server and its client program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.rig.files import REPO, Transfer, program_command
from tests.rig.net import (
    DNS_PORT,
    Address,
    Namespace,
    find_program,
    free_address,
    is_bound,
    listening,
    program,
)
from tests.rig.process import Program, RigError

DOMAIN = "t.example.com"


class Dns2tcpServer(Program):
    """dns2tcpd with one resource, `files`, that leads to `target`."""

    def __init__(self, target: Address, *, workdir: Path, domain: str = DOMAIN) -> None:
        self.address = free_address()
        config = workdir / f"dns2tcpd-{self.address.port}.conf"
        config.write_text(
            f"listen = {self.address.host}\nport = {self.address.port}\ndomain = {domain}\n"
            f"resources = files:{target.host}:{target.port}\n"
        )
        super().__init__(
            "dns2tcpd", [program("dns2tcpd"), "-F", "-d", "1", "-f", config], workdir=workdir
        )

    def is_ready(self) -> bool:
        return is_bound(self.pid, "udp", self.address)


class Dns2tcpClient(Program):
    """dns2tcpc: what connects to `address` comes out at the server's `files` resource.

    It asks port 53 only, and quits after 8 s without answers while a connection is open.
    """

    def __init__(self, resolver: Address, *, workdir: Path, domain: str = DOMAIN) -> None:
        assert resolver.port == DNS_PORT, "dns2tcpc asks port 53 only"
        self.address = free_address()
        command = [program("dns2tcpc"), "-z", domain, "-r", "files", "-d", "1"]
        command += ["-l", str(self.address.port), resolver.host]
        super().__init__("dns2tcpc", command, workdir=workdir)

    def is_ready(self) -> bool:
        return is_bound(self.pid, "tcp", self.address)


class IodineServer(Program):
    """iodined in its own namespace; the tunnel's inner address of its side is `inner_host`."""

    def __init__(
        self, namespace: Namespace, outer_host: str, *, workdir: Path, domain: str = DOMAIN
    ) -> None:
        self.address = Address(outer_host, DNS_PORT)
        self.inner_host = "10.99.0.1"
        # -c: the questions come from several resolvers, not always from the same address.
        command: list[str | Path] = [program("iodined"), "-f", "-c", "-P", "rig"]
        command += ["-l", outer_host, f"{self.inner_host}/24", domain]
        super().__init__("iodined", namespace.wrap(command), workdir=workdir)

    def is_ready(self) -> bool:
        return is_bound(self.pid, "udp", self.address)


class IodineClient(Program):
    """iodine in its own namespace, asking `resolver` there; ready when the tunnel is up."""

    ready_timeout_s = 40.0

    def __init__(
        self, namespace: Namespace, resolver: Address, *, workdir: Path, domain: str = DOMAIN
    ) -> None:
        assert resolver.port == DNS_PORT, "iodine asks port 53 only"
        # -r: stay on DNS where the server could be reached directly.
        # -m: the size its own probing finds on this path; the probing takes 8 s of time-outs.
        command: list[str | Path] = [program("iodine"), "-f", "-r", "-m", "1100", "-P", "rig"]
        command += [resolver.host, domain]
        super().__init__("iodine", namespace.wrap(command), workdir=workdir)

    def is_ready(self) -> bool:
        return "Connection setup complete" in self.log_text()


class NamespaceFileServer(Program):
    """The file server as a program in a namespace."""

    def __init__(
        self, namespace: Namespace, address: Address, size_bytes: int, *, workdir: Path
    ) -> None:
        self.address = address
        super().__init__(
            "files",
            namespace.wrap(program_command("serve", address, size_bytes)),
            workdir=workdir,
            environment={"PYTHONPATH": str(REPO)},
        )

    def is_ready(self) -> bool:
        return is_bound(self.pid, "tcp", self.address)


def carry_in_namespace(
    namespace: Namespace, verb: str, address: Address, size_bytes: int, timeout_s: float
) -> Transfer:
    """`get` or `put` a file of `size_bytes` from inside a namespace."""
    done = subprocess.run(
        [str(word) for word in namespace.wrap(program_command(verb, address, size_bytes))],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    if done.returncode:
        raise RigError(f"{verb} in {namespace.name} failed:\n{done.stderr}")
    size, digest, seconds = done.stdout.split()
    return Transfer(int(size), digest, float(seconds))


# -- dnstt ------------------------------------------------------------------------------------


def dnstt_program(side: str) -> str | None:
    """Path of dnstt-client or dnstt-server: RELAY_DNSTT_CLIENT / _SERVER, else from PATH."""
    named = os.environ.get(f"RELAY_DNSTT_{side.upper()}")
    return named or find_program(f"dnstt-{side}")


def why_no_dnstt() -> str:
    """Why dnstt cannot be used here; empty where it can."""
    missing = [f"dnstt-{side}" for side in ("client", "server") if dnstt_program(side) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


class DnsttServer(Program):
    """dnstt-server with a key of its own; every stream is led to `target`."""

    def __init__(self, target: Address, *, workdir: Path, domain: str = DOMAIN) -> None:
        self.address = free_address()
        server = str(dnstt_program("server"))
        private, self.public_key = workdir / "dnstt.key", workdir / "dnstt.pub"
        made = subprocess.run(
            [server, "-gen-key", "-privkey-file", private, "-pubkey-file", self.public_key],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RigError(f"dnstt-server -gen-key failed:\n{made.stderr}")
        command: list[str | Path] = [server, "-udp", str(self.address)]
        command += ["-privkey-file", private, domain, str(target)]
        super().__init__("dnstt-server", command, workdir=workdir)

    def is_ready(self) -> bool:
        return is_bound(self.pid, "udp", self.address)


class DnsttClient(Program):
    """dnstt-client over UDP: what connects to `address` comes out at the server's target."""

    def __init__(
        self, resolver: Address, public_key: Path, *, workdir: Path, domain: str = DOMAIN
    ) -> None:
        self.address = free_address()
        command: list[str | Path] = [str(dnstt_program("client")), "-udp", str(resolver)]
        command += ["-pubkey-file", public_key, domain, str(self.address)]
        super().__init__("dnstt-client", command, workdir=workdir)

    def is_ready(self) -> bool:
        return listening(self.pid, self.address, kinds=("tcp",))
