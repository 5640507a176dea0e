"""Tables in terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from relay.terminal import new_table, output, show_table

HEADINGS = ("resolver", "kind", "latency", "why")
ROWS = (
    ("192.0.2.1", "udp", "0.1 ms", ""),
    ("https://dns.example:443/dns-query#192.0.2.1,2001:db8::1", "doh", "1,234.5 ms", "no answer"),
)


def shown(width: int, why: str) -> str:
    table = new_table()
    table.add_column(HEADINGS[0], overflow="fold")
    table.add_column(HEADINGS[1], no_wrap=True)
    table.add_column(HEADINGS[2], no_wrap=True, justify="right")
    table.add_column(HEADINGS[3], overflow="fold")
    for address, kind, latency, told in ROWS:
        table.add_row(Text(address), kind, latency, Text(told and why, style="red"))
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    show_table(console, table)
    return file.getvalue()


@pytest.mark.parametrize("why", ["no answer", "n" * 70, "the server, 世界, says nothing " * 3])
def test_table_in_any_width_is_whole(why: str) -> None:
    kinds = set()
    for width in range(8, 200):
        text = shown(width, why)
        together = "".join(text.split())
        assert "…" not in text, width
        assert "udp" in text
        assert "0.1 ms" in text
        assert "1,234.5 ms" in text
        is_table = text.count("latency") == 1
        kinds.add(is_table)
        if is_table:
            assert all(Text(line).cell_len <= width for line in text.splitlines()), text
        else:
            # In one piece, for whoever copies it.
            assert f"{ROWS[1][0]}\n" in text
            assert why.replace(" ", "") in together
            assert text.count("why ") == 1  # nothing is said where there is nothing
    assert kinds == {True, False}


def test_table_without_a_terminal_has_every_row_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = new_table()
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True)
    table.add_row("a" * 150, "b" * 150, "", "c")

    show_table(output(), table)

    text = capsys.readouterr().out
    assert " \n" not in text
    assert text.endswith("c\n")
    lines = text.splitlines()
    assert [line.split() for line in lines] == [list(HEADINGS), ["a" * 150, "b" * 150, "c"]]
