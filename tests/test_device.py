"""The device's own resolvers, from a resolv.conf in whatever state it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.discovery.device import device_resolvers


def names_in(tmp_path: Path, content: bytes) -> list[str]:
    path = tmp_path / "resolv.conf"
    path.write_bytes(content)
    return [str(resolver) for resolver in device_resolvers(path)]


def test_device_resolvers_usual_file_gives_servers_in_order(tmp_path: Path) -> None:
    content = b"""\
# Generated
search example.org
nameserver 192.0.2.1
nameserver\t2001:DB8::53   # the second
nameserver fe80::1%wlan0
nameserver 192.0.2.1
options edns0 trust-ad
"""

    assert names_in(tmp_path, content) == [
        "udp://192.0.2.1:53",
        "udp://[2001:db8::53]:53",
        "udp://[fe80::1%wlan0]:53",
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"nameserver",
        b"nameserver 8.8.8.8:53",
        b"nameserver tcp://8.8.8.8",
        b"nameserver auto",
        b"nameserver dns.example",
        b"nameserver 0.0.0.0",
        b"nameserver fe80::1",
        b"nameserver [::1]",
        b"#nameserver 8.8.8.8",
        b";nameserver 8.8.8.8",
        b"nameserver8.8.8.8",
        b"\xff\xfe\x00nameserver",
        b"nameserver " + b"9" * 100_000,
    ],
)
def test_device_resolvers_garbage_line_is_skipped(tmp_path: Path, line: bytes) -> None:
    content = line + b"\r\nnameserver 192.0.2.7\r\n"

    assert names_in(tmp_path, content) == ["udp://192.0.2.7:53"]


def test_device_resolvers_file_missing_gives_none(tmp_path: Path) -> None:
    assert device_resolvers(tmp_path / "none") == ()
    assert device_resolvers(tmp_path) == ()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_device_resolvers_any_bytes_never_raise(tmp_path: Path, content: bytes) -> None:
    found = names_in(tmp_path, content + b"\nnameserver 192.0.2.9\n")

    assert "udp://192.0.2.9:53" in found
