"""A bar chart as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

_COLOURS: Final = ("#8c8c8c", "#1f6fb4", "#6aaee0", "#d98b1f", "#3f9b4f", "#a64ca6")
_BAR, _GAP, _LEFT, _WIDTH, _TOP = 15, 12, 230, 460, 62


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that are compared with each other: the longest takes the whole width."""

    title: str
    values: Mapping[str, float]


def bars(title: str, groups: Sequence[Group]) -> str:
    """Horizontal bars in groups, each with its value written at its end."""
    names = list(dict.fromkeys(name for group in groups for name in group.values))
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
    parts = [_text(10, 22, title, size=15)]
    for place, name in enumerate(names):
        x = 10 + place * 130
        parts += [_bar(x, 34, 12, 12, colours[name]), _text(x + 17, 45, name)]
    y = _TOP
    for group in groups:
        height = len(group.values) * _BAR
        parts.append(_text(_LEFT - 8, y + height / 2 + 4, group.title, anchor="end"))
        longest = max(group.values.values(), default=0.0) or 1.0
        for name, value in group.values.items():
            width = _WIDTH * value / longest
            parts.append(_bar(_LEFT, y, width, _BAR - 3, colours[name]))
            parts.append(_text(_LEFT + width + 5, y + _BAR - 5, f"{value:,.0f}", size=11))
            y += _BAR
        y += _GAP
    size = f'width="{_LEFT + _WIDTH + 80}" height="{y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"
