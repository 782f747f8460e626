"""What a rule is, what it finds, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import numpy as np
import polars as pl

from tuiprof.analyses.shared import ancestry as _ancestry
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared.calls import Calls, calls
from tuiprof.analyses.shared.replay import replayed
from tuiprof.analyses.shared.scope import Scope
from tuiprof.analyses.shared.waits import outermost
from tuiprof.analyses.syncs import WAIT_LOCATIONS, WaitLocation
from tuiprof.analyses.syncs import wait_table as _wait_table
from tuiprof.model import Report, RowsOf, Trace, Unavailable, Window
from tuiprof.model.derived import cached_on_trace
from tuiprof.model.intervals import Ints
from tuiprof.model.steps import SampledLine
from tuiprof.model.units import format_count
from tuiprof.whatif.calibration import Calibrated
from tuiprof.whatif.edit import Edit, HostTime

#: What makes waits those of one location.
_LOCATION = ("where", "in", "through", "range", "kind")
#: A line of the script is where something happens that takes a part of the step if the line has this many times that
#: part of the samples, at least and at most. What is less of the step than this may be anywhere.
LINE_SHARE: Final = (0.35, 2.0)
LEAST_NAMED: Final = 0.1
#: A line that fewer of the samples were taken at may be there by chance.
LEAST_SEEN: Final = 0.03
Sure = Literal["high", "medium", "low"]
RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change.

    Attributes:
        what: What was seen, one sentence.
        where: A line, a function, a range or an operator; empty = the whole run.
        instead: What to write or set instead.
        sure: How sure it is that this is what happens.
        because: What that rests on.
        edit: The likely change to the step; None = a mode or a setting that distorts every figure, to change first.
        least: The change where it helps least; None = as likely.
        most: The change where it helps most; None = as likely.
        rare_ns: What goes besides in rare steps that need not be captured, in the mean of all steps, ns: likely, at
            least and at most.
        remainder: It helps with whatever the other findings leave, so it is priced on top of them.
        proof: ``ladder:variants`` of the scenario that shows it before and after; empty = none yet.
        event: Row of the typical event; None = none.
        environment: Variables that make the change, or the nearest to it, without an edit of the script.
        switch: What the probe can switch in a trial to make it: ``"loader_workers=4"`` (see
            :mod:`tuiprof.probe.frameworks.trial_hooks`); empty = nothing.
    """

    what: str
    where: str
    instead: str
    sure: Sure
    because: str
    edit: Edit | None
    least: Edit | None = None
    most: Edit | None = None
    rare_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    remainder: bool = False
    proof: str = ""
    event: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    switch: str = ""

    def of(self, step: Calibrated | None) -> Finding:
        """Return the same with what the change does to the replayed steps alone, which is all that is priced."""
        if step is None:
            return self
        part = step.graph.part_of
        edit, least, most = (one and part(one) for one in (self.edit, self.least, self.most))
        return replace(self, edit=edit, least=least, most=most)


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """One rule: it finds, and says what the step would do without it. What that wins is the replay's to say.

    Attributes:
        name: Its name, for example ``"nan-check"``.
        find: Looks for it; yields one finding per location.
        needs: Names of the analyses whose reports it reads, ours or a third party's; it can read no others. A rule
            whose needs do not exist or have failed is unavailable, and the reason is given with the advice.
        shown_by: Name of the analysis whose tables show what it finds; empty = the first that it needs, else kernels.
    """

    name: str
    find: Callable[[Trace, Evidence], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    shown_by: str = ""


class Evidence:
    """What a rule may look at."""

    def __init__(self, trace: Trace, reports: Mapping[str, Report | Unavailable]) -> None:
        self.trace = trace
        self.reports = reports

    def report(self, name: str) -> Report | None:
        """Return a report; None where the analysis has no answer for this trace.

        Raises:
            LookupError: The rule does not declare that it needs this analysis.
        """
        try:
            found = self.reports[name]
        except KeyError:
            declared = ", ".join(self.reports) or "nothing"
            raise LookupError(
                f"it reads the report of {name!r}, which its `needs` lack (it needs {declared})"
            ) from None
        return found if isinstance(found, Report) else None

    def figure(self, name: str, key: str) -> float | None:
        """Return a figure of a report by its key; None where it is unknown.

        Raises:
            LookupError: The rule does not declare the analysis, or its report has no such figure.
        """
        report = self.report(name)
        value = report.fact(key) if report is not None else None
        return float(value) if isinstance(value, (int, float)) else None

    def rows(self, table: RowsOf[RowT], *, optional: bool = False) -> list[RowT]:
        """Return the rows of a table; none where the analysis has no answer for this trace.

        Args:
            table: Which table, and the type of its rows.
            optional: The report may leave the table out.

        Raises:
            LookupError: The rule does not declare the analysis, its report has no such table, or the table lacks a
                column.
        """
        report = self.report(table.analysis)
        if report is None or (optional and not any(item.key == table.key for item in report.tables)):
            return []
        return list(table.read(report.table(table.key)))

    @property
    def is_jax(self) -> bool:
        """Whether the trace is of JAX, where other words help than in PyTorch."""
        return self.trace.info.framework.startswith("JAX")

    @property
    def step_count(self) -> int:
        """Steps that the trace marks; at least 1, for dividing by."""
        return max(len(self.trace.steps), 1)

    @property
    def stepped(self) -> bool:
        """Whether the trace marks steps."""
        return bool(len(self.trace.steps))

    @cached_property
    def host_part(self) -> float:
        """Which part of captured host time is there without the profiler: what a change costs instead has none."""
        step = replayed(self.trace)
        return 1.0 if isinstance(step, str) else max(step.host_part, 0.05)

    @cached_property
    def calls(self) -> Calls:
        """The framework calls of the trace."""
        return calls(self.trace)

    # -- waits ---------------------------------------------------------------------------------------------

    def waits(self, *kinds: str) -> Iterable[WaitLocation]:
        """Yield the locations where the host waits for one of some reasons in steady state, the most expensive first.

        Args:
            *kinds: Why it waits; none = for whatever reason.
        """
        for row in self.rows(WAIT_LOCATIONS):
            # In most steps, or many times where there are no steps.
            steady = row.count >= 5 if row.per_step is None else row.per_step >= 0.9
            if steady and (not kinds or row.kind in kinds):
                yield row

    def rhythm(self, *rows: WaitLocation) -> str:
        """Return how often rows happen, for a sentence: ``every step``, ``62 times a step`` or ``1 318 times``."""
        known = [row.per_step for row in rows if row.per_step is not None]
        return times(sum(known) if known else None, sum(row.count for row in rows))

    def how_often(self, count: int) -> str:
        """Return how often something that was counted in the whole trace happens, for a sentence."""
        return times(count / self.step_count if self.stepped else None, count)

    def location(self, row: WaitLocation) -> str:
        """Return where a wait is, for a sentence, the user's line first: ``train.py:7 → function, file:line``."""
        return _called_from(row.called_from, f"{row.in_}, {row.where}" if row.at_line else row.where)

    def function_of(self, row: int) -> str:
        """Return the user's function around a host event, or around the launch of device work.

        Of the backward pass, which runs in no function of the user's, it is the one that called the forward pass.

        Returns:
            As in :meth:`location`; empty where no Python frame was recorded.
        """
        trace, calls = self.trace, self.calls
        launch = int(trace.links.launch_of[row])
        host = row if trace.on_host[row] else launch
        if host < 0:
            return ""
        call = int(calls.inside(np.array([host]))[0])
        if call >= 0:
            made_by = int(calls.forward[call])
            host = int(calls.rows[made_by if made_by >= 0 else call])
        frames = _ancestry.of(trace, np.array([host])).frames[0]
        spot = _frames.spot([trace.names[code] for code in frames.tolist() if code >= 0])
        if spot is None:
            return ""
        where, _, caller = spot
        return _called_from(caller, where)

    def _waits_of(self, row: WaitLocation) -> pl.DataFrame:
        return _waits_by_location(self.trace)[row.where, row.in_, row.through, row.range, row.kind]

    def calls_of(self, row: WaitLocation) -> Ints:
        """Return the calls that wait at a location, as rows of the trace."""
        return self._waits_of(row)["event"].to_numpy()

    def without_waiting(self, row: WaitLocation) -> Edit:
        """Return the change in which the calls of a location do not wait, and cost the host nothing."""
        return _wait_table.without(self.trace, self._waits_of(row))

    def without_reading(self, row: WaitLocation) -> Edit:
        """Return the change in which the operators that wait at a location are not called at all."""
        return self.without_operators(self.operators_of(row))

    def operators_of(self, row: WaitLocation) -> Ints:
        """Return the operators that wait at a location: the outermost ``aten::`` one around each call, or the call."""
        trace = self.trace
        rows = self.calls_of(row)
        found, reached = rows.copy(), np.ones(len(rows), dtype=bool)
        for level in trace.nesting.outward(rows):
            at = np.maximum(level, 0)
            reached &= (level >= 0) & trace.named("^aten::", at)
            if not reached.any():
                break
            found = np.where(reached, at, found)
        return np.unique(found)

    # -- samples -------------------------------------------------------------------------------------------

    def line_doing(self, *doing: str, least: float = LEAST_SEEN, most: float = 1.0) -> SampledLine | None:
        """Return the line of the script at which its main thread was sampled most often while it did something.

        Args:
            *doing: What it did there, in the sampler's words; an empty one = something of its own.
            least: The part of all samples that the line has at least.
            most: The part that it has at most.

        Returns:
            None where the session has no samples, or no such line.
        """
        lines = self.trace.uncaptured.lines if self.trace.uncaptured is not None else ()
        return next((line for line in lines if line.doing in doing and least <= line.share <= most), None)

    # -- changes -------------------------------------------------------------------------------------------

    def host_time(self, rows: Ints, keep: float = 0.0) -> HostTime:
        """Return the host time of events of which only a part is to stay."""
        trace = self.trace
        return HostTime(
            trace.track_codes[rows].astype(np.int64),
            trace.starts[rows],
            trace.ends[rows],
            np.full(len(rows), keep),
        )

    def work_in(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the device work and the calls into the device's API within host events, as rows."""
        trace = self.trace
        calls_inside = trace.host_calls[_within(trace, rows[outermost(trace, rows)], trace.host_calls)]
        launch = trace.links.launch_of[trace.device_work]
        return trace.device_work[np.isin(launch, calls_inside)], calls_inside

    def without_operators(self, rows: Ints, keep_host: float = 0.0, keep_work: float = 0.0) -> Edit:
        """Return the change in which host events shrink or go, with the work that they launch and their waits."""
        work, inside = self.work_in(rows)
        waits = np.union1d(rows, inside)  # a wait may be an event of Python: jax.device_get
        return Edit(waits, self.host_time(rows, keep_host), work, np.full(len(work), keep_work))


@cached_on_trace
def _waits_by_location(trace: Trace) -> dict[tuple[Any, ...], pl.DataFrame]:
    frame = _wait_table.build(trace, Scope.of(trace, Window())).frame
    counted = frame.lazy().filter(pl.col("apart") == "").select(*_LOCATION, "event", "begun_by").collect()
    return counted.partition_by(*_LOCATION, as_dict=True, include_key=False)


def _called_from(caller: str, location: str) -> str:
    return f"{caller.rpartition('/')[2]} → {location}" if caller else location


def _within(trace: Trace, outer: Ints, rows: Ints) -> np.typing.NDArray[np.bool_]:
    """Return which events begin inside one of some events of their thread that do not overlap."""
    result = np.zeros(len(rows), dtype=bool)
    outer = np.sort(outer)
    for track in np.unique(trace.track_codes[outer]):
        around = outer[trace.track_codes[outer] == track]
        asked = np.flatnonzero(trace.track_codes[rows] == track)
        at = np.searchsorted(trace.starts[around], trace.starts[rows[asked]], side="right") - 1
        result[asked] = (at >= 0) & (trace.starts[rows[asked]] < trace.ends[around[np.maximum(at, 0)]])
    return result


def times(per_step: float | None, count: int) -> str:
    """Return how often something happens, for a sentence: ``every step``, ``62 times a step`` or ``1 318 times``."""
    if per_step is None:
        return f"{format_count(count)} times"
    return f"{format_count(round(per_step))} times a step" if per_step >= 1.5 else "every step"
