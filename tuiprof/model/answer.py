"""What a trace says on one page: what to change first, what that saves, one line an analysis, and a picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tuiprof.model.report import Level


@dataclass(frozen=True, slots=True)
class Change:
    """One finding: what to change, and what that saves.

    Attributes:
        rule: Name of the advice rule.
        what: What was seen; may quote names of the trace, as ``where`` and ``because`` may.
        where: The location, the user's line first; empty = the whole step.
        fix: What to write instead.
        because: What the finding rests on.
        sure: ``high``, ``medium`` or ``low``.
        saves_ns: What a step without the profiler takes less, likely; None = unknown.
        saves_low_ns: At least.
        saves_high_ns: At most.
        share: ``saves_ns`` as a share of the step without the profiler.
        overlaps: It saves clearly less once the findings before it are done.
        prove: A command that shows it before and after; empty = there is no published pair.
    """

    rule: str
    what: str
    where: str
    fix: str
    because: str
    sure: str
    saves_ns: float | None = None
    saves_low_ns: float | None = None
    saves_high_ns: float | None = None
    share: float | None = None
    overlaps: bool = False
    prove: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """The answer of one analysis.

    Attributes:
        analysis: Its name.
        title: Its title.
        level: How good or bad that is.
        sentence: The answer; may quote names of the trace.
    """

    analysis: str
    title: str
    level: Level
    sentence: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A trace on one page.

    Attributes:
        title: Which trace or session.
        device: Product name of the device; empty = none in the trace.
        steps: Number of steps; 0 = it marks none, and figures are of the whole stretch.
        step_ns: A step without the profiler; None = unknown.
        captured_step_ns: The same step while captured.
        device_work_ns: The busiest device's work in a step, without any gap: no change on the host goes below it.
        together_ns: What all changes save together.
        trust: The trust line.
        complete: Nothing is missing from the trace.
        changes: What saves most first.
        lines: One an analysis that can answer, in tab order.
        notes: What to know before believing the figures.
        run: How the recorded run went; None = a trace by itself.
        refused: Why nothing is advised because of this trace; empty = it is evidence.
    """

    title: str
    device: str
    steps: int
    step_ns: float | None
    captured_step_ns: float | None
    device_work_ns: float | None
    together_ns: float | None
    trust: str
    complete: bool
    changes: tuple[Change, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    run: Line | None = None
    refused: str = ""


Kind = Literal["steps", "ranges", "busy", "calls", "waits", "idle"]


@dataclass(frozen=True, slots=True)
class Range:
    """A named stretch.

    Attributes:
        start: Where it begins, as a share of the picture.
        end: Where it ends.
        label: Its name; untrusted.
        dur_ns: How long it takes.
    """

    start: float
    end: float
    label: str
    dur_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of a picture.

    Attributes:
        label: What it is of.
        kind: ``steps`` and ``ranges`` have names; of the others ``shares`` says how much of each column is ``busy``,
            spent in launch ``calls``, in ``waits`` of the host for the device, or ``idle``.
        ranges: The named stretches, in order; they do not overlap.
        shares: How much of each column, 0 to 1; all lanes have as many columns.
    """

    label: str
    kind: Kind
    ranges: tuple[Range, ...] = ()
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A stretch of a trace.

    Attributes:
        title: Which stretch.
        dur_ns: How long it is.
        lanes: From the top down.
    """

    title: str
    dur_ns: int
    lanes: tuple[Lane, ...]
