"""What a session's logs say of the steps of a trace, and of the cores that they ran on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuiprof.formats.session_files import read_uncaptured
from tuiprof.model.steps import BatchPadding, Collections, Uncaptured, Weights, WorkerRestarts


def session(folder: Path, host: list[dict[str, float]], *more: str) -> Path:
    """Write a session of 40 steps with a capture, and what its recorder measured; return its trace."""
    for name in ("log", "traces"):
        (folder / name).mkdir()
    steps: list[dict[str, Any]] = [
        {"t": "step", "n": n, "dur": 1_000_000 + n, "cap": n in (30, 31)} for n in range(40)
    ]
    (folder / "log" / "rank0.jsonl").write_text("".join(_line(step) for step in steps))
    measured = [
        {"t": "tele", "at": n, "dev": "host", "m": figures, "s": {}} for n, figures in enumerate(host)
    ]
    (folder / "log" / "recorder.jsonl").write_text("".join(map(_line, measured)) + "".join(more))
    return folder / "traces" / "rank0.1.pt.trace.json.gz"


def uncaptured(trace: Path) -> Uncaptured:
    found = read_uncaptured(trace)
    assert found is not None
    return found


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


@pytest.mark.parametrize(
    ("at", "per_step", "share"),
    [
        ((100, 900, 5_000), (3_700 - 900) / 4_100, 0.25),  # the first second is warm-up
        ((100, 900), 800 / 800, 0.25),  # what there is before the capture
        ((100, 40_000), 39_900 / 39_900, 0.25),  # of a short run all of it
        ((100,), None, None),
    ],
)
def test_page_faults_are_those_before_the_capture(
    at: tuple[int, ...], per_step: float | None, share: float | None, tmp_path: Path
) -> None:
    trace = session(tmp_path, [])
    log = tmp_path / "log" / "rank0.jsonl"
    steps = [{"t": "step", "n": n, "at": 1_000 * n, "dur": 1_000, "cap": n in (30, 31)} for n in range(1, 40)]
    used = [
        {"t": "usage", "at": ns, "faults": min(ns, 3_700), "user_ns": 3 * ns, "system_ns": ns} for ns in at
    ]
    if 5_000 not in at:
        used = [record | {"faults": record["at"]} for record in used]
    lines = sorted([*steps, *used], key=lambda record: record["at"])
    log.write_text("".join(json.dumps(record) + "\n" for record in lines))
    found = uncaptured(trace)
    if per_step is None:
        assert found.page_faults is None
    else:
        assert found.page_faults is not None
        assert found.page_faults.per_step == pytest.approx(1_000 * per_step)
        assert found.page_faults.system_share == pytest.approx(share)


def collecting(
    folder: Path, every: int, gc_ns: int, *, hidden_ns: int = 0, usual_ns: int = 0, on_device: bool = False
) -> Collections | None:
    """Return what is read of a run of 400 steps, one of ``every`` of which collects for ``gc_ns``, all ``usual_ns``.

    Step ``n`` is longer by a collection, less ``hidden_ns``; a device, if there is one, takes 9 ms a step.
    """
    trace = session(folder, [])
    lines: list[dict[str, Any]] = []
    sums, at = [0, 0, 0, 0], 0
    for n in range(1, 400):
        collected = usual_ns + (gc_ns if n % every == 0 else 0)
        dur = 1_000_000 + 1_000 * (n % 3) + max(collected - hidden_ns, 0)
        at += dur
        fields = {"gc": [1, collected]} if collected else {}
        lines.append({"t": "step", "n": n, "at": at, "dur": dur, "cap": n in (30, 31)} | fields)
        if on_device:
            longer = max(collected - hidden_ns, 0)
            lines.append({"t": "dev", "n": n, "dur": 9_000_000 + 1_000 * (n % 3) + longer})
        for index, value in enumerate((1, bool(collected), collected, collected**2)):
            sums[index] += value
        if n == 3:
            sums[2] += 10**9  # the warm-up collects for a second
        if n in (3, 399):
            names = ("steps", "count", "ns", "squares")
            lines.append({"t": "garbage", "at": at, "n": n, **dict(zip(names, sums, strict=True))})
    (folder / "log" / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return uncaptured(trace).collections


def test_collections_of_the_whole_run_count_without_its_warm_up(tmp_path: Path) -> None:
    found = collecting(tmp_path, every=50, gc_ns=40_000_000)
    assert found is not None
    assert (found.steps, found.count, found.ns) == (396, 7, 7 * 40_000_000)
    assert (found.long_ns, found.every) == (pytest.approx(40_000_000), pytest.approx(396 / 7))
    assert found.usual_ns == 0
    assert found.shown == pytest.approx(1.0, rel=0.01)
    mean = 7 * 40_000_000 / 396
    likely, least, most = found.rare_ns()
    assert likely == pytest.approx(mean, rel=0.01)
    assert most - likely == pytest.approx(mean / 7**0.5, rel=0.03)
    assert 0 < least < likely


def test_collections_of_every_step_are_not_rare(tmp_path: Path) -> None:
    found = collecting(tmp_path, every=50, gc_ns=40_000_000, usual_ns=200_000)
    assert found is not None
    assert found.usual_ns == 200_000
    assert found.rare_ns()[0] == pytest.approx(7 * 40_000_000 / 396, rel=0.01)


@pytest.mark.parametrize("on_device", [False, True])
def test_collections_while_a_device_works_on_cost_less(on_device: bool, tmp_path: Path) -> None:
    found = collecting(tmp_path, every=20, gc_ns=40_000_000, hidden_ns=30_000_000, on_device=on_device)
    assert found is not None
    assert found.shown == pytest.approx(0.25, rel=0.02)
    likely, _, most = found.rare_ns()
    assert likely == pytest.approx(0.25 * found.ns / found.steps, rel=0.02)
    assert most > found.ns / found.steps


def test_of_collections_that_no_known_step_has_nothing_is_certain(tmp_path: Path) -> None:
    found = collecting(tmp_path, every=50, gc_ns=1_000)  # not longer than steps vary
    assert found is not None
    assert found.shown is None
    assert found.rare_ns()[1] == 0.0


def test_a_session_that_did_not_time_collections_tells_nothing_of_them(tmp_path: Path) -> None:
    assert uncaptured(session(tmp_path, [])).collections is None


def test_what_a_phase_takes_in_most_steps_is_known_if_most_have_it(tmp_path: Path) -> None:
    trace = session(tmp_path, [])
    steps = [
        {"t": "step", "n": n, "at": 1_000 * n, "dur": 1_000, "cap": n in (30, 31)}
        | {
            "ph": {"forward": 300, "optimizer": 900 if n == 28 else 50}
            | ({"backward": 400} if n % 3 == 0 else {})
        }
        for n in range(1, 40)
    ]
    (tmp_path / "log" / "rank0.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert uncaptured(trace).phases_ns == {"optimizer": pytest.approx(50)}


def test_how_long_the_stepping_thread_was_on_a_core_is_known_before_the_capture(tmp_path: Path) -> None:
    trace = session(tmp_path, [])
    log = tmp_path / "log" / "rank0.jsonl"
    steps = [{"t": "step", "n": n, "at": 1_000 * n, "dur": 1_000, "cap": n in (30, 31)} for n in range(1, 40)]
    used = {"t": "usage", "faults": 0, "user_ns": 0, "system_ns": 0}
    lines = [
        *steps,
        *(used | {"at": at, "thread_ns": at // 4 if at < 30_000 else at} for at in (5_000, 20_000, 35_000)),
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: line["at"])))
    assert uncaptured(trace).thread_share == pytest.approx(0.25)


def test_what_the_profiler_added_to_each_phase_is_read_from_whole_captured_steps(tmp_path: Path) -> None:
    trace = session(tmp_path, [])
    found = uncaptured(trace)
    # Only two captured steps, the first of which the profiler begins in; and no phases.
    assert found.slowed_ns == {"backward": 0, "optimizer": 0, "": pytest.approx(9)}
    log = tmp_path / "log" / "rank0.jsonl"
    steps = []
    for n in range(40):
        captured = 30 <= n < 34
        phases = {"forward": 250, "backward": 700 if captured else 400, "optimizer": 60 if captured else 50}
        step = {"t": "step", "n": n, "dur": 1_500 if captured else 1_000, "ph": phases, "cap": captured}
        steps.append(step | ({"dur": 90_000} if n == 30 else {}))
    log.write_text("".join(map(_line, steps)))
    assert uncaptured(trace).slowed_ns == {"backward": 300, "optimizer": 10, "": 190}
    # The step after the window is recorded otherwise.
    more = [{"t": "step", "n": 34, "dur": 50_000, "ph": steps[33]["ph"], "cap": True}]
    started = json.dumps({"t": "capture", "state": "started", "first": 30, "last": 33}) + "\n"
    log.write_text(started + "".join(map(_line, [*steps[:34], *more, *steps[35:]])))
    assert uncaptured(trace).slowed_ns == {"backward": 300, "optimizer": 10, "": 190}
    # Those of later captures do not count: what an earlier one left slows them too.
    again = [step | {"n": step["n"] + 40, "dur": 9_000, "cap": step["n"] > 20} for step in steps]
    log.write_text("".join(map(_line, [*steps, *again])))
    assert uncaptured(trace).slowed_ns == {"backward": 300, "optimizer": 10, "": 190}


def test_steps_that_wait_in_turns_count_as_their_mean(tmp_path: Path) -> None:
    """Two workers deliver two batches at once: each other step waits for its batch, on the host and on the device."""
    trace = session(tmp_path, [])
    log = tmp_path / "log" / "rank0.jsonl"
    records: list[dict[str, Any]] = []
    for n in range(40):
        wait = 60_000 if n % 2 else 0
        captured = 30 <= n < 34
        step = {"dur": 20_000 + wait, "ph": {"data": wait, "backward": 10_000}}
        if captured:
            step = {"dur": 35_000, "ph": {"data": 0, "backward": 15_000}}
        if n == 20:  # new workers
            step = {"dur": 9_000_000, "ph": {"data": 8_980_000}}
        records.append({"t": "step", "n": n, "cap": captured} | step)
        records.append({"t": "dev", "n": n, "dur": 20_000 + (0 if n % 2 else 60_000)})
    log.write_text("".join(map(_line, records)))
    found = uncaptured(trace)
    # Of 15 steps eight wait, and the one with new workers counts as one of them.
    assert found.fetch_ns == pytest.approx(9 * 60_000 / 15)
    assert 48_000 < found.step_ns < 60_000, "neither the step that waits nor the other"
    assert found.low_ns > 40_000
    # The rest of a captured step is 10 µs longer, although it waits for nothing.
    assert found.slowed_ns == {"backward": 5_000, "optimizer": 0, "": 10_000}


def test_cores_are_those_of_the_run_after_its_imports(tmp_path: Path) -> None:
    imports = [{"core0_util": 1.0, "core1_util": 0.0, "core10_util": 0.0, "tree_cpu": 1.0}] * 3
    runs = [{"core0_util": 1.0, "core1_util": 0.5, "core10_util": 0.25, "tree_cpu": 1.75, "util": 0.9}] * 4
    found = uncaptured(session(tmp_path, [*imports, *runs]))
    assert (found.busy_cores, found.idle_cores) == (1.75, 1.25)
    assert (found.steps, found.step_ns) == (15, 1_000_022.0)
    assert found.fetch_ns is None, "no step says how long it waited"


def test_cores_are_those_of_the_steps_where_the_clocks_of_the_logs_are_known(tmp_path: Path) -> None:
    """A run of seven measurements has steps in the time of the fifth and sixth."""
    loads = (1.0, 1.0, 1.0, 1.0, 8.0, 9.0, 1.0)
    trace = session(tmp_path, [{"core0_util": 1.0, "core1_util": 0.5, "tree_cpu": load} for load in loads])
    unix_ns = 1_795_691_495_085_238_434
    for name, mono_ns, first, apart in (("rank0", 7, 307, 6), ("recorder", 1_000_000, 1_000_000, 100)):
        log = tmp_path / "log" / f"{name}.jsonl"
        records = [json.loads(line) for line in log.read_text().splitlines()]
        for index, record in enumerate(records):
            record["at"] = first + index * apart
        head = {"t": "head", "v": 1, "unix_ns": unix_ns, "mono_ns": mono_ns}
        log.write_text("".join(map(_line, [head, *records])))
    assert uncaptured(trace).busy_cores == 8.5


def test_workers_that_were_started_again_are_those_of_the_last_whole_line(tmp_path: Path) -> None:
    trace = session(tmp_path, [])
    assert uncaptured(trace).restarts is None
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        for starts in (1, 2):
            line = {"t": "workers", "at": 1, "n": 12 * starts, "workers": 8, "starts": starts}
            log.write(json.dumps({**line, "ns": 100 * starts, "waited_ns": 10 * starts}) + "\n")
        log.write('{"t": "workers", "at": 1, "n": 36, "wor')
    assert uncaptured(trace).restarts == WorkerRestarts(workers=8, starts=2, steps=24, ns=200, waited_ns=20)


def test_padding_is_read_where_it_is_written_however_long_the_log_is(tmp_path: Path) -> None:
    trace = session(tmp_path, [])
    path = tmp_path / "log" / "rank0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for at, batches in ((2, 1), (30, 2)):
        used = {
            "frames": batches - 1,
            "longest": 40 * batches,
            "masked": batches,
            "full": 0,
            "least": 30,
            "most": 50,
        }
        line = {"t": "padding", "at": 1, "n": at, "batches": batches, "width": 128 * batches, **used}
        lines.insert(at, json.dumps(line) + "\n")
    lines.insert(33, '{"t": "padding", "at": 1, "n": 36, "bat\n')
    later = (_line({"t": "step", "n": n, "dur": 1_000_000}) for n in range(40, 10_000))
    path.write_text("".join(lines) + "".join(later))
    assert uncaptured(trace).padding == BatchPadding(2, 256, 80, 2, 0, 30, 50, frames=1)
    path.write_text("".join(lines).replace('"longest": 80', '"longest": 800'))
    assert uncaptured(trace).padding is None, "more is used than there is"


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, True),
        ({"types": {}}, False),
        ({"types": {"float32": -1}}, False),
        ({"first": -1}, False),
        ({"last": None}, False),
        ({"later": "a field of another version"}, True),
    ],
)
def test_weights_are_those_of_the_last_whole_line(
    change: dict[str, Any], known: bool, tmp_path: Path
) -> None:
    trace = session(tmp_path, [])
    path = tmp_path / "log" / "rank0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    line = {"t": "weights", "at": 1, "n": 3, "types": {"float32": 10, "float64": 30}, "kernels": 4}
    line |= {"depthwise": 1, "first": 2, "last": 0}
    lines.insert(3, json.dumps(line | change) + "\n")
    lines.insert(4, '{"t": "weights", "at": 1, "n": 4, "typ\n')
    path.write_text("".join(lines))
    found = uncaptured(trace)
    assert found.weights == (Weights({"float32": 10, "float64": 30}, 4, 1, 2, 0) if known else None)
    if found.weights is not None:
        assert found.weights.share_of("float64") == 0.75


@pytest.mark.parametrize(
    ("host", "more"),
    [
        ([], ()),
        ([{"util": 0.5}], ()),
        ([], ('{"t":"tele","at":1,"dev":"host","m":{"core0_util":"much","tree_cpu":1}}\n',)),
        ([], ('{"t":"tele","at":1,"dev":"host","m":{"core0_util":0.5,"tree_c',)),
    ],
)
def test_what_the_recorder_did_not_measure_is_not_known(
    host: list[dict[str, float]], more: tuple[str, ...], tmp_path: Path
) -> None:
    found = uncaptured(session(tmp_path, host, *more))
    assert (found.busy_cores, found.idle_cores) == (None, None)


def steps(folder: Path, durations_ms: list[float], phases: list[list[str]] | None = None) -> Path:
    """Write a session of steps of which the last two are captured; return its trace."""
    for name in ("log", "traces"):
        (folder / name).mkdir()
    records: list[dict[str, Any]] = [
        {
            "t": "step",
            "n": n,
            "dur": round(ms * 1e6),
            "ph": dict.fromkeys(phases[n] if phases else ["forward", "backward"], 1),
            "cap": n >= len(durations_ms) - 2,
        }
        for n, ms in enumerate(durations_ms)
    ]
    (folder / "log" / "rank0.jsonl").write_text("".join(map(_line, records)))
    return folder / "traces" / "rank0.1.pt.trace.json.gz"


def host_ns(trace: Path) -> float | None:
    return uncaptured(trace).host_ns


def test_first_steps_show_what_the_host_takes_until_the_launch_queue_is_full(tmp_path: Path) -> None:
    ahead = [
        900.0,
        14.0,
        10.0,
        10.0,
        10.2,
        22.0,
    ]  # the very first compiles, the last waits for the queue already
    assert host_ns(steps(tmp_path, [*ahead, *[30.0] * 30])) == pytest.approx(10e6)


def test_once_the_queue_is_full_a_short_step_only_makes_up_for_a_long_one(tmp_path: Path) -> None:
    ahead = [900.0, 10.0, 10.0, 10.2]
    assert host_ns(steps(tmp_path, [*ahead, *[36.0, 24.0] * 15])) == pytest.approx(10e6)
    full = tmp_path / "full"
    full.mkdir()
    assert host_ns(steps(full, [900.0, *[36.0] * 5, *[40.0, 24.0] * 15])) is None


def test_after_a_capture_the_host_runs_ahead_again(tmp_path: Path) -> None:
    before = [900.0, 10.0, *[30.0] * 30]  # a second step is held by the queue
    assert host_ns(steps(tmp_path, before)) is None
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        phases = {"forward": 1, "backward": 1}
        log.writelines(
            _line({"t": "step", "n": 32 + n, "dur": round(ms * 1e6), "ph": phases})
            for n, ms in enumerate([12.0, 10.0, 30.0, 30.0, 24.0])
        )
    assert host_ns(tmp_path / "traces" / "rank0.1.pt.trace.json.gz") == pytest.approx(10e6)


def test_slower_steps_after_a_capture_do_not_outnumber_the_first_ones(tmp_path: Path) -> None:
    trace = steps(tmp_path, [900.0, 10.0, 10.2, *[30.0] * 30])
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        phases = {"forward": 1, "backward": 1}
        log.writelines(_line({"t": "step", "n": 33 + n, "dur": 13_000_000, "ph": phases}) for n in range(5))
    assert host_ns(trace) == pytest.approx(10e6, rel=0.03)


def test_a_host_that_never_runs_ahead_is_not_known(tmp_path: Path) -> None:
    assert host_ns(steps(tmp_path, [900.0, 33.0, 31.0, *[30.0] * 30])) is None


def test_one_short_step_says_nothing_of_the_host(tmp_path: Path) -> None:
    assert host_ns(steps(tmp_path, [900.0, 10.0, *[30.0] * 30])) is None


def test_steps_that_leave_a_phase_out_are_not_ahead(tmp_path: Path) -> None:
    phases = [["forward"]] * 6 + [["forward", "backward"]] * 30
    assert host_ns(steps(tmp_path, [900.0, *[10.0] * 5, *[30.0] * 30], phases)) is None


def test_where_the_host_runs_ahead_the_device_says_how_long_a_step_is(tmp_path: Path) -> None:
    trace = steps(tmp_path, [900.0, *[2.0] * 40])
    assert host_ns(trace) is None
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        # What the device took is known some steps later; the captured ones are none of these.
        log.writelines(_line({"t": "dev", "n": n, "dur": 99 if n >= 39 else 5_000_000}) for n in range(41))
    found = uncaptured(trace)
    assert (found.step_ns, found.high_ns, found.host_ns) == (5e6, 5e6, 2e6)


def test_what_each_undisturbed_step_took_is_known(tmp_path: Path) -> None:
    found = uncaptured(steps(tmp_path, [900.0, *[30.0] * 30, 110.0, 30.0, 31.0, 31.0]))
    assert (len(found.times_ns), max(found.times_ns), found.step_ns) == (found.steps, 110_000_000, 30e6)


@pytest.mark.parametrize("host_ahead", [False, True])
def test_what_steps_after_the_capture_took_is_known_unless_the_host_runs_ahead(
    tmp_path: Path, host_ahead: bool
) -> None:
    trace = steps(tmp_path, [900.0, *[30.0] * 40])
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        log.writelines(_line({"t": "step", "n": 41 + n, "dur": n}) for n in range(10))
        log.writelines(_line({"t": "dev", "n": n, "dur": 50_000_000}) for n in range(41) if host_ahead)
    found = uncaptured(trace)
    assert found.later_ns == (() if host_ahead else tuple(range(3, 10))), "the first ones may be disturbed"


@pytest.mark.parametrize("host_ahead", [False, True])
def test_what_the_last_steps_took_is_known_unless_they_are_those_after_the_capture(
    tmp_path: Path, host_ahead: bool
) -> None:
    trace = steps(tmp_path, [900.0, *[30.0] * 40])
    assert uncaptured(trace).last_ns == ()
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        log.writelines(_line({"t": "dev", "n": n, "dur": 50_000_000}) for n in range(41) if host_ahead)
        log.writelines(_line({"t": "step", "n": 41 + n, "dur": 30_000_000}) for n in range(200))
        log.writelines(_line({"t": "step", "n": 241 + n, "dur": 6_000_000 + n}) for n in range(40))
    found = uncaptured(trace)
    assert found.last_ns[-40:] == (() if host_ahead else tuple(6_000_000 + n for n in range(40)))
    assert len(found.last_ns) < 240, "none of them counts twice"


def test_steps_after_an_early_capture_count_once(tmp_path: Path) -> None:
    trace = steps(tmp_path, [900.0, 30.0, 30.0, 30.0])
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        log.writelines(_line({"t": "step", "n": 4 + n, "dur": 30_000_000}) for n in range(10))
    found = uncaptured(trace)
    assert (found.after_capture, found.steps, found.later_ns) == (True, 7, ())


def test_a_device_that_keeps_up_says_nothing_more(tmp_path: Path) -> None:
    trace = steps(tmp_path, [900.0, *[2.0] * 40])
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        log.writelines(_line({"t": "dev", "n": n, "dur": 2_050_000}) for n in range(39))
    found = uncaptured(trace)
    assert (found.step_ns, found.host_ns) == (2e6, None)


def test_some_long_steps_of_both_do_not_let_the_host_run_ahead(tmp_path: Path) -> None:
    times = [30.0 if n % 5 else 60.0 for n in range(41)]
    trace = steps(tmp_path, times)
    with (tmp_path / "log" / "rank0.jsonl").open("a") as log:
        log.writelines(_line({"t": "dev", "n": n, "dur": round(ms * 1e6)}) for n, ms in enumerate(times[:39]))
        log.writelines(_line({"t": "step", "n": 41 + n, "dur": 30_000_000}) for n in range(40))
    found = uncaptured(trace)
    assert (found.step_ns, found.host_ns, len(found.later_ns)) == (30e6, None, 37)


def test_of_few_long_steps_before_an_early_capture_the_last_five_count(tmp_path: Path) -> None:
    found = uncaptured(steps(tmp_path, [900.0, *[30.0] * 5, 31.0, 31.0]))
    assert (found.steps, found.step_ns, found.high_ns, found.after_capture) == (5, 30e6, 30e6, False)
    few = tmp_path / "few"
    few.mkdir()
    assert read_uncaptured(steps(few, [900.0, *[30.0] * 4, 31.0, 31.0])) is None


def test_steps_that_were_withdrawn_are_none(tmp_path: Path) -> None:
    trace = steps(tmp_path, [900.0, *[30.0] * 12, 31.0, 31.0])
    log = tmp_path / "log" / "rank0.jsonl"
    counted = log.read_text()
    none = "".join(map(_line, ({"t": "step", "n": n, "dur": 10_000, "cap": n > 30} for n in range(300))))
    # As the probe writes such lines.
    again = json.dumps({"t": "source", "what": "optimizer steps", "withdrawn": 300}) + "\n"
    first = json.dumps({"t": "source", "what": "batches of a DataLoader", "withdrawn": 0}) + "\n"
    log.write_text(first + none + again + first + counted + '{"t": "source", "withd')
    assert uncaptured(trace).step_ns == 30e6


def test_the_log_of_a_jax_trace_is_the_one_that_wrote_it(tmp_path: Path) -> None:
    steps(tmp_path, [900.0, *[30.0] * 30])
    inside = "traces/plugins/profile/2026_11_23/vm.xplane.pb"
    trace = tmp_path / inside
    trace.parent.mkdir(parents=True)
    assert read_uncaptured(trace) is None, "no process says that it wrote it"
    log = tmp_path / "log" / "rank0.jsonl"
    (tmp_path / "log" / "rank1.jsonl").write_text(log.read_text().replace("30000000", "20000000"))
    with (tmp_path / "log" / "rank1.jsonl").open("a") as file:
        file.write(
            json.dumps({"t": "capture", "at": 1, "id": "a", "state": "written", "path": inside}) + "\n"
        )
    assert uncaptured(trace).step_ns == 20e6


def test_where_the_script_was_is_what_the_log_says_last(tmp_path: Path) -> None:
    def lines(samples: int) -> str:
        top = [["/home/u/train.py", 7, samples // 2], ["/opt/lib/data.py", 9, samples // 4]]
        return (
            json.dumps(
                {"t": "lines", "at": 1, "samples": samples, "top": top, "doing": ["", "makes a batch"]}
            )
            + "\n"
        )

    trace = session(tmp_path, [])
    (tmp_path / "session.json").write_text(json.dumps({"cwd": "/home/u"}))
    log = tmp_path / "log" / "rank0.jsonl"
    with log.open("a") as file:
        file.write(lines(8))
    assert uncaptured(trace).lines == (), "too few samples"
    with log.open("a") as file:
        file.write(lines(40) + '{"t": "lines", "sam')  # the one being written
    last = uncaptured(trace)
    assert [(line.where, line.share, line.doing) for line in last.lines] == [
        ("train.py:7", 0.5, ""),
        ("/opt/lib/data.py:9", 0.25, "makes a batch"),
    ]


@pytest.mark.parametrize("bf16", ["amx_bf16", "", None])
def test_what_the_processor_can_do_is_that_of_the_sessions_host(bf16: str | None, tmp_path: Path) -> None:
    details = {"usable_cores": 4} | ({} if bf16 is None else {"bf16": bf16})
    trace = session(tmp_path, [])
    (tmp_path / "session.json").write_text(json.dumps({"devices": [{"kind": "host", "details": details}]}))
    found = uncaptured(trace)
    assert (found.usable_cores, found.bf16) == (4, bf16)


@pytest.mark.parametrize(("name", "known"), [("lightning", "lightning"), (3, "")])
def test_the_framework_that_makes_the_steps_is_known_from_the_capture(
    name: Any, known: str, tmp_path: Path
) -> None:
    trace = session(tmp_path, [])
    path = tmp_path / "log" / "rank0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines.insert(3, json.dumps({"t": "trainer", "at": 1, "name": name}) + "\n")
    path.write_text("".join(lines))
    assert uncaptured(trace).trainer == known
