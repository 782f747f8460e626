"""Reports as one HTML page that needs nothing else: no network, no file beside it, readable on a phone and on paper.

Everything that a trace or a script wrote is text there: sanitised, then escaped. A content policy in the page allows
only its own script, by its hash, so that nothing else could run even then.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tuiprof.model import Column, Fact, Report, Table, Unavailable
from tuiprof.model.report import Answer, Change, Lane, Picture, Range
from tuiprof.model.units import format_ns, format_rough_share
from tuiprof.report import Renderer, Style, in_full
from tuiprof.report.answer import MAX_CHANGES, nothing_found, said_of_above, step_time
from tuiprof.report.charts import svg_charts
from tuiprof.report.sanitize import sanitize

_SIGNS = {"good": "✓", "info": "i", "warn": "!", "bad": "✗"}
_WORDS = {"good": "good", "info": "for information", "warn": "warning", "bad": "bad"}
#: Rows of a table in the page; CSV and JSON hold more.
_ROWS = 1000
#: Characters of a text on one line before the page may break it.
_TEXT = 34
#: Characters of a figure that fit a cell among the others; a longer one takes a line of its own.
_FACT = 40
#: Up to so many characters, a cell is as wide as those of figures; longer ones take two.
_NARROW = 12


def escape(text: str) -> str:
    """Return text that a page shows as it is, line breaks kept."""
    return "<br>".join(html.escape(sanitize(line)) for line in text.split("\n"))


def document(
    reports: Sequence[Report | Unavailable],
    trust: str,
    style: Style,
    answer: Answer | None = None,
    picture: Picture | None = None,
) -> str:
    """Return reports as a page that opens with the answer (what to change first) and the timeline, as far as given."""
    answers = [report for report in reports if isinstance(report, Report)]
    gone = [report for report in reports if isinstance(report, Unavailable)]
    title = escape(style.title or (answers[0].title if answers else "Report"))
    script = Path(__file__).with_name("html.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = [_section(f"r{i}", report) for i, report in enumerate(answers)]
    links = [
        f'<li><a href="#r{i}">{_sign(report)} {escape(report.title)}</a></li>'
        for i, report in enumerate(answers)
    ]
    if gone:
        sections.append(_gone(gone))
        links.append('<li><a href="#gone"><b class="sign info">–</b> Not available here</a></li>')
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title} · tuiprof</title>",
        f"<style>{Path(__file__).with_name('html.css').read_text()}</style></head><body>",
        f'<header><p class="brand">tuiprof</p><h1>{title}</h1>'
        + (f'<p class="trust">{escape(trust)}</p>' if trust else "")
        + "</header>",
        f'<div class="page"><nav aria-label="Contents"><ul>{"".join(links)}</ul></nav><main>',
        page(answer) if answer is not None else "",
        timeline(picture) if picture is not None else "",
        _glance(answers),
        *sections,
        "</main></div>",
        f"<script>{script}</script></body></html>",
    ]
    return "\n".join(lines) + "\n"


def _sign(report: Report) -> str:
    level = report.verdict.level
    return f'<b class="sign {level}" title="{_WORDS[level]}">{_SIGNS[level]}</b>'


def _glance(answers: Sequence[Report]) -> str:
    """Return every verdict in one list: whoever reads no further has the answers."""
    rows = "".join(
        f'<li><a href="#r{i}">{_sign(report)}<span><strong>{escape(report.title)}</strong> '
        f"{escape(report.verdict.sentence)}</span></a></li>"
        for i, report in enumerate(answers)
    )
    return f'<section class="glance"><h2>Verdicts</h2><ul>{rows}</ul></section>' if len(answers) > 1 else ""


def _section(anchor: str, report: Report) -> str:
    window = f" <small>{escape(report.window.label)}</small>" if report.window.label else ""
    facts = "".join(_fact(fact) for fact in report.facts if fact.value is not None)
    rules = "".join(f"<dt>{escape(rule.name)}</dt><dd>{escape(rule.text)}</dd>" for rule in report.rules)
    parts = [
        f'<section id="{anchor}"><h2>{escape(report.title)}{window}</h2>',
        f'<p class="verdict {report.verdict.level}">{_sign(report)}<span>{escape(report.verdict.sentence)}</span></p>',
        *(f'<p class="note">{escape(note)}</p>' for note in report.notes),
        f'<dl class="facts">{facts}</dl>' if facts else "",
        *(chart for table in report.tables for chart in svg_charts(table)),
        *(_table(table) for table in report.tables),
        f"<details><summary>Definitions and thresholds</summary><dl>{rules}</dl></details>" if rules else "",
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _fact(fact: Fact) -> str:
    value = fact.text
    wide = ' class="wide"' if len(value) > _FACT else ' class="broad"' if len(value) > _NARROW else ""
    return (
        f'<div title="{escape(fact.help)}"{wide}><dt>{escape(fact.label)}</dt><dd>{escape(value)}</dd></div>'
    )


def _table(table: Table) -> str:
    columns = [column for column in table.columns if not column.hidden]
    total = len(table.rows)
    note = f'<p class="below">{escape(table.note)}</p>' if table.note else ""
    head = f"<h3>{escape(table.title)} <small>{total or ''}</small></h3>"
    if not total:
        return f'{head}<p class="empty">{escape(table.empty)}</p>{note}'
    rows = table.rows.select([column.key for column in columns]).head(_ROWS)
    if total > _ROWS:
        note = f'<p class="below">… {total - _ROWS} more rows; {in_full(total)}</p>{note}'
    if table.prose:
        return head + _findings(columns, rows.rows()) + note
    tops = _tops(columns, rows.rows())
    faint = table.rows[table.faint].head(_ROWS).to_list() if table.faint else [False] * len(rows)
    heads = "".join(
        f'<th scope="col" class="{_side(c)}" title="{escape(c.help)}"{_room(c, rows[c.key].to_list())}>'
        f"{escape(c.label)}</th>"
        for c in columns
    )
    body = "".join(
        f"{'<tr class=faint>' if dim else '<tr>'}"
        f"{''.join(_cell(v, c, top) for v, c, top in zip(row, columns, tops, strict=True))}</tr>\n"
        for row, dim in zip(rows.iter_rows(), faint, strict=True)
    )
    return (
        f'{head}<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _side(column: Column) -> str:
    return "n" if column.right_aligned else "t"


def _room(column: Column, values: Sequence[Any]) -> str:
    """Return how wide a column of texts is at least, so that its texts are not broken into slivers."""
    if column.right_aligned:
        return ""
    longest = max(len(line) for value in values for line in column.text(value).split("\n"))
    return f' style="min-width:min({min(longest, _TEXT) + 4}ch,64vw)"'


def _tops(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[float | None]:
    """Return the value that fills the bar behind a figure: 1 for shares, the highest where rows are ranked by it."""
    ranked = next((i for i, column in enumerate(columns) if column.kind == "ns"), None)
    tops: list[float | None] = []
    for i, column in enumerate(columns):
        values = [float(row[i]) for row in rows if isinstance(row[i], int | float)]
        falls = i == ranked and values == sorted(values, reverse=True)
        top = 1.0 if column.kind == "share" else max(values, default=0.0) if falls else 0.0
        tops.append(top if top > 0 and len(rows) > 1 else None)
    return tops


def _cell(value: Any, column: Column, top: float | None) -> str:
    text, head = escape(column.text(value)), f' data-h="{escape(column.label)}"'
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f'<td class="{_side(column)}{" code" if column.code else ""}"{head}>{text}</td>'
    bar = f' style="--p:{max(0.0, min(1.0, value / top)):.1%}"' if top and value == value else ""
    return f'<td class="n{" b" if bar else ""}" data-v="{value}"{head}{bar}>{text}</td>'


def _findings(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows of sentences one below the other: the figures, the first text as heading, then the others by name."""
    items = []
    for row in rows:
        cells = [(c, escape(c.text(v))) for v, c in zip(row, columns, strict=True)]
        figures = "".join(
            f"<span>{escape(c.label)} <b>{text}</b></span>" for c, text in cells if c.kind != "text"
        )
        texts = [(c, text) for c, text in cells if c.kind == "text" and text]
        rest = "".join(f"<dt>{escape(c.label)}</dt><dd>{text}</dd>" for c, text in texts[1:])
        items.append(f"<li><p>{figures}</p><h4>{texts[0][1] if texts else ''}</h4><dl>{rest}</dl></li>")
    return f'<ol class="findings">{"".join(items)}</ol>'


