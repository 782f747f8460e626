"""The cost of compilation inside the window: time, recompiles, compiled regions."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.scope import Scope, host_time_by_step
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints, clip, distinct, total
from tuiprof.model.units import format_ns, format_share, plural

NAME, TITLE = "compile", "Compile"

_REGION = re.compile(r"^Torch-Compiled Region: (?P<frame>\d+)/(?P<version>\d+)")
_COMPILED = r"^(Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction|CompiledFunctionBackward$)"
_RULES = (
    Rule(
        "compile time",
        "Union of the compiler's own ranges (Dynamo, AOTAutograd, Inductor, Triton, XLA) on the host; "
        "0 if there are none.",
    ),
    Rule(
        "recompile",
        "A compiled region runs version 1 or later (`Torch-Compiled Region: frame/version`): guards of "
        "an earlier version failed.",
    ),
    Rule(
        "regions a step",
        "Distinct compiled frames run in a step; more than one in a forward pass means graph breaks.",
    ),
)


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Find compilation and compiled code."""
    scope = Scope.of(trace, window)
    inside = trace.in_window(window) & trace.on_host
    compiling = np.flatnonzero((trace.named(_idle.COMPILE) | trace.is_category("compile")) & inside)
    compiled = np.flatnonzero(trace.named(_COMPILED) & inside & ~trace.is_category("python_function"))
    if not len(compiling) and not len(compiled):
        return Unavailable(NAME, "nothing was compiled: no compiler ranges or regions", "")
    time = total(*clip(*trace.union(compiling), scope.low, scope.high))
    regions = _regions(trace, scope, compiled)
    recompiled = regions.filter(pl.col("version") > 0)
    per_step = None
    if scope.step_count:
        per_step = float(host_time_by_step(scope, trace.starts[compiling], trace.ends[compiling]).mean())
    again = recompiled["frame"].n_unique() if len(regions) else None
    facts = (
        Fact("compile_ns", "compiling", time, "ns"),
        Fact("compile_ns_per_step", "a step", per_step, "ns"),
        Fact("compile_share", "of the window", time / max(scope.high - scope.low, 1), "share"),
        Fact("regions", "compiled frames", regions["frame"].n_unique() if len(regions) else None, "count"),
        Fact("recompiled", "recompiled frames", again, "count"),
    )
    return Report(
        NAME,
        TITLE,
        _verdict(scope, time, regions, recompiled),
        facts,
        (_region_table(regions), _time_table(trace, compiling)),
        _RULES,
        window=window,
    )


def _verdict(scope: Scope, time: int, regions: pl.DataFrame, recompiled: pl.DataFrame) -> Verdict:
    frames = plural(recompiled["frame"].n_unique(), "frame") if len(recompiled) else ""
    if time:
        share = format_share(time / max(scope.high - scope.low, 1))
        said = f"compiling takes {format_ns(time)} ({share}) of {scope.over}, so these are not steady-state figures"
        return Verdict(said + (f"; {frames} recompiled" if frames else ""), "bad")
    if frames:
        return Verdict(f"nothing compiles in {scope.over}, but {frames} recompiled earlier", "warn")
    many = regions["frame"].n_unique() if len(regions) else 0
    said = f"nothing compiles in {scope.over}"
    return Verdict(said + (f"; compiled frames in use: {many}" if many else ""), "good")


def _regions(trace: Trace, scope: Scope, rows: Ints) -> pl.DataFrame:
    found = []
    for code in distinct(trace.name_codes[rows]).tolist():
        match = _REGION.match(trace.names[code])
        if match is None:
            continue
        mine = rows[trace.name_codes[rows] == code]
        found.append(
            {
                "region": trace.names[code],
                "frame": int(match["frame"]),
                "version": int(match["version"]),
                "count": len(mine),
                "per_step": scope.per_step(np.ones(len(mine)), mine),
                "total_ns": int(trace.lengths(mine).sum()),
                "event": int(mine[0]),
            }
        )
    numbers = dict.fromkeys(("frame", "version", "count", "total_ns", "event"), pl.Int64)
    schema = {"region": pl.String, "per_step": pl.Float64, **numbers}
    return pl.DataFrame(found, schema=schema).sort("total_ns", descending=True)


def _region_table(regions: pl.DataFrame) -> Table:
    columns = (
        Column("region", "region", "text"),
        Column("version", "version", "count", "0 = the first compilation."),
        Column("count", "n", "count"),
        Column("per_step", "n/step", "count"),
        Column("total_ns", "host time", "ns"),
        Column("event", "event", "count", hidden=True),
    )
    return Table(
        "regions",
        "Compiled regions",
        columns,
        regions,
        empty="the trace does not number its compiled regions",
    )


def _time_table(trace: Trace, rows: Ints) -> Table:
    outer = _waits.outermost(trace, rows)
    frame = (
        pl.DataFrame(
            {
                "event": outer,
                "what": pl.Series([trace.name(int(row)) for row in outer], dtype=pl.String),
                "start_ns": trace.starts[outer],
                "ns": trace.lengths(outer),
            }
        )
    ).sort("ns", descending=True)
    columns = (
        Column("what", "what", "text"),
        Column("start_ns", "at", "ns"),
        Column("ns", "time", "ns"),
        Column("event", "event", "count", hidden=True),
    )
    return Table("compiling", "Compilations", columns, frame, empty="nothing compiles in this part")


ANALYSIS = Analysis(NAME, TITLE, "Does anything compile or recompile in the window?", run, order=80)
