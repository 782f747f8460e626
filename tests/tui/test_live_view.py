"""What the live screen shows and the moment it shows, without a screen."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import Synthetic, recorded

from tuiprof.comparison.headline import Headline
from tuiprof.model.units import format_count
from tuiprof.probe.slowdown import Slowdown
from tuiprof.session.live.alerts import Alert
from tuiprof.session.live.fold import Fold, NoteLine
from tuiprof.session.live.hosts import RankTimes
from tuiprof.session.live.listing import Summary
from tuiprof.session.live.series import NO_STATS, StepStats
from tuiprof.session.live.tail import Batch
from tuiprof.session.log import Memory, Step, Telemetry, Uses
from tuiprof.session.run import control
from tuiprof.session.store.meta import Clock, DeviceMeta, Labels, SessionMeta
from tuiprof.session.store.status import Status
from tuiprof.tui.live import view as live_view
from tuiprof.tui.live.captures import RunCaptures, Verdict
from tuiprof.tui.live.charts import StripChart
from tuiprof.tui.live.devices import _cores, device_notes, device_views
from tuiprof.tui.live.moment import Figures, Moment, Overhead
from tuiprof.tui.live.view import View, no_step_lines
from tuiprof.tui.widgets.spans import Row, row_width

Shown = Callable[..., Moment]


def text(row: Row) -> str:
    return "".join(part for part, _ in row)


@pytest.fixture
def shown() -> Iterator[Shown]:
    """Return what gives the present of a session, read to its end."""
    opened: list[Moment] = []

    def moment_of(made: Synthetic, **options: float) -> Moment:
        moment = Moment(made.session, **options)
        opened.append(moment)
        while moment.feed.advance():
            pass
        moment.update()
        return moment

    yield moment_of
    for moment in opened:
        moment.close()


class Bottom:
    """A verdict and its parts; the headlines that it asks for are kept in ``wanted``."""

    def __init__(self, moment: Moment, error: str = "") -> None:
        self.moment, self.captures, self.figures = moment, RunCaptures(moment), Figures(moment)
        self.wanted: list[Path] = []
        self.verdict = Verdict(
            moment,
            self.captures,
            self.figures,
            Overhead(moment),
            read_headline=self.wanted.append,
            last_error=lambda: error,
        )
        self.figures.update(moment.view())

    def text(self, width: int = 120, *, tall: bool = False) -> str:
        return "\n".join(text(row) for row in self.verdict.rows(width, tall=tall, tiny=False))


# -- the moment ------------------------------------------------------------------------------------------


def test_a_moment_goes_back_a_twelfth_of_the_axis_and_returns_to_the_present(
    tmp_path: Path, shown: Shown
) -> None:
    moment = shown(recorded(tmp_path, 70))
    assert moment.following
    moment.seek(1)
    assert moment.past is None, "nothing is later than now"
    now = moment.now_ns()
    moment.seek(-1)
    assert moment.past is not None
    assert not moment.following
    assert moment.running
    assert moment.now_ns() == pytest.approx(now - 5e9, abs=2e9)
    assert moment.past.paused
    moment.go_to(moment.past.duration_ns + 10**12)
    assert moment.past is None
    assert moment.following


def test_while_an_earlier_moment_is_shown_the_run_goes_on(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 30)
    moment = shown(made)
    moment.seek(-1)
    assert moment.past is not None
    made.run_until(60)
    moment.update()
    row = text(live_view.replay_row(moment.past, moment.rank, 1, back=True))
    assert "of 00:01:00" in row, "the length of the run now"
    moment.past.seek(59_000_000_000)
    while moment.past.advance():
        pass
    assert moment.rank is not None
    assert moment.rank.steps.last_n is not None
    assert moment.rank.steps.last_n < made.steps - 1, "no step of a later time"


def test_a_pause_holds_the_present_and_the_clock_of_a_replay(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 20)
    moment = shown(made)
    moment.pause()
    held = moment.now_ns()
    assert moment.frozen_ns == held == moment.now_ns()
    moment.pause()
    assert moment.frozen_ns is None
    replayed = shown(made, replay_speed=4.0)
    assert replayed.advances
    replayed.pause()
    assert not replayed.advances
    replayed.change_speed(1)
    assert replayed.replay is not None
    assert replayed.replay.speed == 8.0
    for _ in range(20):
        replayed.change_speed(1)
    assert replayed.replay.speed == 64.0


def test_steps_are_selected_from_the_right_edge_and_outliers_among_them(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 20, slow=(171, 402))
    made.end()
    moment = shown(made)
    assert moment.select(-1)
    assert moment.selected == made.steps - 1
    assert moment.select(-1, outliers=True)
    assert moment.selected == 402
    assert moment.select(-1, outliers=True)
    assert moment.selected == 171
    assert moment.select(1, outliers=True)
    assert moment.selected == 402
    assert not moment.select(1, outliers=True)
    assert moment.selected == 402
    moment.go_to_end()
    assert moment.selected is None


def test_ranks_follow_one_another_around(tmp_path: Path, shown: Shown) -> None:
    moment = shown(recorded(tmp_path, 5, ranks=3))
    seen = []
    for _ in range(3):
        moment.next_rank(1)
        assert moment.rank is not None
        seen.append(moment.rank.name)
    assert sorted(seen) == ["rank0", "rank1", "rank2"]


# -- the verdict -----------------------------------------------------------------------------------------


def test_a_quiet_run_and_a_run_that_failed(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 20, slow=())
    bottom = Bottom(shown(made))
    bottom.figures.alerts = []
    assert "nothing stands out" in bottom.text()
    made.end(3)
    failed = Bottom(shown(made), error="ValueError: no such file")
    assert "failed (exit 3) after 20" in failed.text()
    assert "— ValueError: no such file" in failed.text()


def test_a_capture_is_followed_from_the_request_to_what_its_trace_says(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 20)
    bottom = Bottom(shown(made))
    bottom.captures.request(5)
    assert "capture requested" in bottom.text()
    assert bottom.captures.requested is not None
    name, at_s = bottom.captures.requested
    bottom.captures.requested = name, at_s - 60
    assert "no answer to the capture request yet" in bottom.text()
    trace = made.session.path / "traces" / "rank0.1.pt.trace.json.gz"
    trace.touch()
    made.capture("written", id=name, path=f"traces/{trace.name}")
    bottom.moment.feed.advance()
    assert "trace ready" in bottom.text()
    assert bottom.wanted == [trace]
    bottom.verdict.set_headline(trace, Headline(line="launch-bound: 40 % idle", level="warn"))
    assert "launch-bound: 40 % idle" in bottom.text()
    bottom.captures.mark_seen()
    assert "launch-bound: 40 % idle" in bottom.text()


def test_the_end_of_a_run_comes_before_its_finding_and_that_before_a_failed_capture(
    tmp_path: Path, shown: Shown
) -> None:
    for code in (0, 1):
        made = recorded(tmp_path / str(code), 20)
        trace = made.session.path / "traces" / "rank0.1.pt.trace.json.gz"
        trace.touch()
        made.capture("written", path=f"traces/{trace.name}")
        made.run_until(21)
        if not code:
            made.capture("failed", id="c2", why="no steps")
        made.end(code)
        bottom = Bottom(shown(made), error="ValueError: no such file")
        bottom.captures.find_traces()
        assert ("capture failed: no steps" if not code else "trace ready") in bottom.text(200)
        bottom.verdict.set_headline(trace, Headline(line="launch-bound: 40 % idle", level="warn"))
        said = bottom.text(200)
        assert said.startswith(" ✗ failed (exit 1) after" if code else " ✓ finished after")
        assert said.rstrip().endswith("launch-bound: 40 % idle")
        assert ("ValueError: no such file" in said) == bool(code)


def test_the_end_of_a_run_may_tell_what_a_capture_of_other_steps_was(tmp_path: Path, shown: Shown) -> None:
    """A warm-up is one only if the last steps of the run are known to be faster."""
    made = recorded(tmp_path, 0.0)
    for until, made.step_ms in ((250, 27.0), (255, 600.0), (500, 27.0)):
        while made.steps < until:
            made.run_until(made.next_step_ns / 1e9 + 1e-6)
    trace = made.session.path / "traces" / "rank0.1.pt.trace.json.gz"
    trace.touch()
    made.capture("written", first=250, path=f"traces/{trace.name}")
    bottom = Bottom(shown(made))
    assert "not representative" in bottom.text(200)
    assert bottom.wanted == [], "its first finding is not yet that of the whole run"
    made.end(0)
    bottom = Bottom(shown(made))
    assert "not representative" in bottom.text(200)
    assert bottom.wanted == [trace]
    bottom.verdict.set_headline(trace, Headline(line="saves about 1 ms", level="warn"))
    assert "not representative" in bottom.text(200)
    bottom.verdict.set_headline(trace, Headline(line="saves about 1 ms", level="warn", of_last_steps=True))
    assert "saves about 1 ms" in bottom.text(200)
    assert "not representative" not in bottom.text(200)
    assert bottom.wanted == [trace], "read once"


def test_long_steps_that_only_wait_for_the_captured_ones_are_not_missed(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 0.0)
    for n in range(1, 200):
        dur_ns = (2 if n % 10 else 82) * 1_000_000
        made.t_ns += dur_ns
        made.write("rank0", Step(n, made.mono_ns + made.t_ns, dur_ns, cap=31 <= n <= 33))
    trace = made.session.path / "traces" / "rank0.1.pt.trace.json.gz"
    trace.touch()
    made.capture("written", first=31, path=f"traces/{trace.name}")
    made.end(0)
    bottom = Bottom(shown(made))
    bottom.text(200)
    for awaits in (False, True):
        bottom.verdict.set_headline(
            trace, Headline(line="no syncs", level="good", analysis="sync_events", awaits_others=awaits)
        )
        assert ("none of them was captured" in bottom.text(400)) != awaits


def test_a_capture_that_lacked_steps_is_no_news_of_a_run_without_any(tmp_path: Path, shown: Shown) -> None:
    for steps in (0, 20):
        made = Synthetic(tmp_path / str(steps), gpus=0)
        made.start()
        if steps:
            made.run_until(steps)
        made.capture("failed", why="no steps were detected in the script")
        made.end(0)
        assert ("no steps were detected" in Bottom(shown(made)).text(200)) == bool(steps)


def test_a_core_is_busy_that_works_for_most_of_the_time(tmp_path: Path, shown: Shown) -> None:
    moment = shown(recorded(tmp_path, 5, gpus=0, cores=4))
    [host] = device_views(moment.run.fold, moment.session.meta.devices, moment.rank)
    shares = {"core0_util": 0.9, "core1_util": 0.6, "core2_util": 0.3, "core3_util": 0.06}
    assert "2 of 4 busy" in text(_cores(replace(host, latest=shares), 80))


@pytest.mark.parametrize(("mean_ms", "said"), [(62.8, "mean 62.8 ms"), (57.0, "jitter 29.0 %")])
def test_a_mean_that_the_median_does_not_explain_takes_the_place_of_the_jitter(
    mean_ms: float, said: str
) -> None:
    stats = StepStats(
        700,
        median_ns=56e6,
        p95_ns=89e6,
        mean_ns=mean_ms * 1e6,
        jitter=0.29,
        rate_hz=1e3 / mean_ms,
        outlier_above_ns=1e9,
    )
    [row] = live_view.stats_row(stats, View(1, None, False), 80, batch=None, baseline=None)
    assert said in text(row)
    assert ("jitter" in text(row)) == ("jitter" in said)


@pytest.mark.parametrize("width", [80, 100, 130])
def test_that_a_capture_slowed_the_steps_down_is_said_at_any_width(width: int) -> None:
    stats = StepStats(
        95, median_ns=15.3e6, p95_ns=19.7e6, mean_ns=16e6, jitter=0.043, rate_hz=61.2, outlier_above_ns=1e9
    )
    slowdown = Slowdown(1, 4, 10e6, 16.2e6, 0)
    rows = live_view.stats_row(
        stats, View(1, None, False), width, batch=None, baseline=None, slowdown=slowdown
    )
    said = "\n".join(map(text, rows))
    assert "1.62× slower since a capture   whole run" in said
    assert "61.2 steps/s" in said


def test_of_a_past_run_no_alerts_are_claimed_and_the_rules_come_last() -> None:
    noted = [NoteLine(5, "rank0", "warn", "steps are slower")]
    said = [line for line, _ in live_view.alert_paragraphs([], Labels(), noted, past=True)]
    assert said[0] == "The run is over: tuiprof replay shows the alerts it had."
    assert said[-1].endswith("steps are slower")
    said = [line for line, _ in live_view.alert_paragraphs([], Labels(), noted, past=False)]
    assert said[0] == "no alerts"
    assert said.index("what raises an alert") > said.index("noted by the run")


def test_without_a_step_the_remedy_is_named() -> None:
    running, over = Status("running"), Status("finished", 0)
    assert "S, tuiprof run --step-at" in no_step_lines(running, can_ask=True)[-1]
    assert "S, " not in no_step_lines(over)[-1]
    assert no_step_lines(
        over, likely="train.py:7", again="tuiprof run --step-at train.py:7 -- python train.py"
    ) == [
        "finished, and no step was detected",
        "the script runs the loop at train.py:7; to count its iterations:",
        "tuiprof run --step-at train.py:7 -- python train.py",
    ]


def test_the_selected_step_comes_before_all_else(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 20)
    bottom = Bottom(shown(made))
    bottom.captures.request(5)
    bottom.moment.selected = 171
    assert "step 171" in bottom.text()
    assert re.search(r"1\.5\d× the median", bottom.text())
    assert "t captures after slow steps" in bottom.text()
    limit_ns, stats = bottom.figures.slow_ns(), bottom.figures.stats
    assert limit_ns is not None
    assert stats.median_ns * 1.2 < limit_ns < stats.median_ns * 1.35, "halfway from the median to that step"


def test_a_bad_alert_takes_the_only_line_but_leaves_the_sentence_where_there_is_room(
    tmp_path: Path, shown: Shown
) -> None:
    made = recorded(tmp_path, 20, slow=())
    bottom = Bottom(shown(made))
    bottom.figures.alerts = [Alert("memory", "bad", "GPU 0 is full", "above 98 %")]
    made_for_two = bottom.text(tall=True)
    assert "GPU 0 is full" in bottom.text()
    assert "GPU 0 is full" in made_for_two
    made.capture("written", path="traces/rank0.json")
    while bottom.moment.feed.advance():
        pass
    assert bottom.captures.ready
    assert "GPU 0 is full" in bottom.text(), "a trace that waits to be opened does not hide it"
    bottom.captures.requested = ("c9", math.inf)
    assert "GPU 0 is full" not in bottom.text(), "what was asked for is answered first"


def test_what_is_armed_is_said_at_the_right_edge(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 20)
    bottom = Bottom(shown(made))
    bottom.captures.arm_slow(35_000_000)
    bottom.captures.update_armed()
    assert "captures: after steps > 35.0 ms" in bottom.text()
    bottom.captures.disarm_slow()
    assert not control.armed(made.session)


# -- rows ------------------------------------------------------------------------------------------------


def test_the_line_of_figures_is_broken_in_two_and_then_cut(tmp_path: Path, shown: Shown) -> None:
    moment = shown(recorded(tmp_path, 30))
    assert moment.rank is not None
    view = View(moment.feed.fold.now_ns, 60.0, False)
    stats = live_view.stats_in_view(moment.rank.steps, view)

    def rows(width: int) -> list[str]:
        found = live_view.stats_row(stats, view, width, batch=64.0, baseline=("off", stats.median_ns / 1.05))
        assert all(row_width(row) <= width for row in found)
        return [text(row) for row in found]

    [wide] = rows(160)
    assert wide.startswith(" step time 27.")
    assert "samples/s" in wide
    assert wide.rstrip().endswith("last 60 s")
    assert "vs off: 1.050× slower" in wide
    first, second = rows(75)
    assert "samples/s" in second
    assert "median" in first
    [cut] = rows(40)
    assert cut.endswith("…")
    assert text(live_view.stats_row(NO_STATS, view, 80, batch=None, baseline=None)[0]) == " step time  –"


def test_of_the_first_line_the_machine_goes_first_and_the_clock_stays(tmp_path: Path, shown: Shown) -> None:
    moment = shown(recorded(tmp_path, 30))
    name = live_view.name_row(moment.session)
    state = live_view.state_row(Status("running"), 72_000_000_000, moment.rank, 1, frozen=False)
    machine = live_view.machine_row(moment.session, moment.rank, frozenset())
    lines = {
        width: text(live_view.head_row("tuiprof", (name, state, machine), width)) for width in (160, 70, 40)
    }
    assert "H200 · torch 2.11.0" in lines[160]
    assert "H200" not in lines[70]
    assert lines[70].startswith(" tuiprof  metrics ▸ naive")
    assert all("00:01:12" in line for line in lines.values())
    assert all(len(line) <= width for width, line in lines.items())


def test_of_many_ranks_the_straggler_the_one_shown_and_the_slowest_stay() -> None:
    ranks = [
        RankTimes(f"rank{n}", n, 27e6 + n, math.nan, (27_000_000,) * 4, straggles=n == 9) for n in range(12)
    ]
    rows = [text(row) for row in live_view.rank_rows(ranks, "rank7", 100, 4)]
    assert len(rows) == 4
    assert [row.split("rank ")[1].split()[0] for row in rows[:3]] == ["7", "9", "11"]
    assert "straggler" in rows[1]
    assert rows[3].startswith("  and 9 more ranks: 27.0 ms to 27.0 ms")


def _run(title: str, state: str = "running") -> Summary:
    return Summary(title, f"/s/{title}", title, state, median_ns=430e6)


def test_the_run_that_is_shown_stays_among_the_others_with_its_state() -> None:
    runs = [_run("train"), _run("evaluate"), _run("resnet50", "failed"), _run("vit"), _run("unet", "stopped")]
    wide = text(live_view.runs_row(runs, "resnet50", 160))
    assert [wide[wide.index(name) - 2] for name in ("train", "resnet50", "unet")] == ["●", "✗", "■"]
    for width in (40, 60, 80):
        row = live_view.runs_row(runs, "resnet50", width)
        assert row_width(row) <= width
        assert "▸3 ✗ resnet50" in text(row), width
        left = 5 - sum(name in text(row) for name in ("train", "evaluate", "resnet50", "vit", "unet"))
        assert text(row).endswith(f" {left} more"), width


def test_if_no_step_is_in_view_it_says_so_and_which_steps_the_figures_are_of(
    tmp_path: Path, shown: Shown
) -> None:
    steps = shown(recorded(tmp_path, 30)).rank.steps  # type: ignore[union-attr]
    end_ns, number = int(steps.rows["t_ns"][-1]), int(steps.rows["n"][-1])
    soon, late = (View(end_ns + after_s * 1_000_000_000, 60.0, True) for after_s in (10, 74))
    assert live_view.stats_label(steps, soon) == "last 60 s"
    assert live_view.stats_label(steps, late) == "last 50 steps"
    assert number > 1000
    first, hint = live_view.none_in_view_lines(steps, late, running=True)
    assert first == f"no step in the last 60 s: step {format_count(number)} ended 1 min 14 s ago"
    assert hint == "z shows a longer time; s shows where each thread is"
    assert live_view.none_in_view_lines(steps, View(-1, 60.0, False), running=False) == [
        "no step yet at this point of the run"
    ]


def test_absent_hardware_is_named_or_explained(tmp_path: Path) -> None:
    with_gpu = Synthetic(tmp_path / "a").session.meta
    without = Synthetic(tmp_path / "b", gpus=0).session.meta
    assert device_notes(with_gpu, known=False, over=False) == ["waiting for the first reading …"]
    assert device_notes(with_gpu, known=False, over=True) == ["no readings"]
    with_gpu.absent = {"neuron": "no driver"}
    assert device_notes(with_gpu, known=True, over=False) == ["not found: Neuron"]
    without.absent = dict.fromkeys(("nvidia", "amd", "neuron", "tpu"), "no driver")
    [one_line] = device_notes(without, known=True, over=False)
    assert one_line == "no NVIDIA GPU, AMD GPU, Neuron, TPU found: tuiprof doctor"
    assert len(one_line) < 58, "cut in half of a screen of 120 columns"


def test_the_axis_begins_with_the_first_step_and_fits_the_steps() -> None:
    late_ns = 12_000_000_000  # imports took that long
    for age_s in (1.5, 3.0, 9.0, 14.0, 29.0, 59.0):
        view = View(late_ns + round(age_s * 1e9), 60.0, True, late_ns)
        assert age_s <= view.span_s <= max(age_s * 1.25, 2), "an axis much longer than the run is empty"
        assert view.young
    assert View(late_ns + 300 * 10**9, 60.0, True, late_ns).span_s == 60.0
    assert not View(late_ns + 300 * 10**9, 60.0, True, late_ns).young
    assert View(late_ns + 40 * 10**9, None, False, late_ns).span_s == 40.0


def test_the_axis_of_a_late_run_starts_where_its_steps_do() -> None:
    chart = StripChart()
    assert chart.edge(14.0, 4.0, 12.0) == 16.0
    assert chart.edge(16.0, 4.0, 12.0) == 16.0
    assert chart.edge(16.5, 4.0, 12.0) > 16.0


def test_after_the_end_devices_show_what_they_did_during_the_last_steps(tmp_path: Path, shown: Shown) -> None:
    made = recorded(tmp_path, 30)
    moment = shown(made)
    fold = moment.feed.fold
    host = fold.devices["host"]
    after_ns = max(rank.last_step_ns for rank in fold.ranks) + 10**9
    host.extend([Telemetry(after_ns, "host", {"tree_cpu": 0.0})], 0)
    views = {
        over: device_views(fold, moment.session.meta.devices, moment.rank, over=over)[-1]
        for over in (False, True)
    }
    assert views[False].latest["tree_cpu"] == 0.0
    assert views[True].latest["tree_cpu"] > 1.0


GPUS = [DeviceMeta(f"gpu{i}", "nvidia", "NVIDIA H200", None, {"uuid": f"GPU-{i}{i}"}) for i in range(4)]
META = SessionMeta(1, "run", [], "/", 0, 0, devices=[DeviceMeta("host", "host", "CPU"), *GPUS])


def allocated(others: str, *records: Any) -> dict[str, int]:
    """Return the allocated bytes shown, by device."""
    fold = Fold(Clock(META))
    readings = [Telemetry(1, device.key, {"util": 0.5}) for device in META.devices]
    fold.feed([Batch("recorder", readings), Batch("rank0", [*records])])
    views = device_views(fold, META.devices, fold.lead, frozenset(f"gpu{number}" for number in others))
    assert [view.key for view in views if view.foreign] == [f"gpu{number}" for number in others]
    assert views[-1].foreign or views[-1].key == "host"
    return {view.key: view.allocator[0] for view in views if view.allocator}


@pytest.mark.parametrize(
    ("others", "told", "keys"),
    [
        ("012", [Uses(1, 0, "33")], {"gpu3": 100}),
        ("012", [], {"gpu3": 100}),  # one device, one index
        ("", [], {"gpu0": 100}),  # counted as the monitor does, as far as is known
        ("01", [], {}),  # either
        ("", [Uses(1, 0, "22")], {"gpu2": 100}),
        ("", [Uses(1, 0, "of another machine")], {}),
    ],
)
def test_allocator_figures_stand_beside_the_device_they_are_of(
    others: str, told: list[Uses], keys: dict[str, int]
) -> None:
    assert allocated(others, Memory(1, 0, 100, 200, 300), *told) == keys
