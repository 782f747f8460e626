"""The ranks of a job, made from one real trace: shifted, jittered, and with planted causes of which the size is known.

Every rank is the sample with time inserted: a rank that comes late to a collective has more time before it, and the
others have as much more inside it, so that all ranks leave every collective together, as on real devices. The
bytes of the sample are otherwise left as they are; a sample of one device is given
all-reduces first. Run as a program it writes a folder:
``python tests/fleet/made_job.py SAMPLE FOLDER --ranks 1000``.
"""

from __future__ import annotations

import argparse
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from isal import igzip

from tuiprof.fleet.gather import File

_TIMES = re.compile(rb'"ts":\s*([\d.]+)(?:,\s*"dur":\s*([\d.]+))?')
_NCCL = re.compile(r"^nccl.*(AllReduce|Broadcast|ReduceScatter|AllGather)", re.IGNORECASE)
_RANK = re.compile(rb'("distributedInfo":\s*\{[^{}]*?"rank":\s*)\d+(,\s*"world_size":\s*)\d+')
#: The beginning of the arguments of the collectives that are added to a sample.
_COLLECTIVE_ARGS = re.compile(rb'"name":"nccl[^{]*?"args":\{')
_EVENTS = re.compile(rb'"traceEvents":\s*\[')
#: Before a collective begins on the device: it is launched a little later than this.
_LAUNCH_NS = 8_000
#: All-reduces of a step that are added to a sample without any, how long one takes, and the gap made for it, µs.
_ADDED, _TAKES_US, _GAP_US = 2, 300, 320


@dataclass(frozen=True)
class Plan:
    """What is planted."""

    ranks: int = 24  # number of ranks
    per_host: int = 8  # ranks of a host
    jitter_ns: int = 10_000  # mean of the delays that every rank has before every collective
    #: A rank that comes late to one collective of every step, and by how much.
    straggler: tuple[int, int] | None = None
    throttled: tuple[int, float] | None = None  # a host whose kernels take longer, and by which share
    synced: tuple[int, int] | None = None  # a rank with one more sync a step, and how long that takes
    clocks_ns: int = 50_000_000  # clocks of hosts are apart by up to this
    #: Ranks of a tensor-parallel group; 0 = all ranks run each collective together. The first collective of each step
    #: is then that of tensor parallelism, the others are those of data parallelism.
    tensor: int = 0
    #: Ranks that come late to a collective of every step: rank -> its position in the step, and by how much.
    late: dict[int, tuple[int, int]] = field(default_factory=dict)
    seed: int = 18

    def groups(self) -> dict[str, list[tuple[int, ...]]]:
        """Return the ranks of each group, by its kind."""
        if not self.tensor:
            return {"default_pg": [tuple(range(self.ranks))]}
        starts = range(0, self.ranks, self.tensor)
        return {
            "TENSOR_MODEL_PARALLEL_GROUP": [tuple(range(one, one + self.tensor)) for one in starts],
            "DATA_PARALLEL_GROUP": [tuple(range(one, self.ranks, self.tensor)) for one in range(self.tensor)],
        }


