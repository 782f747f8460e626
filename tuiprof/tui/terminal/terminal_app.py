"""The base of the application: terminal handling, and the interface through which screens use the application."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import _lru_cache_wrapper, lru_cache, partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from textual._styles_cache import StylesCache
from textual.app import App
from textual.driver import Driver
from textual.events import Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from tuiprof.errors import TuiprofError
from tuiprof.report import this_terminal
from tuiprof.report.sanitize import sanitize, sanitize_lines
from tuiprof.system.own_process import GRACE_S, exit_within, on_hang_up
from tuiprof.tui import Start
from tuiprof.tui.terminal import themes
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.output import AsciiOnly, NoColour, StripControls, squeezing

Answer = TypeVar("Answer")


def free_closed_widgets(styles_cache: Any) -> None:
    """Let Textual free the lines of closed widgets.

    Textual 8.2 caches two styles with the line cache of the widget in the key, and so keeps the lines of up to 1024
    closed widgets (https://github.com/Textualize/textual/issues/6665). Other versions are left alone if they cache no
    method there. Remove this when the oldest supported version has the fix.
    """
    cached = vars(styles_cache).get("get_inner_outer")
    if isinstance(cached, _lru_cache_wrapper):
        own = lru_cache(cached.cache_parameters()["maxsize"])(partial(cached.__wrapped__, styles_cache))
        styles_cache.get_inner_outer = staticmethod(own)


free_closed_widgets(StylesCache)


class Navigation(Protocol):
    """Opens screens; errors are shown as notifications."""

    def session(self, path: Path, *, replay_speed: float | None = None) -> None:
        """Show a session: live or as it ended; with a speed, replayed from its beginning."""

    def switch(self, path: Path, origin: Path) -> None:
        """Switch to another run; each run keeps its screen and its state."""

    def trace(self, path: Path, *, step: int | None = None) -> None:
        """Show a trace, zoomed to a step if one is given."""

    def path(self, path: Path) -> None:
        """Show a session directory or a trace file."""

    def ladder(self, name: str, folder: Path | None = None) -> None:
        """Show a ladder: the measurement in a folder; None = the newest of that name, if there is one."""

    def compare(self, before: str, after: str) -> None:
        """Compare two sessions, traces or rungs, named as for ``tuiprof compare``."""

    def scenario(self, ladder: str, variant: str) -> None:
        """Ask how to run a variant, then run and watch it."""

    def back(self, code: int = 0) -> None:
        """Close the top screen; closing the last one exits with this status."""


def notify_worker_error(widget: Widget, event: Worker.StateChanged) -> None:
    """Show the error of a worker that failed."""
    if event.state is WorkerState.ERROR:
        error = event.worker.error
        text = f"{type(error).__name__}: {error}. This is a bug in tuiprof: please report it with the trace."
        widget.notify(text, title="internal error", severity="error", timeout=15)


#: A line keeps what a filter made of it, for that very filter: new ones would filter every line at every draw.
_STRIP_CONTROLS: Final = StripControls()
_NO_COLOUR: Final = NoColour()
_ASCII_ONLY: Final = AsciiOnly()

#: Keys that also work while a text field or a dialog has the focus.
TERMINAL_KEYS: Final = (
    key("ctrl+l", "draw_anew", "redraw", "Redraw the screen", id="app.draw_anew", group="Everywhere", show=False,
        priority=True),
    key("ctrl+z", "to_shell", "shell", "Suspend tuiprof; fg resumes it", id="app.to_shell", group="Everywhere",
        show=False, priority=True),
)  # fmt: skip


class TerminalApp(App[int], inherit_bindings=False):
    """Terminal handling of the application; :data:`TERMINAL_KEYS` are its keys."""

    start: Start
    go: Navigation  # opens other screens

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Printed after the dashboard has closed, for example how to come back to a run.
        self.farewell = ""
        self.terminal = this_terminal()  # its capabilities
        self._drawn_size: Size | None = None

    def get_driver_class(self) -> type[Driver]:
        """Return Textual's driver, made to send less to a terminal."""
        driver = super().get_driver_class()
        return driver if "TEXTUAL_DRIVER" in os.environ else squeezing(driver)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return filters for control characters, and for colours and characters that the terminal cannot show."""
        mono = self.theme == themes.MONO.name
        filters = [_STRIP_CONTROLS, *([_NO_COLOUR] if mono else super().get_line_filters())]
        return [*filters, _ASCII_ONLY] if self.terminal.plain else filters

    def notify(self, message: str, *, title: str = "", markup: bool = False, **options: Any) -> None:
        """Show a notification; the message may be untrusted, and is not parsed as markup."""
        super().notify(sanitize_lines(message), title=sanitize(title), markup=False, **options)

    @contextlib.contextmanager
    def notify_errors(self) -> Iterator[None]:
        """Show a :class:`~tuiprof.errors.TuiprofError` raised in the block as a notification."""
        try:
            yield
        except TuiprofError as error:
            self.notify(str(error), title="error", severity="error", timeout=10)

    def ask(self, dialog: Screen[Answer], then: Callable[[Answer], object]) -> None:
        """Show a dialog, and call ``then`` with the answer unless it is cancelled; an error in it is shown."""

        def answered(answer: Answer | None) -> None:
            if answer is not None:
                with self.notify_errors():
                    then(answer)

        self.push_screen(dialog, answered)

    def copy_to_clipboard(self, text: str) -> None:
        """Copy one line of sanitized text; tabs, which separate cells, are kept."""
        super().copy_to_clipboard("\t".join(map(sanitize, text.split("\t"))))

    def on_mount(self) -> None:
        """Redraw when the shell resumes the application, and exit properly on SIGTERM and when the terminal closes."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_draw_anew())
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, lambda number, frame: self._exit_by_signal(loop, number))
            # Watch the terminal (or the pipe of the web server) itself: SIGHUP may be ignored, and a killed server
            # sends none.
            on_hang_up(0, lambda: self._exit_by_signal(loop, signal.SIGHUP))

    def _exit_by_signal(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        """Exit with the status of a signal, at the latest after a grace period: the loop may block on the terminal."""
        exit_within(GRACE_S, 128 + number)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self.exit, 128 + number)

    def on_resize(self, event: Resize) -> None:
        """Redraw everything if the size is unchanged: it was different in between, and the terminal cut the content."""
        if event.size == self._drawn_size:
            self._call_driver("forget")
            self.refresh()
        self._drawn_size = event.size

    def action_draw_anew(self) -> None:
        """Clear the terminal and redraw everything, for example after output of another program."""
        self._call_driver("reset")
        self.refresh(layout=True)

    def _call_driver(self, method: str) -> None:
        """Call a method that only the driver of :func:`squeezing` has."""
        call = getattr(self._driver, method, None)
        if call is not None:
            call()

    def action_to_shell(self) -> None:
        """Suspend the process, if a shell can resume it."""
        if _has_shell():
            self.action_suspend_process()
        else:
            self.notify("tuiprof cannot be suspended: it was not started from a shell that could resume it.")


def _has_shell() -> bool:
    """Return whether this process is a job of a shell on the same terminal."""
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except (AttributeError, OSError):  # not on this platform, or the parent has just exited
        return False
