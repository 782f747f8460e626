"""What a step takes: evaluations and checkpoints beside it, and a host that runs ahead of its device."""

from __future__ import annotations

import pytest

from tuiprof.session.live.fold import Fold
from tuiprof.session.live.step_series import AHEAD, KEEP_STEPS, StepSeries
from tuiprof.session.live.tail import Batch
from tuiprof.session.log import DeviceStep, Record, Step
from tuiprof.session.store.meta import Clock, SessionMeta

MS = 1_000_000
META = SessionMeta(v=1, name="run", argv=["python"], cwd="/", unix_ns=1, mono_ns=0, boot="")


def steps_of(*records: Record) -> StepSeries:
    fold = Fold(Clock(META))
    fold.feed([Batch("rank0", list(records))])
    return fold.writers["rank0"].steps


def made(durations_ms: list[float], phases: dict[int, dict[str, int]] | None = None) -> list[Step]:
    steps, at = [], 0
    for n, dur in enumerate(durations_ms):
        at += int(dur * MS)
        ph = {"forward": 4 * MS, **(phases or {}).get(n, {})}
        steps.append(Step(n, at, int(dur * MS), ph))
    return steps


def test_an_evaluation_now_and_then_is_named_and_is_no_part_of_the_step() -> None:
    durations = [110.0 if n in (10, 20) else 10.0 for n in range(40)]
    steps = steps_of(*made(durations, {n: {"evaluation": 100 * MS} for n in (10, 20)}))
    stats = steps.whole_run()
    assert (stats.median_ns, stats.p95_ns, stats.mean_ns) == (10 * MS, 10 * MS, 10 * MS)
    assert not len(steps.outliers())
    assert stats.rate_hz == pytest.approx(40 / 0.6), "by the wall clock, with the evaluations"
    assert steps.phase_means()["evaluation"] == pytest.approx(5 * MS)
    ordinary = steps.ordinary_phases()
    assert "evaluation" not in ordinary
    assert sum(ordinary.values()) == pytest.approx(10 * MS)


def test_an_evaluation_in_every_step_is_part_of_it() -> None:
    steps = steps_of(*made([10.0] * 40, {n: {"evaluation": 3 * MS} for n in range(40)}))
    assert steps.whole_run().median_ns == 10 * MS
    assert steps.ordinary_phases()["evaluation"] == pytest.approx(3 * MS)


def test_where_the_host_runs_ahead_the_step_is_that_of_the_device() -> None:
    # Nine steps are launched in 5 ms each; the tenth waits until the device has done all of them.
    durations = [315.0 if n % 10 == 9 else 5.0 for n in range(60)]
    steps = steps_of(*made(durations), *(DeviceStep(n, 36 * MS) for n in range(60)))
    stats = steps.whole_run()
    assert stats.on_device
    assert (stats.median_ns, stats.jitter) == (36 * MS, 0)
    assert stats.rate_hz == pytest.approx(1000 / 36)
    ordinary = steps.ordinary_phases()
    assert ordinary[AHEAD] == pytest.approx(31 * MS)
    assert sum(ordinary.values()) == pytest.approx(stats.median_ns)


def test_a_host_that_waits_for_each_step_is_timed_by_itself() -> None:
    steps = steps_of(*made([40.0] * 30), *(DeviceStep(n, 40 * MS + MS) for n in range(30)))
    assert not steps.whole_run().on_device
    assert steps.whole_run().median_ns == 40 * MS


def test_steps_per_second_count_what_lies_between_steps() -> None:
    steps = [Step(n, (n + 1) * 38 * MS, 32 * MS) for n in range(100)]  # 6 ms of each are in no step
    assert steps_of(*steps).whole_run().rate_hz == pytest.approx(1000 / 38, rel=0.01)


def test_steps_per_second_are_those_after_a_first_step_that_compiles() -> None:
    steps = steps_of(*made([900.0] + [1.0] * 30))
    assert steps.whole_run().rate_hz == pytest.approx(1000)
    assert steps.stats().rate_hz == pytest.approx(1000)
    assert steps_of(*made([1.5] + [1.0] * 30)).whole_run().rate_hz == pytest.approx(31_000 / 31.5)
    two = steps_of(*made([900.0, 800.0]))
    assert two.whole_run().rate_hz == pytest.approx(2 / 1.7), "of two steps neither is the usual one"


def test_a_first_step_that_compiled_stays_out_when_it_is_no_longer_kept() -> None:
    steps = steps_of(*made([90_000.0] + [1.0] * (2 * KEEP_STEPS)))
    assert steps.whole_run().rate_hz == pytest.approx(1000)
