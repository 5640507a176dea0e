"""The device's own resolvers, from a resolv.conf in whatever state it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.discovery.device import MOST, device_resolvers, of_registry, of_scutil


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


def test_device_resolvers_bom_huge_and_endless_lines_are_no_harm(tmp_path: Path) -> None:
    assert names_in(tmp_path, b"\xef\xbb\xbfnameserver 192.0.2.1\r\n") == ["udp://192.0.2.1:53"]
    many = b"".join(b"nameserver 10.0.%d.%d\n" % (n >> 8, n & 255) for n in range(1, 60_000))
    assert len(names_in(tmp_path, many)) == MOST
    late = b"x" * (1 << 21) + b"\nnameserver 192.0.2.1\n"
    assert names_in(tmp_path, late) == []


def test_device_resolvers_behind_a_stub_are_its_uplinks_and_the_stub_comes_last(
    tmp_path: Path,
) -> None:
    conf, resolved, manager = (tmp_path / name for name in ("conf", "resolved", "manager"))
    conf.write_text("nameserver 127.0.0.53\nnameserver 192.0.2.9\n")
    resolved.write_text("nameserver 192.0.2.1\nnameserver fe80::1%eth0\n")
    manager.write_text("nameserver 127.0.0.1\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n")
    found = device_resolvers(conf, (tmp_path / "none", resolved, manager))
    assert [each.host for each in found] == [
        "192.0.2.9",
        "192.0.2.1",
        "fe80::1%eth0",
        "192.0.2.2",
        "127.0.0.53",
        "127.0.0.1",
    ]
    conf.write_text("nameserver 192.0.2.9\n")
    assert [each.host for each in device_resolvers(conf, (resolved,))] == ["192.0.2.9"]


SCUTIL = """\
DNS configuration

resolver #1
  search domain[0] : lan
  nameserver[0] : 192.168.1.1
  nameserver[1] : fe80::1%en0
  if_index : 15 (en0)
  flags    : Request A records, Request AAAA records
  reach    : 0x00020002 (Reachable,Directly Reachable Address)
  order    : 200000

resolver #2
  domain   : local
  options  : mdns
  timeout  : 5
  flags    : Request A records

resolver #3
  domain   : corp.example
  nameserver[0] : 10.0.0.53

DNS configuration (for scoped queries)

resolver #1
  nameserver[0] : 192.168.1.1
  nameserver[1] : 192.168.1.2
  if_index : 15 (en0)
  flags    : Scoped, Request A records
"""


def test_of_scutil_gives_the_general_servers() -> None:
    assert list(of_scutil(SCUTIL)) == ["192.168.1.1", "fe80::1%en0", "192.168.1.1", "192.168.1.2"]
    assert list(of_scutil("No DNS configuration available\n")) == []


REGISTRY = r"""
HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Services\Tcpip\Parameters\Interfaces\{0a1b}
    EnableDHCP    REG_DWORD    0x1
    NameServer    REG_SZ    
    DhcpIPAddress    REG_SZ    192.168.1.7
    DhcpNameServer    REG_SZ    192.168.1.1 192.168.1.2

HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Services\Tcpip\Parameters\Interfaces\{2c3d}
    IPAddress    REG_MULTI_SZ    10.0.0.5
    NameServer    REG_SZ    9.9.9.9,1.1.1.1
    DhcpIPAddress    REG_SZ    0.0.0.0
    DhcpNameServer    REG_SZ    10.0.0.1

HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Services\Tcpip\Parameters\Interfaces\{4e5f}
    DhcpIPAddress    REG_SZ    0.0.0.0
    DhcpNameServer    REG_SZ    172.16.0.1
"""  # noqa: W291


def test_of_registry_gives_what_was_typed_in_before_dhcp_and_no_lost_network() -> None:
    for text in (REGISTRY, REGISTRY.replace("\n", "\r\n")):
        found = [each for each in of_registry(text) if each]
        assert found == ["192.168.1.1", "192.168.1.2", "9.9.9.9", "1.1.1.1"]
    assert [each for each in of_registry("ERROR: no such key\r\n") if each] == []
