"""A summary of a session for lists, from small files and the end of its logs; no long log is read whole."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final, cast

import msgspec

from tuiprof.session.log import DeviceStep, Head, Slower, Step, decode, first_head
from tuiprof.session.store.hosts import Launch, Part, combined, launch_of, part_of
from tuiprof.session.store.meta import Clock
from tuiprof.session.store.output import lost_output, trouble
from tuiprof.session.store.status import State, Status
from tuiprof.system.files import read_end

if TYPE_CHECKING:
    from tuiprof.session.store.folders import Session

#: How much of the end of a rank's log is read: a thousand steps or more, within two milliseconds.
_TAIL_BYTES: Final = 256 << 10


class Summary(msgspec.Struct, frozen=True):
    """One line of the list of sessions.

    Attributes:
        id: Name of the directory, which commands accept.
        path: The directory.
        title: ``scenario:variant``, or the session's name.
        state: A :data:`tuiprof.session.store.status.State`, or ``unreadable``.
        detail: Further information about the state; may be empty.
        code: Exit status as a shell gives it; None while running or unknown.
        unix_ns: Start, Unix ns.
        duration_ns: From the start to the last record; None = no record.
        steps: Steps recorded by the rank with the most; 0 = none.
        median_ns: Median step without captured ones; where a capture slowed the script down, of the steps before
            it; None = no steps.
        recent: Whether the median is that of the last steps only, because the log is too long to be read whole.
        argv: The command as given.
        host: Where it ran.
        part: The run of several hosts that it may be a part of.
        launch: What its command says of a run of several hosts.
        parts: Summaries of the hosts' parts where this is such a run; empty = it is one session.
    """

    id: str
    path: str
    title: str
    state: str
    detail: str = ""
    code: int | None = None
    unix_ns: int = 0
    duration_ns: int | None = None
    steps: int = 0
    median_ns: float | None = None
    recent: bool = False
    argv: list[str] = []
    host: str = ""
    part: Part | None = None
    launch: Launch | None = None
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
    return Summary(
        id=session.id,
        path=str(session.path),
        title=session.title,
        state=status.state,
        detail=", ".join(filter(None, (status.detail, _storage(session, status)))),
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


def _storage(session: Session, status: Status) -> str:
    """Return what cannot be stored of a running session, or could not be stored of one that is over."""
    return lost_output(session) if status.over else trouble(session)
