"""Session directories: location, contents and creation.

::

    <root>/<utc time>-<name>/
      session.json          SessionMeta, written atomically
      log/<writer>.jsonl    one append-only file per writer: rank0, rank1, …, recorder
      stdout.log stderr.log
      source/               text of the launched script (see tuiprof.session.run.launch)
      traces/
      control/              requests to the running script, process ids (process.json), the recorder's lock,
                            counts of output that could not be stored (output.json)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Final

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.session.store.hosts import (
    MAX_START_GAP_NS,
    ClockDifference,
    Host,
    Log,
    Part,
    clock_difference,
    combined_status,
    group_parts,
    join_waiting,
    launch_of,
    max_start_gap_ns,
    part_of,
    shift_ns,
)
from tuiprof.session.store.meta import SESSION_FILE, Clock, SessionMeta, read_meta, short_name, write_meta
from tuiprof.session.store.status import Status, status
from tuiprof.system.files import explain, typed_path

#: Marks a directory of a ladder's trials (see :mod:`tuiprof.ladder.state`).
LADDER_FILE: Final = "ladder.json"
_NAMED: Final = re.compile(r"\d{8}T\d{6}Z-")
_LAST: Final = re.compile(r"last(?:~(\d{1,6}))?")
_TRACE_SUFFIXES: Final = (
    ".pt.trace.json",
    ".pt.trace.json.gz",
    ".xplane.pb",
    ".xplane.pb.gz",
    ".trace.json.gz",
    ".trace.json",
)


def _is_copy(trace: Path) -> bool:
    """Whether a file has the events of one next to it: compressed, or as XLA's profiler writes them a second time."""
    if trace.suffix == ".gz" and trace.with_suffix("").exists():
        return True
    name, is_json, _ = trace.name.partition(".trace.json")
    return bool(is_json) and any(trace.with_name(f"{name}.xplane.pb{gz}").exists() for gz in ("", ".gz"))


class Session:
    """A session directory, for reading; with the directories of other hosts (see :func:`run_of`), a run of several
    hosts.

    ``complete``: the parts include every rank of the run.

    Raises:
        SessionError: The session does not exist, cannot be read, or was written by a newer tuiprof.
    """

    def __init__(
        self, path: str | os.PathLike[str], others: tuple[Host, ...] = (), *, complete: bool = False
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.meta: SessionMeta = read_meta(self.path)
        self.others = others
        self.complete = complete

    def __repr__(self) -> str:
        """Return the path."""
        return f"Session({str(self.path)!r})"

    @cached_property
    def id(self) -> str:
        """The directory's name: unique under its root, and what commands accept."""
        return self.path.name

    @property
    def started(self) -> datetime:
        """Time of creation, UTC."""
        return datetime.fromtimestamp(self.meta.unix_ns / 1e9, UTC)

    @property
    def title(self) -> str:
        """The scenario, for example ``metrics:naive``, or the name of the script."""
        return str(self.meta.scenario) if self.meta.scenario else self.meta.name

    @property
    def log(self) -> Path:
        """Folder of the log files."""
        return self.path / "log"

    @property
    def control(self) -> Path:
        """Folder of requests to the script."""
        return self.path / "control"

    @property
    def stdout(self) -> Path:
        """File of the script's standard output."""
        return self.path / "stdout.log"

    @property
    def stderr(self) -> Path:
        """File of the script's standard error."""
        return self.path / "stderr.log"

    @property
    def parts(self) -> tuple[Session, ...]:
        """The session of each host of the run, this one first."""
        return (self, *(host.session for host in self.others))

    @property
    def host(self) -> str:
        """Short name of its host; empty = the run has only one host."""
        return short_name(self.meta.host) if self.others else ""

    def part(self, writer: str) -> Session:
        """Return the part of the run that a writer belongs to (see :attr:`Log.writer`)."""
        name = writer.partition("@")[2]
        return next((host.session for host in self.others if host.name == name), self)

    def with_traces(self, rank: int | None = None) -> Session:
        """Return the part of the run with the traces of a rank; None = the first part that has traces."""
        parts = [part for part in self.parts if part.traces()]
        of_rank = next((host.session for host in self.others if rank in host.ranks), self)
        return of_rank if rank is not None or not parts else parts[0]

    def log_files(self) -> list[Path]:
        """Return the log files in this directory, sorted by name."""
        return sorted(self.log.glob("*.jsonl"))

    def logs(self) -> list[Log]:
        """Return the logs of all hosts of the run."""
        clock = Clock(self.meta)
        found = [Log(path, path.stem, clock, self.host) for path in self.log_files()]
        for host in self.others:
            clock, folder = Clock(host.session.meta, host.shift_ns), f"../{host.session.path.name}/"
            found += [
                Log(path, f"{path.stem}@{host.name}", clock, host.name, folder)
                for path in host.session.log_files()
            ]
        return found

    def all_traces(self) -> list[Path]:
        """Return the traces of all hosts of the run, host by host."""
        return [path for part in self.parts for path in part.traces()]

    def traces(self) -> list[Path]:
        """Return the traces in this directory, oldest first."""
        found = []
        for path in (self.path / "traces").rglob("*"):
            if path.name.endswith(_TRACE_SUFFIXES) and not _is_copy(path):
                with contextlib.suppress(OSError):  # a broken link, or just deleted
                    found.append((path.stat().st_mtime_ns, path.name, path))
        return [path for *_, path in sorted(found)]

    def status(self) -> Status:
        """Return its current status."""
        if not self.others:
            return status(self)
        return combined_status(
            [(self.host, status(self)), *((it.name, status(it.session)) for it in self.others)]
        )

    def reload(self) -> None:
        """Read ``session.json`` again, to which the recorder adds devices."""
        self.meta = read_meta(self.path)
        for host in self.others:
            with contextlib.suppress(SessionError):  # a host's part was deleted
                host.session.reload()


def sessions_root(explicit: Path | None = None) -> Path:
    """Return the folder of sessions: ``explicit``, else TUIPROF_SESSIONS, else in the user data directory."""
    if explicit is not None:
        return typed_path(str(explicit)).absolute()
    if named := os.environ.get("TUIPROF_SESSIONS"):
        return typed_path(named).absolute()
    import platformdirs

    return platformdirs.user_data_path("tuiprof", appauthor=False) / "sessions"


def make_dir(root: Path, unix_ns: int, name: str, folders: Iterable[str]) -> Path:
    """Create a directory ``<utc time>-<name>`` with folders inside; a number is appended if it exists.

    Only its owner may enter it, whatever the umask: it contains the script's arguments and output, and anyone who can
    write to ``control`` can stop the script.

    Raises:
        SessionError: No permission, no space.
    """
    base = f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y%m%dT%H%M%SZ}-{name}"
    path = root / base
    try:
        root.mkdir(parents=True, exist_ok=True)
        for count in range(2, 10_000):
            try:
                path.mkdir(mode=0o700)
                break
            except FileExistsError:  # started within the same second
                path = root / f"{base}-{count}"
        for folder in folders:
            (path / folder).mkdir()
    except OSError as error:
        raise explain(error, path, "create") from error
    return path


