"""Fewer bytes for the same picture: only what changes of colours, attributes and lines is sent.

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
_PLACE: Final = re.compile(r"\x1b\[(\d+);(\d+)H")
#: Places, colours, modes and titles: what erases or scrolls is none of them.
_CODE: Final = r"\[[\d;]*[mH]|\[\?[\d;]+[hl]|\][^\x07\x1b]*\x07"
_UNKNOWN: Final = re.compile(rf"\x1b(?!{_CODE})")
_SILENT: Final = re.compile(rf"(?:\x1b(?:{_CODE}))*")
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


class Shown:
    """What each line of the terminal was last drawn as: Textual draws a screen that comes to the front twice."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}

    def forget(self) -> None:
        """Take nothing for granted: the terminal may not show any more what was sent."""
        self._lines.clear()

    def unsent(self, data: str) -> str:
        """Return what is to be sent, without the lines that stand there already.

        Args:
            data: Text and escape sequences; each text begins and ends without colours and attributes.
        """
        if _UNKNOWN.search(data):  # erases, scrolls, or something else that may change any line
            self.forget()
            return data
        before, *placed = _PLACE.split(data)
        if _SILENT.fullmatch(before) is None:  # text at an unknown place
            self.forget()
            return data
        out = [before]
        for line, column, text in zip(placed[::3], placed[1::3], placed[2::3], strict=True):
            if text and column == "1":
                if self._lines.get(line) == text:
                    continue
                self._lines[line] = text
            elif text.strip("\r\n"):
                self._lines.pop(line, None)
            out.append(f"\x1b[{line};{column}H{text}")
        return "".join(out)


def squeezing(driver: type[Driver]) -> type[Driver]:
    """Return a driver that sends fewer bytes.

    Args:
        driver: The one that suits the terminal.
    """

    class Squeezing(driver):  # type: ignore[misc, valid-type]
        """It, with what it writes squeezed, and lines that stand there already not sent again."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._shown = Shown()

        def write(self, data: str, *args: Any) -> None:
            """Write as few bytes as draw the same."""
            if to_send := self._shown.unsent(data):
                super().write(squeeze(to_send), *args)

        def forget(self) -> None:
            """Draw every line anew from now on."""
            self._shown.forget()

        def start_application_mode(self) -> None:
            """Begin with an unknown terminal."""
            self.forget()
            super().start_application_mode()

    return Squeezing
