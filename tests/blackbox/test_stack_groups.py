"""Threads are grouped by where they are, and said in one sentence."""

from __future__ import annotations

from tuiprof.blackbox.stacks import Process, group, location, stacks_report
from tuiprof.report import Style, render
from tuiprof.session.log import Thread

_TORCH = "/env/lib/python3.11/site-packages/torch"
_REDUCE = [
    (f"{_TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"),
    (f"{_TORCH}/distributed/c10d_logger.py", 83, "_exception_logger.<locals>.wrapper"),
    ("/home/u/train.py", 81, "train"),
    ("/home/u/train.py", 120, "<module>"),
]
_LOADER = [
    ("/usr/lib/python3.11/multiprocessing/queues.py", 103, "get"),
    (f"{_TORCH}/utils/data/dataloader.py", 1163, "_MultiProcessingDataLoaderIter._try_get_data"),
    (f"{_TORCH}/utils/data/dataloader.py", 630, "_BaseDataLoaderIter.__next__"),
    ("/home/u/train.py", 77, "train"),
    ("/home/u/train.py", 120, "<module>"),
]
_HELPER = [
    ("/usr/lib/python3.11/threading.py", 320, "wait"),
    ("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"),
]


def _processes() -> list[Process]:
    return [
        Process(
            f"rank {rank}",
            [
                Thread(_LOADER if rank == 3 else _REDUCE, 100 + rank, "MainThread", main=True),
                Thread(_HELPER, 200 + rank, f"Thread-{rank}"),
            ],
            rank,
        )
        for rank in range(4)
    ]


def test_a_place_is_the_innermost_line_of_the_user_and_what_it_called() -> None:
    assert location(_REDUCE) == ("all_reduce", "…/home/u/train.py:81", "train")
    assert location(_LOADER) == ("loader next", "…/home/u/train.py:77", "train")
    assert location(_HELPER) == ("", "…/lib/python3.11/threading.py:320", "wait")
    assert location([]) == ("", "no Python frame", "")


def test_ranks_that_are_alike_are_one_group() -> None:
    groups = group(_processes())
    assert [(one.who, one.sentence, one.count) for one in groups] == [
        ("ranks 0–2", "all_reduce from …/home/u/train.py:81", 3),
        ("rank 3", "loader next from …/home/u/train.py:77", 1),
        ("4 × Thread of ranks 0–3", "wait at …/lib/python3.11/threading.py:320", 4),
    ]
    assert not groups[0].differ


def test_two_lines_of_one_function_are_two_places() -> None:
    other = [_REDUCE[0], _REDUCE[1], ("/home/u/train.py", 90, "train"), _REDUCE[3]]
    processes = [
        Process("rank 0", [Thread(_REDUCE, main=True)], 0),
        Process("rank 1", [Thread(other, main=True)], 1),
    ]
    assert len(group(processes)) == 2


def test_the_report_prints_every_stack_whole_and_nothing_that_a_terminal_obeys() -> None:
    evil = [("/home/u/\x1b[2Jx.py", 1, "f\x07")]
    processes = [*_processes(), Process("rank 4", [Thread(evil, main=True)], 4)]
    text = render(stacks_report(processes, title="Stacks", cause="no step for 31 s"), style=Style(width=120))
    assert (
        "no step for 31 s: ranks 0–2 in all_reduce from …/home/u/train.py:81; rank 3 in loader next"
        in " ".join(text.split())
    )
    assert text.count("torch/utils/data/dataloader.py:630") == 1
    assert "Stack 4:" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_nobody_answered() -> None:
    report = stacks_report([], title="Stacks", missing=["rank0 (process 1) did not answer: no ptrace"])
    assert report.verdict.sentence == "no process answered"
    assert "did not answer" in report.notes[0]
