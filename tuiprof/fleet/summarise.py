"""The task of a worker: read one trace, summarize it, discard it."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tuiprof.fleet.summary import (
    FACTS,
    MOST_COLLECTIVES,
    MOST_FINDINGS,
    MOST_KERNELS,
    MOST_STEPS,
    TABLES,
    Summary,
    table,
)
from tuiprof.model import Report, Trace, Window

if TYPE_CHECKING:
    from tuiprof.analyses.shared.collectives import Group, RankSteps

#: Remaining share of a collective without waiting; at 0 it would not be launched.
_AT_ONCE: Final = 1e-3
#: Characters that are kept of a name.
_TEXT: Final = 120
#: Maximum length of an advice sentence, more than any built-in rule writes.
_SENTENCE: Final = 600
#: File names of TensorBoard's handler: host, process, time.
_WORKER: Final = re.compile(r"^(?P<host>.+?)_\d+\.\d{9,}\.pt\.trace\.json")


def summarise(trace: Trace, file: int, rank: int, size: int) -> Summary:
    """Return the columns that are kept of one rank.

    Args:
        trace: Its trace.
        file: Number of the file in the list that is gathered.
        rank: Its rank.
        size: Bytes of the file on disk.
    """
    from tuiprof.analyses.shared.collectives import of_rank

    steps = of_rank(trace, rank)
    names: dict[int, str] = {}
    stride = _stride(len(steps.numbers), MOST_STEPS)
    collectives, each, thinned = _collectives(steps, stride, names)
    kernels = _kernels(trace, names)
    facts = _facts(trace)
    path = trace.info.path
    row = {
        "file": file,
        "path": str(path or ""),
        "rank": rank,
        "host": trace.info.host or _host_in_name(path.name if path is not None else ""),
        "device": trace.info.devices[0].name if trace.info.devices else "",
        "bytes": size,
        "origin_unix_ns": trace.info.origin_unix_ns,
        "on_device": steps.on_device,
        "step_ns": float(np.median(steps.period)) if len(steps.period) else None,
        "own_share": _own_share(trace) if steps.on_device else None,
        "steps": len(steps.numbers),
        "stride": each,
        "thinned": thinned,
        "problem": "",
        "remedy": "",
        **facts,
    }
    found = {
        "files": table("files", [row]),
        "steps": _steps(trace, steps, stride),
        "collectives": collectives,
        "kernels": kernels,
        "findings": _findings(trace),
        "names": table("names", {"name": list(names), "text": [text[:_TEXT] for text in names.values()]}),
    }
    own = pl.lit(file, pl.UInt32).alias("file")
    return Summary(
        **{
            name: found[name] if name in ("names", "files") else found[name].with_columns(own)
            for name in TABLES
        }
    )


def _host_in_name(name: str) -> str:
    match = _WORKER.match(name)
    return match["host"] if match else ""


def _key(name: str, names: dict[int, str]) -> int:
    """Return the key of a name, the same on every rank: 64 bits of a digest, unlikely to collide."""
    key = _digest(name)
    names[key] = name
    return key


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _named(group: Group, names: dict[int, str]) -> int:
    """Return the key of a process group, the same on every rank."""
    names[group.key] = group.label
    return group.key


def _stride(count: int, most: int) -> int:
    """Return the smallest power of two that divides a number to at most a limit.

    The step numbers kept by ranks of different length are then subsets of one another.
    """
    stride = 1
    while -(-count // stride) > most:
        stride *= 2
    return stride


def _steps(trace: Trace, steps: RankSteps, stride: int) -> pl.DataFrame:
    from tuiprof.analyses.shared.scope import Scope
    from tuiprof.analyses.shared.waits import COUNTED, find

    inside = Scope.of(trace, Window()).steps
    waits = find(trace, Window())
    syncs = _count(trace.steps.step_of[waits.last[waits.apart == COUNTED]], len(trace.steps))[inside]
    launches = _count(trace.steps.step_of[trace.links.launches], len(trace.steps))[inside]
    kept = np.flatnonzero(steps.numbers % stride == 0)
    return table(
        "steps",
        {
            "step": steps.numbers[kept],
            "start": trace.steps.starts[inside][kept],
            "period_ns": steps.period[kept],
            "collective_ns": steps.collective[kept],
            "syncs": syncs[kept],
            "launches": launches[kept],
        },
    )


def _count(steps: Any, length: int) -> Any:
    return np.bincount(steps[steps >= 0], minlength=length)


def _collectives(steps: RankSteps, stride: int, names: dict[int, str]) -> tuple[pl.DataFrame, int, int]:
    """Return the collectives of every n-th step, n, and the thinning factor within a step."""
    from tuiprof.analyses.shared.collectives import gaps

    group = steps.group
    order = np.lexsort((group, steps.step))
    step, own_group = steps.step[order], group[order]
    changes = np.flatnonzero(np.diff(step, prepend=-1) | np.diff(own_group, prepend=-1))
    counts = np.diff(changes, append=len(step))
    place = np.arange(len(step)) - np.repeat(changes, counts)
    digests = [
        _digest("\n".join(steps.name[i] for i in order[low : low + count].tolist()))
        for low, count in zip(changes.tolist(), counts.tolist(), strict=True)
    ]
    sequence = np.repeat(np.array(digests, dtype=np.uint64), counts)
    keys = np.array([_named(one, names) for one in steps.groups], dtype=np.uint64)
    number = steps.numbers[step] if len(step) else step
    while (kept := number % stride == 0).sum() > MOST_COLLECTIVES and len(np.unique(number[kept])) > 2:
        stride *= 2
    if not kept.any() and len(number):
        kept = number == number[0]
    thinned = _stride(int(kept.sum()), MOST_COLLECTIVES)
    kept &= place % thinned == 0
    chosen = order[kept]
    return (
        table(
            "collectives",
            {
                "step": steps.numbers[steps.step[chosen]] if len(chosen) else chosen,
                "group": keys[group[chosen]],
                "place": place[kept],
                "sequence": sequence[kept],
                "name": pl.Series([_key(steps.name[i], names) for i in chosen.tolist()], dtype=pl.UInt64),
                "start": steps.starts[chosen],
                "dur": (steps.ends - steps.starts)[chosen],
                "gap": gaps(steps.starts, steps.ends)[chosen],
            },
        ),
        stride,
        thinned,
    )


def _kernels(trace: Trace, names: dict[int, str]) -> pl.DataFrame:
    """Return the longest kernels by name, without collectives, whose length depends on other ranks."""
    from tuiprof.analyses.shared.kernel_names import category

    rows = trace.device_work[trace.is_category("kernel", rows=trace.device_work)]
    found = (
        pl.DataFrame(
            {"code": trace.name_codes[rows].astype(np.int64), "dur": trace.ends[rows] - trace.starts[rows]}
        )
        .group_by("code")
        .agg(
            pl.len().alias("count"),
            pl.col("dur").sum().alias("total_ns"),
            pl.col("dur").median().alias("median_ns"),
        )
        .sort(["total_ns", "code"], descending=[True, False])
    )
    named = [trace.names[code] for code in found["code"].to_list()]
    own = pl.Series([category(name) != "collective" for name in named], dtype=pl.Boolean)
    found = found.filter(own).head(MOST_KERNELS)
    keys = [_key(trace.names[code], names) for code in found["code"].to_list()]
    return table("kernels", found.with_columns(pl.Series("name", keys, dtype=pl.UInt64)))


def _facts(trace: Trace) -> dict[str, float | None]:
    from tuiprof.analyses import run

    found: dict[str, float | None] = {}
    for column, (analysis, fact) in FACTS.items():
        answer = run(analysis, trace)
        value = answer.fact(fact) if isinstance(answer, Report) else None
        found[column] = float(value) if isinstance(value, (int, float)) else None
    return found


def _own_share(trace: Trace) -> float | None:
    """Return the share of its step that a rank would take if no collective waited for others."""
    from tuiprof.analyses.shared.collectives import rows_of
    from tuiprof.analyses.shared.replay import replayed
    from tuiprof.whatif import Edit

    step, rows = replayed(trace), rows_of(trace)
    if isinstance(step, str) or not step.step_ns or not len(rows):
        return None
    no_waits = Edit(work=rows, keep=np.full(len(rows), _AT_ONCE))
    return 1 - step.likely_ns(no_waits) / step.step_ns


def _findings(trace: Trace) -> pl.DataFrame:
    from tuiprof.advice import priorities
    from tuiprof.analyses.shared.replay import replayed

    step = replayed(trace)
    step_ns = None if isinstance(step, str) else float(step.step_ns)
    rows = [
        {
            "rule": item.rule,
            "what": item.finding.what[:_SENTENCE],
            "where": item.finding.where[-_SENTENCE:],
            "instead": item.finding.instead[:_SENTENCE],
            "wins_ns": item.win.ns if item.win else None,
            "wins_low_ns": item.win.low_ns if item.win else None,
            "wins_high_ns": item.win.high_ns if item.win else None,
            "step_ns": step_ns,
        }
        for item in priorities(trace).findings[:MOST_FINDINGS]
    ]
    return table("findings", rows or None)
