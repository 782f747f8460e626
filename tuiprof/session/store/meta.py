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
#: Default limit for the total size of a session's traces above which triggers start no capture, bytes.
DEFAULT_BUDGET: Final = 500_000_000


class Scenario(msgspec.Struct, frozen=True):
    """The scenario that a session ran."""

    name: str  # of the ladder, for example ``"metrics"``
    variant: str = ""  # for example ``"naive"``
    preset: str = ""  # ``"smoke"``, ``"paper"``, …

    def __str__(self) -> str:
        """Return ``metrics:naive``."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


class Git(msgspec.Struct, frozen=True):
    """Git state of the directory in which the script was started."""

    commit: str
    branch: str = ""  # empty = detached
    dirty: bool = False  # whether tracked files differ from the commit


class DeviceMeta(msgspec.Struct, frozen=True):
    """A sampled device (see :class:`tuiprof.telemetry.Device`)."""

    key: str
    kind: str
    name: str
    memory_bytes: Whole | None = None
    details: dict[str, str | float | Whole] = {}
    #: Whether the script can use the device according to ``CUDA_VISIBLE_DEVICES`` or the like; None = not specified
    visible: bool | None = None


class CaptureRequest(msgspec.Struct, frozen=True):
    """``control/capture-<id>.json``: a request to profile some steps."""

    id: str
    steps: Whole
    at: Whole | None = None  # first step; None = as soon as possible
    stack: bool = False  # record Python stacks
    shapes: bool = False  # record operator input shapes
    memory: bool = False  # record allocations
    seconds: float | None = None  # duration of a capture by time; None = a capture by steps
    after_s: float | None = None  # start of a capture by time, since the framework was imported
    #: The only process of a run starts before step ``at`` once its steps have taken this long, s; None = it does not
    or_after_s: float | None = None


class TriggerRequest(msgspec.Struct, frozen=True):
    """``control/trigger-<id>.json``: a condition that starts captures.

    Exactly one of ``above_ns``, ``times`` and ``every`` is given. A capture profiles the steps after the slow one.
    """

    id: str  # captures have the ids ``<id>-1``, ``<id>-2``, …
    steps: Whole = 3  # per capture
    above_ns: Whole | None = None  # capture after a step longer than this
    #: Capture after a step longer than this multiple of the median of earlier steps
    times: float | None = None
    every: Whole | None = None  # capture at each step whose number is a multiple of this
    cooldown_s: float = 30.0  # minimum time from the end of one capture to the start of the next
    budget_bytes: Whole = DEFAULT_BUDGET  # limit for the total size of the session's traces
    stack: bool = False  # record Python stacks
    shapes: bool = False  # record operator input shapes
    memory: bool = False  # record allocations


class Source(msgspec.Struct, frozen=True):
    """The script at the start of the session (see :mod:`tuiprof.session.run.launch`)."""

    script: str  # file name
    digests: dict[str, str] = {}  # SHA-256 of the script and of files that belong to it, by relative path
    kept: list[str] = []  # files whose text is in ``source/``


class SessionMeta(msgspec.Struct):
    """``session.json``."""

    v: int  # schema version
    name: str
    argv: list[str]  # the command as given
    cwd: str
    unix_ns: UnixNs  # Unix time of creation
    mono_ns: Whole  # monotonic time of creation: the origin of session time
    boot: str = ""  # the kernel's boot id; monotonic times of the same boot can be compared
    host: str = ""
    python: str = ""  # interpreter of the script; empty = not Python
    scenario: Scenario | None = None
    capture: CaptureRequest | None = None  # requested at the start
    devices: list[DeviceMeta] = []  # that the recorder samples
    absent: dict[str, str] = {}  # reasons by name of telemetry backends that found no device
    versions: dict[str, str] = {}  # of tuiprof and its Python
    git: Git | None = None  # of ``cwd``; None = not a checkout
    attached: list[Whole] = []  # processes that tuiprof attached to; empty = it started the command
    source: Source | None = None  # None = the command runs no Python file, or an older tuiprof wrote this
    trial: bool = False  # a run of ``tuiprof fix``, of another run's command


def write_meta(path: Path, meta: SessionMeta) -> None:
    """Write ``session.json`` atomically; raises SessionError if the file cannot be written."""
    write_atomic(path / SESSION_FILE, _readable(meta))


def _readable(content: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def read_meta(path: Path) -> SessionMeta:
    """Read ``session.json``.

    Raises:
        SessionError: The file does not exist, is damaged, or was written by a newer tuiprof.
    """
    remedy = "delete the session, or restore the file"
    return read_versioned(
        path / SESSION_FILE, SessionMeta, what="session", version=SCHEMA_VERSION, remedy=remedy
    )


def short_name(host: str) -> str:
    """Return a host's name without its domain, as a valid part of file names; the host is untrusted."""
    first = host.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", host if first.isdecimal() else first)[:40].strip("-") or "host"


