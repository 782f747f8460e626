"""User-defined changes to the replayed step: without a finding, with other kernels, with a faster host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tuiprof.advice import priorities
from tuiprof.advice.host.loader_workers import with_workers
from tuiprof.advice.pricing import MIN_SHARE, with_rare
from tuiprof.analyses.shared.replay import captured_step_ns, host_faster, replayed
from tuiprof.errors import UsageProblem
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict
from tuiprof.model.units import format_factor, format_ns, format_share
from tuiprof.whatif import Edit, EditRange
from tuiprof.whatif.replay import Win

NAME, TITLE = "whatif", "What if"


@dataclass(frozen=True, slots=True)
class Change:
    """One change to evaluate."""

    text: str  # its name, for example ``"without item-each-step"``
    edits: EditRange
    #: Additional saving in rare steps that may not be captured, as that of a finding.
    rare_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)


def changes(
    trace: Trace,
    *,
    without: Sequence[str] = (),
    loader_workers: int | None = None,
    scale: Sequence[str] = (),
    host: float | None = None,
) -> list[Change]:
    """Convert the user's questions to changes of the step.

    Raises:
        UsageProblem: No such finding or kernel, or an invalid factor.
    """
    asked = [change for text in without for change in _without(trace, text)]
    asked += [_scaled(trace, text) for text in scale]
    if loader_workers is not None:
        edit = with_workers(trace, loader_workers)
        asked.append(Change(f"{loader_workers} loader workers", EditRange.exactly(edit)))
    if host is not None:
        asked.append(Change(f"the host's time × {host:g}", EditRange.exactly(host_faster(trace, host))))
    return asked


def answer(trace: Trace, asked: Sequence[Change]) -> Report | Unavailable:
    """Return the step time with each change and with all of them; without changes, the saving of each finding."""
    step, found = replayed(trace), priorities(trace)
    if isinstance(step, str) or found.steps is None:
        return Unavailable(NAME, f"the step cannot be replayed: {step}", "")
    stepped, steps = bool(step.graph.step_count), found.steps
    whole = steps.step_ns if found.step_ns is None else found.step_ns
    if asked:
        rows = [(change.text, with_rare(steps.win(*change.edits), change.rare_ns)) for change in asked]
        every = steps.win(*EditRange.all_of(change.edits for change in asked))
        for rare_ns in {change.text: change.rare_ns for change in asked}.values():
            every = with_rare(every, rare_ns)
        in_all: Win | None = every
    else:
        priced = [(item.rule, item.win) for item in found.findings if item.win is not None]
        names = _names([rule for rule, _ in priced])
        rows = [(f"without {name}", win) for name, (_, win) in zip(names, priced, strict=True)]
        in_all = found.together
    if len(rows) > 1 and in_all is not None:
        rows.append(("all together", in_all))
    what = "a step" if stepped else "the captured part"
    if not rows:
        verdict = Verdict(f"{what} takes {format_ns(whole)}; no rule found anything to change", "good")
    else:
        text, win = rows[-1]
        verdict = Verdict(f"{text}: {what} would {_taken(whole, win)}", "info")
    frame = pl.DataFrame(
        [
            (text, whole - win.ns, win.ns, win.low_ns, win.high_ns, win.ns / whole if whole else None)
            for text, win in rows
        ],
        schema={
            "change": pl.String,
            **dict.fromkeys(("step_ns", "wins_ns", "wins_low_ns", "wins_high_ns", "share"), pl.Float64),
        },
        orient="row",
    )
    table = Table(
        "changes",
        "Changes",
        (
            Column("change", "change", "text"),
            Column("step_ns", "step" if stepped else "takes", "ns", "Step time after the change."),
            Column("wins_ns", "saves", "ns"),
            Column("wins_low_ns", "at least", "ns"),
            Column("wins_high_ns", "at most", "ns"),
            Column("share", "of step", "share"),
        ),
        frame,
        empty="no rule found anything to change; try --without, --scale, --loader-workers or --host",
    )
    facts = (
        Fact("step_ns", "step without the profiler" if stepped else "without the profiler", whole, "ns"),
        Fact("captured_step_ns", "while captured", captured_step_ns(trace, steps), "ns"),
        Fact("floor_ns", "device work alone", steps.busy_ns or None, "ns"),
        Fact("basis", "profiler overhead removed by", _BASIS[step.basis], "text"),
        Fact("replay_error", "unchanged replay, off by", step.error, "share"),
    )
    return Report(NAME, TITLE, verdict, facts, (table,), _RULES)


def _taken(whole: float, win: Win) -> str:
    """Return ``take about 23.4 ms (22.7 ms to 24.1 ms) instead of 27.1 ms, 1.16× faster``."""
    after, least = whole - win.ns, format_ns(max(whole - win.high_ns, 0))
    if format_ns(after) == format_ns(whole):
        return f"still take about {format_ns(whole)}" + (f", at best {least}" if win.high_ns > 0 else "")
    faster = f", {format_factor(whole / after)}× faster" if after > 0 else ""
    span = f"{least} to {format_ns(whole - win.low_ns)}"
    return f"take about {format_ns(after)} ({span}) instead of {format_ns(whole)}{faster}"


_BASIS = {
    "session": "the session's own steps",
    "table": "a table of costs per event",
    "none": "nothing, as captured",
}
_RULES = (
    Rule(
        "replay",
        "Host, streams and waits are replayed as captured, minus profiler overhead, with and without "
        "the change. The change scales host time and device work; its side effects (other kernels, "
        "caches, clocks) are not modelled.",
    ),
)


def _without(trace: Trace, text: str) -> list[Change]:
    rule, _, number = text.partition("@")
    found = [
        item for item in priorities(trace).findings if item.rule == rule and item.finding.edit is not None
    ]
    if not found:
        raise _no_finding(trace, rule)
    asked = [
        Change(f"without {name}", item.finding.edits, item.finding.rare_ns)
        for name, item in zip(_names([rule] * len(found)), found, strict=True)
    ]
    if not number:
        return asked
    if not number.isdigit() or not 1 <= int(number) <= len(found):
        raise UsageProblem(
            f"no finding {text!r}", f"{rule} has {len(found)}: {rule}@1 to {rule}@{len(found)}"
        )
    return [asked[int(number) - 1]]


def _names(rules: Sequence[str]) -> list[str]:
    """Return the names of findings as in ``--without``: their rule, with a number if there are several of it."""
    return [
        f"{rule}@{rules[: index + 1].count(rule)}" if rules.count(rule) > 1 else rule
        for index, rule in enumerate(rules)
    ]


def _no_finding(trace: Trace, rule: str) -> UsageProblem:
    """Return why a rule has no finding: it is unavailable, what it finds is too small, or it finds nothing."""
    advice = priorities(trace)
    known = sorted({item.rule for item in advice.findings})
    others = f"there are {', '.join(known)}" if known else "there are none"
    # One that cannot be loaded is known by the name of its module.
    why = advice.missing.get(rule) or advice.missing.get(rule.replace("-", "_"))
    if why is not None:
        return UsageProblem(f"the rule {rule!r} is unavailable: {why}", others)
    if any(item.rule == rule for item in advice.small):
        least = format_share(MIN_SHARE)
        return UsageProblem(f"what {rule!r} finds in this trace saves less than {least} of the step", others)
    return UsageProblem(f"no finding of {rule!r} in this trace", others)


def _scaled(trace: Trace, text: str) -> Change:
    pattern, _, given = text.rpartition("=")
    try:
        factor = float(given)
    except ValueError:
        factor = -1.0
    if not pattern or not 0 <= factor < 1000:
        raise UsageProblem(f"{text!r} is not KERNEL=FACTOR", "for example: --scale gemm=0.5")
    if not len(trace.device_work):
        raise UsageProblem(
            "there is no device work in this trace, so no kernel whose time could change",
            "give --host F for the time of the host, --without RULE for a finding, or --loader-workers N",
        )
    work = trace.device_work[trace.named(f"(?i){re.escape(pattern)}", trace.device_work)]
    if not len(work):
        raise UsageProblem(
            f"no kernel has {pattern!r} in its name", "tuiprof report TARGET kernels lists them"
        )
    share = float(trace.lengths(work).sum() / max(trace.lengths(trace.device_work).sum(), 1))
    return Change(
        f"{len(work)} kernels with {pattern!r} ({format_share(share)} of device time) × {factor:g}",
        EditRange.exactly(Edit.of_work(work, factor)),
    )