@dataclass
class Sample:
    """A real trace, cut at its times."""

    pieces: list[bytes]
    start: np.ndarray  # ns
    dur: np.ndarray  # ns; -1 = the event has none
    collectives: np.ndarray  # indices of events, in order of start
    step_of: np.ndarray  # of collectives
    kernels: np.ndarray  # indices of other kernels
    main_thread: tuple[Any, Any] = (0, 0)
    numbers: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Sample:
        text = igzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        whole = msgspec.json.decode(text)
        if not any(_NCCL.search(str(event.get("name"))) for event in whole["traceEvents"]):
            text = _with_collectives(whole)
        events = msgspec.json.decode(text)["traceEvents"]
        timed = [event for event in events if "ts" in event]
        pieces: list[bytes] = []
        start, dur, last = [], [], 0
        for match in _TIMES.finditer(text):
            pieces.append(text[last : match.start(1)])
            start.append(_ns(match[1]))
            last = match.end(1)
            if match[2] is not None:
                pieces.append(text[last : match.start(2)])
                last = match.end(2)
            dur.append(-1 if match[2] is None else _ns(match[2]))
        pieces.append(text[last:])
        assert len(timed) == len(start), "an argument of an event is called ts"
        starts, durs = np.array(start), np.array(dur)
        kernel = np.array([event.get("cat") == "kernel" for event in timed])
        nccl = np.array([bool(_NCCL.search(str(event.get("name")))) for event in timed])
        steps = [
            (event["ts"], event["ts"] + event["dur"], int(event["name"].partition("#")[2]), event)
            for event in timed
            if str(event.get("name")).startswith("ProfilerStep#") and event.get("cat") == "user_annotation"
        ]
        steps.sort(key=lambda step: step[0])
        launches = {
            event["args"]["correlation"]: event["ts"]
            for event in timed
            if event.get("cat") == "cuda_runtime" and "correlation" in event.get("args", {})
        }
        found = np.flatnonzero(kernel & nccl)
        found = found[np.argsort(starts[found])]
        launched = [launches.get(timed[i]["args"]["correlation"], -1) for i in found.tolist()]
        step_of = np.array(
            [next((n for n, (low, high, *_) in enumerate(steps) if low <= at < high), -1) for at in launched]
        )
        found, step_of = found[step_of >= 0], step_of[step_of >= 0]
        thread = (steps[0][3]["pid"], steps[0][3]["tid"])
        numbers = [number for _, _, number, _ in steps]
        return cls(pieces, starts, durs, found, step_of, np.flatnonzero(kernel & ~nccl), thread, numbers)

    @property
    def step_count(self) -> int:
        return len(self.numbers)


