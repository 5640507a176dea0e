"""Real proxies on loopback: microsocks (SOCKS5) and tinyproxy (HTTP CONNECT), with a password."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from tests.rig.net import free_address, is_bound, program
from tests.rig.process import Program

USER = "rig"


class Microsocks(Program):
    """A SOCKS5 proxy that wants a user and a password."""

    password = "se%cr@t"

    def __init__(self, *, workdir: Path, name: str = "microsocks") -> None:
        self.address = free_address()
        command = [program("microsocks"), "-i", self.address.host, "-p", str(self.address.port)]
        super().__init__(name, [*command, "-u", USER, "-P", self.password], workdir=workdir)

    @property
    def url(self) -> str:
        """What to write after `via`."""
        return f"socks5://{USER}:{quote(self.password, safe='')}@{self.address}"

    def is_ready(self) -> bool:
        return is_bound(self.pid, "tcp", self.address)

    def carried(self, port: int) -> int:
        """How many connections to `port` it has made for clients."""
        return len(re.findall(rf"connected to \S+:{port}\b", self.log_text()))


class Tinyproxy(Program):
    """An HTTP proxy that wants a user and a password and connects to any port."""

    password = "secret"  # its configuration takes no other characters

    def __init__(self, *, workdir: Path, name: str = "tinyproxy") -> None:
        self.address = free_address()
        config = workdir / f"{name}-{self.address.port}.conf"
        config.write_text(
            f"Listen {self.address.host}\n"
            f"Port {self.address.port}\n"
            f"BasicAuth {USER} {self.password}\n"
            "Timeout 600\n"
            "MaxClients 100\n"
            "LogLevel Connect\n"
        )
        super().__init__(name, [program("tinyproxy"), "-d", "-c", config], workdir=workdir)

    @property
    def url(self) -> str:
        """What to write after `via`."""
        return f"http://{USER}:{quote(self.password, safe='')}@{self.address}"

    def is_ready(self) -> bool:
        return is_bound(self.pid, "tcp", self.address)

    def carried(self, port: int) -> int:
        """How many connections to `port` it has made for clients."""
        return len(re.findall(rf"CONNECT \S+:{port} ", self.log_text()))
