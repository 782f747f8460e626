"""What is sent to the terminal: only characters and colours that it can show, and only what changes on it.

Textual sets every run of cells from nothing and resets it after. On a screen of many colours that is most of what is
sent, and over a slow link most of the wait.
"""

from __future__ import annotations

import os
import re
import signal
from functools import lru_cache
from itertools import groupby, repeat
from typing import Any, Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.driver import Driver
from textual.filter import LineFilter

from tuiprof.model.characters import UNSAFE
from tuiprof.report.sanitize import to_ascii


class TextAlone(LineFilter):
    """Removes control and invisible characters from the output of all widgets.

    Widgets show such characters (:func:`tuiprof.report.sanitize.sanitize`). Where one does not, they are taken away
    here, as many cells left blank as the layout counted for them.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the cells of a line without them."""
        return [
            segment
            if segment.control or (segment.text.isascii() and segment.text.isprintable())
            else Segment(UNSAFE.sub(_blank, segment.text), segment.style)
            for segment in segments
        ]


def _blank(match: re.Match[str]) -> str:
    return " " * cell_len(match[0])


class PlainText(LineFilter):
    """Turns every cell into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the cells of a line in ASCII."""
        return [
            segment
            if segment.control or segment.text.isascii()
            else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]


class OneColour(LineFilter):
    """Removes colours: text with a background of its own is shown in reverse."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the cells of a line without colours."""
        return [Segment(text, style and _uncoloured(style), control) for text, style, control in segments]


@lru_cache(1024)
def _uncoloured(style: Style) -> Style:
    marked = style.bgcolor is not None and not style.bgcolor.is_default
    return Style(
        bold=style.bold,
        dim=style.dim,
        underline=style.underline,
        italic=style.italic,
        reverse=marked != bool(style.reverse),
    )


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
    """Return what draws the same with fewer bytes."""
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


#: Characters of which each fills one cell, as far as that can be decided cheaply.
_NARROW: Final = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2500-\u25fc\u2800-\u28ff]+")
#: Unchanged cells are sent again where no more of them lie between two that differ.
_GAP: Final = 8
#: A terminal as the pictures need it, whatever another program made of it: its second screen, scrolling all of it,
#: neither inserting nor counting from a margin, letters as letters, no wrapping, no cursor, and empty.
_AS_NEEDED: Final = "\x1b[?1047h\x1b[r\x1b[4l\x1b[?6l\x1b(B\x0f\x1b[?7l\x1b[?25l\x1b[0m\x1b[2J"
#: What a cell shows: its character and how it is painted; None = unknown.
Cell = tuple[str, State] | None


class Shown:
    """The last drawn content of each terminal cell, so that only changed cells are sent.

    Textual sends a line from the left edge of a widget to the last cell that changed, and a screen that comes to the
    front twice.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[Cell]] = {}

    def forget(self) -> None:
        """Invalidate all cells: the terminal may no longer show what was sent."""
        self._lines.clear()

    def unsent(self, data: str) -> str:
        """Return the output without the cells that the terminal already shows.

        Each text between its escape sequences begins and ends without colours and attributes.
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
            text = text.rstrip("\r\n")  # a place follows
            cells = _cells(text)
            if cells:
                out.extend(self._differing(line, int(column) - 1, cells))
                continue
            if cells is None:
                self._lines.pop(line, None)
            out.append(f"\x1b[{line};{column}H{text}")
        return "".join(out)

    def _differing(self, line: str, first: int, cells: tuple[Cell, ...]) -> list[str]:
        """Return the codes that draw the cells of a line that differ, and take note of them."""
        stop = first + len(cells)
        known = self._lines.setdefault(line, [])
        if len(known) < stop:
            known.extend([None] * (stop - len(known)))
        differ = [
            at for at, (old, new) in enumerate(zip(known[first:stop], cells, strict=True)) if old != new
        ]
        known[first:stop] = cells
        out, index = [], 0
        while index < len(differ):
            begin = last = differ[index]
            # To go to another place takes nine bytes: a few cells between are sent once more.
            while index < len(differ) and differ[index] - last <= _GAP:
                last = differ[index]
                index += 1
            out.append(f"\x1b[{line};{first + begin + 1}H")
            for state, run in groupby(cells[begin : last + 1], key=_state):
                text = "".join(cell[0] for cell in run if cell is not None)
                out.append(f"{_change(_PLAIN, state)}{text}\x1b[0m" if state != _PLAIN else text)
        return out


def _state(cell: Cell) -> State:
    return cell[1] if cell is not None else _PLAIN


@lru_cache(4096)
def _fills_one(char: str) -> bool:
    """Return whether a character always fills one cell, independent of its neighbors."""
    return char.isprintable() and char < "\U00010000" and cell_len(char) == 1


@lru_cache(256)
def _cells(text: str) -> tuple[Cell, ...] | None:
    """Return the cells that a text fills; None where not every character fills one, or it does more than be shown."""
    out: list[Cell] = []
    state = _PLAIN
    for index, part in enumerate(_SGR.split(text)):
        if index % 2:
            state = _after(state, part)
        elif part:
            if _NARROW.fullmatch(part) is None and not all(map(_fills_one, set(part))):
                return None
            out.extend(zip(part, repeat(state)))
    return tuple(out)


def squeezing(driver: type[Driver]) -> type[Driver]:
    """Return a driver that sends fewer bytes."""

    class Squeezing(driver):  # type: ignore[misc, valid-type]
        """It, with what it writes squeezed, and unchanged cells not sent again."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._shown = Shown()
            self._size: object = None  # of the picture drawn last
            self._has_terminal = False
            # Textual answers these inside the signal's handler, which interrupts this thread anywhere, also where it
            # holds the lock of the very queue that the answer is written to; and a signal that another thread
            # receives would wait for the next event. Between two callbacks of the loop neither can happen.
            self._loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
            self._loop.add_signal_handler(signal.SIGCONT, self._sigcont_application)

        def write(self, data: str, *args: Any) -> None:
            """Write as few bytes as draw the same."""
            size = self._app.screen.size if self._app.screen_stack else None
            if (
                size != self._size
            ):  # what was drawn for another size may have been cut, or moved by the terminal
                self._size = size
                self.forget()
            if to_send := self._shown.unsent(data):
                super().write(squeeze(to_send), *args)

        def forget(self) -> None:
            """Redraw every line from now on."""
            self._shown.forget()

        def begin_anew(self) -> None:
            """Clear and reset the terminal; a full frame must follow."""
            self.forget()
            super().write(_AS_NEEDED)

        def start_application_mode(self) -> None:
            """Begin with an unknown terminal."""
            self.forget()
            if self._has_terminal:  # it was stopped by SIGSTOP, and continues
                if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
                    os.kill(os.getpid(), signal.SIGSTOP)  # in the background: it has to wait for the terminal
                    return
                self.suspend_application_mode()
                self._must_signal_resume = True
            super().start_application_mode()
            self._has_terminal = True

        def stop_application_mode(self) -> None:
            """Give the terminal back."""
            self._has_terminal = False
            super().stop_application_mode()

    return Squeezing
