"""Tables on standard output that stay readable in a narrow terminal.

Used by: `relay status`, `relay scan`, `relay lists show`. Where there is no room for a table, each
row becomes a few lines that name their values, so that nothing is cut. Whoever fills a table makes
its texts printable, and says `no_wrap` of the columns whose cells are to stay in one line.
"""

from __future__ import annotations

import os
import re
import sys
from typing import IO, Final

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

PIPE_WIDTH: Final = 200
"""Columns where the output is no terminal, at least: a program wants a row in one line."""

LEAST_WIDTH: Final = 21
"""Columns of a cell that may go over several lines, at least: an IPv4 address with its port."""

_GAP: Final = 2
_INDENT: Final = "  "


def is_terminal(stream: IO[str]) -> bool:
    """Whether control codes mean something there."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def output() -> Console:
    """Return standard output. What is printed there is never read as markup."""
    console = Console(
        file=sys.stdout,
        force_terminal=is_terminal(sys.stdout),
        highlight=False,
        markup=False,
        emoji=False,
    )
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def new_table() -> Table:
    """Return an empty table without lines."""
    return Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")


def show_table(console: Console, table: Table) -> None:
    """Print a table whose headings and cells are text."""
    needed = _needed(table)
    if not console.is_terminal:
        console.width = max(console.width, needed)
        with console.capture() as lines:
            console.print(table)
        # Cells are filled up with blanks, those of the last column too.
        console.file.write(re.sub(r" +$", "", lines.get(), flags=re.MULTILINE))
        return
    if needed <= console.width:
        console.print(table)
        return
    headings = [str(column.header) for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        _show_row(console, headings, row)


def _needed(table: Table) -> int:
    """Return how many columns of the terminal a table takes at least."""
    total = _GAP * (len(table.columns) - 1)
    for column in table.columns:
        widest = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        total += widest if column.no_wrap else min(widest, LEAST_WIDTH)
    return total


def _show_row(console: Console, headings: list[str], row: tuple[RenderableType, ...]) -> None:
    """Print the first cell, and below it the others with their headings, as many as fit a line."""
    # The terminal breaks what is longer than a line: what is copied from there is in one piece.
    console.print(row[0], soft_wrap=True)
    line = Text()
    for heading, cell in zip(headings[1:], row[1:], strict=True):
        if not str(cell):
            continue
        value = cell if isinstance(cell, Text) else Text(str(cell))
        value = Text.assemble((f"{heading} ", "dim"), value)
        if line and line.cell_len + _GAP + value.cell_len > console.width:
            console.print(line, soft_wrap=True)
            line = Text()
        line.append(" " * _GAP if line else _INDENT).append(value)
    console.print(line, soft_wrap=True)
