"""The inline view: a run in a few lines at the bottom of the terminal, below the script's output.

It uses neither the alternate screen nor the mouse, only the 16 ANSI colours, and a few hundred bytes per second, so
that it works over any SSH link.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
from collections.abc import Iterator, Set
from typing import Final, TextIO

from tuiprof.errors import SessionError
from tuiprof.model.characters import shell_word
from tuiprof.report import Terminal, this_terminal
from tuiprof.report.sanitize import to_ascii
from tuiprof.session.live.alerts import alerts
from tuiprof.session.live.fold import Fold
from tuiprof.session.live.replay import Live
from tuiprof.session.live.sharing import foreign_devices
from tuiprof.session.run.control import stop_unless_over
from tuiprof.session.store.folders import Session
from tuiprof.session.store.output import OutputReader, recording_problem
from tuiprof.session.store.status import Status
from tuiprof.system.own_process import on_hang_up, signals_kept
from tuiprof.tui.live import view as live_view
from tuiprof.tui.live.devices import device_views, one_line
from tuiprof.tui.live.view import View, alert_row, phase_line, phases, phases_of, stats_in_view, stats_row
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import ROLES, Row, fit, row_width

_RATE_HZ: Final = 4
_WINDOW_S: Final = 60.0
_MAX_DEVICES: Final = 2
#: Maximum lines of output per frame, to limit traffic; the session has all of them.
_MAX_LINES: Final = 100
_BOLD, _DIM = "1", "2"
_ANSI: Final = {
    "success": "32",
    "warning": "33",
    "accent": "33",
    "error": "31",
    "primary": "34",
    "secondary": "36",
    "border": "2",
    **{f"phase-{number}": code for number, code in enumerate(("34", "36", "32", "35", "31", "33"), 1)},
}


def strip_rows(session: Session, fold: Fold, status: Status, now_ns: int, width: int) -> list[Row]:
    """Return the rows: state, step time, phases of a step, devices, the most urgent message."""
    rank = fold.lead
    others = foreign_devices(fold, session)
    view = View(now_ns, _WINDOW_S, live=True)
    parts = (
        live_view.name_row(session),
        live_view.state_row(status, now_ns, rank, len(fold.ranks), False),
        live_view.machine_row(session, rank, others),
    )
    rows: list[Row] = [live_view.head_row("tuiprof", parts, width)]
    if rank is None or not len(rank.steps):
        rows.append([(" no step yet", "dim")])
    else:
        stats = stats_in_view(rank.steps, view)
        rows.append(
            _with_sparkline(stats_row(stats, view, 10_000, batch=None, baseline=None)[0], fold, view, width)
        )
        if found := phases_of(phases(rank.steps, view)):
            rows.append(phase_line(found, width))
    views = device_views(fold, session.meta.devices, rank, others)
    devices = [device for device in views if not device.foreign][:_MAX_DEVICES]
    rows += [one_line(device, width, devices) for device in devices]
    rows.append(_message_row(session, fold, others, now_ns, width))
    return [fit(row, width) for row in rows]


def _with_sparkline(stats: Row, fold: Fold, view: View, width: int) -> Row:
    """Append the step times of the last minute as a sparkline, if there is room."""
    blank = next((i for i, (text, _) in enumerate(stats) if len(text) > 60 and not text.strip()), len(stats))
    row = stats[:blank]
    room = min(width - row_width(row) - 3, 60)
    if room < 8 or fold.lead is None:
        return row
    steps = fold.lead.steps
    durations = steps.rows["dur_ns"][view.rows(steps)]
    if not len(durations):
        return row
    count = min(len(durations), room)
    cells = [
        durations[i * len(durations) // count : (i + 1) * len(durations) // count].max() for i in range(count)
    ]
    # Full height is twice the median, so that equal step times are drawn at half height.
    top = max(2.0 * float(sorted(cells)[len(cells) // 2]), 1.0)
    return [
        *row,
        ("  ", "text"),
        (glyphs.sparkline([min(float(ns) / top, 1.0) for ns in cells], count), "history"),
    ]


def _message_row(session: Session, fold: Fold, others: Set[str], now_ns: int, width: int) -> Row:
    capture = next((c for c in fold.captures.values() if c.state in ("armed", "started")), None)
    if capture is not None:
        row = live_view.capture_row(capture)
    elif found := alerts(fold, fold.lead, now_ns, others, recording_problem(session)):
        row = alert_row(found, width)
    else:
        row = [(f" {glyphs.FLAG} ", "good"), ("nothing stands out", "dim")]
    hint: Row = [("q leave it running · Q stop · d dashboard", "dim")]
    gap = width - row_width(row) - row_width(hint)
    return [*row, (" " * gap, "text"), *hint] if gap >= 2 else row


class Strip:
    """Lines at the bottom of the terminal, redrawn in place."""

    def __init__(self, out: TextIO, terminal: Terminal) -> None:
        self._out = out
        self._terminal = terminal
        self._shown: list[str] = []
        self._widths: list[int] = []

    def show(self, rows: list[Row], above: list[str], width: int) -> None:
        """Print output above the lines, and redraw the lines that changed."""
        lines = [self.painted(row) for row in rows]
        if above or len(lines) != len(self._shown) or any(cells > width for cells in self._widths):
            parts = [self._erase(width)]
            parts += [(to_ascii(line) if self._terminal.plain else line) + "\n" for line in above]
            parts.append("\n".join(lines))
        else:
            parts = self._changes(lines)
        self._shown, self._widths = lines, [row_width(row) for row in rows]
        self._out.write("".join(parts))
        self._out.flush()

    def clear(self, width: int) -> None:
        self._out.write(self._erase(width))
        self._out.flush()
        self._shown, self._widths = [], []

    def painted(self, row: Row) -> str:
        """Return a row as text with escape sequences for colours."""
        return "".join(self._span(text, role) for text, role in row)

    def _span(self, text: str, role: str) -> str:
        text = to_ascii(text) if self._terminal.plain else text
        look = ROLES[role.rpartition("+")[2]]
        codes = [_BOLD] if look.bold else []
        if look.strength < 1 and look.variable == "foreground":
            codes.append(_DIM)
        if self._terminal.colours != "none" and look.variable in _ANSI:
            codes.append(_ANSI[look.variable])
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text.strip() else text

    def _erase(self, width: int) -> str:
        """Return the sequence that erases the lines, which a terminal that became narrower has wrapped."""
        if not self._shown:
            return ""
        rows = sum(max(1, -(-cells // max(width, 1))) for cells in self._widths)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"

    def _changes(self, lines: list[str]) -> list[str]:
        """Return the output that redraws the lines that changed; the cursor stays on the last line."""
        parts = []
        for index, (old, new) in enumerate(zip(self._shown, lines, strict=True)):
            if old != new:
                up = len(lines) - 1 - index
                parts.append(
                    "\r" + (f"\x1b[{up}A" if up else "") + f"{new}\x1b[K" + (f"\x1b[{up}B" if up else "")
                )
        return parts


@contextlib.contextmanager
def _quiet_keys() -> Iterator[None]:
    """Read keys unbuffered and without echo, and hide the cursor; restore the terminal at the end."""
    fd = sys.stdin.fileno()
    original = termios.tcgetattr(fd)
    changed = termios.tcgetattr(fd)
    changed[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(fd, termios.TCSADRAIN, changed)
    sys.stdout.write("\x1b[?25l")
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, original)
        with contextlib.suppress(OSError):
            sys.stdout.write("\x1b[?25h\x1b[0m")
            sys.stdout.flush()


def watch(session: Session) -> str:
    """Show a run. Returns ``over`` when it has ended, ``left`` if the user leaves it running, or ``dashboard``."""
    signals: list[int] = []

    # End when the terminal is closed, even if SIGHUP is ignored.
    on_hang_up(sys.stdin.fileno(), lambda: signals.append(signal.SIGHUP))
    with (
        signals_kept(lambda number, frame: signals.append(number)),
        contextlib.closing(Live(session)) as feed,
    ):
        readers = [OutputReader(session.stdout), OutputReader(session.stderr)]
        try:
            return _watch(session, feed, readers, signals)
        finally:
            for reader in readers:
                reader.close()


def _watch(session: Session, feed: Live, readers: list[OutputReader], signals: list[int]) -> str:
    strip = Strip(sys.stdout, this_terminal())
    stops = 0
    with _quiet_keys():
        try:
            while True:
                status = feed.status()  # before reading, so that the last frame has everything
                feed.advance()
                if not session.meta.devices:
                    with contextlib.suppress(SessionError):  # deleted
                        session.reload()
                width = shutil.get_terminal_size().columns
                now_ns = time.monotonic_ns() - session.meta.mono_ns
                rows = strip_rows(session, feed.fold, status, now_ns, width - 1)
                strip.show(rows, _new_lines(readers), width)
                if status.over and not feed.behind:
                    unfinished = [reader.unfinished for reader in readers if reader.unfinished]
                    strip.show(rows, [*_new_lines(readers), *unfinished], width)
                    return "over"
                key = _key(1 / _RATE_HZ)
                if signals or key == "q":
                    return "left"
                if key == "d":
                    return "dashboard"
                if key == "Q":
                    stops += 1
                    stop_unless_over(session, firm=stops > 1, known=feed.processes())
        finally:
            if signal.SIGHUP not in signals:
                strip.clear(shutil.get_terminal_size().columns)


def _new_lines(readers: list[OutputReader]) -> list[str]:
    """Return new output, of many lines only the last."""
    lines = [line for reader in readers for line in reader.poll()]
    if len(lines) <= _MAX_LINES:
        return lines
    skipped = len(lines) - _MAX_LINES
    return [f"{glyphs.ELLIPSIS} {skipped} lines skipped; the session has all of them", *lines[skipped:]]


def _key(seconds: float) -> str:
    """Wait for a key; returns an empty string if none is pressed."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 64).decode(errors="replace")[:1] if ready else ""
    except (InterruptedError, OSError):
        return ""


def farewell(session: Session) -> str:
    """Return the message on how to return to a run that continues."""
    return f"{session.title} continues to run.\n  watch it again:  tuiprof attach {shell_word(session.id)}"
