"""Multi-host runs: which session folders belong to one run, and by how much the clocks of its hosts differ.

The recorder of every host writes its own folder. Folders are parts of one run if their launcher settings
(``Head.job``), ranks and start times fit. Before the processes of a host have written anything, its command is
compared: it launches ranks on several hosts (``torchrun --nnodes 2``) and is the same on each. The folders are in the
same parent folder, on a shared file system or copied by ``tuiprof collect``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from tuiprof.model.units import format_ns
from tuiprof.session.log import Head, Record, Step, decode, first_head
from tuiprof.session.store.meta import Clock
from tuiprof.session.store.status import State, Status
from tuiprof.system.files import open_regular, read_at_most, read_end

if TYPE_CHECKING:
    from tuiprof.session.store.folders import Session

#: Maximum time between the starts of a run's parts: hosts may wait in a queue, and clocks differ. A local launcher's
#: settings (address and port) can be the same in the next run.
MAX_START_GAP_NS: Final = 15 * 60 * 1_000_000_000
#: The same with a batch system's job id, which is unique.
_MAX_START_GAP_OF_JOB_NS: Final = 24 * 3600 * 1_000_000_000
#: Number of later parts to compare with each part.
_NEAREST: Final = 16
#: Number of bytes of a log to read for step ends, from its start and its end.
_START_BYTES: Final = 1 << 20
_END_BYTES: Final = 256 << 10
#: Minimum number of common steps to compare step ends.
_MIN_STEPS: Final = 8
#: Ranks that wait for one another end their steps together: maximum spread of the differences, as a share of a step.
COUPLED_SHARE: Final = 0.5
#: Smaller clock differences are not reported.
_MIN_REPORTED_NS: Final = 50_000_000
#: Maximum number of hosts to name whose state differs from the run's.
_MAX_NAMED: Final = 3
#: Options of launchers for the number of hosts: torchrun, accelerate, Lightning.
_NODES: Final = ("nnodes", "num-machines", "num-nodes")
CLOCK_RULE: Final = (
    "ranks that wait for one another end the same step at about the same time. The clock difference is the median "
    f"over at least {_MIN_STEPS} common steps; it is corrected if the differences vary by less than "
    f"{COUPLED_SHARE:.0%} of a step (half of the range of 80 % of them). If the hosts run ahead of their devices, it "
    "can be off by a step or two. Otherwise wall clocks are not corrected"
)


class Part(msgspec.Struct, frozen=True):
    """A session as part of a multi-host run, from the records of its ranks."""

    id: str  # name of the folder
    key: tuple[str, ...]  # the same for all parts of a run: number of ranks, launcher settings
    ranks: tuple[int, ...]  # recorded ranks, ascending
    writer: str  # name of the log of the lowest rank
    unix_ns: int  # start by the host's clock, Unix ns

    @property
    def world(self) -> int:
        """Number of ranks of the run."""
        return int(self.key[0])


class Launch(msgspec.Struct, frozen=True):
    """A session as part of a multi-host run, from its command."""

    id: str  # name of the folder
    command: tuple[str, ...]  # without options that differ between hosts
    nodes: int  # number of hosts
    per_node: int | None  # ranks per host; None = not in the command
    machine: tuple[str, str]  # boot id and name of the host
    unix_ns: int  # start by the host's clock, Unix ns
    waits: bool  # whether no rank has written anything yet


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """Offset of a host's wall clock from the first host's."""

    ahead_ns: int = 0  # negative = behind
    spread_ns: int | None = None  # half of the range of 80 % of the compared step ends; None = not measured
    steps: int = 0  # number of compared steps
    same: bool = False  # whether both parts were recorded on the same machine

    def __str__(self) -> str:
        """Return a phrase, for example ``1.20 s ahead ±3.00 ms``."""
        if self.same:
            return "same machine"
        if self.spread_ns is None:
            return "unknown: wall clocks are not corrected"
        where = "ahead" if self.ahead_ns >= 0 else "behind"
        return f"{format_ns(abs(self.ahead_ns))} {where} ±{format_ns(self.spread_ns)}"

    @property
    def is_significant(self) -> bool:
        """Whether the difference exceeds its uncertainty, and is large enough to report."""
        return self.spread_ns is not None and abs(self.ahead_ns) > max(_MIN_REPORTED_NS, 2 * self.spread_ns)


@dataclass(frozen=True, slots=True)
class Host:
    """Another host of a run, and the part that it recorded."""

    name: str  # unique in the run
    session: Session
    ranks: tuple[int, ...]  # recorded ranks; empty = none yet
    clock: ClockDifference  # to the first host
    shift_ns: int  # from its session time to the run's


@dataclass(frozen=True, slots=True)
class Log:
    """One log of a run."""

    path: Path
    writer: str  # unique in the run: ``rank0``; on hosts other than the first with the host's name, ``rank8@node2``
    clock: Clock  # converts its times to session time
    host: str = ""  # name of the host; empty = the run has only one
    folder: str = ""  # the host's folder relative to the session's; empty = the same folder


_Started = TypeVar("_Started", Part, Launch)


def part_of(session: Session) -> Part | None:
    """Return a session as part of a multi-host run; None = it is not, or it has all ranks."""
    heads = [(path.stem, first_head(path)) for path in session.log_files() if path.stem != "recorder"]
    found = [
        (head.rank, writer, head)
        for writer, head in heads
        if head is not None and head.rank is not None and (head.world or 0) > 1 and head.job
    ]
    if not found:
        return None
    # Only the processes of the first attempt: after a failure, torchrun assigns other ranks and another port.
    first = min((head for _, _, head in found), key=lambda head: head.unix_ns)
    same = sorted((rank, writer) for rank, writer, head in found if head.job == first.job)
    ranks = sorted({rank for rank, _ in same})
    if len(ranks) >= (first.world or 0):
        return None
    key = (str(first.world), *(f"{name}={value}" for name, value in sorted(first.job.items())))
    return Part(session.path.name, key, tuple(ranks), same[0][1], session.meta.unix_ns)


def launch_of(session: Session) -> Launch | None:
    """Return a session as part of a multi-host run, from its command; None = it does not launch one."""
    meta = session.meta
    flags = _flags(meta.argv)
    # ``--nnodes 1:4`` is elastic, with at most four.
    nodes = _number(next((flags[name] for name in _NODES if name in flags), "").rpartition(":")[2])
    if nodes is None or nodes < 2:
        return None
    own = {f"--{name}{sep}rank" for name in ("node", "machine") for sep in "-_"}
    command = tuple(
        word
        for before, word in zip(["", *meta.argv], meta.argv, strict=False)
        if before not in own and word.partition("=")[0] not in own
    )
    waits = all(path.stem == "recorder" for path in session.log_files())
    per_node = _number(flags.get("nproc-per-node", ""))
    return Launch(
        session.path.name, command, nodes, per_node, (meta.boot, meta.host), session.meta.unix_ns, waits
    )


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """Return the options in a command by name; ``--a_b=x`` is the same as ``--a-b x``."""
    found: dict[str, str] = {}
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            found.setdefault(name.replace("_", "-"), value if given else following)
    return found


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 7 else None


def join_waiting(groups: Iterable[Sequence[str]], launches: Iterable[Launch]) -> list[list[str]]:
    """Add folders without ranks to the groups of folders that belong to one run by their ranks.

    Such a folder belongs to the run of the same command on other hosts that started nearest to it and lacks hosts.
    """
    of = {it.id: it for it in launches}
    joined: dict[str, list[str]] = {}
    for group in [list(group) for group in groups] + [[id_] for id_ in of]:
        for id_ in group:
            joined.setdefault(id_, group)
    same: dict[tuple[str, ...], list[Launch]] = {}
    for it in of.values():
        same.setdefault(it.command, []).append(it)
    for starts in same.values():
        starts.sort(key=lambda it: (it.unix_ns, it.id))
        for it, later in _nearest_first(starts, MAX_START_GAP_NS):
            if not (it.waits or later.waits):
                continue
            one, other = joined[it.id], joined[later.id]
            machines = [of[id_].machine for id_ in (*one, *other) if id_ in of]
            if one is other or len(one) + len(other) > it.nodes or len(set(machines)) < len(machines):
                continue
            if any(not of[id_].waits for id_ in one) and any(not of[id_].waits for id_ in other):
                continue  # their ranks decide
            one.extend(other)
            joined.update((id_, one) for id_ in other)
    unique = {id(group): group for group in joined.values()}
    return list(unique.values())


def max_start_gap_ns(part: Part) -> int:
    """Return the maximum time between the starts of a run's parts."""
    is_job = any(word.startswith("SLURM_JOB_ID=") for word in part.key)
    return _MAX_START_GAP_OF_JOB_NS if is_job else MAX_START_GAP_NS


