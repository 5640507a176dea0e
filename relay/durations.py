"""Durations as a person writes them: "300ms", "5s", "1m30s".

Used by: the configuration. Values are seconds everywhere else in the project.
"""

from __future__ import annotations

import re
from typing import Final

from relay.config_errors import DurationError

_UNIT_S: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|µs|ms|s|m|h)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")
_LOOSE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_SPELLED: Final = {
    "": "s",
    **dict.fromkeys(("sec", "secs", "second", "seconds", "s"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes", "m"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours", "h"), "h"),
    **dict.fromkeys(("msec", "msecs", "millisecond", "milliseconds", "ms"), "ms"),
}
_LONGEST_TEXT: Final = 32


def parse_duration(text: str) -> float:
    """Return the seconds that `text` names; raise `DurationError` where it names none."""
    plain = text.strip()
    if len(plain) > _LONGEST_TEXT:
        raise DurationError('not a duration such as "300ms", "5s" or "1m"', text=text)
    if plain == "0":
        return 0.0
    if _WHOLE.fullmatch(plain):
        return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(plain))
    loose = _LOOSE.fullmatch(plain)
    unit = _SPELLED.get(loose[2].lower(), "") if loose else ""
    meant = f"{loose[1]}{unit}" if loose and unit else ""
    reason = "a duration needs a unit" if loose and not loose[2] else "not a duration"
    example = "" if meant else ' such as "300ms", "5s" or "1m"'
    raise DurationError(reason + example, meant, text)


def parse_duration_within(text: str, lowest_s: float, highest_s: float) -> float:
    """Return the seconds that `text` names; raise `DurationError` where they are out of bounds too.

    What the error suggests is within them.
    """

    def read(each: str) -> float:
        duration_s = parse_duration(each)
        if not lowest_s <= duration_s <= highest_s:
            bounds = f"{duration_text(lowest_s)} to {duration_text(highest_s)}"
            raise DurationError(f"expected a duration from {bounds}", text=each)
        return duration_s

    try:
        return read(text)
    except DurationError as error:
        raise error.vetted(read) from None


def duration_text(duration_s: float) -> str:
    """Return seconds in the largest unit that shows them as a whole number, as a person would."""
    for unit in ("h", "m", "s", "ms"):
        count = duration_s / _UNIT_S[unit]
        if count >= 1 and count == round(count):
            return f"{count:.0f}{unit}"
    milliseconds = f"{duration_s * 1e3:.3f}".rstrip("0").rstrip(".")
    return "0" if milliseconds == "0" else f"{milliseconds}ms"
