"""What the ladder screen shows, read from what a ladder keeps; called in threads, draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuiprof.errors import UsageProblem

if TYPE_CHECKING:
    from tuiprof.ladder.state import LadderMeta, LadderRun, Trial
    from tuiprof.model import Report
    from tuiprof.tui.start import Start


@dataclass(frozen=True, slots=True)
class RungRow:
    """One rung.

    Attributes:
        name: Its variant.
        against: The variant it builds on, else its baseline; empty = it is the first.
        word: The verdict.
        published: The publication's figures.
        step_ns: Step time; None = not measured.
        step_interval: Its interval in words.
        change: Step time against the baseline's in words.
        change_interval: The interval of that.
        ratio: Step time over the baseline's, and the ends of its interval; None = not told.
        syncs: Syncs a step; None = cannot be told.
        launches: Launches a step; None = cannot be told.
        note: What the variant changes.
        why: Why it is wrong, failed, unavailable or undecided.
        remedy: What to do about that.
        changes: What changed in its captured steps; empty = not known yet, or nothing.
        kernel: What was measured of a single kernel, beside the chip's limits, in words; empty = it is none.
        parts: Times of named parts of the step in words; empty = its script tells none.
        trace: Its trace; None = there is none.
    """

    name: str
    against: str
    word: str
    published: str = ""
    step_ns: float | None = None
    step_interval: str = ""
    change: str = ""
    change_interval: str = ""
    ratio: tuple[float, float, float] | None = None
    syncs: float | None = None
    launches: float | None = None
    note: str = ""
    why: str = ""
    remedy: str = ""
    changes: str = ""
    kernel: str = ""
    parts: str = ""
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class LadderView:
    """A ladder as it stands.

    Attributes:
        meta: What is kept of it; of one that was not begun, the plan.
        folder: Its folder; None = it was not begun.
        rows: The rungs.
        verdict: One sentence.
        level: Its level.
        done: Trials that are over.
        total: Trials in all.
        left_s: Time left; None = not known.
        running: A process runs it now.
        problem: What the process that ran it said last, where it ended before its time.
        report: The whole report, for an export; None = not worked out.
    """

    meta: LadderMeta
    folder: Path | None
    rows: tuple[RungRow, ...]
    verdict: str = ""
    level: str = "info"
    done: int = 0
    total: int = 0
    left_s: float | None = None
    running: bool = False
    problem: str = ""
    report: Report | None = None

    @property
    def trial(self) -> Trial | None:
        """The trial that runs now; None = none does."""
        trials = self.meta.trials
        return trials[-1] if self.running and trials and trials[-1].state == "running" else None

    def row(self, name: str) -> RungRow | None:
        """Return a rung; None = there is none of that name.

        Args:
            name: Its variant.
        """
        return next((row for row in self.rows if row.name == name), None)


class LadderShelf:
    """Finds the ladders of one name.

    Args:
        name: The ladder's name.
        start: What the dashboard was started with: folders and interpreter.
    """

    def __init__(self, name: str, start: Start) -> None:
        self._name = name
        self._start = start

    @property
    def root(self) -> Path:
        """Folder of the sessions."""
        from tuiprof.session.store.folders import sessions_root

        return sessions_root(self._start.sessions)

    def folders(self) -> list[Path]:
        """Return the ladders of this name that were begun, the newest first."""
        from tuiprof.ladder.state import LadderRun, list_ladders

        return [
            one.path
            for one in list_ladders(self.root)
            if isinstance(one, LadderRun) and one.meta.ladder == self._name
        ]

    def presets(self) -> list[str]:
        """Return the names of the ladder's presets, the one that suits the machine (``fit``) first.

        Raises:
            TuiprofError: There is no such ladder.
        """
        from tuiprof.ladder.scenarios import find_ladder

        found = find_ladder(self._name, self._start.scenarios)
        return ["fit", *(name for name in found.presets if name != "fit")]

    def planned(self, *, rounds: int = 5, preset: str = "fit", steps: int | None = None) -> LadderMeta:
        """Plan the ladder; asks the interpreter, which takes a second or two.

        Args:
            rounds: Timing trials a variant.
            preset: Preset.
            steps: Steps a trial; None = the preset's.

        Raises:
            TuiprofError: There is no such ladder or preset, or the interpreter does not answer.
        """
        from tuiprof.cli.examination import find_hardware
        from tuiprof.ladder.runner import plan
        from tuiprof.ladder.scenarios import find_ladder
        from tuiprof.session.run.interpreter import facts

        found = find_ladder(self._name, self._start.scenarios)
        known = facts(self._start.python)
        return plan(found, known, find_hardware().all, rounds=rounds, preset=preset, steps=steps)

    def begin(self, meta: LadderMeta) -> LadderRun:
        """Make the folder of a planned ladder.

        Args:
            meta: The plan.

        Raises:
            TuiprofError: Nothing of it can run here, or the folder cannot be made.
        """
        from tuiprof.ladder.runner import pending
        from tuiprof.ladder.state import create

        if not pending(meta):
            raise UsageProblem(
                "no variant of this ladder can run here", "the list says of each why, and what to do"
            )
        return create(self.root, meta)


def view_of(meta: LadderMeta, folder: Path | None, *, report: Report | None = None) -> LadderView:
    """Return how a ladder stands, without what its traces tell unless a report is given.

    Args:
        meta: What is kept of it, or the plan.
        folder: Its folder; None = it was not begun.
        report: What :func:`tuiprof.ladder.report.report` says of it; None = not worked out.
    """
    from tuiprof.ladder.process import last_words, runner_of
    from tuiprof.ladder.runner import left_s, pending, schedule
    from tuiprof.ladder.statistics import judge

    waiting, total = len(pending(meta)), len(schedule(meta))
    running = folder is not None and runner_of(folder) is not None
    stopped = folder is not None and waiting and not running
    rows = tuple(_row(meta, one) for one in judge(meta))
    view = LadderView(
        meta,
        folder,
        rows,
        done=total - waiting,
        total=total,
        left_s=left_s(meta) if waiting else 0.0,
        running=running,
        problem=last_words(folder) if folder is not None and stopped else "",
    )
    return with_report(view, report) if report is not None else view


def _row(meta: LadderMeta, one: Any) -> RungRow:
    from tuiprof.ladder.report import between, change
    from tuiprof.model.units import format_ns_range

    rung, step, ratio = meta.rung(one.name), one.step_ns, one.ratio
    against = rung.builds_on or (rung.baseline if rung.baseline != one.name else "")
    wide = step is not None and step.low != step.high
    return RungRow(
        one.name,
        against,
        "" if one.word == "undecided" and step is None else one.word,
        "; ".join(rung.published),
        step.value if step is not None else None,
        format_ns_range(step.low, step.high) if wide else "",
        change(ratio.value) if ratio is not None else "",
        between(ratio),
        (ratio.value, ratio.low, ratio.high) if ratio is not None else None,
        note=rung.note,
        why=one.why,
        remedy=one.remedy,
    )


def with_report(view: LadderView, report: Report) -> LadderView:
    """Add what the traces tell.

    Args:
        view: The ladder without it.
        report: What :func:`tuiprof.ladder.report.report` says.
    """
    from tuiprof.ladder.kernels import kernel_words, range_words

    tables = {table.key: table.rows.to_dicts() for table in report.tables}
    told: Mapping[str, dict[str, Any]] = {row["variant"]: row for row in tables.get("rungs", ())}
    changes = {row["variant"]: row["changes"] for row in tables.get("why", ())}
    kernels = {row["variant"]: kernel_words(row) for row in tables.get("kernels", ())}
    parts = {row["variant"]: range_words(row) for row in tables.get("ranges", ())}
    rows = []
    for row in view.rows:
        found = told.get(row.name, {})
        trace = found.get("trace")
        rows.append(
            replace(
                row,
                syncs=found.get("syncs_per_step"),
                launches=found.get("launches_per_step"),
                changes=changes.get(row.name, ""),
                kernel=kernels.get(row.name, ""),
                parts=parts.get(row.name, ""),
                trace=Path(trace) if trace else None,
            )
        )
    return replace(
        view, rows=tuple(rows), verdict=report.verdict.sentence, level=report.verdict.level, report=report
    )
