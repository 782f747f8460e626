"""Session directories: location, contents, creation, and a summary of each for lists.

::

    <root>/<utc time>-<name>/
      session.json          SessionMeta, written atomically
      log/<writer>.jsonl    one append-only file a writer: rank0, rank1, …, recorder
      stdout.log stderr.log
      source/               the text of the script that was launched (see tuiprof.session.run.launch)
      traces/
      control/              requests to the running script; process ids (process.json), the recorder's lock,
                            counts of output that is not in the files (output.json)
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import re
import shutil
import statistics
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Final, cast

import msgspec

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.session.log import DeviceStep, Head, Slower, Step, decode, first_head
from tuiprof.session.store.hosts import (
    TOGETHER_NS,
    ClockDifference,
    Host,
    Launch,
    Log,
    Part,
    clock_difference,
    combined,
    launch_of,
    part_of,
    reach_ns,
    runs,
    shift_ns,
    with_waiting,
)
from tuiprof.session.store.meta import SESSION_FILE, Clock, SessionMeta, read_meta, short_name, write_meta
from tuiprof.session.store.output import lost_output, trouble
from tuiprof.session.store.status import State, Status, status
from tuiprof.system.files import explain, read_end, typed_path

#: Marks a directory that holds the trials of a ladder (see :mod:`tuiprof.ladder.state`) instead of one session.
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


class Session:
    """One session directory, for reading; with the directories of other hosts it is a run of several hosts.

    Args:
        path: The directory.
        others: The parts of the run that other hosts recorded (see :func:`run_of`).
        complete: With these every rank of the run has been found.

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

    @property
    def parts(self) -> tuple[Session, ...]:
        """The session of each host of the run, this one first."""
        return (self, *(host.session for host in self.others))

    @property
    def host(self) -> str:
        """Name of its host in a run of several; empty = the run has one."""
        return short_name(self.meta.host) if self.others else ""

    def part(self, writer: str) -> Session:
        """Return the part of the run that a writer belongs to (see :attr:`Log.writer`)."""
        on_host = writer.partition("@")[2]
        return next((host.session for host in self.others if host.name == on_host), self)

    def with_traces(self, rank: int | None = None) -> Session:
        """Return the part of the run with the traces of a rank; None = the lowest rank that has some."""
        parts = [part for part in self.parts if part.traces()]
        of_rank = next((host.session for host in self.others if rank in host.ranks), self)
        return of_rank if rank is not None or not parts else parts[0]

    def log_files(self) -> list[Path]:
        """Return the log files there are now in this directory, one a writer, by name."""
        return sorted(self.log.glob("*.jsonl"))

    def logs(self) -> list[Log]:
        """Return the logs there are now on all hosts of the run."""
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
        """Return the traces captured so far on all hosts of the run, host by host."""
        return [path for part in self.parts for path in part.traces()]

    def traces(self) -> list[Path]:
        """Return the traces captured so far in this directory, oldest first."""
        found = []
        for path in (self.path / "traces").rglob("*"):
            if path.name.endswith(_TRACE_SUFFIXES) and not (
                path.suffix == ".gz" and path.with_suffix("").exists()
            ):
                with contextlib.suppress(OSError):  # a link to nowhere, or deleted just now
                    found.append((path.stat().st_mtime_ns, path.name, path))
        return [path for *_, path in sorted(found)]

    def status(self) -> Status:
        """Return its current state: running, finished, failed, stopped or interrupted."""
        if not self.others:
            return status(self)
        return combined([(self.host, status(self)), *((it.name, status(it.session)) for it in self.others)])

    def reload(self) -> None:
        """Read ``session.json`` again: the recorder adds the devices once it has found them."""
        self.meta = read_meta(self.path)
        for host in self.others:
            with contextlib.suppress(SessionError):  # a host's part that was deleted; the rest continues
                host.session.reload()


