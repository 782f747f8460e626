"""Text for terminals that have nothing but ASCII: each cell of it becomes one ASCII character."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

from tuiprof.report.sanitize import width

#: What we draw with, by what it becomes. One character a cell, so that nothing moves.
_DRAWN: Final = {
    "-": "─━╌╍┄┅┈┉═–—−╴╶╸╺‐‑",
    "|": "│┃┆┇┊┋║▏▎▍▌▐▕╷╵╹╻╽╿⎸⎹",
    "+": "┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬┍┎┑┒┕┖┙┚┝┞┟┠┡┢┥┦┧┨┩┪┭┮┯┰┱┲┵┶┷┸┹┺┽┾┿╀╁╂╃╄╅╆╇╈╉╊✓✔±",
    "/": "╱∕",
    "\\": "╲",
    "X": "╳",
    "x": "✗✘×",
    "*": "●★⏺✱",
    "o": "○◌◯",
    "#": "█■◼▉▊▋▇",
    "%": "▓▆",
    "=": "▅▀▔‖≡⏸",
    ":": "▒▃▄⋮",
    ".": "░▁▂▖▗▘▝",
    ">": "▶►▸→›»⇒⟶≥❯",
    "<": "◀◄◂←‹«≤❮",
    "^": "▲△▴↑⇡",
    "v": "▼▽▾↓⇣",
    "!": "⚑⚐⚠",
    "~": "…≈⏎↔∼",
    "'": "’‘′",
    '"': "“”″",
    "u": "µμ",
    "d": "Δ∂",
    "S": "Σ∑",
    "V": "√",
    "2": "²",
    "3": "³",
    " ": "°\u00a0\u2007\u2009\u202f",
}
_TABLE: Final = {ord(sign): plain for plain, signs in _DRAWN.items() for sign in signs}
_TABLE[ord("·")] = "-"
#: Dots of a braille cell: upper half, lower half.
_UPPER, _LOWER = 0x01 | 0x02 | 0x08 | 0x10, 0x04 | 0x20 | 0x40 | 0x80


def to_ascii(text: str) -> str:
    """Return text of the same width in ASCII; what has no likeness becomes a question mark a cell."""
    return text if text.isascii() else "".join(map(_plain, text))


@lru_cache(4096)
def _plain(sign: str) -> str:
    """Return what one character becomes: as many characters as it takes cells."""
    if sign.isascii():
        return sign
    code = ord(sign)
    if 0x2800 <= code < 0x2900:
        return _dots(code - 0x2800)
    if code in _TABLE:
        return _TABLE[code]
    if 0x2400 <= code < 0x2421:  # a control character made visible
        return "?"
    cells = width(sign)
    likeness = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    return likeness if cells and len(likeness) == cells and likeness.isprintable() else "?" * cells


def _dots(dots: int) -> str:
    """Return a character about as dark as a braille cell, at about the same height."""
    if not dots:
        return " "
    if dots.bit_count() >= 6:
        return "#"
    if not dots & _LOWER:
        return "'"
    if not dots & _UPPER:
        return "."
    return ":" if dots.bit_count() < 4 else "|"
