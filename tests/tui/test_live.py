"""The live screen on real session directories."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path

import msgspec
import pytest
from on_screen import live, press, running, screen_text, until, until_shown, workers_done
from synthetic import Synthetic, recorded
from textual.pilot import Pilot

from tuiprof.session.live.replay import Live, read_fold
from tuiprof.session.live.summary import summarise
from tuiprof.session.run import control
from tuiprof.session.run.launch import LaunchSpec, start, wait
from tuiprof.session.store.meta import Scenario, write_meta
from tuiprof.session.store.output import Counts
from tuiprof.tui import Start
from tuiprof.tui.app.app import Navigator, TuiprofApp
from tuiprof.tui.dialogs.dialog import ConfirmScreen
from tuiprof.tui.live.charts import StripChart, chart_data
from tuiprof.tui.live.panes import OutputBox, OutputPane, RunPanes
from tuiprof.tui.live.screen import LiveScreen
from tuiprof.tui.live.view import View, stats_in_view
from tuiprof.tui.widgets.lines import Painted


async def test_a_run_is_shown_as_it_goes(tmp_path: Path) -> None:
    made = recorded(tmp_path)
    async with running(live(made.session.path), size=(160, 48)) as (_, pilot):
        text = await until_shown(pilot, "27.0 ms median", "GPU 0", "backward")
        for said in (
            "metrics ▸ naive · paper",
            "● running 00:00:3",
            "H200 · torch 2.11.0 · overhead",
            "p95 27.",
            "jitter",
            "steps/s",
            "where a step goes",
            "8.90 of 141 GiB",
            "Step 1000: loss",
            "p capture",
            "Q stop",
            "? help",
        ):
            assert said in text, said
        before = made.steps
        made.run_until(31.5)
        await until_shown(pilot, f"step {made.steps - 1:,}".replace(",", " "))
        assert made.steps > before


async def test_arrays_are_mapped_before_the_first_are_made_and_after_another_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large arrays on the heap leave holes there: what they hold grows for hours."""
    done: list[str] = []
    read = Live.advance
    monkeypatch.setattr("tuiprof.tui.live.screen.map_arrays", lambda: done.append("mapped"))
    monkeypatch.setattr(Live, "advance", lambda run: done.append("read") or read(run))
    async with running(live(recorded(tmp_path, 20).session.path), "27.0 ms") as (_, pilot):
        assert done[0] == "mapped"
        assert "read" in done
        await press(pilot, "Q", opens=ConfirmScreen)
        before = done.count("mapped")
        await pilot.press("escape")
        await until(pilot, lambda: done.count("mapped") > before)


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 36), (200, 50), (40, 10)])
async def test_the_verdict_and_the_way_out_are_seen_at_any_size(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with running(live(recorded(tmp_path, 20).session.path), size=size) as (_, pilot):
        text = await until_shown(pilot, "27.0 ms")
        assert "●" in text.splitlines()[0]
        assert "q leave" in text
        assert "? help" in text
        assert all(len(line) <= size[0] for line in text.splitlines())


async def tick(pilot: Pilot[int], times: int) -> None:
    """Let the timer of the live screen go off, each time as if it were long ago that it did."""
    screen = pilot.app.screen
    assert isinstance(screen, LiveScreen)
    for _ in range(times):
        screen._slow_at = screen._drawn_at = screen.query_one(OutputBox)._polled_s = 0.0
        screen.tick()
        await pilot.pause()


async def test_nothing_is_drawn_when_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorded(tmp_path, 20)
    made.end()
    async with running(live(made.session.path), "finished", size=(160, 48)) as (app, pilot):
        await tick(pilot, 5)
        await workers_done(pilot)
        shown: list[object] = []
        monkeypatch.setattr(app, "_display", lambda *args: shown.append(args))
        await tick(pilot, 10)
        assert shown == []


async def test_a_capture_ends_in_a_trace_to_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorded(tmp_path, 10)
    app = live(made.session.path)
    opened: list[Path] = []
    monkeypatch.setattr(Navigator, "trace", lambda _self, path, *, step=None: opened.append(path))
    async with app.run_test(size=(120, 36)) as pilot:
        await until_shown(pilot, "p capture")
        assert "open trace" not in screen_text(app)
        await press(pilot, "p", shows="capture requested")
        [request] = list(made.session.control.glob("capture-*.json"))
        asked = msgspec.json.decode(request.read_bytes())
        assert asked["steps"] == 5
        made.capture("started", id=asked["id"])
        await until_shown(pilot, "profiling steps")
        trace = made.session.path / "traces" / "rank0.1.pt.trace.json.gz"
        trace.touch()
        made.capture("written", id=asked["id"], path=f"traces/{trace.name}")
        await until_shown(pilot, "trace ready — press enter", "o open trace")
        await pilot.press("enter")
        assert opened == [trace]
        await until(pilot, lambda: "trace ready" not in screen_text(app))


async def test_what_to_capture_can_be_chosen(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10)
    async with running(live(made.session.path), "p capture") as (_, pilot):
        await press(pilot, "P", shows="Python stacks")
        await press(pilot, "backspace", "x", "enter", shows="whole number from 1 to 1000")
        await pilot.press("backspace", "7", "tab", "space", "enter")
        await until(pilot, lambda: bool(list(made.session.control.glob("capture-*.json"))))
        [request] = list(made.session.control.glob("capture-*.json"))
        asked = msgspec.json.decode(request.read_bytes())
        assert (asked["steps"], asked["stack"], asked["memory"]) == (7, True, False)


async def test_a_failed_capture_says_why(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10)
    made.capture("failed", why="the script has imported neither torch nor jax")
    async with running(live(made.session.path)) as (_, pilot):
        await until_shown(pilot, "capture failed: the script has imported neither torch nor jax")


async def test_a_failed_run_says_so_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("print('begun')\nraise ValueError('no such [red]thing[/red] \\x1b[31m')\n")
    session = start(
        LaunchSpec(("python", str(script)), root=tmp_path / "s", python=sys.executable, capture=None)
    )
    assert wait(session, 20).code == 1
    raised = {"t": "stacks", "at": 1, "id": "end", "threads": [{"frames": [["/train.py", 8, "train"]]}]}
    head = {"t": "head", "v": 1, "writer": "rank0", "pid": 1, "unix_ns": 1, "mono_ns": 0, "rank": 0}
    (session.log / "rank0.jsonl").write_text(f"{json.dumps(head)}\n{json.dumps(raised)}\n")
    async with running(live(session.path), size=(120, 30)) as (_, pilot):
        text = await until_shown(pilot, "failed (exit 1)", "no step was detected")
        # In the output and in the line below it.
        assert text.count("ValueError: no such [red]thing[/red]") == 2
        assert "\x1b" not in text
        assert "begun" in text
        # Keys that could do nothing are not shown.
        assert "capture 5" not in text
        assert "Q stop" not in text
        assert "s stacks" not in text, "where the exception came from is in the report"


async def test_a_run_without_steps_says_how_to_mark_them(tmp_path: Path) -> None:
    made = Synthetic(tmp_path, gpus=0)
    made.start()
    async with running(live(made.session.path)) as (_, pilot):
        await until_shown(pilot, "no step yet", "tuiprof.step()", "waiting for the first reading")


async def test_before_the_first_step_chart_and_head_say_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuiprof.tui.live.panes.activity", lambda _: "torch is loaded")
    made = Synthetic(tmp_path, gpus=0)
    made.start()
    async with running(live(made.session.path), "torch is loaded") as (app, _):
        panes = app.screen.query_one(RunPanes)
        panes.draw(61 * 10**9, slow=True)
        panes.draw(75 * 10**9, slow=False)  # figures are drawn less often than the clock
        chart = panes.query_one(StripChart)
        head = panes.query_one("#head", Painted)
        for widget in (chart, head):
            lines = (widget.render_line(y).text for y in range(widget.size.height))
            assert "00:01:15" in "".join(lines)


async def test_on_a_cpu_the_host_is_the_device(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10, gpus=0, cores=4)
    async with running(live(made.session.path), size=(120, 40)) as (_, pilot):
        text = await until_shown(pilot, "cores", "no NVIDIA GPU found: tuiprof doctor")
        for said in ("of 4 busy", "RSS (run)", "of 512 GiB", "disk read", "net in", "12, 9 idle"):
            assert said in text, said


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_leaving_says_how_to_come_back_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("TUIPROF_SESSIONS", str(tmp_path))
    made = recorded(tmp_path, 5)
    async with running(live(made.session.path), "running") as (app, pilot):
        await pilot.press(key)
    assert "continues to run" in app.farewell
    assert f"tuiprof attach {made.session.id}" in app.farewell
    assert control.read_stop(made.session) is None
    assert app.return_value == 0
    # Elsewhere than where sessions are looked for, the name alone would not be found.
    monkeypatch.setenv("TUIPROF_SESSIONS", str(tmp_path / "other"))
    async with running(live(made.session.path), "running") as (app, pilot):
        await pilot.press("q")
    assert f"tuiprof attach {made.session.path}" in app.farewell


async def test_the_command_to_come_back_can_be_pasted_whatever_the_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded(tmp_path / "made", 5)
    monkeypatch.setenv("TUIPROF_SESSIONS", str(tmp_path))
    path = made.session.path.rename(tmp_path / "20261121T092115Z-$(touch x) ##[error]y")
    async with running(live(path), "running") as (app, pilot):
        await pilot.press("q")
    command = app.farewell.partition("watch it again:")[2].strip()
    assert "##[" not in command
    assert shlex.split(command) == ["tuiprof", "attach", path.name]


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_leaving_a_run_that_was_asked_to_stop_says_so(tmp_path: Path, key: str) -> None:
    made = recorded(tmp_path, 5)
    async with running(live(made.session.path), "Q stop") as (app, pilot):
        await press(pilot, "Q", shows="y stop it")
        await pilot.press("y")
        await until(pilot, lambda: control.read_stop(made.session) is not None)
        await pilot.press(key)
    assert "was asked to stop" in app.farewell
    assert "continues to run" not in app.farewell


@pytest.mark.parametrize(("state", "how"), [("armed", "had not begun"), ("started", "was being recorded")])
async def test_a_capture_that_the_end_of_the_run_cut_off_is_mentioned(
    tmp_path: Path, state: str, how: str
) -> None:
    made = recorded(tmp_path, 5)
    made.capture(state, first=180)
    made.end(why="stopped", signal=15)
    said = f"capture 'c1' of steps 180 to 184 {how} when the run ended, so it has no trace"
    assert said in summarise(made.session).notes
    async with running(live(made.session.path), size=(160, 36)) as (_, pilot):
        await until_shown(pilot, "stopped after", said)


async def test_of_a_failed_run_the_error_is_shown_not_what_became_of_its_capture(tmp_path: Path) -> None:
    made = recorded(tmp_path, 5)
    made.capture("failed", why="the script ended at step 9, before step 30")
    made.session.stderr.write_text("ValueError: boom\n")
    made.end(1)
    async with running(live(made.session.path), "failed (exit 1) after", "— ValueError: boom") as (app, _):
        assert "before step 30" not in screen_text(app)


async def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    made = recorded(tmp_path, 5)
    full = Counts(
        lost=(5 << 20, 0), waiting=(1 << 20, 0), why="No space left on device", why_lost="disk full"
    )
    path = made.session.control / "output.json"
    path.write_bytes(msgspec.json.encode(full))
    async with running(live(made.session.path), size=(160, 36)) as (_, pilot):
        await until_shown(
            pilot, "No space left on device: 1.00 MiB of output is held in memory, 5.00 MiB is lost"
        )
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(full, why="", waiting=(0, 0))))
        made.end()
        await until_shown(pilot, "finished after", "5.00 MiB of the output lost (disk full)")


