"""Tags and notes that a user adds to a session, in ``labels.json``."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import msgspec

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.system.files import read_small_json, write_atomic

LABELS_FILE: Final = "labels.json"
_TAG: Final = re.compile(r"[\w.+-]{1,32}")
#: Characters of a note at most.
LONGEST_NOTE: Final = 2000


class RunNote(msgspec.Struct, frozen=True):
    """One note.

    Attributes:
        unix_ns: When it was written.
        text: Plain text, untrusted.
        t_ns: Moment of the run that it refers to, session time; None = the whole run.
        step: Step that it refers to; None = none.
    """

    unix_ns: int
    text: str
    t_ns: int | None = None
    step: int | None = None


class Labels(msgspec.Struct, frozen=True):
    """``labels.json``.

    Attributes:
        tags: Words to search for, in the order given.
        notes: Notes, oldest first.
    """

    tags: tuple[str, ...] = ()
    notes: tuple[RunNote, ...] = ()

    @property
    def words(self) -> str:
        """Tags and notes as one text, for searching."""
        return " ".join((*(f"#{tag}" for tag in self.tags), *(note.text for note in self.notes)))


def read_labels(session: Path) -> Labels:
    """Return the labels of a session; empty where the file is missing or damaged."""
    return read_small_json(session / LABELS_FILE, Labels) or Labels()


def set_tags(session: Path, text: str) -> Labels:
    """Set the tags of a session.

    Returns:
        The labels as stored.

    Raises:
        UsageProblem: A tag has other characters than letters, digits and ``. _ + -``, or more than 32.
        SessionError: The existing file is damaged, or cannot be written.
    """
    return _write(session, msgspec.structs.replace(_to_change(session), tags=parse_tags(text)))


def parse_tags(text: str) -> tuple[str, ...]:
    """Return the tags in a text, each once.

    Raises:
        UsageProblem: One of them is not a valid tag.
    """
    tags = tuple(dict.fromkeys(word.lstrip("#") for word in re.split(r"[\s,]+", text) if word.strip("#")))
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise UsageProblem(
                f"{tag!r} is not a valid tag", "a tag has letters, digits and . _ + -, at most 32 of them"
            )
    return tags


def add_note(session: Path, text: str, *, t_ns: int | None = None, step: int | None = None) -> Labels:
    """Add a note to a session.

    Returns:
        The labels as stored.

    Raises:
        UsageProblem: The note is empty or too long.
        SessionError: The existing file is damaged, or cannot be written.
    """
    text = text.strip()
    if not text or len(text) > LONGEST_NOTE:
        raise UsageProblem(f"a note has 1 to {LONGEST_NOTE} characters, this one {len(text)}")
    labels = _to_change(session)
    note = RunNote(time.time_ns(), text, t_ns, step)
    return _write(session, msgspec.structs.replace(labels, notes=(*labels.notes, note)))


def _to_change(session: Path) -> Labels:
    """Return the labels of a session for a change; a damaged file is an error, so that it is not overwritten."""
    labels = read_small_json(session / LABELS_FILE, Labels)
    if labels is None and (session / LABELS_FILE).exists():
        raise SessionError(f"{session / LABELS_FILE} is damaged", "repair it, or delete it to start over")
    return labels or Labels()


def _write(session: Path, labels: Labels) -> Labels:
    write_atomic(session / LABELS_FILE, msgspec.json.format(msgspec.json.encode(labels), indent=2) + b"\n")
    return labels
