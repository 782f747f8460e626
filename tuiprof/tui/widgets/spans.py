"""Building blocks of screen content that need no Textual: styled rows, list items, line wrapping, short dates."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len, chop_cells, set_cell_size

from tuiprof.model.units import bind_units, format_speed, unbind_units
from tuiprof.report.sanitize import clip
from tuiprof.tui.terminal import glyphs

if TYPE_CHECKING:
    from tuiprof.model.report import Level

#: Text and its role (see :data:`tuiprof.tui.widgets.lines.ROLES`).
Span = tuple[str, str]
Row = list[Span]
#: Returns a row for a width in cells.
LineOf = Callable[[int], Row]


def row_width(row: Row) -> int:
    """Return the width of a row in cells."""
    return sum(cell_len(text) for text, _ in row)


def fit(row: Row, width: int, ellipsis: str = "…") -> Row:
    """Return the row, cut to a width and ended with an ellipsis if it is longer."""
    if row_width(row) <= width:
        return row
    if width <= 0:
        return []
    out: Row = []
    left = width - cell_len(ellipsis)
    for text, role in row:
        size = cell_len(text)
        if size > left:
            out.append((set_cell_size(text, max(0, left)).rstrip() + ellipsis, role))
            break
        out.append((text, role))
        left -= size
    return out


def fit_text(
    text: str, width: int, right: bool = False, elide: Literal["end", "start", "middle"] = "end"
) -> str:
    """Pad or cut text to a number of cells; an ellipsis marks the cut."""
    length = cell_len(text)
    if length > width and elide != "end":
        text = clip(text, width, elide)
        length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    pad = " " * (width - length)
    return pad + text if right else text + pad


def spread(left: Row, right: Row, width: int) -> Row:
    """Return a row with one part at each edge; if both do not fit, without the right one."""
    gap = width - row_width(left) - row_width(right)
    if gap < 2:
        return fit(left, width)
    return [*left, (" " * gap, "text"), *right]


def change_span(change: float) -> Span:
    """Return the change of a step time, a share, as text in its colour."""
    if abs(change) < 0.005:
        return "same", "text"
    return format_speed(1 + change), "warn" if change > 0 else "good"


def key_at(row: Row, x: int) -> str:
    """Return the key that a row names at a cell, or before a label at that cell; empty = none."""
    key, end = "", 0
    for text, role in row:
        key = text.strip() if role == "key" else key if key and role == "dim" and text.strip() else ""
        end += cell_len(text)
        if x < end:
            return key
    return ""


def join(parts: list[Row], separator: Span) -> Row:
    """Return the non-empty rows joined by a separator."""
    out: Row = []
    for part in parts:
        if part:
            out.extend([separator, *part] if out else part)
    return out


def merge(row: Row) -> Row:
    """Return a row with adjacent spans of the same role joined."""
    return [
        ("".join(text for text, _ in spans), role) for role, spans in groupby(row, key=lambda span: span[1])
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of a :class:`~tuiprof.tui.widgets.choices.Choices` list."""

    key: str  # identifies the line; empty = a heading, which the cursor skips
    line: Row | LineOf
    indent: int = 2  # cells before the line, which hold the cursor's mark

    def draw(self, width: int) -> Row:
        """Return the row; only a line that is a function respects the width."""
        return self.line(width) if callable(self.line) else self.line


def wrap(text: str, width: int, max_lines: int = 0) -> list[str]:
    """Break text into lines at line breaks and blanks, but not between a number and its unit.

    A word longer than a line is broken inside, if possible after a component of its name or path. Returns at least one
    line and at most ``max_lines``, then ending in an ellipsis; 0 = no limit.
    """
    width = max(width, 1)
    lines = [part for line in bind_units(text).split("\n") for part in _wrap_line(line, width)]
    if max_lines and len(lines) > max_lines:
        last = lines[max_lines - 1]
        while cell_len(last) > width - 1:
            last = last[:-1]
        lines = [*lines[: max_lines - 1], last.rstrip("…") + "…"]
    return [unbind_units(line) for line in lines]


def _wrap_line(text: str, width: int) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        candidate = f"{line} {word}" if line else word
        if cell_len(candidate) <= width:
            line = candidate
            continue
        if line:
            lines.append(line)
        while cell_len(word) > width:
            part = _longest_prefix(word, width)
            lines.append(part)
            word = word[len(part) :]
        line = word
    return [*lines, line]


def _longest_prefix(word: str, width: int) -> str:
    """Return the longest prefix that fits and ends with a component of a name or path; shorter than a third: any."""
    fits = chop_cells(word, width)[0] or word[:1]
    for separators in ("./", "_-,(="):
        end = max(fits.rfind(sign) for sign in separators) + 1
        if 3 * end >= width:
            return fits[:end]
    return fits


def labelled(label: str, lines: list[str], role: str = "text") -> list[Row]:
    """Return lines with a label in front of the first, and blanks in front of the others."""
    return [[(" " * cell_len(label) if i else label, "dim"), (line, role)] for i, line in enumerate(lines)]


def verdict_rows(lines: list[str], level: Level | None) -> list[Row]:
    """Return the lines of a verdict after a bar in the colour of its level; None = it is still pending."""
    mark = glyphs.MARKS[level] if level else glyphs.ELLIPSIS
    return [
        [(f"▌{' ' if i else mark} ", level or "dim"), (line, "strong" if level else "dim")]
        for i, line in enumerate(lines)
    ]


def wrap_row(row: Row, width: int, max_lines: int, indent: int = 0) -> list[Row]:
    """Break a row at blanks, but not between a number and its unit; the last of ``max_lines`` is cut if need be."""
    lines: list[Row] = [[]]
    for text, role in row:
        for word in re.findall(r" *[^ ]+| +", bind_units(text)):
            word = unbind_units(word)
            if len(lines) < max_lines and row_width([*lines[-1], (word, role)]) > width and word.strip():
                lines.append([(" " * indent, role)])
                word = word.lstrip(" ")
            lines[-1].append((word, role))
    return [fit(line, width) for line in lines]


# -- dates -----------------------------------------------------------------------------------------------


def when(unix_ns: int, now: datetime | None = None) -> str:
    """Return a short date: the time if it is today, the day if it is this year, else the month."""
    if not unix_ns:
        return glyphs.NONE
    then = datetime.fromtimestamp(unix_ns / 1e9, UTC).astimezone()
    now = (now or datetime.now(UTC)).astimezone()
    if then.date() == now.date():
        return then.strftime("%H:%M")
    if then.year == now.year:
        return f"{then.day} {then.strftime('%b')}"
    return then.strftime("%Y-%m")


def age(unix_ns: int, now: datetime | None = None) -> str:
    """Return the time since then: ``now``, ``12 min``, ``3 h`` or ``5 d``; after a year, the month of the date."""
    if not unix_ns:
        return glyphs.NONE
    now = now or datetime.now(UTC)
    seconds = now.timestamp() - unix_ns / 1e9
    for unit_s, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return when(unix_ns, now) if seconds >= 365 * 86_400 else f"{int(seconds // unit_s)} {word}"
    return "now"


def ago(unix_ns: int, now: datetime | None = None) -> str:
    """Return :func:`age` as a phrase: ``now``, ``12 min ago``, or the month."""
    text = age(unix_ns, now)
    return f"{text} ago" if " " in text else text