async def test_stopping_asks_first(tmp_path: Path) -> None:
    made = recorded(tmp_path, 5)
    async with running(live(made.session.path), "Q stop") as (_, pilot):
        await press(pilot, "Q", shows=("Stop metrics:naive?", "y stop it", "n let it run"))
        await pilot.press("n")
        assert control.read_stop(made.session) is None
        await press(pilot, "Q", opens=ConfirmScreen)
        await pilot.press("y")
        await until(pilot, lambda: control.read_stop(made.session) is not None)


async def test_a_launched_run_gives_its_exit_status(tmp_path: Path) -> None:
    made = recorded(tmp_path, 5)
    made.end(3)
    async with running(TuiprofApp(Start("live", made.session.path, launched=True))) as (app, pilot):
        await until_shown(pilot, "failed (exit 3)")
        await pilot.press("q")
    assert app.return_value == 3


async def test_a_paused_view_stands_still(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10)
    async with running(live(made.session.path), "27.0 ms") as (app, pilot):
        before = await press(pilot, "space", shows="view paused")
        made.run_until(11)
        await tick(pilot, 5)
        assert screen_text(app) == before
        await press(pilot, "space", shows=f"step {made.steps - 1}")
        assert "view paused" not in screen_text(app)


async def test_ranks_are_chosen_with_keys(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10, ranks=2)
    async with running(live(made.session.path), "rank 0/2", "] rank +", size=(140, 36)) as (_, pilot):
        await press(pilot, "right_square_bracket", shows="rank 1/2")
        await press(pilot, "right_square_bracket", shows="rank 0/2")