def sessions_root(explicit: Path | None = None) -> Path:
    """Return where sessions are kept.

    Args:
        explicit: ``--sessions``; without it TUIPROF_SESSIONS, without that the platform's user data
            directory.
    """
    if explicit is not None:
        return typed_path(str(explicit)).absolute()
    if named := os.environ.get("TUIPROF_SESSIONS"):
        return typed_path(named).absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("tuiprof", appauthor=False)) / "sessions"


def make_dir(root: Path, unix_ns: int, name: str, folders: Iterable[str]) -> Path:
    """Make a directory named after its time and name, and the folders in it.

    Only its owner may enter it, whatever the umask: it holds the script's arguments and output, and whoever may
    write into ``control`` can stop the script.

    Args:
        root: Parent directory; created if missing.
        unix_ns: Time in the name, Unix ns.
        name: Follows the time; a number is appended if the result exists.
        folders: Names of the folders inside.

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
    """Make a new session directory.

    Raises:
        SessionError: No permission, no space.
    """
    path = make_dir(root, meta.unix_ns, slug(meta.name), ("log", "traces", "control"))
    try:
        write_meta(path, meta)
    except SessionError:
        shutil.rmtree(path, ignore_errors=True)  # a partial session would be listed as damaged
        raise
    return Session(path)


def slug(name: str) -> str:
    """Return a name that is safe as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "session"


def session_dirs(root: Path) -> list[Path]:
    """Return the session directories under a root (which need not exist), newest first, without reading them.

    Raises:
        SessionError: It cannot be read.
    """
    return [path for path in _dirs(root) if not _is_ladder(path)]


def ladder_dirs(root: Path) -> list[Path]:
    """Return the ladder directories under a root (which need not exist), newest first.

    Raises:
        SessionError: It cannot be read.
    """
    return [path for path in _dirs(root) if _is_ladder(path)]


def _is_ladder(path: Path) -> bool:
    # The name is checked first, so that a listing does not open every directory.
    return path.name.partition("-")[2].startswith("ladder-") and (path / LADDER_FILE).exists()


def _dirs(root: Path) -> list[Path]:
    try:
        found = [Path(entry.path) for entry in os.scandir(root) if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, root, "read") from error
    # Names begin with the time, so sorting by name sorts by time.
    return sorted(
        (path for path in found if _NAMED.match(path.name)), key=lambda path: path.name, reverse=True
    )


def list_sessions(
    root: Path, *, limit: int | None = None, known: Mapping[str, Summary] | None = None
) -> list[Summary]:
    """Return a summary of each run, newest first; a damaged session has the state ``unreadable``.

    The sessions that the hosts of one run have recorded are one run.

    Args:
        root: Where sessions are kept; it need not exist.
        limit: Maximum number, newest first; None = all.
        known: Summaries from an earlier call by id; those of finished sessions are not read again.

    Raises:
        SessionError: The root cannot be read.
    """
    listed = []
    before = {part.id: part for run in known.values() for part in (run.parts or [run])} if known else {}
    for path in session_dirs(root)[:limit]:
        earlier = before.get(path.name)
        if earlier is not None and earlier.over:
            listed.append(earlier)
            continue
        try:
            listed.append(summary_of(Session(path)))
        except SessionError as error:
            listed.append(Summary(path.name, str(path), path.name, "unreadable", detail=error.message))
    return _as_runs(listed)


def _as_runs(listed: list[Summary]) -> list[Summary]:
    """Return one summary for the parts of a run, in the position of the newest."""
    by_id = {it.id: it for it in listed}
    groups = [[part.id for part in group] for group in runs(it.part for it in listed if it.part is not None)]
    groups = with_waiting(groups, (it.launch for it in listed if it.launch is not None))
    group_of = {id_: group for group in groups for id_ in group}
    out: dict[str, Summary] = {}
    for it in listed:
        group = sorted(
            group_of.get(it.id, [it.id]), key=lambda id_: _order(by_id[id_].part, by_id[id_].unix_ns, id_)
        )
        if group[0] not in out:
            out[group[0]] = of_run([by_id[id_] for id_ in group]) if len(group) > 1 else it
    return list(out.values())


