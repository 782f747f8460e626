"""What changed between two runs: the step time with its confidence, figures, the script line by line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import polars as pl

from tuiprof.model import Column, Report, Rule, Table, Unavailable, Verdict
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Chart, Kind, Level, Series, listed
from tuiprof.model.units import (
    format_change,
    format_ns,
    format_points,
    format_share,
    format_speed,
    format_speed_range,
    format_value,
    plural,
)

#: Standard errors from which on a difference of medians is significant; minimum number of steps per side.
SURE_ERRORS, MIN_STEPS = 3.0, 4
#: Smaller differences, as a share, count as none.
SAME_SHARE = 0.01
#: 1.4826 makes a median absolute deviation the standard deviation of a normal distribution; a median is 1.2533
#: times less exact than a mean. 1.96 standard errors on either side contain the true value in 95 % of the cases.
_ROBUST, _MEDIAN_ERROR, _Z95 = 1.4826, 1.2533, 1.96
#: Factor on the error for few steps: Student's t for 95 % divided by that of a normal distribution.
_FEW = {4: 1.62, 5: 1.42, 6: 1.31, 7: 1.25}

#: Steps are uneven if their mean or most of them differ from the median by this share, and neighbors do not resemble
#: one another more than this (as they would if something slowed the run down for a while); minimum number of steps.
UNEVEN, _UNLIKE, _MIN_UNEVEN = 0.25, 0.2, 20
#: Share of the steps at either end that count as long as the next ones in their mean.
_EXTREME = 0.02
#: Maximum assumed correlation of neighboring steps.
_MAX_LIKENESS = 0.9

RULES = (
    Rule(
        "sure",
        f"The medians (or means) differ by {SURE_ERRORS:g} standard errors or more, with at least {MIN_STEPS} steps on "
        "each side; the error comes from the spread of step times around the median and grows when steps are few or "
        "correlated. The interval is 1.96 of these errors. "
        "It covers noise within the two runs, not between runs: for that, run interleaved trials "
        "(`tuiprof ladder`).",
    ),
    Rule(
        "means",
        "The means are compared instead of the medians if the steps of one side take turns in being long and short, as "
        "when loader workers deliver several batches at once: the mean, or most steps, differ from the median by more "
        f"than {format_share(UNEVEN)}, and neighbors are not alike. The longest and the shortest "
        f"{format_share(_EXTREME)} count as the next ones.",
    ),
    Rule("same", f"Below {format_share(SAME_SHARE)} of the longer step time."),
)


@dataclass(frozen=True, slots=True)
class StepChange:
    """The change of a step time."""

    before_ns: float  # median before, or mean if steps are uneven, ns
    after_ns: float  # the same after, ns
    low: float | None  # lower end of the 95 % interval of after / before; None = unknown
    high: float | None  # its upper end
    sure: str  # ``yes``; ``no: …`` within the spread; ``unknown: …`` from too few steps
    basis: str  # what it was derived from: ``180 and 200 steps``
    captured: bool = False  # the steps ran under the profiler, which may have slowed one side more

    @property
    def share(self) -> float:
        """Change as a share of the time before; negative is faster."""
        return (self.after_ns - self.before_ns) / self.before_ns if self.before_ns else 0.0

    @property
    def verdict(self) -> Verdict:
        """The answer in one sentence."""
        a, b = format_ns(self.before_ns), format_ns(self.after_ns)
        span, under = self._span(), "under the profiler, " if self.captured else ""
        if abs(self.after_ns - self.before_ns) < SAME_SHARE * max(self.before_ns, self.after_ns):
            return Verdict(f"{under}a step takes the same: {a} before, {b} after{span}", "info")
        faster = self.after_ns < self.before_ns
        level: Level = "info" if self.sure != "yes" else "good" if faster else "bad"
        doubt = "" if self.sure == "yes" else f"; not sure: {self.sure.partition(': ')[2]}"
        how = "is" if self.sure == "yes" else "may be"
        speed = format_speed(self.after_ns / self.before_ns if self.before_ns else 0.0)
        return Verdict(f"{under}a step {how} {speed}: {a} before, {b} after{span}{doubt}", level)

    def _span(self) -> str:
        if self.low is None or self.high is None:
            return f" ({self.basis})"
        return f" (95 %: {format_speed_range(self.low, self.high)}, {self.basis})"


def step_change(before: Ints, after: Ints) -> StepChange | None:
    """Compare step times, ns; None where one side has no steps."""
    if not len(before) or not len(after):
        return None
    fewest = min(len(before), len(after))
    basis = f"{len(before)} and {len(after)} steps"
    uneven = _uneven(before) or _uneven(after)
    if uneven:
        basis = f"means of {basis}"
    a, b = (float(_tamed(times).mean() if uneven else np.median(times)) for times in (before, after))
    if fewest < MIN_STEPS:
        return StepChange(a, b, None, None, f"unknown: only {plural(fewest, 'step')}", basis)
    errors = [_mean_error(times) if uneven else _error(times) for times in (before, after)]
    error = float(np.hypot(errors[0], errors[1]))
    sure = "yes" if abs(b - a) >= SURE_ERRORS * error else "no: within step-to-step noise"
    if not (a and b):
        return StepChange(a, b, None, None, sure, basis)
    # The relative errors of a ratio add up; on a log scale, so that no end is below 0.
    wide = _Z95 * float(np.hypot(errors[0] / a, errors[1] / b))
    ratio = b / a
    return StepChange(a, b, ratio * float(np.exp(-wide)), ratio * float(np.exp(wide)), sure, basis)


def _uneven(times: Ints) -> bool:
    """Return whether steps take turns in being long and short, so that the median is not what one takes on average."""
    if len(times) < _MIN_UNEVEN or _likeness(times) > _UNLIKE:
        return False
    median = float(np.median(times))
    off = max(abs(float(_tamed(times).mean()) - median), float(np.median(np.abs(times - median))))
    return off > UNEVEN * median


def _tamed(times: Ints) -> Ints:
    """Return step times, the extreme ones replaced by the next ones."""
    cut = math.ceil(_EXTREME * len(times))
    low, high = np.sort(times)[[cut, -cut - 1]] if len(times) > 2 * cut else (times.min(), times.max())
    tamed: Ints = np.clip(times, low, high)
    return tamed


def _mean_error(times: Ints) -> float:
    """Return the standard error of the mean of step times without extreme ones, ns."""
    n, cut = len(times), math.ceil(_EXTREME * len(times))
    error = float(_tamed(times).std(ddof=1)) / math.sqrt(n) / max(1 - 2 * cut / n, 0.5)
    return error * _correlated(times)


def _correlated(times: Ints) -> float:
    """Return the factor by which the correlation of neighbors enlarges the error of a median or mean."""
    alike = min(max(_likeness(times), 0.0), _MAX_LIKENESS)
    return math.sqrt((1 + alike) / (1 - alike))


def _error(times: Ints) -> float:
    """Return the standard error of the median of step times, ns.

    From the median absolute deviation, assuming a normal distribution; from eight steps on, the maximum of that and a
    distribution-free estimate from two order statistics around the median, which also covers bimodal steps (R. M.
    Price, D. G. Bonett: "Estimating the variance of the sample median", 2001). With fewer steps the error is enlarged
    by Student's t. Correlated steps contain less information than their number: with the rank correlation ``r`` of
    neighbors the error grows by ``sqrt((1 + r) / (1 - r))``.
    """
    n = len(times)
    error = _MEDIAN_ERROR * _ROBUST * float(np.median(np.abs(times - np.median(times)))) / math.sqrt(n)
    if n in _FEW:
        error *= _FEW[n]
    else:
        low, errors = _around_median(n)
        ordered = np.sort(times)
        error = max(error, float(ordered[n - low] - ordered[low - 1]) / (2 * errors))
    return error * _correlated(times)


def _around_median(n: int) -> tuple[int, float]:
    """Return an order statistic, counted from either end, and its distance from the median in standard errors."""
    low = max(round((n + 1) / 2 - math.sqrt(n)), 1)
    if n > 200:
        return low, 2.0
    beyond = sum(math.comb(n, i) for i in range(low)) / 2**n
    return low, NormalDist().inv_cdf(1 - beyond)


def _likeness(times: Ints) -> float:
    """Return the rank correlation of neighboring steps, corrected for their number."""
    ranks = np.argsort(np.argsort(times, kind="stable"), kind="stable") - (len(times) - 1) / 2
    return float((ranks[1:] * ranks[:-1]).sum() / (ranks * ranks).sum()) + 1 / len(times)


# -- figures ----------------------------------------------------------------------------------------------


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
    columns = (
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
    )
    rows = [
        (
            one.label,
            format_value(one.before, one.kind),
            format_value(one.after, one.kind),
            one.change_text,
            one.after / one.before if one.before and one.after is not None else None,
            one.key,
            one.kind,
            one.within_noise,
            one.before,
            one.after,
        )
        for one in sorted(metrics, key=lambda one: one.within_noise)
    ]
    empty = "only one side has a trace"
    frame = listed(columns, rows).cast({"before_value": pl.Float64, "after_value": pl.Float64})
    return Table(key, title, columns, frame, empty=empty, faint="within_noise", whole=True)


# -- steps side by side ----------------------------------------------------------------------------------

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
    rows: dict[str, list[float | int | None]] = {"first_step": [start + 1 for start in edges[:-1]]}
    columns = [Column("first_step", "step", "count", "First of these steps, counted from 1.")]
    for name, times in (("before", before), ("after", after)):
        parts = [times[start:end] for start, end in pairwise(edges)]
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


# -- the script ------------------------------------------------------------------------------------------

#: Lines around a change, as in a unified diff.
_CONTEXT: Final = 2
#: Rows shown, and characters of a line.
_ROWS: Final = 400
_LINE: Final = 200
#: Longer lines do not fit beside their numbers; this much is shown of what comes before their first difference.
_WIDE: Final = 60
_BEFORE: Final = 20
_SCHEMA: Final = {
    "file": pl.String,
    "before_line": pl.Int64,
    "after_line": pl.Int64,
    "change": pl.String,
    "text": pl.String,
}


def script_change(
    before: Mapping[str, str], after: Mapping[str, str], *, note: str = "", empty: str = ""
) -> tuple[Table, str]:
    """Compare the scripts of two runs.

    Args:
        before: Texts of the baseline by their paths, the script itself first; empty = none was kept.
        after: The same of the other; the script itself may have another name.
        note: Additional note.
        empty: Why there is nothing to compare; empty = the scripts can be compared.

    Returns:
        The differing lines with context, and a sentence with their number (empty = unknown).
    """
    pairs = list(_pairs(before, after)) if before and after else []
    rows = [row for name, old, new in pairs for row in _changed(name, old, new)]
    if len(rows) > _ROWS:
        note = " ".join(filter(None, (f"The first {_ROWS} of {len(rows)} rows.", note)))
    several = len({row["file"] for row in rows}) > 1
    gone, come = (sum(row["change"] == sign for row in rows) for sign in "-+")
    said = "the same" if pairs else ""
    if gone or come:
        said = f"{plural(gone, 'line')} removed, {plural(come, 'line')} added"
    columns = (
        Column("file", "file", elide="start", hidden=not several),
        Column("before_line", "before", "count", "Line number in the script before."),
        Column("after_line", "after", "count", "Line number in the script after."),
        Column("change", "±", whole=True, help="- removed, + added, … unchanged lines left out."),
        Column("text", "line", elide="end", code=True),
    )
    table = Table(
        "script",
        "What changed in the script",
        columns,
        pl.DataFrame(rows[:_ROWS], schema=_SCHEMA, orient="row"),
        note,
        empty or "the script did not change",
    )
    return table, said


def _pairs(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, old and new text of every file: the scripts, regardless of their names, then the others by name."""
    first, second = next(iter(before)), next(iter(after))
    yield (first if first == second else f"{first} → {second}"), before[first], after[second]
    for name in sorted((before.keys() - {first}) | (after.keys() - {second})):
        yield name, before.get(name, ""), after.get(name, "")


