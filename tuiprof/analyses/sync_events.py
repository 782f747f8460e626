"""Which line made the host wait for the device, and what that cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.shared import wait_table as _wait_table
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.replay import in_part, replayed_steps
from tuiprof.analyses.shared.scope import Scope, device_word, no_device, step_times
from tuiprof.analyses.shared.wait_table import LEAD_NS, WaitTable
from tuiprof.model import Column, Fact, Report, RowsOf, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import total
from tuiprof.model.report import Level
from tuiprof.model.units import format_ns, format_share, plural
from tuiprof.whatif.replay import Kinds

NAME, TITLE = "sync_events", "Syncs"

#: Possible savings, as a share of the step, from which syncs are rated bad, or worth a look.
BAD_SHARE, WARN_SHARE = 0.05, 0.01
#: With a smaller possible saving, as a share of the step, syncs are rated harmless.
HARMLESS_SHARE = 0.0005
#: Fewer syncs a step are counted over all steps.
_RARE = 0.9
#: If the locations together save less than this share of what all syncs do, only removing all of them helps.
_ALONE = 0.7


@dataclass(frozen=True, slots=True)
class WaitLocation:
    """One location where the host waits for the device, with all its waits: a row of the table of waits by location."""

    kind: str  # why the host waits, one of :data:`~tuiprof.analyses.shared.waits.KINDS`
    where: str  # line, function, named range or operator; ``found`` says which
    in_: str  # function; empty = unknown
    called_from: str  # innermost line of the script if the wait is in a library; else empty
    through: str  # operators, outermost first
    range: str  # innermost named range
    calls: str  # calls of one wait, joined by ``" + "``
    found: str  # what ``where`` is: ``line``, ``function``, ``range`` or ``operator``
    stack: str  # Python frames, innermost first, one a line
    count: int  # waits in all
    per_step: float | None  # waits a step; None = the trace marks no steps
    blocked_ns: int  # time of the host inside the calls, in all
    bytes: int | None  # bytes that its copies moved; None = unknown
    event: int  # row of the typical wait's last call

    @property
    def at_line(self) -> bool:
        """Whether the exact source line is known."""
        return self.found == "line"


#: The waits by location, the most expensive first.
WAIT_LOCATIONS: Final = RowsOf(NAME, "groups", WaitLocation)

_RULES = (
    Rule(
        "sync",
        "A call that blocks the host until the device reaches a point: stream, device and event "
        "synchronise, blocking copies, pageable copies that had begun on the device before the call "
        "returned, allocator calls (cudaMalloc, cudaFree, cudaHostAlloc and equivalents), XLA buffer "
        "awaits and reads. A copy and the synchronise after it by the same operator are one sync.",
    ),
    Rule(
        "host blocked",
        "Time inside blocking calls. Not all of it is lost: waiting while the device has work costs nothing.",
    ),
    Rule(
        "device empty",
        "From when all work launched before the sync's end is done (at the earliest, the start of the "
        "wait) to the start of the first work launched after it: the device is idle on all streams, "
        "waiting for the host. Each instant is charged once, to the sync that began last.",
    ),
    Rule(
        "refill",
        "Further idle time from late launches, because the host lost its lead: gaps ended by work "
        "whose launch began after the device had run dry, until the host is ahead again (the device "
        f"reaches work launched at least {format_ns(LEAD_NS)} earlier) or until the next sync. For XLA "
        "reads, also such gaps inside the read, because it launches its own copy.",
    ),
    Rule(
        "saves",
        "How much shorter a step without the profiler is without the syncs of one location: the step is "
        "replayed without them. If it cannot be replayed, an upper bound: each wait adds to a credit, "
        "and later device idle time counts as saved as far as the credit covers it. Locations are ranked "
        "by it; the headline is for all syncs removed together.",
    ),
    Rule(
        "verdict",
        f"bad where removing syncs saves {format_share(BAD_SHARE)} of the step or more, a warning from "
        f"{format_share(WARN_SHARE)}; harmless below {format_share(HARMLESS_SHARE)}.",
    ),
    Rule(
        "where",
        "file:line = the line itself, from the framework's own sync warning; file function() from line "
        "N = the function that begins at line N (all a trace knows), without a line if it ran already when the "
        "profiler started; otherwise the innermost named range, otherwise the operators.",
    ),
)


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Find the waits, their cost and their location."""
    if not len(trace.host_calls) and not _waits.calls_by_kind(trace)[0].size:
        return _unavailable(trace)
    scope = Scope.of(trace, window)
    table = _wait_table.build(trace, scope)
    counted = table.counted
    step = replayed_steps(trace) if window.whole and trace.device_indices and not in_part(trace) else ""
    found = None if isinstance(step, str) else step
    groups = _wait_table.group(table, scope, found)
    word = device_word(trace)
    figures = _figures(trace, scope, counted, found)
    inside_ns = total(*_waits.inside_calls(trace, table.waits, table.waits.apart == _waits.COUNTED))
    # Threads that wait at the same time block the host once.
    summed_ns = max(int(counted["blocked_ns"].sum()), 1)
    figures["blocked"] = (figures["waited"] or 0.0) * min(inside_ns / summed_ns, 1.0)
    facts = tuple(_facts(scope, table, counted, figures, word, inside_ns))
    notes = tuple(_notes(trace, table))
    return Report(
        NAME,
        TITLE,
        _verdict(scope, groups, figures, word, found),
        facts,
        tuple(_tables(trace, scope, table, groups, word)),
        _RULES,
        notes,
        window,
    )


