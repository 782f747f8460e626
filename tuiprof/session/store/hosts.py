"""Runs of several hosts: which session folders belong to one run, and how far the clocks of its hosts differ.

The recorder of every host writes its own folder. The launcher's settings (``Head.job``), their ranks and the start
times say which folders are parts of one run. Until the processes of a host have written anything, its command does:
one that launches ranks on several hosts (``torchrun --nnodes 2``), the same on each. The folders lie side by side: on
a file system that the hosts share, or copied here by ``tuiprof collect``.
"""

from __future__ import annotations

import statistics
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

#: Parts of one run start within this time; the host that comes last may have waited in a queue, and clocks differ.
#: The settings of a local launcher (an address and a port) are the same in its next run.
TOGETHER_NS: Final = 15 * 60 * 1_000_000_000
#: A number of a batch system's job is used once, so that clocks may differ by much more.
SAME_JOB_NS: Final = 24 * 3600 * 1_000_000_000
#: Number of later parts to compare with each part.
_NEAREST: Final = 16
#: How much of a log is read for the ends of steps, from its beginning and from its end.
_BEGINNING_BYTES: Final = 1 << 20
_END_BYTES: Final = 256 << 10
#: Minimum number of common steps to compare step ends.
_FEWEST_STEPS: Final = 8
#: Ranks that wait for one another end their steps together: maximum scatter of the differences, as a share of a step.
COUPLED_SHARE: Final = 0.5
#: Differences of clocks below this are not worth a word.
WORTH_SAYING_NS: Final = 50_000_000
#: Maximum number of named hosts whose state differs from the run's.
_MOST_NAMED: Final = 3
#: Options of launchers for the number of hosts: torchrun, accelerate, Lightning.
_NODES: Final = ("nnodes", "num-machines", "num-nodes")
CLOCK_RULE: Final = (
    "ranks that wait for one another end the same step at about the same time. The clock difference is the median "
    f"over at least {_FEWEST_STEPS} common steps; it is corrected if the differences vary by less than "
    f"{COUPLED_SHARE:.0%} of a step (half of the range of 80 % of them). If the hosts run ahead of their devices, it "
    "can be off by a step or two. Otherwise wall clocks are not corrected"
)


class Part(msgspec.Struct, frozen=True):
    """The distributed run of a session folder, as recorded there."""

    id: str  # name of the folder
    key: tuple[str, ...]  # what all parts of a run have in common
    ranks: tuple[int, ...]  # ranks that were recorded there, ascending
    writer: str  # name of the log of the lowest one
    unix_ns: int  # start of the session by its host's clock, Unix ns

    @property
    def world(self) -> int:
        """Number of ranks of the run."""
        return int(self.key[0])


class Launch(msgspec.Struct, frozen=True):
    """The multi-host run of a session, from its command."""

    id: str  # name of the folder
    command: tuple[str, ...]  # the command, without what differs from host to host
    nodes: int  # number of hosts
    per_node: int | None  # ranks that are launched on each; None = the command does not give a number
    machine: tuple[str, str]  # boot identity and name of the host
    unix_ns: int  # start of the session by its host's clock, Unix ns
    waits: bool  # whether no rank has written anything yet


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """Offset of a host's wall clock from that of the first host."""

    ahead_ns: int = 0  # how far it is ahead; negative = behind
    #: Half of the range in which 80 % of the compared step ends lie; None = no steps could be compared
    spread_ns: int | None = None
    steps: int = 0  # number of steps that were compared
    same: bool = False  # both parts were recorded on one machine, by one clock

    def __str__(self) -> str:
        """Return one phrase."""
        if self.same:
            return "same machine"
        if self.spread_ns is None:
            return "unknown: wall clocks are not corrected"
        where = "ahead" if self.ahead_ns >= 0 else "behind"
        return f"{format_ns(abs(self.ahead_ns))} {where} ±{format_ns(self.spread_ns)}"

    @property
    def worth_saying(self) -> bool:
        """Whether the clocks differ by more than could be chance, and by enough to matter to a reader of logs."""
        return self.spread_ns is not None and abs(self.ahead_ns) > max(WORTH_SAYING_NS, 2 * self.spread_ns)


@dataclass(frozen=True, slots=True)
class Host:
    """The part of a run that one host recorded."""

    name: str  # its name, unique in the run
    session: Session  # its session folder
    ranks: tuple[int, ...]  # the ranks that were found there; empty = they have made no step yet
    clock: ClockDifference  # how its clock differs from the first host's
    shift_ns: int  # what to add to its session time to get that of the run


