"""A session that hangs or has failed: where its processes are or were, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from tuiprof.blackbox.dumps import of_session
from tuiprof.blackbox.stacks import Process, location, processes_of, stacks_report
from tuiprof.errors import SessionError
from tuiprof.model import Column, Fact, Report, Table, Verdict
from tuiprof.model.report import listed
from tuiprof.model.units import format_bytes, format_ns, format_share
from tuiprof.session import ptrace
from tuiprof.session.asking import expected, is_here, take_stacks
from tuiprof.session.live.fold import END_STACKS, Fold, StacksState, WriterState
from tuiprof.session.log import NotFinite, OutOfMemory
from tuiprof.session.store.folders import Session
from tuiprof.session.store.output import last_lines
from tuiprof.session.store.status import Status, processes
from tuiprof.system import process

_RANK = re.compile(r"rank(\d+)")


def asked(session: Session) -> Report:
    """Ask the processes of a running session where they are; those that do not answer are read from outside.

    Raises:
        SessionError: It cannot be asked.
    """
    fold, found = take_stacks(session)
    silent = [rank for rank in expected(session, fold) if rank.name not in found.by_writer]
    more, missing = [], []
    for rank in silent:
        assert rank.head is not None  # expected() returns no others
        if not is_here(session, rank):
            missing.append(
                f"{rank.label} did not answer, and runs on another machine or in another container"
            )
            continue
        read, why = _from_outside(rank.head.pid, rank.name)
        more += read
        missing += why
    if not found.by_writer and not silent:
        more, missing = _of_script(session, stepped=bool(fold.ranks))
    return _report(session, fold, found, more=more, missing=missing)


def _of_script(session: Session, *, stepped: bool) -> tuple[list[Process], list[str]]:
    """Read the stacks of the script by py-spy: the probe answers from the first step to the end of the process.

    A script may go on when all processes with steps have ended: with another process, or in its exit handlers.
    """
    who = processes(session)
    if (
        who is None
        or who.script is None
        or who.pid_namespace != process.pid_namespace()
        or not process.alive(who.script)
    ):
        elsewhere = "the script has not run a step yet, and runs on another machine or in another container"
        return [], ["the script has ended" if stepped else elsewhere]
    read, why = _from_outside(who.script.pid, "the script", children=True)
    state = "all processes with steps have ended" if stepped else "the script has not run a step yet"
    return read, [f"{state}: the script's stacks are read by py-spy", *why]


def _from_outside(pid: int, name: str, *, children: bool = False) -> tuple[list[Process], list[str]]:
    """Return what py-spy says of a process that does not answer, and why it is asked or says nothing."""
    try:
        found = ptrace.stacks_of(pid, children=children)
    except SessionError as error:
        return [], [f"{name} (process {pid}) did not answer: {error.message}; {error.remedy}"]
    read = [
        Process(name if number == pid else f"process {number}", threads) for number, threads in found.items()
    ]
    return read, [] if children else [
        f"{name} (process {pid}) did not answer, as native code holds its interpreter lock: read by py-spy"
    ]


def kept(session: Session, fold: Fold) -> Report | None:
    """Return the stacks that were written last; None = none were."""
    found = fold.newest_stacks
    return None if found is None else _report(session, fold, found)


def _report(
    session: Session,
    fold: Fold,
    found: StacksState,
    *,
    more: Sequence[Process] = (),
    missing: Sequence[str] = (),
) -> Report:
    return stacks_report(
        [*processes_of(fold, found), *more],
        title=f"Stacks of {session.id}" + (f", {format_ns(found.t_ns)} into the run" if found.t_ns else ""),
        cause=found.cause,
        missing=missing,
        notes=flight_notes(session, found),
    )


def flight_notes(session: Session, found: StacksState) -> list[str]:
    """Return what the Flight Recorder's dumps say that were taken with stacks."""
    flights = {}
    for name, path in found.flights.items():
        match = _RANK.fullmatch(name.partition("@")[0])
        if match is not None:
            flights[int(match[1])] = path
    return [f"Flight Recorder: {line}" for line in of_session(session.path, flights)]


