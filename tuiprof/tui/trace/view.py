"""Content of the trace view: facts, findings, tabs and texts as pure functions of results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tuiprof import advice, analyses
from tuiprof.analyses.shared.scope import step_period_ns
from tuiprof.model.intervals import Window
from tuiprof.model.report import Level, Report, Unavailable, most_important
from tuiprof.model.trace import Trace
from tuiprof.model.units import format_count, format_ns, format_ns_span, format_rough_share, plural
from tuiprof.report.sanitize import clip, sanitize
from tuiprof.report.sanitize import width as cells_of
from tuiprof.tui.answers.view import EVENTS
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.terminal.glyphs import MARKS
from tuiprof.tui.timeline.view import offset_text
from tuiprof.tui.trace.work import Results
from tuiprof.tui.widgets.bars import Tab
from tuiprof.tui.widgets.lines import Row, fit, row_width, spread
from tuiprof.tui.widgets.spans import wrap

#: Findings that save at least this share of a step have level ``bad``.
_BAD_SHARE: Final = 0.05
#: Key of the fact with the share of a step that all findings of an analysis save together.
_SAVES_SHARE = "saves_share"
#: Tabs show savings of at least this share of a step.
MIN_SHARE = 0.005
_BAR_CELLS, _MIN_BAR_CELLS = 28, 6
#: Minimum width for the bar.
_WITH_BAR: Final = 100
#: Where advice can be cut and still be a complete sentence.
_CLAUSE_END: Final = re.compile(r"; |, (?=(?:which|or|if|where|since|because|so) )")


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of the advice; all text is untrusted."""

    rule: str
    what: str
    where: str  # location; empty = the whole step
    fix: str
    prove: str  # command that measures the fix; empty = none
    saves_ns: float | None  # per step; None = unknown
    low_ns: float | None  # lower bound of the saving
    high_ns: float | None  # upper bound
    share: float | None  # saving as a share of the step
    step_ns: float | None  # step time without the profiler; None = unknown
    event: int | None  # row in the trace of the event that represents it; None = none


def step_times_of(advice: object) -> tuple[float | None, float | None]:
    """Return the step times without the profiler and while capturing, in ns, that the advice is based on."""
    if not isinstance(advice, Report):
        return None, None
    facts = {fact.key: fact.value for fact in advice.facts}
    step_ns, captured_ns = facts.get("step_ns"), facts.get("captured_step_ns")
    return (
        float(step_ns) if isinstance(step_ns, (int, float)) else None,
        float(captured_ns) if isinstance(captured_ns, (int, float)) else None,
    )


def is_bad(found: Finding) -> bool:
    """Return whether the level of a finding is ``bad`` rather than ``warn``."""
    return found.saves_ns is None or (found.share or 0.0) >= _BAD_SHARE


def findings_of(advice: object) -> list[Finding]:
    """Return the findings of the advice, largest saving first; empty until they are computed."""
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
    """Return the rows of finding ``number`` of ``count``, in at most ``height`` lines."""
    level: Level = "bad" if is_bad(found) else "warn"
    others: Row = [(f"{number} of {count} ", "dim"), ("]", "key"), (" next ", "dim")] if count > 1 else []
    first: Row = [(f"▌{MARKS[level]} ", level), *_saves(found, level)]
    if width >= _WITH_BAR and found.share is not None:  # what the texts beside it leave
        cells = min(_BAR_CELLS, width - row_width(first) - row_width(others) - 4)
        filled = min(round(found.share * cells), cells)
        if cells >= _MIN_BAR_CELLS:
            first[2:2] = [("  ", "text"), ("█" * filled, level), ("░" * (cells - filled), "faint")]
    lines = [spread(first, others, width)]
    room = max(width - 10, 8)

    def line(text: str, label: str, keys: Row, max_lines: int) -> None:
        for i, part in enumerate(
            _wrapped(sanitize(text), room, row_width(keys) + 2 if keys else 0, max_lines)
        ):
            row: Row = [
                ("▌  ", level),
                ((f"{label:<6} " if not i else " " * 7) if label else "", "dim"),
                (part, "text" if label else "strong"),
            ]
            lines.append(spread(row, keys if not i else [], width))

    show: Row = [("o", "key"), (" show ", "dim")] if found.event is not None else []
    copy: Row = [("C", "key"), (" copy ", "dim")]
    prove: Row = [("P", "key"), (" prove ", "dim")] if found.prove else []
    if height < 4:  # no room for labels
        texts = (found.what, f"fix: {found.fix}")[: height - 1]
        return [*lines, *(fit([("▌  ", level), (sanitize(text), "text")], width) for text in texts)]
    # The description may use the spare line before the fix does.
    spare = height - (4 if found.where else 3)
    line(found.what, "", [], 2 if spare > 0 else 1)
    spare -= len(lines) - 2
    if found.where:
        line(_place(sanitize(found.where), room - (row_width(show) + 2 if show else 0)), "where", show, 1)
    line(found.fix, "fix", [*copy, *prove, *([] if found.where else show)], 2 if spare > 0 else 1)
    return lines[:height]


