"""Fewer bytes for the same picture: only what changes of colours and attributes is sent.

Textual sets every run of cells from nothing and resets it after. On a screen of many colours that is most of what is
sent, and over a slow link most of the wait.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from textual.driver import Driver

_SGR: Final = re.compile(r"(\x1b\[[\d;]*m)")
#: Moves the cursor and nothing else, so that no colour matters.
_MOVES: Final = re.compile(r"(?:\r|\n|\x1b\[\d+;\d+H)*")
#: Attributes, colour of the text, colour behind it; empty = the terminal's own.
State = tuple[frozenset[str], str, str]
_PLAIN: Final[State] = (frozenset(), "", "")


def squeeze(data: str) -> str:
    """Return what draws the same with fewer bytes.

    Args:
        data: Text and escape sequences that begin and end without colours and attributes.
    """
    out: list[str] = []
    shown = wanted = _PLAIN
    for index, part in enumerate(_SGR.split(data)):
        if index % 2:
            wanted = _after(wanted, part)
        elif part:
            if wanted != shown and _MOVES.fullmatch(part) is None:
                out.append(_change(shown, wanted))
                shown = wanted
            out.append(part)
    if shown != wanted:
        out.append(_change(shown, wanted))
    return "".join(out)


@lru_cache(4096)
def _after(state: State, code: str) -> State:
    """Return the state after a code that sets colours and attributes."""
    flags, front, behind = state
    numbers = (code[2:-1] or "0").split(";")
    at = 0
    while at < len(numbers):
        number = numbers[at]
        length = 1
        if number in ("38", "48"):
            length = 5 if numbers[at + 1 : at + 2] == ["2"] else 3
        value = ";".join(numbers[at : at + length])
        if number in ("", "0"):
            flags, front, behind = _PLAIN
        elif number == "39":
            front = ""
        elif number == "49":
            behind = ""
        elif number == "38" or 30 <= int(number) <= 37 or 90 <= int(number) <= 97:
            front = value
        elif number == "48" or 40 <= int(number) <= 47 or 100 <= int(number) <= 107:
            behind = value
        else:
            flags |= {number}
        at += length
    return flags, front, behind


@lru_cache(4096)
def _change(shown: State, wanted: State) -> str:
    """Return the code from one state to another."""
    if wanted == _PLAIN:
        return "\x1b[0m"
    begin: list[str] = []
    if not shown[0] <= wanted[0]:  # attributes can only be taken away all together
        begin, shown = ["0"], _PLAIN
    parts = [*begin, *sorted(wanted[0] - shown[0])]
    if wanted[1] != shown[1]:
        parts.append(wanted[1] or "39")
    if wanted[2] != shown[2]:
        parts.append(wanted[2] or "49")
    return f"\x1b[{';'.join(parts)}m"


def squeezing(driver: type[Driver]) -> type[Driver]:
    """Return a driver that sends fewer bytes.

    Args:
        driver: The one that suits the terminal.
    """

    class Squeezing(driver):  # type: ignore[misc, valid-type]
        """It, with what it writes squeezed."""

        def write(self, data: str, *args: Any) -> None:
            """Write as few bytes as draw the same."""
            super().write(squeeze(data), *args)

    return Squeezing
