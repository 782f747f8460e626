"""Numbers as people read them: three significant figures and a unit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuiprof.model.report import Kind

_TIME = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SIZE = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
NONE = "–"
#: Before what is less than nothing: as wide as a figure, and not taken for a hyphen.
MINUS = "−"
#: What is smaller is said to be, instead of shown as 0 or with an exponent.
_MIN_SHOWN = 0.001
#: The blanks between groups of three digits.
_GROUPS = re.compile(r"(?<=\d)\s(?=\d{3}(?!\d))")
#: The blanks at which no line may end: between the groups of a number, and between a number and its unit.
_INSIDE = re.compile(r"(?<=\d) (?=(?:[nµm]?s|min|h|%|pp|[KMGT]i?B|B|\d{3})(?!\w))")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def typed_number(text: str) -> str:
    """Return a number as typed or copied from a table (``−1 234.5``) in the signs that ``float`` reads."""
    return _GROUPS.sub("", text.replace(MINUS, "-"))


def bind_units(text: str) -> str:
    """Return a text in which every number holds on to its unit: :func:`unbind_units` undoes it in the broken lines."""
    return _INSIDE.sub(_NO_BREAK, text)


def unbind_units(line: str) -> str:
    """Return a line with ordinary blanks."""
    return line.replace(_NO_BREAK, " ")


def _three_figures(value: float) -> str:
    if value < 0:
        return MINUS + _three_figures(-value)
    if 0 < value < 0.1:  # two, so that little is not shown as nothing
        return f"{value:.2g}" if value >= _MIN_SHOWN else f"<{_MIN_SHOWN}"
    # 99.96 rounds to a third figure before the point.
    whole = f"{value:,.0f}".replace(",", " ")
    return whole if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def format_ns(ns: float | None) -> str:
    """Return a duration such as ``16.3 ms`` or ``1 min 12 s``."""
    if ns is None:
        return NONE
    if ns < 0:
        return MINUS + format_ns(-ns)
    if ns >= 60_000_000_000:
        minutes, seconds = divmod(round(ns / 1e9), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
    for scale, unit in _TIME:
        # 999.6 µs rounds to "1000 µs": move up a unit instead.
        if ns >= scale * 0.9995:
            return f"{_three_figures(ns / scale)} {unit}"
    return "<1 ns" if 0 < ns < 1 else f"{abs(ns):.0f} ns"


def format_ns_range(low: float, high: float) -> str:
    """Return two durations such as ``25.8 … 26.7 ms``; the unit stands once where it is the same."""
    first, last = format_ns(low), format_ns(high)
    number, _, unit = first.rpartition(" ")
    return f"{number if ' ' not in number and last.endswith(f' {unit}') else first} … {last}"


def format_ns_span(low: float, high: float) -> str:
    """Return what a duration lies between in words: ``1.10 ms to 1.70 ms``, ``up to 762 µs``."""
    return f"{format_ns(low)} to {format_ns(high)}" if low >= 0.5 else f"up to {format_ns(high)}"


def format_bytes(size: float | None) -> str:
    """Return a size such as ``8.90 GiB`` (binary units)."""
    if size is None:
        return NONE
    if size < 0:
        return MINUS + format_bytes(-size)
    for scale, unit in _SIZE:
        if size >= scale:
            return f"{_three_figures(size / scale)} {unit}"
    return f"{size:.0f} B"


def format_count(value: float | None) -> str:
    """Return a count with thin groups, ``31 204``; fractions keep three figures."""
    if value is None:
        return NONE
    if value < 0:
        return MINUS + format_count(-value)
    if float(value).is_integer():
        return f"{int(value):,}".replace(",", " ")  # exactly: a count may have more figures than a float
    return _three_figures(value)


def plural(count: float, word: str) -> str:
    """Return a count with its noun: ``1 sync``, ``2.5 syncs``, ``1 318 syncs``."""
    text = format_count(round(count, 2))
    if text == "1":
        return f"1 {word}"
    return f"{text} {word}" + ("es" if word.endswith(("s", "ch")) else "s")


def format_factor(value: float) -> str:
    """Return how many times as much something is, ``3.00`` or ``17 400``, with no more than three figures."""
    return _three_figures(float(f"{value:.3g}"))


def format_speed(ratio: float) -> str:
    """Return a ratio of times, after over before, as ``2.34× faster``, ``1.045× slower`` or ``the same``; 0 = unknown.

    It is how many times as long the longer one takes, so that faster and slower are one scale. Below a tenth of
    difference it has a third decimal.
    """
    if not ratio > 0:
        return NONE
    factor, word = _speed(ratio)
    return f"{factor}× {word}" if word else "the same"


def format_speed_range(low: float, high: float) -> str:
    """Return an interval of ratios of times as ``1.10 … 1.13× faster``; the word stands once where it is the same."""
    (first, word), (last, other) = _speed(low), _speed(high)
    if word != other:
        return f"{format_speed(low)} … {format_speed(high)}"
    if not word:
        return format_speed(low)
    least, most = (last, first) if word == "faster" else (first, last)
    return f"{least} … {most}× {word}"


def _speed(ratio: float) -> tuple[str, str]:
    """Return how many times, and which way; no way where nothing is seen to differ."""
    factor = max(ratio, 1 / ratio)
    text = f"{factor:.3f}" if factor < 1.0995 else format_factor(factor)
    return text, "" if text == "1.000" else "faster" if ratio < 1 else "slower"


def format_share(share: float | None) -> str:
    """Return a share of one as percent, ``2.7 %``."""
    if share is None:
        return NONE
    if share < 0:
        return MINUS + format_share(-share)
    percent = share * 100
    if 0 < percent < _MIN_SHOWN:
        return f"<{_MIN_SHOWN} %"
    return (
        f"{percent:.0f} %"
        if percent >= 99.95 or percent == 0
        else f"{percent:.2g} %"
        if percent < 0.995
        else f"{percent:.1f} %"
    )


def format_rough_share(share: float | None) -> str:
    """Return a share that is estimated as percent with two figures: ``20 %``, ``2.9 %``, ``0.46 %``."""
    if share is None:
        return NONE
    percent = share * 100
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else format_share(share)


def format_value(value: object, kind: Kind) -> str:
    """Return a value of a table or fact as text."""
    if value is None:
        return NONE
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != value:  # NaN
            return NONE
        if kind == "ns":
            return format_ns(value)
        if kind == "bytes":
            return format_bytes(value)
        if kind == "share":
            return format_share(value)
        if kind == "rate":
            return f"{_three_figures(value)}/s"
        if kind in ("count", "number"):
            return format_count(value) if kind == "count" else _three_figures(value)
    return str(value)


def format_change(value: float | None, kind: Kind) -> str:
    """Return a difference, after minus before, as text: ``+1.31 ms``, ``−2.00 ms``; no sign where nothing changed."""
    return f"{'+' if value is not None and value > 0 else ''}{format_value(value, kind)}"


def format_points(value: float | None) -> str:
    """Return the difference of two shares in percentage points: ``−11.5 pp``; in percent it would be a ratio."""
    return format_change(value, "share").replace("%", "pp")