def _unavailable(trace: Trace) -> Unavailable:
    if not len(trace.device_work):
        return no_device(
            trace,
            NAME,
            "no work runs asynchronously, so the host never waits for a device",
            "see Operators (`kernels`), Steps (`steps`) and Data (`data_loading`)",
        )
    return Unavailable(
        NAME,
        "device work but no runtime calls were recorded, so the host's waits cannot be seen",
        "record the CUDA, HIP or XPU runtime as well: ProfilerActivity.CPU together with the device's activity",
    )


def _figures(
    trace: Trace, scope: Scope, counted: pl.DataFrame, step: Kinds | None
) -> dict[str, float | None]:
    """Return the headline figures, per step if there are steps, else in total."""
    stepped = bool(scope.step_count)
    in_steps = counted.filter(pl.col("in_step")) if stepped else counted
    per = scope.step_count or 1
    empty, refill, waited = (
        float(in_steps[key].sum()) / per for key in ("empty_ns", "refill_ns", "blocked_ns")
    )
    has_device = bool(trace.device_indices)
    if stepped:
        # With several devices, each can be empty for the whole step.
        base = float(step_times(scope).period.sum()) * max(len(trace.device_indices), 1) / per
    else:
        base = float(sum(high - low for low, high in map(scope.device_span, trace.device_indices)))
    key = "saves_ns_per_step" if stepped else "saves_ns"
    if step is not None:
        win, whole = step.likely_ns(_wait_table.without(trace, in_steps)), step.step_ns
    else:
        win, whole = float(_wait_table.bound(in_steps, (), per)[key][0] or 0.0), base
    return {
        "count": len(in_steps) / per,
        "waited": waited,
        "empty": empty if has_device else None,
        "refill": refill if has_device else None,
        "saves": win if has_device else None,
        "share": min(empty / base, 1.0) if has_device and base else None,
        "saves_share": min(win / whole, 1.0) if has_device and whole else None,
    }


