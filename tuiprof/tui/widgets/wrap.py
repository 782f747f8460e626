"""Breaks text into lines of a number of cells."""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells

from tuiprof.model.units import bind_units, unbind_units
from tuiprof.tui.widgets.spans import Row, fit, row_width


def wrap(text: str, width: int, most: int = 0) -> list[str]:
    """Break a text at line breaks and blanks, and inside a word only if it is longer than a line.

    Such a word is broken behind a part of its name or path where it can be.

    A number is not parted from its unit.

    Args:
        text: One line or more, safe for a terminal.
        width: Cells.
        most: Largest number of lines, the last then ends in an ellipsis; 0 = all.

    Returns:
        At least one line.
    """
    width = max(width, 1)
    lines = [part for line in bind_units(text).split("\n") for part in _wrap_line(line, width)]
    if most and len(lines) > most:
        last = lines[most - 1]
        while cell_len(last) > width - 1:
            last = last[:-1]
        lines = [*lines[: most - 1], last.rstrip("…") + "…"]
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
            part = _fitting(word, width)
            lines.append(part)
            word = word[len(part) :]
        line = word
    return [*lines, line]


def _fitting(word: str, width: int) -> str:
    """Return as much of a long word as fits: up to the end of a part of its name or path, where that fills a third."""
    fits = chop_cells(word, width)[0] or word[:1]
    for separators in ("./", "_-,(="):
        end = max(fits.rfind(sign) for sign in separators) + 1
        if 3 * end >= width:
            return fits[:end]
    return fits


def wrap_row(row: Row, width: int, most: int, indent: int = 0) -> list[Row]:
    """Break a row at blanks, but not between a number and its unit."""
    lines: list[Row] = [[]]
    for text, role in row:
        for word in re.findall(r" *[^ ]+| +", bind_units(text)):
            word = unbind_units(word)
            if len(lines) < most and row_width([*lines[-1], (word, role)]) > width and word.strip():
                lines.append([(" " * indent, role)])
                word = word.lstrip(" ")
            lines[-1].append((word, role))
    return [fit(line, width) for line in lines]
