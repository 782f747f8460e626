"""What the device does: kernels by name and kind. Without a device, operators by self time."""

from __future__ import annotations

import numpy as np
import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.shared import kernel_names as _kernel_names
from tuiprof.analyses.shared.calls import BACKWARD
from tuiprof.analyses.shared.compiled.instructions import kinds_of, origins_of
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.roofline import roofline
from tuiprof.analyses.shared.scope import Scope, device_word
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints, Mask, clip, distinct, total, union
from tuiprof.model.report import listed
from tuiprof.model.units import format_ns, format_share

NAME, TITLE = "kernels", "Kernels"

_DEVICE_RULES = (
    Rule(
        "share",
        "Of the summed time of all device work in the steps (without steps: in the window), so shares add up to "
        "100 %. If streams overlap, the sum exceeds busy time, which is the union over all streams. Figures per "
        "step cover everything the step launched, in the window or after it.",
    ),
    Rule(
        "kind",
        "By name: collective, attention, Triton or Inductor, convolution, gemm, norm, optimizer, "
        "softmax or loss, embedding or index, pooling, reduction, copy, random, elementwise; the first "
        "match counts. Copies and fills as the profiler labels them, fusions of XLA by their instructions.",
    ),
    Rule(
        "tensor cores",
        "By name; empty if the name does not tell. Occupancy and grid are in the event itself.",
    ),
)
_HOST_RULES = (
    Rule("self time", "Time in an operator, excluding operators it calls on the same thread."),
    Rule("share", "Of the summed self time of all operators over all threads, so shares add up to 100 %."),
    Rule("total", "Time including everything inside; recursive calls count once."),
)
#: Shares of the work outside steps: above the first it is mentioned, above the second per-step figures would mislead.
_NOTED, _MOSTLY = 0.05, 0.5
_ITEM = ("memcpy", "memset", "collective")


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Summarize device work, or operators if there is none."""
    scope = Scope.of(trace, window)
    inside = trace.in_window(window)
    work = trace.device_work
    if inside[work].any():
        # Work launched by a step may run after the window if the device lags behind.
        return _on_device(trace, scope, work[inside[work] | scope.in_steps(work)], inside)
    rows = np.flatnonzero(trace.is_category("cpu_op") & inside).astype(np.int64)
    if len(rows):
        return _on_host(trace, scope, rows)
    return Unavailable(
        NAME,
        "neither device work nor operators in this part of the trace",
        "record ProfilerActivity.CPU, and the device's activity if there is one",
    )


def _on_device(trace: Trace, scope: Scope, work: Ints, inside: Mask) -> Report:
    lengths = trace.lengths(work)
    starts, ends = np.maximum(trace.starts[work], scope.low), np.minimum(trace.ends[work], scope.high)
    in_window = np.maximum(ends - starts, 0)
    codes = trace.name_codes[work]
    kinds = {
        code: kind.replace("triton", "Triton or Inductor") for code, kind in kinds_of(trace, work).items()
    }
    category = trace.events["category"].gather(work).cast(pl.String)
    frame = (
        pl.DataFrame(
            {
                "event": work,
                "code": codes,
                "ns": in_window,
                "length": lengths,
                "inside": inside[work],
                "category": category,
                "in_step": scope.in_steps(work),
            }
        )
        .with_columns(_in_words("kind", kinds))
        .with_columns(
            pl.when(pl.col("category").is_in(_ITEM)).then("category").otherwise("kind").alias("kind")
        )
    )
    summed = int(in_window.sum())
    busy = sum(
        total(*union(*clip(*trace.busy(device), scope.low, scope.high))) for device in trace.device_indices
    )
    names = {code: trace.names[code] for code in distinct(codes).tolist()}
    tensor_cores = {code: _yes_no(_kernel_names.is_tensor_core(name)) for code, name in names.items()}
    outside = ~scope.in_steps(work)
    apart = int(in_window[outside].sum()) / max(summed, 1) if scope.step_count else 0.0
    stepped = bool(scope.step_count) and apart <= _MOSTLY
    by_name = _group(frame, ["code", "kind"], scope, stepped=stepped).with_columns(
        _in_words("kernel", names),
        _in_words("short", _kernel_names.short_names(names)),
        _in_words("tensor_cores", tensor_cores),
        *_origins(trace, work, codes),
    )
    by_kind = _group(frame, ["kind"], scope, stepped=stepped)
    top, first = by_kind.row(0, named=True), by_name.row(0, named=True)
    word, short = device_word(trace), first["short"]
    brief = short if len(short) <= 60 else f"{short[:59]}…"
    sentence = (
        f"{format_share(top['share'])} of {word} time is {top['kind']}; the most expensive kernel is "
        f"{brief} ({format_share(first['share'])}, median {format_ns(first['median_ns'])})"
    )
    facts = (
        Fact("device_events", "device events", int(inside[work].sum()), "count"),
        Fact("work_ns", "work, sum", summed, "ns", "Over all streams; overlaps count twice."),
        Fact("busy_ns", "busy, union", busy, "ns"),
        Fact(
            "overlap",
            "sum over union",
            summed / busy if busy else None,
            "number",
            "1 = streams never overlap.",
        ),
        Fact("distinct", "distinct kernels", len(names), "count"),
        Fact("median_ns", "median length", float(np.median(lengths[inside[work]])), "ns"),
        Fact("work_ns_per_step", "work a step", scope.per_step(lengths, work) if stepped else None, "ns"),
    )
    line = _line_column(by_name)
    # Few names of a compiler's own kernels tell, and the line needs the room.
    untold = not line.hidden or by_name["tensor_cores"].eq("").all()
    name_columns = (
        *_columns(stepped),
        Column("kind", "kind", "text"),
        Column("tensor_cores", "tensor cores", "text", hidden=untold),
        Column("short", "kernel", "text", "Its name without arguments and namespaces."),
        line,
        _OPERATION,
        Column("kernel", "full name", "text", "As in the trace.", hidden=True),
        Column("event", "event", "count", hidden=True),
    )
    return Report(
        NAME,
        TITLE,
        Verdict(sentence),
        facts,
        (
            Table("kinds", "By kind", (Column("kind", "kind"), *_columns(stepped)), by_kind),
            Table("kernels", "By name", name_columns, by_name),
            _beside_limits(trace),
        ),
        _DEVICE_RULES if isinstance(roofline(trace), str) else (*_DEVICE_RULES, _ROOFLINE_RULE),
        (
            *_notes(
                apart,
                "work",
                "Most of it was launched outside the steps, or by a call missing from the trace",
            ),
            *_of_devices(len(trace.device_indices)),
        ),
        window=scope.window,
    )


def _beside_limits(trace: Trace) -> Table:
    """Compare kernels with the arithmetic and bandwidth of their chip, if the trace has shapes."""
    found = roofline(trace)
    rows, note, empty = [], "", "not known"
    if isinstance(found, str):
        empty = found
    else:
        of = "one step" if found.steps else "the middle of the trace"
        note = (
            f"{found.chip.name}, {of}: {format_ns(found.ns)} of device time would take "
            f"{format_ns(found.least_ns)} at the chip's limits (unknown operators as measured)."
        )
        rows = [
            (
                word,
                kind.count,
                kind.ns + kind.unknown_ns,
                kind.ns / max(kind.ns + kind.unknown_ns, 1.0),
                min(kind.at_peak_ns / kind.ns, 1.0) if kind.at_peak_ns else None,
                min(kind.at_bandwidth_ns / kind.ns, 1.0) if kind.ns else None,
                kind.least_ns if kind.ns else None,
            )
            for word, kind in found.kinds.items()
        ]
    columns = (
        Column("kind", "kind"),
        Column("operators", "operators", "count", "Operators with known shapes and FLOPs or bytes."),
        Column("took_ns", "took", "ns", "Device time of kernels of this kind."),
        Column("known", "known", "share", "The part of that with known FLOPs or bytes."),
        Column("arithmetic_share", "of FLOP/s", "share", "Of the chip's peak for each operator's type."),
        Column("bandwidth_share", "of bandwidth", "share", "Of the chip's memory bandwidth."),
        Column("least_ns", "at the limit", "ns", "Time of the known ones at the tighter of the two limits."),
    )
    frame = listed(columns, rows)
    return Table("roofline", "Against the chip's limits", columns, frame, note, empty, whole=bool(rows))


_ROOFLINE_RULE = Rule(
    "chip's limits",
    "FLOPs as torch.utils.flop_counter counts them (a multiply-add is two); inputs and outputs move "
    "once; peaks are the vendor's dense figures. Shares stop at 100 %: caches may serve some traffic, "
    "and some convolution algorithms need fewer operations.",
)


def _notes(apart: float, what: str, why: str) -> tuple[str, ...]:
    """Return a note if a part of the work is outside steps."""
    if apart <= _NOTED:
        return ()
    outside = f"{format_share(apart)} of the {what} lies outside the steps"
    if apart > _MOSTLY:
        return f"{outside}.", f"{why}, so figures a step are left out."
    return (f"{outside}, and is in no share.",)


def _of_devices(count: int) -> tuple[str, ...]:
    if count < 2:
        return ()
    return (f"Times are sums over {count} devices and all their streams, and can exceed a step.",)


def _in_words(column: str, words: dict[int, str], default: str | None = None) -> pl.Expr:
    """Return the word for each name code as a column; without a default, each has one."""
    found = (
        pl.col("code").replace_strict(words, return_dtype=pl.String)
        if default is None
        else pl.col("code").replace_strict(words, default=default, return_dtype=pl.String)
    )
    return found.alias(column)


def _origins(trace: Trace, rows: Ints, codes: Ints) -> list[pl.Expr]:
    """Return the source line and the operation for each name code as columns."""
    origins = origins_of(trace, rows, codes)
    return [
        _in_words(column, {code: found[at] for code, found in origins.items()}, default="")
        for at, column in enumerate(("line", "operation"))
    ]


_OPERATION = Column("operation", "operation", "text", "The operations that it is part of.", hidden=True)


def _line_column(table: pl.DataFrame) -> Column:
    return Column(
        "line",
        "line",
        "text",
        "The source line that the compiled program gives; of several, that of most of the time.",
        hidden=bool((table["line"] == "").all()),
        elide="start",
    )


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _group(frame: pl.DataFrame, by: list[str], scope: Scope, *, stepped: bool) -> pl.DataFrame:
    """Sum up by kind or name, the longest first: in the steps if figures are ``stepped``, else in the window."""
    steps = scope.step_count or None
    in_steps = pl.col("length").filter("in_step").sum()
    share = in_steps if stepped else pl.col("ns").sum()
    summed = float(frame.select(share).item())
    return (
        frame.group_by(by, maintain_order=True)
        .agg(
            pl.col("inside").sum().cast(pl.Int64).alias("count"),
            (pl.col("in_step").sum() / steps).alias("per_step"),
            pl.col("ns").sum().alias("total_ns"),
            (in_steps / steps).alias("per_step_ns"),
            (share / max(summed, 1.0)).alias("share"),
            pl.col("length").median().alias("median_ns"),
            pl.col("length").max().alias("longest_ns"),
            pl.col("event").sort_by("length", descending=True).first(),
        )
        .sort("share", "total_ns", "count", descending=True, maintain_order=True)
    )


def _columns(stepped: bool) -> tuple[Column, ...]:
    return (
        Column("per_step_ns", "a step", "ns", hidden=not stepped),
        Column("total_ns", "total", "ns", hidden=stepped),
        Column("share", "share", "share", "Of the summed time of all device work listed."),
        Column("per_step", "n/step", "count", hidden=not stepped),
        Column("count", "n", "count", hidden=stepped),
        Column("median_ns", "median", "ns"),
        Column("longest_ns", "longest", "ns"),
    )


def _on_host(trace: Trace, scope: Scope, rows: Ints) -> Report:
    """Operators by self time: the CPU is the device."""
    own = self_times(trace, rows)
    codes = trace.name_codes[rows]
    # An operator that calls itself (aten::to in aten::to) is counted once in its total.
    nested = np.zeros(len(rows), dtype=bool)
    at = trace.nesting.parent[rows]
    climbing = np.flatnonzero(at >= 0)
    while len(climbing):
        above = at[climbing]
        nested[climbing] = trace.name_codes[above] == codes[climbing]
        at[climbing] = trace.nesting.parent[above]
        climbing = climbing[~nested[climbing] & (at[climbing] >= 0)]
    lengths = np.where(nested, 0, trace.lengths(rows))
    frame = pl.DataFrame(
        {
            "event": rows,
            "code": codes,
            "ns": own,
            "length": own,
            "inside": np.ones(len(rows), dtype=bool),
            "with_inner": lengths,
            "in_step": scope.in_steps(rows),
        }
    )
    summed = int(own.sum())
    inner = frame.group_by("code").agg(pl.col("with_inner").sum().alias("with_inner_ns"))
    apart = int(own[trace.steps.step_of[rows] < 0].sum()) / max(summed, 1) if scope.step_count else 0.0
    stepped = bool(scope.step_count) and apart <= _MOSTLY
    table = _group(frame, ["code"], scope, stepped=stepped).join(inner, on="code", how="left")
    labels = {code: operator_label(trace.names[code]) for code in distinct(codes).tolist()}
    for code, label in labels.items():
        if trace.names[code] == f"{BACKWARD}{label}":  # the operator itself has the same name
            labels[code] = f"{label} (engine)"
    table = table.with_columns(_in_words("operator", labels), *_origins(trace, rows, codes))
    threads = len(distinct(trace.track_codes[rows]))
    busy = total(*trace.union(rows))
    first = table.row(0, named=True)
    sentence = (
        f"no device activity in this trace; on the CPU, {first['operator']} takes "
        f"{format_share(first['share'])} ({format_ns(first['per_step_ns' if stepped else 'total_ns'])} self time"
        f"{' a step' if stepped else ''})"
    )
    notes = _notes(apart, "self time", "The work runs later than its step markers")
    columns = (
        Column("operator", "operator", "text"),
        Column("per_step_ns", "self/step", "ns", hidden=not stepped),
        Column("total_ns", "self", "ns", hidden=stepped),
        Column("share", "share", "share", "Of the summed self time."),
        Column("per_step", "n/step", "count", hidden=not stepped),
        Column("count", "n", "count", hidden=stepped),
        Column("median_ns", "median", "ns", "Median self time of a call."),
        Column("longest_ns", "longest", "ns"),
        Column("with_inner_ns", "total", "ns", "Including everything inside."),
        _line_column(table),
        _OPERATION,
        Column("event", "event", "count", hidden=True),
    )
    return Report(
        NAME,
        "Operators",
        Verdict(sentence),
        (
            Fact("operators", "operator calls", len(rows), "count"),
            Fact("self_ns", "self time, sum", summed, "ns", "Over all threads."),
            Fact(
                "busy_ns",
                "in operators, union",
                busy,
                "ns",
                "Time in which at least one thread is in an operator.",
            ),
            Fact("threads", "threads", threads, "count"),
            Fact("distinct", "distinct operators", len(labels), "count"),
            Fact(
                "self_ns_per_step", "self time a step", scope.per_step(own, rows) if stepped else None, "ns"
            ),
        ),
        (Table("operators", "Operators by self time", columns, table),),
        _HOST_RULES,
        notes,
        window=scope.window,
    )


def self_times(trace: Trace, rows: Ints, among: Mask | None = None) -> Ints:
    """Return the self time of events: without the events of the same kind (by default operators) inside them, ns."""
    is_one = trace.is_category("cpu_op") if among is None else among
    all_of_them = np.flatnonzero(is_one)
    at = trace.nesting.nearest(all_of_them, is_one)
    inner = np.zeros(len(trace), dtype=np.int64)
    np.add.at(inner, at[at >= 0], trace.lengths(all_of_them[at >= 0]))
    # Asynchronous ranges inside one operator may overlap, and their sum may exceed the operator.
    own: Ints = np.maximum(trace.lengths(rows) - inner[rows], 0)
    return own


ANALYSIS = Analysis(NAME, TITLE, "What does the device spend its time on?", run, order=40)
