"""The words of the library: what each line of the list and each detail says."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.model.units import format_bytes, format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.library.items import LadderItem, Shelf, VariantItem
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.choices import Choice
from tuiprof.tui.widgets.lines import Row, fit, row_width, spread

if TYPE_CHECKING:
    from tuiprof.session.store.glance import Summary
    from tuiprof.session.store.labels import Labels

#: What every trace ends in, and so tells none from another.
_ENDING: Final = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$|\.xplane\.pb(\.gz)?$")
_STATES = {
    "running": (glyphs.RUNNING, "good", "running"),
    "finished": (glyphs.DONE, "good", ""),
    "failed": (glyphs.FAILED, "bad", "failed"),
    "stopped": (glyphs.STOPPED, "warn", "stopped"),
    "interrupted": (glyphs.INTERRUPTED, "warn", "interrupted"),
    "unreadable": (glyphs.FAILED, "warn", "unreadable"),
}


def head(shelf: Shelf, width: int) -> Row:
    """Return the first line: the program, and what scenarios would run on.

    Args:
        shelf: What is listed.
        width: Cells.
    """
    return spread([(" tuiprof", "accent")], [(sanitize(shelf.machine) + " ", "dim")], width)


def items(shelf: Shelf, filter_: str, marked: Sequence[str] = ()) -> list[Choice]:
    """Return the list on the left.

    Args:
        shelf: What is listed.
        filter_: Only what contains this text; empty = everything.
        marked: Paths of the sessions that are marked, in the order in which they were.
    """

    def kept(*texts: str) -> bool:
        return not filter_ or any(filter_.casefold() in text.casefold() for text in texts)

    groups: list[tuple[str, list[Choice]]] = [
        (
            "Ladders",
            [
                Choice(f"ladder:{ladder.name}", partial(_ladder_line, ladder))
                for ladder in shelf.ladders
                if kept(ladder.name, ladder.title, *(variant.name for variant in ladder.variants))
            ],
        ),
        (
            "Sessions",
            [
                Choice(
                    f"session:{session.path}",
                    partial(
                        _session_line,
                        session,
                        shelf.labels.get(session.id),
                        marked.index(session.path) + 1 if session.path in marked else 0,
                    ),
                )
                for session in shelf.sessions
                if kept(session.id, session.title, session.state, _labelled(shelf, session))
            ],
        ),
        (
            "Traces",
            [
                Choice(f"trace:{path}", [(sanitize(_ENDING.sub("", path.name)), "text")])
                for path in shelf.traces
                if kept(path.name)
            ],
        ),
    ]
    if shelf.problems and not filter_:
        count = len(shelf.problems)
        text = f"{count} problem{'s' if count > 1 else ''}"
        groups.append(
            ("Not readable", [Choice("problems:", [(f"{glyphs.FAILED} ", "warn"), (text, "text")])])
        )
    out: list[Choice] = []
    for title, choices in groups:
        if choices or (title == "Sessions" and not filter_):
            if out:
                out.append(Choice("", []))
            used = shelf.total_bytes if title == "Sessions" else 0
            remark: Row = [(f"  {format_bytes(used)} on disk", "dim")] if used else []
            out.append(Choice("", [(title, "title"), *remark], indent=1))
            out.extend(choices or [Choice("", [("none yet: r runs a scenario", "dim")])])
    return out


def _ladder_line(ladder: LadderItem, width: int) -> Row:
    """Return ``metrics   8 of 8 can run``."""
    total, can = len(ladder.variants), ladder.runnable
    count: Row = (
        [(f"{total} variants", "dim")]
        if can is None
        else [(f"{can} of {total}", "text" if can else "dim"), (" can run", "dim")]
    )
    name: Row = [(sanitize(ladder.name), "text")]
    return spread(fit(name, max(width - row_width(count) - 2, 4)), count, width)


def _labelled(shelf: Shelf, session: Summary) -> str:
    labels = shelf.labels.get(session.id)
    return labels.words if labels is not None else ""


def _session_line(session: Summary, labels: Labels | None, mark: int, width: int) -> Row:
    """Return ``● 05:30 metrics:naive #tag  running``; a marked one carries its number."""
    glyph, role, word = _STATES.get(session.state, _STATES["unreadable"])
    said = f"exit {session.code}" if session.state == "failed" and session.code is not None else word
    if not said and session.median_ns is not None:
        said, tone = format_ns(session.median_ns), "text"
    else:
        tone = role
    left: Row = [
        (f"{glyph} ", role),
        (f"{when(session.unix_ns):<6} ", "dim"),
        (sanitize(session.title), "text"),
    ]
    if mark:
        left.insert(0, (f"[{mark}] ", "accent"))
    if labels is not None and labels.tags:
        left.append((" " + " ".join(f"#{sanitize(tag)}" for tag in labels.tags), "accent"))
    right: Row = [(f"{said} ", tone)]
    room = width - row_width(right) - 2
    return spread(fit(left, room), right, width) if room > 12 else fit(left, width)


def when(unix_ns: int, now: datetime | None = None) -> str:
    """Return a time as a person says it: today's clock, else the day.

    Args:
        unix_ns: The time.
        now: The present, for tests.
    """
    if not unix_ns:
        return glyphs.NONE
    then = datetime.fromtimestamp(unix_ns / 1e9, UTC).astimezone()
    now = (now or datetime.now(UTC)).astimezone()
    if then.date() == now.date():
        return then.strftime("%H:%M")
    if then.year == now.year:
        return f"{then.day} {then.strftime('%b')}"
    return then.strftime("%Y-%m")


