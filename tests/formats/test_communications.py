"""Process groups of collectives: as PyTorch writes them, however the file is laid out, and from the cache as well."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import real_traces
from tuiprof.analyses.shared.collectives import UNKNOWN, groups_of, rows_of
from tuiprof.formats import cache, open_trace
from tuiprof.formats.kineto.decode import EventWait, find_communications, find_event_waits

_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def said(name: str, ranks: str, description: str = "mesh_dp", size: int = 2) -> dict[str, Any]:
    return {
        "Process Group Name": name,
        "Process Group Description": description,
        "Process Group Ranks": ranks,
        "Group size": size,
    }


def collective(at: int, correlation: int, **args: Any) -> list[dict[str, Any]]:
    """Return a launch inside its operator, and its kernel."""
    place = {"pid": 9, "tid": 9}
    of_kernel = {"correlation": correlation, "device": 0, "stream": 7, **args.get("kernel", {})}
    operator = {"External id": correlation + 100, **args.get("operator", {})}
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            **place,
            "ts": at,
            "dur": 5,
            "args": operator,
        },
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernelExC",
            **place,
            "ts": at + 1,
            "dur": 2,
            "args": {"correlation": correlation},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": _KERNEL,
            "pid": 0,
            "tid": 7,
            "ts": at + 4,
            "dur": 9,
            "args": of_kernel,
        },
    ]


def written(path: Path, events: list[dict[str, Any]], **head: Any) -> Path:
    path.write_text(json.dumps({**head, "traceEvents": events}))
    return path


def test_the_group_is_that_of_the_kernel_else_of_the_operator_around_its_launch(tmp_path: Path) -> None:
    events = [
        *collective(0, 1, kernel=said("1", "[0, 2]")),
        *collective(20, 2, operator=said("4", "[0, 1]", "mesh_tp")),
        *collective(40, 3),
    ]
    trace = open_trace(written(tmp_path / "t.json", events))
    groups, group = groups_of(trace, rows_of(trace))
    found = [groups[index] for index in group.tolist()]
    assert [(one.name, one.ranks) for one in found] == [("1", (0, 2)), ("4", (0, 1)), ("", ())]
    assert found[1].label == "tensor-parallel group (ranks 0, 1)"
    assert found[2] is UNKNOWN


def test_ranks_of_a_long_list_are_those_in_the_head_of_the_trace(tmp_path: Path) -> None:
    cut = said("7", f"[{', '.join(map(str, range(0, 58, 2)))}, ..., 1998]", size=1000)
    whole = list(range(0, 2000, 2))
    head = {"distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "7", "ranks": whole}, "odd", None]}}
    trace = open_trace(written(tmp_path / "t.json", collective(0, 1, kernel=cut), **head))
    groups, group = groups_of(trace, rows_of(trace))
    assert groups[int(group[0])].ranks == tuple(whole)
    assert groups[int(group[0])].label == "data-parallel group (ranks 0, 2, 4, … 1998)"
    without = open_trace(written(tmp_path / "u.json", collective(0, 1, kernel=cut)))
    groups, group = groups_of(without, rows_of(without))
    assert (groups[int(group[0])].ranks, groups[int(group[0])].label) == ((), "data-parallel group")
    assert groups[int(group[0])].key not in (0, groups_of(trace, rows_of(trace))[0][1].key)


@pytest.mark.parametrize(
    ("description", "label"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor-parallel group"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data-parallel group"),
        ("mesh_dp_shard", "data-parallel group"),
        ("undefined", "group 3"),
        ("my ring", "group my ring"),
        ("default_pg", ""),
    ],
)
def test_a_group_is_called_what_it_is_for(tmp_path: Path, description: str, label: str) -> None:
    events = collective(0, 1, kernel=said("3", "", description))
    trace = open_trace(written(tmp_path / "t.json", events))
    groups, group = groups_of(trace, rows_of(trace))
    assert groups[int(group[0])].label == label


def test_arguments_that_are_something_else_are_left_alone() -> None:
    for text in (
        b'{"args": {"Process Group Name": ["no", "name"], "correlation": 1}}',
        b'{"name": "\\"Process Group Name\\""}',
        b'"Process Group Name"',
        b'{"args": {"Process Group Name": "1", "correlation": {"nested": 1}}}',
    ):
        assert find_communications(text, len(text)) == []
    (found,) = find_communications(b'{"args":{"correlation":-5,"Process Group Name":7}}', 60)
    assert (found.correlation, found.group) == (None, "7")


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ({"In msg nelems": 100, "Out msg nelems": 800, "dtype": "BFloat16"}, 1600),  # an all-gather
        ({"In msg nelems": 100, "Out msg nelems": 100, "dtype": "Float"}, 400),
        ({"In msg nelems": 100, "Out msg nelems": 100, "dtype": "Unheard"}, None),
        ({"In msg nelems": "many", "dtype": "Float"}, None),
        ({"In msg nelems": 1 << 62, "dtype": "Double"}, None),
        ({}, None),
    ],
)
def test_the_size_of_a_message_is_that_of_its_larger_side(args: dict[str, Any], size: int | None) -> None:
    text = json.dumps({"args": {"correlation": 1, **said("1", "[0, 1]"), **args}}).encode()
    (found,) = find_communications(text, len(text))
    assert found.bytes == size


def test_waits_for_events_name_the_call_that_recorded_each() -> None:
    waits = open_trace(real_traces.path("hta-alexnet-a100-cuda-sync.json.gz")).event_waits
    assert waits is not None
    assert waits.rows()[:3] == [(5170, 5169, 7, 20), (5183, 5180, 7, 20), (5194, 5193, 20, 7)]
    assert len(waits) == 20
    on_host = open_trace(real_traces.path("hta-event-sync-a100.json.gz")).event_waits
    assert on_host is not None
    assert on_host.rows() == [(1536, 1533, 7, None), (1537, 1533, 7, None)]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, [EventWait(5, 4, 7, 20)]),
        ({"stream": 0xFFFFFFFF}, [EventWait(5, 4, 7, None)]),
        ({"wait_on_cuda_event_record_corr_id": 0}, []),  # since CUDA 12.9 it is unknown
        ({"wait_on_stream": -1}, []),
        ({"correlation": "5"}, []),
    ],
)
def test_a_wait_for_an_unknown_event_is_left_out(change: dict[str, Any], found: list[EventWait]) -> None:
    args = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 4, "stream": 20, "correlation": 5}
    text = json.dumps({"name": "Stream Wait Event", "args": args | change}).encode()
    assert find_event_waits(text, len(text)) == found


def test_a_real_trace_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1000)
    path = real_traces.path("hta-a100-nccl-metadata.json.gz")
    first = open_trace(path)
    for thread in threading.enumerate():
        if thread.name == "tuiprof-cache":
            thread.join()
    second = open_trace(path)
    assert first.communications is not None
    assert second.communications is not None
    assert len(first.communications) == 42  # 21 operators that name their group, and 21 kernels
    assert first.communications.equals(second.communications)
    for trace in (first, second):
        groups, group = groups_of(trace, rows_of(trace))
        assert [groups[index].ranks for index in np.unique(group).tolist()] == [(0, 1)]