def _order(part: Part | None, unix_ns: int, id_: str) -> tuple[object, ...]:
    """Return the order of the folders of a run: by rank; those without ranks last, as they began."""
    return (0, part.ranks) if part is not None else (1, unix_ns, id_)


def find_session(root: Path, text: str) -> Session:
    """Return the session that a user names, with what other hosts recorded of the same run.

    Args:
        root: Where sessions are kept.
        text: A path, absolute or below the root (such as a ladder's trial); ``last``, or ``last~1`` for the one
            before it; a session's id, a unique prefix of one, or a name (the newest with that name).

    Raises:
        UsageProblem: No session matches, or several begin with the text.
        SessionError: It cannot be read.
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
    """Return the run of several hosts in the session's folder, led by the part with the lowest rank; a session of one
    host itself.
    """
    own, launch = part_of(session), launch_of(session)
    if own is None and (launch is None or not launch.waits):
        return session
    reach = reach_ns(own) if own is not None else TOGETHER_NS
    found = {session.path.name: (session, own)}
    launches = [launch] if launch is not None else []
    for path in session_dirs(session.path.parent):
        if path.name in found or abs(_named_ns(path.name) - _named_ns(session.path.name)) > reach:
            continue
        with contextlib.suppress(SessionError):
            other = Session(path)
            part, started = part_of(other), launch_of(other)
            alike = started is not None and launch is not None and started.command == launch.command
            if alike or (part is not None and own is not None and part.key == own.key):
                found[path.name] = other, part
                launches += [started] if alike and started is not None and (started.waits or part) else []
    by_rank = [
        [it.id for it in group] for group in runs(part for _, part in found.values() if part is not None)
    ]
    group = next(group for group in with_waiting(by_rank, launches) if session.path.name in group)
    return _joined([found[id_] for id_ in group])


def _joined(parts: list[tuple[Session, Part | None]]) -> Session:
    """Return the parts of a run as one session."""
    (first, part), *others = sorted(parts, key=lambda it: _order(it[1], it[0].meta.unix_ns, it[0].path.name))
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
    """Return a name that is not taken, and take it."""
    found = next(
        it for n in range(1, len(taken) + 2) if (it := f"{name}#{n}" if n > 1 else name) not in taken
    )
    taken.add(found)
    return found


def _named_ns(name: str) -> int:
    """Return the time in the name of a session directory, Unix ns; 0 = none."""
    try:
        return int(datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()) * 10**9
    except ValueError:
        return 0


def _last(root: Path, paths: list[Path], text: str, back: int) -> Session:
    """Return the n-th run before the newest; the folders of its hosts count once."""
    seen: set[Path] = set()
    count = 0
    for path in paths:
        if path in seen:
            continue
        if count == back:
            return run_of(Session(path))
        count += 1
        with contextlib.suppress(SessionError):  # a damaged one counts as well
            seen.update(part.path for part in run_of(Session(path)).parts)
    raise UsageProblem(f"there is no session {text!r}: {root} contains {count}", "see tuiprof list")


def _closest(text: str, paths: list[Path]) -> str | None:
    names = [path.name for path in paths] + [path.name.partition("-")[2] for path in paths]
    close = difflib.get_close_matches(text, names, n=1, cutoff=0.6)
    if close:
        return close[0]
    return next((path.name for path in paths if text and text in path.name), None)


class RecorderLock:
    """An exclusive lock for recording into a session directory, held until released or until the process ends.

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
            # Some network mounts have no locks: record without one rather than not at all.
            pass

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        with contextlib.suppress(OSError):  # already closed
            os.close(self._file)


#: How much of the end of a rank's log is read: a thousand steps or more, within two milliseconds.
_TAIL_BYTES: Final = 256 << 10


