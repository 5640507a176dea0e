"""Configuration files: read, taken apart, and searched for the place of a value.

Used by: `relay.config`, where there is a file. JSON may have comments (`//`, `/* */`) and trailing
commas: both are blanked out with spaces, so that the standard parser reads what is left and its
line and column are those of the file. TOML is read by the standard library.
Bounds: size and depth are limited before anything is built from them.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from relay.config_errors import ConfigProblems, Problem, is_flag
from relay.config_errors import Path as Place
from shared.printable import quoted

LARGEST_FILE_BYTES: Final = 16 << 20
DEEPEST_NESTING: Final = 64
_LONGEST_NUMBER: Final = 400

_TOKEN: Final = re.compile(
    r'(?P<string>"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+(?P<closed>"?+))'
    r"|(?P<comment>//[^\n]*+|/\*)"
    r"|(?P<mark>[\[\]{},:])"
    r'|(?P<scalar>[^\s\[\]{},:"/]++|/)'
)
_TOML_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.-]+)\s*\]\]?")
_TOML_KEY: Final = re.compile(r"(\s*)([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*=")
_TOML_PLACE: Final = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.S)


@dataclass(frozen=True, slots=True)
class Document:
    """A file that could be taken apart."""

    path: Path
    is_toml: bool
    text: str
    """The text that the values were read from: of JSON, with comments blanked out."""
    data: dict[str, Any]

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """Return `problems` with this file and, where their path is found in it, their place.

        They come in the order of the file.
        """
        known = list(problems)
        wanted = {p.path[:n] for p in known for n in range(1, len(p.path) + 1)}
        found = (_toml_places if self.is_toml else _json_places)(self.text, wanted)
        placed = [self._at(problem, found) for problem in known]
        return sorted(placed, key=lambda problem: (problem.line == 0, problem.line, problem.column))

    def _at(self, problem: Problem, found: dict[Place, tuple[int, int]]) -> Problem:
        if is_flag(problem.path):
            return problem
        problem = replace(problem, source=str(self.path))
        # What is missing has no place; then the nearest thing around it has.
        for length in range(len(problem.path), 0, -1):
            if place := found.get(problem.path[:length]):
                return replace(problem, line=place[0], column=place[1])
        return problem


def read_document(path: Path) -> Document:
    """Return what `path` holds; raise `ConfigProblems` with its place where it cannot be read."""
    source = str(path)
    text = _decoded(source, _read(source, path))
    if not text.strip():
        _fail(source, "the file is empty")
    if _is_toml(path, text):
        return Document(path, True, text, _parse_toml(source, text))
    plain = _blanked(source, text)
    return Document(path, False, plain, _parse_json(source, plain))


def _fail(source: str, message: str, text: str = "", offset: int = -1) -> NoReturn:
    line, column = _line_column(text, offset) if offset >= 0 else (0, 0)
    raise ConfigProblems([Problem(message, (), source, line, column)])


def _line_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _read(source: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        _fail(source, getattr(error, "strerror", None) or str(error))
    if len(data) > LARGEST_FILE_BYTES:
        _fail(source, f"the file is larger than {LARGEST_FILE_BYTES >> 20} MiB")
    return data


def _decoded(source: str, data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        _fail(source, "the file is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig", "replace")
        byte = error.object[error.start]
        _fail(source, f"the byte 0x{byte:02x} is not UTF-8", good, len(good))


def _is_toml(path: Path, text: str) -> bool:
    suffix = path.suffix.lower()
    if suffix in (".toml", ".json", ".jsonc", ".json5"):
        return suffix == ".toml"
    return text.lstrip()[0] not in "{/"


def _parse_toml(source: str, text: str) -> dict[str, Any]:
    deep = "nested too deep to be a configuration"
    try:
        data = tomllib.loads(text)
    except RecursionError:
        _fail(source, deep)
    except ValueError as error:  # its own error, and an integer of thousands of digits
        message, line, column = str(error), 0, 0
        if placed := _TOML_PLACE.fullmatch(message):
            message = placed[1]
            if placed[2]:
                line, column = int(placed[2]), int(placed[3])
            else:
                line, column = _line_column(text, len(text))
        message = message[:1].lower() + message[1:]
        raise ConfigProblems([Problem(message, (), source, line, column)]) from None
    if _depth(data) > DEEPEST_NESTING:
        _fail(source, deep)
    return data


def _depth(data: object) -> int:
    depth, level = 0, [data]
    while level and depth <= DEEPEST_NESTING:
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        depth, level = depth + 1, inner
    return depth


def _blanked(source: str, text: str) -> str:
    """Return JSON `text` with comments and trailing commas turned into spaces."""
    cuts: list[tuple[int, int]] = []
    comma = -1  # a comma that nothing has followed yet, if a value came before it
    value_before = False
    depth = at = 0
    while token := _TOKEN.search(text, at):
        start, at = token.span()
        if token["comment"]:
            if token["comment"] == "/*":
                end = text.find("*/", at)
                if end < 0:
                    _fail(source, "the comment is not closed", text, start)
                at = end + 2
            cuts.append((start, at))
            continue
        mark = token[0]
        if mark in ("]", "}"):
            depth -= 1
            if comma >= 0:
                cuts.append((comma, comma + 1))
        elif mark in ("[", "{"):
            depth += 1
            if depth > DEEPEST_NESTING:
                _fail(source, f"nested deeper than {DEEPEST_NESTING} levels", text, start)
        elif token["string"] and not token["closed"]:
            _fail(source, "the string is not closed on its line", text, start)
        elif token["scalar"]:
            _check_scalar(source, text, start, mark)
        comma = start if mark == "," and value_before else -1
        value_before = mark not in ("[", "{", ",", ":")
    pieces: list[str] = []
    done = 0
    for start, end in sorted(cuts):
        pieces += (text[done:start], re.sub(r"[^\n]", " ", text[start:end]))
        done = end
    return "".join([*pieces, text[done:]])


def _check_scalar(source: str, text: str, start: int, scalar: str) -> None:
    if scalar.lstrip("+-") in ("NaN", "Infinity"):
        _fail(source, f"{scalar} is not a number that JSON has", text, start)
    if len(scalar) > _LONGEST_NUMBER:
        _fail(source, f"expected a value, not {quoted(scalar[:20] + '...')}", text, start)


def _parse_json(source: str, text: str) -> dict[str, Any]:
    repeated = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        built = dict(items)
        repeated = repeated or len(built) < len(items)
        return built

    try:
        data = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        message = error.msg[:1].lower() + error.msg[1:]
        if error.pos >= len(text.rstrip()) and (inside := _left_open(text)):
            message = f"the file ends inside {inside}"
        raise ConfigProblems([Problem(message, (), source, error.lineno, error.colno)]) from None
    if repeated:
        raise ConfigProblems(
            Problem("the field is there twice", path, source, *_line_column(text, offset))
            for path, offset, is_repeated in _json_walk(text)
            if is_repeated
        )
    if not isinstance(data, dict):
        _fail(source, "expected an object ({...}) around everything", text, 0)
    return data


def _left_open(text: str) -> str:
    """Return which object or list of JSON text, comments blanked, is not closed; "" for none."""
    opened: list[int] = []
    for token in _TOKEN.finditer(text):
        if token["mark"] in ("[", "{"):
            opened.append(token.start())
        elif token["mark"] in ("]", "}") and opened:
            opened.pop()
    if not opened:
        return ""
    line, column = _line_column(text, opened[-1])
    what = "list" if text[opened[-1]] == "[" else "object"
    return f"the {what} that begins at line {line}, column {column}"


def _json_places(text: str, wanted: set[Place]) -> dict[Place, tuple[int, int]]:
    ends = [end.start() for end in re.finditer("\n", text)]
    found = {}
    for path, offset, _ in _json_walk(text):
        if path in wanted:
            line = bisect_left(ends, offset)
            found[path] = (line + 1, offset - (ends[line - 1] if line else -1))
    return found


def _json_walk(text: str) -> Iterator[tuple[Place, int, bool]]:
    """Yield path and offset of every field and list entry of well-formed JSON, comments blanked.

    A field stands where its name does. The flag says whether the object had that name already.
    """
    path: list[str | int] = []
    names: list[set[str] | None] = []  # of every open object; None for a list
    is_name = False
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in ("]", "}"):
            names.pop()
            path.pop()
            is_name = False
            continue
        if mark == ":":
            is_name = False
            continue
        if mark == ",":
            is_name = names[-1] is not None
            if not is_name:
                path[-1] = int(path[-1]) + 1
            continue
        if is_name:
            name = json.loads(mark)
            seen = names[-1]
            assert seen is not None
            path[-1] = name
            yield tuple(path), token.start(), name in seen
            seen.add(name)
            continue
        if names and names[-1] is None:
            yield tuple(path), token.start(), False
        if mark in ("[", "{"):
            is_name = mark == "{"
            names.append(set() if is_name else None)
            path.append("" if is_name else 0)


def _toml_places(text: str, wanted: set[Place]) -> dict[Place, tuple[int, int]]:
    """Return where the keys of `wanted` stand, as far as a look at every line can tell.

    Only plain headers and keys are known; in a file with strings of several lines nothing is,
    because a line of such a string may look like a key.
    """
    if '"""' in text or "'''" in text:
        return {}
    found: dict[Place, tuple[int, int]] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _TOML_HEADER.match(line):
            *outer, last = header[2].split(".")
            table = ()
            for name in outer:
                table = _inside(counts, (*table, name))
            table = (*table, last)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = _inside(counts, table)
            keys, column = table, header.start(1)
        elif key := _TOML_KEY.match(line):
            keys, column = (*table, *key[2].split(".")), len(key[1])
        else:
            continue
        if keys in wanted:
            found.setdefault(keys, (number, column + 1))
    return found


def _inside(counts: dict[Place, int], table: Place) -> Place:
    return (*table, counts[table]) if table in counts else table
