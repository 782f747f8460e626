"""Text to read over the screen: rules, remarks, reports as paragraphs, and the source of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from tuiprof.model.report import Report, Unavailable
from tuiprof.model.trust import Trust
from tuiprof.model.units import format_count
from tuiprof.report.sanitize import sanitize, sanitize_lines
from tuiprof.system.files import read_small
from tuiprof.tui.terminal.glyphs import MARKS
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.lines import Heading, Painted, Row, spread
from tuiprof.tui.widgets.spans import wrap

if TYPE_CHECKING:
    from rich.syntax import Syntax

_source = partial(key, group="Source")

Paragraph = tuple[str, str]


class ReadingScreen(ModalScreen[None], inherit_bindings=False):
    """Shows paragraphs until it is closed.

    Args:
        title: Heading; safe for a terminal.
        paragraphs: Text and role of each; an empty text is a blank line. Leading blanks indent wrapped lines.
        opened_by: Action of the screen below that opened it: its key closes it again; empty = any other way.
    """

    DEFAULT_CSS = """
    ReadingScreen {
        align: center middle;
        & > Vertical {
            width: 96; max-width: 92%; height: auto; max-height: 90%;
            background: $background; border: round $primary; padding: 0 1;
        }
        & VerticalScroll { height: auto; max-height: 100%; scrollbar-size: 1 1; scrollbar-background: $background; }
        & Painted { height: auto; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape,q,enter", "close", "close", "Close this window", id="reading.close", group="Window")
    ]

    def __init__(self, title: str, paragraphs: Sequence[Paragraph], *, opened_by: str = "") -> None:
        super().__init__()
        self._opened_by = opened_by
        self._title = title
        self._paragraphs = paragraphs

    def compose(self) -> ComposeResult:
        """Lay out the window."""
        with Vertical():
            yield Heading(self._title)
            with VerticalScroll():
                yield Painted()
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill in the text."""
        self.query_one(Painted).paint(self._draw)
        self.query_one(VerticalScroll).focus()

    def _draw(self, width: int, height: int) -> list[Row]:
        rows: list[Row] = []
        for text, role in self._paragraphs:
            rows.extend(paragraph(text, role, width))
        return rows

    def on_key(self, event: events.Key) -> None:
        """Close the window with the key that opened it, whatever it is configured to be."""
        below = self.app.screen_stack[-2].active_bindings.get(event.key) if self._opened_by else None
        if below is not None and below.binding.action == self._opened_by:
            event.stop()
            self.dismiss()

    def action_close(self) -> None:
        """Close the window."""
        self.dismiss()


def paragraph(text: str, role: str, width: int) -> list[Row]:
    """Wrap a paragraph, keeping its indent."""
    bare = text.lstrip(" ")
    indent = " " * (len(text) - len(bare))
    return [[(indent + line, role)] for line in wrap(bare, max(width - len(indent), 8))]


def answer_paragraphs(answer: Report | Unavailable | None, question: str) -> list[Paragraph]:
    """Return the question of an analysis, its findings, its rules, and the meaning of each figure and column."""
    out: list[Paragraph] = [(sanitize(question), "dim"), ("", "text")] if question else []
    if answer is None:
        return [*out, ("analysing …", "dim")]
    if isinstance(answer, Unavailable):
        out.append((f"Not available: {sanitize_lines(answer.reason)}", "strong"))
        return [*out, (f"→ {sanitize_lines(answer.remedy)}", "text")] if answer.remedy else out
    if answer.verdict.sentence:
        level = answer.verdict.level
        out += [(f"{MARKS[level]} {sanitize(answer.verdict.sentence)}", level), ("", "text")]
    for rule in answer.rules:
        out += [(sanitize(rule.name), "title"), (f"  {sanitize(rule.text)}", "text")]
    out += [("", "text")] * bool(answer.rules)
    out += [(f"note: {sanitize(note)}", "text") for note in answer.notes]
    if answer.facts:
        out += [("", "text"), ("figures", "title")]
    for fact in answer.facts:
        out.append((f"  {sanitize(fact.label)}: {sanitize(fact.text)}", "strong"))
        if fact.help:
            out.append((f"    {sanitize(fact.help)}", "dim"))
    for table in answer.tables:
        out += [("", "text"), (f"table: {sanitize(table.title)}", "title")]
        if table.note:
            out.append((f"  {sanitize(table.note)}", "text"))
        out += [
            (f"  {sanitize(column.label)}: {sanitize(column.help)}", "dim")
            for column in table.columns
            if column.help and not column.hidden
        ]
    return out


def trust_paragraphs(trust: Trust) -> list[Paragraph]:
    """Show all limitations of a trace, worst first, each with a remedy."""
    out: list[Paragraph] = [(f"{format_count(trust.events)} events read.", "dim"), ("", "text")]
    if not trust.remarks:
        out.append(("✓ Nothing is missing, odd or incomplete.", "good"))
    for remark in trust.remarks:
        out.append((f"{MARKS[remark.level]} {sanitize(remark.text)}", remark.level))
        if remark.remedy:
            out.append((f"  → {sanitize(remark.remedy)}", "text"))
        out.append(("", "text"))
    return out


#: No script to read has more bytes.
_LARGEST: Final = 4 << 20


class SourceScreen(Screen[None], inherit_bindings=False):
    """Shows a file, from the first line below the header that holds ``find`` in quotes; empty = from the top."""

    CSS = """
    SourceScreen #head { height: 1; }
    SourceScreen VerticalScroll { height: 1fr; scrollbar-size: 1 1; }
    SourceScreen Static { width: auto; }
    """
    HELP = "The script as it lies on disk. Copy it, change it, and run it under `tuiprof run -- python FILE`."
    BINDINGS: ClassVar[list[BindingType]] = [
        _source("up,k", "scroll(-1)", "up", "One line up", id="source.up", show=False),
        _source("down,j", "scroll(1)", "down", "One line down", id="source.down", show=False),
        _source("pageup", "page(-1)", "page up", "One page up", id="source.page_up"),
        _source("pagedown,space", "page(1)", "page down", "One page down", id="source.page_down"),
        _source("home,g", "edge(0)", "start", "Go to the first line", id="source.start"),
        _source("end,G", "edge(1)", "end", "Go to the last line", id="source.end"),
        _source("escape,q", "close", "back", "Back to the library", id="source.close", display="q"),
    ]

    def __init__(self, path: Path, find: str = "") -> None:
        super().__init__()
        self._path = path
        self._find = find
        self._first = 0

    def compose(self) -> ComposeResult:
        """Name, text, keys."""
        yield Painted(id="head")
        yield Heading("")
        with VerticalScroll(can_focus=False):
            yield Static(self._text(), markup=False)
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the name of the file, and scroll to the line."""
        name, folder = sanitize(self._path.name), sanitize(str(self._path.parent))
        self.query_one("#head", Painted).paint(
            lambda width, _: [spread([(f" {name}", "title")], [(f"{folder} ", "dim")], width)]
        )
        if self._first:
            self.call_after_refresh(self.query_one(VerticalScroll).scroll_to, y=self._first, animate=False)

    def _text(self) -> Syntax | str:
        from rich.syntax import Syntax

        try:
            lines = read_small(self._path, _LARGEST).decode("utf-8", "replace").splitlines()
        except OSError as error:
            return f"{sanitize(str(self._path))} cannot be read: {error.strerror}"
        body = next(
            (index for index, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0
        )
        if self._find:
            quoted = (f'"{self._find}"', f"'{self._find}'")
            self._first = next(
                (
                    index
                    for index, line in enumerate(lines)
                    if index > body and any(q in line for q in quoted)
                ),
                0,
            )
        theme = "monokai" if self.app.current_theme.dark else "friendly"
        text = "\n".join(sanitize(line.expandtabs(4)) for line in lines)
        return Syntax(
            text,
            "python",
            theme=theme,
            line_numbers=True,
            background_color="default",
            highlight_lines={self._first + 1} if self._first else None,
        )

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        """Scroll by pages."""
        box = self.query_one(VerticalScroll)
        box.scroll_relative(y=pages * max(1, box.size.height - 1), animate=False)

    def action_edge(self, last: int) -> None:
        """Go to the first line, or with 1 to the last."""
        box = self.query_one(VerticalScroll)
        (box.scroll_end if last else box.scroll_home)(animate=False)

    def action_close(self) -> None:
        """Go back."""
        self.app.pop_screen()
