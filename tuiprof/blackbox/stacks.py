"""Stacks of many threads, grouped by likeness: who is where, and who is somewhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tuiprof.analyses.shared.frames import is_framework, shorten
from tuiprof.model import Column, Report, Rule, Table, Verdict
from tuiprof.model.report import listed
from tuiprof.session.live.fold import Fold, StacksState
from tuiprof.session.live.summary import spans
from tuiprof.session.log import Thread

Frame = tuple[str, int, str]

RULE: Final = (
    "threads are grouped if they have the same innermost line outside the framework and the interpreter, and the same "
    "call from it"
)
#: Stacks printed whole; the others are in the table.
_MAX_STACKS: Final = 12
#: Frames of a printed stack; the outermost beyond it are left out.
_MAX_FRAMES: Final = 30
#: Functions between a line and what it calls, which say nothing.
_WRAPPERS: Final = re.compile(
    r"(^|\.)(wrapper|wrapped|inner|decorate_context|decorate_autocast|_fn|fn|__call__|_call_impl|_wrapped_call_impl"
    r"|<lambda>|profile_hook_step|_use_grad|new_func|func)$"
)
_NUMBERED: Final = re.compile(r"[-_ ]?\d+")
_INTERPRETER: Final = re.compile(r"(^<)|/lib/python\d[\d.]*/(?!(site|dist)-packages/)")


@dataclass(frozen=True, slots=True)
class Process:
    """The threads of one process."""

    name: str  # ``rank 3``, ``process 4711``
    threads: Sequence[Thread]
    rank: int | None = None  # its rank; None = none


@dataclass(frozen=True, slots=True)
class Group:
    """Threads that are at the same line."""

    main: bool  # they are main threads
    who: str  # whose they are: ``ranks 0–2``, and the threads' names where they are not the main ones
    call: str  # what was called from the line: ``all_reduce``, ``loader next``; empty = nothing
    line: str  # the innermost line of the user's, ``file:line``; where there is none the innermost of all
    function: str  # the function that the line is in
    frames: tuple[Frame, ...]  # one of the stacks, innermost first
    count: int  # how many threads
    differ: bool  # the stacks differ elsewhere

    @property
    def sentence(self) -> str:
        """Where they are: ``all_reduce from train.py:81``."""
        return f"{self.call} from {self.line}" if self.call else f"{self.function} at {self.line}"


def processes_of(fold: Fold, found: StacksState) -> list[Process]:
    """Return the processes that answered a request."""
    out = []
    for name, record in found.by_writer.items():
        state = fold.writers.get(name)
        rank = state.rank if state is not None else None
        alone = name == f"rank{rank}"
        out.append(Process(f"rank {rank}" if alone else name, record.threads, rank if alone else None))
    return sorted(out, key=lambda process: (process.rank is None, process.rank or 0, process.name))


def location(frames: Sequence[Frame]) -> tuple[str, str, str]:
    """Return what was called from the innermost line of the user's in a stack, that line, and its function."""
    if not frames:
        return "", "no Python frame", ""
    index = next((i for i, frame in enumerate(frames) if _is_user(frame[0])), None)
    if index is None:
        file, line, function = frames[0]
        return "", f"{shorten(file)}:{line}", function
    file, line, function = frames[index]
    return _call(frames[:index]), f"{shorten(file)}:{line}", function


def _is_user(file: str) -> bool:
    return not _INTERPRETER.search(file) and not is_framework(file)


def _call(frames: Sequence[Frame]) -> str:
    """Return what was called: the outermost of these frames that says something."""
    for file, _, function in reversed(frames):
        if file.endswith("torch/utils/data/dataloader.py"):
            return "loader next"
        if not _WRAPPERS.search(function):
            return (
                function.rpartition(".")[2]
                if function.startswith("_") or "<locals>" in function
                else function
            )
    return frames[0][2] if frames else ""


def group(processes: Sequence[Process]) -> list[Group]:
    """Group threads of processes by where they are: main threads, then the others; the largest group first."""
    found: dict[tuple[bool, str, str, str, str], list[tuple[Process, Thread]]] = {}
    for process in processes:
        for thread in process.threads:
            kind = "" if thread.main else _NUMBERED.sub("", thread.name).strip()
            found.setdefault((thread.main, kind, *location(thread.frames)), []).append((process, thread))
    groups = []
    for (main, kind, call, line, function), members in found.items():
        stacks = {tuple(thread.frames) for _, thread in members}
        who = _who([process for process, _ in members])
        if not main:
            names = (
                f"{len(members)} × {kind or 'thread'}"
                if len(members) > 1
                else members[0][1].name or "a thread"
            )
            who = f"{names} of {who}"
        frames = tuple(members[0][1].frames)
        groups.append(Group(main, who, call, line, function, frames, len(members), len(stacks) > 1))
    return sorted(groups, key=lambda one: (not one.main, -one.count))


def _who(processes: Sequence[Process]) -> str:
    """Return ``ranks 0–2, 5`` for these processes, each once."""
    ranks = {process.rank for process in processes if process.rank is not None}
    names = list(dict.fromkeys(process.name for process in processes if process.rank is None))
    if ranks:
        words = ", ".join(
            str(a) if a == b else f"{a}{'–' if b > a + 1 else ', '}{b}" for a, b in spans(ranks)
        )
        names.insert(0, f"rank{'s' if len(ranks) > 1 else ''} {words}")
    return ", ".join(names)


def stacks_report(
    processes: Sequence[Process],
    *,
    title: str,
    cause: str = "",
    missing: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Return where threads are."""
    groups = group(processes)
    mains = [one for one in groups if one.main] or groups[:1]
    said = "; ".join(f"{one.who} in {one.sentence}" for one in mains[:6])
    if len(mains) > 6:
        said += f"; {len(mains) - 6} other locations"
    if cause:
        said = f"{cause}: {said}" if said else cause
    tables = [_overview(groups)] if groups else []
    tables += [_stack(index, one) for index, one in enumerate(groups[:_MAX_STACKS], 1)]
    return Report(
        analysis="stacks",
        title=title,
        verdict=Verdict(
            said or "no process answered", "warn" if cause or len(mains) > 1 or not said else "info"
        ),
        tables=tuple(tables),
        rules=(Rule("alike", RULE),),
        notes=(*notes, *missing),
    )


def _overview(groups: Sequence[Group]) -> Table:
    rows = (
        (index, one.who, one.call or "—", one.line, one.function, one.count)
        for index, one in enumerate(groups, 1)
    )
    columns = (
        Column("group", "stack", "count"),
        Column("who", "threads of"),
        Column("call", "in"),
        Column("line", "from", elide="start"),
        Column("function", "function"),
        Column("threads", "threads", "count", hidden=True),
    )
    return Table("groups", "Where threads are", columns, listed(columns, rows))


def _stack(index: int, one: Group) -> Table:
    shown = one.frames[:_MAX_FRAMES]
    rows = [(f"{shorten(file)}:{line}", function) for file, line, function in shown]
    columns = (Column("line", "line", elide="start"), Column("function", "function"))
    notes = []
    if one.differ:
        notes.append("of one of them; the stacks of the others differ in other frames")
    if len(one.frames) > len(shown):
        notes.append(f"{len(one.frames) - len(shown)} outer frames left out")
    title, frame = f"Stack {index}: {one.who}", listed(columns, rows)
    return Table(f"stack_{index}", title, columns, frame, "; ".join(notes), "no Python frame", whole=True)
