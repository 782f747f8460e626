"""State of one writer of a session: the steps, memory and cost of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tuiprof.session import log
from tuiprof.session.live.series import Overview, Series, column
from tuiprof.session.live.step_series import StepSeries

RECORDER: Final = "recorder"
#: Allocator readings kept in full per device of a rank: half an hour at one per second.
KEEP_MEMORY: Final = 1 << 11


class MemorySeries:
    """Memory of the framework's allocator on one device of one rank."""

    def __init__(self) -> None:
        kinds = dict.fromkeys(("t_ns", "alloc", "reserved", "peak"), (np.int64, 0))
        #: ``t_ns`` (session time); ``alloc``, ``reserved`` and ``peak`` in bytes
        self.rows = Series(KEEP_MEMORY, kinds)
        self.overview = Overview(1024)  # of ``alloc`` over the whole run
        self.last: log.Memory | None = None  # newest reading

    def extend(self, readings: Sequence[log.Memory], offset_ns: int) -> None:
        """Append readings."""
        columns = {name: column(readings, name, np.int64) for name in ("alloc", "reserved", "peak")}
        t_ns = column(readings, "at", np.int64) + offset_ns
        self.rows.extend(len(readings), {"t_ns": t_ns, **columns})
        self.overview.extend(t_ns, columns["alloc"])
        self.last = readings[-1]


class WriterState:
    """One writer of a session: a rank of the script, or the recorder."""

    def __init__(self, name: str) -> None:
        self.name = name  # ``rank0``, ``recorder``, …
        self.host = ""  # empty = the run has only one
        #: Name of its machine if a launcher (``srun``) started it on another machine than the recorder's; else empty.
        self.elsewhere = ""
        self.head: log.Head | None = None  # None = not read
        self.offset_ns = 0  # from its ``at`` to session time
        self.seen_ns = 0  # session time of its newest record
        self.steps = StepSeries()
        self.step_source: log.StepSource | None = None  # what ends its steps; None = unknown
        #: ``file:line`` of the loop whose iterations are probably its steps; empty = unknown.
        self.likely_step = ""
        self.lines: log.Lines | None = None  # sampled lines of its main thread
        self.workers: log.WorkersStarted | None = None  # restarts of loader workers
        self.memory: dict[int, MemorySeries] = {}  # by device index
        self.uses: dict[int, log.Uses] = {}  # accelerator of each device index
        self.cost: log.Cost | None = None  # of its hooks so far or, for the recorder, CPU time of sampling
        self.end: log.End | None = None  # None = running, or died
        self.restarts = 0  # number of restarts

    @property
    def rank(self) -> int | None:
        """Its rank; None = it has none, for example the recorder."""
        return self.head.rank if self.head else None

    @property
    def label(self) -> str:
        """Its name, the script's name of the process, and its host: ``rank0-4711 (Process-2) on node1``."""
        process = self.head.process if self.head else ""
        name = self.name.partition("@")[0]
        host = self.elsewhere or self.host
        return " ".join((name, *([f"({process})"] if process else []), *([f"on {host}"] if host else [])))

    @property
    def records_devices(self) -> bool:
        """Whether it is a recorder, not a process of the script."""
        return self.name.partition("@")[0] == RECORDER

    @property
    def last_step_ns(self) -> int:
        """Session time of its last step; -1 = no steps."""
        return int(self.steps.rows["t_ns"][-1]) if len(self.steps) else -1

    @property
    def can_run_ahead(self) -> bool:
        """Whether calls of its framework return before their work has ended: on an accelerator, and with XLA."""
        versions = self.head.versions if self.head is not None else {}
        return bool(self.uses) or "jax" in versions or "torch_xla" in versions

    @property
    def cost_per_step_ns(self) -> float | None:
        """Cost of the probe's hooks per step, ns; None = unknown."""
        return self.cost.ns / self.cost.steps if self.cost and self.cost.steps else None

    @property
    def cost_share(self) -> float | None:
        """Share of time that tuiprof itself takes, 0 to 1; None = unknown.

        For a rank, the cost per step relative to the mean time of uncaptured steps; for the recorder, the CPU time of
        sampling relative to the time since its start.
        """
        if self.cost is None:
            return None
        if len(self.steps):
            mean_ns = self.steps.mean_wall_ns
            return (
                self.cost_per_step_ns / mean_ns if self.cost_per_step_ns is not None and mean_ns > 0 else None
            )
        if self.head is None or self.cost.at <= self.head.mono_ns:
            return None
        return self.cost.ns / (self.cost.at - self.head.mono_ns)