def create(root: Path, meta: SessionMeta) -> Session:
    """Create a session directory.

    Raises:
        SessionError: No permission, no space.
    """
    path = make_dir(root, meta.unix_ns, slug(meta.name), ("log", "traces", "control"))
    try:
        write_meta(path, meta)
    except SessionError:
        shutil.rmtree(path, ignore_errors=True)  # or it would be listed as damaged
        raise
    return Session(path)


def slug(name: str) -> str:
    """Return a name as a valid part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "session"


def session_dirs(root: Path) -> list[Path]:
    """Return the session directories in a root folder, newest first, without reading them; empty if it does not exist.

    Raises:
        SessionError: The root cannot be read.
    """
    return [path for path in _dirs(root) if not _is_ladder(path)]


def session_folder(path: Path) -> Path | None:
    """Return the folder of the session that a trace is in; None = not in a session."""
    return next((folder for folder in path.parents if (folder / "session.json").is_file()), None)


def trace_title(path: Path) -> str:
    """Return the name of a trace's session without its date, or of the file if it is in no session; untrusted.

    Files in a session have names such as ``rank0.1795465808049.pt.trace.json.gz``, which do not identify the run.
    """
    session = session_folder(path.absolute())
    return path.name if session is None else _NAMED.sub("", session.name, count=1)


def ladder_dirs(root: Path) -> list[Path]:
    """Return the ladder directories in a root folder, newest first; empty if it does not exist.

    Raises:
        SessionError: The root cannot be read.
    """
    return [path for path in _dirs(root) if _is_ladder(path)]


def _is_ladder(path: Path) -> bool:
    # Check the name first, so that a listing does not access every directory.
    return path.name.partition("-")[2].startswith("ladder-") and (path / LADDER_FILE).exists()


def _dirs(root: Path) -> list[Path]:
    try:
        found = [Path(entry.path) for entry in os.scandir(root) if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, root, "read") from error
    # Names start with the time.
    return sorted(
        (path for path in found if _NAMED.match(path.name)), key=lambda path: path.name, reverse=True
    )


def run_order(part: Part | None, unix_ns: int, id_: str) -> tuple[object, ...]:
    """Return the sort key of a part: by ranks; parts without ranks last, by start."""
    return (0, part.ranks) if part is not None else (1, unix_ns, id_)


def find_session(root: Path, text: str) -> Session:
    """Return the session that a user names, with the parts recorded by other hosts.

    That is a path, absolute or relative to the root; ``last``, or ``last~1`` for the one before it; an id or a unique
    prefix of one; or a name (the newest session of that name).

    Raises:
        UsageProblem: No session matches, or several ids start with the text.
        SessionError: The session cannot be read.
    """
    for path in (typed_path(text), root / text):
        if os.path.exists(path / SESSION_FILE):
            return run_of(Session(path))
    paths = session_dirs(root)
    if not paths:
        raise UsageProblem(
            f"there are no sessions in {root}", "record one: tuiprof record -- python train.py"
        )
    if last := _LAST.fullmatch(text):
        return _last(root, paths, text, int(last[1] or 0))
    named = [path for path in paths if text in (path.name, path.name.partition("-")[2])]
    if named:
        return run_of(Session(named[0]))
    beginning = [path for path in paths if path.name.startswith(text)]
    if len(beginning) > 1:
        some = ", ".join(path.name for path in beginning[:3])
        raise UsageProblem(f"{len(beginning)} sessions begin with {text!r}: {some}", "use a longer prefix")
    if beginning:
        return run_of(Session(beginning[0]))
    close = _closest(text, paths)
    raise UsageProblem(
        f"there is no session {text!r} in {root}", f"did you mean {close!r}?" if close else "see tuiprof list"
    )


def run_of(session: Session) -> Session:
    """Return the multi-host run that a session is part of, led by the part with the lowest rank; else the session.

    Other parts are looked for in the folder that the session is in.
    """
    own, launch = part_of(session), launch_of(session)
    if own is None and (launch is None or not launch.waits):
        return session
    max_gap = max_start_gap_ns(own) if own is not None else MAX_START_GAP_NS
    found = {session.path.name: (session, own)}
    launches = [launch] if launch is not None else []
    for path in session_dirs(session.path.parent):
        if path.name in found or abs(named_ns(path.name) - named_ns(session.path.name)) > max_gap:
            continue
        with contextlib.suppress(SessionError):
            other = Session(path)
            part, started = part_of(other), launch_of(other)
            same_command = started is not None and launch is not None and started.command == launch.command
            if same_command or (part is not None and own is not None and part.key == own.key):
                found[path.name] = other, part
                if same_command and started is not None and (started.waits or part):
                    launches.append(started)
    parts = [part for _, part in found.values() if part is not None]
    by_rank = [[it.id for it in group] for group in group_parts(parts)]
    group = next(group for group in join_waiting(by_rank, launches) if session.path.name in group)
    return _joined([found[id_] for id_ in group])


def _joined(parts: list[tuple[Session, Part | None]]) -> Session:
    """Return the parts of a run as one session."""
    (first, part), *others = sorted(
        parts, key=lambda it: run_order(it[1], it[0].meta.unix_ns, it[0].path.name)
    )
    if not others:
        return first
    names = {short_name(first.meta.host)}
    hosts = []
    for other, other_part in others:
        name = _unique(short_name(other.meta.host), names)
        clock = ClockDifference()
        if part is not None and other_part is not None:
            clock = clock_difference(first, part.writer, other, other_part.writer)
        ranks = other_part.ranks if other_part is not None else ()
        hosts.append(Host(name, other, ranks, clock, shift_ns(first, other, clock)))
    if part is None:
        return Session(first.path, tuple(hosts))
    found = len(part.ranks) + sum(len(host.ranks) for host in hosts)
    return Session(first.path, tuple(hosts), complete=found >= part.world)


def _unique(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, and add it to the taken ones."""
    found = next(
        it for n in range(1, len(taken) + 2) if (it := f"{name}#{n}" if n > 1 else name) not in taken
    )
    taken.add(found)
    return found


