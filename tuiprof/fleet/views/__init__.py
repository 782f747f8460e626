"""Reports of a job from its summary: one module per report, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tuiprof.fleet.fleet import Fleet
    from tuiprof.model import Report, Unavailable

#: Names of the views; each is a module here with ``report(fleet)``.
NAMES: Final = ("stragglers", "job", "hosts", "slow_steps", "slow_kernels", "differences", "heat", "files")


def reports(fleet: Fleet, names: Sequence[str] = NAMES) -> list[Report | Unavailable]:
    """Return the reports of a job.

    Args:
        fleet: The job.
        names: Some of :data:`NAMES`.
    """
    from tuiprof.analyses import attempt

    def made(name: str) -> Callable[[], Report | Unavailable]:
        view = import_module(f"{__name__}.{name}")
        return lambda: view.report(fleet)

    return [attempt(name, made(name)) for name in names]
