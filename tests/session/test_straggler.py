"""Which rank of a live run holds up the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from session_logs import append, head, new_session, step

from tuiprof.session.live.fold import Fold
from tuiprof.session.live.hosts import lanes
from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.tail import Batch
from tuiprof.session.log import DeviceStep, Head, Step
from tuiprof.session.store.meta import Clock, SessionMeta


def ranks_with(folder: Path, *step_ms: float) -> list[tuple[int | None, bool]]:
    """Return (rank, straggles) of ranks whose steps take so long."""
    session = new_session(folder)
    for rank, ms in enumerate(step_ms):
        writer, dur = f"rank{rank}", int(ms * 1e6)
        steps = (step(n, dur) for n in range(40))
        append(session, writer, head(session, writer, rank=rank, world=len(step_ms)), *steps)
    return [(lane.rank, lane.straggles) for lane in lanes(read_fold(session).ranks, 1 << 60)]


def test_of_two_ranks_the_slower_one_does_not_hide_in_the_middle(tmp_path: Path) -> None:
    # 8 % above the other, 4 % above the median of both.
    assert ranks_with(tmp_path, 100, 108) == [(0, False), (1, True)]


@pytest.mark.parametrize("slow", [0, 3])
def test_the_one_that_is_slower_than_the_rest_is_marked(tmp_path: Path, slow: int) -> None:
    times = [100.0] * 4
    times[slow] = 106.0
    assert [rank for rank, marked in ranks_with(tmp_path, *times) if marked] == [slow]


def test_within_five_percent_of_a_step_nobody_is(tmp_path: Path) -> None:
    assert not any(marked for _, marked in ranks_with(tmp_path, 100, 104, 101))


def test_exactly_five_percent_of_a_step_is_enough(tmp_path: Path) -> None:
    assert ranks_with(tmp_path, 100, 100, 105) == [(0, False), (1, False), (2, True)]


MS = 1_000_000


def marked(*ranks: tuple[int, int], device_ms: int = 0) -> list[tuple[int | None, str]]:
    """Return (rank, why) of the straggler among ranks of (step time, of which backward) in ms."""
    fold = Fold(Clock(SessionMeta(v=1, name="x", argv=["x"], cwd="/", unix_ns=10**18, mono_ns=1000)))
    for rank, (step_ms, backward_ms) in enumerate(ranks):
        records: list[Head | Step | DeviceStep] = [Head(1, f"rank{rank}", rank, 10**18, 1000, rank=rank)]
        for n in range(20):
            at = 1000 + (n + 1) * step_ms * MS
            records.append(Step(n, at=at, dur=step_ms * MS, ph={"backward": backward_ms * MS}))
            if device_ms:
                records.append(DeviceStep(n, device_ms * MS))
        fold.feed([Batch(f"rank{rank}", records)])
    return [(lane.rank, lane.why) for lane in lanes(fold.ranks, 1 << 60) if lane.straggles]


def test_where_all_take_the_same_it_is_the_one_that_waits_least_in_backward() -> None:
    assert marked((100, 60), (100, 50), (100, 60)) == [(1, "time outside backward and optimizer")]
    assert marked((100, 60), (100, 56), (100, 60)) == []


def test_a_host_that_runs_ahead_of_its_device_holds_up_nobody_by_its_own_time() -> None:
    assert marked((100, 60), (100, 50), (100, 60), device_ms=100) == []
    assert marked((100, 20), (100, 9), (100, 20), device_ms=100) == [
        (1, "time outside backward and optimizer")
    ]
    # A longer step does, whatever its host does meanwhile.
    assert marked((100, 60), (120, 70), (100, 60), device_ms=100) == [(1, "step time")]