def _facts(
    scope: Scope,
    table: WaitTable,
    counted: pl.DataFrame,
    figures: dict[str, float | None],
    word: str,
    inside_ns: int,
) -> list[Fact]:
    stepped = bool(scope.step_count)
    has_device = figures["empty"] is not None
    lines_known = int((counted["found"] == "line").sum())
    return [
        Fact("steps", "steps", scope.step_count or None, "count", "Whole steps in the window."),
        Fact("syncs_per_step", "syncs a step", figures["count"] if stepped else None, "count"),
        Fact(
            "saves_ns_per_step",
            "removing them saves",
            figures["saves"] if stepped else None,
            "ns",
            "How much shorter a step is without any sync: see the rule.",
        ),
        Fact("saves_share", "of a step", figures["saves_share"] if stepped else None, "share"),
        Fact(
            "device_empty_ns_per_step",
            f"{word} empty a step",
            figures["empty"] if stepped else None,
            "ns",
            "Device idle time from a sync until the next launch arrives.",
        ),
        Fact(
            "device_refill_ns_per_step",
            f"{word} refill a step",
            figures["refill"] if stepped else None,
            "ns",
            "Further idle time due to late launches, until the host is ahead again.",
        ),
        Fact(
            "empty_share",
            f"{word} empty",
            figures["share"],
            "share",
            "Device-empty time over the steps' time.",
        ),
        Fact("host_blocked_ns_per_step", "host blocked a step", figures["waited"] if stepped else None, "ns"),
        Fact("syncs", "syncs in all", len(counted), "count"),
        Fact(
            "device_empty_ns",
            f"{word} empty in all",
            int(counted["empty_ns"].sum()) if has_device else None,
            "ns",
            "Each instant is charged to one sync only, so sum and union are the same.",
        ),
        Fact(
            "device_refill_ns",
            f"{word} refill in all",
            int(counted["refill_ns"].sum()) if has_device else None,
            "ns",
            "Like empty time, charged once.",
        ),
        Fact(
            "host_blocked_ns",
            "host blocked, sum",
            int(counted["blocked_ns"].sum()),
            "ns",
            "Summed over all threads.",
        ),
        Fact(
            "host_blocked_union_ns",
            "host blocked, union",
            inside_ns,
            "ns",
            "Time in which at least one thread is inside a blocking call.",
        ),
        Fact(
            "lines_known", "syncs with their exact line", lines_known if table.sites.seen else None, "count"
        ),
        Fact(
            "sites_unjoined",
            "source lines without a sync",
            table.sites.unjoined if table.sites.seen else None,
            "count",
        ),
        Fact("syncs_apart", "listed apart", len(table.waits) - len(counted), "count"),
    ]


def _verdict(
    scope: Scope, groups: pl.DataFrame, figures: dict[str, float | None], word: str, step: Kinds | None
) -> Verdict:
    count, blocked, saves, share = (figures[k] or 0.0 for k in ("count", "blocked", "saves", "saves_share"))
    rare = scope.step_count if 0 < count < _RARE else 0  # so few that they are counted over all steps
    syncs = plural(count * (rare or 1), "sync")
    often = f" in {plural(rare, 'step')}" if rare else " a step" if scope.step_count else ""
    one = syncs == "1 sync"
    block = f"{syncs}{often} {'blocks' if one else 'block'} the host for {format_ns(blocked * (rare or 1))}"
    if not len(groups) and figures["empty"] is None:
        return Verdict(
            "no synchronise calls; without device activity, blocking copies are not recognised", "info"
        )
    if not len(groups):
        return Verdict(f"no syncs: the host never waits for the {word} in {scope.over}", "good")
    if figures["empty"] is None:
        return Verdict(
            f"{block}; without device activity, how much of that is computation is unknown", "info"
        )
    if not count:
        outside = plural(float(groups["count"].sum()), "sync")
        return Verdict(f"no syncs in {scope.over}; {outside} outside of them", "good")
    them = "it" if one else "them"
    if share < HARMLESS_SHARE:
        what = "a step" if scope.step_count else "the run"
        return Verdict(f"{block}, but removing {them} would not shorten {what}: harmless", "good")
    level: Level = "bad" if share >= BAD_SHARE else "warn" if share >= WARN_SHARE else "good"
    how = "about" if step is not None else "up to"
    each = groups["saves_ns_per_step" if scope.step_count else "saves_ns"].fill_null(0.0)
    jointly = len(groups) > 1 and each.sum() < _ALONE * saves
    if saves > blocked and format_ns(saves) != format_ns(blocked) and not jointly:
        block += " while captured"  # a host that the profiler slows waits less
    gain = (
        f"removing {'all of them' if jointly else them} saves {how} {format_ns(saves)}{' a step' if rare else ''} "
        f"({format_share(share)})"
    )
    if len(groups) == 1:
        return Verdict(f"{block}; {gain}: {_location(groups)}", level)
    first = float(each[0])
    if jointly:
        alone = f"the costliest alone saves {format_ns(first)}: {_location(groups)}"
        return Verdict(f"{block}; {gain}, as the host can then run ahead; {alone}", level)
    most = "most of it at" if first > 0.5 * saves else f"{format_ns(first)} of it at"
    return Verdict(f"{block}; {gain}, {most} {_location(groups)}", level)


def _location(groups: pl.DataFrame) -> str:
    """Return the first group's location for a sentence: ``where function (through)``."""
    first = groups.row(0, named=True)
    # "file function() from line N" names the function already.
    named = first["where"] if first["found"] != "line" else f"{first['where']} {first['in']}".strip()
    through = first["through"]
    return f"{named} ({through})" if through and through != named else named


