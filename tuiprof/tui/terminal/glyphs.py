"""All special characters that the screens draw, so that a terminal or font without one needs a change only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tuiprof.model.report import Level

RUNNING: Final = "●"
DONE: Final = "✓"
FAILED: Final = "✗"
INTERRUPTED: Final = "◌"
STOPPED: Final = "■"
PAUSED: Final = "‖"
PLAYING: Final = "▶"
FLAG: Final = "⚑"
INTO: Final = "▸"
CURSOR: Final = "▸"
OUTLIER: Final = "●"
CAPTURED: Final = "▀"
MEDIAN: Final = "┄"
TICK: Final = "┤"
AXIS: Final = "│"
RULE: Final = "─"
DOT: Final = " · "
ELLIPSIS: Final = "…"
NONE: Final = "–"

#: A bar of one cell in eighths, empty first.
EIGHTHS_UP: Final = " ▁▂▃▄▅▆▇█"
BAR: Final = "━"
HALF_BAR: Final = "╸"

BRAILLE_BASE: Final = 0x2800
#: Bit of the dot in row r (0 = top) and column c of a braille cell, which has 4 × 2 dots.
BRAILLE_BITS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def sparkline(shares: list[float | None], width: int) -> str:
    """Return the last values, from 0 to 1, as bars in one line, one per cell, right-aligned; None = unknown.

    Bars are at most seven eighths high, so that two lines do not touch.
    """
    bars = [
        " " if share is None else EIGHTHS_UP[max(1, min(7, round(share * 7)))] for share in shares[-width:]
    ]
    return "".join(bars).rjust(width)


def bar(share: float, width: int) -> str:
    """Return a horizontal bar that fills a share of the width, rounded to half a cell, padded with blanks."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    return (BAR * (halves // 2) + HALF_BAR * (halves % 2)).ljust(width)


#: Character and colour role of the states of a session.
STATES: Final = {
    "running": (RUNNING, "good"),
    "finished": (DONE, "good"),
    "failed": (FAILED, "bad"),
    "stopped": (STOPPED, "warn"),
    "interrupted": (INTERRUPTED, "warn"),
    "unreadable": (FAILED, "warn"),
}
#: Characters of verdict levels, which must be readable without colour.
MARKS: Final[dict[Level, str]] = {"bad": "✗", "warn": "!", "info": "i", "good": "✓"}
