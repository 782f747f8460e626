"""Makes text that others wrote safe to print: shown as it is, never obeyed; cut to a width, or reduced to ASCII."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

from tuiprof.model.characters import UNSAFE

#: What GitHub's runner takes for a command to itself in any log: ``::error::…`` at the start of a line, blanks before
#: it or not, and in its older form ``##[error]…`` anywhere.
_WORKFLOW_COMMAND: Final = re.compile(r"^([ \t]*)(?=::)|(?<=##)(?=\[)", re.MULTILINE)


def sanitize(text: str) -> str:
    """Return text with every control character, escape and direction override made visible.

    ``ESC`` becomes ``␛``, a right-to-left override ``<U+202E>``: nothing is dropped, so different names stay
    different.
    """
    return text if text.isascii() and text.isprintable() else UNSAFE.sub(_visible, text)


def sanitize_lines(text: str) -> str:
    """Return text as :func:`sanitize` does, with its line breaks as they are."""
    return "\n".join(sanitize(line) for line in text.rstrip().replace("\r\n", "\n").split("\n"))


def as_stem(text: str, fallback: str) -> str:
    """Return text as the beginning of a file's name: one word to every shell, and no path or option."""
    return re.sub(r"[^\w.+]+", "_", UNSAFE.sub("_", text)).strip("._")[:80] or fallback


def for_log(text: str) -> str:
    """Return lines for standard output or error, where they may end up in the log of a CI system.

    Names such as ``::at::native`` at the start of a line get a backslash, so that none is taken for a command.
    """
    return _WORKFLOW_COMMAND.sub(r"\1\\", text) if "::" in text or "##[" in text else text


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"<U+{code:04X}>"


def width(text: str) -> int:
    """Return how many terminal cells sanitised text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def clip(text: str, cells: int, elide: Literal["end", "start", "middle"] = "middle") -> str:
    """Return sanitised text cut to a number of cells (at least 1), an ellipsis where something is missing.

    By default that is the middle, because the end of a path and the end of a kernel's name tell as much as their
    beginning.
    """
    if width(text) <= cells:
        return text
    if cells <= 1:
        return "…"[:cells]
    head_cells = {"end": cells - 1, "start": 0, "middle": (cells - 1) // 2}[elide]
    head = text[: _fitting(text, head_cells)]
    tail = _fitting(reversed(text), cells - 1 - width(head)) if elide != "end" else 0
    return f"{head}…{text[len(text) - tail :]}"


def _fitting(characters: Iterable[str], cells: int) -> int:
    """Return how many characters fit into a number of cells."""
    count = used = 0
    for character in characters:
        used += width(character)
        if used > cells:
            break
        count += 1
    return count


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
