"""Advice: runs the rules, one file each, prices what they find, and reports the largest saving first.

A module here defines ``RULE = AdviceRule(name=..., find=..., needs=...)`` and is discovered automatically. A rule
reads the reports of the analyses that it needs, and the trace if they are not enough; it does no I/O and reads no
clock. It does not compute its saving: it returns an :class:`~tuiprof.whatif.Edit`, and replaying the step with
it (:mod:`tuiprof.whatif`) gives the saving of every rule in the same way (:mod:`.pricing`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

import polars as pl

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import left_to_compile
from tuiprof.advice.pricing import ADDS, MIN_SHARE, Priced, Priorities, all_of, prioritise, touched_ns
from tuiprof.analyses import Analysis
from tuiprof.analyses import run as run_analysis
from tuiprof.analyses.shared.replay import captured_step_ns, in_part, replayed, replayed_steps
from tuiprof.analyses.shared.roofline import roofline
from tuiprof.errors import REPORT_IT, UsageProblem, describe
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import total
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.units import format_count, format_ns, format_ns_span, format_share, plural
from tuiprof.plugins import discover
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import TOLERANCE, Calibrated, Kinds, Losses, losses

__all__ = [
    "ANALYSIS",
    "AdviceRule",
    "Evidence",
    "Finding",
    "advise",
    "available",
    "edits_of",
    "losses_of",
    "priorities",
]


#: A device that works for a smaller share of the step has time to win, whether a rule finds it or not.
_MOSTLY_IDLE: Final = 0.5


@cache
def available() -> dict[str, AdviceRule]:
    """Return every rule by name."""
    found: dict[str, AdviceRule] = discover("advice").items
    return found


@cache
def unavailable() -> dict[str, str]:
    """Return the load error of each rule that failed to load, by name."""
    return discover("advice").failed


def priorities(trace: Trace, window: Window | None = None) -> Priorities:
    """Return what to change, largest saving first, but specific changes before a general one that contains them.

    Rules look in the window; savings always refer to the steps of the whole trace.
    """
    return _priorities(trace, window or Window())


@cached_on_trace
def _priorities(trace: Trace, window: Window) -> Priorities:
    found: list[tuple[str, Finding]] = []
    missing = dict(unavailable())
    replay = replayed_steps(trace)
    step = None if isinstance(replay, str) else replay
    for rule in available().values():
        try:
            evidence = Evidence(trace, {name: _needed(name, trace, window) for name in rule.needs})
            found += [(rule.name, finding.of(step)) for finding in rule.find(trace, evidence)]
        except _Lacking as error:
            missing[rule.name] = str(error)
        except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - as for an analysis
            missing[rule.name] = f"it failed: {describe(error)}"
    if step is not None and step.long is not None:  # what is captured of long steps is replayed
        found = [
            (rule, replace(finding, rare_ns=(0.0, 0.0, 0.0)) if touched_ns(trace, finding) else finding)
            for rule, finding in found
        ]
    return replace(prioritise(found, step, trace), missing=missing)


def edits_of(trace: Trace, window: Window, index: int) -> tuple[Edit, Edit] | str:
    """Return the edit of a finding, and the edit it is priced on top of; else why nothing can be replayed.

    ``index`` is that of the finding in :func:`priorities` for the window.
    """
    step, found = replayed(trace), priorities(trace, window).findings
    if isinstance(step, str):
        return step
    item = found[index]
    if item.finding.edit is None or item.win is None:
        return "this setting distorts every figure in the trace: change it first"
    on = Edit()
    if item.finding.remainder:
        on = all_of(other for other in found if other.win and not other.finding.remainder).likely
    if step.likely_ns(item.finding.edit, on=on) <= 0:
        return "it is lost in rare steps, and a usual one is shown"
    return item.finding.edit, on


def losses_of(trace: Trace, window: Window, index: int) -> Losses | str:
    """Return where in the step the saving of a finding would occur; else why that is unknown.

    ``index`` is that of the finding in :func:`priorities` for the window.
    """
    step, item, edits = (
        replayed(trace),
        priorities(trace, window).findings[index],
        edits_of(trace, window, index),
    )
    if isinstance(step, str) or isinstance(edits, str):
        return str(edits)
    assert item.win is not None, "what can be replayed has a price"
    edit, on = edits
    return losses(trace, step, edit, min(item.win.ns, step.likely_ns(edit, on=on)), on=on)


class _Lacking(Exception):
    """A rule is unavailable because an analysis that it needs does not exist or has failed."""


def _needed(name: str, trace: Trace, window: Window) -> Report | Unavailable:
    """Return the report of an analysis that a rule needs.

    Raises:
        _Lacking: There is no such analysis, or it failed.
    """
    if name == ANALYSIS.name:
        raise _Lacking(f"it needs the analysis {name!r}, which is built from the rules")
    try:
        answer = run_analysis(name, trace, window)
    except UsageProblem:
        raise _Lacking(f"it needs the analysis {name!r}, which does not exist") from None
    if isinstance(answer, Unavailable) and answer.failed:
        raise _Lacking(f"it needs the analysis {name!r}: {answer.reason}")
    return answer


# -- the report ---------------------------------------------------------------------------------------------


def advise(trace: Trace, window: Window | None = None) -> Report:
    """Report what to change in a trace, largest saving first; rules look in the window, None = all of the trace."""
    window = window or Window()
    found = priorities(trace, window)
    step = replayed(trace)
    return Report(
        "advice",
        "Advice",
        _verdict(found, trace),
        tuple(_facts(found, trace, step)),
        (_table(found, trace),),
        _RULES,
        (*_notes(found, trace, step), *_missing(found)),
        window,
    )


_RULES = (
    Rule(
        "saves",
        "What the change saves per step without the profiler: the captured step is replayed with and "
        "without it, host, streams and waits together (Daydream, USENIX ATC 2020). The range covers "
        "profiler overhead, variation between steps, and uncertainty about the change itself.",
    ),
    Rule(
        "replay",
        f"An unchanged replay must match the captured step time within {format_share(TOLERANCE)}; "
        "otherwise nothing is predicted.",
    ),
    Rule(
        "order",
        "Largest saving first. A general change (launching less, ending all waits) is listed below the specific "
        f"findings that save {format_share(1 - ADDS)} or more of what it would and are part of it, or remove most of "
        "what has to go before it, such as waits that a CUDA graph cannot contain. Unrolling a scan is listed below "
        "what leaves that scan.",
    ),
    Rule("left out", f"Findings that save less than {format_share(MIN_SHARE)} of the step."),
    Rule(
        "sure",
        "high = the line or setting itself was seen; medium = inferred from names and times; low = one "
        "of several possible causes.",
    ),
)


def _facts(found: Priorities, trace: Trace, step: Calibrated | str) -> list[Fact]:
    facts, steps = [Fact("findings", "findings", len(found.findings), "count")], found.steps
    if isinstance(step, str) or steps is None:
        return facts
    stepped = bool(step.graph.step_count)
    facts.append(
        Fact(
            "step_ns",
            "step without the profiler" if stepped else "without the profiler",
            found.step_ns or steps.step_ns,
            "ns",
            "As the session measured it outside the capture, else as replayed.",
        )
    )
    facts.append(Fact("captured_step_ns", "while captured", captured_step_ns(trace, steps), "ns"))
    if steps.busy_ns:
        facts.append(
            Fact(
                "floor_ns",
                "device work alone",
                min(steps.busy_ns, steps.step_ns),
                "ns",
                "The busiest device with no gaps: no host-side change can go below this.",
            )
        )
        limits = roofline(trace)
        if not isinstance(limits, str) and limits.ns:
            least = steps.busy_ns * limits.least_ns / limits.ns
            facts.append(
                Fact(
                    "roofline_ns",
                    "at the chip's limits",
                    least,
                    "ns",
                    "Operators with known shapes run at the chip's peak FLOP/s and bandwidth; the rest "
                    "as measured.",
                )
            )
    if found.together is not None:
        facts.append(
            Fact(
                "together_ns", "all findings together save", found.together.ns, "ns", "Findings may overlap."
            )
        )
    return facts


def _notes(found: Priorities, trace: Trace, step: Calibrated | str) -> list[str]:
    steps = found.steps
    if isinstance(step, str) or steps is None:
        return [f"Savings cannot be predicted: {step}."] if found.findings else []
    captured_ns = captured_step_ns(trace, Kinds(step))
    notes = []
    if steps.long is not None:
        notes.append(
            f"Savings are the mean over {steps.count} steps of the session: {steps.long_count} took about "
            f"{format_ns(steps.long.step_ns)}, with more operators, the others {format_ns(step.step_ns)}. Both kinds "
            "were captured."
        )
    elif step.basis == "session" and step.uncaptured is not None:
        where = "after the capture" if step.uncaptured.after_capture else "before the capture"
        notes.append(
            f"Savings are for a step of {format_ns(step.step_ns)}, the median of "
            f"{step.uncaptured.steps} steps {where}; while captured, the median step takes "
            f"{format_ns(captured_ns)} ({_than(captured_ns, step.step_ns)})."
        )
    elif step.basis == "table":
        notes.append(
            "No steps were timed without the profiler, so its overhead is estimated from typical costs "
            f"per event: {format_ns(captured_ns)} captured, about {format_ns(step.step_ns)} "
            "without it."
        )
    elif trace.as_captured:
        notes.append("Savings are for the step as captured, profiler overhead included.")
    else:
        notes.append("Profiler overhead is unknown: savings are for the step as captured.")
    if found.step_ns is not None and found.step_ns > steps.step_ns:
        notes.append(
            f"Shares are of {format_ns(found.step_ns)}, the mean step: rare long steps add "
            f"{format_ns(found.step_ns - steps.step_ns)} to the captured ones."
        )
    if any(item.overlaps for item in found.findings):
        notes.append("Findings marked as overlapping save less once those above them are fixed.")
    if in_part(trace):
        notes.append(
            "The trace has no step markers: savings are for the "
            f"{format_ns(step.graph.high - step.graph.low)} in its middle that were replayed."
        )
    return notes


def _than(ns: float, base_ns: float) -> str:
    """Return how a time compares with another: ``20 % more``, ``30 % less`` or, from twice on, ``13 times as long``."""
    ratio = ns / base_ns if base_ns else 1.0
    if ratio >= 2:
        return f"{format_count(round(ratio)) if ratio >= 10 else f'{ratio:.2g}'} times as long"
    return f"{format_share(abs(ratio - 1))} {'more' if ratio >= 1 else 'less'}"


def _missing(found: Priorities) -> list[str]:
    return [f"The rule {name} is unavailable: {why} ({REPORT_IT})." for name, why in found.missing.items()]


def _verdict(found: Priorities, trace: Trace) -> Verdict:
    if not len(trace):
        return Verdict("this trace has no events", "warn")
    if not found.findings and trace.trust.level == "bad":
        return Verdict("no rule applies to what could be read of this trace", "warn")
    if not found.findings:
        works, whole = _works(trace)
        if 0 < works < _MOSTLY_IDLE * whole:
            return Verdict(
                f"no rule applies to this trace, though the device works for only {format_ns(works)} of "
                f"{format_ns(whole)}",
                "warn",
            )
        if left := left_to_compile(trace):
            return Verdict(f"no rule applies to this trace; {left}", "warn")
        return Verdict("nothing to change: no rule applies to this trace", "good")
    first = found.findings[0]
    win = f"{_wins(first, replayed(trace))}: " if first.win is not None else ""
    return Verdict(f"{win}{first.finding.what}; {first.finding.instead}", "warn")


def _works(trace: Trace) -> tuple[float, float]:
    """Return how long the busiest device works, and the time of the step, or of a trace that cannot be replayed."""
    step = replayed(trace)
    if isinstance(step, Calibrated):
        return step.graph.own_busy_ns, step.step_ns
    low, high = trace.span
    return max((float(total(*trace.busy(index))) for index in trace.device_indices), default=0.0), high - low


def _wins(item: Priced, step: Calibrated | str) -> str:
    """Return ``saves about 1.4 ms a step (1.1 to 1.7 ms)``, without steps ``saves about 14 ms of 75 ms …``."""
    assert item.win is not None
    assert isinstance(step, Calibrated), "nothing else prices"
    a_step = " a step" if step.graph.step_count else f" of {format_ns(step.step_ns)}"
    span = format_ns_span(item.win.low_ns, item.win.high_ns)
    return f"saves about {format_ns(item.win.ns)}{a_step} ({span})"


def proof_command(proof: str) -> str:
    """Return what to run to see a finding before and after: ``tuiprof ladder metrics --variants naive,off``."""
    ladder, _, variants = proof.partition(":")
    return f"tuiprof ladder {ladder} --variants {variants}" if proof else ""


def _table(found: Priorities, trace: Trace) -> Table:
    rows = pl.DataFrame(
        [
            {
                "rule": item.rule,
                "wins_ns": item.win.ns if item.win else None,
                "wins_low_ns": item.win.low_ns if item.win else None,
                "wins_high_ns": item.win.high_ns if item.win else None,
                "share": item.share,
                "what": item.finding.what,
                "where": item.finding.where,
                "instead": item.finding.instead,
                "sure": item.finding.sure,
                "because": item.finding.because,
                "overlaps": "yes" if item.overlaps else "",
                "proof": proof_command(item.finding.proof),
                "event": item.finding.event,
            }
            for item in found.findings
        ],
        schema={
            "rule": pl.String,
            **dict.fromkeys(("wins_ns", "wins_low_ns", "wins_high_ns", "share"), pl.Float64),
            **dict.fromkeys(("what", "where", "instead", "sure", "because", "overlaps", "proof"), pl.String),
            "event": pl.Int64,
        },
    )
    stepped = bool(len(trace.steps))
    return Table(
        "findings",
        "What to change",
        (
            Column(
                "wins_ns", "saves/step" if stepped else "saves", "ns", "What the change most likely saves."
            ),
            Column("wins_low_ns", "at least", "ns", secondary=True),
            Column("wins_high_ns", "at most", "ns", secondary=True),
            Column("share", "of step", "share", hidden=not stepped),
            Column("what", "what", "text"),
            Column("where", "where", "text", elide="start"),
            Column("instead", "fix", "text"),
            Column("sure", "sure", "text", secondary=True),
            Column("because", "why", "text", "The evidence."),
            Column(
                "overlaps",
                "overlaps",
                "text",
                "Fixing the findings above saves part of this.",
                hidden=not any(item.overlaps for item in found.findings),
                secondary=True,
            ),
            Column("proof", "proof", "text", "The command that measures it before and after."),
            Column("rule", "rule", "text", hidden=True),
            Column("event", "event", "count", hidden=True),
        ),
        rows,
        f"measured on {plural(len(trace.steps), 'step')}" if stepped else "",
        empty="no rule applies to this trace",
        prose=True,
    )


ANALYSIS = Analysis(
    "advice", "Advice", "What should change, what does it save, and what is the fix?", advise, 90
)