@dataclass(frozen=True, slots=True)
class Log:
    """One log of a run."""

    path: Path
    writer: str  # name of its writer; of another than the first host with the host's name: ``rank8@node2``
    clock: Clock  # makes session time of its times
    host: str = ""  # name of the host; empty = the run has one
    folder: str = ""  # the host's folder as seen from the session's; empty = it is the session's own


_Begun = TypeVar("_Begun", Part, Launch)


def part_of(session: Session) -> Part | None:
    """Return what run a session is a part of; None = of none, or it holds all ranks of it."""
    heads = [(path.stem, first_head(path)) for path in session.log_files() if path.stem != "recorder"]
    found = [
        (head.rank, writer, head)
        for writer, head in heads
        if head is not None and head.rank is not None and (head.world or 0) > 1 and head.job
    ]
    if not found:
        return None
    first = min(found, key=lambda it: it[2].unix_ns)[
        2
    ]  # torchrun gives other ranks and another port after a failure
    same = sorted(it for it in ((rank, writer) for rank, writer, head in found if head.job == first.job))
    ranks = sorted({rank for rank, _ in same})
    if len(ranks) >= (first.world or 0):
        return None
    key = (str(first.world), *(f"{name}={value}" for name, value in sorted(first.job.items())))
    return Part(session.path.name, key, tuple(ranks), same[0][1], session.meta.unix_ns)


def launch_of(session: Session) -> Launch | None:
    """Return what the command of a session says of a run of several hosts; None = it does not launch one."""
    meta = session.meta
    flags = _flags(meta.argv)
    # ``--nnodes 1:4`` is elastic: as many as four.
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
    """Return options and their values, ``--a-b x`` and ``--a_b=x`` alike."""
    found: dict[str, str] = {}
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            found.setdefault(name.replace("_", "-"), value if given else following)
    return found


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 7 else None


def with_waiting(groups: Iterable[Sequence[str]], launches: Iterable[Launch]) -> list[list[str]]:
    """Return which folders belong together, those that have no ranks yet among them.

    A folder without ranks belongs to the run of the same command that began nearest to it, on other hosts, as long as
    hosts of that are missing.

    Args:
        groups: Folders that belong together by their ranks.
        launches: What the commands of these and of other folders say.
    """
    of = {it.id: it for it in launches}
    joined: dict[str, list[str]] = {}
    for group in [list(group) for group in groups] + [[id_] for id_ in of]:
        for id_ in group:
            joined.setdefault(id_, group)
    same: dict[tuple[str, ...], list[Launch]] = {}
    for it in of.values():
        same.setdefault(it.command, []).append(it)
    for alike in same.values():
        alike.sort(key=lambda it: (it.unix_ns, it.id))
        for it, later in _nearest_first(alike, TOGETHER_NS):
            if not (it.waits or later.waits):
                continue
            one, other = joined[it.id], joined[later.id]
            machines = [of[id_].machine for id_ in (*one, *other) if id_ in of]
            if one is other or len(one) + len(other) > it.nodes or len(set(machines)) < len(machines):
                continue
            if any(not of[id_].waits for id_ in one) and any(not of[id_].waits for id_ in other):
                continue  # already decided by the settings of their ranks
            one.extend(other)
            joined.update((id_, one) for id_ in other)
    unique = {id(group): group for group in joined.values()}
    return list(unique.values())


def reach_ns(part: Part) -> int:
    """Return how far apart the starts of the parts of a run may lie."""
    return SAME_JOB_NS if any(word.startswith("SLURM_JOB_ID=") for word in part.key) else TOGETHER_NS


def runs(parts: Iterable[Part]) -> list[list[Part]]:
    """Return which parts belong together, each group by rank.

    Parts with the same key belong together where their ranks differ; of several that fit, those that began nearest to
    one another, as the same command may be run again and again.
    """
    groups: dict[str, list[Part]] = {}
    ordered = sorted(parts, key=lambda part: (part.key, part.unix_ns, part.id))
    for _, same in groupby(ordered, key=lambda part: part.key):
        _pair(list(same), groups)
    unique = {id(group): group for group in groups.values()}
    return [sorted(group, key=lambda part: part.ranks) for group in unique.values()]


