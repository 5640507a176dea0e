"""Told to stop: what is open is answered, nothing is thrown away, a second time ends it at once."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from tests.load_client import (
    number_of,
    numbered,
    small_buffer_link,
)
from tests.rig import (
    Asked,
    Relay,
    Reply,
    Say,
    ScriptedResolver,
    read_framed,
    receive_all,
    reply_of_size,
    reply_wire,
    udp_client,
)
from tests.rig.process import wait_until
from tests.rig.wire import TYPE_NULL, framed

DELAY_S = 0.3


def slow_answer(asked: Asked) -> Reply:
    return Say(reply_wire(asked.wire), after_s=DELAY_S)


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 4), (signal.SIGINT, 1)])
def test_told_to_stop_with_200_queries_open_all_are_answered_and_status_is_0(
    number: signal.Signals, workers: int, workdir: Path
) -> None:
    half = 100
    with (
        ScriptedResolver(slow_answer) as resolver,
        Relay([resolver.address], workdir=workdir, workers=workers) as relay,
        udp_client(relay.address) as client,
        socket.create_connection(relay.address, 5.0) as link,
    ):
        wires = [numbered(each) for each in range(2 * half)]
        link.sendall(b"".join(map(framed, wires[half:])))
        for wire in wires[:half]:
            client.send(wire)
        resolver.wait_for_count(2 * half)
        told_at = time.monotonic()
        relay.popen.send_signal(number)
        replies = receive_all(client, half)
        replies += [read_framed(link) for _ in range(half)]
        assert relay.popen.wait(5.0) == 0
        took_s = time.monotonic() - told_at
        assert link.recv(1) == b""
    assert sorted(replies, key=number_of) == [reply_wire(wire) for wire in wires]
    print(f"\n{workers} workers told to stop with {2 * half} open: ended after {took_s:.3f} s")
    assert took_s < DELAY_S + 1.0


def test_told_to_stop_client_that_reads_late_gets_all_its_large_answers(workdir: Path) -> None:
    """What the relay has for a TCP client is not thrown away with the process."""
    queries = 60

    def answer(asked: Asked) -> Reply:
        return Say(reply_of_size(asked.wire, 60_000, TYPE_NULL), after_s=DELAY_S)

    with (
        ScriptedResolver(answer) as resolver,
        Relay([f"tcp://{resolver.address}"], workdir=workdir, workers=1) as relay,
        small_buffer_link(relay.address) as link,
    ):
        wires = {each: numbered(each) for each in range(queries)}
        link.sendall(b"".join(map(framed, wires.values())))
        resolver.wait_for_count(queries)
        relay.popen.send_signal(signal.SIGTERM)
        relay.wait_for_log("stopping")
        first = read_framed(link)  # they come now; the client takes its time
        time.sleep(DELAY_S)
        replies = [first, *(read_framed(link) for _ in range(queries - 1))]
        assert relay.popen.wait(5.0) == 0
    assert {number_of(reply) for reply in replies} == set(wires)


def test_told_twice_to_stop_with_200_queries_open_ends_at_once(workdir: Path) -> None:
    with (
        ScriptedResolver(lambda _: None) as resolver,
        Relay([resolver.address], workdir=workdir, workers=2) as relay,
        udp_client(relay.address) as client,
    ):
        workers = relay.workers()
        for number in range(200):
            client.send(numbered(number))
        resolver.wait_for_count(200)
        relay.popen.send_signal(signal.SIGTERM)
        relay.wait_for_log("stopping")
        told_at = time.monotonic()
        relay.popen.send_signal(signal.SIGTERM)
        assert relay.popen.wait(5.0) == 0
        took_s = time.monotonic() - told_at
        wait_until(lambda: not any(each.is_running() for each in workers), "workers gone", 2.0)
    print(f"\ntold twice: ended {took_s:.3f} s after the second time")
    assert took_s < 1.0
