"""What the terminal can show: how many colours, and whether more than ASCII."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

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


@dataclass(frozen=True, slots=True)
class Terminal:
    """What a terminal can show."""

    colours: Colours = "many"  # how many colours: 256 or more, the 16 of its own palette, or none
    plain: bool = False  # it has ASCII only


def this_terminal() -> Terminal:
    """Return what the terminal on stdout can show; everything if stdout is not a terminal (a browser, a picture)."""
    terminal = detect(os.environ) if sys.__stdout__ is not None and sys.__stdout__.isatty() else Terminal()
    wish = os.environ.get("TUIPROF_ASCII", "")
    return Terminal(terminal.colours, wish not in ("0", "false") if wish else terminal.plain)


def detect(environ: Mapping[str, str]) -> Terminal:
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
