"""Text that others wrote, made safe for the terminal.

Names in traces, script output and file names are shown as they are, never obeyed: no control character
reaches the terminal, and nothing here is ever parsed as markup.
"""

from __future__ import annotations

import re
from typing import Final

#: C0, DEL and C1 controls, and the marks that reorder or hide text.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
#: A whole escape sequence: CSI, OSC and other strings up to their end, or a two-character one.
_SEQUENCE: Final = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?|[ -/]*[0-~])"
)
_PICTURE: Final = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}


def plain(text: str) -> str:
    """Return text with every control character made visible (``\\x1b`` becomes ``␛``).

    Args:
        text: Anything.
    """
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_picture, text)


def output_line(text: str) -> str:
    """Return one line of a script's output as a person would read it.

    Colours and cursor movements are dropped, of a line redrawn with carriage returns (a progress bar) the
    last state stays, tabs become blanks, and any other control character is made visible.

    Args:
        text: The line, without its newline.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCE.sub("", text).rstrip("\r\n")
    text = text[text.rfind("\r") + 1 :]
    return plain(text.expandtabs(8))


def _picture(match: re.Match[str]) -> str:
    """Return the visible stand-in of one control character."""
    return _PICTURE.get(ord(match[0]), "�")
