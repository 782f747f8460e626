"""Where a step goes: host time by phase."""

from __future__ import annotations

from dataclasses import dataclass

from tuiprof.model.units import format_ns, format_share
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row, fit, join, row_width

_TITLE = "where a step goes"
#: Beyond this many the smallest are added up as "… more".
_MOST = 7


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step.

    Attributes:
        name: As the script or the probe calls it; untrusted.
        dur_ns: Mean host time per step; means, because they add up.
        role: Colour role; the name beside it carries the meaning.
    """

    name: str
    dur_ns: float
    role: str


class PhaseBar(Lines):
    """Phases of the mean step, all in one line or in one line each."""

    def __init__(self, *, id: str | None = None, tall: bool = False) -> None:  # noqa: A002
        super().__init__(id=id)
        self.tall = tall
        self._phases: list[Phase] = []
        self._step_ns = 0.0
        self._why_empty = ""

    def show(self, means: dict[str, float], why_empty: str) -> None:
        """Show new figures."""
        before = len(self._phases)
        self._step_ns = sum(means.values())
        self._phases = phases_of(means)
        self._why_empty = why_empty
        if len(self._phases) != before:
            self.lay_out_anew()
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the list or the one line."""
        if not self._phases:
            return [[(f" {self._why_empty}" if self.tall else f" {_TITLE}   {self._why_empty}", "dim")]]
        return self._draw_list(width) if self.tall else [phase_line(self._phases, width)]

    def _draw_list(self, width: int) -> list[Row]:
        """One line a phase: name, time, share, bar."""
        names = max(len(phase.name) for phase in self._phases)
        names = min(max(names, 9), max(9, width // 3))
        bar_width = width - names - 22
        rows: list[Row] = []
        for phase in self._phases:
            share = phase.dur_ns / self._step_ns if self._step_ns else 0.0
            row: Row = [
                (" " + phase.name[:names].ljust(names), "text"),
                (format_ns(phase.dur_ns).rjust(10), "strong"),
                (format_share(min(share, 1.0)).rjust(8), "dim"),
            ]
            if bar_width >= 4:
                row.append(("  " + glyphs.bar(share, bar_width), phase.role))
            rows.append(row)
        return rows


def phases_of(means: dict[str, float]) -> list[Phase]:
    """Return the phases to show: beyond :data:`_MOST` the last ones added up."""
    named = [(name, dur) for name, dur in means.items() if name != "other"]
    shown = named if len(named) <= _MOST else named[: _MOST - 1]
    found = [Phase(sanitize(name), dur, f"phase{1 + index % 6}") for index, (name, dur) in enumerate(shown)]
    if len(shown) < len(named):
        rest = sum(dur for _, dur in named[len(shown) :])
        found.append(Phase(f"{len(named) - len(shown)} more", rest, "dim"))
    if means.get("other", 0.0) > 0.005 * sum(means.values()):
        found.append(Phase("rest of the step", means["other"], "dim"))
    return found


def phase_line(phases: list[Phase], width: int) -> Row:
    """Return all in one line: bars take what the words leave; the smallest phases go before anything is cut."""
    separator = (f" {glyphs.AXIS} ", "rule")
    title: Row = [(f" {_TITLE}  ", "dim")]
    parts: list[Row] = [[(f"{phase.name} ", "dim"), (format_ns(phase.dur_ns), "strong")] for phase in phases]
    room = width - row_width(title) - row_width(join(parts, separator)) - 1
    if room < 0:
        # One unit for all, said once, is shorter.
        largest = max(phase.dur_ns for phase in phases)
        unit_ns, unit = next(
            ((ns, unit) for ns, unit in ((1e9, "s"), (1e6, "ms")) if largest >= ns), (1e3, "µs")
        )
        title = [(f" {unit} a step  ", "dim")]
        parts = [[(f"{phase.name} ", "dim"), (f"{phase.dur_ns / unit_ns:.1f}", "strong")] for phase in phases]
        order = sorted(range(len(parts)), key=lambda index: -phases[index].dur_ns)
        while len(order) > 1 and row_width(title) + row_width(join(parts, separator)) > width:
            parts[order.pop()] = []
        return fit([*title, *join(parts, separator)], width)
    if room >= len(parts) * 2:
        total = sum(phase.dur_ns for phase in phases) or 1
        for part, phase in zip(parts, phases, strict=True):
            if size := int((room - len(parts)) * phase.dur_ns / total):
                part.append((" " + glyphs.BAR * size, phase.role))
    return [*title, *join(parts, separator)]
