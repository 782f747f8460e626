"""The compare screen: opens two runs in a worker, then shows the comparison or the error."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.screen import Screen

from tuiprof.errors import TuiprofError
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.opening.loading import LoadingPanel, Progress, open_in_thread
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import TerminalApp
from tuiprof.tui.widgets.bars import KeyBar

if TYPE_CHECKING:
    from tuiprof.comparison.sides import Side
    from tuiprof.model.trace import Trace
    from tuiprof.tui.compare.view import Comparison
    from tuiprof.tui.compare.widget import CompareView


class CompareScreen(Screen[None]):
    """Compares two runs. Heavy modules are imported by the worker, after the screen is shown.

    A run is a trace file, a directory of them, a session (path, name, ``last``) or ``LADDER:VARIANT``.
    """

    app = getters_app(TerminalApp)
    CSS_PATH = "screen.tcss"
    HELP = (
        "At the top are the verdict and its confidence interval, then the step times of both runs on one scale, then\n"
        "both timelines, aligned at the first step; they move together. The tables list what changed, largest change\n"
        "first. Differences are after minus before: negative is faster.\n\n"
        "Enter on a row shows its longest event in both timelines. Selecting an event in one timeline marks its\n"
        "counterpart in the other: the event of the same name at the same position in the same step."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key("q", "leave", "close", "Close the comparison", id="compare.close", group="Compare"),
        key("escape", "give_up", "cancel", "Stop opening", id="compare.cancel", group="Compare"),
    ]

    def __init__(self, before: str | Path, after: str | Path, *, root: Path | None = None) -> None:
        super().__init__()
        self.targets = str(before), str(after)
        self._root = root
        self._sides: tuple[Side, Side] | None = None
        self._stop = threading.Event()
        self._opening = True
        self._panel = LoadingPanel(sanitize(" and ".join(Path(target).name for target in self.targets)))

    def compose(self) -> ComposeResult:
        """The loading panel, which the comparison will replace."""
        yield self._panel
        yield KeyBar()

    def _start(self) -> None:
        self._opening = True
        problem, cancelled = "these runs cannot be compared", self._stop.is_set
        open_in_thread(self, self._open, self._show, self._fail, problem=problem, cancelled=cancelled)

    on_mount = _start

    def on_unmount(self) -> None:
        self._stop.set()

    def _open_trace(self, path: Path) -> Trace:
        """In the worker's thread: read one trace, reporting progress."""
        from tuiprof import formats

        def advance(done: int, total: int) -> None:
            self._panel.post_message(LoadingPanel.Moved(Progress(done, total)))

        return formats.open_trace(path, progress=advance, cancelled=self._stop.is_set)

    def _open(self) -> tuple[Comparison, type[CompareView]]:
        """In the worker's thread: open and compare both runs; the second time with before and after swapped."""
        from tuiprof.comparison.sides import compare_sides, open_side, with_distinct_names
        from tuiprof.formats.remote import fetch
        from tuiprof.tui.compare.view import Comparison
        from tuiprof.tui.compare.widget import CompareView
        from tuiprof.tui.timeline import lanes as lane_builder

        fetcher = partial(fetch, cancelled=self._stop.is_set)
        if self._sides is None:
            opened = (
                open_side(target, root=self._root, opener=self._open_trace, fetcher=fetcher)
                for target in self.targets
            )
            before, after = with_distinct_names(*opened)
        else:
            after, before = self._sides
        self._sides = before, after
        report = compare_sides(before, after)
        lanes = None
        if before.trace is not None and after.trace is not None:
            lanes = lane_builder.build(before.trace), lane_builder.build(after.trace)
        return Comparison(before, after, report, lanes), CompareView

    async def _show(self, opened: tuple[Comparison, type[CompareView]]) -> None:
        comparison, view = opened
        self._opening = False
        with self.app.batch_update():
            await self.query("LoadingPanel, CompareView").remove()
            await self.mount(view(comparison), before=0)
        self.refresh_bindings()

    def _fail(self, error: TuiprofError) -> None:
        self._opening = False
        self._panel.fail(error)
        self.refresh_bindings()

    def on_compare_view_swapped(self) -> None:
        if not self._opening:
            self._start()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show ``cancel`` only while opening."""
        return self._opening if action == "give_up" else True

    def action_give_up(self) -> None:
        self._stop.set()
        self.action_leave()

    def action_leave(self) -> None:
        """Close the comparison; the last screen closes the dashboard."""
        self.app.go.back()

    on_compare_view_left = action_leave
