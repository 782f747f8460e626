"""Terminal output: filters for characters and colours, and a driver that sends only the cells that changed.

Textual sets all colours and attributes at the start of every run of cells and resets them at its end. On a colourful
screen this is most of the output, and over a slow link most of the latency.
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


class StripControls(LineFilter):
    """Replaces control and invisible characters by as many blanks as the layout counted for them.

    This is a safety net: widgets make such characters visible (:func:`tuiprof.report.sanitize.sanitize`).
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.control or (segment.text.isascii() and segment.text.isprintable())
            else Segment(UNSAFE.sub(lambda match: " " * cell_len(match[0]), segment.text), segment.style)
            for segment in segments
        ]


class AsciiOnly(LineFilter):
    """Replaces every character by ASCII of the same width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.control or segment.text.isascii()
            else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]


class NoColour(LineFilter):
    """Removes colours; text with a background of its own is shown in reverse."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style and _uncoloured(style), control) for text, style, control in segments]


@lru_cache(1024)
def _uncoloured(style: Style) -> Style:
    background = style.bgcolor is not None and not style.bgcolor.is_default
    return Style(
        bold=style.bold,
        dim=style.dim,
        underline=style.underline,
        italic=style.italic,
        reverse=background != bool(style.reverse),
    )


#: Select Graphic Rendition: sets colours and attributes.
_SGR: Final = re.compile(r"(\x1b\[[\d;]*m)")
#: Cursor movements only, for which colours do not matter.
_MOVES: Final = re.compile(r"(?:\r|\n|\x1b\[\d+;\d+H)*")
_MOVE_TO: Final = re.compile(r"\x1b\[(\d+);(\d+)H")
#: Sequences that neither erase nor scroll: cursor positions, colours, modes and titles.
_HARMLESS: Final = r"\[[\d;]*[mH]|\[\?[\d;]+[hl]|\][^\x07\x1b]*\x07"
_NOT_HARMLESS: Final = re.compile(rf"\x1b(?!{_HARMLESS})")
_NO_TEXT: Final = re.compile(rf"(?:\x1b(?:{_HARMLESS}))*")
#: Attributes, foreground and background, as SGR parameters; empty = the terminal's default.
State = tuple[frozenset[str], str, str]
_DEFAULT: Final[State] = (frozenset(), "", "")


def squeeze(data: str) -> str:
    """Return output that draws the same with fewer SGR sequences."""
    out: list[str] = []
    current = wanted = _DEFAULT
    for index, part in enumerate(_SGR.split(data)):
        if index % 2:
            wanted = _after(wanted, part)
        elif part:
            if wanted != current and _MOVES.fullmatch(part) is None:
                out.append(_change(current, wanted))
                current = wanted
            out.append(part)
    if current != wanted:
        out.append(_change(current, wanted))
    return "".join(out)


@lru_cache(4096)
def _after(state: State, sgr: str) -> State:
    """Return the state after an SGR sequence."""
    flags, foreground, background = state
    numbers = (sgr[2:-1] or "0").split(";")
    at = 0
    while at < len(numbers):
        number = numbers[at]
        length = 1
        if number in ("38", "48"):
            length = 5 if numbers[at + 1 : at + 2] == ["2"] else 3
        value = ";".join(numbers[at : at + length])
        if number in ("", "0"):
            flags, foreground, background = _DEFAULT
        elif number == "39":
            foreground = ""
        elif number == "49":
            background = ""
        elif number == "38" or 30 <= int(number) <= 37 or 90 <= int(number) <= 97:
            foreground = value
        elif number == "48" or 40 <= int(number) <= 47 or 100 <= int(number) <= 107:
            background = value
        else:
            flags |= {number}
        at += length
    return flags, foreground, background


@lru_cache(4096)
def _change(current: State, wanted: State) -> str:
    """Return the SGR sequence from one state to another."""
    if wanted == _DEFAULT:
        return "\x1b[0m"
    reset: list[str] = []
    if not current[0] <= wanted[0]:  # attributes can only be cleared all together
        reset, current = ["0"], _DEFAULT
    parts = [*reset, *sorted(wanted[0] - current[0])]
    if wanted[1] != current[1]:
        parts.append(wanted[1] or "39")
    if wanted[2] != current[2]:
        parts.append(wanted[2] or "49")
    return f"\x1b[{';'.join(parts)}m"


#: Characters known to be one cell wide; a cheap test for the common case.
_NARROW: Final = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2500-\u25fc\u2800-\u28ff]+")
#: Up to this many unchanged cells between two changed ones are sent again; moving the cursor takes nine bytes.
_GAP: Final = 8
#: Reset whatever another program changed: alternate screen, full scroll region, no insert mode, no origin mode, ASCII
#: character set, no wrapping, no cursor, default colours; and clear the screen.
_RESET: Final = "\x1b[?1047h\x1b[r\x1b[4l\x1b[?6l\x1b(B\x0f\x1b[?7l\x1b[?25l\x1b[0m\x1b[2J"
#: Character and state of a cell; None = unknown.
Cell = tuple[str, State] | None


