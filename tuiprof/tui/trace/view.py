"""Content of the trace view: the trace, its findings and its analyses. Pure: results in, texts, rows and tabs out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tuiprof import advice, analyses
from tuiprof.analyses.shared.scope import step_period_ns
from tuiprof.model.intervals import Window
from tuiprof.model.report import Level, Report, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.model.units import format_count, format_ns, format_ns_span, format_rough_share
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.answers.view import EVENTS
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.terminal.glyphs import MARKS
from tuiprof.tui.timeline.view import offset_text
from tuiprof.tui.trace.work import Results
from tuiprof.tui.widgets.bars import Tab
from tuiprof.tui.widgets.lines import Row, fit, most_important, row_width, spread
from tuiprof.tui.widgets.spans import wrap

#: From this share of a step on a finding is bad.
_BAD_SHARE: Final = 0.05
#: Fact of an analysis: which share of a step is saved by all that it finds, together.
_SAVES_SHARE = "saves_share"
#: From this share of a step on a tab shows what can be saved there.
LEAST_SHARE = 0.005
_BAR_CELLS: Final = 28
#: Below this width there is no bar.
_WITH_BAR: Final = 100
#: Where advice can end early and still be a whole sentence.
_CLAUSE_END: Final = re.compile(r"; |, (?=(?:which|or|if|where|since|because|so) )")


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding as the head shows it; texts are untrusted."""

    rule: str  # name of its rule
    what: str  # what was seen
    where: str  # the location; empty = the whole step
    fix: str  # what to write instead
    prove: str  # a command that shows it before and after; empty = none
    saves_ns: float | None  # time it saves per step; None = unknown
    low_ns: float | None  # at least
    high_ns: float | None  # at most
    share: float | None  # ``saves_ns`` as a share of the step
    step_ns: float | None  # a step without the profiler; None = unknown
    event: int | None  # row of the typical event; None = none


def step_times_of(advice: object) -> tuple[float | None, float | None]:
    """Return what a step takes without the profiler and while it is captured, ns, as the advice reckons with it."""
    if not isinstance(advice, Report):
        return None, None
    facts = {fact.key: fact.value for fact in advice.facts}
    step_ns, captured_ns = facts.get("step_ns"), facts.get("captured_step_ns")
    return (
        float(step_ns) if isinstance(step_ns, (int, float)) else None,
        float(captured_ns) if isinstance(captured_ns, (int, float)) else None,
    )


def is_bad(found: Finding) -> bool:
    """Return whether a finding is bad rather than a warning."""
    return found.saves_ns is None or (found.share or 0.0) >= _BAD_SHARE


def findings_of(advice: object) -> list[Finding]:
    """Return the findings, largest saving first; nothing until they are computed."""
    if not isinstance(advice, Report):
        return []
    table = next((table for table in advice.tables if table.key == "findings"), None)
    if table is None:
        return []
    step_ns, _ = step_times_of(advice)
    return [
        Finding(
            row["rule"],
            row["what"],
            row["where"],
            row["instead"],
            row["proof"],
            row["wins_ns"],
            row["wins_low_ns"],
            row["wins_high_ns"],
            row["share"],
            step_ns,
            row["event"],
        )
        for row in table.rows.iter_rows(named=True)
    ]


def finding_rows(found: Finding, number: int, count: int, width: int, height: int) -> list[Row]:
    """Return the lines of a finding."""
    level: Level = "bad" if is_bad(found) else "warn"
    others: Row = [(f"{number} of {count} ", "dim"), ("]", "key"), (" next ", "dim")] if count > 1 else []
    first: Row = [(f"▌{MARKS[level]} ", level), *_saves(found, level, width)]
    lines = [spread(first, others, width)]
    room = max(width - 10, 8)

    def line(text: str, label: str, keys: Row, most: int) -> None:
        for i, part in enumerate(_wrapped(sanitize(text), room, row_width(keys) + 2 if keys else 0, most)):
            row: Row = [
                ("▌  ", level),
                ((f"{label:<6} " if not i else " " * 7) if label else "", "dim"),
                (part, "text" if label else "strong"),
            ]
            lines.append(spread(row, keys if not i else [], width))

    show: Row = [("o", "key"), (" show ", "dim")] if found.event is not None else []
    copy: Row = [("C", "key"), (" copy ", "dim")]
    prove: Row = [("P", "key"), (" prove ", "dim")] if found.prove else []
    if height < 4:  # no room for labels: what, and what to write
        texts = (found.what, f"fix: {found.fix}")[: height - 1]
        return [*lines, *(fit([("▌  ", level), (sanitize(text), "text")], width) for text in texts)]
    # What was found gets the spare line before the fix does.
    spare = height - (4 if found.where else 3)
    line(found.what, "", [], 2 if spare > 0 else 1)
    spare -= len(lines) - 2
    if found.where:
        line(found.where, "where", show, 1)
    line(found.fix, "fix", [*copy, *prove, *([] if found.where else show)], 2 if spare > 0 else 1)
    return lines[:height]


