"""The screen of all ranks: the map of any size, and the way from a cell to the trace behind it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from on_screen import press, running

from tests.tui.on_screen import screen_text, until
from tuiprof.fleet.gather import FOLDER_VARIABLE
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.fleet.screen import FleetScreen, RankMap
from tuiprof.tui.fleet.view import HeatMap
from tuiprof.tui.terminal.glyphs import MARKS
from tuiprof.tui.trace.screen import TraceScreen


def heat_map(late: np.ndarray) -> HeatMap:
    ranks, steps = late.shape
    fleet = SimpleNamespace(
        late_per_step=late,
        held=SimpleNamespace(late=late.mean(axis=1)),
        number=np.arange(ranks),
        ranks=pl.DataFrame(
            {
                "host": [f"n{rank // 8}" for rank in range(ranks)],
                "path": [f"rank{rank}" for rank in range(ranks)],
            }
        ),
        because={7: "1 more sync a step"},
        steps=np.arange(100, 100 + steps),
    )
    return HeatMap(cast(Any, fleet))


def texts(found: HeatMap, width: int = 80, height: int = 24) -> list[str]:
    return ["".join(text for text, _ in row) for row in found.rows(width, height)]


def test_a_large_map_shows_all_of_it_and_the_latest_cell() -> None:
    late = np.zeros((1000, 1000))
    late[777, 333] = 5e6
    found = heat_map(late)
    drawn = texts(found)
    assert len(drawn) == 24
    assert max(map(len, drawn)) <= 80
    assert sum(line.count("█") for line in drawn) == 1
    assert found.chosen == ("rank777", 433)
    assert drawn[-1].split() == ["step", "100", "1099"]
    legend = "".join(text for text, _ in found.legend(80))
    assert "75 % or more of +5.00 ms" in legend, "the latest of all"


def test_closer_and_closer_is_a_cell_a_rank_and_a_step() -> None:
    late = np.zeros((1000, 1000))
    late[777, 333] = 5e6
    found = heat_map(late)
    texts(found)
    for _ in range(20):
        found.magnify(1)
        texts(found)
    assert any(line.startswith(" 777 ") for line in texts(found))
    found.move(-1, 1)
    assert found.chosen == ("rank776", 434)
    found.latest()
    assert found.chosen == ("rank777", 433)
    for _ in range(20):
        found.magnify(-1)
    assert sum(line.count("█") for line in texts(found)) == 1


def test_the_cursor_stays_on_the_map_and_in_sight() -> None:
    found = heat_map(np.arange(30.0 * 40).reshape(30, 40))
    for _ in range(20):
        texts(found, 30, 10)
        found.magnify(1)
    for lines, columns in ((-99, -99), (99, 99), (0, -99), (-99, 99)):
        found.move(lines, columns)
        rows = found.rows(30, 10)
        assert sum(role == "cursor" for row in rows for _, role in row) == 1


def test_sorting_keeps_the_rank_under_the_cursor() -> None:
    late = np.zeros((16, 3))
    late[7] = 1e6
    late[3] = 2e6
    found = heat_map(late)
    texts(found)
    found.move(4, 0)
    assert found.chosen[0] == "rank7"
    found.sort()
    assert found.chosen[0] == "rank7"
    assert [line.split()[0] for line in texts(found)[:3]] == ["3", "7", "0"]
    assert "1 more sync a step" in "".join(text for text, _ in found.readout(100))


def test_a_rank_that_was_not_there_is_blank() -> None:
    late = np.array([[1e6, np.nan], [0.0, 0.0]])
    line = texts(heat_map(late), 20, 10)[0]
    assert line[12:] == "█" * 4 + " " * 4


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_from_all_ranks_to_the_trace_of_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "summaries"))
    ranks = tmp_path / "job"
    ranks.mkdir()
    for path in sorted(folder.iterdir())[:3]:
        shutil.copy(path, ranks)
    async with running(TuiprofApp(Start("fleet", ranks)), size=size) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(RankMap)))
        assert isinstance(app.screen, FleetScreen)
        # How bad it is needs no colour.
        await until(pilot, lambda: any(f"▌{mark} " in screen_text(app) for mark in MARKS.values()))
        await pilot.press("s", "x", "plus", "minus", "down", "up", "right", "left", "pagedown", "pageup", "x")
        assert "rank 1 " in "".join(
            str(app.screen.query_one(RankMap).render_line(y).text) for y in range(size[1])
        )
        assert "enter open" in screen_text(app), "the key that goes on is seen at any size"
        await press(pilot, "enter", opens=TraceScreen)
        await pilot.press("escape", "q")
        await until(pilot, lambda: isinstance(app.screen, FleetScreen) or not app.is_running)


async def test_a_folder_that_cannot_be_shown_says_why(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text('{"traceEvents": []}')
    async with running(TuiprofApp(Start("fleet", tmp_path)), size=(100, 30)) as (app, pilot):
        await until(pilot, lambda: app.screen.query_one("LoadingPanel").error is not None)
        assert "no collective" in app.screen.query_one("LoadingPanel").error.message
        await pilot.press("q")
