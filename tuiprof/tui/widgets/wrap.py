"""Breaks text into lines of a number of cells."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells


def wrap(text: str, width: int, most: int = 0) -> list[str]:
    """Break a text at blanks, and inside a word only where the word is longer than a line.

    Args:
        text: One line, safe for a terminal.
        width: Cells.
        most: Largest number of lines, the last then ends in an ellipsis; 0 = all.

    Returns:
        At least one line.
    """
    width = max(width, 1)
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        candidate = f"{line} {word}" if line else word
        if cell_len(candidate) <= width:
            line = candidate
            continue
        if line:
            lines.append(line)
        *full, line = chop_cells(word, width) or [""]
        lines.extend(full)
    lines.append(line)
    if most and len(lines) > most:
        last = lines[most - 1]
        while cell_len(last) > width - 1:
            last = last[:-1]
        lines = [*lines[: most - 1], last + "…"]
    return lines
