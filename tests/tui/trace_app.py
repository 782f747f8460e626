"""The dashboard with one trace in front, over analyses of known answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from made_traces import small_trace
from on_screen import running, workers_done
from textual.pilot import Pilot
from textual.screen import Screen

import tuiprof.tui.app.app
from tuiprof import analyses
from tuiprof.analyses import Analysis
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.trace.screen import TraceScreen
from tuiprof.tui.trace.widget import TraceView
from tuiprof.tui.widgets.table import VirtualTable


class TraceApp(TuiprofApp):
    """The dashboard with one trace screen in front."""

    CSS_PATH = str(Path(tuiprof.tui.app.app.__file__).with_name("app.tcss"))

    def __init__(self, make: Callable[[], TraceScreen]) -> None:
        super().__init__(Start())
        self._make = make

    def first_screen(self) -> Screen[Any]:
        return self._make()

    @property
    def view(self) -> TraceView:
        return self.screen_stack[0].query_one(TraceView)

    @property
    def table(self) -> VirtualTable:
        return self.view.query_one(VirtualTable)

    @property
    def timeline(self) -> Timeline:
        return self.view.query_one(Timeline)

    def text(self, selector: str = "*") -> str:
        """What stands on the screen in front, or in one widget of it."""
        strips = self.screen._compositor.render_strips()
        lines = [strip.text for strip in strips]
        if selector == "*":
            return "\n".join(lines)
        region = self.screen.query_one(selector).region
        return "\n".join(line[region.x : region.right] for line in lines[region.y : region.bottom])

    def words(self) -> str:
        """What stands on the screen in front, without its line breaks and the sides of dialogs."""
        return " ".join(self.text().replace("│", " ").split())


def _waits(trace: Trace, window: Window) -> Report | Unavailable:
    rows = [
        int(row) for row in trace.host_calls if "Sync" in trace.name(row) and trace.in_window(window)[row]
    ]
    frame = pl.DataFrame(
        {
            "where": ["train.py:7 update"] * len(rows),
            "blocked_ns": [int(trace.ends[row] - trace.starts[row]) for row in rows],
            "event": rows,
        }
    )
    columns = (
        Column("where", "where"),
        Column("blocked_ns", "waited", "ns"),
        Column("event", "event", hidden=True),
    )
    return Report(
        "waits",
        "Waits",
        Verdict(f"{len(rows)} waits hold the host", "bad"),
        facts=(Fact("n", "waits", len(rows), "count", "Number of waits"),),
        tables=(
            Table("waits", "Waits by place", columns, frame, note="nothing excluded"),
            Table(
                "other", "Waits by kind", columns, frame.clear(), empty="no kinds: this is a made analysis"
            ),
        ),
        rules=(Rule("wait", "The host stands for more than 0 ns."),),
        window=window,
    )


def _names(trace: Trace, window: Window) -> Report | Unavailable:
    frame = pl.DataFrame({"name": [trace.name(row) for row in range(len(trace))]})
    table = Table("names", "Names", (Column("name", "name"),), frame)
    return Report("names", "Names", Verdict("all names are fine", "good"), tables=(table,), window=window)


def _lacking(trace: Trace, window: Window) -> Report | Unavailable:
    return Unavailable("lacking", "no memory events in this trace", "record with `--memory`")


def _broken(trace: Trace, window: Window) -> Report | Unavailable:
    raise ZeroDivisionError("a bug")


#: Analyses of known answers, so that the tests are about the screen alone.
FOUND = {
    "names": Analysis("names", "Names", "Which names are there?", _names),
    "waits": Analysis("waits", "Waits", "Who waits?", _waits),
    "lacking": Analysis("lacking", "Memory", "What holds the memory?", _lacking),
    "broken": Analysis("broken", "Broken", "What if it breaks?", _broken),
}


def screen_of(trace: Trace, step: int | None = None) -> TraceScreen:
    """A screen that shows this trace instead of reading a file."""
    screen = TraceScreen(Path("made"), step=step)
    screen._open = lambda opening: (trace, screen._first_frame(trace))  # type: ignore[method-assign]
    return screen


def app_of(trace: Trace | None = None) -> TraceApp:
    return TraceApp(lambda: screen_of(trace or small_trace()))


async def settle(pilot: Pilot[int]) -> None:
    """Wait until nothing is loaded, worked out or drawn any more."""
    for _ in range(4):
        await workers_done(pilot)


async def typed(pilot: Pilot[int], *keys: str) -> None:
    """Press keys, and wait until nothing is loaded, worked out or drawn any more."""
    await pilot.press(*keys)
    await settle(pilot)


@asynccontextmanager
async def settled(app: TraceApp, **options: Any) -> AsyncIterator[tuple[TraceApp, Pilot[int]]]:
    """Run an application, once nothing is loaded, worked out or drawn any more."""
    async with running(app, **options) as (_, pilot):
        await settle(pilot)
        yield app, pilot


def only(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this be the only analysis, with this answer."""
    analysis = Analysis("only", "Only", "?", lambda _trace, _window: report)
    monkeypatch.setattr(analyses, "available", lambda: {"only": analysis})
    monkeypatch.setattr(analyses, "run", lambda _name, _trace, _window: report)