def _wrapped(text: str, width: int, taken: int, most: int) -> list[str]:
    """Break a text whose first line is shorter; the last clauses are left out rather than cut."""

    def broken(text: str, most: int = 0) -> list[str]:
        first = wrap(text, width - taken)[0]
        rest = text[len(first) :].lstrip()
        if most == 1 or not rest:
            return wrap(text, width - taken, most)
        return [first, *wrap(rest, width, max(most - 1, 0))]

    ends = [match.start() for match in _CLAUSE_END.finditer(text)]
    whole = (text[:end] for end in (len(text), *reversed(ends)))
    return next((lines for part in whole if len(lines := broken(part)) <= most), broken(text, most))


def _saves(found: Finding, level: str, width: int) -> Row:
    if found.saves_ns is None:
        return [("savings unknown", level)]
    row: Row = [
        (
            f"saves about {format_rough_share(found.share)}" if found.share is not None else "saves about",
            level,
        )
    ]
    if width >= _WITH_BAR and found.share is not None:
        filled = min(round(found.share * _BAR_CELLS), _BAR_CELLS)
        row += [("  ", "text"), ("█" * filled, level), ("░" * (_BAR_CELLS - filled), "faint")]
    whole = f" of {format_ns(found.step_ns)}" if found.step_ns else ""
    row.append((f"  {format_ns(found.saves_ns)}{whole}", "strong"))
    if found.low_ns is not None and found.high_ns is not None:
        row.append((f"  ({format_ns_span(found.low_ns, found.high_ns)})", "dim"))
    return row


@dataclass(frozen=True, slots=True)
class Headline:
    """The sentence above everything."""

    sentence: str  # the sentence; untrusted
    level: Level | None = None  # its weight; None = not a verdict yet
    pointer: str = ""  # key of the tab that has the evidence, such as ``3``; empty = the open one
    of_current: bool = False  # whether it is the verdict of the tab that is open


def headline(results: Results, window: Window, current: str, read: float | None) -> Headline:
    """Return the verdict that matters most of those there are."""
    top = most_important(results.reports(window))
    if top is None:
        return Headline("analysing …" if results.pending(window) else "no analysis can answer on this trace")
    so_far = "" if read is None else f"so far, {read:.0%} read: "
    elsewhere = top.analysis in results.names and top.analysis != current
    pointer = str(results.names.index(top.analysis) + 1) if elsewhere else ""
    answer, advised = results.get(current, window), results.get("advice", window)
    same = isinstance(answer, Report) and answer.verdict == top.verdict
    # A verdict that is not good asks what to do about it; that nothing was found is the answer.
    none = isinstance(advised, Report) and not findings_of(advised) and top.verdict.level in ("bad", "warn")
    found = "nothing found to change; " if none else ""
    return Headline(so_far + found + top.verdict.sentence, top.verdict.level, pointer, same)


def tab_of_rule(rule: str) -> str:
    """Return the analysis that has the evidence of an advice rule."""
    known = advice.available().get(rule)
    if known is None:
        return "advice"
    return known.shown_by or next(iter(known.needs), "kernels")


def tab_to_open(results: Results, window: Window) -> str:
    """Return the initial tab of a trace: the evidence of its first finding, else of its worst verdict.

    Empty while that is not known, and where all is well.
    """
    if found := findings_of(results.get("advice", window)):
        return tab_of_rule(found[0].rule)
    top = most_important(results.reports(window))
    if top is None or top.verdict.level == "good" or results.pending(window):
        return ""
    return top.analysis


def question_of(name: str) -> str:
    """Return the question that a tab answers; empty for the table of events."""
    return analyses.available()[name].question if name != EVENTS else ""


def together_share(report: Report) -> float:
    """Return which share of a step all that an analysis found saves together; 0 = unknown."""
    share = next((fact.value for fact in report.facts if fact.key == _SAVES_SHARE), None)
    return share if isinstance(share, float) else 0.0


