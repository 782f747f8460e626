"""Which rank of a live run holds up the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from session_logs import append, head, new_session, step

from tuiprof.session.live.straggler import lanes
from tuiprof.session.live.summary import read_fold


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
