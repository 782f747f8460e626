"""The application's use of the terminal: drivers, filters, signals, suspending; and what each screen may ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from textual.app import App
from textual.driver import Driver
from textual.events import Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.notifications import SeverityLevel
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from tuiprof.errors import TuiprofError
from tuiprof.report import this_terminal
from tuiprof.report.sanitize import sanitize, sanitize_lines
from tuiprof.system.own_process import GRACE_S, exit_within, on_hang_up
from tuiprof.tui.start import Start
from tuiprof.tui.terminal import themes
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.output import OneColour, PlainText, TextAlone, squeezing


class Navigation(Protocol):
    """Opens the screens. What cannot be shown is reported in a notice."""

    def session(self, path: Path, *, replay_speed: float | None = None) -> None:
        """Show a session: live or as it ended; with a speed, replayed from its beginning."""

    def switch(self, path: Path, origin: Path) -> None:
        """Show another run beside the one in front; each keeps its state."""

    def trace(self, path: Path, *, step: int | None = None) -> None:
        """Show a trace, whole or at one step."""

    def path(self, path: Path) -> None:
        """Show what a path names: a session directory or a trace file."""

    def ladder(self, name: str, folder: Path | None = None) -> None:
        """Show a ladder: the measurement in a folder; None = the newest of that name, if there is one."""

    def compare(self, before: str, after: str) -> None:
        """Compare two sessions, traces or rungs, named as ``tuiprof compare`` takes them."""

    def scenario(self, ladder: str, variant: str) -> None:
        """Ask how to run a variant, then run and watch it."""

    def back(self, code: int = 0) -> None:
        """Close the screen in front; the last one closes the dashboard with this exit status."""


def tell_worker_error(widget: Widget, event: Worker.StateChanged) -> None:
    """Show the error of a worker that failed."""
    if event.state is WorkerState.ERROR:
        error = event.worker.error
        text = f"{type(error).__name__}: {error}. This is a bug of tuiprof: please report it with the trace."
        widget.notify(text, title="not worked out", severity="error", timeout=15)


_TEXT_ALONE, _ONE_COLOUR, _PLAIN_TEXT = TextAlone(), OneColour(), PlainText()

#: They work before a text field or a dialog takes a key.
TERMINAL_KEYS: Final = (
    key(
        "ctrl+l",
        "draw_anew",
        "redraw",
        "Redraw the screen",
        id="app.draw_anew",
        group="Everywhere",
        show=False,
        priority=True,
    ),
    key(
        "ctrl+z",
        "to_shell",
        "shell",
        "Suspend tuiprof; fg resumes it",
        id="app.to_shell",
        group="Everywhere",
        show=False,
        priority=True,
    ),
)


class TerminalApp(App[int], inherit_bindings=False):
    """Terminal handling of the application; :data:`TERMINAL_KEYS` are its keys."""

    start: Start
    go: Navigation  # the way to other screens

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Printed once the terminal is the user's again, for example how to come back to a run.
        self.farewell = ""
        self.terminal = this_terminal()  # what the terminal can show
        self._drawn_size: Size | None = None

    def get_driver_class(self) -> type[Driver]:
        """Return the terminal driver, which minimizes output; a browser page has its own driver."""
        driver = super().get_driver_class()
        return driver if "TEXTUAL_DRIVER" in os.environ else squeezing(driver)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return what each line goes through before it is sent: what it must not hold, and what cannot be shown."""
        mono = self.theme == themes.MONO.name
        filters = [_TEXT_ALONE, *([_ONE_COLOUR] if mono else super().get_line_filters())]
        return [*filters, _PLAIN_TEXT] if self.terminal.plain else filters

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a notice; it is text, never markup."""
        super().notify(
            sanitize_lines(message), title=sanitize(title), severity=severity, timeout=timeout, markup=False
        )

    @contextlib.contextmanager
    def notify_errors(self) -> Iterator[None]:
        """Turn an error that a user can meet into a notice."""
        try:
            yield
        except TuiprofError as error:
            self.notify(str(error), title="that failed", severity="error", timeout=10)

    def copy_to_clipboard(self, text: str) -> None:
        """Copy one line of text that has no effect where it is pasted; tabs part cells."""
        super().copy_to_clipboard("\t".join(map(sanitize, text.split("\t"))))

    def on_mount(self) -> None:
        """Redraw when the shell resumes the application, and restore the terminal when a signal ends it."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_draw_anew())
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, lambda number, frame: self._end_from_outside(loop, number))
            # The terminal, or the server of the page. SIGHUP may be ignored, and a server that is killed sends none.
            on_hang_up(0, lambda: self._end_from_outside(loop, signal.SIGHUP))

    def _end_from_outside(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        """Exit as if by a signal, and soon, as the loop may wait for a terminal that is not read."""
        exit_within(GRACE_S, 128 + number)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self.exit, 128 + number)

    def on_resize(self, event: Resize) -> None:
        """Draw everything again where the size is as it was: on the way it was another, and cut the picture."""
        if event.size == self._drawn_size:
            self._on_driver("forget")
            self.refresh()
        self._drawn_size = event.size

    def action_draw_anew(self) -> None:
        """Clear the terminal and redraw everything, for example after output of another program."""
        self._on_driver("begin_anew")
        self.refresh(layout=True)

    def _on_driver(self, what: str) -> None:
        """Call what only a squeezing driver has."""
        call = getattr(self._driver, what, None)
        if call is not None:
            call()

    def action_to_shell(self) -> None:
        """Suspend as a job of the shell, if there is one that can resume it."""
        if _has_shell():
            self.action_suspend_process()
        else:
            self.notify("No shell could bring tuiprof back: it was not started from the prompt of one.")


def _has_shell() -> bool:
    """Return whether this process is a separate job of a shell on the same terminal."""
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except (AttributeError, OSError):  # no such thing on this system, or the parent has just ended
        return False
