"""Traces that belong together: the ranks of one job, the runs of one folder. Nothing is read until it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tuiprof.errors import UsageProblem

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace

#: Names that a sentence lists at most.
_NAMED = 8
#: What the rank of a file was taken from: its name, what the profiler wrote into it, its position in the list.
RankSource = Literal["name", "content", "order"]


@dataclass(frozen=True, slots=True)
class RankFile:
    """One trace of a set."""

    rank: int  # its rank
    path: Path  # the file (or directory, for formats that write one)
    rank_from: RankSource = "order"  # what the rank was taken from
    size_bytes: int = 0  # its size on disk; 0 = not known
    modified: float = 0.0  # Unix time of its last change, s; 0 = not known


@dataclass(frozen=True, slots=True)
class TraceSet:
    """The ranks of one run."""

    run: str  # name of the run; empty = the only one, which has no name
    files: tuple[RankFile, ...]  # one per rank, in order of rank
    opener: Callable[[Path], Trace] = field(repr=False)  # reads a file
    runs: tuple[str, ...] = ()  # names of all runs in the same folder, this one included, the newest last
    notes: tuple[str, ...] = ()  # remarks on the choice, for example files that were left out
    #: What analyses read of a rank beside another: it is read once for all traces that share this set.
    kept: dict[RankFile, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self.files)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks there are, ascending."""
        return tuple(file.rank for file in self.files)

    def file(self, rank: int | None = None) -> RankFile:
        """Return the file of a rank (None = the lowest); raises UsageProblem if there is no such rank."""
        if rank is None:
            return self.files[0]
        for file in self.files:
            if file.rank == rank:
                return file
        raise UsageProblem(f"there is no rank {rank}", f"there {_are(self.ranks)}")

    def open(self, rank: int | None = None) -> Trace:
        """Read the trace of a rank; None = the lowest there is. It knows the others, for what compares ranks.

        Raises:
            UsageProblem: There is no such rank.
            TraceError: Its file cannot be read.
        """
        trace = self.opener(self.file(rank).path)
        if len(self.files) > 1:
            trace.siblings = self
        return trace

    def line(self, rank: int | None = None) -> str:
        """Return one line that says which rank is shown and what else there is; empty where there is nothing else."""
        parts = []
        if len(self.runs) > 1:
            others = [run for run in self.runs if run != self.run]
            parts.append(f"run {self.run}; others with --run: {_some(others)}")
        if len(self.files) > 1:
            shown = self.file(rank)
            others = [str(number) for number in self.ranks if number != shown.rank]
            how = {
                "name": "from its file name",
                "content": "as the file says",
                "order": "in the order of the file names",
            }[shown.rank_from]
            parts.append(
                f"rank {shown.rank} of {len(self.files)} ({how}); others with --rank: {_some(others)}"
            )
        return " · ".join((*parts, *self.notes))


def _are(ranks: tuple[int, ...]) -> str:
    return f"is rank {ranks[0]}" if len(ranks) == 1 else f"are ranks {_some([str(rank) for rank in ranks])}"


def _some(names: list[str]) -> str:
    """Return names for a sentence, those in the middle left out where there are many."""
    if len(names) > _NAMED:
        return f"{', '.join(names[: _NAMED - 2])} … {names[-1]}"
    return ", ".join(names)
