"""Session directories: where they are, what they hold, how one is made.

::

    <root>/<utc time>-<name>/
      session.json          SessionMeta, written atomically
      log/<writer>.jsonl    one append-only file a writer: rank0, rank1, …, recorder
      stdout.log stderr.log
      traces/
      control/              requests to the running script; who runs it (process.json), the recorder's lock
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tuiprof.errors import SessionError
from tuiprof.session.files import explain, write_atomic
from tuiprof.session.records import SCHEMA_VERSION

if TYPE_CHECKING:
    from tuiprof.session.status import Status

SESSION_FILE: Final = "session.json"
_TRACE_SUFFIXES: Final = (
    ".pt.trace.json",
    ".pt.trace.json.gz",
    ".xplane.pb",
    ".trace.json.gz",
    ".trace.json",
)


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
    """A sampled device as stored (see :class:`tuiprof.telemetry.Device`)."""

    key: str
    kind: str
    name: str
    memory_bytes: int | None = None
    details: dict[str, str | float | int] = {}


class CaptureRequest(msgspec.Struct, frozen=True):
    """One request to profile some steps: the content of ``control/capture-<id>.json``.

    Attributes:
        id: Its name.
        steps: How many steps.
        at: First step; None = as soon as possible.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.
    """

    id: str
    steps: int
    at: int | None = None
    stack: bool = False
    shapes: bool = False
    memory: bool = False


class SessionMeta(msgspec.Struct):
    """``session.json``.

    Attributes:
        v: Schema version.
        name: What the session is called.
        argv: The command as given.
        cwd: Where it ran.
        unix_ns: Unix time at ``mono_ns``: when the session was made.
        mono_ns: Monotonic time at which the session was made: the origin of session time.
        boot: The kernel's boot identity, whose monotonic clock that is.
        host: Host name.
        python: The interpreter that ran the script; empty = the script is not Python.
        scenario: The scenario, if it was one.
        capture: The capture asked for at the start, if any.
        devices: What the recorder samples, in panel order.
        absent: Telemetry backends that found nothing, by name, and why.
        versions: Versions of tuiprof and its Python.
        git: State of the checkout in ``cwd``; None = not a checkout.
    """

    v: int
    name: str
    argv: list[str]
    cwd: str
    unix_ns: int
    mono_ns: int
    boot: str = ""
    host: str = ""
    python: str = ""
    scenario: Scenario | None = None
    capture: CaptureRequest | None = None
    devices: list[DeviceMeta] = []
    absent: dict[str, str] = {}
    versions: dict[str, str] = {}
    git: Git | None = None


class Session:
    """One session directory, for reading.

    Args:
        path: The directory.

    Raises:
        SessionError: There is no session there, it cannot be read, or a newer tuiprof wrote it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()
        self.meta: SessionMeta = read_meta(self.path)

    def __repr__(self) -> str:
        """Return the path."""
        return f"Session({str(self.path)!r})"

    @cached_property
    def id(self) -> str:
        """The directory's name: unique under its root, and what commands accept."""
        return self.path.name

    @property
    def started(self) -> datetime:
        """When it was made, UTC."""
        return datetime.fromtimestamp(self.meta.unix_ns / 1e9, UTC)

    @property
    def title(self) -> str:
        """What it ran: ``metrics:naive``, or the name of the script."""
        return str(self.meta.scenario) if self.meta.scenario else self.meta.name

    @property
    def log(self) -> Path:
        """Folder of the log files."""
        return self.path / "log"

    @property
    def control(self) -> Path:
        """Folder of the requests."""
        return self.path / "control"

    @property
    def stdout(self) -> Path:
        """The script's standard output, whole."""
        return self.path / "stdout.log"

    @property
    def stderr(self) -> Path:
        """The script's standard error, whole."""
        return self.path / "stderr.log"

    def log_files(self) -> list[Path]:
        """Return the log files there are now, one a writer, by name."""
        return sorted(self.log.glob("*.jsonl"))

    def traces(self) -> list[Path]:
        """Return the traces captured so far, oldest first."""
        files = [path for path in (self.path / "traces").rglob("*") if path.name.endswith(_TRACE_SUFFIXES)]
        return sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))

    def status(self) -> Status:
        """Return how it stands now: running, finished, failed, stopped or interrupted."""
        from tuiprof.session.status import status  # which reads sessions, so it imports this module

        return status(self)

    def reload(self) -> None:
        """Read ``session.json`` again: the recorder adds the devices once it has found them."""
        self.meta = read_meta(self.path)


