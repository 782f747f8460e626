"""Dates in a few cells."""

from __future__ import annotations

from datetime import UTC, datetime

from tuiprof.tui.terminal import glyphs


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