class Clock:
    """Converts times to session time: ns since the session was created, the same for all writers.

    On the session's machine, it is based on the monotonic clock, so that jumps of the wall clock do not matter. Writers
    on other machines are aligned by the Unix times in their heads. ``shift_ns`` is added: for a part of a multi-host
    run, it converts to the time of the first part.
    """

    def __init__(self, meta: SessionMeta, shift_ns: int = 0) -> None:
        self._meta = meta
        self._shift_ns = shift_ns

    def offset_ns(self, head: Head | None) -> int:
        """Return the ns to add to a writer's ``at`` to get session time; None = a writer on the session's machine."""
        meta = self._meta
        if head is None or not head.boot or not meta.boot or head.boot == meta.boot:
            return self._shift_ns - meta.mono_ns
        return self._shift_ns + (head.unix_ns - meta.unix_ns) - head.mono_ns

    def elsewhere(self, head: Head) -> str:
        """Return the name of a writer's machine if it is not the session's, else an empty string."""
        own = self._meta.host
        return short_name(head.host) if own and head.host not in {"", own} else ""


LABELS_FILE: Final = "labels.json"
_TAG: Final = re.compile(r"[\w.+-]{1,32}")
#: Maximum length of a note in characters.
LONGEST_NOTE: Final = 2000


class RunNote(msgspec.Struct, frozen=True):
    """A user's note on a run."""

    unix_ns: int  # when it was written
    text: str  # untrusted
    t_ns: int | None = None  # session time that it refers to; None = the whole run
    step: int | None = None  # step that it refers to


class Labels(msgspec.Struct, frozen=True):
    """``labels.json``."""

    tags: tuple[str, ...] = ()  # in the order given
    notes: tuple[RunNote, ...] = ()  # oldest first

    @property
    def words(self) -> str:
        """Tags and notes as one text, for searching."""
        return " ".join((*(f"#{tag}" for tag in self.tags), *(note.text for note in self.notes)))


def read_labels(session: Path) -> Labels:
    """Return the labels of a session; empty if the file is missing or damaged."""
    return read_small_json(session / LABELS_FILE, Labels) or Labels()


def set_tags(session: Path, text: str) -> Labels:
    """Set the tags of a session, and return its labels.

    Raises:
        UsageProblem: A tag is not valid.
        SessionError: The existing file is damaged, or cannot be written.
    """
    return _write_labels(session, msgspec.structs.replace(_read_to_change(session), tags=parse_tags(text)))


def parse_tags(text: str) -> tuple[str, ...]:
    """Return the tags in a text, without duplicates; raises UsageProblem if a tag is not valid."""
    tags = tuple(dict.fromkeys(word.lstrip("#") for word in re.split(r"[\s,]+", text) if word.strip("#")))
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise UsageProblem(
                f"{tag!r} is not a valid tag", "a tag has letters, digits and . _ + -, at most 32 of them"
            )
    return tags


def add_note(session: Path, text: str, *, t_ns: int | None = None, step: int | None = None) -> Labels:
    """Add a note to a session, and return its labels.

    Raises:
        UsageProblem: The note is empty or too long.
        SessionError: The existing file is damaged, or cannot be written.
    """
    text = text.strip()
    if not text or len(text) > LONGEST_NOTE:
        raise UsageProblem(f"a note has 1 to {LONGEST_NOTE} characters, this one {len(text)}")
    labels = _read_to_change(session)
    note = RunNote(time.time_ns(), text, t_ns, step)
    return _write_labels(session, msgspec.structs.replace(labels, notes=(*labels.notes, note)))


def _read_to_change(session: Path) -> Labels:
    """Return the labels of a session; raises an error if the file is damaged, so that it is not overwritten."""
    labels = read_small_json(session / LABELS_FILE, Labels)
    if labels is None and (session / LABELS_FILE).exists():
        raise SessionError(f"{session / LABELS_FILE} is damaged", "repair it, or delete it to start over")
    return labels or Labels()


def _write_labels(session: Path, labels: Labels) -> Labels:
    write_atomic(session / LABELS_FILE, _readable(labels))
    return labels


class Viewing(msgspec.Struct, frozen=True):
    """The cost of a dashboard that showed a running script."""

    unix_ns: int  # end, Unix ns
    wall_s: float
    cpu_s: float
    host: str  # of the dashboard, which costs the run nothing if it is another machine


def store_viewing(session: Path, wall_s: float, cpu_s: float) -> None:
    """Store the cost of watching a run; does nothing if the session cannot be written."""
    viewing = Viewing(time.time_ns(), wall_s, cpu_s, platform.node())
    folder = session / "views"
    with contextlib.suppress(OSError, SessionError):
        folder.mkdir(exist_ok=True)
        write_inside(folder, f"{viewing.unix_ns}-{os.getpid()}.json", msgspec.json.encode(viewing))


def viewings(session: Path) -> list[Viewing]:
    """Return the costs of all dashboards that showed a run, oldest first."""
    found = (read_small_json(path, Viewing) for path in sorted((session / "views").glob("*.json")))
    return [viewing for viewing in found if viewing is not None]
