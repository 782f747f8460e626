"""The trace screen: opens a trace in a worker, then shows it, or says why it cannot be read and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen

from tuiprof.errors import TuiprofError
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.keys import key
from tuiprof.tui.loading import Opening, Progress
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.loading_panel import LoadingPanel

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace
    from tuiprof.tui.widgets.trace_view import TraceView


class TraceScreen(Screen[None]):
    """Shows one trace. Nothing heavy is imported before the screen stands.

    Args:
        path: The file to open.
        trace: A trace that is open already; then there is nothing to load.
    """

    CSS_PATH = "trace.tcss"
    HELP = (
        "On top the verdict that matters most, then the trace over time, then one tab an analysis; enter on a row\n"
        "opens its details: times, launch, operators, Python stack, source, raw event.\n\n"
        "Timeline: L launches work, S waits for the device, · other calls; the height of a stream's cell is the\n"
        "share of its time that was busy, c is a copy, f a fill, C a collective; ░▒▓ are shares of idle time.\n"
        "The mouse: the wheel zooms, with shift it pans, dragging selects, a double click opens the event."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "cancel", "Stop opening the trace", id="trace.cancel", group="Trace"),
        key("q", "leave", "close", "Close the trace", id="trace.close", group="Trace"),
    ]

    class Moved(Message):
        """Opening went on.

        Attributes:
            progress: How far it is.
        """

        def __init__(self, progress: Progress) -> None:
            super().__init__()
            self.progress = progress

        def can_replace(self, message: Message) -> bool:
            """Only the latest counts."""
            return isinstance(message, TraceScreen.Moved)

    class Opened(Message):
        """The trace is open, and the modules that show it are imported."""

        def __init__(self, trace: Trace, view: type[TraceView]) -> None:
            super().__init__()
            self.trace = trace
            self.view = view

    class Failed(Message):
        """The trace cannot be opened."""

        def __init__(self, error: TuiprofError) -> None:
            super().__init__()
            self.error = error

    def __init__(self, path: Path | None = None, *, trace: Trace | None = None) -> None:
        super().__init__()
        if path is None and trace is None:
            raise ValueError("a trace screen needs a path or a trace")
        self.path = path
        self._given = trace
        self._opening: Opening | None = None

    def compose(self) -> ComposeResult:
        """The panel that loads; the trace takes its place."""
        name = self.path.name if self.path else ""
        yield LoadingPanel(sanitize(name))
        yield KeyBar()

    def on_mount(self) -> None:
        """Begin to open."""
        if self.path is not None:
            self._opening = Opening(self.path, self._moved)
        self.run_worker(self._open, thread=True, exclusive=True, group="open", exit_on_error=False)

    def _moved(self, progress: Progress) -> None:
        """In the worker's thread: tell the screen."""
        self.post_message(self.Moved(progress))

    def on_unmount(self) -> None:
        """Stop an opening that nobody waits for any more."""
        if self._opening is not None:
            self._opening.cancel()

    def _open(self) -> None:
        """In a thread: read the file, and import what shows it."""
        try:
            trace = self._opening.run() if self._opening is not None else self._given
            assert trace is not None
            from tuiprof.tui.widgets.trace_view import TraceView
        except TuiprofError as error:
            if self._opening is None or not self._opening.cancelled:
                self.post_message(self.Failed(error))
        except Exception as error:  # noqa: BLE001 - a decoder's bug must be told on the screen, not end the dashboard
            text = f"{self.path} could not be read: {type(error).__name__}: {error}"
            self.post_message(
                self.Failed(TuiprofError(text, "this is a bug of tuiprof; please report it with the file"))
            )
        else:
            self.post_message(self.Opened(trace, TraceView))

    def on_trace_screen_moved(self, message: Moved) -> None:
        """Show how far the opening is."""
        for panel in self.query(LoadingPanel):
            panel.advance(message.progress)

    async def on_trace_screen_opened(self, message: Opened) -> None:
        """Show the trace."""
        self._opening = None
        with self.app.batch_update():
            await self.query(LoadingPanel).remove()
            await self.mount(message.view(message.trace), before=0)
        self.refresh_bindings()

    def on_trace_screen_failed(self, message: Failed) -> None:
        """Say what is wrong and what to do."""
        self._opening = None
        self.query_one(LoadingPanel).fail(message.error)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show ``cancel`` only while there is something to cancel."""
        return self._opening is not None if action == "give_up" else True

    def action_give_up(self) -> None:
        """Stop opening, and leave."""
        if self._opening is not None:
            self._opening.cancel()
        self.action_leave()

    def on_trace_view_left(self) -> None:
        """Leave."""
        self.action_leave()

    def action_leave(self) -> None:
        """Close the trace; the last screen closes the dashboard."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        else:
            self.app.exit(0)
