"""Compares predicted savings with measured ones: ``python -m tests.predictions.score FOLDER [--markdown] [--alone]``.

The folder has ``truth.json`` and one session per case, written by :mod:`tests.predictions.record`. Of data-parallel
training, the traces of the other ranks are used as in a session, or left out with ``--alone``.

=======  ======================================================================================================
first    the planted cost is the first advice (ignoring advice that may rightly precede it)
named    it is among the advice
near     its predicted saving is within 30 % of the measured one or within 1.5 % of the step; or its share of the step
         is, as the timed run and the recorded run are two processes, and the host may be slower in one of them
covered  the measured saving lies in the predicted range, widened by 1 % of the step
absurd   some advice promises more than the whole step
unclear  the rounds of the measurement overlap: some round with the cost was no slower than some round without it
=======  ======================================================================================================
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuiprof.advice import priorities
from tuiprof.analyses.shared.replay import replayed
from tuiprof.formats import open_trace
from tuiprof.model.traceset import RankFile, TraceSet

#: What the probe records, of PyTorch and of JAX.
_TRACES = (".pt.trace.json.gz", ".xplane.pb")
_ORDINALS = {2: "nd", 3: "rd"}


@dataclass(frozen=True)
class Scored:
    """One case compared with its measurement; times in ms."""

    name: str
    step: float
    gain: float
    predicted: float | None
    low: float | None
    high: float | None
    rank: int | None
    first: bool
    near: bool
    covered: bool
    absurd: bool
    unclear: bool
    before: str


def score(folder: Path, name: str, truth: dict[str, Any], *, alone: bool = False) -> Scored:
    """Score one case, without the traces of other ranks if ``alone``."""
    # The last one: a script that takes long to begin is captured by time before.
    path = max(path for path in (folder / name / "traces").rglob("*") if path.name.endswith(_TRACES))
    trace = open_trace(path)
    others = [] if alone else sorted((folder / name / "others").glob("rank*"))
    if others:
        ranks = {int(file.name.removeprefix("rank").partition(".")[0]): file for file in (path, *others)}
        files = tuple(RankFile(rank, file, "name") for rank, file in sorted(ranks.items()))
        trace.siblings = TraceSet("", files, open_trace)
    step, found = replayed(trace), priorities(trace).findings
    if isinstance(step, str):
        print(f"{name}: {step}")
        step_ns = truth["bad_ms"] * 1e6
    else:
        step_ns = step.step_ns
    wins = [item.win.ns / 1e6 if item.win else 0.0 for item in found]
    says = re.compile(rf"\b{truth.get('says', '')}\b")
    hits = [
        i for i, item in enumerate(found) if item.rule in truth["rules"] and says.search(item.finding.what)
    ]
    # Processor time gives the saved share of the step, not its wall time.
    scale = step_ns / 1e6 / truth["bad_ms"] if truth.get("cpu") else 1.0
    bad, gain = truth["bad_ms"] * scale, truth["gain_ms"] * scale
    # Cases for a CPU have one thread on purpose.
    may_precede = [*truth["may_precede"], *(["cpu-threads"] if truth.get("cpu") else [])]
    ahead = [
        item.rule
        for item, win in list(zip(found, wins, strict=True))[: hits[0] if hits else None]
        if item.rule not in may_precede or win > bad
    ]
    win = found[hits[0]].win if hits else None
    near = covered = False
    if win is not None:
        share, part = win.ns / step_ns, gain / bad
        near = abs(win.ns / 1e6 - gain) <= max(0.3 * abs(gain), 0.015 * bad)
        near = near or abs(share - part) <= max(0.3 * abs(part), 0.015)
        covered = win.low_ns / 1e6 - 0.01 * bad <= gain <= win.high_ns / 1e6 + 0.01 * bad
    return Scored(
        name,
        bad,
        gain,
        win.ns / 1e6 if win else None,
        win.low_ns / 1e6 if win else None,
        win.high_ns / 1e6 if win else None,
        hits[0] + 1 if hits else None,
        bool(hits) and not ahead,
        near,
        covered,
        any(one > bad for one in wins),
        min(truth["bad_all"]) <= max(truth["good_all"]),
        ", ".join(ahead),
    )


def main() -> None:
    """Print a row per case, and the totals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/predictions.md")
    parser.add_argument("--alone", action="store_true", help="leave out the traces of other ranks")
    chosen = parser.parse_args()
    cases = json.loads((chosen.folder / "truth.json").read_text())["cases"]
    rows = [score(chosen.folder, name, truth, alone=chosen.alone) for name, truth in cases.items()]
    if chosen.markdown:
        print("| case | step | measured | predicted | range | rank |\n|---|---:|---:|---:|---:|---|")
    for row in rows:
        predicted = "–" if row.predicted is None else f"{row.predicted:.2f}"
        span = "–" if row.low is None else f"{row.low:.2f} to {row.high:.2f}"
        rank = (
            "not found"
            if row.rank is None
            else "1st"
            if row.rank == 1
            else f"{row.rank}{_ORDINALS.get(row.rank, 'th')}, after {row.before or 'others'}"
        )
        if chosen.markdown:
            unclear = " (unclear)" if row.unclear else ""
            print(
                f"| {row.name} | {row.step:.1f} | {row.gain:.2f}{unclear} | {predicted} | {span} | {rank} |"
            )
        else:
            marks = " ".join(mark for mark in ("near", "covered", "unclear") if getattr(row, mark))
            print(f"{row.name:20}{row.step:8.2f}{row.gain:9.2f}{predicted:>9} {span:>16}  {rank} {marks}")
    total = {
        "cases": len(rows),
        "first": sum(row.first for row in rows),
        "named": sum(row.rank is not None for row in rows),
        "near": sum(row.near for row in rows),
        "covered": sum(row.covered for row in rows),
        "absurd": sum(row.absurd for row in rows),
        "unclear": sum(row.unclear for row in rows),
    }
    print(json.dumps(total))


if __name__ == "__main__":
    main()
