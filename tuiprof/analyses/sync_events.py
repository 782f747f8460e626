"""Which line made the host wait for the device, and what that cost."""

from __future__ import annotations

import polars as pl

from tuiprof.analyses import Analysis, _catch_up, _wait_table, _waits
from tuiprof.analyses._scope import Scope, device_word, no_device, plural
from tuiprof.analyses._step_times import step_times
from tuiprof.analyses._wait_table import WaitTable
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import total
from tuiprof.model.report import Level
from tuiprof.model.units import format_count, format_ns, format_share

NAME, TITLE = "sync_events", "Syncs"

#: From this share of the step to be won on, syncs are called bad; from the lower one on, worth a look.
BAD_SHARE, WARN_SHARE = 0.05, 0.01
#: Below this share of the step to be won, syncs are called harmless.
HARMLESS_SHARE = 0.0005

_RULES = (
    Rule(
        "sync",
        "A call in which the host stands until the device reaches a point: stream, device and event synchronise, "
        "blocking copies, copies of pageable memory that had begun on the device before the call returned, "
        "allocator calls (cudaMalloc, cudaFree, cudaHostAlloc and their equals), XLA's awaits and reads of buffers. A "
        "copy and the synchronise that the same operator makes after it are one sync.",
    ),
    Rule(
        "host wait",
        "Time inside the blocking calls. Not all of it is lost: a wait while the device has work is free.",
    ),
    Rule(
        "device starved",
        "From when all work launched before the sync's end is done (not before the wait began) to the start of the "
        "first work launched after it: the device is idle on all streams for want of the host. Each instant is "
        "charged once, to the sync that began last.",
    ),
    Rule(
        "catch-up",
        "Further idle time that late launches cause, because the host has lost its head start: gaps that end with work "
        "whose launch began after the device had run dry, from there until the host is ahead again (the device comes "
        f"to work that was launched {format_ns(_catch_up.LEAD_NS)} before or earlier) or until the next sync. Of a "
        "read of XLA's also such gaps inside it, because it launches its copy itself.",
    ),
    Rule(
        "can win",
        "Upper bound of what removing the syncs of one place can win: in each step the smaller of their host waits and "
        "of starved + catch-up; without a wait the host comes no further ahead than by the time it stood. Places are "
        "ranked by it. The headline figure is for all syncs removed together.",
    ),
    Rule(
        "verdict",
        f"bad where removing syncs can win {format_share(BAD_SHARE)} of the step or more, a warning from "
        f"{format_share(WARN_SHARE)}; harmless below {format_share(HARMLESS_SHARE)}.",
    ),
    Rule(
        "where",
        "file:line = the line itself, from the framework's own sync warning; file function() from line N = the "
        "function that begins at line N (a trace knows no more); else the innermost named range, else the operators.",
    ),
)


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Find the waits, their cost and their place.

    Args:
        trace: The trace.
        window: The part to look at.
    """
    if not len(trace.host_calls) and not _waits.calls_by_kind(trace)[0].size:
        return _unavailable(trace)
    scope = Scope.of(trace, window)
    table = _wait_table.build(trace, scope)
    counted = table.counted
    groups = _wait_table.group(table, scope)
    word = device_word(trace)
    figures = _figures(trace, scope, table, counted)
    facts = tuple(_facts(scope, table, counted, figures))
    notes = tuple(_notes(trace, scope, table))
    return Report(
        NAME,
        TITLE,
        _verdict(trace, scope, groups, figures, word),
        facts,
        tuple(_tables(trace, scope, table, groups)),
        _RULES,
        notes,
        window,
    )


def _unavailable(trace: Trace) -> Unavailable:
    if not len(trace.device_work):
        return no_device(
            trace,
            NAME,
            "nothing runs beside the host, so the host never waits for a device",
            "look at `kernels` (operators by self time), `steps` and `data_loading`",
        )
    return Unavailable(
        NAME,
        "device work but no runtime calls were recorded, so the host's waits cannot be seen",
        "record the CUDA, HIP or XPU runtime as well: ProfilerActivity.CPU together with the device's activity",
    )


def _figures(trace: Trace, scope: Scope, table: WaitTable, counted: pl.DataFrame) -> dict[str, float | None]:
    """Return the headline figures, per step where there are steps, else in all."""
    stepped = bool(scope.step_count)
    in_steps = counted.filter(pl.col("in_step")) if stepped else counted
    per = scope.step_count or 1
    starved, catch_up, waited = (
        float(in_steps[key].sum()) / per for key in ("starved_ns", "catch_up_ns", "waited_ns")
    )
    win = float(_wait_table.recoverable(in_steps, (), None)["can_win_ns"][0]) / per
    if stepped:
        # With several devices each can be starved for the whole step.
        base = float(step_times(scope).period.sum()) * max(len(trace.device_indices), 1)
    else:
        base = float(sum(high - low for low, high in map(scope.device_span, trace.device_indices)))
    has_device, base = bool(trace.device_indices), base / per
    return {
        "count": len(in_steps) / per,
        "waited": waited,
        "starved": starved if has_device else None,
        "catch_up": catch_up if has_device else None,
        "can_win": win if has_device else None,
        "share": min(starved / base, 1.0) if has_device and base else None,
        "win_share": min(win / base, 1.0) if has_device and base else None,
    }


def _facts(
    scope: Scope, table: WaitTable, counted: pl.DataFrame, figures: dict[str, float | None]
) -> list[Fact]:
    stepped = bool(scope.step_count)
    inside = _waits.inside_calls(scope.trace, table.waits, table.waits.apart == _waits.COUNTED)
    has_device = figures["starved"] is not None
    lines_known = int((counted["found"] == "line").sum())
    return [
        Fact("steps", "steps", scope.step_count or None, "count", "Whole steps in the window."),
        Fact("syncs_per_step", "syncs a step", figures["count"] if stepped else None, "count"),
        Fact(
            "can_win_ns_per_step",
            "can win a step, at most",
            figures["can_win"] if stepped else None,
            "ns",
            "What removing all syncs can win: in each step the smaller of host waits and starved + catch-up.",
        ),
        Fact(
            "device_starved_ns_per_step",
            "starved a step",
            figures["starved"] if stepped else None,
            "ns",
            "Idle time of the device from a sync until the next launch arrives.",
        ),
        Fact(
            "device_catch_up_ns_per_step",
            "catch-up a step",
            figures["catch_up"] if stepped else None,
            "ns",
            "Further idle time from late launches until the host is ahead again.",
        ),
        Fact(
            "starved_share", "starved", figures["share"], "share", "Device-starved time over the steps' time."
        ),
        Fact("host_wait_ns_per_step", "host waits a step", figures["waited"] if stepped else None, "ns"),
        Fact("syncs", "syncs in all", len(counted), "count"),
        Fact(
            "device_starved_ns",
            "starved in all",
            int(counted["starved_ns"].sum()) if has_device else None,
            "ns",
            "Every instant is charged to one sync only, so this is a sum and a union at once.",
        ),
        Fact(
            "device_catch_up_ns",
            "catch-up in all",
            int(counted["catch_up_ns"].sum()) if has_device else None,
            "ns",
            "As starved time, charged once.",
        ),
        Fact(
            "host_wait_ns", "host wait, sum", int(counted["waited_ns"].sum()), "ns", "Added over all threads."
        ),
        Fact(
            "host_wait_union_ns",
            "host wait, union",
            total(*inside),
            "ns",
            "Time in which at least one thread is inside a blocking call.",
        ),
        Fact(
            "lines_known", "syncs with their exact line", lines_known if table.sites.seen else None, "count"
        ),
        Fact(
            "sites_unjoined",
            "source lines that met no sync",
            table.sites.unjoined if table.sites.seen else None,
            "count",
        ),
        Fact("syncs_apart", "listed apart", len(table.waits) - len(counted), "count"),
    ]


def _verdict(
    trace: Trace, scope: Scope, groups: pl.DataFrame, figures: dict[str, float | None], word: str
) -> Verdict:
    count, waited, win, gain = (figures[k] or 0.0 for k in ("count", "waited", "can_win", "win_share"))
    lost = (figures["starved"] or 0.0) + (figures["catch_up"] or 0.0)
    a_step = " a step" if scope.step_count else ""
    one = format_count(round(count, 2)) == "1"
    hold = f"{plural(count, 'sync')}{a_step} {'holds' if one else 'hold'} the host {format_ns(waited)}"
    if not len(groups) and figures["starved"] is None:
        return Verdict(
            "no synchronise calls; without device activity, copies that block cannot be told", "info"
        )
    if not len(groups):
        return Verdict(f"no syncs: the host never waits for the {word} in {scope.over}", "good")
    if figures["starved"] is None:
        return Verdict(f"{hold}; without device activity in the trace their cost cannot be told", "info")
    if not count:
        outside = plural(float(groups["count"].sum()), "sync")
        return Verdict(f"no syncs in {scope.over}; {outside} outside of them", "good")
    if gain < HARMLESS_SHARE:
        dry = f"hardly runs dry for {'it' if one else 'them'} ({format_ns(win)})" if win else "never runs dry"
        return Verdict(f"{hold}, but the {word} {dry}: harmless", "good")
    level: Level = "bad" if gain >= BAD_SHARE else "warn" if gain >= WARN_SHARE else "good"
    cost = f"{hold} and {'costs' if one else 'cost'} the {word} up to {format_ns(win)} ({format_share(gain)})"
    # The device idles for longer than the host stood: the rest is not the syncs' fault.
    most = (
        f" of the {format_ns(lost)} that it idles after {'it' if one else 'them'}" if win < 0.7 * lost else ""
    )
    return Verdict(f"{cost}{most}{', most of it at' if len(groups) > 1 else ':'} {_place(groups)}", level)


def _place(groups: pl.DataFrame) -> str:
    """Return the first group's place for a sentence: ``where function (through)``."""
    first = groups.row(0, named=True)
    # "file function() from line N" names the function already.
    named = first["where"] if first["found"] != "line" else f"{first['where']} {first['in']}".strip()
    through = first["through"]
    return f"{named} ({through})" if through and through != named else named