def sessions_root(explicit: Path | None = None) -> Path:
    """Return where sessions are kept.

    Args:
        explicit: ``--sessions``; without it TUIPROF_SESSIONS, without that the platform's user data
            directory.
    """
    if explicit is not None:
        return explicit.expanduser().absolute()
    if named := os.environ.get("TUIPROF_SESSIONS"):
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("tuiprof", appauthor=False)) / "sessions"


def create(root: Path, meta: SessionMeta) -> Session:
    """Make a new session directory.

    Args:
        root: Where; made if it does not exist.
        meta: What to store. The directory's name is its time and name.

    Raises:
        SessionError: No permission, no space.
    """
    stamp = datetime.fromtimestamp(meta.unix_ns / 1e9, UTC).strftime("%Y%m%dT%H%M%SZ")
    base = f"{stamp}-{slug(meta.name)}"
    path = root / base
    try:
        root.mkdir(parents=True, exist_ok=True)
        for count in range(2, 10_000):
            try:
                path.mkdir()
                break
            except FileExistsError:  # started within the same second
                path = root / f"{base}-{count}"
        for folder in ("log", "traces", "control"):
            (path / folder).mkdir()
    except OSError as error:
        raise explain(error, path, "create") from error
    write_meta(path, meta)
    return Session(path)


def slug(name: str) -> str:
    """Return a name that is safe as part of a file name.

    Args:
        name: Any text.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "session"


def write_meta(path: Path, meta: SessionMeta) -> None:
    """Write ``session.json`` atomically.

    Args:
        path: The session directory.
        meta: Its content.

    Raises:
        SessionError: It cannot be written.
    """
    write_atomic(path / SESSION_FILE, msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")


def read_meta(path: Path) -> SessionMeta:
    """Read ``session.json``.

    Args:
        path: The session directory.

    Raises:
        SessionError: There is none, it is not one, or a newer tuiprof wrote it.
    """
    file = path / SESSION_FILE
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SessionError(f"{path} is not a tuiprof session (it has no {SESSION_FILE})") from error
    except OSError as error:
        raise explain(error, file, "read") from error
    try:
        content: Any = msgspec.json.decode(data)
        version = content["v"]
        if isinstance(version, int) and version > SCHEMA_VERSION:
            message = f"{path} was recorded by a newer tuiprof (session schema {version}, this one reads "
            raise SessionError(f"{message}{SCHEMA_VERSION})", "upgrade tuiprof: pip install -U tuiprof")
        return msgspec.convert(content, SessionMeta)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise SessionError(
            f"{file} is damaged: {error}", "delete the session, or restore the file"
        ) from error


class RecorderLock:
    """The right to record into a session directory; held until released or until the process ends.

    Args:
        control: The session's ``control`` folder.

    Raises:
        SessionError: Another recorder holds it, or the folder cannot be written.
    """

    def __init__(self, control: Path) -> None:
        path = control / "recorder.lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise explain(error, path, "create") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            message = f"{control.parent} is already being recorded"
            raise SessionError(
                message, "a second recorder would mix two runs: start a new session"
            ) from error
        except OSError:
            # A file system without locks (some network mounts): go on, since refusing would make it unusable.
            pass

    def release(self) -> None:
        """Give it back."""
        with contextlib.suppress(OSError):  # closing twice is no error
            os.close(self._file)