async def test_a_replay_is_the_same_screen_by_another_clock(tmp_path: Path) -> None:
    made = recorded(tmp_path, 160)
    made.end()
    app = TuiprofApp(Start("replay", made.session.path, speed=4.0))
    async with app.run_test(size=(160, 40)) as pilot:
        await until_shown(pilot, "▶ replay 4× 00:00:", "of 00:02:40", "> faster")
        await until_shown(pilot, "27.0 ms median")
        await press(pilot, "space", shows="‖ replay 4×")
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        assert screen.moment.replay is not None
        await pilot.press("right", "right")
        assert screen.moment.replay.position_ns > 10e9
        position = screen.moment.replay.position_ns
        await pilot.press("left")
        assert screen.moment.replay.position_ns == pytest.approx(position - 5e9)
        await pilot.press("greater_than_sign")
        assert screen.moment.replay.speed == 8.0
        await until_shown(pilot, "space resume")
        await press(pilot, "end", shows="00:02:40 of 00:02:40")
        await until(pilot, lambda: "space resume" not in screen_text(app))  # nothing is left to play
        await press(pilot, "left", shows="space resume")


async def test_output_is_followed_scrolled_and_neutralised(tmp_path: Path) -> None:
    made = recorded(tmp_path, 1)
    lines = [f"line {number}\n" for number in range(300)]
    with open(made.session.stdout, "w") as file:
        file.writelines(
            [*lines, "\x1b[31mred\x1b[0m \x1b]0;title\x07[b]bold[/b] \x07bell\n", "10 %\r20 %\r30 %"]
        )
    async with running(live(made.session.path), "red [b]bold[/b]", "30 %") as (app, pilot):
        assert "20 %" not in screen_text(app)
        await press(pilot, "l", shows="line 280")
        text = await press(pilot, "home", shows="line 0\n")
        assert "line 299" not in text
        await press(pilot, "end", shows="30 %")
        assert app.screen.query_one(OutputPane).following
        await press(pilot, "q", shows="step time")