class SentCells:
    """The content of every terminal cell as last sent, so that only changed cells are sent.

    Textual sends a line from the left edge of a widget to the last changed cell, and a screen that comes to the front
    twice.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[Cell]] = {}

    def forget(self) -> None:
        """Forget all cells, because the terminal may no longer show them."""
        self._lines.clear()

    def changes(self, data: str) -> str:
        """Return the output without cells that the terminal already shows.

        Every text between cursor positions must begin and end in the default state.
        """
        if _NOT_HARMLESS.search(data):  # may change any line
            self.forget()
            return data
        before, *placed = _MOVE_TO.split(data)
        if _NO_TEXT.fullmatch(before) is None:  # text at an unknown position
            self.forget()
            return data
        out = [before]
        for line, column, text in zip(placed[::3], placed[1::3], placed[2::3], strict=True):
            text = text.rstrip("\r\n")  # the next cursor position follows
            cells = _cells(text)
            if cells:
                out.extend(self._update(line, int(column) - 1, cells))
                continue
            if cells is None:
                self._lines.pop(line, None)
            out.append(f"\x1b[{line};{column}H{text}")
        return "".join(out)

    def _update(self, line: str, first: int, cells: tuple[Cell, ...]) -> list[str]:
        """Store cells of a line, from column ``first`` on, and return the output that draws those that changed."""
        stop = first + len(cells)
        known = self._lines.setdefault(line, [])
        if len(known) < stop:
            known.extend([None] * (stop - len(known)))
        changed = [
            at for at, (old, new) in enumerate(zip(known[first:stop], cells, strict=True)) if old != new
        ]
        known[first:stop] = cells
        out, index = [], 0
        while index < len(changed):
            start = last = changed[index]
            while index < len(changed) and changed[index] - last <= _GAP:
                last = changed[index]
                index += 1
            out.append(f"\x1b[{line};{first + start + 1}H")
            for state, run in groupby(cells[start : last + 1], key=_state):
                text = "".join(cell[0] for cell in run if cell is not None)
                out.append(f"{_change(_DEFAULT, state)}{text}\x1b[0m" if state != _DEFAULT else text)
        return out


def _state(cell: Cell) -> State:
    return cell[1] if cell is not None else _DEFAULT


@lru_cache(4096)
def _is_narrow(char: str) -> bool:
    """Return whether a character is one cell wide whatever its neighbours."""
    return char.isprintable() and char < "\U00010000" and cell_len(char) == 1


@lru_cache(256)
def _cells(text: str) -> tuple[Cell, ...] | None:
    """Return the cells of a text; None = it has characters that are not one cell wide or not printable."""
    out: list[Cell] = []
    state = _DEFAULT
    for index, part in enumerate(_SGR.split(text)):
        if index % 2:
            state = _after(state, part)
        elif part:
            if _NARROW.fullmatch(part) is None and not all(map(_is_narrow, set(part))):
                return None
            out.extend(zip(part, repeat(state)))
    return tuple(out)


def squeezing(driver: type[Driver]) -> type[Driver]:
    """Return a subclass of a driver that sends fewer bytes."""

    class Squeezing(driver):  # type: ignore[misc, valid-type]
        """Sends only changed cells, with as few SGR sequences as possible."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._sent = SentCells()
            self._size: object = None  # of the last frame
            self._has_terminal = False
            # Textual handles these signals in a plain signal handler. It can interrupt this thread while it holds the
            # lock of the queue that the handler writes to (a deadlock), and a signal delivered to another thread waits
            # for the next event. Handlers of the event loop run between callbacks.
            self._loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
            self._loop.add_signal_handler(signal.SIGCONT, self._sigcont_application)

        def write(self, data: str, *args: Any) -> None:
            size = self._app.screen.size if self._app.screen_stack else None
            if size != self._size:  # on a resize, the terminal may have cut or moved its content
                self._size = size
                self.forget()
            if changes := self._sent.changes(data):
                super().write(squeeze(changes), *args)

        def forget(self) -> None:
            """Send every line of the next frame."""
            self._sent.forget()

        def reset(self) -> None:
            """Reset and clear the terminal; a full frame must follow."""
            self.forget()
            super().write(_RESET)

        def start_application_mode(self) -> None:
            """Take the terminal, whose content is unknown."""
            self.forget()
            if self._has_terminal:  # the process was stopped by SIGSTOP, and continues
                if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
                    os.kill(os.getpid(), signal.SIGSTOP)  # in the background: wait for the terminal
                    return
                self.suspend_application_mode()
                self._must_signal_resume = True
            super().start_application_mode()
            self._has_terminal = True

        def stop_application_mode(self) -> None:
            self._has_terminal = False
            super().stop_application_mode()

    return Squeezing
