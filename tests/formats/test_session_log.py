"""What a session's logs say of the steps of a trace, and of the cores that they ran on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuiprof.formats.session_log import read_uncaptured


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


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


def test_cores_are_those_of_the_run_after_its_imports(tmp_path: Path) -> None:
    imports = [{"core0_util": 1.0, "core1_util": 0.0, "core10_util": 0.0, "tree_cpu": 1.0}] * 3
    runs = [{"core0_util": 1.0, "core1_util": 0.5, "core10_util": 0.25, "tree_cpu": 1.75, "util": 0.9}] * 4
    found = read_uncaptured(session(tmp_path, [*imports, *runs]))
    assert found is not None
    assert (found.busy_cores, found.idle_cores) == (1.75, 1.25)
    assert (found.steps, found.step_ns) == (15, 1_000_022.0)


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
    found = read_uncaptured(session(tmp_path, host, *more))
    assert found is not None
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
    found = read_uncaptured(trace)
    assert found is not None
    return found.host_ns


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


def test_a_host_that_never_runs_ahead_is_not_known(tmp_path: Path) -> None:
    assert host_ns(steps(tmp_path, [900.0, 33.0, 31.0, *[30.0] * 30])) is None


def test_one_short_step_says_nothing_of_the_host(tmp_path: Path) -> None:
    assert host_ns(steps(tmp_path, [900.0, 10.0, *[30.0] * 30])) is None


def test_steps_that_leave_a_phase_out_are_not_ahead(tmp_path: Path) -> None:
    phases = [["forward"]] * 6 + [["forward", "backward"]] * 30
    assert host_ns(steps(tmp_path, [900.0, *[10.0] * 5, *[30.0] * 30], phases)) is None


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
    found = read_uncaptured(trace)
    assert found is not None
    assert found.lines == (), "too few samples"
    with log.open("a") as file:
        file.write(lines(40) + '{"t": "lines", "sam')  # the one being written
    last = read_uncaptured(trace)
    assert last is not None
    assert [(line.where, line.share, line.doing) for line in last.lines] == [
        ("train.py:7", 0.5, ""),
        ("/opt/lib/data.py:9", 0.25, "makes a batch"),
    ]


@pytest.mark.parametrize("bf16", ["amx_bf16", "", None])
def test_what_the_processor_can_do_is_that_of_the_sessions_host(bf16: str | None, tmp_path: Path) -> None:
    details = {"usable_cores": 4} | ({} if bf16 is None else {"bf16": bf16})
    trace = session(tmp_path, [])
    (tmp_path / "session.json").write_text(json.dumps({"devices": [{"kind": "host", "details": details}]}))
    found = read_uncaptured(trace)
    assert found is not None
    assert (found.usable_cores, found.bf16) == (4, bf16)