def tabs_of(results: Results, window: Window, current: str) -> tuple[list[Tab], list[str]]:
    """Return the tabs with the figure that ranks each, and the names of those that are listed apart.

    The figure is that of the largest finding of which a tab has the evidence; without one, what the analysis itself
    says can be saved; of the advice, how many findings there are. Listed apart is what is not available.
    """
    saving: dict[str, float] = {}
    advised = results.get("advice", window)
    found = findings_of(advised)
    for finding in found:
        tab = tab_of_rule(finding.rule)
        saving[tab] = max(saving.get(tab, 0.0), finding.share or 0.0)
    tabs, apart = [], []
    for position, name in enumerate(results.names, 1):
        answer = results.get(name, window)
        if name != current and isinstance(answer, Unavailable):
            apart.append(name)
            continue
        mark, role = "…", "dim"
        if isinstance(answer, Unavailable):
            mark = "–"
        elif isinstance(answer, Report):
            level = answer.verdict.level
            mark, role = ("", "dim") if level == "info" else (MARKS[level], level)
            # The finding in the head has precedence over what all rows of the tab save together.
            saving.setdefault(name, together_share(answer))
        number = f"{saving[name]:.0%}".replace("%", " %") if saving.get(name, 0.0) >= LEAST_SHARE else ""
        if name == "advice" and isinstance(answer, Report):
            mark, number = ("", str(len(found))) if found else (mark, "")
        tabs.append(
            Tab(
                name,
                title_of(name),
                mark,
                role,
                number,
                str(position) if position < 10 else "",
                name == "advice",
            )
        )
    return tabs, apart


def title_of(name: str) -> str:
    """Return the title of a tab."""
    return "Events" if name == EVENTS else sanitize(analyses.available()[name].title)


def window_text(trace: Trace, window: Window) -> str:
    """Return how the line of tabs describes the window; empty = it is the whole trace."""
    if window.whole:
        return ""
    label = sanitize(window.label)
    if not label:
        low, high = trace.bounds(window)
        first, precision = trace.span[0], max((high - low) // 100, 1)
        label = f"{offset_text(low - first, precision)} to {offset_text(high - first, precision)}"
    return f"window: {label}"


def reading_text(part: float, reached: float, *, failed: bool) -> str:
    """Return the head's text on a file of which only a part was read."""
    if failed:
        return f"{MARKS['bad']} figures of the first {part:.0%}: the rest cannot be read"
    return f"{glyphs.INTERRUPTED} {reached:.0%} read · figures of the first {part:.0%}"


def trace_facts(
    trace: Trace,
    uncaptured_ns: float | None = None,
    captured_ns: float | None = None,
    *,
    surveyed: bool,
    rank: bool,
) -> list[str]:
    """Return the head's facts on a trace.

    Args:
        trace: The trace.
        uncaptured_ns: A step without the profiler; None = not known, or figures are as captured.
        captured_ns: Captured step time from the same computation; None = the trace's step times.
        surveyed: Whether it is known which steps there are.
        rank: Whether to name the rank.
    """
    facts = []
    count = len(trace.info.devices)
    # Names that differ only in a number are one kind.
    number = re.compile(r" \d+$" if count > 1 else r"$^")
    names = dict.fromkeys(number.sub("", device.name) for device in trace.info.devices)
    if names:
        facts.append(", ".join(names) + (f" ×{count}" if count > 1 else ""))
    if rank and trace.info.rank is not None and (trace.info.world_size or 1) > 1:
        facts.append(f"rank {trace.info.rank} of {trace.info.world_size}")
    steps = trace.steps if surveyed else ()
    step_ns = step_period_ns(trace) if surveyed else None
    if len(steps):
        facts.append("1 step" if len(steps) == 1 else f"{len(steps)} steps")
    step_ns = captured_ns if step_ns is not None and captured_ns is not None else step_ns
    if step_ns is None:
        facts += [f"{format_count(len(trace))} events", format_ns(trace.span[1] - trace.span[0])]
    elif uncaptured_ns is None or format_ns(uncaptured_ns) == format_ns(step_ns):
        facts += [f"{format_count(len(trace))} events", f"{format_ns(step_ns)} a step"]
    else:
        facts.append(f"{format_ns(uncaptured_ns)} a step ({format_ns(step_ns)} while captured)")
    return [sanitize(fact) for fact in facts]


def timeline_lines(height: int, lanes: int) -> int:
    """Return how many lines the timeline gets of a view so high: five lanes at 24 lines, and never more than exist."""
    room = 2 if height < 20 else 5 + max(0, height - 23) // 3
    # The map of the whole has a line of its own where there is one to spare.
    return max(1, min(room, lanes)) + 2 + (height >= 30)