def _changed(name: str, old: str, new: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one file."""
    lines = old.splitlines(), new.splitlines()
    matcher = SequenceMatcher(None, *lines)
    for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT)):
        if number:
            yield {"file": name, "before_line": None, "after_line": None, "change": "…", "text": ""}
        for what, a, a_end, b, b_end in group:
            if what == "equal":
                for i, j in zip(range(a, a_end), range(b, b_end), strict=True):
                    yield _row(name, i, j, " ", lines[0][i])
                continue
            alike = [_alike(*pair) for pair in zip(lines[0][a:a_end], lines[1][b:b_end], strict=False)]
            for i in range(a, a_end):
                yield _row(name, i, None, "-", lines[0][i], *alike[i - a : i - a + 1])
            for j in range(b, b_end):
                yield _row(name, None, j, "+", lines[1][j], *alike[j - b : j - b + 1])


def _alike(one: str, other: str) -> int:
    """Return how many characters two lines begin with alike."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _row(
    name: str, before: int | None, after: int | None, change: str, text: str, alike: int = 0
) -> dict[str, Any]:
    """Return a row; of a long line whose first ``alike`` characters did not change, what did is shown."""
    if len(text) > _WIDE and alike > _WIDE - _BEFORE:
        text = f"… {text[alike - _BEFORE :]}"
    text = text.expandtabs(4).rstrip()
    return {
        "file": name,
        "before_line": None if before is None else before + 1,
        "after_line": None if after is None else after + 1,
        "change": change,
        "text": text if len(text) <= _LINE else f"{text[:_LINE]}…",
    }