def _pair(parts: Sequence[Part], groups: dict[str, list[Part]]) -> None:
    """Join parts with the same key, given by start time, the nearest ones first."""
    for part in parts:
        groups[part.id] = [part]
    for part, later in _nearest_first(parts, reach_ns(parts[0])):  # the key says how far apart they may lie
        one, other = groups[part.id], groups[later.id]
        if one is other or {rank for it in one for rank in it.ranks} & {r for it in other for r in it.ranks}:
            continue
        one.extend(other)
        groups.update((it.id, one) for it in other)


def _nearest_first(items: Sequence[_Begun], reach_ns: int) -> list[tuple[_Begun, _Begun]]:
    """Return pairs of items, given by start time, that began within a time of one another; the nearest first."""
    pairs = [
        (later.unix_ns - it.unix_ns, index, it, later)
        for index, it in enumerate(items)
        for later in items[index + 1 : index + 1 + _NEAREST]
        if later.unix_ns - it.unix_ns <= reach_ns
    ]
    return [(it, later) for _, _, it, later in sorted(pairs, key=lambda pair: pair[:2])]


def clock_difference(first: Session, writer: str, other: Session, other_writer: str) -> ClockDifference:
    """Return how the wall clock of one part's host differs from that of the first part's.

    Args:
        first: The first part.
        writer: A rank of it that makes steps.
        other: The other part.
        other_writer: A rank of that.
    """
    if first.meta.boot and (first.meta.boot, first.meta.host) == (other.meta.boot, other.meta.host):
        return ClockDifference(same=True)
    logs = first.log / f"{writer}.jsonl", other.log / f"{other_writer}.jsonl"
    differences, step_ns = _step_ends_apart(*(_steps(decode(read_end(path, _END_BYTES))) for path in logs))
    if len(differences) < _FEWEST_STEPS:  # one of them ended long before the other
        differences, step_ns = _step_ends_apart(*(_beginning(path) for path in logs))
    if len(differences) < _FEWEST_STEPS:
        return ClockDifference()
    tenths = statistics.quantiles(differences, n=10)
    spread_ns = (tenths[-1] - tenths[0]) / 2
    if spread_ns > COUPLED_SHARE * step_ns:
        return ClockDifference()
    apart_ns = round(statistics.median(differences))
    ahead_ns = (
        apart_ns + (other.meta.unix_ns - other.meta.mono_ns) - (first.meta.unix_ns - first.meta.mono_ns)
    )
    return ClockDifference(ahead_ns, round(spread_ns), len(differences))


def shift_ns(first: Session, other: Session, clock: ClockDifference) -> int:
    """Return what to add to the session time of a part to get that of the first part."""
    if clock.same:
        return other.meta.mono_ns - first.meta.mono_ns
    return other.meta.unix_ns - first.meta.unix_ns - clock.ahead_ns


def _step_ends_apart(one: Sequence[Step], other: Sequence[Step]) -> tuple[list[int], float]:
    """Return how far apart the same steps ended by their writers' monotonic clocks, and the median step time, ns."""
    ends = {step.n: step.at for step in one}
    found = [step.at - ends[step.n] for step in other if step.n in ends]
    return found, statistics.median(step.dur for step in other) if found else 0.0


def _beginning(path: Path) -> list[Step]:
    try:
        with open_regular(path) as file:
            block = read_at_most(file, _BEGINNING_BYTES)
    except OSError:
        return []
    records = decode(block[: block.rfind(b"\n") + 1])
    again = (index for index, record in enumerate(records) if index and isinstance(record, Head))
    return _steps(records[: next(again, None)])


def _steps(records: Iterable[Record]) -> list[Step]:
    return [record for record in records if isinstance(record, Step)]


def combined(states: Sequence[tuple[str, Status]]) -> Status:
    """Return the state of a run from that of its hosts.

    It runs while one of them does; else the worst counts. Hosts in another state are named, and those of which there is
    more to say.
    """
    order: tuple[State, ...] = ("running", "failed", "interrupted", "stopped", "finished")
    of_run = min((status for _, status in states), key=lambda status: order.index(status.state))
    others = [
        f"{name}: {status if status.state != of_run.state else status.detail}"
        for name, status in states
        if status.state != of_run.state or (status.detail and status.over)
    ]
    shown = [
        *others[:_MOST_NAMED],
        *([f"and {len(others) - _MOST_NAMED} more"] * (len(others) > _MOST_NAMED)),
    ]
    return msgspec.structs.replace(of_run, detail=", ".join(shown))
