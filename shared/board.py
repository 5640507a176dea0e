"""The board: an anonymous memory file that the supervisor makes and every worker maps.

It is passed by descriptor, so there is no name to leak and it is gone with the last process. Words
are read and written through `memoryview.cast("q")`: one aligned 8-byte load or store each, which
no reader can see half done. What each word means and who may write it: `shared.layout`.
"""

from __future__ import annotations

import mmap
import os

from shared import layout
from shared.errors import LayoutMismatch, RelayError
from shared.layout import Layout

MAX_WORKERS = 256
MAX_POOLS = 256
MAX_SLOTS = 65_536


class Board:
    """A mapped board. `words` is the array, `at` says where the blocks lie, `fd` is the file."""

    __slots__ = ("_map", "at", "fd", "words")

    def __init__(self, fd: int, at: Layout) -> None:
        self.fd = fd
        self.at = at
        self._map = mmap.mmap(fd, at.size_bytes)
        self.words: memoryview[int] = memoryview(self._map).cast("q")

    def __repr__(self) -> str:
        at = self.at
        return f"<Board workers={at.workers} pools={at.pools} slots={at.slots}>"

    @classmethod
    def create(cls, workers: int, pools: int, slots: int) -> Board:
        """Make a board of zeroes with its header. Every resolver starts without a keeper."""
        for name, value, most in (
            ("workers", workers, MAX_WORKERS),
            ("pools", pools, MAX_POOLS),
            ("slots", slots, MAX_SLOTS),
        ):
            if not 1 <= value <= most:
                raise RelayError(f"a board takes 1 to {most} {name}, not {value}")
        at = Layout(workers, pools, slots)
        fd = os.memfd_create("relay-board", os.MFD_CLOEXEC)
        os.ftruncate(fd, at.size_bytes)
        board = cls(fd, at)
        words = board.words
        words[layout.HEADER_WORKERS] = workers
        words[layout.HEADER_POOLS] = pools
        words[layout.HEADER_SLOTS] = slots
        for slot in range(slots):
            words[at.resolver(slot) + layout.RESOLVER_KEEPER] = -1
        words[layout.HEADER_VERSION] = layout.VERSION
        words[layout.HEADER_MAGIC] = layout.MAGIC
        return board

    @classmethod
    def attach(cls, fd: int) -> Board:
        """Map the board behind a descriptor that was handed over.

        Raises LayoutMismatch when the file is not a board of this version or has another size
        than its header claims.
        """
        size_bytes = os.fstat(fd).st_size
        header_bytes = layout.HEADER_WORDS * layout.WORD_SIZE_BYTES
        if size_bytes < header_bytes:
            raise LayoutMismatch(f"the board has {size_bytes} bytes, its header alone takes more")
        header = memoryview(os.pread(fd, header_bytes, 0)).cast("q")
        if header[layout.HEADER_MAGIC] != layout.MAGIC:
            raise LayoutMismatch("the descriptor handed over is not a relay board")
        if header[layout.HEADER_VERSION] != layout.VERSION:
            raise LayoutMismatch(
                f"the board has layout version {header[layout.HEADER_VERSION]}, "
                f"this program knows version {layout.VERSION}"
            )
        at = Layout(
            header[layout.HEADER_WORKERS],
            header[layout.HEADER_POOLS],
            header[layout.HEADER_SLOTS],
        )
        in_range = (
            1 <= at.workers <= MAX_WORKERS
            and 1 <= at.pools <= MAX_POOLS
            and 1 <= at.slots <= MAX_SLOTS
        )
        if not in_range or at.size_bytes != size_bytes:
            raise LayoutMismatch(f"the board has {size_bytes} bytes, its header says otherwise")
        return cls(fd, at)

    def clear_slot(self, slot: int) -> None:
        """Zero a slot for its next tenant. Supervisor only, while no roster holds the slot."""
        words = self.words
        base = self.at.resolver(slot)
        for offset in range(layout.RESOLVER_WORDS):
            words[base + offset] = 0
        words[base + layout.RESOLVER_KEEPER] = -1
        for worker in range(self.at.workers):
            base = self.at.counters(worker, slot)
            for offset in range(layout.COUNTER_WORDS):
                words[base + offset] = 0

    def counter_total(self, slot: int, counter: int) -> int:
        """Return a COUNTER_ word of a slot summed over all workers."""
        words = self.words
        at = self.at
        return sum(words[at.counters(worker, slot) + counter] for worker in range(at.workers))

    def pool_total(self, pool: int, counter: int) -> int:
        """Return a POOL_ word of a pool summed over all workers."""
        words = self.words
        at = self.at
        return sum(words[at.pool(worker, pool) + counter] for worker in range(at.workers))

    def close(self) -> None:
        """Unmap and close. The file lives on in the other processes."""
        self.words.release()
        self._map.close()
        os.close(self.fd)
