"""What a session recorded of the same steps while no profiler ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampledLine:
    """A line of the script that its main thread was seen at.

    Attributes:
        where: ``file.py:24``.
        share: The part of all samples that were taken there.
        doing: What it did there, ``"backward"``, ``"forward"``, …; empty = something of its own.
    """

    where: str
    share: float
    doing: str


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """Steps of a run outside its captures, of the process that a trace is of.

    A profiler slows the host down, during a capture and, on CUDA, for the rest of the run. So these are steps before
    the first capture where there are enough of them.

    Attributes:
        steps: How many they are.
        step_ns: Their median time, ns.
        low_ns: Their 10th percentile, ns.
        high_ns: Their 90th percentile, ns.
        host_ns: What the host takes for a step while it runs ahead of its device, ns: where the device sets the pace,
            the first steps of a run take no longer until the launch queue is full. None = no such steps were seen.
        after_capture: They come after a capture, because too few came before it.
        usable_cores: Processor cores that the run may use; None = not recorded.
        busy_cores: How many of them its processes kept busy in the median, workers included; None = not recorded.
        idle_cores: How many cores of the host were idle in the median; None = not recorded.
        bf16: The processor's instructions for bfloat16, ``"amx_bf16"``, ``"avx512_bf16"`` or ``"bf16"`` (Arm); empty =
            it has none; None = not recorded.
        lines: Where the main thread was, by samples over the run, the most frequent first; empty = too few samples.
    """

    steps: int
    step_ns: float
    low_ns: float
    high_ns: float
    host_ns: float | None = None
    after_capture: bool = False
    usable_cores: int | None = None
    busy_cores: float | None = None
    idle_cores: float | None = None
    bf16: str | None = None
    lines: tuple[SampledLine, ...] = ()
