"""A summary of a session for lists, from small files and the end of its logs; no log is read whole."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import msgspec

from tuiprof.session.log.records import DeviceStep, Head, Record, Slower, Step
from tuiprof.session.store.clock import Clock
from tuiprof.session.store.storage import lost_output, trouble
from tuiprof.system.files import UNDECODABLE, open_regular, read_end

if TYPE_CHECKING:
    from pathlib import Path

    from tuiprof.session.store.folders import Session
    from tuiprof.session.store.status import Status

#: How much of the end of a rank's log is read: about a hundred steps.
_TAIL_BYTES: Final = 16 << 10
_decoder: Final = msgspec.json.Decoder(Record)


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
        median_ns: Median of the last steps (about a hundred, as many as the end of the log holds; captured steps
            are left out); where a capture slowed the script down, of the steps before it; None = no steps.
        argv: The command as given.
        host: Where it ran.
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
    argv: list[str] = []
    host: str = ""

    @property
    def over(self) -> bool:
        """Whether the session has ended, so that the summary stays valid."""
        return self.state in ("finished", "failed", "stopped", "interrupted")


def summary_of(session: Session) -> Summary:
    """Return the summary of a session."""
    clock = Clock(session.meta)
    steps, median_ns, latest_ns = 0, None, -1
    for path in session.log_files():
        records = _decode(read_end(path, _TAIL_BYTES if path.stem != "recorder" else 2048))
        marked = [record for record in records if type(record) is Step]
        last = next((one for one in reversed(records) if not isinstance(one, (Head, DeviceStep))), None)
        if last is not None:
            head = records[0] if isinstance(records[0], Head) else first_head(path)
            latest_ns = max(latest_ns, last.at + clock.offset_ns(head))
        if marked and marked[-1].n >= steps:
            steps = marked[-1].n + 1
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
        argv=session.meta.argv,
        host=session.meta.host,
    )


def _storage(session: Session, status: Status) -> str:
    """Return what cannot be stored of a running session, or could not be stored of one that is over."""
    return lost_output(session) if status.over else trouble(session)


def _decode(block: bytes) -> list[Record]:
    try:
        records: list[Record] = _decoder.decode_lines(block)
        return records
    except UNDECODABLE:
        pass
    records = []
    for line in block.split(b"\n"):
        try:
            records.append(_decoder.decode(line))
        except UNDECODABLE:  # a partial or foreign line: a summary does without it
            continue
    return records


def first_head(path: Path) -> Head | None:
    """Return the head record of a log; None = there is none yet, or the first line is something else."""
    try:
        with open_regular(path) as file:
            record = _decoder.decode(file.readline(1 << 16))
    except (OSError, *UNDECODABLE):
        return None
    return record if isinstance(record, Head) else None