#: Steps and lines of output that are shown.
_STEPS: Final = 8
_LINES: Final = 15
#: Host memory in use from which it may be why a process was killed.
_FULL: Final = 0.9
#: ``ValueError: text``, ``torch.OutOfMemoryError: text``: the line of a traceback that names the exception.
_ERROR: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning|Failure)\b")
#: What another line says that may be why a script ended, such as ``srun: error: node1: task 0: Terminated``.
_SAYS_ERROR: Final = re.compile(
    r"\b(errors?|exception|fatal|fail(ed|ure)|abort(ed|ing)|killed|terminated|panic|segmentation|out of memory"
    r"|cannot|can't|could not|no such|not found|unable|denied|invalid|refused)\b",
    re.IGNORECASE,
)


def failure_report(session: Session, fold: Fold, status: Status) -> Report | None:
    """Return how a run ended; None if it did not fail."""
    if status.state not in ("failed", "interrupted"):
        return None
    first = _first_to_fail(fold)
    shown = first or fold.lead
    tables = [_stack(fold, first), _last_steps(shown), _output(session)]
    return Report(
        analysis="failure",
        title=f"How {session.id} ended",
        verdict=Verdict(_sentence(session, fold, status, first), "bad"),
        facts=tuple(_memory(fold, shown)),
        tables=tuple(table for table in tables if table is not None),
        notes=tuple(_notes(fold, status, first)),
    )


def _first_to_fail(fold: Fold) -> WriterState | None:
    """Return the process that failed first: the others usually fail because of it."""
    failed = [rank for rank in fold.ranks if rank.end is not None and rank.end.code]
    return min(failed, key=lambda rank: rank.end.at + rank.offset_ns if rank.end else 0, default=None)


def _sentence(session: Session, fold: Fold, status: Status, first: WriterState | None) -> str:
    words = f"{session.title} {status}"
    shown = first or fold.lead
    if shown is not None and shown.steps.last_n is not None:
        words += f" {_when(shown, raised=first is not None)}"
    if first is not None and first.end is not None:
        words = f"{words}: {first.name}: " if len(fold.ranks) > 1 else f"{words}: "
        return words + first.end.why + _where(fold, first)
    said = _last_error(session)
    return f"{words}: {said}" if said else words


def _when(shown: WriterState, raised: bool) -> str:
    """Return in or after which step a process ended; ``raised``: by an exception, which the running step had."""
    count = (shown.steps.last_n or 0) + 1
    if shown.end is None:
        return f"in step {count} or later"  # the last steps may not have been written
    return f"in step {count}" if raised else f"after {count} step{'' if count == 1 else 's'}"


def _where(fold: Fold, first: WriterState) -> str:
    found = fold.stacks.get(END_STACKS)
    record = found.by_writer.get(first.name) if found is not None else None
    if record is None or not record.threads or not record.threads[0].frames:
        return ""
    call, line, function = location(record.threads[0].frames)
    return f", at {line} ({function})" + (f" in {call}" if call else "")


def _last_error(session: Session) -> str:
    """Return the last line of standard error that names an exception, else the last one if it tells of an error."""
    lines = [line for line in last_lines(session.stderr, _LINES) if line.strip()]
    for says, among in ((_ERROR.match, lines[::-1]), (_SAYS_ERROR.search, lines[-1:])):
        if found := next(filter(says, among), ""):
            return found.strip()
    return ""


def _stack(fold: Fold, first: WriterState | None) -> Table | None:
    found = fold.stacks.get(END_STACKS)
    if found is None or first is None or first.name not in found.by_writer:
        return None
    processes = [process for process in processes_of(fold, found) if process.threads]
    ours = [process for process in processes if process.threads is found.by_writer[first.name].threads]
    report = stacks_report(ours, title="")
    table = next((table for table in report.tables if table.key.startswith("stack_")), None)
    if table is None or table.rows.is_empty():
        return None
    return Table("raised_at", "Where the exception came from", table.columns, table.rows, whole=True)


