"""The fold: figures that can be worked out by hand, and the same whatever the pieces it was fed in."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from session_logs import append, head, line, new_session, step, written

from tuiprof.session.live import fold as fold_module
from tuiprof.session.live.fold import Fold, WriterState
from tuiprof.session.live.listing import summary_of
from tuiprof.session.live.replay import Replay, read_fold
from tuiprof.session.live.series import Histogram, Overview, step_stats
from tuiprof.session.live.step_series import MAX_NAMES, StepSeries
from tuiprof.session.live.summary import summarise
from tuiprof.session.live.tail import Batch
from tuiprof.session.log import (
    Capture,
    Cost,
    DeviceStep,
    End,
    Head,
    Memory,
    Note,
    NotFinite,
    Record,
    Step,
    Telemetry,
)
from tuiprof.session.store.meta import Clock, SessionMeta
from tuiprof.tui.app.inline import strip_rows

META = SessionMeta(v=1, name="x", argv=["x"], cwd="/", unix_ns=10**18, mono_ns=1000, boot="here")


def _fold(*batches: Batch) -> Fold:
    fold = Fold(Clock(META))
    fold.feed(batches)
    return fold


def _step(n: int, dur: int = 1_000_000, **fields: Any) -> Step:
    return Step(n, at=1000 + (n + 1) * 1_000_000, dur=dur, **fields)


def test_statistics_of_steps_by_hand() -> None:
    stats = step_stats(np.array([10, 10, 12, 8, 10, 11, 9, 10, 30], np.int64))
    assert (stats.count, stats.median_ns) == (9, 10)
    assert stats.jitter == pytest.approx(0.1)  # deviations 0 0 0 0 1 1 2 2 20: their median is 1
    assert stats.rate_hz == pytest.approx(9e9 / 110)
    assert stats.outlier_above_ns == pytest.approx(10 + 5 * 1.4826)
    assert step_stats(np.array([], np.int64)).count == 0


def test_device_times_are_compared_with_the_host_times_of_the_same_stretch() -> None:
    # 32 slow steps are all timed on the device, of the fast ones after them each 16th.
    host = np.array([2_000] * 32 + [1_000] * 160, np.int64)
    device = np.where((np.arange(192) < 32) | (np.arange(192) % 16 == 15), host, -1)
    together = step_stats(host, device)
    assert (together.on_device, together.median_ns) == (False, 1_000)
    ahead = step_stats(host // 2, device)
    assert (ahead.on_device, ahead.median_ns) == (True, 1_000)
    assert ahead.mean_ns == pytest.approx(host.mean())
    assert not step_stats(host // 2, np.where(np.arange(192) < 7, host, -1)).on_device, "too few were timed"
    # Each fourth step logs, and waits for all: where only those are timed, the host runs ahead all the same.
    host, waits = np.array([5_000, 5_000, 5_000, 17_000] * 48, np.int64), np.arange(192) % 4 == 3
    assert step_stats(host, np.where(waits, 8_000, -1)).on_device


def test_a_rank_is_folded() -> None:
    plain = [
        _step(n, 10_000 + n, ph={"data": 1_000, "forward": 3_000}, v={"loss": 1.0 / (n + 1)})
        for n in range(20)
    ]
    slow = _step(20, 90_000, ph={"data": 80_000})
    captured = _step(21, 500_000, cap=True)
    fold = _fold(
        Batch("rank0", [Head(1, "rank0", 7, META.unix_ns, 1000, rank=0), *plain]),
        Batch(
            "rank0",
            [DeviceStep(3, 555), slow, captured, DeviceStep(99, 1, every=4), Cost(40_000_000, 20, 2_000)],
        ),
        Batch("rank0", [Memory(2000, 0, 5, 6, 7), Memory(3000, 0, 1, 6, 8)]),
    )
    lead = fold.lead
    assert lead is not None
    steps = lead.steps
    assert (len(steps), steps.last_n, steps.captured) == (22, 21, 1)
    assert steps.rows["t_ns"][0] == 1_000_000  # session time: the origin is taken off
    assert (steps.rows["device_ns"][3], steps.rows["device_ns"][4]) == (555, -1)
    assert steps.device_every == 4
    assert steps.outliers().tolist() == [20]
    assert steps.longest == (20, 21_000_000, 90_000)
    assert steps.stats().count == 21
    assert steps.stats() == steps.whole_run()
    assert steps.metric("loss")[:2].tolist() == [1.0, 0.5]
    assert math.isnan(steps.metric("loss")[20])
    means = steps.phase_means()
    assert means["data"] == pytest.approx((20 * 1_000 + 80_000) / 21)
    assert sum(means.values()) == pytest.approx(steps.stats().mean_ns)
    last_ms = steps.since(5_000_000)
    assert steps.rows["n"][last_ms].tolist() == [16, 17, 18, 19, 20, 21]
    assert lead.cost_per_step_ns == 100
    assert lead.cost_share == pytest.approx(100 / steps.rows["wall_ns"][~steps.rows["captured"]].mean())
    assert lead.memory[0].last == Memory(3000, 0, 1, 6, 8)
    assert fold.now_ns == 40_000_000 - 1000


def test_devices_captures_notes_and_end() -> None:
    reading = Telemetry(1000, "gpu0", {"util": 0.5, "power_w": 300.0}, {"throttle": "power cap"})
    fold = _fold(
        Batch("recorder", [Head(1, "recorder", 1, META.unix_ns, 1000), reading]),
        Batch("recorder", [Telemetry(2000, "gpu0", {"util": 0.25, "new": 1.0}), Note(9000, "warn", "late")]),
        Batch("rank0", [Note(5000, "info", "early"), Capture(5, "c1", "started", 3)]),
        Batch("rank1", [Capture(5, "c1", "written", 3, 5, "traces/1.json.gz")]),
        Batch("recorder", [Cost(101_000, 2, 1_000), End(9_500, 0)]),
    )
    gpu = fold.devices["gpu0"]
    assert gpu.figure("util").tolist() == [0.5, 0.25]
    assert (gpu.last["power_w"], gpu.peak["util"], gpu.text) == (300.0, 0.5, {})
    assert np.isnan(gpu.figure("new")[0])
    assert np.isnan(gpu.figure("never")).all()
    assert [note.text for note in fold.notes] == ["early", "late"]
    capture = fold.captures["c1"]
    assert (capture.state, capture.first, capture.last, capture.paths) == (
        "started",
        3,
        5,
        ["traces/1.json.gz"],
    )
    assert fold.end == End(9_500, 0)
    assert fold.recorder_share == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            Capture(5, "c1", "started", 3, 5),
            "capture 'c1' of steps 3 to 5 was being recorded when the run ended",
        ),
        (Capture(5, "c1", "armed", 3, 5), "capture 'c1' of steps 3 to 5 had not begun when the run ended"),
        (Capture(5, "c1", "armed"), "capture 'c1' had not begun when the run ended"),
        (Capture(5, "c1", "failed", why="no memory"), "capture 'c1' failed: no memory"),
        (
            Capture(5, "c1", "written", 3, 5, "traces/1.json", why="cut off"),
            "capture 'c1' is incomplete: cut off",
        ),
    ],
)
def test_a_capture_says_what_is_missing_of_it(record: Capture, said: str) -> None:
    capture = _fold(Batch("rank0", [record])).captures["c1"]
    assert capture.shortfall(over=True).startswith(said)
    assert bool(capture.shortfall(over=False)) == (record.state in ("failed", "written"))


def test_a_triggered_capture_that_the_run_did_not_reach_is_no_shortfall() -> None:
    """For example that of every 400 steps, in a run of 1500."""
    waits = Capture(5, "every-4", "armed", 1600, 1602, cause="step 1600 is a multiple of 400")
    began = Capture(5, "every-3", "started", 1200, 1202, cause="step 1200 is a multiple of 400")
    captures = _fold(Batch("rank0", [waits, began])).captures
    assert not captures["every-4"].shortfall(over=True)
    assert captures["every-3"].shortfall(over=True)


def test_of_numbers_that_are_none_the_first_are_kept() -> None:
    found = [NotFinite(n, n, f"metric {n}") for n in range(fold_module.KEEP_NOTES + 3)]
    kept = [trouble.record for trouble in _fold(Batch("rank0", found)).troubles]
    assert kept == found[: fold_module.KEEP_NOTES]


def test_a_restarted_rank_counts_from_zero_again() -> None:
    first = Head(1, "rank0", 7, META.unix_ns, 1000, rank=0)
    again = Head(1, "rank0", 8, META.unix_ns, 2000, rank=0)
    fold = _fold(Batch("rank0", [first, _step(0), _step(1), End(5, 1), again, _step(0), DeviceStep(0, 77)]))
    lead = fold.lead
    assert lead is not None
    assert (lead.restarts, lead.end, len(lead.steps)) == (1, None, 3)
    assert lead.steps.rows["device_ns"].tolist() == [-1, -1, 77]


def test_of_two_processes_of_a_rank_the_living_one_leads() -> None:
    def process(name: str, first: int) -> Batch:
        head = Head(1, name, 7, META.unix_ns, 1000, rank=0)
        return Batch(name, [head, *(Step(n, 1000 + (first + n) * 10**9, 10**9) for n in range(5))])

    other = Batch("rank1", [Head(1, "rank1", 7, META.unix_ns, 1000, rank=1), Step(0, 10**12, 1)])
    side_by_side = _fold(process("rank0", 0), process("rank0-77", 1), other)
    one_after_the_other = _fold(process("rank0", 0), process("rank0-77", 20), other)
    assert side_by_side.lead is side_by_side.writers["rank0"]
    assert one_after_the_other.lead is one_after_the_other.writers["rank0-77"]


def test_memory_is_bounded_and_totals_stay_exact() -> None:
    fold = Fold(Clock(META))
    state = fold.writers["rank0"] = WriterState("rank0")
    state.offset_ns = -1000
    state.steps = StepSeries(512)
    durations = np.random.default_rng(1).integers(500_000, 2_000_000, 5_000)
    for n, dur in enumerate(durations.tolist()):
        fold.feed([Batch("rank0", [_step(n, dur, v={f"name{n}": 1.0})])])
    steps = state.steps
    assert (len(steps), len(steps.rows), steps.rows["n"][0]) == (5_000, 512, 4_488)
    whole = steps.whole_run()
    assert whole.count == 5_000
    assert whole.mean_ns == durations.mean()
    assert whole.median_ns == pytest.approx(np.median(durations), rel=0.005)
    assert whole.p95_ns == pytest.approx(np.percentile(durations, 95), rel=0.005)
    assert steps.overview.count.sum() == 5_000
    assert np.nanmax(steps.overview.maximum) == durations.max()
    assert len(steps.overview) <= 2048
    assert len(steps.metrics) == MAX_NAMES  # names without end do not fill memory
    assert steps.dropped_names


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 2**40), min_size=1, max_size=300),
    st.lists(st.integers(1, 40), max_size=30),
    st.integers(1, 8).map(lambda half: half * 2),
)
def test_overview_and_histogram(values: list[int], pieces: list[int], buckets: int) -> None:
    numbers = np.array(values, np.int64)
    times = np.arange(len(values), dtype=np.int64)
    overview, histogram = Overview(buckets), Histogram()
    start = 0
    for size in (*pieces, len(values)):
        overview.extend(times[start : start + size], numbers[start : start + size])
        histogram.add(numbers[start : start + size])
        start += size
    rows = np.arange(len(values)) // overview.width
    assert len(overview) == rows[-1] + 1 <= buckets
    for row in range(len(overview)):
        mine = numbers[rows == row]
        assert (overview.minimum[row], overview.maximum[row]) == (mine.min(), mine.max())
        assert overview.mean[row] == pytest.approx(mine.mean())
        assert overview.t_start_ns[row] == times[rows == row][0]
        assert overview.t_end_ns[row] == times[rows == row][-1]
    nth = np.sort(numbers)[math.ceil(0.5 * len(values)) - 1]
    assert histogram.quantile(0.5) == pytest.approx(nth, rel=0.004, abs=0.51)


_records = st.one_of(
    st.builds(lambda n: _step(n, ph={"a": n}), st.integers(0, 50)),
    st.builds(lambda n: _step(n, cap=True, v={"loss": float(n)}), st.integers(0, 50)),
    st.builds(DeviceStep, st.integers(0, 50), st.integers(1, 99)),
    st.builds(lambda at: Memory(at, at % 2, 1, 2, 3), st.integers(0, 999)),
    st.builds(lambda at: Telemetry(at, f"gpu{at % 2}", {"util": at / 7}, {"s": "w"}), st.integers(0, 999)),
    st.builds(lambda at: Note(at, "info", str(at)), st.integers(0, 999)),
    st.builds(lambda at: Cost(at, at, at), st.integers(1, 999)),
    st.builds(lambda at: Capture(at, f"c{at % 3}", "written", at), st.integers(0, 999)),
    st.builds(lambda at: Head(1, "w", 1, 10**18, at, rank=0), st.integers(0, 999)),
    st.builds(lambda at: End(at, 0), st.integers(0, 999)),
)


def _state(fold: Fold) -> dict[str, Any]:
    """Return all that can be seen of a fold, in a form that can be compared."""
    seen: dict[str, Any] = {"now": fold.now_ns, "records": fold.records, "notes": list(fold.notes)}
    for name, state in fold.writers.items():
        series = {"steps": state.steps.rows, **{f"mem{d}": m.rows for d, m in state.memory.items()}}
        for key, rows in series.items():
            seen[f"{name}.{key}"] = {column: repr(rows[column].tolist()) for column in rows.names}
        seen[name] = repr((state.head, state.end, state.cost, state.restarts))
        seen[f"{name}.stats"] = repr((state.steps.whole_run(), state.steps.longest, state.steps.phases))
        seen[f"{name}.overview"] = state.steps.overview.maximum.tolist()
    for key, device in fold.devices.items():
        seen[key] = (repr({c: device.rows[c].tolist() for c in device.rows.names}), device.last, device.text)
    seen["captures"] = dict(fold.captures.items())
    return seen


@settings(max_examples=80)
@given(st.lists(_records, max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_make_no_difference(records: list[Record], cuts: list[int]) -> None:
    # Steps are numbered upwards until the process starts anew; device times follow their steps.
    number, ordered = 0, []
    for record in records:
        if isinstance(record, Head):
            number = 0
        if isinstance(record, Step):
            record = msgspec.structs.replace(record, n=number)
            number += 1
        if isinstance(record, DeviceStep) and number == 0:
            continue
        ordered.append(
            msgspec.structs.replace(record, n=record.n % number) if isinstance(record, DeviceStep) else record
        )
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(ordered)), len(ordered)]
    pieces = [Batch("rank0", ordered[a:b]) for a, b in itertools.pairwise(bounds)]
    in_pieces = Fold(Clock(META))
    for piece in pieces:
        in_pieces.feed([piece])
    assert _state(in_pieces) == _state(_fold(Batch("rank0", ordered)))


_SOMETIMES = st.sampled_from(
    [0, 1, -1, 1 << 62, -(1 << 63), 1 << 63, 10**30, 1e308, True, None, "\x1b[2J", [], {}]
)
_ANY = st.one_of(st.integers(0, 10**9), _SOMETIMES)
_FIGURES = st.dictionaries(st.sampled_from(["loss", "t_ns", "n", "util", "\x1b[1m"]), _ANY, max_size=3)


def _lines(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"t": st.just(kind), **fields})


_HOSTILE = st.one_of(
    _lines("head", v=st.just(1), writer=st.just("x"), pid=_ANY, unix_ns=_ANY, mono_ns=_ANY, rank=_ANY),
    _lines("step", n=_ANY, at=_ANY, dur=_ANY, ph=_FIGURES, v=_FIGURES),
    _lines("dev", n=_ANY, dur=_ANY, every=_ANY),
    _lines("mem", at=_ANY, dev=_ANY, alloc=_ANY, reserved=_ANY, peak=_ANY),
    _lines("cost", at=_ANY, steps=_ANY, ns=_ANY),
    _lines("tele", at=_ANY, dev=st.sampled_from(["host", "\x1b"]), m=_FIGURES),
    _lines("end", at=_ANY, code=_ANY, signal=_ANY),
)


@given(st.lists(_HOSTILE, max_size=30))
@example([{"t": "mem", "at": 0, "dev": -1, "alloc": 0, "reserved": 0, "peak": 0}])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_log_of_somebody_else_is_folded_listed_and_summed_up(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    session = new_session(tmp_path)
    append(session, "rank0", *(json.dumps(record).encode() + b"\n" for record in records))
    fold = read_fold(session)
    assert fold.records <= len(records)
    assert summary_of(session).id == session.id
    assert summarise(session).verdict.sentence
    assert strip_rows(session, fold, session.status(), fold.now_ns, 80)


def test_a_note_of_an_unknown_level_is_told_like_any_other() -> None:
    fold = _fold(Batch("rank0", [Note(5, "bad", "one"), Note(6, "\x1b[2J", "two")]))
    assert [(note.level, note.text) for note in fold.notes] == [("bad", "one"), ("info", "two")]


def test_replay_shows_what_was_known_then(tmp_path: Path) -> None:
    session = written(tmp_path, *(step(n) + line("dev", n=n, dur=n + 1) for n in range(1000)))
    append(
        session,
        "recorder",
        head(session, "recorder"),
        line("note", at=1_000 + 500_500_000, level="info", text="half"),
    )
    now = [100.0]
    replay = Replay(session, speed=2.0, now_s=lambda: now[0])
    assert replay.duration_ns == 1_000_000_000

    def steps() -> int:
        replay.advance(max_bytes=333)
        lead = replay.fold.lead
        return len(lead.steps) if lead else 0

    assert steps() == 0
    now[0] += 0.125
    assert (steps(), list(replay.fold.notes)) == (250, [])
    assert steps() == 250
    replay.paused = True
    now[0] += 10
    assert steps() == 250
    replay.paused = False
    replay.speed = 1.0
    now[0] += 0.3505
    assert steps() == 600
    assert [note.text for note in replay.fold.notes] == ["half"]
    replay.seek(100_000_000)
    assert (steps(), list(replay.fold.notes)) == (100, [])
    now[0] += 1000
    assert steps() == 1000
    assert replay.over
    assert _state(replay.fold) == _state(read_fold(session))
    replay.close()


def test_bound_of_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "KEEP_READINGS", 100)
    fold = _fold(*(Batch("recorder", [Telemetry(at, "host", {"util": at / 1000})]) for at in range(1000)))
    host = fold.devices["host"]
    assert (len(host.t_ns), host.figure("util")[0]) == (100, 0.9)
    assert host.overview["util"].total == 1000
