"""What is told of the candidates that failed."""

from __future__ import annotations

from relay.discovery.tally import RECENT, Tally
from relay.discovery.verdict import Stage, Verdict
from relay.resolver_address import parse


def test_tally_tells_once_why_each_was_refused_and_counts_the_silent() -> None:
    tally = Tally()
    silent = Verdict(parse("dot://192.0.2.1"), False, Stage.PLAIN, "TLS handshake timed out")
    untrusted = Verdict(parse("dot://192.0.2.2"), False, Stage.PLAIN, "has expired", heard=True)
    for _ in range(3):
        tally.take(silent, is_early=False)
        tally.take(untrusted, is_early=False)
    status = tally.status()
    assert status["failed_at"] == {"plain": 6}
    verdict = "fails the plain check: has expired"
    assert status["recent"] == [{"address": "dot://192.0.2.2:853", "verdict": verdict}]

    for number in range(RECENT):
        address = parse(f"dot://192.0.2.{number + 3}")
        tally.take(Verdict(address, False, Stage.PLAIN, "no", heard=True), is_early=False)
    recent = tally.status()["recent"]
    assert len(recent) == RECENT
    assert recent[-1]["address"] == f"dot://192.0.2.{RECENT + 2}:853"
    assert all(each["verdict"] != verdict for each in recent)