def session_name(session: Summary) -> str:
    """Return what a session is called in a sentence.

    Args:
        session: It.
    """
    return f"{sanitize(session.title)} of {when(session.unix_ns)}"


def _wrapped(text: str, width: int, role: str) -> list[Row]:
    """Return a paragraph in lines."""
    return [[(line, role)] for line in textwrap.wrap(sanitize(" ".join(text.split())), max(20, width))]


def about_ladder(ladder: LadderItem, width: int) -> list[Row]:
    """Return what a ladder is about.

    Args:
        ladder: It.
        width: Cells.
    """
    rows: list[Row] = [[(sanitize(ladder.name), "accent"), (" — ", "dim"), (sanitize(ladder.title), "title")]]
    rows.extend(_wrapped(ladder.story, width, "text"))
    if ladder.source:
        rows.extend([[], [("published on ", "dim"), (sanitize(ladder.source), "dim")]])
    return rows


def about_variant(ladder: LadderItem, variant: VariantItem | None, width: int) -> list[Row]:
    """Return what the variant under the cursor changes, and what it lacks.

    Args:
        ladder: Its ladder.
        variant: It; None = none.
        width: Cells.
    """
    rows: list[Row] = []
    if variant is not None:
        rows.extend(_wrapped(variant.note, width, "text"))
        if variant.published:
            rows.extend(_wrapped(f"published: {variant.published}", width, "dim"))
        if variant.runnable is False:
            rows.extend(_wrapped(f"cannot run here: {variant.why}", width, "warn"))
        if variant.measured:
            what = "the newest ladder" if variant.measured == "ladder" else "the newest run"
            size = f", preset {variant.here_preset}" if variant.here_preset else ""
            rows.extend(_wrapped(f"here: {what} on this machine{size}", width, "dim"))
    if ladder.needs:
        rows.extend(_wrapped(f"needs {', '.join(ladder.needs)}", width, "dim"))
    return rows


def about_session(shelf: Shelf, session: Summary, errors: list[str], width: int) -> list[Row]:
    """Return what is known of a session without reading its logs.

    Args:
        shelf: What is listed.
        session: The session.
        errors: The last lines of its standard error, shown where it failed.
        width: Cells.
    """
    glyph, role, _word = _STATES.get(session.state, _STATES["unreadable"])
    how = session.state if session.code in (None, 0) else f"{session.state}, exit {session.code}"
    if session.detail:
        how += f" ({session.detail})"
    started = datetime.fromtimestamp(session.unix_ns / 1e9, UTC).astimezone() if session.unix_ns else None
    facts = [
        ("command", shlex.join(session.argv) if session.argv else glyphs.NONE),
        ("started", started.strftime("%Y-%m-%d %H:%M:%S %Z") if started else glyphs.NONE),
        ("lasted", format_ns(session.duration_ns)),
        ("steps", format_count(session.steps) if session.steps else "none recorded"),
        ("median of the last steps", format_ns(session.median_ns)),
        ("host", session.host or glyphs.NONE),
        ("disk use", format_bytes(shelf.sizes.get(session.id, 0))),
        ("folder", session.path),
    ]
    labels = shelf.labels.get(session.id)
    if labels is not None and labels.tags:
        facts.append(("tags", " ".join(f"#{tag}" for tag in labels.tags)))
    if labels is not None:
        facts.extend(("note", note.text) for note in labels.notes)
    rows: list[Row] = [
        [(f"{glyph} ", role), (sanitize(session.title), "title"), (f"  {sanitize(how)}", role)],
        [],
    ]
    for label, text in facts:
        lines = textwrap.wrap(sanitize(text), max(20, width - 26), break_on_hyphens=False) or [""]
        rows.append([(f"{label:<25} ", "dim"), (lines[0], "text")])
        rows.extend([(" " * 26, "text"), (line, "text")] for line in lines[1:3])
    if errors:
        rows.extend([[], [("last lines of its standard error", "dim")]])
        rows.extend([("▏", "warn"), (line, "text")] for line in errors)
    verb = "watch it" if session.state == "running" else "look at it"
    keys = (("enter", verb), ("R", "replay it"), ("t", "tags"), ("m", "note"), ("space", "mark to compare"))
    rows.append([])
    rows.append([span for name, does in keys for span in ((f"{name} ", "key"), (f"{does}   ", "dim"))])
    return rows


def about_trace(path: Path, width: int) -> list[Row]:
    """Return what is known of a trace without reading it.

    Args:
        path: The file.
        width: Cells.
    """
    try:
        size = format_bytes(path.stat().st_size)
    except OSError as error:
        size = f"cannot be read: {error.strerror}"
    return [
        [(sanitize(path.name), "title")],
        [],
        [("size   ", "dim"), (size, "text")],
        *_wrapped(str(path.parent), width, "dim"),
        [],
        [("enter ", "key"), ("read what it tells", "dim")],
    ]


def about_nothing(shelf: Shelf, filter_: str, width: int) -> list[Row]:
    """Return why the list is empty, and what to do.

    Args:
        shelf: What is listed.
        filter_: The filter.
        width: Cells.
    """
    if shelf.problems:
        return [row for problem in shelf.problems for row in _wrapped(problem, width, "warn")]
    if filter_:
        return _wrapped(f"nothing contains {filter_!r}: escape shows everything again", width, "dim")
    return [
        [("looking …", "dim")],
    ]
