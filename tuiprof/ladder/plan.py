"""Which trials a ladder has, and in which order.

First the numbers of each variant are checked and some of its steps captured; then come the rounds of timing,
interleaved (A B C A B C …), in which nothing is captured.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tuiprof.errors import UsageProblem
from tuiprof.ladder.availability import availability
from tuiprof.ladder.resuming import software, sources
from tuiprof.ladder.scenarios import Ladder, Variant, meant
from tuiprof.ladder.scenarios import command as command_of
from tuiprof.ladder.state import OUT, SCHEMA_VERSION, Kind, LadderMeta, Rung, Trial

if TYPE_CHECKING:
    from pathlib import PurePath

    from tuiprof.session.run.interpreter import Facts
    from tuiprof.telemetry import Device


class Slot(NamedTuple):
    """One trial that belongs to a ladder, run or not."""

    kind: Kind
    round: int
    variant: str


def plan(
    ladder: Ladder,
    facts: Facts,
    devices: Sequence[Device] = (),
    *,
    variants: Sequence[str] = (),
    rounds: int = 5,
    preset: str = "fit",
    steps: int | None = None,
    price: float | None = None,
    cwd: PurePath | None = None,
    once: bool = False,
) -> LadderMeta:
    """Plan a ladder, without running or writing anything; raises UsageProblem if there is no such variant or preset."""
    chosen = _chosen(ladder, variants)
    rungs = []
    for variant in chosen:
        lacks = availability(variant, facts, devices)
        rungs.append(
            Rung(
                name=variant.name,
                baseline=variant.baseline,
                builds_on=variant.builds_on,
                note=variant.note,
                published=tuple(figure.text for figure in variant.published),
                published_at=tuple(ladder.sizes_of(figure) for figure in variant.published),
                reason=lacks.reason if lacks else "",
                remedy=lacks.remedy if lacks else "",
                command=command_of(variant, preset, steps),
                check=variant.check,
                check_and_run=variant.check_and_run,
            )
        )
    files = sources(ladder.script)
    return LadderMeta(
        v=SCHEMA_VERSION,
        ladder=ladder.name,
        title=ladder.title,
        source=ladder.source,
        script=str(ladder.script),
        digest=files[ladder.script.name],
        sources=files,
        software=software(ladder, chosen, facts),
        baseline=ladder.baseline,
        preset=preset,
        steps=steps,
        rounds=1 if once else rounds,
        once=once,
        python=facts.python,
        host=platform.node(),
        machine=facts.sentence,
        cwd=str(cwd or Path.cwd()),
        unix_ns=time.time_ns(),
        price=price,
        rungs=tuple(rungs),
    )


def _chosen(ladder: Ladder, names: Sequence[str]) -> list[Variant]:
    if not names:
        return list(ladder.variants)
    known = {variant.name: variant for variant in ladder.variants}
    for name in names:
        if name not in known:
            raise UsageProblem(
                f"the ladder {ladder.name!r} has no variant {name!r}", meant(name, list(known))
            )
    wanted = {*names, *(known[name].baseline for name in names)}
    return [variant for variant in ladder.variants if variant.name in wanted]


def schedule(meta: LadderMeta) -> list[Slot]:
    """Return all trials of the ladder in order, including completed ones.

    Variants that proved wrong, failed or turned out unavailable are not run any further.
    """
    able = [rung for rung in meta.rungs if not rung.reason]
    if meta.once:
        return [Slot("once", 1, rung.name) for rung in able]
    slots = [Slot("check", 0, rung.name) for rung in able if rung.check is not None]
    slots += [Slot("trace", 0, rung.name) for rung in able]
    slots += [Slot("timing", number, rung.name) for number in range(1, meta.rounds + 1) for rung in able]
    ran = _final(meta)
    out = {trial.variant for trial in meta.trials if trial.state in OUT}
    return [slot for slot in slots if slot in ran or slot.variant not in out]


def pending(meta: LadderMeta) -> list[Slot]:
    """Return the remaining trials in order."""
    ran = _final(meta)
    return [slot for slot in schedule(meta) if slot not in ran]


def _final(meta: LadderMeta) -> set[Slot]:
    return {slot_of(trial) for trial in meta.trials if trial.state not in ("running", "stopped")}


def slot_of(trial: Trial) -> Slot:
    """Return the slot that a trial fills."""
    return Slot(trial.kind, trial.round, trial.variant)


def left_s(meta: LadderMeta) -> float | None:
    """Return the estimated time of the remaining trials: as the same trial of the variant took, else the mean of such
    trials.

    Returns:
        Seconds; None = no trial is over yet.
    """
    ran = [trial for trial in meta.trials if trial.state == "done"]
    if not ran:
        return None
    total = 0.0
    for slot in pending(meta):
        like = [trial.wall_ns for trial in ran if (trial.kind, trial.variant) == (slot.kind, slot.variant)]
        like = like or [trial.wall_ns for trial in ran if trial.kind == slot.kind]
        like = like or [trial.wall_ns for trial in ran]
        total += sum(like) / len(like) / 1e9
    return total
