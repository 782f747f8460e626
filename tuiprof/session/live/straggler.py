"""Which rank of a distributed run delays the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tuiprof.session.live.writer_state import WriterState

#: Steps that are compared.
STEPS: Final = 100
#: A rank is a straggler if its figure is above the median of the other ranks by this share of a step.
SHARE: Final = 0.05
#: With device times, a host delays the others only from this share of the step on: below, it runs ahead.
NO_SLACK: Final = 0.9
#: Phases in which ranks wait for one another.
_MEETING: Final = ("backward", "optimizer")
RULE: Final = (
    f"the median of a straggler's last {STEPS} steps is above the median of the other ranks by {SHARE:.0%} of a step. "
    f"If all ranks take the same time because they wait for one another, the time outside {' and '.join(_MEETING)} is "
    f"compared, as the others wait inside these phases; with an accelerator only if it is {NO_SLACK:.0%} of the step "
    "or more, as a host that runs ahead of its device does not delay the others."
)


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank, for comparison with the others.

    Attributes:
        name: Its writer.
        rank: Its number; None = unknown.
        host: Its host; empty = the run has one.
        step_ns: Median step time; NaN = no steps.
        own_ns: Median time of a step outside the phases in which ranks wait for one another; NaN = unknown.
        recent_ns: Its last step times, oldest first.
        straggles: It delays the others.
        why: The high figure: ``"step time"`` or ``"time outside backward and optimizer"``; empty = no straggler.
    """

    name: str
    rank: int | None
    step_ns: float
    own_ns: float
    recent_ns: tuple[int, ...]
    host: str = ""
    straggles: bool = False
    why: str = ""


def lanes(ranks: list[WriterState], now_ns: int, recent: int = 120) -> list[Lane]:
    """Return the ranks side by side at a moment, with the straggler marked."""
    found = [_lane(rank, now_ns, recent) for rank in ranks]
    steps = np.array([lane.step_ns for lane in found])
    if np.isfinite(steps).sum() < 2:
        return found
    middle = float(np.nanmedian(steps))
    for figures, why in (
        (steps, "step time"),
        (np.array([lane.own_ns for lane in found]), f"time outside {' and '.join(_MEETING)}"),
    ):
        if np.isfinite(figures).sum() < 2:
            continue
        worst = int(np.nanargmax(figures))
        # Compared with the other ranks: with two, the median of both would include the slower one.
        others = float(np.nanmedian(np.delete(figures, worst)))
        if figures[worst] - others >= SHARE * middle:
            lane = found[worst]
            if figures is not steps and _has_slack(ranks[worst], lane):
                continue
            found[worst] = replace(lane, straggles=True, why=why)
            break
    return found


def _has_slack(rank: WriterState, lane: Lane) -> bool:
    """Whether the host of a rank runs ahead of its device, so that its time does not delay the others."""
    return bool((rank.steps.rows["device_ns"] >= 0).any()) and lane.own_ns < NO_SLACK * lane.step_ns


def _lane(rank: WriterState, now_ns: int, recent: int) -> Lane:
    rows = rank.steps.rows
    last = int(np.searchsorted(rows["t_ns"], now_ns, side="right"))
    part = slice(max(0, last - STEPS), last)
    plain = rank.steps.comparable(part)
    dur = rows["dur_ns"][part][plain]
    own = float("nan")
    meeting = [name for name in rank.steps.phases if name in _MEETING]
    if meeting and len(dur):
        waited = sum(np.maximum(rows[f"ph:{name}"][part][plain], 0) for name in meeting)
        own = float(np.median(dur - waited))
    return Lane(
        rank.name,
        rank.rank,
        float(np.median(dur)) if len(dur) else float("nan"),
        own,
        tuple(rows["dur_ns"][max(0, last - recent) : last].tolist()),
        rank.host,
    )