def _with_collectives(trace: dict[str, Any]) -> bytes:
    """Give a trace of one device all-reduces: in gaps made before a kernel at which no other one is running."""
    events = trace["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: float(e["ts"]))
    calls = {
        e["args"]["correlation"]: e
        for e in events
        if "correlation" in e.get("args", {}) and e["cat"] == "cuda_runtime"
    }
    steps = [
        e for e in events if str(e.get("name")).startswith("ProfilerStep#") and e["cat"] == "user_annotation"
    ]
    busy, free = 0.0, []
    for kernel in kernels:
        if float(kernel["ts"]) >= busy:
            free.append(kernel)
        busy = max(busy, float(kernel["ts"]) + float(kernel["dur"]))
    gaps: list[tuple[float, dict[str, Any]]] = []
    for step in steps:
        low, high = float(step["ts"]), float(step["ts"]) + float(step["dur"])
        own = [k for k in free if (c := calls.get(k["args"]["correlation"])) and low <= float(c["ts"]) < high]
        gaps += [(float(own[len(own) * (n + 1) // _ADDED - 1]["ts"]), step) for n in range(_ADDED)]
    gaps.sort(key=lambda gap: gap[0])
    points = [at for at, _ in gaps]
    for event in events:
        if "ts" not in event:
            continue
        at = float(event["ts"])
        shift = _GAP_US * bisect_right(points, at)
        if event.get("dur"):
            event["dur"] = (
                float(event["dur"]) + _GAP_US * bisect_left(points, at + float(event["dur"])) - shift
            )
        event["ts"] = at + shift
    for number, (at, step) in enumerate(gaps):
        begin = at + _GAP_US * number + 10
        args = {"correlation": 800_000_000 + number, "device": 0, "stream": 99}
        device = kernels[0]["pid"]
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        events += [
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": device,
                "tid": 99,
                "ts": begin,
                "dur": float(_TAKES_US),
                "args": args,
            },
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernelExC",
                "pid": step["pid"],
                "tid": step["tid"],
                "ts": begin - 5,
                "dur": 2.0,
                "args": args,
            },
            {  # the host waits for it, so that a rank that waits for others does not seem to be busy
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaStreamSynchronize",
                "pid": step["pid"],
                "tid": step["tid"],
                "ts": begin + 1,
                "dur": _TAKES_US + 4.0,
                "args": {"correlation": 850_000_000 + number, "stream": 99},
            },
        ]
    return msgspec.json.encode(trace)


def _ns(text: bytes) -> int:
    whole, _, part = text.partition(b".")
    return int(whole) * 1000 + int((part + b"000")[:3])


def _us(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)


class Job:
    """The ranks of one job."""

    def __init__(self, sample: Sample, plan: Plan) -> None:
        self.sample, self.plan = sample, plan
        random = np.random.default_rng(plan.seed)
        at = sample.start[sample.collectives]
        shape = (plan.ranks, len(at))
        self.jitter = random.exponential(max(plan.jitter_ns, 1), shape).astype(np.int64)
        self.host = np.arange(plan.ranks) // plan.per_host
        self.clock = random.integers(-plan.clocks_ns, plan.clocks_ns + 1, int(self.host.max()) + 1)
        #: Kernels that run between a collective and the one before it, and their length.
        self._before = np.searchsorted(at, sample.start[sample.kernels], side="right")
        self._busy = np.bincount(
            self._before, weights=sample.dur[sample.kernels], minlength=len(at) + 1
        ).astype(np.int64)
        self.late = self.jitter.copy()
        first = np.array([np.flatnonzero(sample.step_of == n)[0] for n in np.unique(sample.step_of)])
        last = np.array([np.flatnonzero(sample.step_of == n)[-1] for n in np.unique(sample.step_of)])
        self._first = first
        if plan.straggler is not None:
            rank, ns = plan.straggler
            self.late[rank, last] += ns
        if plan.synced is not None:
            rank, ns = plan.synced
            self.late[rank, first] += ns
        self.slower = np.zeros(len(at), dtype=np.int64)
        if plan.throttled is not None:
            host, share = plan.throttled
            self.slower = (self._busy[: len(at)] * share).astype(np.int64)
            self.late[self.host == host] += self.slower
        for rank, (position, ns) in plan.late.items():
            self.late[rank, first + position] += ns
        groups = plan.groups()
        #: Kind of group of each collective.
        self.kind = [list(groups)[0 if n in first else -1] for n in range(len(at))]
        #: Where each rank's time stands beyond the sample's when a collective ends, and what it waits in it.
        behind = np.zeros(plan.ranks, dtype=np.int64)
        self.waits = np.zeros(shape, dtype=np.int64)
        for n, kind in enumerate(self.kind):
            behind += self.late[:, n]
            for members in groups[kind]:
                rows = list(members)
                self.waits[rows, n] = behind[rows].max() - behind[rows]
                behind[rows] = behind[rows].max()

    def waits_per_step(self) -> np.ndarray:
        """What each rank waits for the others, ns a step, beyond what the sample's own collectives take."""
        return self.waits.sum(axis=1) / self.sample.step_count

    def rank(self, rank: int) -> bytes:
        """Return the trace of a rank as JSON."""
        sample, plan = self.sample, self.plan
        start, dur = sample.start, sample.dur
        at, length = start[sample.collectives], dur[sample.collectives]
        throttled = plan.throttled is not None and self.host[rank] == plan.throttled[0]
        before = self.late[rank] - (self.slower if throttled else 0)
        points = [at - _LAUNCH_NS, at + length // 2]
        amounts = [before, self.waits[rank]]
        if throttled:
            assert plan.throttled is not None
            slow = self._before < len(at)
            kernels = sample.kernels[slow]
            points.append(start[kernels] + dur[kernels] // 2)
            amounts.append((dur[kernels] * plan.throttled[1]).astype(np.int64))
        point, amount = np.concatenate(points), np.concatenate(amounts)
        order = np.argsort(point, kind="stable")
        point, total = point[order], np.concatenate(([0], np.cumsum(amount[order])))
        new_start = start + total[np.searchsorted(point, start, side="right")]
        end = start + np.maximum(dur, 0)
        new_end = np.where(dur > 0, end + total[np.searchsorted(point, end, side="left")], new_start)
        shift = int(self.clock[self.host[rank]])
        out: list[bytes] = []
        pieces = iter(sample.pieces)
        for low, high, has in zip(
            (new_start + shift).tolist(), (new_end + shift).tolist(), (dur >= 0).tolist(), strict=True
        ):
            out += (next(pieces), _us(low))
            if has:
                out += (next(pieces), _us(max(high - low, 0)))
        out.append(next(pieces))
        text = b"".join(out)
        if plan.synced is not None and plan.synced[0] == rank:
            begin = at[self._first] - _LAUNCH_NS
            gaps = begin + total[np.searchsorted(point, begin, side="left")] + shift
            text = self._with_syncs(text, gaps.tolist(), plan.synced[1])
        text = self._grouped(text, rank)
        said = b'"host_name": "node%02d", ' % self.host[rank]
        if _RANK.search(text):
            text = _RANK.sub(rb"\g<1>%d\g<2>%d" % (rank, plan.ranks), text, count=1)
        else:
            said += b'"distributedInfo": {"rank": %d, "world_size": %d}, ' % (rank, plan.ranks)
        if b'"baseTimeNanoseconds"' not in text:
            said += b'"baseTimeNanoseconds": 1700000000000000000, '
        return text.replace(b"{", b"{" + said, 1)

    def _grouped(self, text: bytes, rank: int) -> bytes:
        """Write the groups as PyTorch does: into the head of the trace, and beside each collective."""
        plan = self.plan
        if not plan.tensor:
            return text
        numbered = [(kind, ranks) for kind, groups in plan.groups().items() for ranks in groups]
        own = {
            kind: (str(number), kind, ranks)
            for number, (kind, ranks) in enumerate(numbered, 1)
            if rank in ranks
        }
        kinds = iter(self.kind)

        def named(match: re.Match[bytes]) -> bytes:
            name, description, ranks = own[next(kinds)]
            return (
                match[0]
                + msgspec.json.encode(
                    {
                        "Process Group Name": name,
                        "Process Group Description": description,
                        "Process Group Ranks": str(list(ranks)),
                        "Group size": len(ranks),
                    }
                )[1:-1]
                + b","
            )

        text = _COLLECTIVE_ARGS.sub(named, text)
        assert next(kinds, None) is None, "a collective without its arguments"
        config = [
            {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": list(ranks)}
            for name, description, ranks in own.values()
        ]
        about = {"rank": rank, "world_size": plan.ranks, "pg_count": len(config), "pg_config": config}
        return text.replace(b"{", b'{"distributedInfo":' + msgspec.json.encode(about) + b",", 1)

    def _with_syncs(self, text: bytes, at: list[int], ns: int) -> bytes:
        pid, tid = self.sample.main_thread
        events = b"".join(
            b'{"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": %d, "tid": %d, '
            b'"ts": %s, "dur": %s, "args": {"cbid": 131, "correlation": %d}},\n'
            % (pid, tid, _us(gap + 1000), _us(ns - 2000), 900_000_000 + n)
            for n, gap in enumerate(at)
        )
        return _EVENTS.sub(lambda begin: begin[0] + b"\n" + events, text, count=1)

    def write(self, folder: Path) -> None:
        """Write one file a rank."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.plan.ranks):
            path = folder / f"rank{rank:05d}.pt.trace.json.gz"
            with igzip.open(path, "wb", compresslevel=1) as file:
                file.write(self.rank(rank))


#: What is planted in the job of the tests.
STRAGGLER, STRAGGLER_NS = 1, 600_000
THROTTLED, THROTTLED_SHARE = 1, 0.5
SYNCED, SYNCED_NS = 10, 300_000


def files_in(folder: Path) -> list[File]:
    paths = sorted(folder.glob("*.json*"))
    return [File(i, str(path), i, path.stat().st_size) for i, path in enumerate(paths)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the ranks of a job from one real trace.")
    parser.add_argument("sample", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=1000)
    options = parser.parse_args()
    ranks = options.ranks
    plan = Plan(
        ranks,
        straggler=(ranks // 8, 6_000_000),
        throttled=(ranks // 8 // 2, 0.25),
        synced=(ranks - 2, 3_000_000),
    )
    Job(Sample.read(options.sample), plan).write(options.folder)


if __name__ == "__main__":
    main()
