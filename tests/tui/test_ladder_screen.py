"""The ladder screen: what was measured, and measuring in the background."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path

import pytest
from ladder.made_ladders import ladder_meta
from on_screen import press, running, screen_text, until, until_shown, workers_done
from session.session_logs import new_session

from tuiprof.cli.options import Invocation
from tuiprof.cli.targets import ladder_or_none
from tuiprof.ladder.background import runner_of
from tuiprof.ladder.state import Figures, KernelFigures, LadderRun, Rung, Trial, create, list_runs
from tuiprof.resources import shipped
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.ladder.screen import LadderScreen
from tuiprof.tui.trace.screen import TraceScreen
from tuiprof.tui.widgets.choices import Choices

SCRIPT = """# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.tuiprof]
# name = "tiny"
# title = "a [b]loop[/b]"
# story = "It sleeps."
# baseline = "slow"
# [tool.tuiprof.presets.smoke]
# note = "small"
# [[tool.tuiprof.variants]]
# name = "slow"
# note = "Sleeps long."
# published = [{ text = "20 ms" }]
# [[tool.tuiprof.variants]]
# name = "fast"
# note = "Sleeps less."
# [[tool.tuiprof.variants]]
# name = "impossible"
# needs = { packages = ["no-such-package-anywhere>=1.0"] }
# ///
import os, sys, time
import tuiprof
while os.path.exists(os.path.join(os.path.dirname(__file__), "hold")):
    time.sleep(0.02)
for step in range(40):
    time.sleep(0.004 if "slow" in sys.argv else 0.002)
    tuiprof.step()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (folder / "tiny.py").write_text(SCRIPT)
    return Start(sessions=tmp_path / "sessions", scenarios=(folder,), python=Path(sys.executable))


def measured(
    start: Start, medians: dict[str, float], *, rounds: int = 3, left: int = 0, traces: bool = True
) -> LadderRun:
    """Return a ladder that was measured before, with real traces if wanted; the last trials may be missing."""
    script = start.scenarios[0] / "tiny.py"
    rungs = [Rung(name, "slow", note=f"{name} sleeps.", published=("20 ms",)) for name in medians]
    rungs.append(Rung("gone", "slow", reason="no TPU"))
    what = {"ladder": "tiny", "title": "a [b]loop[/b]", "source": "a laptop", "script": str(script)}
    where = {"python": sys.executable, "host": platform.node(), "machine": "2 cores"}
    meta = ladder_meta(*rungs, **what, **where, rounds=rounds)
    ladder = create(start.sessions, meta)
    samples = ("metrics-naive", "metrics-no-nan-check") if traces else ()
    for name, sample in zip(medians, samples, strict=False):
        session = new_session(ladder.root, name)
        shutil.copy(shipped("traces") / f"{sample}.pt.trace.json.gz", session.path / "traces")
        ladder.put(Trial("trace", 0, name, session.id, "done", wall_ns=10**9))
    for number in range(1, rounds + 1):
        for name, median_ns in medians.items():
            figures = Figures(median_ns * (1 + 0.001 * number), 30)
            ladder.put(Trial("timing", number, name, "", "done", wall_ns=2 * 10**9, figures=figures))
    del ladder.meta.trials[len(ladder.meta.trials) - left :]
    ladder.save()
    return ladder


async def opened(app: TuiprofApp) -> None:
    app.go.ladder("tiny")


async def test_an_earlier_measurement_is_shown_without_running(start: Start) -> None:
    measured(start, {"slow": 20e6, "fast": 15e6})
    async with running(TuiprofApp(start), size=(160, 40)) as (app, pilot):
        await opened(app)
        text = await until_shown(
            pilot, "ladder tiny — a [b]loop[/b]", "3 rounds · fit", "1.33× faster", "syncs/step"
        )
        fast = next(line for line in text.splitlines() if "fast " in line and "15.0 ms" in line)
        assert "1.33× faster" in fast
        assert "no TPU" in text
        await press(pilot, "down", shows=("why", "against slow:", "published", "on a laptop"))
        await press(pilot, "enter", opens=TraceScreen)


async def test_a_kernel_is_shown_beside_the_limits_of_its_chip(start: Start) -> None:
    ladder = measured(start, {"slow": 20e6, "fast": 15e6}, traces=False)
    times = {"cold": 15e6, "warm": 14e6, "host": 20e3}
    kernel = KernelFigures(4_800_000_000, 10**12, "int8", times)
    figures = Figures(15e6, 30, device="NVIDIA H200", ranges_ns={"calc loss": 3e6}, kernel=kernel)
    trials = ladder.meta.trials
    trials[-1] = Trial("timing", 3, "fast", "", "done", wall_ns=10**9, figures=figures)
    ladder.save()
    async with running(TuiprofApp(start), size=(160, 40)) as (app, pilot):
        await opened(app)
        await until_shown(pilot, "1.33× faster")
        await pilot.press("down")
        text = await until_shown(pilot, "cold 15.0 ms, warm 14.0 ms, host 20.0 µs", "calc loss 3.00 ms")
        assert "320 GB/s (6.7 % of NVIDIA H200 SXM)" in text


