"""What an analysis answers (a report, or the reason why there is none), and what all of them say on one page.

Text, JSON, CSV, Markdown and the screens all walk the same objects; none of them computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Generic, Literal, Protocol, TypeVar

import polars as pl

from tuiprof.model.intervals import Window
from tuiprof.model.units import format_change, format_ns_span, format_value

#: How a value is shown: ``ns`` as a duration, ``bytes`` as a size, ``share`` (0..1) as percent, ``rate`` as 1/s.
Kind = Literal["text", "count", "number", "ns", "bytes", "share", "rate"]
Level = Literal["good", "info", "warn", "bad"]
Elide = Literal["end", "start", "middle"]
RowT = TypeVar("RowT")


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


KeyedT = TypeVar("KeyedT", bound=_Keyed)


def _text(value: object, kind: Kind, signed: bool) -> str:
    if signed and isinstance(value, (int, float)):
        return format_change(value, kind)
    return format_value(value, kind)


def _named(key: str, items: Sequence[KeyedT], what: str) -> KeyedT:
    """Return the item with a key; the KeyError if there is none says which there are."""
    for item in items:
        if item.key == key:
            return item
    raise KeyError(f"no {what} is called {key!r}; there are {', '.join(item.key for item in items)}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence that answers the question of the analysis."""

    #: Plain text with figures and units. May hold names from the trace, so whoever draws it must treat it as untrusted
    #: text.
    sentence: str
    level: Level = "info"  # how good or bad the answer is for the user
    #: The answer as a constant of its analysis, for code that depends on it; empty = it has none. Never read it off the
    #: sentence, which is for people.
    code: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule behind a verdict or a figure, with its threshold, so that the reader can disagree."""

    name: str  # a short name in the field's terms, for example ``"launch-bound"``
    text: str  # the definition in one or two sentences, threshold included


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure."""

    key: str  # stable name for JSON and for ``tuiprof check``, with its unit (``device_empty_ns_per_step``)
    label: str  # what a person reads
    value: float | int | str | None  # the figure in the unit of ``kind``; None = unknown
    kind: Kind = "number"  # how to show it
    help: str = ""  # its definition in one sentence
    signed: bool = False  # it is a difference: what is more than nothing has a plus

    @property
    def text(self) -> str:
        """The figure as people read it, with its unit; may hold untrusted text."""
        return _text(self.value, self.kind, self.signed)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a :class:`Table`."""

    key: str  # column name in ``Table.rows``, with its unit (``dur_ns``)
    label: str  # its heading
    kind: Kind = "text"  # how to show its values
    help: str = ""  # its definition in one sentence
    #: Carried for JSON and for links (``event`` = row in the event table), not drawn as a column.
    hidden: bool = False
    #: Not a column on a screen, which shows the row under the cursor in full, unless chosen there. Reports print it.
    secondary: bool = False
    #: A text that says nothing when it is cut: where there is no room, other columns give way.
    whole: bool = False
    #: Where a text that is too long loses a part; None = as whoever draws it does by habit. ``start`` is for source
    #: lines, whose end (``file:line``) is the important part.
    elide: Elide | None = None
    #: A text that is a figure with its unit (rows of different kinds in one column): right-aligned.
    figure: bool = False
    code: bool = False  # its texts are lines of a program, whose spaces count
    signed: bool = False  # its values are differences: what is more than nothing has a plus

    @property
    def right_aligned(self) -> bool:
        """Whether its values stand at the right, as figures do."""
        return self.figure or self.kind != "text"

    def text(self, value: object) -> str:
        """Return one of its values as people read it, with its unit; may hold untrusted text."""
        return _text(value, self.kind, self.signed)


@dataclass(frozen=True, slots=True)
class Series:
    """A series that a table holds."""

    value: str  # key of the column drawn
    low: str = ""  # key of the column of the lowest value behind a row; empty = as ``value``
    high: str = ""  # key of the column of the highest; empty = as ``value``


@dataclass(frozen=True, slots=True)
class Chart:
    """How a table is drawn over its rows."""

    title: str  # heading of the chart
    series: tuple[Series, ...]  # one series, or two on one scale; of a ``heat``, one a cell
    #: Key of the column that says where a row is on the axis; empty = rows are only in order. Of bars, their name.
    at: str = ""
    in_text: bool = True  # worth a chart of characters in a text report
    #: A ``line`` over the rows; ``bars``, one a row, with an interval from ``low`` to ``high``; or ``heat``: a line of
    #: cells a row, one a series, as dark as its value.
    form: Literal["line", "bars", "heat"] = "line"
    #: Key of a column of numbers: rows where it is above 0 are marked, and its label says as what.
    marked: str = ""

    @property
    def column_keys(self) -> set[str]:
        """Keys of the columns that are drawn."""
        return {
            self.at,
            self.marked,
            *(key for one in self.series for key in (one.value, one.low, one.high)),
        } - {""}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows of evidence, the most expensive first."""

    key: str  # stable name
    title: str  # heading
    columns: tuple[Column, ...]  # the columns to show, in order; each ``key`` is a column of ``rows``
    #: One row an item. An ``event`` column, where there is one, holds a row index into ``Trace.events`` of the typical
    #: (most expensive) event behind the row.
    rows: pl.DataFrame
    note: str = ""  # one line below the table, for example what was excluded and why
    empty: str = "nothing found"  # what to say when there are no rows: why, and what it means
    #: Its texts are sentences: where they do not fit side by side, they are printed below one another.
    prose: bool = False
    chart: Chart | None = None  # how it is drawn; None = it is not
    #: Its order is that of time or of calls, so a part of it says little: people are shown all of its rows, also where
    #: they are shown the first tables of a report alone.
    whole: bool = False
    #: Key of a column of Booleans in ``rows``: rows that matter little are grey; empty = none is.
    faint: str = ""

    def __post_init__(self) -> None:
        """Check that every column exists."""
        keys = [column.key for column in self.columns]
        missing = [key for key in keys if key not in self.rows.columns]
        if self.chart is not None:
            missing += sorted(self.chart.column_keys - set(keys))
        if self.faint and self.faint not in self.rows.columns:
            missing.append(self.faint)
        if missing:
            raise ValueError(f"table {self.key!r} has no column {', '.join(missing)}")

    def column(self, key: str) -> Column:
        """Return a column; raises KeyError if there is no such column."""
        return _named(key, self.columns, f"column of table {self.key!r}")