def _place(where: str, cells: int) -> str:
    """Cut a place in its middle, as the line number stands at its end; of several, the user's, the first, stays."""
    first, arrow, rest = where.partition(" → ")
    left = cells - cells_of(first + arrow)
    return f"{first}{arrow}{clip(rest, left)}" if arrow and left > 1 else clip(where, cells)


def _wrapped(text: str, width: int, taken: int, max_lines: int) -> list[str]:
    """Wrap a text whose first line is ``taken`` cells shorter; leave out trailing clauses, marked, rather than cut."""

    def broken(text: str, max_lines: int = 0) -> list[str]:
        first = wrap(text, width - taken)[0]
        rest = text[len(first) :].lstrip()
        if max_lines == 1 or not rest:
            return wrap(text, width - taken, max_lines)
        return [first, *wrap(rest, width, max(max_lines - 1, 0))]

    ends = [match.start() for match in _CLAUSE_END.finditer(text)]
    whole = (text, *(f"{text[:end]} …" for end in reversed(ends)))
    return next((lines for part in whole if len(lines := broken(part)) <= max_lines), broken(text, max_lines))


def _saves(found: Finding, level: str) -> Row:
    if found.saves_ns is None:
        return [("savings unknown", level)]
    row: Row = [
        (
            f"saves about {format_rough_share(found.share)}" if found.share is not None else "saves about",
            level,
        )
    ]
    whole = f" of {format_ns(found.step_ns)}" if found.step_ns else ""
    row.append((f"  {format_ns(found.saves_ns)}{whole}", "strong"))
    if found.low_ns is not None and found.high_ns is not None:
        row.append((f"  ({format_ns_span(found.low_ns, found.high_ns)})", "dim"))
    return row


@dataclass(frozen=True, slots=True)
class Headline:
    """The sentence in the head while there are no findings."""

    sentence: str  # untrusted
    level: Level | None = None  # None = not a verdict
    pointer: str = ""  # key of the tab with the evidence, such as ``3``; empty = the open tab
    of_current: bool = False  # whether it is the verdict of the open tab


def headline(results: Results, window: Window, current: str, read: float | None) -> Headline:
    """Return the most urgent verdict so far; ``read`` is the share of the file that was read, None = all."""
    top = most_important(results.reports(window))
    if top is None:
        return Headline("analysing …" if results.pending(window) else "no analysis applies to this trace")
    so_far = "" if read is None else f"so far, {_percent(read)} read: "
    elsewhere = top.analysis in results.names and top.analysis != current
    pointer = str(results.names.index(top.analysis) + 1) if elsewhere else ""
    answer, advised = results.get(current, window), results.get("advice", window)
    same = isinstance(answer, Report) and answer.verdict == top.verdict
    # A bad verdict without findings would leave the question what to do about it.
    none = isinstance(advised, Report) and advised is not top and not findings_of(advised)
    none = none and top.verdict.level in ("bad", "warn")
    unfixed = "; no rule names a fix" if none else ""
    return Headline(so_far + top.verdict.sentence + unfixed, top.verdict.level, pointer, same)


def tab_of_rule(rule: str) -> str:
    """Return the name of the analysis with the evidence of an advice rule."""
    known = advice.available().get(rule)
    if known is None:
        return "advice"
    return known.shown_by or next(iter(known.needs), "kernels")


def tab_to_open(results: Results, window: Window) -> str:
    """Return the tab with the evidence of the first finding, else of the worst verdict; empty = unknown or all good."""
    if found := findings_of(results.get("advice", window)):
        return tab_of_rule(found[0].rule)
    top = most_important(results.reports(window))
    if top is None or top.verdict.level == "good" or results.pending(window):
        return ""
    # Advice without findings is about the kernels.
    return "kernels" if top.analysis == "advice" else top.analysis


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def question_of(name: str) -> str:
    """Return the question of a tab's analysis; empty for the table of events."""
    return analyses.available()[name].question if name != EVENTS else ""


def together_share(report: Report) -> float:
    """Return the share of a step that all findings of an analysis save together; 0 = unknown."""
    share = next((fact.value for fact in report.facts if fact.key == _SAVES_SHARE), None)
    return share if isinstance(share, float) else 0.0


