"""What a trace cannot tell: said before any figure is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuiprof.model.report import Level


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to know before believing a figure of this trace.

    Attributes:
        code: Stable name, for example ``"truncated"`` or ``"no-python-frames"``.
        text: What is missing or odd, with its count.
        remedy: How to get it next time; may be empty.
        level: ``info`` for what is merely absent, ``warn`` where figures are incomplete, ``bad`` where they
            may be wrong.
    """

    code: str
    text: str
    remedy: str = ""
    level: Level = "info"


@dataclass(slots=True)
class ReadStats:
    """What the decoder met while reading.

    Attributes:
        events: Events read, of every phase.
        phases: Count by Chrome trace phase (``X``, ``i``, ``s``, …) or the format's own kinds.
        malformed: Events that could not be understood and are not in the table.
        repaired: Events kept after a repair (invalid UTF-8, NaN, missing duration, …).
        truncated: The file ends in the middle of an event.
        source_bytes: Size of the uncompressed source.
        remarks: What else the decoder wants said.
    """

    events: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    malformed: int = 0
    repaired: int = 0
    truncated: bool = False
    source_bytes: int = 0
    remarks: list[Remark] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trust:
    """The trust line of a trace.

    Attributes:
        events: Events read.
        remarks: Worst first; empty = complete.
    """

    events: int
    remarks: tuple[Remark, ...] = ()

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
        """All remarks with what to do about them, for a report that nobody can expand."""
        if not self.remarks:
            return self.line
        return "trust: " + " · ".join(f"{r.text} ({r.remedy})" if r.remedy else r.text for r in self.remarks)
