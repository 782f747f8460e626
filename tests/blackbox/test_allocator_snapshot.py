"""What held the memory, by line, from the allocator's snapshot."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tuiprof.blackbox.dumps import NO_STACK, read_snapshot, snapshot_report
from tuiprof.cli import main
from tuiprof.errors import TraceError

GIB = 1 << 30
BASE = 1 << 40


def _frames(line: int, name: str) -> list[dict[str, Any]]:
    inner = {
        "filename": "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py",
        "line": 125,
        "name": "forward",
    }
    return [inner, {"filename": "/home/u/train.py", "line": line, "name": name}]


def _block(offset: int, size: int, state: str = "active_allocated", frames: Any = None) -> dict[str, Any]:
    return {
        "address": BASE + offset,
        "size": size,
        "requested_size": size,
        "state": state,
        "frames": frames or [],
    }


def _snapshot(*blocks: dict[str, Any], trace: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    total = sum(block["size"] for block in blocks)
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "blocks": list(blocks),
    }
    return {"segments": [segment], "device_traces": [trace or []]}


def _event(action: str, offset: int, size: int, line: int = 0, name: str = "") -> dict[str, Any]:
    frames = _frames(line, name) if line else []
    return {"action": action, "addr": BASE + offset, "size": size, "stream": 0, "frames": frames}


def _written(folder: Path, found: object) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(found, protocol=4))
    return path


def test_the_peak_of_the_history_is_found_and_what_held_it(tmp_path: Path) -> None:
    found = _snapshot(
        _block(0, 2 * GIB, frames=_frames(81, "forward")),
        _block(2 * GIB, GIB, frames=_frames(30, "<module>")),
        _block(3 * GIB, GIB, "inactive"),
        trace=[
            _event("alloc", 2 * GIB, GIB, 30, "<module>"),
            _event("alloc", 3 * GIB, GIB, 55, "attention"),
            _event("alloc", 0, GIB, 60, "short"),
            _event("free_requested", 0, GIB),
            _event("free_completed", 0, GIB, 60, "short"),
            _event("alloc", 0, 2 * GIB, 81, "forward"),
            _event("free_completed", 3 * GIB, GIB, 55, "attention"),
            {
                "action": "oom",
                "device_free": 1 << 20,
                "size": 3 * GIB,
                "stream": 0,
                "frames": _frames(81, "forward"),
            },
        ],
    )
    [device] = read_snapshot(_written(tmp_path, found))
    assert (device.peak, device.allocated, device.reserved, device.wanted) == (
        4 * GIB,
        3 * GIB,
        4 * GIB,
        3 * GIB,
    )
    assert [(held.function, held.size, held.blocks) for held in device.at_peak] == [
        ("forward", 2 * GIB, 1),
        ("<module>", GIB, 1),
        ("attention", GIB, 1),
    ]
    assert [held.function for held in device.now] == ["forward", "<module>"]
    said = snapshot_report(_written(tmp_path, found)).verdict.sentence
    assert said.startswith(
        "device 0: 3.00 GiB could not be allocated; 4.00 GiB at the peak, 50.0 % of it from"
    )
    assert "train.py:81 (forward)" in said


def test_memory_from_before_the_history_counts_at_the_peak(tmp_path: Path) -> None:
    found = _snapshot(
        _block(0, GIB),
        _block(GIB, GIB, "inactive"),
        trace=[_event("free_completed", GIB, GIB, 7, "old")],
    )
    [device] = read_snapshot(_written(tmp_path, found))
    assert device.peak == 2 * GIB
    assert {(held.line == NO_STACK, held.function) for held in device.at_peak} == {(True, ""), (False, "old")}


def test_without_a_history_the_sizes_are_told_and_how_to_get_the_lines(tmp_path: Path) -> None:
    found = _snapshot(
        _block(0, GIB), _block(GIB, GIB, "active_pending_free"), _block(2 * GIB, GIB, "inactive")
    )
    report = snapshot_report(_written(tmp_path, found))
    assert report.fact("allocated_bytes") == GIB
    assert report.fact("waiting_bytes") == GIB
    assert report.fact("largest_free_bytes") == GIB
    assert any("tuiprof run --memory" in note for note in report.notes)


def test_blocks_without_addresses_follow_one_another(tmp_path: Path) -> None:
    blocks = [{"size": GIB, "state": "active_allocated"}, {"size": GIB, "state": "active_allocated"}]
    found = {"segments": [{"address": BASE, "total_size": 2 * GIB, "blocks": blocks}]}
    [device] = read_snapshot(_written(tmp_path, found))
    assert device.allocated == 2 * GIB


def test_a_pickle_that_would_run_something_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/run",)

    assert main(["report", str(_written(tmp_path, {"segments": [Evil()]}))]) == 3
    assert "is not a pickle of plain values: it refers to posix.system" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "found", [[], {}, {"segments": 1}, {"segments": [1]}, {"segments": [{"address": "x"}]}]
)
def test_what_is_no_snapshot_is_said_to_be_none(tmp_path: Path, found: object) -> None:
    with pytest.raises(TraceError, match=r"not an allocator snapshot|damaged"):
        read_snapshot(_written(tmp_path, found))


def test_a_snapshot_that_was_cut_off(tmp_path: Path) -> None:
    path = _written(tmp_path, _snapshot(_block(0, GIB)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match="not a pickle of plain values"):
        read_snapshot(path)


def test_the_command_reads_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _written(tmp_path, _snapshot(_block(0, GIB, frames=_frames(81, "forward"))))
    assert main(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "What holds the memory" in out
    assert "train.py:81" in out


def test_the_screens_name_the_command_that_reads_a_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["open", str(_written(tmp_path, _snapshot(_block(0, GIB))))]) == 2
    assert "tuiprof report" in capsys.readouterr().err
