"""The detail pane: one finding or one event with everything that is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.cells import chop_cells
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.message import Message

from tuiprof.model.trace import Trace
from tuiprof.model.units import format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.answers.event_detail import EventDetail, Excerpt
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.timeline.view import link_words
from tuiprof.tui.widgets.lines import Row
from tuiprof.tui.widgets.painted import Painted
from tuiprof.tui.widgets.rows import fit_text
from tuiprof.tui.widgets.wrap import wrap

_LABEL = 16
_MOST_FRAMES = 40


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of a table, whole.

    Attributes:
        title: Title of the table.
        cells: Heading and text of each column.
        excerpt: Source text of the line it names, where that is on this machine.
    """

    title: str
    cells: tuple[tuple[str, str], ...]
    excerpt: Excerpt | None = None


class DetailPane(VerticalScroll):
    """Shows a finding, an event, or both; empty until something is opened."""

    DEFAULT_CSS = """
    DetailPane {
        background: $background; border-left: solid $primary; padding: 0 1; scrollbar-size: 1 1;
        &:focus { border-left: solid $accent; }
        & > Painted { height: auto; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "l",
            "link(0)",
            "launch ↔ work",
            "Go from a launch to its work, or from a sync to the work it waited for",
            id="detail.link",
            group="Detail",
        ),
        key(
            "L",
            "link(-1)",
            "sync → delayed",
            "Go from a sync to the work it delayed, and back",
            id="detail.link_last",
            group="Detail",
            show=False,
        ),
        key(
            "u",
            "up",
            "enclosing",
            "Go up to the event that encloses this one",
            id="detail.up",
            group="Detail",
        ),
        key(
            "backspace",
            "back",
            "back",
            "Back to the previous event",
            id="detail.back",
            group="Detail",
            show=False,
        ),
        key("y", "copy", "copy raw", "Copy the raw event", id="detail.copy", group="Detail", show=False),
    ]

    class Jump(Message):
        """Another event is wanted.

        Attributes:
            row: Its row in the event table.
        """

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.event: EventDetail | None = None
        self.finding: Finding | None = None
        self._trace: Trace | None = None
        self._history: list[int] = []

    def compose(self) -> ComposeResult:
        """One text, as long as it needs."""
        yield Painted()

    def show(self, trace: Trace, finding: Finding | None, event: EventDetail | None) -> None:
        """Show a finding, an event, or a finding with its typical event."""
        if event is not None and self.event is not None and event.row != self.event.row:
            self._history.append(self.event.row)
        self._trace, self.finding, self.event = trace, finding, event
        self.query_one(Painted).paint(self._draw)
        self.scroll_home(animate=False)

    def forget(self) -> None:
        """Forget the events shown so far: they name rows of a table that was replaced."""
        self.event, self._history = None, []

    def action_link(self, index: int = 0) -> None:
        """Jump from work to its launch, from a launch to its work, from a sync to what it waited for or delayed.

        Args:
            index: Which of its links: 0 = the first, -1 = the last.
        """
        if self.event is None:
            return
        if self.event.links:
            self.post_message(self.Jump(self.event.links[index].row))
        else:
            self.notify("this event is not linked to any other", timeout=3)

    def action_up(self) -> None:
        """Go to the event that encloses this one."""
        if self.event is None or self._trace is None:
            return
        enclosing = self._trace.ancestors(self.event.row)
        if enclosing:
            self.post_message(self.Jump(enclosing[0]))
        else:
            self.notify("no event encloses this one", timeout=3)

    def action_back(self) -> None:
        """Go back to the event shown before."""
        if self._history:
            row = self._history.pop()
            self.event = None  # so that going back is not itself remembered
            self.post_message(self.Jump(row))

    def action_copy(self) -> None:
        """Copy the raw text of the event."""
        if self.event is not None and self.event.raw:
            self.app.copy_to_clipboard(self.event.raw)
            self.notify("raw event copied to the clipboard", timeout=2)

    # -- drawing -------------------------------------------------------------------------------------------

    def _draw(self, width: int, height: int) -> list[Row]:
        rows: list[Row] = []
        if self.finding is not None:
            rows += _finding_rows(self.finding, width)
        if self.event is not None and self._trace is not None:
            if rows:
                rows += [[], [("its most expensive event", "title")]]
            rows += _event_rows(self._trace, self.event, width)
        return rows


def _field(label: str, value: str, width: int, role: str = "text") -> list[Row]:
    lines = wrap(sanitize(value), max(width - _LABEL - 1, 12))
    heads = [fit_text(label, _LABEL), *[" " * _LABEL] * (len(lines) - 1)]
    return [[(head + " ", "dim"), (line, role)] for head, line in zip(heads, lines, strict=True)]


def _section(title: str) -> list[Row]:
    return [[], [(title, "title")]]


def cell_rows(finding: Finding, width: int) -> list[Row]:
    """Return the cells of a finding below one another, each whole."""
    rows: list[Row] = []
    for label, value in finding.cells:
        rows += _field(sanitize(label), value, width, "strong")
    return rows


def _finding_rows(finding: Finding, width: int) -> list[Row]:
    rows: list[Row] = [[(line, "title")] for line in wrap(sanitize(finding.title), width)]
    rows += cell_rows(finding, width)
    if finding.excerpt is not None:
        rows += _excerpt_rows(finding.excerpt, width)
    return rows


def _event_rows(trace: Trace, event: EventDetail, width: int) -> list[Row]:
    rows: list[Row] = [[(line, "strong")] for line in wrap(sanitize(event.name), width)]
    for label, value in event.fields:
        rows += _field(label, value, width)
    if event.launch is not None:
        rows += _section("launched by  (l jumps there)")
        rows += _named(trace, event.launch, width)
    if event.work:
        count = (
            f"{format_count(event.work_count)} device events" if event.work_count > 1 else "one device event"
        )
        rows += _section(f"launched {count}  (l jumps to the first)")
        for row in event.work[:8]:
            rows += _named(trace, row, width)
        if event.work_count > 8:
            rows.append([(f"  and {format_count(event.work_count - 8)} more", "dim")])
    for link in event.links:
        if link.way not in ("launches", "launched by"):
            key_name = "l" if link is event.links[0] else "L"
            rows += _section(f"{link.way}  ({key_name} jumps there)")
            rows += _named(trace, link.row, width)
            said = link_words(trace, event.row, link).rpartition(", ")[2]
            rows.append([(" " * 11 + said, "dim")])
    if event.chain:
        rows += _section(
            "enclosed by, innermost first" + ("" if event.launch is None else " (of its launch)")
        )
        for row in event.chain[:_MOST_FRAMES]:
            rows += _named(trace, row, width)
    if event.frames:
        rows += _section("Python stack, innermost first (line = first line of the function)")
        for row in event.frames[:_MOST_FRAMES]:
            rows += [[("  " + line, "text")] for line in wrap(sanitize(trace.name(row)), max(width - 2, 8))]
    if event.excerpt is not None:
        rows += _excerpt_rows(event.excerpt, width)
    rows += _section("raw")
    if not event.raw:
        rows.append([("this format has no raw text", "dim")])
    for raw in event.raw.splitlines():
        rows += [[(line, "dim")] for line in chop_cells(sanitize(raw.expandtabs(4)), max(width, 8))]
    if event.raw_cut:
        rows.append([(f"… {format_count(event.raw_cut)} more characters", "warn")])
    return rows


def _named(trace: Trace, row: int, width: int) -> list[Row]:
    """One event in a line: duration, category, name."""
    duration = format_ns(int(trace.ends[row] - trace.starts[row]))
    head = f"{duration:>9}  "
    lines = wrap(sanitize(trace.name(row)), max(width - len(head), 12), most=2)
    rows: list[Row] = [[(head, "dim"), (lines[0], "text")]]
    return rows + [[(" " * len(head), "dim"), (line, "text")] for line in lines[1:]]


def _excerpt_rows(excerpt: Excerpt, width: int) -> list[Row]:
    rows = _section(f"source  {sanitize(str(excerpt.path))}:{excerpt.line}")
    for number, text in excerpt.lines:
        here = number == excerpt.line
        line = f"{'▸' if here else ' '}{number:>6}  {sanitize(text.expandtabs(4))}"
        rows.append([(fit_text(line, width), "strong" if here else "dim")])
    return rows
