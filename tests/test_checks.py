"""Checks of candidates of every kind, over a farm of simulated resolvers."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from relay.discovery.checks import Checker, CheckPlan
from relay.discovery.verdict import Stage, Verdict
from relay.resolver_address import ResolverAddress, parse
from shared.errors import RelayError
from shared.own_question import OwnQuestion
from tests.loopback import HOST, UdpPeer, on_loop
from tests.rig.farm import Farm
from tests.rig.wire import record_wire, reply_wire

OWN = OwnQuestion.new()
PLAN = CheckPlan(OWN, names=("example.com", "wikipedia.org"), timeout_s=0.6)
SIZES = tuple(f"text-{size}.example.com TXT" for size in (600, 1_300, 3_900))


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with Farm(workdir=tmp_path_factory.mktemp("farm")) as farm:
        yield farm


async def no_names(address: ResolverAddress) -> list[str]:
    raise AssertionError(f"{address} needs no look-up")


async def checked(
    plan: CheckPlan,
    *addresses: ResolverAddress | str,
    thorough: bool = True,
    look_up: Callable[[ResolverAddress], Awaitable[list[str]]] = no_names,
) -> list[Verdict]:
    checker = Checker(plan, look_up)
    try:
        return await asyncio.gather(
            *(
                checker.check(parse(each) if isinstance(each, str) else each, thorough=thorough)
                for each in addresses
            )
        )
    finally:
        await checker.aclose()


EXPECTED: list[tuple[str, dict[str, Any], Stage, str]] = [
    ("dead", {}, Stage.PLAIN, "no answer"),
    ("refusing", {}, Stage.PLAIN, "answers REFUSED"),
    ("servfail", {}, Stage.PLAIN, "answers SERVFAIL"),
    ("empty", {}, Stage.PLAIN, "answers without an address"),
    ("lying", {}, Stage.HONESTY, "lies: answers a name that does not exist"),
    ("captive", {}, Stage.HONESTY, "gives an address that is not public for a public name"),
    ("working", {}, Stage.FITNESS, ""),
    ("recasing", {}, Stage.FITNESS, ""),
    ("dropping_large", {}, Stage.FITNESS, ""),
    ("cutting_large", {}, Stage.FITNESS, ""),
    ("dropping_long", {"longest_name": 150}, Stage.FITNESS, ""),
    ("no_edns", {}, Stage.FITNESS, ""),
    ("rate_limited", {"rate_qps": 1}, Stage.HONESTY, "answers REFUSED to a name that does not"),
    ("unreaching", {}, Stage.FITNESS, ""),
]


@on_loop
async def test_check_of_every_kind_gives_its_stage_reason_and_fitness(farm: Farm) -> None:
    hosts = farm.hosts(len(EXPECTED))
    for host, (kind, traits, _, _) in zip(hosts, EXPECTED, strict=True):
        farm.set(host, kind, **traits)
    plan = replace(PLAN, size_questions=SIZES)
    verdicts = await checked(plan, *map(farm.at, hosts))
    found = {kind: verdict for (kind, *_), verdict in zip(EXPECTED, verdicts, strict=True)}
    for kind, _, stage, reason in EXPECTED:
        verdict = found[kind]
        told = (kind, verdict)
        assert verdict.stage == stage, told
        assert verdict.reason.startswith(reason) if reason else not verdict.reason, told
        assert verdict.passed == (stage is Stage.FITNESS), told
        assert not verdict.local_fault, told
        assert not verdict.is_self, told
        assert verdict.tunnel is None, told
    assert found["lying"].honest is found["captive"].honest is False
    assert found["dead"].honest is None
    assert found["dead"].loss == 1
    assert found["dead"].latency_s == 0
    assert found["working"].honest is True
    assert found["working"].loss == 0
    assert 0 < found["working"].latency_s < 0.6

    fitness = {kind: verdict.fitness for kind, verdict in found.items()}
    works = fitness["working"]
    assert works.keeps_case
    assert works.edns
    assert works.txt
    assert works.longest_name == 253
    assert works.replies.largest > 3_900
    assert works.replies.limit == 0
    assert fitness["recasing"].keeps_case is False
    assert fitness["no_edns"].edns is False
    assert fitness["no_edns"].replies.steps[1:] == (False, False)
    assert fitness["dropping_long"].longest_name == 140
    for kind in ("dropping_large", "cutting_large"):
        assert 600 < fitness[kind].replies.largest < 900
        assert fitness[kind].replies.steps == (True, True, False)


@on_loop
async def test_check_of_a_resolver_with_a_tenth_of_loss_passes(farm: Farm) -> None:
    hosts = farm.hosts(200)
    farm.set(hosts, "working", loss=0.1)
    plan = replace(PLAN, timeout_s=1.0)
    verdicts = await checked(plan, *map(farm.at, hosts), thorough=False)
    assert sum(verdict.passed for verdict in verdicts) >= 195
    assert all(verdict.stage is Stage.HONESTY for verdict in verdicts)
    lost = sum(verdict.asked - verdict.answered for verdict in verdicts)
    assert 10 < lost < 120


@on_loop
async def test_check_takes_another_name_where_one_is_blocked(farm: Farm) -> None:
    host = farm.hosts(1)[0]
    farm.set(host, "working")
    for names in (("blocked.test", "example.com"), ("example.com", "blocked.test")):
        (verdict,) = await checked(replace(PLAN, names=names), farm.at(host), thorough=False)
        assert verdict.passed, verdict
    plan = replace(PLAN, names=("blocked.test", "forged.test"))
    (verdict,) = await checked(plan, farm.at(host), thorough=False)
    assert (verdict.stage, verdict.reason) == (Stage.PLAIN, "answers NXDOMAIN")


@on_loop
async def test_check_of_ourselves_is_recognised() -> None:
    def answer(wire: bytes) -> bytes:
        if OWN.is_own(wire):
            return OWN.reply(wire)
        return reply_wire(wire, [record_wire(1, bytes((9, 9, 9, 9)))])

    async with UdpPeer(answer) as peer:
        (verdict,) = await checked(PLAN, f"{HOST}:{peer.address[1]}")
    assert verdict.is_self
    assert not verdict.passed
    assert verdict.reason == "leads back to this relay"


@on_loop
async def test_reply_that_does_not_belong_to_the_question_is_not_heard() -> None:
    def forged(wire: bytes) -> bytes:
        good = reply_wire(wire, [record_wire(1, bytes((9, 9, 9, 9)))])
        wrong_id = bytes((wire[0] ^ 1,)) + good[1:]
        other_question = good.replace(b"\x07example", b"\x07eXamplf").replace(
            b"\x09wikipedia", b"\x09wikipediz"
        )
        for each in (b"", wire, good[:11], wrong_id, other_question):
            peer.say(each)
        elsewhere.say(good, peer.sources[-1])
        return b"\0"

    async with UdpPeer(forged) as peer, UdpPeer(host=HOST) as elsewhere:
        (verdict,) = await checked(PLAN, f"{HOST}:{peer.address[1]}")
    assert (verdict.stage, verdict.reason) == (Stage.PLAIN, "no answer")
    assert verdict.asked == 3


@on_loop
async def test_resolver_off_the_tunnel_says_so_apart_from_plain_failure(farm: Farm) -> None:
    def answer(wire: bytes) -> bytes:
        return reply_wire(wire)

    reaching, unreaching = farm.hosts(2)
    farm.set(reaching, "working")
    farm.set(unreaching, "unreaching")
    async with UdpPeer(answer) as server:
        farm.forward("t.example.org", server.address)
        plan = replace(PLAN, domain="t.example.org")
        good, bad = await checked(plan, farm.at(reaching), farm.at(unreaching))
    assert good.passed
    assert good.tunnel is True
    assert good.fitness.longest_name == 253
    assert not bad.passed
    assert bad.tunnel is False
    assert bad.honest is True
    assert bad.stage is Stage.TUNNEL
    assert bad.reason == (
        "works, but does not reach the tunnel's server: it says that there is no such domain"
    )
    (down,) = await checked(plan, farm.at(reaching), thorough=False)  # the server is gone
    assert (down.stage, down.tunnel) == (Stage.TUNNEL, False)
    assert down.reason.endswith("no answer comes back")


@on_loop
async def test_fault_of_this_machine_blames_nobody(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = farm.hosts(1)[0]
    farm.set(host, "working")
    here = parse(farm.at(host))
    (verdict,) = await checked(PLAN, replace(here, bind="198.51.100.7"))
    assert verdict.local_fault
    assert verdict.reason.startswith("cannot send from address 198.51.100.7: ")
    (verdict,) = await checked(PLAN, replace(here, bind="no-such-if"))
    assert verdict.local_fault

    checker = Checker(PLAN, no_names)
    try:
        assert (await checker.check(here)).passed
        sockets = next(iter(checker.udp._sources.values()))
        for each in sockets:
            monkeypatch.setattr(each, "sock", _Failing(each.sock, errno.ENETUNREACH))
        verdict = await checker.check(here)
        assert verdict.local_fault
        assert verdict.reason == os.strerror(errno.ENETUNREACH)
        assert not verdict.passed
        monkeypatch.undo()
        for each in sockets:
            monkeypatch.setattr(each, "sock", _Failing(each.sock, errno.ENOBUFS, 2))
        assert (await checker.check(here)).passed
    finally:
        monkeypatch.undo()
        await checker.aclose()


class _Failing:
    """A socket whose sends fail, so many times or for ever."""

    def __init__(self, sock: Any, number: int, times: int = 1_000) -> None:
        self._sock = sock
        self._number = number
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendto(self, *arguments: Any) -> int:
        if self._times:
            self._times -= 1
            raise OSError(self._number, "said by the kernel")
        return int(self._sock.sendto(*arguments))


@on_loop
async def test_bind_and_names_are_heeded(farm: Farm) -> None:
    host = farm.hosts(1)[0]
    farm.set(host, "working")

    async def look_up(address: ResolverAddress) -> list[str]:
        if address.host == "lost.test":
            raise RelayError("the name has no address")
        return [host]

    named, lost = (parse(f"{name}:{farm.port}") for name in ("dns.test", "lost.test"))
    verdicts = await checked(PLAN, named, lost, look_up=look_up)
    assert verdicts[0].passed
    assert verdicts[0].address == named
    assert verdicts[1].reason == "the name has no address"

    def answer(wire: bytes) -> None:
        return None

    async with UdpPeer(answer) as peer:
        address = replace(parse(f"{HOST}:{peer.address[1]}"), bind="127.0.0.3")
        await checked(PLAN, address)
        assert {source[0] for source in peer.sources} == {"127.0.0.3"}


@on_loop
async def test_thousand_checks_at_once_need_few_descriptors(farm: Farm) -> None:
    hosts = farm.hosts(1_000)
    farm.set(hosts, "working", delay_ms=20)
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, hard))
    try:
        plan = replace(PLAN, timeout_s=5.0)
        verdicts = await checked(plan, *map(farm.at, hosts), thorough=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(verdict.passed for verdict in verdicts)
    assert len(os.listdir("/proc/self/fd")) <= before


@on_loop
async def test_check_over_ipv6() -> None:
    def answer(wire: bytes) -> bytes:
        if wire[12] == 40:
            return reply_wire(wire, rcode=3)
        return reply_wire(wire, [record_wire(1, bytes((9, 9, 9, 9)))])

    async with UdpPeer(answer, host="::1") as peer:
        (verdict,) = await checked(PLAN, f"[::1]:{peer.address[1]}", thorough=False)
    assert verdict.passed


@on_loop
async def test_given_up_check_leaves_nothing_behind(farm: Farm) -> None:
    host = farm.hosts(1)[0]
    farm.set(host, "dead")
    checker = Checker(PLAN, no_names)
    task = asyncio.create_task(checker.check(parse(farm.at(host))))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(each.open for each in next(iter(checker.udp._sources.values())))
    await checker.aclose()


def test_plan_that_makes_no_sense_is_an_error() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"names": ("a..b",)}, "empty label"),
        ({"domain": "a" * 64}, "63 octets"),
        ({"command": "'"}, "No closing quotation"),
        ({"size_questions": (". NOTYPE",)}, "expected a name and a type"),
    ]
    for wrong, words in cases:
        plan = replace(PLAN, **wrong)

        async def make(plan: CheckPlan = plan) -> None:
            Checker(plan, no_names)

        with pytest.raises(ValueError, match=words):
            asyncio.run(make())


def test_probe_asks_a_plain_question_and_no_more(farm: Farm) -> None:
    hosts = farm.hosts(4)
    for host, kind in zip(hosts, ("working", "lying", "refusing", "dead"), strict=True):
        farm.set(host, kind)
    plan = replace(PLAN, command="/bin/sleep 60", timeout_s=0.4)

    async def main() -> list[Verdict]:
        checker = Checker(plan, no_names)
        try:
            async with asyncio.timeout(20):
                return await asyncio.gather(*(checker.probe(parse(farm.at(at))) for at in hosts))
        finally:
            await checker.aclose()

    verdicts = asyncio.run(main())
    assert [verdict.answered > 0 for verdict in verdicts] == [True, True, True, False]
    assert not any(verdict.passed for verdict in verdicts)
    assert {verdict.stage for verdict in verdicts} == {Stage.PLAIN}