def listed(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> pl.DataFrame:
    """Return the rows of a table, each with its values in the order of the columns."""
    keys = [column.key for column in columns]
    frame = pl.DataFrame(list(rows), schema=keys, orient="row", infer_schema_length=None)
    unknown = [column for column in columns if frame.schema[column.key] == pl.Null]
    return frame.cast({column.key: _TYPES.get(column.kind, pl.Float64) for column in unknown})


#: Types of columns without a value; that of other kinds is a float.
_TYPES: Final = {"text": pl.String, "count": pl.Int64, "bytes": pl.Int64}


@dataclass(frozen=True, slots=True)
class RowsOf(Generic[RowT]):
    """A table of a report, with the type of its rows, for code elsewhere that reads them.

    The analysis that makes the table defines one, so that the type checker finds a renamed column there and in every
    reader.
    """

    analysis: str  # name of the analysis
    key: str  # key of the table
    #: A dataclass whose fields are columns of the table, in any order; a trailing underscore keeps a column's name from
    #: being a keyword (``in_``).
    row: type[RowT]

    def read(self, table: Table) -> Iterator[RowT]:
        """Yield the rows of a table; raises KeyError if the table lacks a column."""
        columns = [field.name.rstrip("_") for field in fields(self.row)]  # type: ignore[arg-type]
        missing = [name for name in columns if name not in table.rows.columns]
        if missing:
            raise KeyError(
                f"no column {', '.join(missing)} in table {self.key!r} of {self.analysis}; "
                f"there are {', '.join(table.rows.columns)}"
            )
        # Whole columns, as a query takes longer than all the rest for the small tables that this is for.
        for values in zip(*(table.rows[name].to_list() for name in columns), strict=True):
            yield self.row(*values)


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The answer of one analysis on one trace."""

    analysis: str  # name of the analysis
    title: str  # its title
    verdict: Verdict  # the answer in one sentence
    facts: tuple[Fact, ...] = ()  # headline figures
    tables: tuple[Table, ...] = ()  # evidence, the table of the verdict first
    rules: tuple[Rule, ...] = ()  # definitions and thresholds used
    notes: tuple[str, ...] = ()  # caveats that change how to read the figures
    window: Window = field(default_factory=Window)  # the part of the trace looked at

    @property
    def is_empty(self) -> bool:
        """Whether it looked for something, and none of its tables has a row."""
        return bool(self.tables) and all(table.rows.is_empty() for table in self.tables)

    def fact(self, key: str) -> float | int | str | None:
        """Return the value of a fact; raises KeyError if there is no such fact."""
        return _named(key, self.facts, f"fact in the report of {self.analysis}").value

    def table(self, key: str) -> Table:
        """Return a table; raises KeyError if there is no such table."""
        return _named(key, self.tables, f"table in the report of {self.analysis}")


_WEIGHT: Final[dict[Level, int]] = {"bad": 0, "warn": 1, "info": 2, "good": 3}


def most_important(reports: Iterable[Report]) -> Report | None:
    """Return the report with the most urgent verdict, of several the first with rows; None = there are no reports."""
    return min(reports, key=lambda report: (_WEIGHT[report.verdict.level], report.is_empty), default=None)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """An analysis that cannot answer, and what would let it: never an empty table or a zero."""

    analysis: str  # name of the analysis
    reason: str  # why, for example ``"no Python frames in this trace"``
    remedy: str = ""  # what to do, for example ``"record with --stack"``; empty when nothing helps
    failed: bool = False  # it raised, or could not be loaded: a defect, not a property of the trace


@dataclass(frozen=True, slots=True)
class Change:
    """One finding: what to change, and what that saves."""

    rule: str  # name of the advice rule
    what: str  # the finding; like ``where`` and ``because`` it may quote names from the trace
    where: str  # the location, the user's line first; empty = the whole step
    fix: str  # what to write instead
    because: str  # the evidence
    sure: str  # ``high``, ``medium`` or ``low``
    saves_ns: float | None = None  # likely saving per step without the profiler; None = unknown
    saves_low_ns: float | None = None  # lower bound of ``saves_ns``
    saves_high_ns: float | None = None  # upper bound of ``saves_ns``
    share: float | None = None  # ``saves_ns`` as a share of the step without the profiler
    overlaps: bool = False  # it saves clearly less once the findings before it are fixed
    on_top: bool = (
        False  # a general change: it saves this once the findings before it are fixed, alone clearly more
    )
    prove: str = ""  # a command that measures it before and after; empty = none

    @property
    def saves_range(self) -> str:
        """Bounds of the saving as ``1.10 ms to 1.70 ms``; empty = unknown."""
        if self.saves_low_ns is None or self.saves_high_ns is None:
            return ""
        return format_ns_span(self.saves_low_ns, self.saves_high_ns)


@dataclass(frozen=True, slots=True)
class Line:
    """The answer of one analysis."""

    analysis: str  # its name
    title: str  # its title
    level: Level  # how good or bad the answer is
    sentence: str  # the answer; may quote names of the trace


@dataclass(frozen=True, slots=True)
class Answer:
    """A trace on one page."""

    title: str  # which trace or session
    device: str  # product name of the device; empty = none in the trace
    steps: int  # number of steps; 0 = no step markers: figures are for the whole trace
    step_ns: float | None  # time of a step without the profiler; None = unknown
    captured_step_ns: float | None = None  # time of the same step while captured
    #: Work of the busiest device per step, without gaps: the lower bound for any change on the host.
    device_work_ns: float | None = None
    together_ns: float | None = None  # saving of all changes together
    trust: str = ""  # the trust line
    complete: bool = False  # no events are missing, and all could be placed
    #: The largest saving first, but a general change below the specific ones that cause a good part of its saving.
    changes: tuple[Change, ...] = ()
    lines: tuple[Line, ...] = ()  # one per available analysis, in tab order
    notes: tuple[str, ...] = ()  # caveats
    run: Line | None = None  # outcome of the recorded run; None = a trace without a session
    refused: str = ""  # why this trace allows no advice; empty = it does
    in_part: bool = False  # events are missing that may have shown a cost
    left_to_try: str = ""  # what may help where no rule finds a cost, a sentence; empty = nothing known
    step_is: str = ""  # which steps ``step_ns`` is of, for a sentence; empty = those of the capture
    captured_is: str = (
        ""  # what ``captured_step_ns`` is of these: ``median`` or ``mean``; empty = there is one
    )
    limited: bool = False  # the trust line says what a reader has to know, such as what was not recorded
    run_notes: tuple[str, ...] = ()  # caveats about the recorded run, which are among ``notes`` too


LaneKind = Literal["steps", "ranges", "busy", "calls", "waits", "idle"]


@dataclass(frozen=True, slots=True)
class Range:
    """A named interval of a picture."""

    start: float  # its start, as a share of the picture
    end: float  # its end, likewise
    label: str  # its name; untrusted
    dur_ns: int  # its duration


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of a picture."""

    label: str  # what the lane shows
    #: Lanes of ``steps`` and ``ranges`` have named ranges; for the others ``shares`` gives how much of each column is
    #: ``busy``, spent in launch ``calls``, in ``waits`` of the host for the device, or ``idle``.
    kind: LaneKind
    ranges: tuple[Range, ...] = ()  # the named stretches, in order; they do not overlap
    shares: tuple[float, ...] = ()  # how much of each column, 0 to 1; all lanes have as many columns


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of an interval of a trace."""

    title: str  # name of the interval shown
    dur_ns: int  # its length
    lanes: tuple[Lane, ...]  # from top to bottom
