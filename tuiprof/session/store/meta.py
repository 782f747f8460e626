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
    """Which scenario a session ran.

    Attributes:
        name: Name of the ladder, e.g. ``"metrics"``.
        variant: Its variant, e.g. ``"naive"``.
        preset: ``"smoke"``, ``"paper"``, …
    """

    name: str
    variant: str = ""
    preset: str = ""

    def __str__(self) -> str:
        """Return ``metrics:naive``."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


class Git(msgspec.Struct, frozen=True):
    """State of the checkout the script was started in.

    Attributes:
        commit: Full hash.
        branch: Branch; empty = detached.
        dirty: Tracked files differ from the commit.
    """

    commit: str
    branch: str = ""
    dirty: bool = False


class DeviceMeta(msgspec.Struct, frozen=True):
    """A sampled device as stored (see :class:`tuiprof.telemetry.Device`).

    Attributes:
        visible: Whether the environment of the run (``CUDA_VISIBLE_DEVICES``, …) lets it use this device; None = not
            specified.
    """

    key: str
    kind: str
    name: str
    memory_bytes: Whole | None = None
    details: dict[str, str | float | Whole] = {}
    visible: bool | None = None


class CaptureRequest(msgspec.Struct, frozen=True):
    """One request to profile some steps: the content of ``control/capture-<id>.json``.

    Attributes:
        id: Its name.
        steps: Number of steps.
        at: First step; None = as soon as possible.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.
        seconds: Duration of a capture by time; None = it is counted in steps.
        after_s: Start of a capture by time, s after the framework was imported.
    """

    id: str
    steps: Whole
    at: Whole | None = None
    stack: bool = False
    shapes: bool = False
    memory: bool = False
    seconds: float | None = None
    after_s: float | None = None


class TriggerRequest(msgspec.Struct, frozen=True):
    """A condition that starts captures: the content of ``control/trigger-<id>.json``.

    Exactly one of ``above_ns``, ``times`` and ``every`` is given. A capture profiles the steps after the slow one,
    which is over by then.

    Attributes:
        id: Its name; captures are called ``<id>-1``, ``<id>-2``, ….
        steps: Steps per capture.
        above_ns: After a step longer than this, ns.
        times: After a step longer than this multiple of the median of the steps before it.
        every: At each step whose number is a multiple of this.
        cooldown_s: Minimum time from the end of one capture to the start of the next.
        budget_bytes: Limit of the session's traces in total; no capture is started that would exceed it.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.
    """

    id: str
    steps: Whole = 3
    above_ns: Whole | None = None
    times: float | None = None
    every: Whole | None = None
    cooldown_s: float = 30.0
    budget_bytes: Whole = DEFAULT_BUDGET
    stack: bool = False
    shapes: bool = False
    memory: bool = False


class Source(msgspec.Struct, frozen=True):
    """The script as it was when the session was started (see :mod:`tuiprof.session.run.launch`).

    Attributes:
        script: Name of the script's file.
        digests: SHA-256 of it, and of the files that belong to it, by their paths beside it.
        kept: Those whose text is in ``source/``; empty = only the digests were stored.
    """

    script: str
    digests: dict[str, str] = {}
    kept: list[str] = []


class SessionMeta(msgspec.Struct):
    """``session.json``.

    Attributes:
        v: Schema version.
        name: Name of the session.
        argv: The command as given.
        cwd: Working directory.
        unix_ns: Unix time at ``mono_ns``: when the session was made.
        mono_ns: Monotonic time at which the session was made: the origin of session time.
        boot: The kernel's boot id: monotonic times of one boot can be compared.
        host: Host name.
        python: The interpreter that ran the script; empty = the script is not Python.
        scenario: The scenario, if it was one.
        capture: The capture requested at the start, if any.
        devices: Devices that the recorder samples, in the order of the panel.
        absent: Telemetry backends that found no device: name to reason.
        versions: Versions of tuiprof and its Python.
        git: State of the checkout in ``cwd``; None = not a checkout.
        attached: Ids of the processes that tuiprof attached to; empty = it started the command itself.
        source: The script; None = the command runs no Python file, or an earlier tuiprof wrote this.
    """

    v: int
    name: str
    argv: list[str]
    cwd: str
    unix_ns: UnixNs
    mono_ns: Whole
    boot: str = ""
    host: str = ""
    python: str = ""
    scenario: Scenario | None = None
    capture: CaptureRequest | None = None
    devices: list[DeviceMeta] = []
    absent: dict[str, str] = {}
    versions: dict[str, str] = {}
    git: Git | None = None
    attached: list[Whole] = []
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

    def unix_ns(self, t_ns: int) -> int:
        """Return the Unix time of a session time, by the wall clock at the start of the session."""
        return self._meta.unix_ns + t_ns


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
    """One screen that watched a running script.

    Attributes:
        unix_ns: End, Unix ns.
        wall_s: Duration.
        cpu_s: CPU time of the screen's process in that time.
        host: Machine of the screen: one on another machine costs the run nothing.
    """

    unix_ns: int
    wall_s: float
    cpu_s: float
    host: str


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