def _last_steps(rank: WriterState | None) -> Table | None:
    if rank is None or not len(rank.steps.rows):
        return None
    rows = rank.steps.rows
    last = slice(max(0, len(rows) - _STEPS), len(rows))
    columns = [Column("n", "step", "count"), Column("dur_ns", "time", "ns")]
    data: dict[str, Any] = {"n": rows["n"][last].tolist(), "dur_ns": rows["dur_ns"][last].tolist()}
    for name in rank.steps.phases[:6]:
        data[f"ph:{name}"] = [ns if ns >= 0 else None for ns in rows[f"ph:{name}"][last].tolist()]
        columns.append(Column(f"ph:{name}", name, "ns"))
    for name in list(rank.steps.metrics)[:4]:
        values = rows[f"v:{name}"][last].tolist()
        data[f"v:{name}"] = [value if value == value else None for value in values]
        columns.append(Column(f"v:{name}", name, "number"))
    if rows["captured"][last].any():
        data["captured"] = ["yes" if on else "" for on in rows["captured"][last].tolist()]
        columns.append(Column("captured", "captured"))
    schema = {name: pl.Float64 for name in data if name.startswith("v:")}
    frame = pl.DataFrame(data, schema_overrides=schema)
    return Table("last_steps", f"Last steps of {rank.name}", tuple(columns), frame, whole=True)


def _output(session: Session) -> Table | None:
    rows = [
        (name, line.rstrip())
        for name, path in (("stdout", session.stdout), ("stderr", session.stderr))
        for line in last_lines(path, _LINES)
        if line.strip(" ^~\n")  # not those that underline a part of a line above
    ]
    if not rows:
        return None
    columns = (Column("stream", "", whole=True), Column("line", "line", code=True))
    return Table("output", "Last output", columns, listed(columns, rows), whole=True)


def _memory(fold: Fold, rank: WriterState | None) -> list[Fact]:
    facts = []
    for index, series in rank.memory.items() if rank is not None else ():
        if series.last is not None:
            name = f"device {index}"
            facts.append(Fact(f"allocated_bytes_{index}", f"{name} allocated", series.last.alloc, "bytes"))
            facts.append(Fact(f"reserved_bytes_{index}", "reserved", series.last.reserved, "bytes"))
            facts.append(Fact(f"peak_bytes_{index}", "peak", series.last.peak, "bytes"))
    host = fold.devices.get("host")
    if host is not None and "tree_rss_bytes" in host.last:
        facts.append(Fact("rss_bytes", "RSS of the run", host.last["tree_rss_bytes"], "bytes"))
        facts.append(Fact("rss_peak_bytes", "peak", host.peak["tree_rss_bytes"], "bytes"))
    return facts


def _notes(fold: Fold, status: Status, first: WriterState | None) -> list[str]:
    said: list[str] = []
    began_ns = first.end.at + first.offset_ns if first is not None and first.end is not None else 0
    for rank in fold.ranks:
        if rank is not first and rank.end is not None and rank.end.code and len(said) < _STEPS:
            later = format_ns(rank.end.at + rank.offset_ns - began_ns)
            said.append(f"{rank.name} failed {later} later: {rank.end.why}")
    silent = [rank.name for rank in fold.ranks if rank.end is None]
    if silent and status.over:
        said.append(
            f"{', '.join(silent[:8])} ended without a final record, as with a signal or os._exit(): steps of the last "
            "0.1 s or so may be missing"
        )
    said += fold.shortfalls(status.over)
    stall = fold.newest_stacks
    if stall is not None and stall.cause:
        said.append(
            f"{stall.cause} at {format_ns(stall.t_ns)}; to show the stacks at that time: tuiprof stacks"
        )
    said += [_trouble(it.writer, it.record) for it in fold.troubles[:8]]
    host = fold.devices.get("host")
    used = host.last.get("mem_used_bytes") if host is not None else None
    total = host.last.get("mem_total_bytes") if host is not None else None
    if status.signal == 9 and used and total and used > _FULL * total:
        said.append(
            f"{format_share(used / total)} of the host's memory was in use: if it runs out, the kernel kills the "
            "largest process"
        )
    return said


def _trouble(writer: str, record: NotFinite | OutOfMemory) -> str:
    if isinstance(record, NotFinite):
        return f"{writer}: {record.what} was {record.value} in step {record.n}"
    words = (
        f"{writer}: device {record.dev} could not allocate {format_bytes(record.wanted)} in step {record.n}"
    )
    return words + (f" ({record.why})" if record.why else "")


def snapshots(fold: Fold) -> Sequence[str]:
    """Return the allocator's snapshots that failed allocations left, relative to the session, the oldest first."""
    return [it.record.path for it in fold.troubles if isinstance(it.record, OutOfMemory) and it.record.path]