class Summary(msgspec.Struct, frozen=True):
    """One line of the list of sessions."""

    id: str  # name of the directory, which commands accept
    path: str
    title: str  # ``scenario:variant``, or the session's name
    state: str  # a :data:`tuiprof.session.store.status.State`, or ``unreadable``
    detail: str = ""  # further information about the state; may be empty
    code: int | None = None  # exit status as a shell gives it; None while running or unknown
    unix_ns: int = 0  # start, Unix ns
    duration_ns: int | None = None  # from the start to the last record; None = no record
    steps: int = 0  # steps recorded by the rank with the most; 0 = none
    #: Median step without captured ones; where a capture slowed the script down, of the steps before it; None = no
    #: steps
    median_ns: float | None = None
    #: Whether the median is that of the last steps only, because the log is too long to be read whole
    recent: bool = False
    argv: list[str] = []  # the command as given
    host: str = ""  # where it ran
    part: Part | None = None  # the run of several hosts that it may be a part of
    launch: Launch | None = None  # what its command says of a run of several hosts
    #: Summaries of the hosts' parts where this is such a run; empty = it is one session
    parts: list[Summary] = []

    @property
    def folders(self) -> list[str]:
        """The session's directory; of a run of several hosts those of all of them."""
        return [part.path for part in self.parts] or [self.path]

    @property
    def over(self) -> bool:
        """Whether the session has ended, so that the summary stays valid."""
        return self.state in ("finished", "failed", "stopped", "interrupted")


def summary_of(session: Session) -> Summary:
    """Return the summary of a session."""
    clock = Clock(session.meta)
    steps, median_ns, recent, latest_ns = 0, None, False, -1
    for path in session.log_files():
        records = decode(read_end(path, _TAIL_BYTES if path.stem != "recorder" else 2048))
        marked = [record for record in records if type(record) is Step]
        last = next((one for one in reversed(records) if not isinstance(one, (Head, DeviceStep))), None)
        if last is not None:
            head = records[0] if isinstance(records[0], Head) else first_head(path)
            latest_ns = max(latest_ns, last.at + clock.offset_ns(head))
        if marked and marked[-1].n >= steps:
            steps, recent = marked[-1].n + 1, marked[0].n > 0
            plain = [step.dur for step in marked if not step.cap]
            slower = next((record for record in reversed(records) if isinstance(record, Slower)), None)
            if slower is not None:
                median_ns = float(slower.before)
            else:
                median_ns = float(statistics.median(plain)) if plain else None
    status = session.status()
    missing = lost_output(session) if status.over else trouble(session)
    return Summary(
        id=session.id,
        path=str(session.path),
        title=session.title,
        state=status.state,
        detail=", ".join(filter(None, (status.detail, missing))),
        code=status.code,
        unix_ns=session.meta.unix_ns,
        duration_ns=latest_ns if latest_ns >= 0 else None,
        steps=steps,
        median_ns=median_ns,
        recent=recent,
        argv=session.meta.argv,
        host=session.meta.host,
        part=part_of(session),
        launch=launch_of(session),
    )


def of_run(parts: list[Summary]) -> Summary:
    """Return the summary of a run from those of its hosts, given by rank."""
    first = parts[0]
    states = [(it.host, Status(cast("State", it.state), it.code, detail=it.detail)) for it in parts]
    status = combined(states)
    lasted = [it.duration_ns for it in parts if it.duration_ns is not None]
    most = max(parts, key=lambda it: it.steps)
    hosts = list(dict.fromkeys(it.host for it in parts))
    return msgspec.structs.replace(
        first,
        state=status.state,
        detail=", ".join(filter(None, (f"{len(hosts)} hosts" if len(hosts) > 1 else "", status.detail))),
        code=status.code,
        duration_ns=max(lasted, default=None),
        steps=most.steps,
        median_ns=first.median_ns or most.median_ns,
        recent=(first if first.median_ns else most).recent,
        host=", ".join(hosts),
        parts=parts,
    )