async def test_a_chart_without_a_step_in_its_range_says_so(tmp_path: Path) -> None:
    made = Synthetic(tmp_path)
    made.mono_ns -= 90 * 10**9
    write_meta(made.session.path, msgspec.structs.replace(made.session.meta, mono_ns=made.mono_ns))
    made.ran(10)
    app = live(made.session.path)
    async with app.run_test(size=(80, 24)) as pilot:
        text = await until_shown(
            pilot, f"no step in the last 60 s: step {made.steps - 1} ended 1 min", "z shows"
        )
        assert "last 50 steps" in text
        assert "the stacks show where the process waits" in " ".join(text.split())
        await press(pilot, "z", shows="last 5 min")
        assert "no step in the" not in screen_text(app)


async def test_output_at_the_right_edge_of_a_wide_line_is_seen(tmp_path: Path) -> None:
    """As Lightning's progress bar writes its metrics, in a line of their own."""
    made = recorded(tmp_path, 10)
    with open(made.session.stdout, "a") as file:
        file.write(" " * 100 + "acc: 0.031\n    indented\n")
    async with running(live(made.session.path), size=(80, 24)) as (_, pilot):
        text = await until_shown(pilot, "acc: 0.031")
        assert "\n     indented" in text


async def test_without_phases_the_call_that_marks_them_fits_80_cells(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10, phases={})
    async with running(live(made.session.path), size=(80, 24)) as (_, pilot):
        await until_shown(pilot, "no phases recorded: mark them with tuiprof.phase(…)")


async def test_the_zoom_key_widens_the_axis(tmp_path: Path) -> None:
    made = recorded(tmp_path, 100)
    async with running(live(made.session.path), "last 60 s", "00:01:20", "now") as (_, pilot):
        await press(pilot, "z", shows="last 5 min")
        await press(pilot, "z", "z", shows="whole run")


async def test_a_variant_is_compared_with_its_baseline(tmp_path: Path) -> None:
    base = recorded(tmp_path, 10, step_ms=25.8, scenario=Scenario("metrics", "off", "paper"), slow=())
    base.end()
    async with running(live(recorded(tmp_path, 10, slow=()).session.path), size=(160, 40)) as (_, pilot):
        await until_shown(pilot, "vs off: 1.04", "× slower")