def tabs_of(results: Results, window: Window, current: str) -> tuple[list[Tab], list[str]]:
    """Return the tabs, and the names of tabs that are not available.

    A tab's number is the saving of its largest finding, else the saving that the analysis reports; for the advice, the
    number of findings.
    """
    saving: dict[str, float] = {}
    found = findings_of(results.get("advice", window))
    for finding in found:
        tab = tab_of_rule(finding.rule)
        saving[tab] = max(saving.get(tab, 0.0), finding.share or 0.0)
    tabs, unavailable = [], []
    for position, name in enumerate(results.names, 1):
        answer = results.get(name, window)
        if name != current and isinstance(answer, Unavailable):
            unavailable.append(name)
            continue
        mark, role = "…", "dim"
        if isinstance(answer, Unavailable):
            mark = "–"
        elif isinstance(answer, Report):
            level = answer.verdict.level
            mark, role = ("", "dim") if level == "info" else (MARKS[level], level)
            saving.setdefault(name, together_share(answer))
        number = _percent(saving[name]) if saving.get(name, 0.0) >= MIN_SHARE else ""
        if name == "advice" and isinstance(answer, Report):
            mark, number = ("", str(len(found))) if found else (mark, "")
        tabs.append(
            Tab(
                name,
                sanitize(answer.title) if isinstance(answer, Report) else title_of(name),
                mark,
                role,
                number,
                str(position) if position < 10 else "",
                name == "advice",
            )
        )
    return tabs, unavailable


def title_of(name: str) -> str:
    """Return the title of a tab."""
    return "Events" if name == EVENTS else sanitize(analyses.available()[name].title)


def window_text(trace: Trace, window: Window) -> str:
    """Return the description of the window in the tab bar; empty = the whole trace."""
    if window.whole:
        return ""
    label = sanitize(window.label)
    if not label:
        low, high = trace.bounds(window)
        first, precision = trace.span[0], max((high - low) // 100, 1)
        label = f"{offset_text(low - first, precision)} to {offset_text(high - first, precision)}"
    return f"window: {label}"


def reading_text(part: float, reached: float, *, failed: bool) -> str:
    """Return the progress of reading a file: ``part`` is analysed, ``reached`` is read."""
    if failed:
        return f"{MARKS['bad']} results cover the first {_percent(part)}: the rest cannot be read"
    return f"{glyphs.INTERRUPTED} {_percent(reached)} read · results cover the first {_percent(part)}"


def trace_facts(
    trace: Trace,
    uncaptured_ns: float | None = None,
    captured_ns: float | None = None,
    *,
    surveyed: bool,
    rank: bool,
) -> list[str]:
    """Return the facts about a trace for the head.

    The step times without the profiler and while captured are from the same computation; without the first, results are
    for steps as captured. ``surveyed``: the steps are known.
    """
    facts = []
    count = len(trace.info.devices)
    # Several devices whose names differ only in a number are listed once.
    number = re.compile(r" \d+$" if count > 1 else r"$^")
    names = dict.fromkeys(number.sub("", device.name) for device in trace.info.devices)
    if names:
        facts.append(", ".join(names) + (f" ×{count}" if count > 1 else ""))
    if rank and trace.info.rank is not None and (trace.info.world_size or 1) > 1:
        facts.append(f"rank {trace.info.rank} of {trace.info.world_size}")
    steps = trace.steps if surveyed else ()
    step_ns = step_period_ns(trace) if surveyed else None
    if len(steps):
        facts.append(plural(len(steps), "step"))
    step_ns = captured_ns if step_ns is not None and captured_ns is not None else step_ns
    if step_ns is None:
        facts += [f"{format_count(len(trace))} events", format_ns(trace.span[1] - trace.span[0])]
    elif (
        uncaptured_ns is not None
        and uncaptured_ns < step_ns
        and format_ns(uncaptured_ns) != format_ns(step_ns)
    ):
        kind = "median " if len(steps) > 1 else ""
        facts.append(f"{format_ns(uncaptured_ns)} a step ({kind}{format_ns(step_ns)} while captured)")
    else:
        facts += [f"{format_count(len(trace))} events", f"{format_ns(uncaptured_ns or step_ns)} a step"]
    return [sanitize(fact) for fact in facts]


def timeline_lines(height: int, lanes: int) -> int:
    """Return the height of the timeline in a view: at most one line for each lane, an axis, a readout, maybe a map."""
    room = 2 if height < 20 else 5 + max(0, height - 23) // 3
    return max(1, min(room, lanes)) + 2 + (height >= 30)
