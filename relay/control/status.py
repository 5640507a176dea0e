"""The state of the running relay as plain data, read from the board.

Owner: the supervisor. Reading costs nothing to the workers. Names of queries are nowhere in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from relay.resolver_address import ResolverAddress
from relay.roster import Member
from relay.supervisor import State as WorkerState
from relay.supervisor import Worker
from shared import layout
from shared.board import Board
from workers.engine.health import State

Faults = Mapping[int, Mapping[int, str]]
"""What keeps a resolver from being used: slot, then worker that says so."""


def worker_status(worker: Worker, pid: int | None) -> dict[str, Any]:
    """Return one worker as `/status` shows it."""
    return {
        "index": worker.index,
        "pid": pid,
        "state": worker.state.value,
        "restarts": worker.restarts,
    }


def pool_counts(board: Board, pool: int) -> dict[str, Any]:
    """Return what a pool has counted since start, over all workers."""
    dropped = {
        reason: board.pool_total(pool, layout.POOL_DROPPED + offset)
        for offset, reason in enumerate(layout.DROP_REASONS)
    }
    return {
        "queries": board.pool_total(pool, layout.POOL_QUERIES),
        "answers": board.pool_total(pool, layout.POOL_ANSWERS),
        "failures": board.pool_total(pool, layout.POOL_FAILURES),
        "dropped": dropped,
    }


def resolvers_status(
    board: Board,
    members: Sequence[Member],
    faults: Faults,
    failed: Mapping[ResolverAddress, str],
) -> list[dict[str, Any]]:
    """Return the resolvers of a pool as `/status` shows them. `failed`: their last check, and why.

    Those that would look alike, as with two logins to one proxy, are numbered.
    """
    alike = Counter(member.address.shown for member in members)
    numbers: Counter[str] = Counter()
    shown = []
    for member in members:
        status = resolver_status(board, member, faults)
        status["fault"] = status["fault"] or failed.get(member.address)
        address = member.address.shown
        if alike[address] > 1:
            numbers[address] += 1
            status["address"] = f"{address} ({numbers[address]})"
        shown.append(status)
    return shown


def resolver_status(board: Board, member: Member, faults: Faults) -> dict[str, Any]:
    """Return one resolver as `/status` shows it. One whose name has no address yet is down."""
    entry = member.entry
    if entry is None:
        return {
            "address": member.address.shown,
            "state": "down",
            "latency_ms": None,
            "loss": None,
            "ceiling_qps": None,
            "longest_name": None,
            "largest_reply": None,
            **dict.fromkeys(("sent", "answered", "refused", "lost", "errors"), 0),
            "fault": member.fault or "its name is being resolved",
        }
    words = board.words
    base = board.at.resolver(entry.slot)
    counts = {
        "sent": board.counter_total(entry.slot, layout.COUNTER_SENT),
        "answered": board.counter_total(entry.slot, layout.COUNTER_ANSWERED),
        "refused": board.counter_total(entry.slot, layout.COUNTER_REFUSED),
        "lost": board.counter_total(entry.slot, layout.COUNTER_LOST),
        "errors": board.counter_total(entry.slot, layout.COUNTER_ERRORS),
    }
    judged = counts["answered"] + counts["refused"] + counts["lost"]
    latency_ns = words[base + layout.RESOLVER_LATENCY]
    ceiling = words[base + layout.RESOLVER_CEILING]
    return {
        "address": entry.name,
        "state": state_of(board, entry.slot).name.lower(),
        "latency_ms": latency_ns / 1e6 if latency_ns else None,
        "loss": words[base + layout.RESOLVER_LOSS] / 1e6 if judged else None,
        "ceiling_qps": ceiling / 1e6 if ceiling else None,
        "longest_name": entry.longest_name or None,
        "largest_reply": entry.largest_reply or None,
        **counts,
        "fault": next(iter(faults.get(entry.slot, {}).values()), None) or member.fault or None,
    }


def state_of(board: Board, slot: int) -> State:
    """Return the state of a resolver."""
    return State(board.words[board.at.resolver(slot) + layout.RESOLVER_STATE])


def ill_health(
    board: Board, workers: Sequence[Worker], pools: Mapping[str, Sequence[Member]]
) -> str:
    """Return why the relay should not be sent queries, an empty string where it may."""
    missing = [w.index for w in workers if w.state is not WorkerState.READY]
    if missing:
        names = ", ".join(str(index) for index in missing)
        return f"not ready: worker{'s' if len(missing) > 1 else ''} {names}"
    for name, members in pools.items():
        if not any(m.entry and state_of(board, m.entry.slot) is not State.DOWN for m in members):
            return f"every resolver of pool {name} is down"
    return ""
