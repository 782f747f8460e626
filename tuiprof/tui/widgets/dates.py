"""Dates in a few cells."""

from __future__ import annotations

from datetime import UTC, datetime

from tuiprof.tui.terminal import glyphs


def when(unix_ns: int, now: datetime | None = None) -> str:
    """Return a time as a person says it: today's clock, else the day."""
    if not unix_ns:
        return glyphs.NONE
    then = datetime.fromtimestamp(unix_ns / 1e9, UTC).astimezone()
    now = (now or datetime.now(UTC)).astimezone()
    if then.date() == now.date():
        return then.strftime("%H:%M")
    if then.year == now.year:
        return f"{then.day} {then.strftime('%b')}"
    return then.strftime("%Y-%m")


def age(unix_ns: int, now: datetime | None = None) -> str:
    """Return how long ago something was, as ``12 min``, ``3 h`` or ``5 d``; from a year on the month."""
    if not unix_ns:
        return glyphs.NONE
    now = now or datetime.now(UTC)
    seconds = now.timestamp() - unix_ns / 1e9
    for unit_s, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return when(unix_ns, now) if seconds >= 365 * 86_400 else f"{int(seconds // unit_s)} {word}"
    return "now"


def ago(unix_ns: int, now: datetime | None = None) -> str:
    """Return how long ago something was, in a sentence: ``12 min ago``, ``now``, or the month."""
    text = age(unix_ns, now)
    return f"{text} ago" if " " in text else text