def _gone(reports: Sequence[Unavailable]) -> str:
    rows = "".join(
        f"<dt>{escape(report.analysis)}</dt><dd>{escape(report.reason)}"
        + (f'<p class="below">→ {escape(report.remedy)}</p>' if report.remedy else "")
        + "</dd>"
        for report in reports
    )
    return f'<section id="gone"><h2>Not available here</h2><dl class="gone">{rows}</dl></section>'


RENDERER = Renderer("html", document)


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
    return html.escape(sanitize(words))


def page(answer: Answer) -> str:
    """Return what to change first, as a section."""
    facts = [answer.device, f"{answer.steps} steps" if answer.steps else ""]
    if answer.step_ns is not None:
        facts.append(step_time(answer))
    head = f'<p class="trust">{text(" · ".join(filter(None, facts)))}</p>'
    if answer.changes:
        body = f'<ol class="changes">{"".join(map(_change, answer.changes[:MAX_CHANGES]))}</ol>'
    else:
        level, sentence = nothing_found(answer)
        body = f'<p class="verdict {level}"><span>{text(sentence[0].upper() + sentence[1:])}.</span></p>'
    together = ""
    if answer.together_ns is not None and answer.step_ns and len(answer.changes) > 1:
        share = format_rough_share(answer.together_ns / answer.step_ns)
        together = f'<p class="below">Together: {format_ns(answer.together_ns)} of a step ({share})</p>'
    return f'<section id="first"><h2>What to change first</h2>{head}{body}{together}</section>'


def _change(change: Change) -> str:
    saves, relation = "", said_of_above(change)
    if change.saves_ns is not None:
        share = change.share or 0.0
        span = f" ({change.saves_range})" if change.saves_range else ""
        saves = (
            f'<p class="saves">saves about <b>{format_rough_share(share)}</b> '
            f"<small>{format_ns(change.saves_ns)}{span} of a step"
            f"{f', {relation}' if relation else ''}</small></p>"
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
