"""The ranks screen: reads the traces of all ranks in worker processes, then shows which rank is late in which step."""

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
from tuiprof.tui.widgets.lines import Lines, Painted, Row
from tuiprof.tui.widgets.spans import verdict_rows, wrap

if TYPE_CHECKING:
    from tuiprof.fleet import gather as gathering
    from tuiprof.fleet.fleet import Fleet
    from tuiprof.tui.fleet.view import HeatMap

_ranks = partial(key, group="Ranks")


class RankMap(Lines, can_focus=True):
    """A heat map of lateness: one line per rank, one column per step."""

    BINDINGS: ClassVar[list[BindingType]] = [
        _ranks("enter", "screen.open", "open", "Open the trace of this rank at this step", id="fleet.open"),
        _ranks("up,k", "map('move', (-1, 0))", "up", "Rank above", id="fleet.up", show=False),
        _ranks("down,j", "map('move', (1, 0))", "down", "Rank below", id="fleet.down", show=False),
        _ranks("left,h", "map('move', (0, -1))", "left", "Previous step", id="fleet.left", show=False),
        _ranks("right,l", "map('move', (0, 1))", "right", "Next step", id="fleet.right", show=False),
        _ranks("pageup", "map('page', (-1,))", "page up", "One page up", id="fleet.page_up", show=False),
        _ranks("pagedown", "map('page', (1,))", "page down", "One page down", id="fleet.page_down", show=False),
        _ranks("plus,equals_sign", "map('magnify', (1,))", "zoom in", "Zoom in: fewer ranks and steps per cell",
               id="fleet.closer", display="+"),
        _ranks("minus", "map('magnify', (-1,))", "zoom out", "Zoom out: more ranks and steps per cell",
               id="fleet.farther", display="-"),
        _ranks("s", "map('sort')", "sort", "Sort by lateness or by rank", id="fleet.sort"),
        _ranks("x", "map('latest')", "most late", "Go to the longest delay", id="fleet.latest"),
    ]  # fmt: skip

    def __init__(self, heat_map: HeatMap) -> None:
        super().__init__(id="fleet-map")
        self._map = heat_map

    def draw(self, width: int, height: int) -> list[Row]:
        if not width or height < 4:
            return []
        return [*self._map.rows(width, height - 3), self._map.legend(width), [], self._map.readout(width)]

    def action_map(self, name: str, arguments: tuple[int, ...] = ()) -> None:
        getattr(self._map, name)(*arguments)
        self.redraw()


class FleetScreen(Screen[None]):
    """Shows the ranks of a job, given the folder of their traces."""

    app = getters_app(TerminalApp)
    CSS_PATH = "screen.tcss"
    HELP = (
        "Each line is a rank, each column a step. The height and colour of a cell show how much later than the\n"
        "median rank it reaches the collectives of that step. If not all ranks or steps fit, a cell shows the\n"
        "latest of several; + zooms in. Below the grid is how the selected rank differs from the others.\n\n"
        "Enter opens the trace of the selected rank at that step."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        _ranks("q,escape", "leave", "close", "Close the ranks", id="fleet.close"),
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._title = sanitize(folder.name or str(folder))
        self._stop = threading.Event()
        self._map: HeatMap | None = None
        self._panel = LoadingPanel(self._title)

    def compose(self) -> ComposeResult:
        """The loading panel, which the map will replace."""
        yield self._panel
        yield KeyBar()

    def on_mount(self) -> None:
        problem, cancelled = "these ranks cannot be shown", self._stop.is_set
        open_in_thread(self, self._read, self._show, self._fail, problem=problem, cancelled=cancelled)

    def on_unmount(self) -> None:
        """Cancel reading; summaries read so far stay cached."""
        self._stop.set()

    def _read(self) -> Fleet:
        """In a thread: read all ranks in worker processes."""
        from tuiprof.fleet.fleet import Fleet
        from tuiprof.fleet.gather import File, Processes, affordable, gather
        from tuiprof.formats import Cancelled, open_set

        found = open_set(self._folder).files
        files = [
            File(number, str(file.path.absolute()), file.rank, file.size_bytes)
            for number, file in enumerate(found)
        ]

        def advance(now: gathering.Progress) -> None:
            if self._stop.is_set():
                raise Cancelled("the screen was closed")
            self._panel.post_message(LoadingPanel.Moved(Progress(now.bytes, now.bytes_in_all)))

        workers = affordable(max(file.size for file in files))
        fleet = Fleet(gather(files, Processes(min(workers, len(files))), advance))
        if not len(fleet.groups):
            problems = fleet.unread["problem"].to_list()
            raise TuiprofError(
                f"no collective of {len(fleet.read)} ranks was matched"
                + (f"; {len(problems)} files cannot be read: {problems[0]}" if problems else ""),
                "for what is known about each rank, run: tuiprof report FOLDER",
            )
        return fleet

    async def _show(self, fleet: Fleet) -> None:
        from tuiprof.fleet.views import reports
        from tuiprof.model import Report
        from tuiprof.tui.fleet.view import HeatMap

        self._map = HeatMap(fleet)
        (report,) = reports(fleet, ["stragglers"])
        verdict, level = (
            (report.verdict.sentence, report.verdict.level)
            if isinstance(report, Report)
            else (report.reason, "info")
        )

        def draw(width: int, _: int) -> list[Row]:
            lines = wrap(sanitize(verdict), max(width - 4, 8))
            return [[(self._title, "title")], *verdict_rows(lines, level)]

        head, rank_map = Painted(id="fleet-head"), RankMap(self._map)
        with self.app.batch_update():
            await self.query(LoadingPanel).remove()
            await self.mount(head, rank_map, before=0)
        head.paint(draw)
        rank_map.focus()
        self.refresh_bindings()

    def _fail(self, error: TuiprofError) -> None:
        self._panel.fail(error)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable ``open`` once the map is shown."""
        return self._map is not None if action == "open" else True

    def action_open(self) -> None:
        if self._map is not None:
            path, step = self._map.chosen
            self.app.go.trace(Path(path), step=step)

    def action_leave(self) -> None:
        """Close the screen; the last one closes the dashboard."""
        self.app.go.back()
