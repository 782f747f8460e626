"""The steps of two runs side by side, in order: what a chart of both draws."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from tuiprof.model.intervals import Ints
from tuiprof.model.report import Chart, Column, Series, Table

KEY: Final = "step_pair"
#: Rows at most; where the longer run has more steps, a row covers several.
_ROWS: Final = 240
_CHART: Final = Chart(
    "Step times of both",
    tuple(Series(f"{name}_ns", f"{name}_lowest_ns", f"{name}_highest_ns") for name in ("before", "after")),
    at="first_step",
    in_text=False,
)


def step_pair(before: Ints, after: Ints, source: str) -> Table:
    """Put the steps of two runs side by side, as many in each row of both.

    Args:
        before: Step times of the baseline in order, ns; empty = not known.
        after: The other's.
        source: Where they were measured.

    Returns:
        Median and extremes of the steps of each row; null behind the end of the shorter run. It has no rows where
        neither is known.
    """
    longest = max(len(before), len(after))
    edges = [i * longest // min(longest, _ROWS) for i in range(min(longest, _ROWS) + 1)] if longest else []
    rows: dict[str, list[float | int | None]] = {"first_step": [begin + 1 for begin in edges[:-1]]}
    columns = [Column("first_step", "step", "count", "The first of these steps, counted from 1.")]
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
    return Table(KEY, title, tuple(columns), frame, empty="neither run marks steps", chart=_CHART)
