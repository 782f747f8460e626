"""Runs of several hosts: which folders belong together, how clocks differ, and what becomes of a lost host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import here

from tests.session.host_parts import JOB, MS, START, S, goes_on, part
from tests.session.session_logs import append, head, line, new_session, step
from tuiprof.comparison.trend import history
from tuiprof.errors import UsageProblem
from tuiprof.session.asking import is_here
from tuiprof.session.live.fold import MAX_WITH_CORES, Fold
from tuiprof.session.live.hosts import (
    SILENT_S,
    HostWatch,
    common_step,
    compare_ranks,
    host_problems,
    host_states,
    outdated,
)
from tuiprof.session.live.listing import list_sessions
from tuiprof.session.live.replay import Live, Replay, read_fold
from tuiprof.session.live.step_series import steps_kept
from tuiprof.session.live.summary import ranges, summarise
from tuiprof.session.live.tail import Batch
from tuiprof.session.log import DeviceStep, Head, Step, Telemetry
from tuiprof.session.store.folders import find_session, run_of
from tuiprof.session.store.hosts import Part, group_parts
from tuiprof.session.store.meta import Clock, SessionMeta
from tuiprof.system.process import pid_namespace
from tuiprof.tui.live.view import hosts_row

# -- which folders belong together --------------------------------------------------------------------------


def test_the_folders_of_two_hosts_are_one_run_named_by_either(tmp_path: Path) -> None:
    second = part(tmp_path, "node2.cluster", [1], began_s=1)
    first = part(tmp_path, "node1.cluster", [0], began_s=2)
    for name in ("last", "train", second.id, first.id, str(second.path)):
        run = find_session(tmp_path, name)
        assert run.path == first.path, name
        assert [host.name for host in run.others] == ["node2"]
    assert [rank.label for rank in read_fold(run).ranks] == ["rank0 on node1", "rank1 on node2"]


@pytest.mark.parametrize(
    "other",
    [
        {"job": {**JOB, "MASTER_PORT": "29501"}},
        {"job": {}},
        {"world": 3},
        {"began_s": 3600.0},
        {"ranks": [0]},
    ],
)
def test_what_is_of_another_run_stays_apart(tmp_path: Path, other: dict[str, Any]) -> None:
    first = part(tmp_path, "node1", [0])
    fields: dict[str, Any] = {"ranks": [1], **other}
    part(tmp_path, "node2", **fields)
    assert not run_of(first).others
    assert len(list_sessions(tmp_path)) == 2


TORCHRUN = ("torchrun", "--nnodes=2", "--nproc-per-node", "8", "--rdzv-endpoint", "node1:29400", "train.py")


def test_a_host_is_known_before_its_first_step(tmp_path: Path) -> None:
    """As soon as its folder exists, whichever of the folders is named, and whether the others make steps or not."""
    first = goes_on(part(tmp_path, "node1", [0], argv=TORCHRUN, ended=False))
    second = goes_on(part(tmp_path, "node2", [], argv=TORCHRUN, began_s=20, ended=False))
    times = {"unix_ns": second.meta.unix_ns, "mono_ns": second.meta.mono_ns}
    append(second, "recorder", line("head", v=1, writer="recorder", pid=7, **times))
    for session in (first, second):
        run = run_of(session)
        assert run.path == first.path
        assert [host.name for host in run.others] == ["node2"]
        assert not run.complete
    fold = read_fold(run)
    waiting = host_states(run, fold)[1]
    since = f"{second.started.astimezone():%H:%M:%S}"
    assert waiting.waits == f"8 ranks expected, no steps yet, started {since}"
    assert host_states(run, fold)[0].waits == ""
    row = summarise(run).table("hosts").rows.row(1, named=True)
    assert (row["host"], row["state"], row["waits"], row["steps"]) == (
        "node2",
        "running (on node2)",
        waiting.waits,
        0,
    )
    shown = "".join(text for text, _ in hosts_row(host_states(run, fold), 120))
    assert f"node2 {waiting.waits}" in shown
    assert "clock" not in shown
    (listed,) = list_sessions(tmp_path)
    assert listed.host == "node1, node2"
    # Its first step says what it is, and its clock can be compared.
    known = part(tmp_path / "later", "node2", [1], began_s=20)
    (second.log / "rank1.jsonl").write_bytes((known.log / "rank1.jsonl").read_bytes())
    found = run_of(first)
    assert outdated(run, found)
    assert found.others[0].ranks == (1,)
    assert found.complete


def test_hosts_of_which_none_has_made_a_step_are_one_run(tmp_path: Path) -> None:
    first, second = (
        part(tmp_path, f"node{n}", [], argv=(*TORCHRUN[:3], "8", f"--node-rank={n}"), began_s=n, ended=False)
        for n in (1, 2)
    )
    assert [host.name for host in run_of(second).others] == ["node2"]
    assert run_of(second).path == first.path
    assert len(list_sessions(tmp_path)) == 1


@pytest.mark.parametrize(
    ("host", "began_s", "argv"),
    [
        ("node2", 20.0, (*TORCHRUN, "--lr", "1")),
        ("node2", 3600.0, TORCHRUN),
        ("node1", 20.0, TORCHRUN),
        ("node2", 20.0, ("torchrun", "train.py")),
    ],
)
def test_a_folder_without_steps_that_is_of_another_run_stays_apart(
    tmp_path: Path, host: str, began_s: float, argv: tuple[str, ...]
) -> None:
    command = TORCHRUN if "--nnodes=2" in argv else argv
    first = part(tmp_path, "node1", [0], argv=command)
    second = part(tmp_path, host, [], argv=argv, began_s=began_s)
    assert not run_of(first).others
    assert not run_of(second).others
    assert len(list_sessions(tmp_path)) == 2


def test_a_host_that_waits_belongs_to_the_nearest_run_of_its_command(tmp_path: Path) -> None:
    """The first attempt failed at once on both hosts; in the second one of them is already at work."""
    before = [part(tmp_path, f"node{n}", [], argv=TORCHRUN) for n in (1, 2)]
    now = [part(tmp_path, f"node{n}", [0] if n == 1 else [], argv=TORCHRUN, began_s=300 + n) for n in (1, 2)]
    for session in now:
        assert [part.path for part in run_of(session).parts] == [part.path for part in now]
    for session in before:
        assert {part.path for part in run_of(session).parts} == {part.path for part in before}
    assert len(list_sessions(tmp_path)) == 2


def test_a_job_of_a_batch_system_may_have_clocks_that_are_hours_apart(tmp_path: Path) -> None:
    job = {**JOB, "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    first = part(tmp_path, "node1", [0], job=job)
    part(tmp_path, "node2", [1], job=job, ahead_ns=7200 * S)
    [host] = run_of(first).others
    assert abs(host.clock.ahead_ns - 7200 * S) < 5 * MS


def test_of_runs_one_after_the_other_those_that_began_together_belong_together(tmp_path: Path) -> None:
    firsts = [part(tmp_path, "node1", [0], began_s=at) for at in (0.0, 100.0, 200.0)]
    seconds = [part(tmp_path, "node2", [1], began_s=at) for at in (1.0, 95.0, 205.0)]
    for first, second in zip(firsts, seconds, strict=True):
        assert [host.session.path for host in run_of(first).others] == [second.path]
    assert find_session(tmp_path, "last~1").path == firsts[1].path
    assert [summary.id for summary in list_sessions(tmp_path)] == [it.id for it in reversed(firsts)]
    with pytest.raises(UsageProblem, match="contains 3"):
        find_session(tmp_path, "last~3")


def test_a_run_that_one_host_did_not_record_does_not_take_the_part_of_the_next(tmp_path: Path) -> None:
    alone = part(tmp_path, "node1", [0])
    again = part(tmp_path, "node1", [0], began_s=100)
    second = part(tmp_path, "node2", [1], began_s=95)
    assert not run_of(alone).others
    assert [host.session.path for host in run_of(again).others] == [second.path]


def test_a_thousand_parts_are_put_together_at_once() -> None:
    parts = [Part(f"p{n}", ("1000",), (n,), f"rank{n}", START + n * 7919 % 1000 * MS) for n in range(1000)]
    [group] = group_parts(parts)
    assert [it.ranks[0] for it in group] == list(range(1000))


def test_the_same_command_on_one_host_stays_apart_from_itself(tmp_path: Path) -> None:
    both = [part(tmp_path, "node1", [0, 1], began_s=at) for at in (0.0, 30.0)]
    assert all(not run_of(session).others for session in both)


def test_ranks_that_srun_started_on_other_hosts_for_one_recorder(tmp_path: Path) -> None:
    """Their monotonic clocks are their own, they are named with their host, and a capture needs a common step."""
    session = new_session(tmp_path, host="login.cluster")
    meta = session.meta
    where = {
        "login.cluster": meta.boot,
        "node1.cluster": "boot of node1",
        "node\x1b2.cluster": "boot of node2",
    }
    for rank, (host, boot) in enumerate(where.items()):
        mono_ns = meta.mono_ns if boot == meta.boot else 900 * rank * S
        times = {"unix_ns": meta.unix_ns, "mono_ns": mono_ns}
        first = head(session, f"rank{rank}", rank=rank, world=3, host=host, boot=boot, **times)
        steps = (line("step", n=n, at=mono_ns + n * 100 * MS, dur=100 * MS) for n in range(20))
        append(session, f"rank{rank}", first, *steps)
    fold = read_fold(session)
    assert [rank.label for rank in fold.ranks] == ["rank0", "rank1 on node1", "rank2 on node-2"]
    assert [rank.steps.rows["t_ns"].tolist() for rank in fold.ranks] == [
        [n * 100 * MS for n in range(20)]
    ] * 3
    assert common_step(session, fold) == 19 + 2 + 20  # 2 s ahead
    # The number of a process on another machine says nothing here: an answer to a request is still expected of it.
    place = json.dumps({"supervisor": {"pid": 1, "start": "1"}, "place": pid_namespace()})
    (session.control / "process.json").write_text(place)
    assert [is_here(session, rank) for rank in fold.ranks] == [True, False, False]


def test_ranks_of_one_machine_need_no_common_step(tmp_path: Path) -> None:
    session = new_session(tmp_path, host="node1")
    for rank in range(2):
        where = {"host": "node1", "boot": session.meta.boot}
        append(session, f"rank{rank}", head(session, f"rank{rank}", rank=rank, world=2, **where), step(0))
    fold = read_fold(session)
    assert [rank.label for rank in fold.ranks] == ["rank0", "rank1"]
    assert common_step(session, fold) is None


# -- clocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ns", [0, 2300 * MS, -41 * S])
def test_a_clock_that_differs_is_found_by_the_ends_of_steps(tmp_path: Path, ahead_ns: int) -> None:
    first = part(tmp_path, "node1", [0], first_step_s=3)
    part(tmp_path, "node2", [1], first_step_s=3, began_s=0.25, ahead_ns=ahead_ns)
    run = run_of(first)
    [host] = run.others
    assert abs(host.clock.ahead_ns - ahead_ns) < 2 * MS
    assert host.clock.steps == 40
    ends = [rank.steps.rows["t_ns"] for rank in read_fold(run).ranks]
    assert abs((ends[1] - ends[0]).mean()) < 2 * MS
    said = " ".join(summarise(run).notes)
    assert ("the clock of node2" in said) == (ahead_ns != 0)


def test_ranks_that_do_not_wait_for_one_another_say_nothing_of_clocks(tmp_path: Path) -> None:
    first = part(tmp_path, "node1", [0], coupled=False)
    part(tmp_path, "node2", [1], coupled=False, ahead_ns=90 * S)
    [host] = run_of(first).others
    assert host.clock.spread_ns is None
    assert host.shift_ns == 90 * S
    assert "wall clocks are not corrected" in str(host.clock)


def test_clocks_are_compared_by_the_beginning_where_a_host_ended_early(tmp_path: Path) -> None:
    first = part(tmp_path, "node1", [0], steps=9000)
    part(tmp_path, "node2", [1], steps=30, ahead_ns=5 * S)
    [host] = run_of(first).others
    assert abs(host.clock.ahead_ns - 5 * S) < 5 * MS


# -- what is read -------------------------------------------------------------------------------------------


def test_captures_of_both_hosts_are_one_and_lead_into_each_hosts_folder(tmp_path: Path) -> None:
    first = part(tmp_path, "node1", [0], capture="traces/a.pt.trace.json")
    second = part(tmp_path, "node2", [1], capture="traces/b.pt.trace.json")
    for session, name in ((first, "a"), (second, "b")):
        (session.path / "traces" / f"{name}.pt.trace.json").write_text("{}")
    run = run_of(first)
    [capture] = read_fold(run).captures.values()
    files = [Path(run.path, path).resolve() for path in capture.paths]
    assert sorted(files) == sorted(path.resolve() for path in run.all_traces())
    assert run.with_traces(1).path == second.path


def test_a_log_of_another_host_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    first = part(tmp_path, "node1", [0])
    part(tmp_path, "node2", [1], capture="../../../etc/passwd")
    [capture] = read_fold(run_of(first)).captures.values()
    assert capture.paths == []


def test_a_replay_shows_all_hosts_on_one_time_axis(tmp_path: Path) -> None:
    first = part(tmp_path, "node1", [0])
    part(tmp_path, "node2", [1], ahead_ns=30 * S)
    run = run_of(first)
    replay = Replay(run, now_s=lambda: 0.0)
    replay.paused = True
    replay.seek(5 * S)
    replay.advance()
    counts = [len(rank.steps) for rank in replay.fold.ranks]
    assert abs(counts[0] - counts[1]) <= 1
    assert 15 <= counts[0] <= 25
    replay.close()


def test_devices_of_hosts_stay_apart(tmp_path: Path) -> None:
    first = part(tmp_path, "node1", [0])
    second = part(tmp_path, "node2", [1])
    for session, load_ in ((first, 0.25), (second, 0.75)):
        append(session, "recorder", line("tele", at=session.meta.mono_ns + S, dev="gpu0", m={"util": load_}))
    devices = read_fold(run_of(first)).devices
    assert {key: device.last["util"] for key, device in devices.items()} == {"gpu0": 0.25, "gpu0@node2": 0.75}


def test_names_of_hosts_are_unique_and_tame(tmp_path: Path) -> None:
    first = part(tmp_path, "10.0.0.1", [0], world=4)
    part(tmp_path, "evil\x1b[31m/../@x", [1], world=4)
    part(tmp_path, "twin", [2], world=4)
    part(tmp_path, "twin", [3], world=4, began_s=1)
    run = run_of(first)
    assert [run.host, *(host.name for host in run.others)] == ["10-0-0-1", "evil-31m", "twin", "twin#2"]


# -- hosts that are lost ------------------------------------------------------------------------------------


def test_a_host_whose_recorder_died_is_said_and_the_run_goes_by_the_others(tmp_path: Path) -> None:
    first = part(tmp_path, "node1", [0])
    part(tmp_path, "node2", [1], steps=20, ended=False)
    run = run_of(first)
    assert run.status().state == "interrupted"
    assert "node1: finished" in str(run.status())
    report = summarise(run)
    assert any("node2 is lost, after step 19" in note for note in report.notes)
    [summary] = list_sessions(tmp_path)
    assert summary.state == "interrupted"
    assert "2 hosts" in summary.detail


def test_a_host_that_falls_silent_is_said_before_its_status_changes(tmp_path: Path) -> None:
    first = goes_on(part(tmp_path, "node1", [0], ended=False))
    second = goes_on(part(tmp_path, "node2", [1], ended=False))
    now_s = 0.0
    run = run_of(first)
    watch, live = HostWatch(run, lambda: now_s), Live(run)
    live.advance()
    assert not host_problems(watch.update(live.fold))
    now_s = SILENT_S + 1
    append(first, "rank0", line("step", n=40, at=first.meta.mono_ns + 8 * S, dur=100 * MS))
    live.advance()
    assert host_problems(watch.update(live.fold)) == ["node2 is lost, after step 39: no record for 13.0 s"]
    append(second, "rank1", line("step", n=40, at=second.meta.mono_ns + 8 * S, dur=100 * MS))
    live.advance()
    assert not host_problems(watch.update(live.fold))
    live.close()


def test_a_folder_of_another_host_that_vanishes_leaves_the_rest(tmp_path: Path) -> None:
    import shutil

    first = part(tmp_path, "node1", [0])
    second = part(tmp_path, "node2", [1])
    run = run_of(first)
    shutil.rmtree(second.path)
    run.reload()
    assert [rank.rank for rank in read_fold(run).ranks] == [0]
    assert [host.status.state for host in host_states(run, read_fold(run))] == ["finished", "interrupted"]


# -- the command line ---------------------------------------------------------------------------------------


def test_list_and_report_show_one_run(tmp_path: Path) -> None:
    part(tmp_path, "node1", [0])
    part(tmp_path, "node2", [1], ahead_ns=3 * S)

    def tuiprof(*arguments: str) -> str:
        done = here(*arguments, sessions=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    [listed] = [json.loads(text) for text in tuiprof("list", "--json").splitlines()]
    assert listed["host"] == "node1, node2"
    assert len(listed["parts"]) == 2
    page = tuiprof("report", "last")
    assert "rank1 on node2" in page
    assert "3.00 s ahead" in page
    assert "clocks" in tuiprof("report", "last", "-v", "--rules")


def test_over_time_a_run_of_two_hosts_is_one_point(tmp_path: Path) -> None:
    part(tmp_path, "node1", [0])
    part(tmp_path, "node2", [1])
    points, problems = history([tmp_path], executor=lambda files: pytest.fail("there are no traces"))
    assert [point.figures["step_ns"] for point in points] == [100 * MS]
    assert problems == []


def test_ranges() -> None:
    assert ranges([3, 0, 1, 2, 8, 10, 11]) == "0-3, 8, 10-11"


def test_what_is_kept_of_a_large_job_is_bounded() -> None:
    assert [steps_kept(world) for world in (1, 8, 64, 512, 10**9, -1)] == [1 << 16] * 3 + [
        1 << 13,
        1 << 10,
        1 << 16,
    ]
    meta = SessionMeta(v=1, name="x", argv=["x"], cwd="/", unix_ns=START, mono_ns=0)
    fold = Fold(Clock(meta))
    figures = {"core0_util": 0.5, "util": 0.5}
    for n in range(MAX_WITH_CORES + 1):
        fold.feed([Batch(f"recorder@node{n}", [Telemetry(S, "host", dict(figures))])])
    kept = ["core0_util" in device.last for device in fold.devices.values()]
    assert kept == [True] * MAX_WITH_CORES + [False]
    assert all(device.last["util"] == 0.5 for device in fold.devices.values())
    fold.feed([Batch("rank0", [Head(1, "rank0", 1, START, 0, rank=0, world=1 << 20)])])
    fold.feed([Batch("rank0", [Step(n, S + n, 1) for n in range(5000)])])
    assert len(fold.ranks[0].steps.rows) == 1 << 10
    assert len(fold.ranks[0].steps) == 5000


def ranks_with(folder: Path, *step_ms: float) -> list[tuple[int | None, bool]]:
    """Return (rank, straggles) of ranks whose steps take so long."""
    session = new_session(folder)
    for rank, ms in enumerate(step_ms):
        writer, dur = f"rank{rank}", int(ms * 1e6)
        steps = (step(n, dur) for n in range(40))
        append(session, writer, head(session, writer, rank=rank, world=len(step_ms)), *steps)
    return [(times.rank, times.straggles) for times in compare_ranks(read_fold(session).ranks, 1 << 60)]


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
    return [(times.rank, times.why) for times in compare_ranks(fold.ranks, 1 << 60) if times.straggles]


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
