"""Detects whether other programs kept the machine busy during a run, which makes its step times longer."""

from __future__ import annotations

from typing import Final

from tuiprof.model.units import format_share
from tuiprof.session.live.fold import CORE, Fold

#: A machine is crowded when its cores are in use for this share of the time …
BUSY_SHARE: Final = 0.9
#: … and other programs have this share of them.
OTHERS_SHARE: Final = 0.2
_LEAST_READINGS: Final = 4


def crowded(fold: Fold) -> str:
    """Return a warning if other programs used cores that the run could have used.

    Returns:
        A sentence with the shares; empty if there were idle cores, or if it is unknown.
    """
    host = fold.devices.get("host")
    cores = sum(CORE.fullmatch(name) is not None for name in host.overview) if host is not None else 0
    if host is None or not cores:
        return ""
    busy, own = host.overview.get("util"), host.overview.get("tree_cpu")
    if busy is None or own is None or min(busy.total, own.total) < _LEAST_READINGS:
        return ""
    used = busy.overall_mean
    others = used - own.overall_mean / cores
    if used < BUSY_SHARE or others < OTHERS_SHARE:
        return ""
    return (
        f"other programs kept the machine busy: {format_share(used)} of its CPU time was used, {format_share(others)} "
        "by other programs, so step times are longer and vary more than on an idle machine"
    )