def named_ns(name: str) -> int:
    """Return the time in the name of a session directory, Unix ns; 0 = there is none."""
    try:
        return int(datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()) * 10**9
    except ValueError:
        return 0


def _last(root: Path, paths: list[Path], text: str, back: int) -> Session:
    """Return the run ``back`` runs before the newest; the directories of a multi-host run count once."""
    seen: set[Path] = set()
    count = 0
    for path in paths:
        if path in seen:
            continue
        if count == back:
            return run_of(Session(path))
        count += 1
        with contextlib.suppress(SessionError):  # damaged
            seen.update(part.path for part in run_of(Session(path)).parts)
    raise UsageProblem(f"there is no session {text!r}: {root} contains {count}", "see tuiprof list")


def _closest(text: str, paths: list[Path]) -> str | None:
    from difflib import get_close_matches  # here: the supervisor does not need it

    names = [path.name for path in paths] + [path.name.partition("-")[2] for path in paths]
    close = get_close_matches(text, names, n=1, cutoff=0.6)
    if close:
        return close[0]
    return next((path.name for path in paths if text and text in path.name), None)


class RecorderLock:
    """The exclusive lock of a session's recorder, in its ``control`` folder, held until it is released or the process
    ends.

    Raises:
        SessionError: Another recorder holds the lock, or the folder cannot be written.
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
            # Some network file systems have no locks: record without one.
            pass

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        with contextlib.suppress(OSError):  # already closed
            os.close(self._file)
