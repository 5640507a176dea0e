"""Sizes of replies: the steps, what is learned of the questions, and resolvers of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.discovery.check_messages import HEADER_BYTES
from relay.discovery.check_sizes import (
    DEFAULT_SIZE_QUESTIONS,
    LEARN_TRIES,
    MOST_SILENT,
    SizeQuestions,
    size_question,
)
from relay.discovery.check_udp import Outcome
from relay.discovery.checks import CheckPlan
from relay.discovery.scan_view import reply_text
from relay.discovery.verdict import ReplySizes
from shared.own_question import OwnQuestion
from tests.loopback import on_loop
from tests.rig.farm import ZONES, Farm
from tests.rig.net import why_not_installed
from tests.rig.servers import Nsd
from tests.rig.wire import TYPE_A, TYPE_TXT, record_wire, reply_wire, txt_data
from tests.rig.zone import Record, Zone
from tests.test_checks import checked

PLAN = CheckPlan(OwnQuestion.new(), names=("example.com",), timeout_s=0.6)

STEPS = [
    (0, 0, (None, None, None), 0, "-"),
    (255, 0, (None, None, None), 0, "-"),
    (256, 0, (True, None, None), 0, "512+"),
    (616, 0, (True, True, None), 0, "1232+"),
    (2_048, 0, (True, True, True), 0, "4096"),
    (1_140, 2_700, (True, True, False), 1_232, "1232"),
    (1_400, 2_700, (True, True, False), 1_400, "1232"),
    (390, 1_140, (True, False, False), 512, "512"),
    (100, 390, (False, False, False), 100, "<512"),
    (0, 390, (False, False, False), 1, "<512"),
    # What nobody has looked at is no limit: it may pass all that is below what it failed.
    (86, 3_900, (None, None, False), 1_232, "<4096"),
    (440, 3_900, (True, None, False), 1_232, "512+"),
    (86, 1_140, (None, False, False), 512, "<1232"),
    # It passes 1,140, and not 1,200: that step does not pass, and the limit is what did.
    (1_140, 1_200, (True, False, False), 1_140, "512"),
    # What a larger one did not miss was lost by chance.
    (2_700, 1_140, (True, True, True), 0, "4096"),
    # Too large for every step: that says nothing.
    (1_140, 5_000, (True, True, None), 0, "1232+"),
]


def test_reply_sizes_are_told_in_steps_and_as_a_limit() -> None:
    for largest, missing, steps, limit, shown in STEPS:
        sizes = ReplySizes(largest, missing)
        assert (sizes.steps, sizes.limit, reply_text(sizes)) == (steps, limit, shown), sizes


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 65_535)), max_size=8))
def test_reply_sizes_never_pass_a_step_above_one_that_fails(found: list[tuple[bool, int]]) -> None:
    sizes = ReplySizes()
    for passes, size in found:
        sizes = sizes.passed(size) if passes else sizes.failed(size)
    steps = sizes.steps
    assert list(steps) == sorted(steps, key=lambda each: {True: 0, None: 1, False: 2}[each])


def test_size_question_of_no_name_or_type_is_refused() -> None:
    assert size_question(". DNSKEY")[HEADER_BYTES:].startswith(b"\0\0\x30\0\1\0\0\x29\x10\0")
    assert size_question(" a.example.  txt ") == size_question("a.example TXT")
    for text in ("", "example.com", "TXT", "example.com NONE", "a..b TXT", f"{'a' * 64}.x TXT"):
        with pytest.raises(ValueError, match=r"name|label|type"):
            size_question(text)


class Candidate:
    """Answers size questions as one candidate would: over UDP up to a limit."""

    def __init__(self, sizes: dict[bytes, int], limit: int = 0, *, tcp: bool = True) -> None:
        self.sizes = {size_question(text.decode()): size for text, size in sizes.items()}
        self.limit = limit
        self.tcp = tcp
        self.asked = self.asked_over_tcp = 0

    async def ask(self, *questions: bytes) -> Outcome:
        self.asked += 1
        reply = self._reply(questions[0])
        if self.limit and len(reply) > self.limit:
            reply = reply_wire(questions[0], flags=0x8380)
        return Outcome(reply, 0, 0.01, 1)

    async def ask_over_tcp(self, *questions: bytes) -> Outcome:
        self.asked_over_tcp += 1
        return Outcome(self._reply(questions[0]), 0, 0.01, 1) if self.tcp else Outcome()

    def _reply(self, question: bytes) -> bytes:
        data = txt_data(self.sizes[question])
        return reply_wire(question, [record_wire(TYPE_TXT, data)] if data else [])


EVERY = dict(
    zip(
        map(str.encode, DEFAULT_SIZE_QUESTIONS),
        (1_100, 800, 2_700, 2_200, 3_300, 350, 330),
        strict=True,
    )
)


def test_size_questions_are_asked_no_more_than_they_tell() -> None:
    questions = SizeQuestions(DEFAULT_SIZE_QUESTIONS)

    async def main() -> None:
        first = Candidate(EVERY, limit=1_232)
        assert (await questions.measure(first.ask, first.ask_over_tcp, 100)).limit == 1_232
        assert first.asked_over_tcp == 1
        learning = Candidate(EVERY, limit=512)
        await questions.measure(learning.ask, learning.ask_over_tcp, 0)
        assert learning.asked_over_tcp <= len(EVERY) - 2
        for _ in range(5):
            typical = Candidate(EVERY, limit=1_232)
            sizes = await questions.measure(typical.ask, typical.ask_over_tcp, 100)
            assert sizes.steps == (True, True, False)
            assert (typical.asked, typical.asked_over_tcp) == (2, 0)
            large = Candidate(EVERY)
            assert None not in (await questions.measure(large.ask, large.ask_over_tcp, 0)).steps
            assert large.asked == 2
            small = Candidate(EVERY, limit=512)
            sizes = await questions.measure(small.ask, small.ask_over_tcp, 0)
            assert (sizes.steps, sizes.limit) == ((True, False, False), 512)
            assert small.asked_over_tcp == 0

    asyncio.run(main())


def test_size_that_nobody_shows_decides_nothing_and_is_looked_for_a_few_times() -> None:
    questions = SizeQuestions(("a.example TXT",))

    async def main() -> None:
        asked_over_tcp = 0
        for _ in range(3 * LEARN_TRIES):
            candidate = Candidate({b"a.example TXT": 2_500}, limit=512, tcp=False)
            sizes = await questions.measure(candidate.ask, candidate.ask_over_tcp, 300)
            assert sizes.steps == (True, None, None)
            asked_over_tcp += candidate.asked_over_tcp
        assert asked_over_tcp == LEARN_TRIES
        shows = Candidate({b"a.example TXT": 2_500})
        await questions.measure(shows.ask, shows.ask_over_tcp, 0)
        candidate = Candidate({b"a.example TXT": 2_500}, limit=512, tcp=False)
        sizes = await questions.measure(candidate.ask, candidate.ask_over_tcp, 300)
        assert sizes.steps == (True, None, False)

    asyncio.run(main())


def test_sizes_on_a_network_without_tcp_keep_nobody_waiting_for_each_other() -> None:
    async def main() -> None:
        questions = SizeQuestions(DEFAULT_SIZE_QUESTIONS)
        asked = most_at_once = at_once = 0
        let_go = asyncio.Event()

        async def silent(*_: bytes) -> Outcome:
            nonlocal asked, most_at_once, at_once
            asked += 1
            at_once += 1
            most_at_once = max(most_at_once, at_once)
            await let_go.wait()
            let_go.clear()
            at_once -= 1
            return Outcome()

        candidates = [Candidate(EVERY, limit=300) for _ in range(40)]
        measures = [
            asyncio.ensure_future(questions.measure(each.ask, silent, 100)) for each in candidates
        ]
        turns = 0
        while not all(measure.done() for measure in measures):
            for _ in range(100):
                await asyncio.sleep(0)
            turns += 1
            let_go.set()
            assert turns <= MOST_SILENT + LEARN_TRIES, "one after the other"
        assert most_at_once == LEARN_TRIES
        assert asked <= MOST_SILENT + LEARN_TRIES
        # A candidate that is alone is asked there once.
        alone = Candidate(EVERY, limit=300, tcp=False)
        await SizeQuestions(DEFAULT_SIZE_QUESTIONS).measure(alone.ask, alone.ask_over_tcp, 100)
        assert alone.asked_over_tcp == 1

    asyncio.run(main())


def test_size_that_a_liar_claims_keeps_nobody_from_being_measured() -> None:
    async def main() -> None:
        questions = SizeQuestions(DEFAULT_SIZE_QUESTIONS)
        liar = Candidate(dict.fromkeys(EVERY, 60_000))
        await questions.measure(liar.ask, liar.ask_over_tcp, 100)
        liar.limit = 512  # it cuts, and brings as much over TCP
        await questions.measure(liar.ask, liar.ask_over_tcp, 100)
        honest = Candidate(EVERY, limit=1_232)
        sizes = await questions.measure(honest.ask, honest.ask_over_tcp, 100)
        assert sizes.steps == (True, True, False)

    asyncio.run(main())


def test_size_question_that_is_refused_or_has_shrunk_or_outgrown_decides_nothing() -> None:
    async def measured(*sizes: int, limit: int = 1_232) -> ReplySizes:
        texts = [f"{number}.example TXT" for number in range(len(sizes))]
        candidate = Candidate(dict(zip(map(str.encode, texts), sizes, strict=True)), limit)
        questions = SizeQuestions(texts)
        return await questions.measure(candidate.ask, candidate.ask_over_tcp, 0)

    async def refuse(*questions: bytes) -> Outcome:
        return Outcome(reply_wire(questions[0], rcode=5), 0, 0.01, 1)

    async def main() -> None:
        assert (await measured(40, 6_000)).steps == (None, None, None)
        assert (await measured(40, 6_000, 2_500)).steps == (None, None, False)
        refused = await SizeQuestions(DEFAULT_SIZE_QUESTIONS).measure(refuse, refuse, 0)
        assert refused.steps == (None, None, None)

    asyncio.run(main())


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with Farm(workdir=tmp_path_factory.mktemp("farm"), zones=(*ZONES, "test")) as farm:
        yield farm


KINDS = [
    ("working", {}, (True, True, True), 0),
    ("working", {"largest_reply": 1_232, "cuts": True}, (True, True, False), 1_232),
    ("working", {"largest_reply": 1_232}, (True, True, False), 1_232),
    ("working", {"largest_reply": 1_000, "cuts": True}, (True, False, False), 512),
    ("working", {"largest_reply": 512}, (True, False, False), 512),
    ("working", {"largest_reply": 300, "cuts": True}, (False, False, False), 0),
    ("no_edns", {}, (True, False, False), 512),
    ("recasing", {}, (True, True, True), 0),
]


@on_loop
async def test_check_measures_replies_in_the_three_steps(farm: Farm) -> None:
    hosts = farm.hosts(len(KINDS) + 2)
    for host, (kind, traits, _, _) in zip(hosts, KINDS, strict=False):
        farm.set(host, kind, **traits)
    over_tcp, small_over_tcp = hosts[-2:]
    farm.set(over_tcp, "working")
    farm.set(small_over_tcp, "working", largest_reply=512)
    addresses = [*map(farm.at, hosts[:-2]), *(f"tcp://{farm.at(host)}" for host in hosts[-2:])]
    verdicts = await checked(PLAN, *addresses)
    assert all(verdict.passed for verdict in verdicts)
    for verdict, (_, traits, steps, limit) in zip(verdicts, KINDS, strict=False):
        replies = verdict.fitness.replies
        told = (traits, replies)
        assert replies.steps == steps, told
        assert replies.limit == (limit or (replies.largest if False in steps else 0)), told
        # What does not pass for its size is no loss.
        assert verdict.loss == 0, told
    # Streams cut nothing.
    for verdict in verdicts[-2:]:
        assert verdict.fitness.replies.steps == (True, True, True)


@on_loop
async def test_check_measures_with_questions_of_the_users_own(farm: Farm) -> None:
    own = tuple(f"text-{size}.test TXT" for size in (440, 1_150, 4_000))
    cut_at_900, whole = farm.hosts(2)
    farm.set(cut_at_900, "cutting_large")
    farm.set(whole, "working")
    verdicts = await checked(replace(PLAN, size_questions=own), farm.at(cut_at_900), farm.at(whole))
    small, large = (verdict.fitness.replies for verdict in verdicts)
    assert (small.steps, small.limit) == ((True, False, False), 512)
    assert (large.steps, large.limit) == ((True, True, True), 0)
    assert 4_000 < large.largest <= 4_096


@on_loop
async def test_check_where_the_large_names_are_blocked_knows_no_limit(farm: Farm) -> None:
    host = farm.hosts(1)[0]
    farm.set(host, "working", largest_reply=1_232, cuts=True)
    asked = (". DNSKEY", "blocked.example TXT", "blocked.invalid TXT")
    (verdict,) = await checked(replace(PLAN, size_questions=asked), farm.at(host))
    assert (verdict.fitness.replies.steps, verdict.fitness.replies.limit) == ((True, True, None), 0)


@pytest.mark.skipif(bool(why_not_installed("nsd")), reason=why_not_installed("nsd"))
def test_check_measures_a_real_server_by_what_it_is_set_to(tmp_path: Path) -> None:
    """nsd cuts what is larger than its EDNS size, and brings it whole over TCP."""
    address = bytes((9, 9, 9, 9))
    records = [Record("example.com", TYPE_A, address)] + [
        Record(f"text-{size}.com", TYPE_TXT, txt_data(size)) for size in (440, 1_150, 3_900)
    ]
    zone = Zone("com", records, wildcard_text_bytes=None)
    own = tuple(f"text-{size}.com TXT" for size in (3_900, 1_150, 440))
    plan = replace(PLAN, size_questions=own, timeout_s=2.0)
    expected = {
        512: ((True, False, False), 512),
        1_232: ((True, True, False), 1_232),
        4_096: ((True, True, True), 0),
    }
    with ExitStack() as stack:
        servers = {
            size: stack.enter_context(Nsd([zone], workdir=tmp_path, edns_size_bytes=size))
            for size in expected
        }

        @on_loop
        async def run() -> None:
            verdicts = await checked(plan, *(str(each.address) for each in servers.values()))
            for (size, wanted), verdict in zip(expected.items(), verdicts, strict=True):
                replies = verdict.fitness.replies
                assert verdict.passed, (size, verdict)
                assert (replies.steps, replies.limit) == wanted, (size, replies)

        run()