async def test_a_measured_ladder_opens_by_its_name_with_its_intervals_drawn(
    start: Start,
) -> None:
    ladder = measured(start, {"slow": 20e6, "fast": 5e6}, traces=False)
    invocation = Invocation(sessions=start.sessions, scenarios=start.scenarios)
    for named in ("last", "tiny", ladder.path.name, str(ladder.path)):
        assert ladder_or_none(invocation, named) == ladder.path
    session = new_session(start.sessions)
    assert ladder_or_none(invocation, "last") is None
    assert ladder_or_none(invocation, session.id) is None
    app = TuiprofApp(Start("ladder", ladder.path, sessions=start.sessions, scenarios=start.scenarios))
    async with app.run_test(size=(200, 40)) as pilot:
        await until_shown(pilot, "ladder tiny", "baseline", "4.00× faster", "●")
        await workers_done(pilot)
        lines = screen_text(app).splitlines()
        head = next(line for line in lines if "verdict" in line)
        slow, fast = (
            next(line for line in lines if line.lstrip(" ▸").startswith(name)) for name in ("slow", "fast")
        )
        assert head.index("4.00× faster") < slow.index("●")
        assert fast.index("●") < fast.index("│") == slow.index("●")


async def test_a_stopped_one_says_what_is_left_and_80_columns_are_enough(start: Start) -> None:
    measured(start, {"slow": 20e6, "fast": 15e6}, left=2)
    async with running(TuiprofApp(start), size=(80, 24)) as (app, pilot):
        await opened(app)
        text = await until_shown(pilot, "stopped with 2 of 8 trials left", "r resumes", "? help")
        assert all(len(line) <= 80 for line in text.splitlines())
        assert "20.0 ms" in text


async def test_results_are_exported_and_older_ones_are_a_key_away(start: Start, tmp_path: Path) -> None:
    measured(start, {"slow": 20e6, "fast": 15e6}, traces=False)
    measured(start, {"slow": 20e6, "fast": 30e6}, traces=False)
    async with running(TuiprofApp(start), size=(160, 40)) as (app, pilot):
        await opened(app)
        await until_shown(pilot, "1 of 2", "slower", "e export")
        await press(pilot, "e", shows="export to")
        field = app.screen.query_one("Input")
        field.value = str(tmp_path / "out.xyz")  # type: ignore[attr-defined]
        await press(pilot, "enter", opens=LadderScreen)
        assert not (tmp_path / "out.xyz").exists()
        await press(pilot, "e", shows="export to")
        app.screen.query_one("Input").value = str(tmp_path / "out.json")  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(pilot, lambda: (tmp_path / "out.json").exists())
        assert json.loads((tmp_path / "out.json").read_text())["reports"][0]["analysis"] == "ladder"
        await press(pilot, "left_square_bracket", shows=("2 of 2", "faster"))
        await press(pilot, "right_square_bracket", shows=("1 of 2", "slower"))


async def test_a_rung_is_compared_by_its_trials_and_by_its_trace(start: Start) -> None:
    measured(start, {"slow": 20e6, "fast": 15e6}, rounds=6)
    async with running(TuiprofApp(start), size=(160, 44)) as (app, pilot):
        await opened(app)
        await until_shown(pilot, "1.33× faster")
        assert "c compare" not in screen_text(app)  # the baseline builds on nothing
        await press(pilot, "down", shows="c compare")
        await pilot.press("c")
        await until_shown(
            pilot, "before tiny:slow", "after tiny:fast", "1.33× faster", "6 paired trials", "runtime"
        )


async def test_rungs_without_a_trace_are_compared_by_their_trials_alone(start: Start) -> None:
    measured(start, {"slow": 20e6, "fast": 15e6}, rounds=6, traces=False)
    async with running(TuiprofApp(start), size=(120, 40)) as (app, pilot):
        await opened(app)
        await until_shown(pilot, "faster")
        await press(pilot, "down", "c", shows=("after tiny:fast", "6 paired trials", "no trace was captured"))


async def test_a_ladder_is_measured_watched_stopped_and_resumed(start: Start) -> None:
    hold = start.scenarios[0] / "hold"  # as long as it is there, the first trial goes on
    hold.touch()
    async with running(TuiprofApp(start), size=(160, 44), notifications=True) as (app, pilot):
        await opened(app)
        await until_shown(pilot, "not measured yet", "no-such-package-anywhere", "r measure")
        assert screen_text(app).count("not measured yet") == 1
        await pilot.press("enter")  # there is no trace to open
        await until(pilot, lambda: screen_text(app).count("not measured yet") == 2)
        text = await press(pilot, "r", shows=("measure tiny", "rounds", "fit", "smoke"))
        assert "paper" not in text, "a preset that this ladder does not have"
        await press(pilot, "tab", "backspace", "x", "enter", shows="rounds must be a whole number")
        await pilot.press("backspace", "1", "enter")
        await until(pilot, lambda: "trials" in screen_text(app) and "S stop" in screen_text(app), 40)
        [ladder] = list_runs(start.sessions)
        assert isinstance(ladder, LadderRun)
        assert runner_of(ladder.path) is not None
        await until(pilot, lambda: bool(LadderRun(ladder.path).meta.trials), 40)
        await until_shown(pilot, "w watch")
        await press(pilot, "S", shows="stops after this trial")
        hold.unlink()
        await until(pilot, lambda: runner_of(ladder.path) is None, 40)
        await until_shown(pilot, "trials left", "r resumes")
        assert len(LadderRun(ladder.path).meta.trials) == 1
        await pilot.press("r")
        await until(pilot, lambda: len(LadderRun(ladder.path).meta.trials) == 4, 60)
        await until(pilot, lambda: runner_of(ladder.path) is None, 40)
        text = await until_shown(pilot, "fast", "4.")
        assert "trials left" not in text
        rungs = app.screen.query_one("#rungs", Choices)
        assert rungs.current == "slow"
