"""Checks over TCP, DoT and DoH, with real servers and with those that do not play by the rules."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from relay.discovery import check_streams
from relay.discovery.check_streams import MOST_DIALS
from relay.discovery.checks import MOST_STREAMS, CheckPlan
from relay.discovery.verdict import Stage
from relay.resolver_address import Options, parse
from relay.ways_out import parse_via
from shared.own_question import OwnQuestion
from tests.encrypted import KINDS, ground, why_not_here
from tests.loopback import HOST, Link, TcpPeer, closed_port, on_loop
from tests.rig.certs import HOST as NAME
from tests.rig.certs import Authority
from tests.rig.doh_server import DohServer, HttpAsked, serve_nothing, serve_status
from tests.rig.farm import Farm
from tests.rig.wire import record_wire, reply_wire
from tests.test_checks import checked

OWN = OwnQuestion.new()
PLAN = CheckPlan(OWN, names=("a.load.rig",), size_questions=("x.t.rig TXT",), timeout_s=2.0)


def sound(wire: bytes) -> bytes:
    """The reply of a resolver that passes."""
    if wire[12] == 40:
        return reply_wire(wire, rcode=3)
    kind = int.from_bytes(wire[12 + wire[12:].index(0) + 1 :][:2])
    return reply_wire(wire, [record_wire(1, bytes((9, 9, 9, 9)))] if kind == 1 else [])


@pytest.mark.skipif(bool(why_not_here()), reason=why_not_here())
def test_real_servers_of_every_kind_are_checked_over_their_own_transport(tmp_path: Path) -> None:
    with ground(tmp_path) as servers:
        options = Options(ca_file=str(servers.authority.file))
        good = [parse(servers.url(kind), options) for kind in KINDS]
        asked_by_get = [replace(each, get=True) for each in good if each.scheme == "https"]
        strangers = [replace(each, ca_file="") for each in good]
        misnamed = [replace(each, server_name="other.rig") for each in good]
        insecure = [replace(each, insecure=True, server_name="other.rig") for each in good]

        @on_loop
        async def run() -> None:
            everyone = (*good, *asked_by_get, *strangers, *misnamed, *insecure)
            verdicts = await checked(PLAN, *everyone)
            for address, verdict in zip(everyone, verdicts, strict=True):
                told = (address, verdict)
                # nsd knows no address and refuses what is not its own: it was asked, and answered.
                if address in strangers:
                    assert "not signed by a trusted authority" in verdict.reason, told
                elif address in misnamed:
                    assert "for another host than other.rig" in verdict.reason, told
                else:
                    assert verdict.answered, told
                    assert verdict.reason == "answers without an address", told
                assert verdict.stage is Stage.PLAIN, told
                assert not verdict.local_fault, told

        run()


@on_loop
async def test_doh_of_both_versions_and_both_methods_passes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def serve(asked: HttpAsked) -> None:
        asked.link.answer(asked, sound(asked.wire))

    for alpn in (("h2",), ("http/1.1",)):
        async with DohServer(authority.issue(), serve, alpn=alpn) as server:
            text = f"https://{NAME}:{server.address.port}/dns-query#{server.address.host}"
            address = parse(text, Options(ca_file=str(authority.file)))
            verdicts = await checked(PLAN, address, replace(address, get=True))
            for verdict in verdicts:
                assert verdict.passed, (alpn, verdict)
                assert verdict.fitness.keeps_case
                assert verdict.fitness.longest_name == 253
                assert verdict.loss == 0
            assert {asked.method for asked in server.heard} == {"GET", "POST"}


@on_loop
async def test_doh_that_answers_no_dns_fails_with_what_it_said(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cases = (
        (serve_status(403), "HTTP 403 from the server"),
        (serve_status(429), "HTTP 429 from the server"),
        (serve_status(200, b"<html>"), "answered text/html instead of DNS"),
        (serve_status(200, b"", "application/dns-message"), "answered with an empty body"),
        (serve_status(200, bytes(40), "application/dns-message"), "something else than was asked"),
        (serve_nothing, "no answer"),
    )
    for alpn in (("h2",), ("http/1.1",)):
        for serve, reason in cases:
            async with DohServer(authority.issue(), serve, alpn=alpn) as server:
                text = f"https://{NAME}:{server.address.port}/dns-query#{server.address.host}"
                address = parse(text, Options(ca_file=str(authority.file)))
                (verdict,) = await checked(replace(PLAN, timeout_s=0.2), address)
            assert reason in verdict.reason, (alpn, verdict)
            assert verdict.stage is Stage.PLAIN
            assert not verdict.local_fault


def _closing(link: Link, wire: bytes) -> None:
    link.say(sound(wire))
    link.close()


def _flooding(link: Link, wire: bytes) -> None:
    for _ in range(5_000):
        link.say(bytes(200))


def _hanging_up(link: Link, wire: bytes) -> None:
    link.close()


@on_loop
async def test_tcp_server_is_judged_by_what_it_does() -> None:
    def recased(link: Link, wire: bytes) -> None:
        good = sound(wire)
        end = good.index(0, 12)
        link.say(good[:12] + good[12:end].lower() + good[end:])

    cases: tuple[tuple[Callable[[Link, bytes], object], str], ...] = (
        (lambda link, wire: link.say(sound(wire)), ""),
        (recased, ""),
        (_flooding, "floods its connections with what answers nothing"),
        (_hanging_up, "closed the connection unasked"),
        (lambda link, wire: None, "no answer"),
    )
    for serve, reason in cases:
        async with TcpPeer(serve) as peer:
            address = f"tcp://{HOST}:{peer.address[1]}"
            (verdict,) = await checked(replace(PLAN, timeout_s=0.3), address)
        assert verdict.reason == reason
        assert verdict.passed == (not reason)
        if serve is recased:
            assert verdict.fitness.keeps_case is False
    (verdict,) = await checked(PLAN, f"tcp://{HOST}:{closed_port()}")
    assert verdict.reason == os.strerror(111)
    assert (verdict.stage, verdict.asked, verdict.answered) == (Stage.PLAIN, 1, 0)
    assert not verdict.local_fault


@on_loop
async def test_server_that_closes_after_every_answer_is_dialled_again() -> None:
    async with TcpPeer(_closing) as peer:
        address = f"tcp://{HOST}:{peer.address[1]}"
        (verdict,) = await checked(PLAN, address, thorough=False)
        assert verdict.passed, verdict
        assert len(peer.links) <= MOST_DIALS


@on_loop
async def test_streams_of_many_candidates_are_bounded(tmp_path: Path) -> None:
    with Farm(workdir=tmp_path) as farm:
        hosts = farm.hosts(2 * MOST_STREAMS)
        farm.set(hosts, "working", delay_ms=10)
        plan = replace(PLAN, names=("example.com",))
        before = len(os.listdir("/proc/self/fd"))
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(os.listdir("/proc/self/fd")) - before)
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        verdicts = await checked(plan, *(f"tcp://{farm.at(host)}" for host in hosts))
        watching.cancel()
    assert all(verdict.passed for verdict in verdicts)
    assert all(verdict.fitness.replies.largest for verdict in verdicts)
    assert 10 < most <= MOST_STREAMS + 8


@on_loop
async def test_unreadable_authorities_and_unreachable_proxies_blame_nobody(tmp_path: Path) -> None:
    async with TcpPeer() as peer:
        port = peer.address[1]
        missing = parse(f"dot://{HOST}:{port}", Options(ca_file=str(tmp_path / "none.pem")))
        behind = f"socks5://{HOST}:{closed_port()}"
        proxied = replace(parse(f"tcp://{HOST}:{port}"), via=parse_via(behind))
        verdicts = await checked(PLAN, missing, proxied)
    assert all(verdict.local_fault for verdict in verdicts), verdicts
    assert "cannot read the authorities" in verdicts[0].reason
    assert "cannot reach the proxy" in verdicts[1].reason


@on_loop
async def test_silent_server_has_no_longer_for_a_connection_than_its_check_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_streams, "LEAST_DIAL_S", 0.1)
    async with TcpPeer(lambda link, wire: None) as peer:
        port = peer.address[1]
        pinned = f"https://dns.rig:{port}/dns-query#{HOST},{HOST[:-1]}2,{HOST[:-1]}3"
        began_at = asyncio.get_running_loop().time()
        verdicts = await checked(replace(PLAN, timeout_s=0.05), f"dot://{HOST}:{port}", pinned)
        took_s = asyncio.get_running_loop().time() - began_at
    assert took_s < 2.0  # and 5 s where a worker dials
    assert verdicts[0].reason == "TLS handshake timed out"
    assert not any(verdict.local_fault or verdict.heard for verdict in verdicts)


@on_loop
async def test_server_that_says_anything_is_told_from_one_that_is_silent(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = Options(ca_file=str(authority.file))
    async with DohServer(authority.issue(), serve_status(403)) as server:
        url = f"https://{NAME}:{server.address.port}/dns-query#{server.address.host}"
        denied, stranger = await checked(PLAN, parse(url, trusted), url)
    async with TcpPeer(_hanging_up) as peer:
        hung_up = await checked(PLAN, f"tcp://{HOST}:{peer.address[1]}")
    closed = await checked(PLAN, f"tcp://{HOST}:{closed_port()}", f"dot://{HOST}:{closed_port()}")
    for verdict in (denied, stranger, *hung_up):
        assert verdict.heard, verdict
    for verdict in closed:
        assert not verdict.heard, verdict
