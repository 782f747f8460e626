"""A trace on one page, as text, Markdown and JSON.

The JSON is stable, keys are only ever added::

    {"tuiprof_why": 1, "target": "train", "run": "train.py finished: 412 steps, median 26.7 ms",
     "trust": {"complete": true, "text": "trust: complete ✓"},
     "device": "NVIDIA H200", "steps": 4, "step_ns": 26700000,
     "step_is": "median of 24 steps before the capture", "captured_step_ns": 28400000,
     "device_work_ns": 24700000, "together_ns": 1900000,
     "findings": [{"rule": "nan-check", "what": "…", "where": "metrics.py:144", "fix": "…", "sure": "high",
                   "saves_ns": 1400000, "saves_low_ns": 1100000, "saves_high_ns": 1700000, "share": 0.052,
                   "overlaps": false, "on_top": false,
                   "prove": "tuiprof ladder metrics --variants naive,no-nan-check"}],
     "findings_left_out": 0,
     "lines": [{"analysis": "sync_events", "level": "bad", "sentence": "…"}], "notes": ["…"],
     "untrusted": ["target", "run", "findings.what", "findings.where", "lines.sentence"]}

Times are ns a step without the profiler, shares 0 to 1, null = unknown. What ``untrusted`` names may quote names
from the trace: data, never instructions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tuiprof.model.report import Answer, Change, Level, Line
from tuiprof.model.units import format_ns, format_rough_share, plural
from tuiprof.report import Style
from tuiprof.report.md import code, escape
from tuiprof.report.sanitize import sanitize
from tuiprof.report.text import COLOURS, SIGNS, document, paint, wrap

SHAPE: Final = 1
_BAR_CELLS, _MIN_BAR_CELLS = 28, 6
#: Findings that are spelled out on a page; the others are a line each.
_IN_FULL: Final = 1
#: Findings on a page.
MAX_CHANGES: Final = 4
#: A device that works for a smaller share of the step has time to win, whether a rule finds it or not.
_MOSTLY_IDLE: Final = 0.5
#: From this share on, the device works during the whole step.
_ALL: Final = 0.995
#: Lines of what a trace cannot tell, worst first: the findings are to be on the same screen.
_MAX_TRUST: Final = 4
#: Characters of a text that are kept where the page may not be longer.
_CLIPPED: Final = 200
_UNTRUSTED: Final = ("target", "run", "findings.what", "findings.where", "lines.sentence")


def opening_text(answer: Answer, style: Style) -> str:
    """Return the first lines of the page for a terminal: they need neither findings nor analyses."""
    lines = [paint(part, "1", style) for part in wrap(_head(answer), style, "", "  ")]
    if answer.run is not None:
        lines += _line(answer.run, style, "")
    for note in answer.run_notes:
        lines += wrap(note, style, "  note: ", " " * 8)
    if _is_limited(answer):
        trust = wrap(answer.trust, style, "", "  ")
        if len(trust) > _MAX_TRUST:
            trust[_MAX_TRUST:] = ["  … see all with tuiprof report -v"]
        lines += trust
    return document([lines], style)


def to_text(answer: Answer, style: Style, most: int = MAX_CHANGES) -> str:
    """Return the page for a terminal, with at most so many findings; it begins with :func:`opening_text`."""
    lines = [""]
    for change in answer.changes[:_IN_FULL]:
        lines += _in_full(change, answer, style)
    if answer.refused:
        lines += wrap(f"no advice: {answer.refused}", style, "! ")
    elif not answer.changes:
        level, sentence = nothing_found(answer)
        lines += wrap(sentence, style, f"{SIGNS[level]} ")
    rest = answer.changes[_IN_FULL:most]
    if rest:
        lines += ["", "then"]
    for index, change in enumerate(rest, _IN_FULL):
        lines += _in_short(change, answer.changes[:index], style)
    if len(answer.changes) > most:
        lines += wrap(f"… {len(answer.changes) - most} more: tuiprof report -v", style, "  ")
    if summary := _summary(answer):
        lines += wrap(summary, style, "  ", "  ")
    if answer.lines:
        lines.append("")
    cells = max((len(line.title) for line in answer.lines), default=0)
    for line in answer.lines:
        lines += _line(line, style, f"{line.title:<{cells}}  ")
    return opening_text(answer, style) + document([lines], style)


def _is_limited(answer: Answer) -> bool:
    return bool(answer.trust) and (answer.limited or not answer.complete)


def _head(answer: Answer) -> str:
    parts = [answer.title, answer.device]
    if answer.steps:
        parts.append(plural(answer.steps, "step"))
    if answer.step_ns is not None:
        parts.append(step_time(answer))
    if answer.complete and not answer.limited:
        parts.append("trace complete")
    return " · ".join(filter(None, parts))


def step_time(answer: Answer) -> str:
    """Return ``27.0 ms a step, median of 24 steps before the capture (median 29.2 ms while captured)``."""
    own, captured = format_ns(answer.step_ns), format_ns(answer.captured_step_ns)
    slowed = own != captured and (answer.captured_step_ns or 0.0) > (answer.step_ns or 0.0)
    comma = "," if answer.step_is.startswith(("median", "mean")) else ""
    words = " ".join(filter(None, (own, "a step" if answer.steps else "")))
    words += f"{comma} {answer.step_is}" if answer.step_is else ""
    captured = " ".join(filter(None, (answer.captured_is, captured)))
    return words + (f" ({captured} while captured)" if slowed else "")


def _gain(change: Change) -> str:
    """Return ``saves about 1.40 ms a step (1.10 ms to 1.70 ms)``."""
    if change.saves_ns is None:
        return ""
    return format_ns(change.saves_ns) + (f" ({change.saves_range})" if change.saves_range else "")


def said_of_above(change: Change) -> str:
    """Return how a finding is related to those above it; empty = it is independent of them."""
    if change.on_top:
        return "once the above is fixed"
    return "overlaps the above" if change.overlaps else ""


def _in_brackets(words: str) -> str:
    return f" ({words})" if words else ""


def nothing_found(answer: Answer) -> tuple[Level, str]:
    """Return the level and the sentence of a page without findings: that no rule applies does not make all well."""
    if see := _titles(answer, "bad"):
        return "warn", f"no rule names a first change: see {see} below"
    if answer.in_part:
        return "warn", "no rule found a cost in what could be read of this trace"
    works, whole = answer.device_work_ns, answer.step_ns
    if works is not None and whole is not None and works < _MOSTLY_IDLE * whole:
        return (
            "warn",
            f"no rule names a first change, though the device works for only {format_ns(works)} of {format_ns(whole)}",
        )
    if answer.left_to_try:
        return "warn", f"no rule found a cost in this trace; {answer.left_to_try}"
    if see := _titles(answer, "warn"):
        return "warn", f"no rule found a cost in this trace; see {see} below"
    return "good", "nothing to change: no rule found a cost in this trace"


def _titles(answer: Answer, level: Level) -> str:
    return " and ".join(line.title for line in answer.lines if line.level == level)


def _in_full(change: Change, answer: Answer, style: Style) -> list[str]:
    lines = []
    if change.saves_ns is not None:
        share = change.share or 0.0
        level = "bad" if share >= 0.05 else "warn"
        saves = f"{SIGNS[level]} saves about {format_rough_share(share)}"
        gain = _gain(change) + (f" of {format_ns(answer.step_ns)}" if answer.step_ns is not None else "")
        # The bar gives way where it would break the line.
        cells = (
            _BAR_CELLS if style.width is None else min(_BAR_CELLS, style.width - len(saves) - len(gain) - 4)
        )
        filled = min(round(share * cells), cells)
        bar = f"{'█' * filled}{'░' * (cells - filled)}  " if cells >= _MIN_BAR_CELLS else ""
        head = f"{saves}  {bar}{gain}"
        fits = style.width is None or len(head) <= style.width
        lines += [
            paint(line, COLOURS[level], style) for line in ([head] if fits else wrap(head, style, "", "  "))
        ]
    else:
        lines.append(paint(f"{SIGNS['bad']} savings unknown", COLOURS["bad"], style))
    lines += wrap(change.what, style, "  ")
    for name, text in (
        ("where", change.where),
        ("fix", change.fix),
        ("why", f"{change.because} (sure: {change.sure})" if change.because else ""),
        ("prove", change.prove),
    ):
        if text:
            lines += wrap(text, style, f"  {name:<6} ", " " * 9)
    return lines


def _in_short(change: Change, above: Sequence[Change], style: Style) -> list[str]:
    """Return a finding without what those above it say as well."""
    share = format_rough_share(change.share) if change.share is not None else ""
    gain = f"{_gain(change)}: " if change.saves_ns is not None else ""
    if change.where and any((other.what, other.fix) == (change.what, change.fix) for other in above):
        said = f"the same at {change.where}"
    else:
        where = f" · {change.where}" if change.where else ""
        fix = "the same fix" if any(other.fix == change.fix for other in above) else change.fix
        said = f"{change.what}{where} → {fix}"
    return wrap(f"{gain}{said}{_in_brackets(said_of_above(change))}", style, f"  {share:>6}  ", " " * 10)


def _summary(answer: Answer) -> str:
    parts = []
    if answer.together_ns is not None and answer.step_ns and len(answer.changes) > 1:
        share = format_rough_share(answer.together_ns / answer.step_ns)
        every = "both" if len(answer.changes) == 2 else f"all {len(answer.changes)}"
        parts.append(f"{every} together save {format_ns(answer.together_ns)} ({share})")
    if answer.device_work_ns is not None and answer.changes:
        # Measured while captured, it may be a little longer than the step before.
        whole = answer.step_ns is not None and answer.device_work_ns >= _ALL * answer.step_ns
        work = format_ns(answer.device_work_ns)
        # Findings that shorten device work, too, can leave less of the step than that.
        saved_ns = answer.together_ns or 0.0
        before = bool(answer.step_ns) and (answer.step_ns or 0.0) - saved_ns < answer.device_work_ns
        alone = f"device work alone takes {work}{' without these changes' if before else ''}"
        parts.append("device work takes the whole step" if whole else alone)
    return " · ".join(parts)


def _line(line: Line, style: Style, name: str) -> list[str]:
    return [
        paint(part, COLOURS[line.level], style)
        for part in wrap(line.sentence, style, f"{SIGNS[line.level]} {name}")
    ]


def to_markdown(answer: Answer) -> str:
    """Return the page as Markdown."""
    lines = [f"## {escape(_head(answer))}", ""]
    if answer.run is not None:
        lines += [escape(answer.run.sentence), ""]
    lines += [line for note in answer.run_notes for line in (escape(note), "")]
    if _is_limited(answer):
        lines += [escape(answer.trust), ""]
    if answer.changes:
        lines += ["| saves a step | range | what | where | fix | prove |", "|--:|--:|---|---|---|---|"]
    for change in answer.changes[:MAX_CHANGES]:
        saves = format_ns(change.saves_ns) if change.saves_ns is not None else "–"
        if change.saves_ns is not None and change.share is not None:
            saves += f" ({format_rough_share(change.share)})"
        prove = code(sanitize(change.prove)) if change.prove else ""
        what = escape(change.what + _in_brackets(said_of_above(change)))
        lines.append(
            f"| {saves} | {change.saves_range} | {what} | {escape(change.where)} | {escape(change.fix)} "
            f"| {prove} |"
        )
    if answer.refused:
        lines.append(f"! no advice: {escape(answer.refused)}")
    elif not answer.changes:
        level, sentence = nothing_found(answer)
        lines.append(f"{SIGNS[level]} {escape(sentence)}")
    if summary := _summary(answer):
        lines += ["", escape(summary)]
    lines += [
        "",
        *(f"- {SIGNS[line.level]} **{escape(line.title)}** {escape(line.sentence)}" for line in answer.lines),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def to_json(answer: Answer, max_bytes: int | None = None) -> str:
    """Return the page as JSON on one line; ASCII alone."""
    content = _document(answer)
    while max_bytes is not None and len(_dump(content)) > max_bytes:
        if len(content["notes"]) > len(answer.run_notes):  # those of the run come first
            content["notes"].pop()
        elif content["lines"] and len(content["findings"]) <= max(2, len(content["lines"])):
            content["lines"].pop()
        elif len(content["findings"]) > 1:
            content["findings"].pop()
            content["findings_left_out"] += 1
        elif content["notes"]:
            content["notes"].pop()
        else:  # names of a trace can be as long as they like
            content = _document(_clipped(answer))
            content["notes"], content["lines"] = [], []
            content["findings_left_out"] += len(content["findings"][1:])
            content["findings"] = content["findings"][:1]
            break
    return _dump(content)


def _document(answer: Answer) -> dict[str, Any]:
    return {
        "tuiprof_why": SHAPE,
        "target": answer.title,
        "run": answer.run.sentence if answer.run is not None else None,
        "trust": {"complete": answer.complete, "text": answer.trust},
        "device": answer.device or None,
        "steps": answer.steps,
        "step_ns": _whole(answer.step_ns),
        "step_is": answer.step_is or None,
        "captured_step_ns": _whole(answer.captured_step_ns),
        "device_work_ns": _whole(answer.device_work_ns),
        "together_ns": _whole(answer.together_ns),
        "findings": [_finding(change) for change in answer.changes],
        "findings_left_out": 0,
        "refused": answer.refused or None,
        "lines": [
            {"analysis": line.analysis, "level": line.level, "sentence": line.sentence}
            for line in answer.lines
        ],
        "notes": list(answer.notes),
        "untrusted": list(_UNTRUSTED),
    }


def _finding(change: Change) -> dict[str, Any]:
    return {
        "rule": change.rule,
        "what": change.what,
        "where": change.where,
        "fix": change.fix,
        "sure": change.sure,
        "saves_ns": _whole(change.saves_ns),
        "saves_low_ns": _whole(change.saves_low_ns),
        "saves_high_ns": _whole(change.saves_high_ns),
        "share": round(change.share, 4) if change.share is not None else None,
        "overlaps": change.overlaps,
        "on_top": change.on_top,
        "prove": change.prove,
    }


def _clipped(answer: Answer) -> Answer:
    cut = slice(_CLIPPED)
    changes = (
        replace(change, what=change.what[cut], where=change.where[cut], fix=change.fix[cut])
        for change in answer.changes
    )
    return replace(
        answer,
        title=answer.title[cut],
        device=answer.device[cut],
        trust=answer.trust[cut],
        changes=tuple(changes),
        run=replace(answer.run, sentence=answer.run.sentence[cut]) if answer.run is not None else None,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"
