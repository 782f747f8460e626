"""Going back in time, selecting steps, other runs, ranks, search, notes, and what the newest trace says."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from on_screen import live, press, running, screen_text, until, until_shown
from session.session_logs import append, head, line, new_session
from synthetic import Synthetic, recorded

from tuiprof.resources import shipped
from tuiprof.session.live.replay import read_fold
from tuiprof.session.log import Capture, Printed, Step
from tuiprof.session.run import control
from tuiprof.session.run.control import parse_slower
from tuiprof.session.store.meta import read_labels
from tuiprof.session.store.status import Status
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.live.panes import OutputPane
from tuiprof.tui.live.screen import LiveScreen
from tuiprof.tui.live.view import View, no_step_lines, slowdown_in_view, stats_in_view
from tuiprof.tui.trace.screen import TraceScreen


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path / "cache"))


def with_trace(made: Synthetic, first: int, last: int) -> Path:
    """Give a session a real captured trace of some steps."""
    trace = made.session.path / "traces" / "rank0.1.pt.trace.json.gz"
    shutil.copy(shipped("traces") / "metrics-naive.pt.trace.json.gz", trace)
    shutil.copy(shipped("traces") / "metrics-naive.syncs.jsonl", trace.with_name("rank0.1.syncs.jsonl"))
    made.write(
        "rank0", Capture(made.mono_ns + made.t_ns, "c1", "written", first, last, f"traces/{trace.name}")
    )
    return trace


def printing(made: Synthetic, texts: dict[int, str]) -> None:
    """Let a session print at some seconds, and its recorder tell so."""
    size = 0
    with open(made.session.stdout, "w") as file:
        for second, text in texts.items():
            made.run_until(second)
            file.write(text)
            size += len(text)
            made.write("recorder", Printed(made.mono_ns + second * 1_000_000_000, size, 0))


def here(app: TuiprofApp) -> LiveScreen:
    assert isinstance(app.screen, LiveScreen)
    return app.screen


async def test_a_fresh_capture_names_the_line_from_its_trace(tmp_path: Path) -> None:
    made = recorded(tmp_path, 20)
    async with running(live(made.session.path), "nothing stands out", size=(160, 48)) as (_, pilot):
        with_trace(made, 20, 23)
        await until_shown(pilot, "trace ready")
        await until_shown(pilot, "saves about ", "%): 17 % of device time converts tensors", "enter open it")
        assert list((tmp_path / "cache-headlines").glob("*.json"))


async def test_a_trace_that_cannot_be_read_leaves_the_way_to_it(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10)
    with_trace(made, 5, 8).write_bytes(b"no trace")
    async with running(live(made.session.path), "trace ready — press enter", size=(120, 40)) as (app, pilot):
        await until(
            pilot,
            lambda: (
                None not in here(app)._verdict._headlines.values() and bool(here(app)._verdict._headlines)
            ),
        )
        await until_shown(pilot, "trace ready — press enter")


async def test_a_running_run_is_scrubbed_and_end_returns(tmp_path: Path) -> None:
    made = recorded(tmp_path, 0, lasting=60, prints=False)
    printing(made, {second: f"second {second:02d}\n" for second in range(60)})
    async with running(live(made.session.path), "● running", "second 59", size=(140, 44)) as (app, pilot):
        assert "end now" not in screen_text(app)
        await pilot.press("left", "left", "left", "left")
        text = await until_shown(pilot, "‖ paused 00:00:", "end now", "second 39")
        assert "second 45" not in text
        screen = here(app)
        assert screen.moment.past is not None
        moment = screen.moment.past.position_ns
        assert 38e9 < moment < 42e9
        lead = screen.moment.feed.fold.lead
        assert lead is not None
        assert lead.last_step_ns <= moment
        assert screen.moment.feed.fold.now_ns <= moment  # readings of devices, too
        await press(pilot, "right", shows="second 44")
        await press(pilot, "space", shows="▶ replay 1×")
        await press(pilot, "end", shows=("● running", "second 59"))
        assert screen.moment.past is None
        await pilot.press("left", *["right"] * 3)
        await until(pilot, lambda: screen.moment.past is None)  # beyond the newest record lies the present


async def test_a_finished_run_is_scrubbed_over_its_whole_length(tmp_path: Path) -> None:
    made = recorded(tmp_path, 60)
    made.end()
    async with running(live(made.session.path), "finished after", "whole run", size=(140, 44)) as (_, pilot):
        await pilot.press("left", "left", "left", "left", "left", "left")
        await until_shown(pilot, "paused 00:00:3", "of 00:01:00")
        await press(pilot, "escape", shows="finished after")


async def test_slow_steps_are_selected_and_say_what_was_slow(tmp_path: Path) -> None:
    async with running(live(recorded(tmp_path, 40).session.path), "27.0 ms", size=(150, 44)) as (app, pilot):
        await pilot.press("N")
        await until_shown(
            pilot, "step 402  ", "× the median", "most of it in backward", "t captures after slow steps"
        )
        await press(pilot, "N", shows=("step 171  ", "most of it in backward"))
        await pilot.press("N")  # the first step took twelve times as long
        await until_shown(pilot, "step 0  ")
        await press(pilot, "n", "full_stop", shows="step 172  ")
        await press(pilot, "comma", "comma", shows="step 170  ")
        assert here(app).moment.selected == 170
        await press(pilot, "escape", shows="● running")
        assert here(app).moment.selected is None


async def test_the_step_of_a_capture_opens_there(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10)
    made.end()
    trace = with_trace(made, 20, 23)
    from tuiprof.formats import open_trace

    numbers = open_trace(trace).steps.numbers.tolist()
    at = made.mono_ns + made.t_ns
    made.write("rank0", Capture(at, "c1", "written", numbers[0], numbers[-1], f"traces/{trace.name}"))
    made.write("rank0", Step(numbers[1] + 10_000, at + 1, 30_000_000))
    async with running(live(made.session.path), "finished", size=(150, 44)) as (app, pilot):
        screen = here(app)
        screen.moment.selected = numbers[1]
        screen.redraw_now()
        await until_shown(pilot, f"step {numbers[1]}  ", "enter opens it in the trace")
        await press(pilot, "enter", opens=TraceScreen)
        await until_shown(pilot, f"window: step {numbers[1]}")


async def test_what_goes_wrong_is_said_with_its_rule(tmp_path: Path) -> None:
    made = recorded(tmp_path, 30, phases={"data": 0.4, "forward": 0.5})
    made.note("warn", "metric loss is not recorded: it is nan")
    async with running(live(made.session.path), size=(160, 44)) as (_, pilot):
        await until_shown(pilot, "loss is NaN since 30.0 s into the run", "a: 1 more")
        await pilot.press("a")
        await until_shown(
            pilot, "40.0 % of the step is spent waiting for data", "the data phase takes 15.0 % or more"
        )
        await press(pilot, "escape", shows="step time")


async def test_ranks_lie_side_by_side_with_the_straggler_marked(tmp_path: Path) -> None:
    made = recorded(tmp_path, 20, ranks=4, lag=0.1)
    async with running(live(made.session.path), size=(150, 48)) as (_, pilot):
        text = await until_shown(pilot, "rank 0  ", "rank 3  ", "straggler")
        line = next(line for line in text.splitlines() if "straggler" in line)
        assert "rank 3" in line
        assert "step time" in line


async def test_runs_that_go_on_are_a_key_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuiprof.tui.live.screen._RUNS_S", 0.1)
    first = recorded(tmp_path, 20)
    second = recorded(tmp_path, 30, step_ms=41.0, scenario=None, name="second")
    async with running(live(first.session.path), size=(150, 44)) as (app, pilot):
        await until_shown(pilot, "runs  ", "▸1 ● metrics:naive", "2 ● second")
        await pilot.press("tab")
        await until(pilot, lambda: here(app).session.path == second.session.path)
        await until_shown(pilot, "▸2 ● second", "41.")
        await pilot.press("shift+tab")
        await until(pilot, lambda: here(app).session.path == first.session.path)
        await pilot.press("q")
    assert "continues to run" in app.farewell


async def test_the_output_is_searched(tmp_path: Path) -> None:
    made = recorded(tmp_path, 5)
    lines = [f"line {n}{' Error here' if n % 50 == 7 else ''}\n" for n in range(300)]
    made.session.stdout.write_text("".join(lines))
    async with running(live(made.session.path), "line 299", size=(140, 40)) as (app, pilot):
        await press(pilot, "slash", *"error", "enter", shows=("6 of 6 with 'error'", "line 257 Error"))
        await press(pilot, "N", shows=("5 of 6", "line 207 Error"))
        await press(pilot, "n", "n", shows=("1 of 6", "line 7 Error"))
        await pilot.press("escape")
        await until(pilot, lambda: "of 6" not in screen_text(app))
        await press(pilot, "end", shows="line 299")
        assert app.screen.query_one(OutputPane).following
        await press(pilot, "slash", *"nowhere", "enter", shows="0 with 'nowhere'")
        await press(pilot, "slash", "escape", shows="step time")


async def test_a_note_is_written_on_the_moment_and_read_again(tmp_path: Path) -> None:
    made = recorded(tmp_path, 20)
    async with running(live(made.session.path), "27.0 ms", size=(140, 40)) as (app, pilot):
        await pilot.press("m", *"nfs [b]was[/b] slow", "enter")
        await until(pilot, lambda: bool(read_labels(made.session.path).notes))
        await until(pilot, lambda: isinstance(app.screen, LiveScreen))
        [note] = read_labels(made.session.path).notes
        assert note.text == "nfs [b]was[/b] slow"
        assert note.t_ns is not None
        assert note.t_ns > 20e9
        await press(pilot, "a", shows="nfs [b]was[/b] slow")


async def test_a_replay_prints_when_it_was_printed(tmp_path: Path) -> None:
    made = recorded(tmp_path, 0, lasting=30, prints=False)
    printing(made, {1: "early\n", 20: "late\n"})
    made.run_until(30)
    made.end()
    app = TuiprofApp(Start("replay", made.session.path, speed=0.02))  # the keys move it, the clock hardly
    async with app.run_test(size=(140, 40)) as pilot:
        await until_shown(pilot, "▶ replay 0.02×", "no output")
        await press(pilot, "right", shows="early")
        assert "late" not in screen_text(app)
        await press(pilot, "right", "right", "right", "right", shows="late")
        await pilot.press("left", "left", "left")
        await until(pilot, lambda: "late" not in screen_text(app))


async def test_captures_are_armed_from_a_slow_step_and_by_a_form(tmp_path: Path) -> None:
    made = recorded(tmp_path, 30)
    async with running(live(made.session.path), "27.0 ms", "t when slow", size=(170, 44)) as (_, pilot):
        await pilot.press("N", "t")
        await until(pilot, lambda: bool(control.armed(made.session)))
        [slow] = control.armed(made.session)
        assert slow.above_ns is not None
        assert 33e6 < slow.above_ns < 36e6  # halfway from 27 to 42
        await press(pilot, "escape", shows=("captures: after steps > 34.", "t not when slow"))
        await press(pilot, "T", shows="capture automatically")
        await press(pilot, "ctrl+u", *"1.5", "enter", shows="'1.5' is not a time (40ms, 2s) or a multiple")
        await pilot.press(*"x", "tab", *"500", "tab", "ctrl+u", *"200", "enter")
        await until_shown(pilot, "every 500 steps", "after steps > 1.5× the median")
        assert {one.budget_bytes for one in control.armed(made.session)} == {200_000_000}
        await press(pilot, "T", shows="capture automatically")
        await pilot.press("ctrl+u", "tab", "ctrl+u", "enter")
        await until(pilot, lambda: not control.armed(made.session))
        await press(pilot, "t", shows="captures: after steps > ")
        await pilot.press("t")
        await until(pilot, lambda: not control.armed(made.session))


async def test_what_watching_cost_is_left_in_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuiprof.session.store.meta import viewings
    from tuiprof.tui.live import moment

    monkeypatch.setattr(moment, "_MEASURE_S", 0.5)
    made = recorded(tmp_path, 10)
    async with running(live(made.session.path), size=(170, 44)) as (_, pilot):
        await until_shown(pilot, "27.0 ms", "costs: probe", "screen ")
        await pilot.press("q")
    [viewing] = viewings(made.session.path)
    assert viewing.wall_s > 0.5
    assert viewing.cpu_s > 0
    made.end()
    async with running(live(made.session.path), size=(170, 44)) as (_, pilot):
        await until_shown(pilot, "finished")
    assert len(viewings(made.session.path)) == 1  # a run that is over costs nothing to look at


def test_what_is_slow_can_be_said_in_several_ways() -> None:
    assert parse_slower("35 ms") == (35_000_000, None)
    assert parse_slower("0.5s") == (500_000_000, None)
    assert parse_slower("250 µs") == (250_000, None)
    assert parse_slower("1.5x") == (None, 1.5)
    for wrong in ("", "35", "0.9x", "fast", "-3 ms"):
        with pytest.raises(ValueError, match="is not a time"):
            parse_slower(wrong)


def test_a_replay_before_the_first_step_does_not_speak_of_the_end() -> None:
    over = Status("failed", 1)
    assert no_step_lines(over) == ["failed (exit 1), and no step was detected"]
    assert no_step_lines(over, replayed=True)[0].startswith("no step yet at this point of the run")


async def test_steps_that_a_capture_slowed_down_are_flagged(tmp_path: Path) -> None:
    """Beside the figures of the last minute, and among the alerts; the whole run's figures are of the steps before."""
    session = new_session(tmp_path)
    lines, at = [head(session)], 1_000
    for n in range(400):
        captured = 100 <= n < 104
        dur = (
            40_000_000
            if captured
            else 10_000_000 + n % 7 * 10_000
            if n < 100
            else 15_000_000 + n % 7 * 10_000
        )
        at += dur
        lines += [
            line("step", n=n, at=at, dur=dur, **({"cap": True} if captured else {})),
            line("dev", n=n, dur=dur),
        ]
    append(session, "rank0", *lines, line("end", at=at, code=None, why="exit"))
    append(
        session,
        "recorder",
        head(session, "recorder", rank=None),
        line("end", at=at, code=0, signal=None, why="exit"),
    )
    view = View(at - 1_000, 3.0, False)
    lead = read_fold(session).lead
    assert lead is not None
    steps = lead.steps
    assert round(stats_in_view(steps, view).median_ns / 1e6) == 15
    assert round(stats_in_view(steps, View(at - 1_000, None, False)).median_ns / 1e6) == 10
    assert slowdown_in_view(steps, view) is not None
    assert slowdown_in_view(steps, View(900_000_000, 3.0, False)) is None, "that was before the capture"
    async with running(live(session.path), size=(160, 40)) as (_, pilot):
        await until_shown(pilot, "10.0 ms median", "1.50× slower since a capture", "whole run")


async def test_a_replay_that_ends_by_itself_shows_the_devices_of_its_last_steps() -> None:
    app = TuiprofApp(Start("replay", shipped("traces") / "session-metrics-naive"))
    async with app.run_test(size=(120, 36)) as pilot:
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        await until(pilot, lambda: screen.moment.replay is not None and screen._shown)
        replay = screen.moment.replay
        assert replay is not None
        replay.paused = True
        screen._slow_at, screen._drawn_at = time.monotonic(), 0.0  # figures were drawn just now
        replay.seek(replay.duration_ns - 1)
        screen.tick()
        # The last readings are of a machine that the script has left.
        await until_shown(pilot, "RSS (run) 0 B")
        screen._slow_at, screen._drawn_at = time.monotonic(), 0.0  # figures were drawn just now
        replay.paused = False
        screen.tick()
        await until_shown(pilot, "RSS (run) 9.75 GiB", "95.0 %")
