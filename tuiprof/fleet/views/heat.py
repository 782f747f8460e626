"""One line per rank: its delay in each step."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.fleet.fleet import Fleet
from tuiprof.model import Chart, Column, Fact, Report, Rule, Series, Table, Unavailable, Verdict
from tuiprof.model.intervals import Floats
from tuiprof.model.units import format_ns

NAME, TITLE = "heat", "Step × rank"
#: Maximum number of cells per line; a cell of several steps shows the largest delay.
_CELLS: Final = 40
_LEVELS: Final = "▁▂▃▄▅▆▇█"

_RULES = (
    Rule(
        "late",
        "How much later than the median of the others a rank arrives at the collectives of a step, summed; below 0 it "
        "is earlier. The line of a rank is drawn from 0 to the latest of all ranks and steps.",
    ),
)


def report(fleet: Fleet) -> Report | Unavailable:
    """Show the delay of each rank in each step."""
    late, steps = fleet.late_per_step, fleet.steps
    if not late.size:
        return Unavailable(NAME, "no collectives were matched, so it is unknown which ranks are late")
    top = float(np.nanmax(late))
    row, column = np.unravel_index(int(np.nanargmax(late)), late.shape)
    keys = [f"step_{step}_ns" for step in steps.tolist()]
    rows = pl.DataFrame(
        {
            "rank": fleet.number,
            "host": fleet.ranks["host"],
            "late_ns": fleet.held.late,
            "heat": _lines(late, top),
            **{key: late[:, index] for index, key in enumerate(keys)},
        }
    ).with_columns(pl.col(keys).fill_nan(None))
    return Report(
        NAME,
        TITLE,
        Verdict(
            f"{len(late)} ranks × {plural(len(steps), 'step')}: rank {fleet.number[row]} is the latest, by "
            f"{format_ns(top)} in step {steps[column]}",
            "info",
        ),
        (Fact("latest_ns", "latest", top, "ns"),),
        (
            Table(
                "heat",
                "Ranks, the latest first",
                (
                    Column("rank", "rank", "count"),
                    Column("host", "host", hidden=not fleet.hosts),
                    Column(
                        "late_ns",
                        "late",
                        "ns",
                        "Later than the median of the others, mean a step.",
                        signed=True,
                    ),
                    Column(
                        "heat",
                        f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}",
                        whole=True,
                    ),
                    *(
                        Column(key, f"step {step}", "ns", hidden=True)
                        for key, step in zip(keys, steps.tolist(), strict=True)
                    ),
                ),
                rows.sort(["late_ns", "rank"], descending=[True, False]),
                chart=Chart(
                    "How late each rank comes in each step",
                    tuple(Series(key) for key in keys),
                    at="rank",
                    in_text=False,
                    form="heat",
                ),
            ),
        ),
        _RULES,
    )


def _lines(late: Floats, top: float) -> list[str]:
    """Return one line of characters per rank."""
    count = late.shape[1]
    cells = min(count, _CELLS)
    first = np.arange(cells) * count // cells
    binned = np.maximum.reduceat(np.nan_to_num(late, nan=-np.inf), first, axis=1)
    scale = top if top > 0 else 1.0
    level = np.clip((binned / scale * len(_LEVELS)), 0, len(_LEVELS) - 1)
    level = np.nan_to_num(level, neginf=0).astype(int)
    return ["".join(_LEVELS[one] for one in line) for line in level.tolist()]
