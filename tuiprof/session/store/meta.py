"""The small files of a session folder: ``session.json``, requests to the script, ``labels.json`` and ``views/``."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from pathlib import Path
from typing import Final

import msgspec

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.session.log import SCHEMA_VERSION, Head, UnixNs, Whole
from tuiprof.system.files import read_small_json, read_versioned, write_atomic, write_inside

SESSION_FILE: Final = "session.json"
#: Total size of a session's traces above which a trigger starts no capture, bytes.
DEFAULT_BUDGET: Final = 500_000_000


class Scenario(msgspec.Struct, frozen=True):
    """Which scenario a session ran."""

    name: str  # name of the ladder, e.g. ``"metrics"``
    variant: str = ""  # its variant, e.g. ``"naive"``
    preset: str = ""  # ``"smoke"``, ``"paper"``, …

    def __str__(self) -> str:
        """Return ``metrics:naive``."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


class Git(msgspec.Struct, frozen=True):
    """State of the checkout the script was started in."""

    commit: str
    branch: str = ""  # branch; empty = detached
    dirty: bool = False  # tracked files differ from the commit


class DeviceMeta(msgspec.Struct, frozen=True):
    """A sampled device as stored (see :class:`tuiprof.telemetry.Device`)."""

    key: str
    kind: str
    name: str
    memory_bytes: Whole | None = None
    details: dict[str, str | float | Whole] = {}
    #: Whether the environment of the run (``CUDA_VISIBLE_DEVICES``, …) lets it use this device; None = not specified
    visible: bool | None = None


class CaptureRequest(msgspec.Struct, frozen=True):
    """One request to profile some steps: the content of ``control/capture-<id>.json``."""

    id: str
    steps: Whole
    at: Whole | None = None  # first step; None = as soon as possible
    stack: bool = False  # record Python stacks
    shapes: bool = False  # record operator input shapes
    memory: bool = False  # record allocations
    seconds: float | None = None  # duration of a capture by time; None = it is counted in steps
    after_s: float | None = None  # start of a capture by time, s after the framework was imported


class TriggerRequest(msgspec.Struct, frozen=True):
    """A condition that starts captures: the content of ``control/trigger-<id>.json``.

    Exactly one of ``above_ns``, ``times`` and ``every`` is given. A capture profiles the steps after the slow one,
    which is over by then.
    """

    id: str  # its name; captures are called ``<id>-1``, ``<id>-2``, …
    steps: Whole = 3  # steps per capture
    above_ns: Whole | None = None  # after a step longer than this, ns
    times: float | None = None  # after a step longer than this multiple of the median of the steps before it
    every: Whole | None = None  # at each step whose number is a multiple of this
    cooldown_s: float = 30.0  # minimum time from the end of one capture to the start of the next
    #: Limit of the session's traces in total; no capture is started that would exceed it
    budget_bytes: Whole = DEFAULT_BUDGET
    stack: bool = False  # record Python stacks
    shapes: bool = False  # record operator input shapes
    memory: bool = False  # record allocations


class Source(msgspec.Struct, frozen=True):
    """The script as it was when the session was started (see :mod:`tuiprof.session.run.launch`)."""

    script: str  # name of the script's file
    #: SHA-256 of it, and of the files that belong to it, by their paths beside it
    digests: dict[str, str] = {}
    kept: list[str] = []  # those whose text is in ``source/``; empty = only the digests were stored


class SessionMeta(msgspec.Struct):
    """``session.json``."""

    v: int
    name: str  # name of the session
    argv: list[str]  # the command as given
    cwd: str
    unix_ns: UnixNs  # Unix time at ``mono_ns``: when the session was made
    mono_ns: Whole  # monotonic time at which the session was made: the origin of session time
    boot: str = ""  # the kernel's boot id: monotonic times of one boot can be compared
    host: str = ""
    python: str = ""  # the interpreter that ran the script; empty = the script is not Python
    scenario: Scenario | None = None  # the scenario, if it was one
    capture: CaptureRequest | None = None  # the capture requested at the start, if any
    devices: list[DeviceMeta] = []  # devices that the recorder samples, in the order of the panel
    absent: dict[str, str] = {}  # telemetry backends that found no device: name to reason
    versions: dict[str, str] = {}  # versions of tuiprof and its Python
    git: Git | None = None  # state of the checkout in ``cwd``; None = not a checkout
    #: Ids of the processes that tuiprof attached to; empty = it started the command itself
    attached: list[Whole] = []
    #: The script; None = the command runs no Python file, or an earlier tuiprof wrote this
    source: Source | None = None