def group_parts(parts: Iterable[Part]) -> list[list[Part]]:
    """Return the parts of each run, sorted by rank.

    Parts belong together if they have the same key and different ranks. Among several that fit, those that started
    nearest to each other do, because the same command may be run repeatedly.
    """
    groups: dict[str, list[Part]] = {}
    ordered = sorted(parts, key=lambda part: (part.key, part.unix_ns, part.id))
    for _, same in groupby(ordered, key=lambda part: part.key):
        _pair(list(same), groups)
    unique = {id(group): group for group in groups.values()}
    return [sorted(group, key=lambda part: part.ranks) for group in unique.values()]


def _pair(parts: Sequence[Part], groups: dict[str, list[Part]]) -> None:
    """Join parts with the same key, which are sorted by start, nearest ones first."""
    for part in parts:
        groups[part.id] = [part]
    for part, later in _nearest_first(parts, max_start_gap_ns(parts[0])):
        one, other = groups[part.id], groups[later.id]
        if one is other or {rank for it in one for rank in it.ranks} & {r for it in other for r in it.ranks}:
            continue
        one.extend(other)
        groups.update((it.id, one) for it in other)


def _nearest_first(items: Sequence[_Started], max_gap_ns: int) -> list[tuple[_Started, _Started]]:
    """Return pairs of items that started within a time of each other, nearest first; items are sorted by start."""
    pairs = [
        (later.unix_ns - it.unix_ns, index, it, later)
        for index, it in enumerate(items)
        for later in items[index + 1 : index + 1 + _NEAREST]
        if later.unix_ns - it.unix_ns <= max_gap_ns
    ]
    return [(it, later) for _, _, it, later in sorted(pairs, key=lambda pair: pair[:2])]


