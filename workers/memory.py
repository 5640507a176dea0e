"""Memory that is no longer used, given back to the system.

For rare moments at which much was dropped: it takes about a millisecond.
"""

from __future__ import annotations

import ctypes
import gc

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc


def give_back() -> None:
    """Free what is left in cycles, and the pages that malloc keeps for itself."""
    gc.collect()
    if _trim is not None:
        # TLS takes and frees blocks of many sizes. Three times what is in use was seen to pile up
        # in between, free and not used again.
        _trim(0)
