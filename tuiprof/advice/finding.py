"""Rules, their findings, and the evidence they may use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import numpy as np
import polars as pl

from tuiprof.advice.levers import argument
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared import wait_table as _wait_table
from tuiprof.analyses.shared.calls import Calls, calls, index_of_outer
from tuiprof.analyses.shared.changes import figure_of
from tuiprof.analyses.shared.compiled.instructions import source_line
from tuiprof.analyses.shared.formatting import formatted
from tuiprof.analyses.shared.frames import ancestry_of
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.analyses.shared.optimizers import Updates, updates
from tuiprof.analyses.shared.replay import replayed
from tuiprof.analyses.shared.waits import outermost
from tuiprof.analyses.sync_events import WAIT_LOCATIONS, WaitLocation
from tuiprof.model import Report, RowsOf, Trace, Unavailable
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.steps import SampledLine
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.units import format_count
from tuiprof.whatif import Edit, EditRange, HostTime
from tuiprof.whatif.replay import Kinds

#: Columns that identify the location of a wait.
_LOCATION = ("where", "in", "through", "range", "kind")
#: A line is the location of a stretch that takes a share of the step if the line's share of the samples is between
#: these multiples of it. Stretches below this share of the step are not located.
_LINE_SHARE: Final = (0.35, 2.0)
_MIN_NAMED: Final = 0.1
#: With fewer samples, a line may be there by chance.
MIN_SEEN: Final = 0.03
#: Files of training frameworks, as :func:`~tuiprof.analyses.shared.frames.shorten` writes them.
_TRAINER: Final = re.compile(
    r"(^|/)(transformers/trainer\w*\.py|accelerate/|lightning/|lightning_fabric/|pytorch_lightning/)"
)
Sure = Literal["high", "medium", "low"]
RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change."""

    what: str  # what was seen, one sentence
    where: str  # a line, a function, a range or an operator; empty = the whole run
    instead: str  # what to write or set instead
    sure: Sure  # confidence in the diagnosis
    because: str  # the evidence for it
    #: The likely change to the step; None = a mode or a setting that distorts every figure and has to be changed first.
    edit: Edit | None
    least: Edit | None = None  # the change where it helps least; None = as likely
    most: Edit | None = None  # the change where it helps most; None = as likely
    #: Additional saving in rare steps that may not be captured, averaged over all steps, ns: likely, least and most.
    rare_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    #: The change applies to what the other findings leave, so it is priced on top of them.
    remainder: bool = False
    #: Removes the waits, or shortens the work, that must go before this change: what does most of that comes first.
    after: Edit | None = None
    proof: str = ""  # ``ladder:variants`` of the scenario that demonstrates it; empty = none yet
    event: int | None = None  # row of a typical event; None = none
    #: Variables that make the change, or the closest equivalent, without an edit of the script.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The switch with which the probe makes the change in a trial: ``"loader_workers=4"`` (see
    #: :mod:`tuiprof.probe.frameworks.trial_hooks`); empty = nothing.
    switch: str = ""

    @property
    def edits(self) -> EditRange:
        """The change with its limits; none for a setting that has to be changed first."""
        edit = self.edit or Edit()
        return EditRange(edit, self.least or edit, self.most or edit)

    def of(self, steps: Kinds | None) -> Finding:
        """Return the same with the change limited to the replayed steps, which are all that is priced."""
        if steps is None or steps.long is not None:
            return self
        part = steps.usual.graph.part_of
        edit, least, most, after = (
            one and part(one) for one in (self.edit, self.least, self.most, self.after)
        )
        return replace(self, edit=edit, least=least, most=most, after=after)


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """One rule: it yields findings with their edits. The replay computes the saving."""

    name: str  # its name, for example ``"nan-check"``
    find: Callable[[Trace, Evidence], Iterable[Finding]]  # yields one finding per location
    #: Names of the analyses whose reports it reads, built-in or third-party; it can read no others. If one does not
    #: exist or has failed, the rule is unavailable, and the advice gives the reason.
    needs: tuple[str, ...] = ()
    #: Name of the analysis whose tables show its findings; empty = the first that it needs, else kernels.
    shown_by: str = ""


