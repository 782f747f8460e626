"""Which rank never entered which collective, from dumps of PyTorch's Flight Recorder."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tuiprof.blackbox.dumps import OFF, collectives, of_session, read_dump
from tuiprof.errors import TraceError


def _entry(
    number: int, name: str = "nccl:all_reduce", group: str = "default_pg", **more: Any
) -> dict[str, Any]:
    return {
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "is_p2p": False,
        "pg_id": 0,
        "process_group": ["0", group],
        "profiling_name": name,
        "input_sizes": [[4]],
        "state": "scheduled",
        "retired": False,
        **more,
    }


def _dump(*entries: dict[str, Any], ranks: str = "[0, 1, 2]", group: str = "default_pg") -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": group, "ranks": ranks}},
        "pg_status": {},
        "entries": list(entries),
    }


def _said(folder: Path, dumps: list[dict[str, Any]], *, pickled: bool = False) -> list[str]:
    found = []
    for rank, dump in enumerate(dumps):
        path = folder / f"{rank}"
        path.write_bytes(pickle.dumps(dump, protocol=2) if pickled else json.dumps(dump).encode())
        found.append(read_dump(path, rank))
    return collectives(found)


@pytest.mark.parametrize("pickled", [False, True])
def test_the_rank_that_is_behind_is_named_with_the_collective_it_missed(
    tmp_path: Path, pickled: bool
) -> None:
    frames = [
        {"filename": "/env/site-packages/torch/distributed/c10d.py", "line": 1, "name": "all_reduce"},
        {"filename": "/home/u/train.py", "line": 81, "name": "train"},
    ]
    ahead = _dump(_entry(41, retired=True), _entry(42, frames=frames))
    behind = _dump(_entry(41, retired=True))
    assert _said(tmp_path, [ahead, behind, ahead], pickled=pickled) == [
        "rank 1 never entered all_reduce 42 of default_pg, called at /home/u/train.py:81; ranks 0, 2 did"
    ]


def test_a_member_that_has_entered_nothing_is_behind_and_a_stranger_is_not(tmp_path: Path) -> None:
    inside = _dump(_entry(1, group="tp"), ranks="[0, 1]", group="tp")
    nothing = _dump(ranks="[0, 1]", group="tp")
    stranger = _dump(_entry(3), ranks="[2]")
    assert "rank 1 never entered all_reduce 1 of tp; rank 0 did" in _said(
        tmp_path, [inside, nothing, stranger]
    )


def test_different_collectives_under_one_number_are_a_mismatch(tmp_path: Path) -> None:
    dumps = [_dump(_entry(7)), _dump(_entry(7, name="nccl:broadcast"))]
    [said] = _said(tmp_path, dumps)
    assert said.startswith("collective 7 of default_pg is not the same on all ranks: rank 0 all_reduce")


def test_all_equally_far(tmp_path: Path) -> None:
    assert _said(tmp_path, [_dump(_entry(7)), _dump(_entry(7))]) == [
        "every rank has entered all_reduce 7 of default_pg, so none waits for another to arrive"
    ]
    done = _dump(_entry(7, state="completed"))
    assert _said(tmp_path, [done, done]) == ["every rank has completed all_reduce 7 of default_pg"]


def test_sends_between_pairs_are_left_out(tmp_path: Path) -> None:
    assert _said(tmp_path, [_dump(_entry(9, is_p2p=True)), _dump()]) == [OFF]


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/run",)

    path = tmp_path / "evil"
    path.write_bytes(pickle.dumps({"version": Evil()}))
    with pytest.raises(TraceError, match="not a dump of the Flight Recorder"):
        read_dump(path, 0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"{}", b'{"version":1,"entries":[1]}', b'{"version":1,"entries":[{}]}', b"\x80\x04."],
)
def test_what_is_no_dump_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    [said] = of_session(tmp_path, {0: "f"})
    assert "is not a dump of the Flight Recorder" in said
