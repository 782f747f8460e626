"""The characters of other people's text that no output passes on; such text as UTF-8, and as a word of a shell."""

from __future__ import annotations

import os
import re
import shlex
from typing import Final

#: C0, DEL and C1 controls, of which escape sequences begin with one; what Unicode draws as nothing, or lets hide, turn
#: or break the text around it (Default_Ignorable_Code_Point, line and paragraph separators, interlinear marks); lone
#: surrogates and noncharacters, which no encoding and no XML takes.
UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def as_utf8(text: str) -> str:
    """Return text that UTF-8, and so a column or a file, can hold: a byte of a name that is not UTF-8 becomes ``?``."""
    return text.encode("utf-8", "replace").decode()


def shell_word(text: str) -> str:
    """Return text as one word of a command that can be pasted into a shell.

    What cannot be printed is written as bash, zsh and ksh read it in ``$'…'``.
    """
    if not UNSAFE.search(text):
        # In the log of a CI system ``##[`` is a command: two words that a shell joins say the same.
        return shlex.quote(text).replace("##[", "##''[")
    plain = (chr(b) if 0x20 <= b < 0x7F and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(text))
    return f"$'{''.join(plain)}'".replace("##[", "##\\x5b")
