"""Several ranks, several captures: the screen says which it shows, lists the others and changes to them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from made_traces import small_trace
from on_screen import press, running, screen_text, until, until_shown, workers_done

from tuiprof.model.traceset import RankFile, TraceSet
from tuiprof.resources import shipped
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.opening.captures import Captures, CapturesScreen, captures_of, summarise
from tuiprof.tui.trace.screen import TraceScreen

SAMPLES = ("planted-syncs", "planted-kinds")


def ranks(folder: Path, *names: str) -> Path:
    """Put one sample under each name."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(names):
        shutil.copy(shipped("traces") / f"{SAMPLES[place % 2]}.pt.trace.json.gz", folder / name)
    return folder


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    return ranks(tmp_path / "run", "rank0.json.gz", "rank1.json.gz")


def test_files_named_by_rank_belong_together_and_a_single_trace_to_none(
    two_ranks: Path, tmp_path: Path
) -> None:
    found = captures_of(two_ranks / "rank1.json.gz")
    assert [file.path.name for file in found.files] == ["rank0.json.gz", "rank1.json.gz"]
    assert found.label() == "rank 1 of 2"
    assert found.label(world_size=8) == "rank 1 of 8 (2 here)"
    alone = captures_of(ranks(tmp_path / "one", "trace.json.gz") / "trace.json.gz")
    assert len(alone) == 0
    assert alone.label() == ""


def test_a_trace_of_a_session_belongs_with_its_other_captures(tmp_path: Path) -> None:
    session = tmp_path / "session"
    ranks(
        session / "traces" / "plugins" / "profile" / "first",
        "rank0.pt.trace.json.gz",
        "rank1.pt.trace.json.gz",
    )
    last = ranks(session / "traces" / "plugins" / "profile" / "second", "rank0.pt.trace.json.gz")
    (session / "session.json").write_text("{}")
    found = captures_of(last / "rank0.pt.trace.json.gz")
    assert [len(one) for one in found.sets] == [2, 1]
    assert found.label() == "capture 2 of 2"
    assert found.files[0].path == last / "rank0.pt.trace.json.gz"


def test_figures_are_those_of_the_trace() -> None:
    found = summarise(small_trace())
    assert found.events == len(small_trace())
    assert found.step_ns == 10e6
    assert found.busy_share is not None
    assert 0 < found.busy_share < 1


async def test_the_head_tells_of_other_ranks_and_a_key_changes_to_one(two_ranks: Path) -> None:
    first, second = (two_ranks / f"rank{rank}.json.gz" for rank in (0, 1))
    async with running(TuiprofApp(Start("trace", first, directory=two_ranks))) as (app, pilot):
        await until_shown(pilot, "rank 0 of 2 — R: others", "Syncs by location")
        await workers_done(pilot)
        screen = app.screen
        await pilot.press("3")
        await press(pilot, "R", opens=CapturesScreen)
        shown = await until_shown(pilot, "device busy", "rank1.json.gz", "the Ranks tab shows")
        assert "…" not in shown.split("device busy")[1].split("rank1.json.gz")[0]
        await press(pilot, "down", "enter", shows=("rank 1 of 2 — R: others", "rank1.json.gz"))
        assert app.screen is screen
        assert isinstance(screen, TraceScreen)
        assert screen.path == second
        view = screen._view
        assert view is not None
        assert view.trace.info.path == second
        assert view.current == view.tabs[2]  # the tab that was looked at
        await press(pilot, "R", opens=CapturesScreen)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        assert screen.path == second


async def test_one_trace_alone_has_no_such_key(tmp_path: Path) -> None:
    path = ranks(tmp_path, "trace.json.gz") / "trace.json.gz"
    async with running(TuiprofApp(Start("trace", path)), "Syncs by location") as (app, pilot):
        assert "others" not in screen_text(app)
        await pilot.press("R")
        await pilot.pause()
        assert isinstance(app.screen, TraceScreen)


async def test_another_rank_can_be_chosen_where_one_cannot_be_read(two_ranks: Path) -> None:
    (two_ranks / "rank0.json.gz").write_bytes(b"this is no trace")
    app = TuiprofApp(Start("trace", two_ranks / "rank0.json.gz", directory=two_ranks))
    async with app.run_test(size=(120, 36)) as pilot:
        await until_shown(pilot, "✗ ", "R others")
        await press(pilot, "R", shows="unreadable")
        await press(pilot, "end", "enter", shows=("rank 1 of 2", "Syncs by location"))


async def test_the_list_marks_the_straggler_and_says_what_it_did_not_read(two_ranks: Path) -> None:
    files = tuple(
        RankFile(rank, two_ranks / f"rank{rank}.json.gz", "name", size)
        for rank, size in enumerate((1, 1 << 40))
    )
    captures = Captures((TraceSet("", files, lambda path: small_trace()),), files[0].path)
    async with running(TuiprofApp(Start("trace", files[0].path)), size=(80, 24)) as (app, pilot):
        app.push_screen(CapturesScreen(captures, {}, straggler=1))
        shown = await until_shown(pilot, "straggler", "not read for this list: 1 trace, 1.00 TiB")
        lines = shown.splitlines()
        assert "⚑ straggler" in next(line for line in lines if "rank1.json.gz" in line)
        assert "straggler" not in next(line for line in lines if "rank0.json.gz" in line)