class Evidence:
    """The evidence that a rule may use."""

    def __init__(self, trace: Trace, reports: Mapping[str, Report | Unavailable]) -> None:
        self.trace = trace
        self.reports = reports

    def report(self, name: str) -> Report | None:
        """Return a report; None if the analysis is unavailable for this trace.

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
        """Return a figure of a report by its key; None if it is unknown.

        Raises:
            LookupError: The rule does not declare the analysis, or its report has no such figure.
        """
        report = self.report(name)
        return figure_of(report, key) if report is not None else None

    def rows(self, table: RowsOf[RowT], *, optional: bool = False) -> list[RowT]:
        """Return the rows of a table; none if the analysis is unavailable, or has left an ``optional`` table out.

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
        """Whether the trace is from JAX, which needs other instructions than PyTorch."""
        return self.trace.info.framework.startswith("JAX")

    def write(self, lever: str, plain: str, **values: object) -> str:
        """Return what to write for a lever of :mod:`.levers`: the framework's argument, or else plain PyTorch."""
        return argument(self.trace, lever, plain, **values)

    def write_for(self, row: WaitLocation, lever: str, plain: str) -> str:
        """Return :meth:`write` for a wait; plain PyTorch if it is in the script itself, where no argument helps."""
        return plain if self.is_own(row) else self.write(lever, plain)

    def is_own(self, row: WaitLocation) -> bool:
        """Whether a wait is known to be in the script or a library that it calls, not in the training framework."""
        return row.found in ("line", "function") and _TRAINER.search(row.where) is None

    @property
    def step_count(self) -> int:
        """Number of marked steps; at least 1, to divide by."""
        return max(len(self.trace.steps), 1)

    @property
    def stepped(self) -> bool:
        """Whether the trace marks steps."""
        return bool(len(self.trace.steps))

    @cached_property
    def host_part(self) -> float:
        """Share of the captured host time that remains without the profiler; host time added by an edit has none."""
        step = replayed(self.trace)
        return 1.0 if isinstance(step, str) else max(step.host_part, 0.05)

    @cached_property
    def calls(self) -> Calls:
        """The framework calls of the trace."""
        return calls(self.trace)

    # -- waits ---------------------------------------------------------------------------------------------

    def waits(self, *kinds: str) -> Iterable[WaitLocation]:
        """Yield the locations where the host waits in steady state, most expensive first.

        The kinds are those of the waits; none = all. Those that only format tensors as text are left out.
        """
        apart = self.waits_of_formatting
        for row in self._steady_waits:
            if row not in apart and (not kinds or row.kind in kinds):
                yield row

    @cached_property
    def _steady_waits(self) -> list[WaitLocation]:
        # In most steps, or many times where there are no steps.
        return [
            row
            for row in self.rows(WAIT_LOCATIONS)
            if (row.count >= 5 if row.per_step is None else row.per_step >= 0.9)
        ]

    @cached_property
    def waits_of_formatting(self) -> list[WaitLocation]:
        """The locations where the host waits in steady state only for tensors that are formatted as text."""
        tensors = formatted(self.trace)
        if not tensors:
            return []
        inside = self.calls.mask(*tensors)

        def only_formats(row: WaitLocation) -> bool:
            call = self.calls.inside(self.calls_of(row))
            return bool(len(call) and (call >= 0).all() and inside[call].all())

        return [row for row in self._steady_waits if only_formats(row)]

    def rhythm(self, *rows: WaitLocation) -> str:
        """Return how often rows occur, for a sentence: ``every step``, ``62 times a step`` or ``1 318 times``."""
        known = [row.per_step for row in rows if row.per_step is not None]
        return times(sum(known) if known else None, sum(row.count for row in rows))

    def how_often(self, count: int) -> str:
        """Return how often something occurs, counted in the whole trace, for a sentence."""
        return times(count / self.step_count if self.stepped else None, count)

    def location(self, row: WaitLocation) -> str:
        """Return the location of a wait for a sentence, the user's line first: ``train.py:7 → function, file:line``."""
        return _called_from(row.called_from, f"{row.in_}, {row.where}" if row.at_line else row.where)

    def function_of(self, row: int) -> str:
        """Return the user's function around a host event, or around the launch of device work; empty = no Python frame.

        For the backward pass, which runs outside user functions, it is the function that called the forward pass. For
        work of a compiled program that has its source lines, it is the line.
        """
        return self.functions_of(np.array([row]))[0]

    def functions_of(self, rows: Ints) -> list[str]:
        """Return :meth:`function_of` for each of some rows."""
        trace, calls = self.trace, self.calls
        hosts = np.where(trace.on_host[rows], rows, trace.links.launch_of[rows])
        known = np.flatnonzero(hosts >= 0)
        call = np.full(len(rows), -1)
        call[known] = calls.inside(hosts[known])
        inside = call >= 0
        made_by = calls.forward[call[inside]]
        hosts[inside] = calls.rows[np.where(made_by >= 0, made_by, call[inside])]
        frames, running = ancestry_of(trace, hosts[known]).frames, _frames.running_at_start(trace)
        found = [source_line(trace, row) for row in rows.tolist()]
        for index, codes in zip(known.tolist(), frames.tolist(), strict=True):
            spot = _frames.spot([trace.names[code] for code in codes if code >= 0], running, self.is_jax)
            if spot is not None and not found[index]:
                where, _, caller = spot
                found[index] = _called_from(caller, where)
        return found

    def place_of(self, work: int) -> str:
        """Return the user's function around the launch of device work, or else the framework call and the kernel."""
        if function := self.function_of(work):
            return function
        kernel, launch = short_name(self.trace.name(work)), int(self.trace.links.launch_of[work])
        call = int(self.calls.inside(np.array([launch]))[0]) if launch >= 0 else -1
        return f"{_frames.operator_label(self.calls.names[call])}, {kernel}" if call >= 0 else kernel

    def line_in(self, chosen: Ints) -> str:
        """Return the line of the script that waits most often inside some framework calls; empty = none is known.

        Such lines are recorded without Python frames.
        """
        lines, call = self._lines_with_calls
        inside = np.isin(call, chosen)
        return _most_frequent(lines.filter(pl.Series(inside)), 1) if inside.any() else ""

    @cached_property
    def _lines_with_calls(self) -> tuple[pl.DataFrame, Ints]:
        """The waits whose line is known, and the call that each lies in, as an index; -1 = none."""
        lines = _waits(self.trace).at_lines
        return lines, self.calls.inside(lines["event"].to_numpy())

    def line_before(self, instants: Ints, within_ns: int) -> str:
        """Return the line of the script whose waits end shortly before most of some instants, ns; empty = none does."""
        lines = _waits(self.trace).at_lines.sort("end_ns")
        ends = lines["end_ns"].to_numpy()
        at = np.searchsorted(ends, instants, side="right") - 1
        near = (at >= 0) & (instants - ends[at] <= within_ns) if len(ends) else np.zeros(len(at), dtype=bool)
        return _most_frequent(lines[at[near]], len(instants) // 2 + 1)

    def _waits_of(self, row: WaitLocation) -> pl.DataFrame:
        return _waits(self.trace).by_location[row.where, row.in_, row.through, row.range, row.kind]

    def calls_of(self, row: WaitLocation) -> Ints:
        """Return the calls that wait at a location, as rows of the trace."""
        return self._waits_of(row)["event"].to_numpy()

    def without_waiting(self, row: WaitLocation) -> Edit:
        """Return the edit in which the calls of a location do not wait and take no host time."""
        return self._beside_xla(_wait_table.without(self.trace, self._waits_of(row)), row)

    def without_reading(self, row: WaitLocation) -> Edit:
        """Return the edit in which the operators that wait at a location are not called."""
        return self._beside_xla(self.without_operators(self.operators_of(row)), row)

    def _beside_xla(self, edit: Edit, row: WaitLocation) -> Edit:
        """Return the edit of a wait; for what XLA computes on a CPU, the host does the rest of the step meanwhile."""
        trace = self.trace
        if trace.device_indices or not self.is_jax:
            return edit
        events, begun_by = (self._waits_of(row)[name].to_numpy() for name in ("event", "begun_by"))
        begins, ends, of_step = trace.starts[begun_by], trace.ends[events], trace.steps.step_of[events]
        edits = Edit()
        for step in np.unique(of_step[of_step >= 0]).tolist():
            mine = of_step == step
            low, high = trace.steps.starts[step], trace.steps.ends[step]
            starts, until = np.append(low, ends[mine]), np.append(begins[mine], high)
            waited_ns = int((ends[mine] - begins[mine]).sum())
            keep = 1 - min(waited_ns / max(int(high - low) - waited_ns, 1), 1.0)
            tracks = np.full(len(starts), trace.track_codes[events[mine][0]], dtype=np.int64)
            edits |= Edit(host=HostTime(tracks, starts, until, np.full(len(starts), keep)))
        return edits

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

    def line_doing(
        self, *doing: str, min_share: float = MIN_SEEN, max_share: float = 1.0
    ) -> SampledLine | None:
        """Return the line of the script at which its main thread was sampled most often during activities, if any.

        The sampler names the activities, an empty one = the script's own code. Limits are shares of all samples.
        """
        lines = self.trace.uncaptured.lines if self.trace.uncaptured is not None else ()
        return next(
            (line for line in lines if line.doing in doing and min_share <= line.share <= max_share), None
        )

    def line_taking(self, share: float, *doing: str) -> SampledLine | None:
        """Return the line that was sampled during activities about as often as what takes a share of the time.

        None = there is none, or the share is too small to tell.
        """
        if share < _MIN_NAMED:
            return None
        low, high = (times * share for times in _LINE_SHARE)
        return self.line_doing(*doing, min_share=low, max_share=high)

    def place_by_share(self, forward: Mask) -> str:
        """Return the line of the script in which the host is about as long as in some forward calls; empty = none.

        The session samples lines, so that it needs no Python frames.
        """
        share = self.share_of_time(self.calls.rows[forward])
        line = self.line_taking(share, "", "forward", "evaluation")
        return line.where if line is not None else ""

    @property
    def updates(self) -> Updates:
        """Where the optimizers update parameters."""
        return updates(self.trace)

    @cached_property
    def update_work(self) -> Ints:
        """Rows of the device work that updates parameters."""
        return self._launched_by(self._update_calls)

    @cached_property
    def _update_calls(self) -> Ints:
        return self.trace.host_calls[self.updates.hold(self.trace.host_calls)]

    # -- changes -------------------------------------------------------------------------------------------

    def share_of_time(self, rows: Ints) -> float:
        """Return the time of some host events as a share of the trace."""
        low, high = self.trace.span
        return float(self.trace.lengths(rows).sum()) / max(high - low, 1)

    def share_of_device_time(self, work: Ints) -> float:
        """Return the time of some device work as a share of all of it."""
        lengths = self.trace.lengths
        return float(lengths(work).sum()) / max(int(lengths(self.trace.device_work).sum()), 1)

    def work_in(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the rows of the device work and the device API calls within host events."""
        trace = self.trace
        outer = np.sort(outermost(trace, rows))
        calls_inside = trace.host_calls[index_of_outer(trace, outer, trace.host_calls) >= 0]
        return self._launched_by(calls_inside), calls_inside

    def _launched_by(self, host_calls: Ints) -> Ints:
        trace = self.trace
        return trace.device_work[np.isin(trace.links.launch_of[trace.device_work], host_calls)]

    def without_updates(self, keep_host: float, keep_work: float) -> Edit:
        """Return the edit in which the update of all parameters keeps a share of its host time and device work."""
        rows, work = self.updates.rows, self.update_work
        host = replace(HostTime.of(self.trace, rows, keep_host), starts=self.updates.starts)
        waits = np.union1d(rows, self._update_calls)
        return Edit(waits, host, work, np.full(len(work), keep_work))

    def without_operators(self, rows: Ints, keep_host: float = 0.0, keep_work: float = 0.0) -> Edit:
        """Return the edit in which host events shrink or disappear, with the work that they launch and their waits."""
        work, inside = self.work_in(rows)
        waits = np.union1d(rows, inside)  # a wait may be a Python event: jax.device_get
        return Edit(waits, HostTime.of(self.trace, rows, keep_host), work, np.full(len(work), keep_work))

    def shortened(self, operators: Ints, keep: float) -> Edit:
        """Return the edit in which all calls of a step from the first to the last of some operators take less time.

        Their waits stay.
        """
        calls = self.calls
        inside = calls.inside(operators)
        inside = inside[inside >= 0]
        of_step = calls.steps[inside] * (int(calls.tracks.max(initial=0)) + 1) + calls.tracks[inside]
        chosen = []
        for one in np.unique(of_step):
            mine = inside[of_step == one]
            chosen.append(calls.between(int(mine.min()), int(mine.max())))
        return replace(calls.edit(calls.mask(*chosen), keep, keep), waits=operators[:0])


@dataclass(frozen=True, slots=True)
class _Waits:
    """What rules ask of the waits of a trace; the table of all of them takes much memory and is not kept."""

    at_lines: (
        pl.DataFrame
    )  # those whose line is known: ``event``, ``end_ns``, ``called_from``, ``in`` and ``where``
    #: The calls of those that count, by their values of :data:`_LOCATION`: ``event`` and ``begun_by``.
    by_location: dict[tuple[Any, ...], pl.DataFrame]


@cached_on_trace
def _waits(trace: Trace) -> _Waits:
    every = _wait_table.located(trace)
    counted = every.select(*_LOCATION, "event", "begun_by", apart="apart").filter(apart="").drop("apart")
    at_lines = every.select("event", "end_ns", "called_from", "in", "where", found="found").filter(
        found="line"
    )
    by_location = counted.partition_by(*_LOCATION, as_dict=True, include_key=False)
    return _Waits(at_lines, by_location)


def _most_frequent(lines: pl.DataFrame, at_least: int) -> str:
    """Return the location of the waits at most of some lines; empty = none has so many."""
    found = (
        lines.group_by("called_from", "in", "where", maintain_order=True)
        .len()
        .filter(pl.col("len") >= at_least)
    )
    if found.is_empty():
        return ""
    caller, function, where, _ = found.sort("len", descending=True, maintain_order=True).row(0)
    return _called_from(caller, f"{function}, {where}")


def _called_from(caller: str, location: str) -> str:
    return f"{caller.rpartition('/')[2]} → {location}" if caller else location


def times(per_step: float | None, count: int) -> str:
    """Return how often something occurs, for a sentence: ``every step``, ``62 times a step`` or ``1 318 times``."""
    if per_step is None:
        return f"{format_count(count)} times"
    return f"{format_count(round(per_step))} times a step" if per_step >= 1.5 else "every step"
