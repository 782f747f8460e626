"""What an HTML report opens with: what to change first and what that saves, and the timeline as a picture."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import Final

from tuiprof.model.answer import Answer, Change
from tuiprof.model.picture import Lane, Picture, Range
from tuiprof.model.units import format_ns, format_ns_span, format_rough_share
from tuiprof.report.sanitize import sanitize

#: Changes that the page lists; all of them are in the section of the advice.
_MOST: Final = 4
#: A lane is drawn in so many steps of height: neighbours that look the same are one shape.
_LEVELS: Final = 8
#: A range narrower than this has no room for its name.
_NAMED: Final = 0.04
_LEGEND: Final = {
    "calls": "launch calls",
    "waits": "host waits for the device",
    "busy": "device works",
    "idle": "device idle",
}


def text(words: str) -> str:
    """Return untrusted text that a page shows as it is."""
    return escape(sanitize(words))


def page(answer: Answer) -> str:
    """Return what to change first, as a section."""
    facts = [answer.device, f"{answer.steps} steps" if answer.steps else ""]
    if answer.step_ns is not None:
        facts.append(f"{format_ns(answer.step_ns)} a step")
    if answer.captured_step_ns is not None and answer.step_ns is not None:
        facts.append(f"{format_ns(answer.captured_step_ns)} while captured")
    head = f'<p class="trust">{text(" · ".join(filter(None, facts)))}</p>'
    if answer.changes:
        body = f'<ol class="changes">{"".join(map(_change, answer.changes[:_MOST]))}</ol>'
    else:
        body = '<p class="verdict good"><span>Nothing to change first: no rule found a cost in this trace.</span></p>'
    together = ""
    if answer.together_ns is not None and answer.step_ns and len(answer.changes) > 1:
        share = format_rough_share(answer.together_ns / answer.step_ns)
        together = f'<p class="below">All together: {format_ns(answer.together_ns)} of a step ({share})</p>'
    return f'<section id="first"><h2>What to change first</h2>{head}{body}{together}</section>'


def _change(change: Change) -> str:
    saves = ""
    if change.saves_ns is not None:
        share = change.share or 0.0
        span = (
            f" ({format_ns_span(change.saves_low_ns, change.saves_high_ns)})"
            if change.saves_low_ns is not None and change.saves_high_ns is not None
            else ""
        )
        saves = (
            f'<p class="saves">saves about <b>{format_rough_share(share)}</b> '
            f"<small>{format_ns(change.saves_ns)}{span} of a step"
            f"{', less after those above' if change.overlaps else ''}</small></p>"
            f'<div class="share" aria-hidden="true"><i style="width:{min(max(share, 0.0), 1.0):.1%}"></i></div>'
        )
    rest = "".join(
        f"<dt>{name}</dt><dd>{said}</dd>"
        for name, said in (
            ("where", text(change.where)),
            ("fix", text(change.fix)),
            ("prove", f"<code>{text(change.prove)}</code>" if change.prove else ""),
        )
        if said
    )
    return f"<li>{saves}<h3>{text(change.what)}</h3><dl>{rest}</dl></li>"


def timeline(picture: Picture) -> str:
    """Return a stretch of a trace as a section: a line a lane, drawn to scale."""
    lanes = "".join(
        f'<div class="lane {lane.kind}"><span>{text(lane.label)}</span>{_drawn(lane)}</div>'
        for lane in picture.lanes
    )
    kinds = [kind for kind in _LEGEND if any(lane.kind == kind for lane in picture.lanes)]
    legend = "".join(f'<li><b class="{kind}"></b> {_LEGEND[kind]}</li>' for kind in kinds)
    return (
        f'<section id="timeline"><h2>Timeline <small>{text(picture.title)}</small></h2>'
        f'<figure class="timeline">{lanes}<div class="lane"><span></span><div class="ends"><span>0 ms</span>'
        f"<span>{format_ns(picture.dur_ns)}</span></div></div><ul>{legend}</ul></figure></section>"
    )


def _drawn(lane: Lane) -> str:
    if lane.kind not in ("steps", "ranges"):
        columns = len(lane.shares)
        return (
            f'<svg viewBox="0 0 {columns} {_LEVELS}" preserveAspectRatio="none" role="img" '
            f'aria-label="{text(lane.label)}"><path d="{_area(lane.shares)}"/></svg>'
        )
    colours = {name: i % 6 + 1 for i, name in enumerate(dict.fromkeys(one.label for one in lane.ranges))}
    named = "".join(_range(one, 0 if lane.kind == "steps" else colours[one.label]) for one in lane.ranges)
    return f'<div class="bar">{named}</div>'


def _range(one: Range, colour: int) -> str:
    label = text(one.label)
    return (
        f'<i class="c{colour}" style="left:{one.start:.3%};width:{one.end - one.start:.3%}" '
        f'title="{label} {format_ns(one.dur_ns)}">{label if one.end - one.start >= _NAMED else ""}</i>'
    )


def _area(shares: tuple[float, ...]) -> str:
    """Return a path as high in each column as its share; what is there at all is seen."""
    heights = [0 if share <= 0 else max(round(share * _LEVELS), 1) for share in shares]
    out, at = [], 0
    for height, columns in groupby(heights):
        count = sum(1 for _ in columns)
        if height:
            out.append(f"M{at} {_LEVELS}v-{height}h{count}v{height}z")
        at += count
    return "".join(out)
