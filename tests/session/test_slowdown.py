"""Steps before and after a capture that left something behind: what is told, and that no figure mixes them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from session_logs import append, head, line, written

from tuiprof.comparison.sides import compare_targets
from tuiprof.probe.slowdown import FEWEST, WARM_UP, SlowdownWatch
from tuiprof.session.live.alerts import alerts
from tuiprof.session.live.hosts import compare_ranks
from tuiprof.session.live.listing import summary_of
from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.step_series import StepSeries
from tuiprof.session.live.summary import summarise
from tuiprof.session.store.folders import Session

MS = 1_000_000


def noisy(count: int, ms: float, noise: float = 0.02, seed: object = 0) -> list[int]:
    rng = random.Random(f"{seed}:{ms}:{count}")
    return [round(ms * MS * (1 + rng.gauss(0, noise))) for _ in range(count)]


def log(
    durations: Sequence[tuple[int, bool]],
    *,
    device: bool = True,
    writer: str = "rank0",
    written_after: int = 3,
) -> list[bytes]:
    """Return the lines of a run: step times in ns and whether each ran under a profiler."""
    lines, at = [], 1_000
    ended = 0
    for n, (dur, captured) in enumerate(durations):
        at += dur
        lines.append(
            line("step", n=n, at=at, dur=dur, ph={"forward": dur // 2}, **({"cap": True} if captured else {}))
        )
        if device:
            lines.append(line("dev", n=n, dur=dur))
        ended = written_after if captured else ended - 1
        if ended == 0:
            lines.append(line("capture", at=at, id="start", state="written", first=n - 2, last=n - 1))
    return lines


def run(before: Sequence[int], after: Sequence[int], profiled_ms: float = 40) -> list[tuple[int, bool]]:
    return [
        *((dur, False) for dur in before),
        *((round(profiled_ms * MS), True) for _ in range(4)),
        *((dur, False) for dur in after),
    ]


def recorded(root: Path, lines: list[bytes], name: str = "run") -> Session:
    session = written(root, *lines, name=name)
    append(
        session,
        "recorder",
        head(session, "recorder", rank=None),
        line("end", at=10**12, code=0, signal=None, why="exit"),
    )
    return session


def series(session: Session) -> StepSeries:
    lead = read_fold(session).lead
    assert lead is not None
    return lead.steps


@pytest.fixture
def slowed(tmp_path: Path) -> Session:
    """60 steps of 10 ms, a capture, 80 steps of 19 ms."""
    return recorded(tmp_path, log(run(noisy(60, 10), noisy(80, 19))))


def test_every_figure_is_of_the_steps_before(slowed: Session) -> None:
    steps = series(slowed)
    found = steps.slowdown
    assert found is not None
    assert (found.first, found.last, found.index) == (60, 63, 60)
    assert found.share == pytest.approx(0.9, abs=0.02)
    stats = steps.whole_run()
    assert (stats.count, round(stats.median_ns / MS), round(stats.p95_ns / MS)) == (60, 10, 10)
    assert steps.phase_means()["forward"] == pytest.approx(5 * MS, rel=0.02)
    assert len(steps.outliers()) == 0, "those after it are no outliers of those before it"
    [times] = compare_ranks(read_fold(slowed).ranks, 10**12, 50)
    assert times.step_ns == pytest.approx(10 * MS, rel=0.02)

    report = summarise(slowed)
    assert "median 10." in report.verdict.sentence
    assert "1.89× slower since the capture" in report.verdict.sentence
    told = "steps are 1.89× slower since the capture of steps 60 to 63 (10 → 19 ms)"
    assert any(note.startswith(told) for note in report.notes), report.notes
    assert report.fact("slower_share") == pytest.approx(0.9, abs=0.02)
    assert report.fact("device_step_mean_ns") == pytest.approx(10 * MS, rel=0.02)
    fold = read_fold(slowed)
    assert "slower since a capture" in {alert.name for alert in alerts(fold, fold.lead, fold.now_ns)}
    assert "jitter" not in {alert.name for alert in alerts(fold, fold.lead, fold.now_ns)}


def test_a_window_over_both_is_of_one_kind(slowed: Session) -> None:
    steps = series(slowed)
    mixed, later = steps.stats(slice(50, 90)), steps.stats(slice(70, None))
    assert (mixed.count, round(mixed.median_ns / MS)) == (10, 10)
    assert (later.count, round(later.median_ns / MS)) == (74, 19)


def test_two_recordings_of_the_same_run_compare_as_equal(tmp_path: Path) -> None:
    recorded(tmp_path, log([(dur, False) for dur in noisy(140, 10, seed=1)]), "bare")
    recorded(tmp_path, log(run(noisy(60, 10), noisy(80, 19))), "captured")
    report = compare_targets("bare", "captured", root=tmp_path)
    assert report.verdict.sentence.startswith("a step takes the same: 10.0 ms before, 10.0 ms after")
    assert any(note.startswith("captured: steps are 1.89× slower since the capture") for note in report.notes)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (noisy(60, 10), noisy(80, 10, seed=1)),
        (noisy(60, 10), noisy(80, 10.2, seed=1)),  # within 3 %
        (noisy(60, 10), noisy(80, 8)),  # faster
        (noisy(60, 10, 0.3), noisy(80, 10.5, 0.3, seed=2)),  # within the noise
        (
            noisy(30, 10) + noisy(30, 13),
            noisy(40, 13, seed=1) + noisy(40, 10, seed=1),
        ),  # goes up and down by itself
        (noisy(60, 10), noisy(20, 19) + noisy(180, 10, seed=1)),  # slow for a while
        (noisy(WARM_UP + FEWEST - 1, 10), noisy(80, 19)),  # too few before it
        (noisy(60, 10), noisy(FEWEST, 19)),  # too few after it
    ],
    ids=["same", "2 %", "faster", "noise", "levels", "a while", "few before", "few after"],
)
def test_what_is_no_slowdown(tmp_path: Path, before: list[int], after: list[int]) -> None:
    steps = series(recorded(tmp_path, log(run(before, after))))
    assert steps.slowdown is None
    assert steps.whole_run().count == len(before) + len(after)


def test_without_an_accelerator_nothing_is_left_behind(tmp_path: Path) -> None:
    """On a CPU a profiler leaves nothing; what changes there is somebody else's doing."""
    steps = series(recorded(tmp_path, log(run(noisy(60, 10), noisy(80, 19)), device=False)))
    assert steps.slowdown is None


