"""Every special character that the screens draw with, in one place.

Braille cells hold 2 × 4 dots each. A terminal or font without them could be served from here alone.
"""

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
#: Bit of the dot in row r (0 = top), column c of a braille cell.
BRAILLE_BITS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def sparkline(shares: list[float | None], width: int) -> str:
    """Return the last values as one line of bars, right-aligned; a blank edge stays between two lines.

    Values are shares from 0 to 1, oldest first, one a cell; None = not known then.
    """
    bars = [
        " " if share is None else EIGHTHS_UP[max(1, min(7, round(share * 7)))] for share in shares[-width:]
    ]
    return "".join(bars).rjust(width)


def bar(share: float, width: int) -> str:
    """Return a horizontal bar of ``share`` of the width, in halves of a cell, padded to the width."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    return (BAR * (halves // 2) + HALF_BAR * (halves % 2)).ljust(width)


#: Signs of verdicts, so that their weight needs no colour.
MARKS: Final[dict[Level, str]] = {"bad": "✗", "warn": "!", "info": "i", "good": "✓"}
