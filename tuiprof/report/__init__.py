"""Report to text, JSON, CSV, Markdown and HTML, and what the terminal can show. Walks a report; computes nothing.

One file a renderer, found by name: a module here that defines ``RENDERER = Renderer(...)`` is a format.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from tuiprof.model import Report, Unavailable


Colours = Literal["many", "16", "none"]

#: Consoles whose fonts have neither braille nor most of the box drawing.
_PLAIN_FONTS: Final = ("linux", "vt52", "vt100", "vt102", "vt220", "dumb", "cons25", "ansi", "sun")
_NO_COLOURS: Final = ("dumb", "vt52", "vt100", "vt102", "vt220", "xterm-mono", "unknown")
_MANY: Final = (
    "256color",
    "direct",
    "truecolor",
    "kitty",
    "alacritty",
    "ghostty",
    "wezterm",
    "foot",
    "iterm2",
)
#: Rows of a table that are written for machines; a trace can have a row a name, and names without end. Tables begin
#: with what costs most.
MAX_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Style:
    """How to print for people."""

    width: int | None = 100  # cells a line may take; None = as wide as it gets
    colour: bool = False  # whether escape codes for colour may be used
    rows: int | None = 12  # rows of a table to print at most; None = all
    details: bool = False  # whether to print tables after the first two, and those without rows
    rules: bool = True  # whether to print definitions and thresholds
    plain: bool = False  # whether text is to be ASCII alone
    charts: bool = True  # whether text and Markdown have charts
    #: What the document is about, for formats that have a title; empty = that of the first report.
    title: str = ""


def in_full(rows: int) -> str:
    """Return where the rows that people are not shown are to be had."""
    which = "all of them" if rows <= MAX_ROWS else f"the first {MAX_ROWS}"
    return f"{which} with --format csv or json"


@dataclass(frozen=True, slots=True)
class Renderer:
    """One output format."""

    name: str  # its name on the command line, for example ``"md"``
    #: Makes one document of reports; ``trust`` is the trust line of the trace, empty = none.
    render: Callable[[Sequence[Report | Unavailable], str, Style], str] = field(repr=False)


@cache
def formats() -> dict[str, Renderer]:
    """Return every output format by name."""
    from tuiprof.plugins import discover

    found: dict[str, Renderer] = discover("report").items
    return found


def render_all(
    reports: Sequence[Report | Unavailable], fmt: str = "text", *, trust: str = "", style: Style | None = None
) -> str:
    """Render reports, below the trust line of the trace if any, as one document, ending in a newline.

    ``fmt`` is ``text``, ``json``, ``csv``, ``md`` or ``html``; without a style, text is plain, for a terminal as wide
    as the one stdout is, else 100 cells.

    Raises:
        tuiprof.errors.UsageProblem: There is no such format.
    """
    from tuiprof.errors import UsageProblem

    renderer = formats().get(fmt)
    if renderer is None:
        from tuiprof.plugins import discover

        why = discover("report").failed.get(fmt)
        missing = f"the output format {fmt} is unavailable: {why}" if why else f"no output format {fmt!r}"
        raise UsageProblem(missing, f"there are {', '.join(formats())}")
    return renderer.render(reports, trust, style or stdout_style())


def render(
    report: Report | Unavailable, fmt: str = "text", *, trust: str = "", style: Style | None = None
) -> str:
    """Render one report, as :func:`render_all` does several."""
    return render_all([report], fmt, trust=trust, style=style)


def stdout_style() -> Style:
    """Return the style for stdout: its width and what it can show on a terminal, 100 cells without colour elsewhere.

    A ``dumb`` terminal, such as the shell of an editor, gets no charts; a file or a pipe does, for people read those.
    """
    import shutil

    terminal = this_terminal()
    if not sys.stdout.isatty():
        return Style(plain=terminal.plain)
    width = max(shutil.get_terminal_size((100, 24)).columns, 40)
    charts = os.environ.get("TERM") != "dumb"
    return Style(width=width, colour=terminal.colours != "none", plain=terminal.plain, charts=charts)


@dataclass(frozen=True, slots=True)
class Terminal:
    """What a terminal can show."""

    colours: Colours = "many"  # how many colours: 256 or more, the 16 of its own palette, or none
    plain: bool = False  # it has ASCII only


def this_terminal() -> Terminal:
    """Return what the terminal on stdout can show; everything if stdout is not a terminal (a browser, a picture)."""
    terminal = (
        detect_terminal(os.environ) if sys.__stdout__ is not None and sys.__stdout__.isatty() else Terminal()
    )
    wish = os.environ.get("TUIPROF_ASCII", "")
    return Terminal(terminal.colours, wish not in ("0", "false") if wish else terminal.plain)


def detect_terminal(environ: Mapping[str, str]) -> Terminal:
    """Return what the environment says of its terminal.

    ``NO_COLOR`` and ``TERM`` say how many colours there are, ``COLORTERM`` that there are more than ``TERM`` knows;
    the locale's character set and ``TERM`` whether there is more than ASCII.
    """
    term = environ.get("TERM", "").lower()
    locale = next(filter(None, map(environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    charset = locale.partition(".")[2].partition("@")[0].lower().replace("-", "")
    # A locale that names no character set (C.UTF-8 does) says nothing, but LC_ALL=C is meant.
    plain = term in _PLAIN_FONTS or charset not in ("", "utf8") or environ.get("LC_ALL") in ("C", "POSIX")
    return Terminal(_colours(environ, term), plain)


def _colours(environ: Mapping[str, str], term: str) -> Colours:
    if environ.get("NO_COLOR") or term in _NO_COLOURS or term.endswith("-m"):
        return "none"
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "TEXTUAL_COLOR_SYSTEM" in environ:
        return "many"
    return "many" if not term or any(word in term for word in _MANY) else "16"
