"""One figure of two sides, and tables of such figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses.compare.change import SAME_SHARE
from tuiprof.model import Column, Report, Table, Unavailable
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Chart, Kind, Series
from tuiprof.model.units import format_change, format_points, format_value


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of both sides."""

    key: str  # its stable name, with the unit
    label: str  # label for display
    kind: Kind  # display format
    before: float | None  # the baseline's; None = unknown
    after: float | None  # the other's

    @property
    def change(self) -> float | None:
        """After minus before; None if either is unknown."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def within_noise(self) -> bool:
        """Whether both are known and differ by less than the threshold."""
        if self.before is None or self.after is None:
            return False
        return abs(self.after - self.before) <= SAME_SHARE * max(abs(self.before), abs(self.after))

    @property
    def change_text(self) -> str:
        """The change as text."""
        return format_points(self.change) if self.kind == "share" else format_change(self.change, self.kind)


def figure_of(report: Report | Unavailable, key: str) -> float | None:
    """Return a figure of a report; None if it is unknown."""
    value = report.fact(key) if isinstance(report, Report) else None
    return float(value) if isinstance(value, (int, float)) else None


def metric_table(key: str, title: str, metrics: Sequence[Metric]) -> Table:
    """Return a table of figures, one per row; unchanged ones are last."""
    rows = [
        {
            "metric": one.label,
            "key": one.key,
            "kind": one.kind,
            "before": format_value(one.before, one.kind),
            "after": format_value(one.after, one.kind),
            "change": one.change_text,
            "ratio": one.after / one.before if one.before and one.after is not None else None,
            "before_value": one.before,
            "after_value": one.after,
            "within_noise": one.within_noise,
        }
        for one in sorted(metrics, key=lambda one: one.within_noise)
    ]
    values = dict.fromkeys(("ratio", "before_value", "after_value"), pl.Float64)
    words = dict.fromkeys(("metric", "key", "kind", "before", "after", "change"), pl.String)
    return Table(
        key,
        title,
        (
            Column("metric", "figure", "text"),
            Column("before", "before", "text", figure=True),
            Column("after", "after", "text", figure=True),
            Column("change", "change", "text", "After minus before; pp: percentage points.", figure=True),
            Column("ratio", "after/before", "number", hidden=True),
            Column("key", "key", "text", hidden=True),
            Column("kind", "kind", "text", hidden=True),
            Column("within_noise", "within the noise", hidden=True),
            Column("before_value", "before", "number", hidden=True),
            Column("after_value", "after", "number", hidden=True),
        ),
        pl.DataFrame(rows, schema={**words, **values, "within_noise": pl.Boolean}),
        empty="only one side has a trace",
        faint="within_noise",
        whole=True,
    )


STEP_PAIR: Final = "step_pair"
#: Maximum number of rows; if the longer run has more steps, a row covers several.
_STEP_ROWS: Final = 240
_STEP_CHART: Final = Chart(
    "Step times, both sides",
    tuple(Series(f"{name}_ns", f"{name}_lowest_ns", f"{name}_highest_ns") for name in ("before", "after")),
    at="first_step",
    in_text=False,
)


def step_pair(before: Ints, after: Ints, source: str) -> Table:
    """Put the steps of two runs side by side, in order, equally many per row; ``source`` names their origin.

    A row has median and extremes of its steps, null after the end of the shorter run.
    """
    longest = max(len(before), len(after))
    edges = (
        [i * longest // min(longest, _STEP_ROWS) for i in range(min(longest, _STEP_ROWS) + 1)]
        if longest
        else []
    )
    rows: dict[str, list[float | int | None]] = {"first_step": [begin + 1 for begin in edges[:-1]]}
    columns = [Column("first_step", "step", "count", "First of these steps, counted from 1.")]
    for name, times in (("before", before), ("after", after)):
        parts = [times[begin:end] for begin, end in pairwise(edges)]
        rows[f"{name}_ns"] = [float(np.median(part)) if len(part) else None for part in parts]
        rows[f"{name}_lowest_ns"] = [int(part.min()) if len(part) else None for part in parts]
        rows[f"{name}_highest_ns"] = [int(part.max()) if len(part) else None for part in parts]
        columns += [
            Column(f"{name}_ns", name, "ns", "Median of these steps."),
            Column(f"{name}_lowest_ns", f"{name}, fastest", "ns", hidden=True),
            Column(f"{name}_highest_ns", f"{name}, slowest", "ns", hidden=True),
        ]
    schema = {key: pl.Float64 if key in ("before_ns", "after_ns") else pl.Int64 for key in rows}
    frame = pl.DataFrame(rows, schema=schema)
    title = f"Step times, {source}"
    return Table(STEP_PAIR, title, tuple(columns), frame, empty="neither run marks steps", chart=_STEP_CHART)