def test_a_long_run_is_drawn_from_its_overview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuiprof.tui.live import charts

    made = recorded(tmp_path, 60)
    fold = read_fold(made.session)
    rank = fold.lead
    assert rank is not None
    view = View(fold.now_ns, None, False)
    stats = stats_in_view(rank.steps, view)
    whole = chart_data(rank.steps, stats, view)
    monkeypatch.setattr(charts, "_MAX_STEPS", 100)
    short = chart_data(rank.steps, stats, view)
    assert len(whole.ends_s) == len(rank.steps)
    assert float(short.high_ms.max()) == pytest.approx(float(whole.high_ms.max()))
    assert float(short.starts_s[-1]) <= float(short.ends_s[-1]) == pytest.approx(float(whole.ends_s[-1]))
    assert dataclasses.asdict(whole)["live"] is False


async def test_the_axis_stands_still_until_its_end_is_reached(tmp_path: Path) -> None:
    async with running(live(recorded(tmp_path, 10).session.path), "27.0 ms") as (app, _):
        chart = app.screen.query_one(StripChart)
        assert {chart.edge(now, 60.0) for now in range(61)} == {60.0}
        moments = [60 + now / 10 for now in range(1, 600)]
        edges = [chart.edge(now, 60.0) for now in moments]
        assert 8 <= len(set(edges)) <= 10
        assert all(now <= edge <= now + 60 / 8 for now, edge in zip(moments, edges, strict=True))


def test_between_two_moves_only_the_newest_cells_change(tmp_path: Path) -> None:
    fold = read_fold(recorded(tmp_path, 31).session)
    assert fold.lead is not None
    steps, chart = fold.lead.steps, StripChart()

    def plot(now_s: float) -> list[str]:
        view = View(round(now_s * 1e9), 60.0, False)
        chart.show(chart_data(steps, stats_in_view(steps, view), view, edge_s=32.0))
        return ["".join(text for text, _ in row) for row in chart.draw(120, 12)[:-1]]

    earlier, later = plot(29.0), plot(31.0)
    past = 10 + round(108 * 29 / 32)  # cells of the y axis and of what is past by then
    assert earlier != later
    assert [line[:past] for line in earlier] == [line[:past] for line in later]


async def test_the_key_that_opened_the_alerts_closes_them(tmp_path: Path) -> None:
    async with running(live(recorded(tmp_path, 10).session.path), "27.0 ms") as (_, pilot):
        await press(pilot, "a", shows=("alerts and notes", "esc close"))
        await press(pilot, "a", opens=LiveScreen)


async def test_of_several_traces_one_is_chosen_by_its_time_and_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded(tmp_path, 10)
    for name in ("rank0.1", "rank0.2"):
        (made.session.path / "traces" / f"{name}.pt.trace.json.gz").touch()
        made.capture("written", id=name, path=f"traces/{name}.pt.trace.json.gz")
    opened: list[Path] = []
    monkeypatch.setattr(Navigator, "trace", lambda _self, path, *, step=None: opened.append(path))
    async with running(live(made.session.path), "o open trace") as (_, pilot):
        shown = await press(pilot, "o", shows=("captures", "rank0.1.pt", "rank0.2.pt"))
        assert shown.count(f"steps {made.steps - 5} to {made.steps - 1}") == 2
        await pilot.press("up", "enter")
        assert [path.name for path in opened] == ["rank0.1.pt.trace.json.gz"]


async def test_a_dialog_that_ends_with_the_dashboard_opens_no_file_again(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10)

    def open_logs() -> list[str]:
        links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        files = [os.readlink(link) for link in links if link.is_symlink()]
        return [file for file in files if file.startswith(str(made.session.path / "log"))]

    async with running(live(made.session.path), "27.0 ms") as (app, _):
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        assert open_logs()
        screen.on_unmount()
        screen.tick(asked=True)
        assert not open_logs()


async def test_hardware_that_is_absent_beside_a_gpu_takes_one_line(tmp_path: Path) -> None:
    made = recorded(tmp_path, 10)
    made.session.meta.absent = {"amd": "no AMD GPU (none there)", "tpu": "no Google TPU"}
    write_meta(made.session.path, made.session.meta)
    async with running(live(made.session.path), size=(200, 60)) as (_, pilot):
        text = await until_shown(pilot, "not found: AMD GPU, TPU")
        assert "none there" not in text