def write_meta(path: Path, meta: SessionMeta) -> None:
    """Write ``session.json`` atomically.

    Raises:
        SessionError: It cannot be written.
    """
    write_atomic(path / SESSION_FILE, _readable(meta))


def _readable(content: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def read_meta(path: Path) -> SessionMeta:
    """Read ``session.json``.

    Raises:
        SessionError: It does not exist, is not a session, or was written by a newer tuiprof.
    """
    remedy = "delete the session, or restore the file"
    return read_versioned(
        path / SESSION_FILE, SessionMeta, what="session", version=SCHEMA_VERSION, remedy=remedy
    )


def short_name(host: str) -> str:
    """Return a host's name without its domain; it may come from elsewhere, and becomes a part of other names."""
    first = host.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", host if first.isdecimal() else first)[:40].strip("-") or "host"


class Clock:
    """Session time: ns since the session was made, the same for every writer.

    On the session's own machine it is the monotonic clock shifted to the session's origin, so that a wall
    clock that jumps disorders nothing. A writer of another machine is aligned by the Unix times in the heads.

    Args:
        meta: The session.
        shift_ns: Added to its time: for a host's part of a run, converts to the time of the run's first part.
    """

    def __init__(self, meta: SessionMeta, shift_ns: int = 0) -> None:
        self._meta = meta
        self._shift_ns = shift_ns

    def offset_ns(self, head: Head | None) -> int:
        """Return what to add to a writer's ``at`` to get session time; without a head, of the session's own machine."""
        meta = self._meta
        if head is None or not head.boot or not meta.boot or head.boot == meta.boot:
            return self._shift_ns - meta.mono_ns
        return self._shift_ns + (head.unix_ns - meta.unix_ns) - head.mono_ns

    def elsewhere(self, head: Head) -> str:
        """Return the name of a writer's machine if it is not the one that recorded the session; else empty."""
        own = self._meta.host
        return short_name(head.host) if own and head.host not in {"", own} else ""

    def unix_ns(self, t_ns: int) -> int:
        """Return the Unix time of a session time, by the wall clock at the start of the session."""
        return self._meta.unix_ns + t_ns


LABELS_FILE: Final = "labels.json"
_TAG: Final = re.compile(r"[\w.+-]{1,32}")
#: Characters of a note at most.
LONGEST_NOTE: Final = 2000


class RunNote(msgspec.Struct, frozen=True):
    """One note."""

    unix_ns: int  # when it was written
    text: str  # plain text, untrusted
    t_ns: int | None = None  # moment of the run that it refers to, session time; None = the whole run
    step: int | None = None  # step that it refers to; None = none


class Labels(msgspec.Struct, frozen=True):
    """``labels.json``."""

    tags: tuple[str, ...] = ()  # words to search for, in the order given
    notes: tuple[RunNote, ...] = ()  # notes, oldest first

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
    return _write_labels(session, msgspec.structs.replace(_to_change(session), tags=parse_tags(text)))


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
    return _write_labels(session, msgspec.structs.replace(labels, notes=(*labels.notes, note)))


def _to_change(session: Path) -> Labels:
    """Return the labels of a session for a change; a damaged file is an error, so that it is not overwritten."""
    labels = read_small_json(session / LABELS_FILE, Labels)
    if labels is None and (session / LABELS_FILE).exists():
        raise SessionError(f"{session / LABELS_FILE} is damaged", "repair it, or delete it to start over")
    return labels or Labels()


def _write_labels(session: Path, labels: Labels) -> Labels:
    write_atomic(session / LABELS_FILE, _readable(labels))
    return labels


class Viewing(msgspec.Struct, frozen=True):
    """One screen that watched a running script."""

    unix_ns: int  # end, Unix ns
    wall_s: float  # duration
    cpu_s: float  # CPU time of the screen's process in that time
    host: str  # machine of the screen: one on another machine costs the run nothing


def store_viewing(session: Path, wall_s: float, cpu_s: float) -> None:
    """Store the cost of watching a run; does nothing where the session cannot be written."""
    viewing = Viewing(time.time_ns(), wall_s, cpu_s, platform.node())
    folder = session / "views"
    with contextlib.suppress(OSError, SessionError):
        folder.mkdir(exist_ok=True)
        write_inside(folder, f"{viewing.unix_ns}-{os.getpid()}.json", msgspec.json.encode(viewing))


def viewings(session: Path) -> list[Viewing]:
    """Return the cost of each screen that has watched a run, oldest first."""
    found = (read_small_json(path, Viewing) for path in sorted((session / "views").glob("*.json")))
    return [viewing for viewing in found if viewing is not None]
