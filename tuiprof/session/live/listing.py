"""Summaries of sessions, for lists: they read the ends of logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import msgspec

from tuiprof.errors import SessionError
from tuiprof.session.live.fold import RECORDER, Fold
from tuiprof.session.live.tail import Batch
from tuiprof.session.log import DeviceStep, Head, Slower, decode, first_head
from tuiprof.session.store.folders import Session, run_order, session_dirs
from tuiprof.session.store.hosts import (
    Launch,
    Part,
    combined_status,
    group_parts,
    join_waiting,
    launch_of,
    part_of,
)
from tuiprof.session.store.meta import Clock
from tuiprof.session.store.output import lost_output, recording_problem
from tuiprof.session.store.status import State, Status
from tuiprof.system.files import read_end

#: Number of bytes to read at the end of a log: at least a thousand steps, in two milliseconds.
_TAIL_BYTES: Final = 256 << 10


class Summary(msgspec.Struct, frozen=True):
    """Summary of a session or a multi-host run, for lists."""

    id: str  # name of the directory
    path: str
    title: str  # ``scenario:variant``, or the session's name
    state: str  # a :data:`tuiprof.session.store.status.State`, or ``unreadable``
    detail: str = ""  # further information about the state; may be empty
    code: int | None = None  # exit status as in a shell; None = running, or unknown
    unix_ns: int = 0  # start, Unix ns
    duration_ns: int | None = None  # from the start to the last record; None = no records
    steps: int = 0  # maximum over all ranks
    #: Median step time without captured steps and, if a capture slowed the script down, later ones; None = no steps
    median_ns: float | None = None
    recent: bool = False  # whether the median covers only the last steps, because the log is long
    argv: list[str] = []  # the command as given
    host: str = ""
    part: Part | None = None  # the multi-host run it is part of, as its ranks recorded it
    launch: Launch | None = None  # the multi-host run it is part of, from its command
    parts: list[Summary] = []  # summaries of the parts of a multi-host run; empty = a single session

    @property
    def folders(self) -> list[str]:
        """The directories of all hosts."""
        return [part.path for part in self.parts] or [self.path]

    @property
    def over(self) -> bool:
        """Whether the session has ended, so that the summary stays valid."""
        return self.state in ("finished", "failed", "stopped", "interrupted")


def summary_of(session: Session) -> Summary:
    """Return the summary of a session."""
    clock = Clock(session.meta)
    fold, latest_ns = Fold(clock), -1
    slowed: dict[str, int] = {}
    for path in session.log_files():
        of_recorder = path.stem == RECORDER
        records = decode(read_end(path, 2048 if of_recorder else _TAIL_BYTES))
        last = next((one for one in reversed(records) if not isinstance(one, (Head, DeviceStep))), None)
        if last is None:
            continue
        head = first_head(path)
        latest_ns = max(latest_ns, last.at + clock.offset_ns(head))
        if of_recorder:
            continue
        if head is not None and not isinstance(records[0], Head):
            records.insert(0, head)
        fold.feed([Batch(path.stem, records)])
        for record in records:
            if isinstance(record, Slower):
                slowed[path.stem] = record.before
    steps = max((rank.steps.last_n + 1 for rank in fold.ranks if rank.steps.last_n is not None), default=0)
    median_ns, recent = None, False
    if steps and fold.lead is not None:
        series = fold.lead.steps
        recent = int(series.rows["n"][0]) > 0
        if recent and fold.lead.name in slowed:  # the steps before the capture have not been read
            median_ns = float(slowed[fold.lead.name])
        elif (stats := series.whole_run()).count:
            median_ns = stats.median_ns
    status = session.status()
    problem = lost_output(session) if status.over else recording_problem(session)
    return Summary(
        id=session.id,
        path=str(session.path),
        title=session.title,
        state=status.state,
        detail=", ".join(filter(None, (status.detail, problem))),
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


def run_summary(parts: list[Summary]) -> Summary:
    """Return the summary of a multi-host run from those of its parts, which are sorted by rank."""
    first = parts[0]
    states = [(it.host, Status(cast("State", it.state), it.code, detail=it.detail)) for it in parts]
    status = combined_status(states)
    durations = [it.duration_ns for it in parts if it.duration_ns is not None]
    most = max(parts, key=lambda it: it.steps)
    hosts = list(dict.fromkeys(it.host for it in parts))
    return msgspec.structs.replace(
        first,
        state=status.state,
        detail=", ".join(filter(None, (f"{len(hosts)} hosts" if len(hosts) > 1 else "", status.detail))),
        code=status.code,
        duration_ns=max(durations, default=None),
        steps=most.steps,
        median_ns=first.median_ns or most.median_ns,
        recent=(first if first.median_ns else most).recent,
        host=", ".join(hosts),
        parts=parts,
    )


def list_sessions(
    root: Path, *, limit: int | None = None, known: Mapping[str, Summary] | None = None
) -> list[Summary]:
    """Return a summary of each run below a root, which need not exist, newest first; at most ``limit``.

    Damaged sessions have the state ``unreadable``. Finished sessions among the ``known`` (by id) are not read again.

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
    """Merge the summaries of the parts of each run, at the position of the newest part."""
    by_id = {it.id: it for it in listed}
    parts = [it.part for it in listed if it.part is not None]
    groups = [[part.id for part in group] for group in group_parts(parts)]
    groups = join_waiting(groups, (it.launch for it in listed if it.launch is not None))
    group_of = {id_: group for group in groups for id_ in group}
    out: dict[str, Summary] = {}
    for it in listed:
        group = sorted(
            group_of.get(it.id, [it.id]), key=lambda id_: run_order(by_id[id_].part, by_id[id_].unix_ns, id_)
        )
        if group[0] not in out:
            out[group[0]] = run_summary([by_id[id_] for id_ in group]) if len(group) > 1 else it
    return list(out.values())