def clock_difference(first: Session, writer: str, other: Session, other_writer: str) -> ClockDifference:
    """Return how far the wall clock of the other part's host is ahead of the one of the first part's host.

    ``writer`` and ``other_writer`` are the ranks whose step ends are compared.
    """
    if first.meta.boot and (first.meta.boot, first.meta.host) == (other.meta.boot, other.meta.host):
        return ClockDifference(same=True)
    logs = first.log / f"{writer}.jsonl", other.log / f"{other_writer}.jsonl"
    differences, step_ns = _step_ends_apart(*(_steps(decode(read_end(path, _END_BYTES))) for path in logs))
    if len(differences) < _MIN_STEPS:  # one of them ended long before the other
        differences, step_ns = _step_ends_apart(*(_first_steps(path) for path in logs))
    if len(differences) < _MIN_STEPS:
        return ClockDifference()
    from statistics import median, quantiles  # here: only runs of several hosts need it

    tenths = quantiles(differences, n=10)
    spread_ns = (tenths[-1] - tenths[0]) / 2
    if spread_ns > COUPLED_SHARE * step_ns:
        return ClockDifference()
    apart_ns = round(median(differences))
    ahead_ns = (
        apart_ns + (other.meta.unix_ns - other.meta.mono_ns) - (first.meta.unix_ns - first.meta.mono_ns)
    )
    return ClockDifference(ahead_ns, round(spread_ns), len(differences))


def shift_ns(first: Session, other: Session, clock: ClockDifference) -> int:
    """Return the ns to add to times in the other part's session to get times in the first part's."""
    if clock.same:
        return other.meta.mono_ns - first.meta.mono_ns
    return other.meta.unix_ns - first.meta.unix_ns - clock.ahead_ns


def _step_ends_apart(one: Sequence[Step], other: Sequence[Step]) -> tuple[list[int], float]:
    """Return the differences of the ends of common steps by their monotonic clocks, and the median step time, in ns."""
    from statistics import median

    ends = {step.n: step.at for step in one}
    found = [step.at - ends[step.n] for step in other if step.n in ends]
    return found, median(step.dur for step in other) if found else 0.0


def _first_steps(path: Path) -> list[Step]:
    try:
        with open_regular(path) as file:
            block = read_at_most(file, _START_BYTES)
    except OSError:
        return []
    records = decode(block[: block.rfind(b"\n") + 1])
    restarts = (index for index, record in enumerate(records) if index and isinstance(record, Head))
    return _steps(records[: next(restarts, None)])


def _steps(records: Iterable[Record]) -> list[Step]:
    return [record for record in records if isinstance(record, Step)]


def combined_status(states: Sequence[tuple[str, Status]]) -> Status:
    """Return the status of a run from those of its hosts (given by name).

    A run is running while any host is; otherwise it has the worst state. The detail names hosts in another state, and
    those with a detail.
    """
    order: tuple[State, ...] = ("running", "failed", "interrupted", "stopped", "finished")
    of_run = min((status for _, status in states), key=lambda status: order.index(status.state))
    others = [
        f"{name}: {status if status.state != of_run.state else status.detail}"
        for name, status in states
        if status.state != of_run.state or (status.detail and status.over)
    ]
    more = [f"and {len(others) - _MAX_NAMED} more"] * (len(others) > _MAX_NAMED)
    return msgspec.structs.replace(of_run, detail=", ".join([*others[:_MAX_NAMED], *more]))
