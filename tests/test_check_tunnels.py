"""The questions of the tunnels, put to their real servers and to those that are none."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from relay.discovery.check_messages import TYPE_A, TYPE_TXT, name_wire
from relay.discovery.check_tunnels import tunnel_check
from relay.discovery.checks import CheckPlan
from relay.discovery.verdict import Stage
from shared.own_question import OwnQuestion
from tests.loopback import UdpPeer, on_loop
from tests.rig.clients import ask_udp
from tests.rig.farm import Farm
from tests.rig.files import REPO
from tests.rig.net import (
    Address,
    joined_namespaces,
    why_no_tunnel_devices,
    why_not_installed,
)
from tests.rig.tunnels import (
    DOMAIN,
    Dns2tcpServer,
    DnsttServer,
    IodineServer,
    why_no_dnstt,
)
from tests.rig.wire import labels_of, opt_wire, question_of, record_wire, reply_wire, txt_data
from tests.test_checks import checked

PLAN = CheckPlan(OwnQuestion.new(), names=("example.com",), domain=DOMAIN, timeout_s=1.0)
NOWHERE = Address("127.0.0.1", 9)


def flaw_of(tunnel: str, reply: Callable[[bytes], bytes], record_type: str | None = None) -> str:
    check = tunnel_check(tunnel, DOMAIN, record_type)
    asked = check.question()
    return check.flaw(asked, reply(asked))


@pytest.mark.skipif(bool(why_not_installed("dns2tcpd")), reason=why_not_installed("dns2tcpd"))
@on_loop
async def test_dns2tcp_server_answers_through_those_that_reach_it(tmp_path: Path) -> None:
    with Farm(workdir=tmp_path) as farm, Dns2tcpServer(NOWHERE, workdir=tmp_path) as server:
        farm.forward(DOMAIN, server.address)
        kinds = ("working", "unreaching", "recasing", "cutting_large")
        hosts = farm.hosts(len(kinds))
        for host, kind in zip(hosts, kinds, strict=True):
            farm.set(host, kind)
        for record_type in (None, "KEY"):
            plan = replace(PLAN, tunnel="dns2tcp", record_type=record_type)
            verdicts = await checked(plan, *map(farm.at, hosts))
            told = [verdict.reason for verdict in verdicts]
            assert [verdict.tunnel for verdict in verdicts] == [True, False, False, True], told
            assert verdicts[1].stage is Stage.TUNNEL
            assert verdicts[1].reason.endswith("it says that there is no such name")
            assert "changes the case" in verdicts[2].reason


def test_dns2tcp_case_is_blamed_only_where_it_was_changed() -> None:
    def zone(asked: bytes) -> bytes:
        return reply_wire(asked, [record_wire(TYPE_TXT, b"\x18" + b"0" + b"A" * 23)])

    def server(asked: bytes) -> bytes:
        """Answer as a dns2tcp server does to the name it is asked for."""
        label = asked[13 : 13 + asked[12]]
        header = base64.b64decode(label + b"=" * (-len(label) % 4))
        text = b"0" + base64.b64encode(header + b"challenge")
        return reply_wire(asked, [record_wire(TYPE_TXT, bytes((len(text),)) + text)])

    def lowered(asked: bytes) -> bytes:
        """Ask the server in lower case; its reply repeats the question as it was asked."""
        reply = server(asked[:13] + asked[13 : 13 + asked[12]].lower() + asked[13 + asked[12] :])
        return (
            asked[:2]
            + reply[2:12]
            + asked[12 : 12 + len(question_of(asked))]
            + reply[12 + len(question_of(asked)) :]
        )

    for _ in range(50):  # the letters are random
        assert flaw_of("dns2tcp", server) == ""
        assert flaw_of("dns2tcp", zone) == "what it answers is not from the tunnel's server"
        assert "changes the case" in flaw_of("dns2tcp", lowered)
        assert "changes the case" in flaw_of("dns2tcp", lambda asked: zone(asked.swapcase()))


@pytest.mark.skipif(bool(why_not_installed("iodined")), reason=why_not_installed("iodined"))
@pytest.mark.skipif(bool(why_no_tunnel_devices()), reason=why_no_tunnel_devices())
def test_iodine_server_answers_its_question_with_every_type(tmp_path: Path) -> None:
    with (
        joined_namespaces() as (near, _, far, address),
        IodineServer(far, address.host, workdir=tmp_path),
    ):
        command = [sys.executable, "-m", "tests.test_check_tunnels", address.host]
        done = subprocess.run(
            [str(word) for word in near.wrap(command)],
            env={**os.environ, "PYTHONPATH": str(REPO)},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert done.stdout.split() == ["TXT", "NULL", "PRIVATE", "CNAME"], done.stderr


def _ask_iodine(host: str) -> None:
    for record_type in ("TXT", "NULL", "PRIVATE", "CNAME"):
        check = tunnel_check("iodine", DOMAIN, record_type)
        asked = check.question()
        assert not check.flaw(asked, ask_udp(Address(host, 53), asked))
        assert check.flaw(check.question(), ask_udp(Address(host, 53), asked))
        print(record_type)


@pytest.mark.skipif(bool(why_no_dnstt()), reason=why_no_dnstt())
def test_dnstt_server_answers_its_question(tmp_path: Path) -> None:
    with DnsttServer(NOWHERE, workdir=tmp_path) as server:
        check = tunnel_check("dnstt", DOMAIN, None)
        asked = check.question()
        assert not check.flaw(asked, ask_udp(server.address, asked, 3.0))


def test_dnstt_question_is_a_poll_as_its_server_reads_it() -> None:
    asked = tunnel_check("dnstt", DOMAIN, None).question()
    question = question_of(asked)
    assert question[-4:] == b"\0\x10\0\1"
    assert asked.endswith(opt_wire(4_096))
    labels: list[bytes] = []
    at = 0
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]])
        at += 1 + question[at]
    suffix = labels_of(DOMAIN)
    assert labels[-len(suffix) :] == suffix
    text = b"".join(labels[: -len(suffix)]).upper()
    data = base64.b32decode(text + b"=" * (-len(text) % 8))
    client, padding, rest = data[:8], data[8], data[9:]
    assert len(client) == 8
    assert padding >= 224
    assert len(rest) == padding - 224  # and no packet after it
    assert asked != tunnel_check("dnstt", DOMAIN, None).question()


def test_dnstt_answer_is_packets_after_their_lengths() -> None:
    def reply(*datas: bytes, kind: int = TYPE_TXT) -> Callable[[bytes], bytes]:
        return lambda asked: reply_wire(asked, [record_wire(kind, data) for data in datas])

    two = b"\0\3abc" + b"\1\0" + bytes(256)
    strings = bytes((255,)) + two[:255] + bytes((len(two) - 255,)) + two[255:]
    for good in (b"\0", b"\5\0\3abc", b"\2\0\0", strings):
        assert flaw_of("dnstt", reply(good)) == ""
    for bad in (b"", b"\1x", b"\3\0\3a", txt_data(20), b"\5\0\2abc", b"\xff\0"):
        assert flaw_of("dnstt", reply(bad)), bad
    assert flaw_of("dnstt", reply(b"\0", b"\0"))
    assert flaw_of("dnstt", reply())
    assert flaw_of("dnstt", reply(bytes((9, 9, 9, 9)), kind=TYPE_A))
    assert "SERVFAIL" in flaw_of("dnstt", lambda asked: reply_wire(asked, rcode=2))
    assert "no such name" in flaw_of("dnstt", lambda asked: reply_wire(asked, rcode=3))


@on_loop
async def test_dnstt_server_may_hold_a_poll_longer_than_a_resolver_may_take(
    tmp_path: Path,
) -> None:
    def answer(wire: bytes) -> None:
        reply = reply_wire(wire, [record_wire(TYPE_TXT, b"\0")], opt=opt_wire())
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, server.say, reply, server.sources[-1])

    with Farm(workdir=tmp_path) as farm:
        async with UdpPeer(answer) as server:
            host = farm.hosts(1)[0]
            farm.set(host, "working")
            farm.forward(DOMAIN, server.address)
            plan = replace(PLAN, tunnel="dnstt", timeout_s=0.3)
            (verdict,) = await checked(plan, farm.at(host), thorough=False)
    assert verdict.tunnel is True
    assert verdict.latency_s < 0.3


def test_other_tunnels_are_reached_where_anything_but_a_zone_above_answers() -> None:
    def denied_by(zone: str) -> Callable[[bytes], bytes]:
        def reply(asked: bytes) -> bytes:
            head = reply_wire(asked, rcode=3)
            record = record_wire(6, bytes(22))[2:]
            return head[:8] + b"\0\1" + head[10:] + name_wire(zone) + record

        return reply

    for tunnel in ("generic", "masterdns", "soar"):
        assert flaw_of(tunnel, reply_wire) == ""
        assert flaw_of(tunnel, lambda asked: reply_wire(asked, rcode=3)) == ""
        assert flaw_of(tunnel, denied_by(DOMAIN)) == ""
        assert flaw_of(tunnel, denied_by("com")) == "it says that there is no such domain"
        assert flaw_of(tunnel, denied_by(".")) == "it says that there is no such domain"
        assert flaw_of(tunnel, lambda asked: reply_wire(asked, rcode=2)) == "it answers SERVFAIL"
        lie = record_wire(TYPE_A, bytes((9, 9, 9, 9)))
        assert flaw_of(tunnel, lambda asked, lie=lie: reply_wire(asked, [lie]))
        assert flaw_of(tunnel, lambda asked, lie=lie: reply_wire(asked, [lie]), "A") == ""


if __name__ == "__main__":
    _ask_iodine(sys.argv[1])
