"""What a trace cannot tell, and the checks that find it: said before any figure is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tuiprof.model.report import Level
from tuiprof.model.units import format_count, format_ns

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to know before believing a figure of this trace."""

    code: str  # stable name, for example ``"truncated"`` or ``"no-python-frames"``
    text: str  # what is missing or odd, with its count
    remedy: str = ""  # how to get it next time; may be empty
    #: ``info`` for what is merely absent, ``warn`` where figures are incomplete, ``bad`` where they may be wrong.
    level: Level = "info"


@dataclass(slots=True)
class ReadStats:
    """What the decoder met while reading."""

    events: int = 0  # events read, of every phase
    #: Count by Chrome trace phase (``X``, ``i``, ``s``, …) or the format's own kinds.
    phases: dict[str, int] = field(default_factory=dict)
    malformed: int = 0  # events that could not be understood and are not in the table
    repaired: int = 0  # events kept after a repair (invalid UTF-8, NaN, missing duration, …)
    truncated: bool = False  # the file ends in the middle of an event
    source_bytes: int = 0  # size of the uncompressed source
    remarks: list[Remark] = field(default_factory=list)  # what else the decoder wants said


@dataclass(frozen=True, slots=True)
class Trust:
    """The trust line of a trace."""

    events: int  # events read
    remarks: tuple[Remark, ...] = ()  # worst first; empty = complete

    @property
    def level(self) -> Level:
        """The worst level among the remarks; ``good`` without any."""
        order: tuple[Level, ...] = ("bad", "warn", "info")
        return next((level for level in order if any(r.level == level for r in self.remarks)), "good")

    @property
    def line(self) -> str:
        """One line for the head of a screen or report."""
        if not self.remarks:
            return "trust: complete ✓"
        worst = [r.text for r in self.remarks if r.level == self.level]
        more = len(self.remarks) - 1
        return f"trust: {worst[0]}" + (f" (+{more} more)" if more else "")

    @property
    def text(self) -> str:
        """All remarks with their remedies, for static reports."""
        if not self.remarks:
            return self.line
        return "trust: " + " · ".join(f"{r.text} ({r.remedy})" if r.remedy else r.text for r in self.remarks)


#: Remarks of files that hold no events by their nature.
EVENTLESS = frozenset(("telemetry-only", "summary-only"))
_ORDER = {"bad": 0, "warn": 1, "info": 2, "good": 3}


def examine(trace: Trace) -> Trust:
    """List what is missing, odd or incomplete, worst first."""
    remarks = [*trace.stats.remarks, *_reading(trace)]
    if EVENTLESS & {remark.code for remark in remarks}:
        pass  # then there is nothing that could be missing
    elif len(trace):
        remarks += [*_device(trace), *_host(trace)]
    elif not remarks:
        remarks.append(Remark("empty", "the trace has no events", "record one that spans some steps", "bad"))
    return Trust(trace.stats.events, tuple(sorted(remarks, key=lambda r: _ORDER[r.level])))


def _reading(trace: Trace) -> list[Remark]:
    stats, remarks = trace.stats, []
    if stats.truncated:
        remarks.append(
            Remark(
                "truncated",
                "the file ends in the middle of an event: later events are missing",
                "let the profiler finish writing before copying the file",
                "bad",
            )
        )
    if stats.malformed:
        remarks.append(
            Remark("malformed", f"{format_count(stats.malformed)} events could not be read", level="warn")
        )
    if stats.repaired:
        remarks.append(
            Remark("repaired", f"{format_count(stats.repaired)} events were repaired while reading")
        )
    return remarks


def _device(trace: Trace) -> list[Remark]:
    work, remarks = len(trace.device_work), []
    calls = len(trace.host_calls)
    # XLA's own runtime also runs on a CPU: without a device plane its calls had no device to reach.
    of_xla = trace.info.format == "xplane" or trace.info.framework.startswith(
        ("JAX", "PyTorch/XLA", "TensorFlow")
    )
    no_device = of_xla and not trace.info.devices
    if not work and (not calls or no_device):
        if trace.stats.truncated:  # the profiler writes the devices' events last
            return [Remark("no-device", "no device activity in the part that could be read", level="warn")]
        return [Remark("no-device", "no device activity recorded: a CPU-only trace")]
    if not work:
        return [
            Remark(
                "no-device-work",
                f"{format_count(calls)} runtime calls but no device activity was recorded",
                "another profiler may have held the device (only one can); record again",
                "bad",
            )
        ]
    links = trace.links
    if links.unmatched_work:
        remarks.append(
            Remark(
                "unmatched",
                f"{format_count(links.unmatched_work)} of {format_count(work)} device events have no launch here",
                "they were launched before recording began, or by a call the profiler does not record",
                "warn",
            )
        )
    linked = trace.device_work[links.launch_of[trace.device_work] >= 0]
    latency = trace.starts[linked] - trace.starts[links.launch_of[linked]]
    early = int((latency < 0).sum())
    if early:
        remarks.append(
            Remark(
                "skew",
                f"{format_count(early)} device events start before their launch call, up to "
                f"{format_ns(-int(np.min(latency)))}: host and device clocks differ",
                level="warn",
            )
        )
    return remarks


def _host(trace: Trace) -> list[Remark]:
    remarks = []
    if not trace.is_category("python_function").any() and trace.sync_sites is None:
        remarks.append(
            Remark(
                "no-python-frames",
                "no Python frames: source lines cannot be named",
                "record with `tuiprof record --stack`, or with_stack=True",
            )
        )
    if trace.steps.read_from:
        remarks.append(
            Remark(
                "steps-read",
                f"the trace marks no steps: they are read from {trace.steps.read_from}",
                "call profiler.step() each step, or tuiprof record --step-at FILE:LINE",
            )
        )
    if not len(trace.steps):
        remarks.append(
            Remark(
                "no-steps",
                "no step markers: figures are for the whole trace, not per step",
                "call profiler.step() each step, or tuiprof record --step-at FILE:LINE",
            )
        )
    return remarks