def _notes(trace: Trace, table: WaitTable) -> list[str]:
    notes = []
    if not trace.device_indices:
        notes.append("No device activity in this trace: GPU empty and what a sync waited for are unknown.")
    if not trace.steps.numbers.size:
        notes.append("No step markers: figures are for the whole window, not per step.")
    if table.counted.is_empty():
        return notes
    if trace.is_category("python_function").any():
        notes.append(
            "Recorded with Python stacks, which slow the host: without them the device is idle less than shown here."
        )
    if not (table.counted["found"].is_in(["line", "function"])).any():
        notes.append("No Python frames and no sync warnings: locations are named ranges or operators.")
    if table.sites.unjoined:
        notes.append(
            f"{table.sites.unjoined} of {table.sites.seen} source lines seen by the probe match no sync here."
        )
    return notes


def _tables(trace: Trace, scope: Scope, table: WaitTable, groups: pl.DataFrame, word: str) -> list[Table]:
    stepped = bool(scope.step_count)
    figures = (
        ("saves_ns", "saves", "How much shorter a step is without the syncs of this location"),
        ("empty_ns", f"{word} empty", "The device has nothing to do until the next launch arrives"),
        ("refill_ns", f"{word} refill", "Further device idle time until the host is ahead again"),
        ("blocked_ns", "host blocked", "Host time inside the blocking calls"),
    )
    # Without device activity the device cost is unknown: omit the column instead of showing zeros.
    untold = set() if trace.device_indices else {"saves_ns", "empty_ns", "refill_ns"}
    cost = (
        *(
            Column(
                f"{key}_per_step",
                f"{label}/step",
                "ns",
                f"{help_}, a step.",
                hidden=not stepped or key in untold,
            )
            for key, label, help_ in figures
        ),
        Column("per_step", "n/step", "count", "Syncs a step.", hidden=not stepped),
        *(
            Column(key, label, "ns", f"{help_}, in all.", hidden=stepped or key in untold)
            for key, label, help_ in figures
        ),
        Column("count", "n", "count", "Syncs in all.", hidden=stepped),
    )
    location = (
        Column("kind", "kind", "text", "Why the host waits."),
        Column("where", "where", "text", "Line, function, named range or operator.", elide="start"),
        Column("through", "through", "text", "Operators, outermost first."),
        Column(
            "called_from",
            "called from",
            "text",
            "Innermost frame of the script itself, if the wait is in a library.",
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
    moment = (Column("start_ns", "at", "ns", "When the host began to wait."), Column("step", "step", "text"))
    lost = (Column("empty_ns", f"{word} empty", "ns"), Column("refill_ns", f"{word} refill", "ns"))
    waited = Column("blocked_ns", "host blocked", "ns")
    apart = table.frame.filter(pl.col("apart") != "").cast({pl.Categorical: pl.String})
    calls = _wait_table.calls(trace, scope)
    apart_columns = (Column("apart", "why", "text", whole=True), *moment, waited, *location, *work)
    call_columns = (
        Column("call", "call", "text"),
        Column("count", "n", "count", "Calls in the window, including those listed apart."),
        Column("total_ns", "total", "ns", "Total length."),
        Column("longest_ns", "longest", "ns"),
    )
    every = _wait_table.written_out(table.ranked)
    columns, note = (*cost, *location, *work), _apart_note(apart)
    return [
        Table(WAIT_LOCATIONS.key, "Syncs by location", columns, groups, note, "no syncs"),
        Table("apart", "Listed apart, not in any total", apart_columns, apart, empty="none"),
        Table("calls", "Calls that wait, by name", call_columns, calls, empty="none"),
        Table("syncs", "Every sync", (*moment, *lost, waited, *location, *work), every, empty="no syncs"),
    ]


def _apart_note(apart: pl.DataFrame) -> str:
    if apart.is_empty():
        return ""
    counts = apart.group_by("apart", "calls", maintain_order=True).len()
    said = [f"{n} {why} ({calls})" for why, calls, n in counts.iter_rows()]
    return "excluded: " + ", ".join(said)


ANALYSIS = Analysis(
    NAME, TITLE, "Which line makes the host wait for the device, and what does it cost?", run, order=10
)