def _notes(trace: Trace, scope: Scope, table: WaitTable) -> list[str]:
    notes = []
    if not trace.device_indices:
        notes.append(
            "No device activity in this trace: starved time and what a sync waited for cannot be told."
        )
    if not trace.steps.numbers.size:
        notes.append("No step markers: figures are for the whole window, not per step.")
    if table.counted.is_empty():
        return notes
    if trace.is_category("python_function").any():
        notes.append(
            "Recorded with Python stacks, which slow the host down: without them it is late less often, and the device "
            "idles less than here."
        )
    if not (table.counted["found"].is_in(["line", "function"])).any():
        notes.append("No Python frames and no sync warnings: places are named ranges or operators.")
    if table.sites.unjoined:
        notes.append(
            f"{table.sites.unjoined} of {table.sites.seen} source lines the probe saw met no sync here."
        )
    return notes


def _tables(trace: Trace, scope: Scope, table: WaitTable, groups: pl.DataFrame) -> list[Table]:
    stepped = bool(scope.step_count)
    figures = (
        ("can_win_ns", "can win", "What removing the syncs of this place can win, at most"),
        ("starved_ns", "starved", "Device-starved time"),
        ("catch_up_ns", "catch-up", "Further device idle until the host is ahead again"),
        ("waited_ns", "waited", "Host wait"),
    )
    cost = (
        *(
            Column(f"{key}_per_step", f"{label}/step", "ns", f"{help_}, a step.", hidden=not stepped)
            for key, label, help_ in figures
        ),
        Column("per_step", "n/step", "count", "Syncs a step.", hidden=not stepped),
        *(Column(key, label, "ns", f"{help_}, in all.", hidden=stepped) for key, label, help_ in figures),
        Column("count", "n", "count", "Syncs in all.", hidden=stepped),
    )
    place = (
        Column("kind", "kind", "text", "Why the host waits."),
        Column("where", "where", "text", "Line, function, named range or operator.", elide="start"),
        Column("through", "through", "text", "Operators, outermost first."),
        Column(
            "called_from",
            "called from",
            "text",
            "Innermost frame of the script's own code, where the wait is in a library.",
            hidden=not (table.frame["called_from"] != "").any(),
            elide="start",
        ),
        Column("in", "in", "text", "Function."),
        Column("range", "range", "text", "Innermost named range.", hidden=True),
        Column("calls", "calls", "text", "Calls of one sync.", hidden=True),
        Column(
            "found", "found by", "text", "What `where` is: line, function, range or operator.", hidden=True
        ),
        Column("stack", "stack", "text", "Python frames, innermost first, one a line.", hidden=True),
    )
    work = (
        Column("waited_for", "waited for", "text", "Last device work that ended before it.", hidden=True),
        Column("delayed", "delayed", "text", "First device work launched after it.", hidden=True),
        Column("bytes", "bytes", "bytes", "Bytes its copies moved.", hidden=True),
        Column("event", "event", "count", hidden=True),
    )
    moment = (
        Column("start_ns", "at", "ns", "When the host began to wait."),
        Column("step", "step", "text"),
    )
    lost = (
        Column("can_win_ns", "can win", "ns", "By itself: the smaller of its wait and starved + catch-up."),
        Column("starved_ns", "starved", "ns"),
        Column("catch_up_ns", "catch-up", "ns"),
    )
    waited = Column("waited_ns", "waited", "ns")
    apart = table.frame.filter(pl.col("apart") != "")
    calls = _wait_table.calls(trace, scope)
    return [
        Table("groups", "Syncs by place", (*cost, *place, *work), groups, _apart_note(apart), "no syncs"),
        Table(
            "apart",
            "Listed apart, not in any total",
            (Column("apart", "why", "text", whole=True), *moment, waited, *place, *work),
            apart,
            empty="none",
        ),
        Table(
            "calls",
            "Calls that wait, by name",
            (
                Column("call", "call", "text"),
                Column("count", "n", "count", "Calls in the window, those listed apart included."),
                Column("total_ns", "total", "ns", "Summed length."),
                Column("longest_ns", "longest", "ns"),
            ),
            calls,
            empty="none",
        ),
        Table(
            "syncs",
            "Every sync",
            (*moment, *lost, waited, *place, *work),
            table.counted.sort("can_win_ns", "starved_ns", "waited_ns", descending=True),
            empty="no syncs",
        ),
    ]


def _apart_note(apart: pl.DataFrame) -> str:
    if apart.is_empty():
        return ""
    counts = apart.group_by("apart", "calls", maintain_order=True).len()
    said = [f"{n} {why} ({calls})" for why, calls, n in counts.iter_rows()]
    return "excluded: " + ", ".join(said)


ANALYSIS = Analysis(
    NAME, TITLE, "Which line made the host wait for the device, and what did that cost?", run, order=10
)
