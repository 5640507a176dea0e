"""What can be wrong with a configuration, and where.

Used by: everything that reads what a person typed. A `BadValue` says what is wrong with one value
and knows no place; a `Problem` adds file, line, column and field path; `ConfigProblems` carries all
the problems of one reading, so that a person sees them at once and not one after the other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from shared.errors import RelayError
from shared.printable import printable, quoted

Path = tuple[str | int, ...]
"""Where in a document a value stands: keys and indices from the top."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ConfigError(RelayError):
    """The command line or the configuration is wrong."""


class BadValue(ConfigError):
    """One value cannot be read; says why and, where there is one, what was probably meant."""

    def __init__(self, reason: str, suggestion: str = "", text: str = "") -> None:
        self.reason = reason
        self.suggestion = suggestion
        self.text = text
        super().__init__(reason, suggestion, text)

    def about(self, text: str) -> BadValue:
        """Return the same error, naming the text it is about."""
        return type(self)(self.reason, self.suggestion, text)

    def vetted(self, read: Callable[[str], object]) -> Self:
        """Return the same error, without a suggestion that `read` does not take or nobody sees."""
        if self.suggestion:
            try:
                read(self.suggestion)
            except BadValue:
                return type(self)(self.reason, "", self.text)
            if printable(self.suggestion) != self.suggestion:
                return type(self)(self.reason, "", self.text)
        return self

    def __str__(self) -> str:
        is_named = self.reason.startswith(quoted(self.text))
        head = f"{quoted(self.text)}: " if self.text and not is_named else ""
        tail = f"; did you mean {quoted(self.suggestion)}?" if self.suggestion else ""
        return f"{head}{self.reason}{tail}"


class AddressError(BadValue):
    """An address cannot be read."""


class DurationError(BadValue):
    """A duration cannot be read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and its place. Line and column count from 1; 0 means unknown."""

    message: str
    path: Path = ()
    source: str = ""
    """The file; empty for what came from the command line."""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = printable(self.source, 4096)
        if self.line:
            place += f":{self.line}"
            if self.column:
                place += f":{self.column}"
        parts = [place, path_text(self.path), self.message]
        return ": ".join(part for part in parts if part)


class ConfigProblems(ConfigError):
    """Everything that is wrong with a configuration, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def is_flag(path: Path) -> bool:
    """Return whether a path names a flag of the command line, not a place in a file."""
    return bool(path) and str(path[0]).startswith("--")


def path_text(path: Path) -> str:
    """Return a path as `pools[0].smart_pool.deadline`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{quoted(step)}]"
    return text


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the one of `names` that `name` was probably meant to be, else an empty string."""
    plain = name[:64].lower().replace("-", "_")
    found = difflib.get_close_matches(plain, list(names), n=1, cutoff=0.6)
    return found[0] if found else ""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean "..."?` for the nearest of `names`, or an empty string."""
    near = nearest(name, names)
    return f"; did you mean {quoted(near)}?" if near else ""


def listed(names: Sequence[str]) -> str:
    """Return names as `a, b or c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