def test_steps_while_the_trace_is_being_written_do_not_count(tmp_path: Path) -> None:
    after = noisy(40, 19) + noisy(80, 10, seed=1)
    lines = log(run(noisy(60, 10), after), written_after=40)
    assert series(recorded(tmp_path, lines, "late")).slowdown is None
    slow = log(run(noisy(60, 10), noisy(40, 10, seed=3) + noisy(80, 12)), written_after=40)
    found = series(recorded(tmp_path, slow, "slow")).slowdown
    assert found is not None
    assert found.after_ns == pytest.approx(12 * MS, rel=0.02)


def test_the_first_capture_that_harms_is_where_figures_end(tmp_path: Path) -> None:
    """The second of three captures leaves something behind."""
    captured = [(40 * MS, True)] * 3
    parts = [noisy(60, 10), noisy(60, 10, seed=1), noisy(60, 14), noisy(60, 14, seed=1)]
    durations = [(dur, False) for dur in parts[0]]
    for part in parts[1:]:
        durations += [*captured, *((dur, False) for dur in part)]
    steps = series(recorded(tmp_path, log(durations)))
    found = steps.slowdown
    assert found is not None
    assert (found.first, found.last) == (123, 125)
    assert steps.whole_run().count == 120


def test_captures_close_to_each_other_are_judged_as_one(tmp_path: Path) -> None:
    durations = run(noisy(60, 10), noisy(4, 12))
    durations += [*[(40 * MS, True)] * 4, *((dur, False) for dur in noisy(80, 15))]
    found = series(recorded(tmp_path, log(durations))).slowdown
    assert found is not None
    assert (found.first, found.last) == (60, 71)


def test_long_runs_keep_the_figures_of_the_steps_before(tmp_path: Path) -> None:
    """More steps than are kept whole, before the capture and after it."""
    from tuiprof.session.log import DeviceStep, Step

    def feed(steps: StepSeries, times: list[int], first: int, captured: bool = False) -> None:
        steps.extend([Step(first + i, 0, dur, {}, {}, captured) for i, dur in enumerate(times)], 0)

    steps = StepSeries(keep=500)
    feed(steps, noisy(1000, 10), 0)
    steps.add_device_times([DeviceStep(999, 1)])
    feed(steps, [40 * MS] * 4, 1000, True)
    feed(steps, noisy(2000, 19), 1004)
    stats = steps.whole_run()
    assert stats.count == 1000
    assert stats.median_ns == pytest.approx(10 * MS, rel=0.01)
    assert steps.stats().median_ns == pytest.approx(19 * MS, rel=0.01), "of the kept ones none is from before"
    assert not np.isnan(steps.phase_means().get("other", 0.0))


def test_how_the_log_was_cut_into_pieces_changes_nothing(slowed: Session) -> None:
    times = series(slowed).rows["dur_ns"].tolist()
    flags = series(slowed).rows["captured"].tolist()
    whole, single = SlowdownWatch(), SlowdownWatch()
    whole.plain(times[:60])
    whole.captured(range(60, 64))
    whole.plain(times[64:])
    for n, (dur, captured) in enumerate(zip(times, flags, strict=True)):
        single.captured([n]) if captured else single.plain([dur])
    assert whole.found == single.found is not None


def test_the_list_knows_it_from_the_end_of_the_log(tmp_path: Path) -> None:
    lines = log(run(noisy(60, 10), noisy(4000, 19)))
    plain = recorded(tmp_path, lines, "plain")
    assert summary_of(plain).median_ns == pytest.approx(19 * MS, rel=0.02)
    told = line("slower", at=2_000, first=60, last=63, before=10 * MS, after=19 * MS)
    assert summary_of(recorded(tmp_path, [*lines, told], "told")).median_ns == 10 * MS


def test_recordings_of_an_h100(shared: Path) -> None:
    """What tuiprof 0.1.0 recorded: captures that left CUPTI attached."""
    found = {}
    for path in sorted((shared / "whatif").iterdir()):
        if path.is_dir():
            slowdown = series(Session(path)).slowdown
            found[path.name] = 0.0 if slowdown is None else round(slowdown.share, 2)
    harmed = {name for name, share in found.items() if share}
    assert {"small-scalars", "small-python", "small-loader0", "vit-optimizer"} <= harmed
    assert found["small-scalars"] == pytest.approx(0.93, abs=0.02)
    unharmed = {
        "mlp-bf16",
        "mlp-chain",
        "mlp-fp32",
        "mlp-isnan",
        "vit-attention",
        "vit-norm",
        "resnet-channels",
    }
    assert not harmed & unharmed
