"""Which rank holds the others up: with known answers, on others' traces, and on two ranks recorded here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from analyses.made import Made

from tests import real_traces
from tuiprof.analyses import run
from tuiprof.analyses.shared.collectives import MAX_RANKS
from tuiprof.formats import open_set
from tuiprof.model import Report, Trace, Unavailable, Window
from tuiprof.model.traceset import RankFile, TraceSet


def rank_trace(
    arrives: Sequence[int], *, skew_us: int = 0, name: str = "ncclDevKernel_AllReduce_Sum_f32"
) -> Trace:
    """Make a rank that comes to its collective at these µs of its 100 µs steps; all ranks leave it at 90 µs."""
    made = Made()
    for number, arrival in enumerate(arrives):
        at = number * 100 + skew_us
        made.step(number, at, at + 100)
        made.launch("gemm", (at + 1, at + 3), (at + 5, at + arrival), number * 10 + 1)
        made.launch(name, (at + 4, at + 5), (at + arrival, at + 90), number * 10 + 2)
    return made.trace()


def together(traces: Sequence[Trace]) -> Trace:
    """Make ranks of one job of traces; return the first."""
    by_path = {Path(f"rank{rank}"): trace for rank, trace in enumerate(traces)}
    files = tuple(RankFile(rank, path, "name") for rank, path in enumerate(by_path))
    first = traces[0]
    first.info = replace(first.info, path=files[0].path, rank=0)
    first.siblings = TraceSet("", files, by_path.__getitem__)
    return first


def report(trace: Trace, window: Window | None = None) -> Report:
    found = run("ranks", trace, window)
    assert isinstance(found, Report), found
    return found


def test_the_rank_that_waits_least_is_the_straggler() -> None:
    found = report(together([rank_trace([20] * 4), rank_trace([60] * 4), rank_trace([30] * 4)]))
    assert found.fact("straggler") == 1
    assert found.fact("straggler_share") == pytest.approx(0.35)  # the others wait 40 and 30 µs of 100
    rows = found.table("ranks").rows
    assert rows.select("rank", "wait_ns_per_step").rows() == [(1, 0.0), (2, 30_000.0), (0, 40_000.0)]
    assert found.verdict.level == "bad"
    assert "rank 1 holds up the step" in found.verdict.sentence
    assert found.table("steps").rows["last"].to_list() == [1] * 4


@pytest.mark.parametrize(("arrives", "straggler"), [(22, 1), (21, None)])
def test_a_rank_holds_up_the_others_from_2_percent_of_the_step_on(
    arrives: int, straggler: int | None
) -> None:
    found = report(together([rank_trace([20] * 4), rank_trace([arrives] * 4)]))
    assert found.fact("straggler") == straggler
    assert ("keep pace" in found.verdict.sentence) == (straggler is None)


def test_even_ranks_have_no_straggler() -> None:
    found = report(together([rank_trace([20, 22, 21, 20]), rank_trace([21, 21, 20, 22])]))
    assert found.fact("straggler") is None
    assert found.verdict.level == "good"


def test_the_difference_of_clocks_is_told_at_the_ends_of_collectives() -> None:
    found = report(together([rank_trace([20] * 4), rank_trace([40] * 4, skew_us=7_000)]))
    assert found.fact("clock_spread_ns") == 7_000_000
    assert found.fact("straggler") == 1  # waits need no common clock


def test_a_window_looks_at_its_steps_on_every_rank() -> None:
    first = together([rank_trace([20, 20, 80, 20]), rank_trace([80, 20, 20, 80], skew_us=3)])
    found = report(first, first.steps.window(2))
    assert found.fact("straggler") == 0
    assert found.table("steps").rows["step"].to_list() == ["2"]


def test_collectives_that_differ_are_not_matched_and_sends_are_no_collectives() -> None:
    other = rank_trace([20] * 4, name="ncclDevKernel_AllGather_RING_LL")
    found = report(together([rank_trace([50] * 4), other]))
    assert found.fact("collectives") == 0
    assert found.fact("straggler_share") is None
    assert any("4 collectives could not be matched" in note for note in found.notes)
    sends = [rank_trace([20 * (n + 1)] * 4, name="ncclDevKernel_SendRecv") for n in range(2)]
    assert report(together(sends)).fact("collectives") == 0


def test_one_rank_alone_says_what_to_do() -> None:
    found = run("ranks", rank_trace([20] * 4))
    assert isinstance(found, Unavailable)
    assert "tuiprof report DIRECTORY ranks" in found.remedy


def test_of_very_many_ranks_some_are_read() -> None:
    files = tuple(RankFile(rank, Path(f"rank{rank}"), "name") for rank in range(1000))
    first = rank_trace([20] * 4)
    read: list[Path] = []

    def opener(path: Path) -> Trace:
        read.append(path)
        return rank_trace([20] * 4)

    first.info = replace(first.info, path=files[0].path)
    first.siblings = TraceSet("", files, opener)
    found = report(first)
    assert found.fact("ranks") == MAX_RANKS == len(read) + 1
    assert "64 of 1000 ranks were read, evenly spread." in found.notes


def test_of_very_large_files_few_are_read() -> None:
    files = tuple(RankFile(rank, Path(f"rank{rank}"), "name", 900 << 20) for rank in range(8))
    first = rank_trace([20] * 4)
    first.info = replace(first.info, path=files[0].path)
    first.siblings = TraceSet("", files, lambda path: rank_trace([20] * 4))
    assert report(first).table("ranks").rows["rank"].to_list() == [0, 7]


def test_two_ranks_of_a_real_job() -> None:
    files = tuple(
        RankFile(r, real_traces.path(f"astrasim-megatron-tp8-rank{r}.json.gz"), "name") for r in range(2)
    )
    from tuiprof.formats import open_trace

    trace = open_trace(files[0].path)
    assert trace.siblings is not None
    assert [file.path for file in trace.siblings.files] == [file.path for file in files]  # found beside it
    found = report(trace)
    assert found.fact("straggler") == 0
    assert found.fact("collectives") == 84
    # Two ranks of one machine: the ends of what they do together lie microseconds apart.
    spread = found.fact("clock_spread_ns")
    assert isinstance(spread, int)
    assert 0 < spread < 100_000


_DDP = """
import sys, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(9):
    loss = model(torch.randn(8, 64)).square().mean()
    if rank == 1:
        time.sleep(0.04)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_recorded_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ddp.py"
    script.write_text(_DDP)
    monkeypatch.setenv("TUIPROF_SESSIONS", str(tmp_path / "sessions"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "tuiprof", "record", "--capture", "4@4", "--", sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    (session,) = (tmp_path / "sessions").iterdir()
    found = open_set(session)
    assert found.ranks == (0, 1)
    trace = found.open(0)
    trace.siblings = found
    answer = report(trace)
    assert answer.fact("straggler") == 1
    waited = answer.table("ranks").rows.filter(answer.table("ranks").rows["rank"] == 0)["wait_ns_per_step"][0]
    assert 0.5 * 40e6 < waited < 2 * 40e6  # rank 0 stands for what rank 1 sleeps
    assert answer.fact("clock_spread_ns") is None  # gloo's threads end a collective when they get to it
