"""One download through a tunnel: how much came, how fast, over how many questions."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.tunnels.layouts import Count, counts_since, read_counts
from tests.rig import Address, Dnsdist

_CHUNK_BYTES = 65_536
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Download:
    """What one download came to. The time runs from the request, the opening of the stream too."""

    size_bytes: int
    seconds: float
    is_complete: bool
    """Whether it came as far as it was to: the whole file, or to the end of its time."""
    counts: tuple[Count, ...]
    """Of each resolver, in the time of the download."""

    @property
    def kbit_s(self) -> float:
        return self.size_bytes * 8 / 1000 / self.seconds

    @property
    def questions_per_s(self) -> float:
        """Questions that reached the resolvers, per second."""
        return sum(each.questions for each in self.counts) / self.seconds

    @property
    def answers_per_s(self) -> float:
        """Answers that the resolvers had from the tunnel's server, per second."""
        return sum(each.answers for each in self.counts) / self.seconds

    @property
    def answer_bytes(self) -> float:
        """Payload per answer."""
        answers = sum(each.answers for each in self.counts)
        return self.size_bytes / answers if answers else 0.0

    @property
    def first_share(self) -> float:
        """Share of the questions that the first resolver got."""
        questions = sum(each.questions for each in self.counts)
        return self.counts[0].questions / questions if questions else 0.0


def download(
    client: Address,
    resolvers: Sequence[Dnsdist],
    *,
    most_s: float,
    most_bytes: int | None = None,
    after_s: float = 0.0,
) -> Download:
    """Get the file behind the tunnel's client for `most_s`, or until `most_bytes` have come.

    The measuring begins `after_s` into the download.
    """
    before = read_counts(resolvers)
    started_at = time.monotonic()
    measured_at = started_at
    received = _Received()
    with socket.create_connection(client, _LOOK_S) as link:
        link.sendall(b"GET\n")
        if after_s:
            _receive(link, received, lambda: time.monotonic() - started_at >= after_s)
            before, measured_at = read_counts(resolvers), time.monotonic()
            received.size_bytes = 0
        give_up_at = measured_at + most_s
        _receive(
            link,
            received,
            lambda: (
                time.monotonic() >= give_up_at
                or (most_bytes is not None and received.size_bytes >= most_bytes)
            ),
        )
        seconds = time.monotonic() - measured_at
        counts = counts_since(resolvers, before)
    whole = most_bytes is None or received.size_bytes >= most_bytes
    return Download(received.size_bytes, seconds, whole and not received.has_ended, tuple(counts))


@dataclass(slots=True)
class _Received:
    size_bytes: int = 0
    has_ended: bool = False
    """The stream broke off."""


def _receive(link: socket.socket, received: _Received, is_enough: Callable[[], bool]) -> None:
    while not received.has_ended and not is_enough():
        try:
            data = link.recv(_CHUNK_BYTES)
        except TimeoutError:
            continue
        except OSError:
            data = b""
        received.size_bytes += len(data)
        received.has_ended = not data
