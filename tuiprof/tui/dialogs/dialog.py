"""Dialogs without input fields: a question, a list, the columns of a table, text to read, a source file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from tuiprof.model.units import format_count
from tuiprof.report.sanitize import sanitize, sanitize_lines
from tuiprof.system.files import read_small
from tuiprof.tui.terminal.glyphs import MARKS
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choice, Choices
from tuiprof.tui.widgets.lines import Heading, Painted, Row, spread
from tuiprof.tui.widgets.spans import fit_text, wrap

if TYPE_CHECKING:
    from rich.syntax import Syntax

    from tuiprof.model.report import Column, Report, Unavailable
    from tuiprof.model.trust import Trust

#: Minimum width of a dialog, and the cells that border, padding and cursor take beside a choice.
_WIDTH, _FRAME = 76, 8


def dialog(title: str, classes: str = "dialog") -> Vertical:
    """Return the box of a dialog. The title may be untrusted; it is not parsed as markup."""
    box = Vertical(classes=classes)
    box.border_title = Content(sanitize(title))
    return box


class ConfirmScreen(ModalScreen[bool], inherit_bindings=False):
    """Asks a yes-or-no question; ``lines`` explain the consequences. Returns True for ``y``, else None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("y", "dismiss(True)", "yes", "Yes", id="confirm.yes", group="Question"),
        key("n,escape,q", "dismiss", "no", "No", id="confirm.no", group="Question", display="n"),
    ]

    def __init__(self, title: str, lines: list[str], *, yes: str = "yes", no: str = "no") -> None:
        super().__init__()
        self._question = title
        self._lines = lines
        self._labels = {"confirm.yes": yes, "confirm.no": no}

    def compose(self) -> ComposeResult:
        with dialog(self._question):
            yield Painted(id="text")
            yield KeyBar(self._labels)

    def on_mount(self) -> None:
        def draw(width: int, _height: int) -> list[Row]:
            wrapped = [part for line in self._lines for part in textwrap.wrap(sanitize(line), max(20, width))]
            return [*([(part, "text")] for part in wrapped), []]

        self.query_one("#text", Painted).paint(draw)


class PickScreen(ModalScreen[int], inherit_bindings=False):
    """Returns the index of the chosen name; None = cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape,q", "dismiss", "cancel", "Close without choosing", id="pick.cancel", group="Choice",
            display="esc"),
    ]  # fmt: skip

    def __init__(self, title: str, names: list[str]) -> None:
        super().__init__()
        self._question = title
        self._names = names

    def compose(self) -> ComposeResult:
        with dialog(self._question) as box:
            longest = max((cell_len(sanitize(name)) for name in self._names), default=0)
            box.styles.width = max(_WIDTH, longest + _FRAME)
            choices = Choices(id="names")
            choices.styles.height = min(len(self._names), 16)
            yield choices
            yield KeyBar()

    def on_mount(self) -> None:
        choices = self.query_one(Choices)
        choices.show(
            [Choice(str(index), [(sanitize(name), "text")]) for index, name in enumerate(self._names)]
        )
        choices.focus()

    def on_choices_chosen(self, event: Choices.Chosen) -> None:
        self.dismiss(int(event.key))


def _column_key(keys: str, action: str, label: str, tooltip: str, display: str | None = None) -> Binding:
    name = label.replace(" ", "_")
    return key(
        keys,
        action,
        label,
        tooltip,
        id=f"columns.{name.replace('_/_', '_or_')}",
        group="Columns",
        display=display,
    )


class ColumnsScreen(ModalScreen[list[str]], inherit_bindings=False):
    """Returns the keys of the columns to show, in order; empty = the default columns; None = cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        _column_key("enter", "take", "apply", "Show these columns, and remember them"),
        _column_key("space,x", "toggle_column", "show / hide", "Show or hide the column under the cursor",
                    "space"),
        _column_key("K,shift+up", "shift(-1)", "up", "Move the column to the left", "K"),
        _column_key("J,shift+down", "shift(1)", "down", "Move the column to the right", "J"),
        _column_key("r", "dismiss([])", "default", "Restore the default columns"),
        _column_key("escape,q", "dismiss", "cancel", "Close without changing the columns", "esc"),
    ]  # fmt: skip

    def __init__(self, columns: Sequence[Column], shown: Sequence[str]) -> None:
        super().__init__()
        by_key = {column.key: column for column in columns}
        first = [by_key[name] for name in shown if name in by_key]
        self._columns = [*first, *(column for column in columns if column.key not in shown)]
        self._shown = set(shown)

    def compose(self) -> ComposeResult:
        with dialog("columns"):
            choices = Choices(id="columns")
            choices.styles.height = min(len(self._columns), 18)
            yield choices
            yield KeyBar({"list.open": "apply"})

    def on_mount(self) -> None:
        self._draw()
        self.query_one(Choices).focus()

    def _draw(self) -> None:
        self.query_one(Choices).show([Choice(column.key, self._line(column)) for column in self._columns])

    def _line(self, column: Column) -> Row:
        on = column.key in self._shown
        label = fit_text(sanitize(column.label), 18)
        return [
            ("[x] " if on else "[ ] ", "accent" if on else "dim"),
            (label, "text" if on else "dim"),
            ("  " + sanitize(column.help), "dim"),
        ]

    @property
    def _index(self) -> int:
        current = self.query_one(Choices).current
        return next(i for i, column in enumerate(self._columns) if column.key == current)

    def action_toggle_column(self) -> None:
        self._shown ^= {self._columns[self._index].key}
        self._draw()

    def action_shift(self, by: int) -> None:
        old = self._index
        new = old + by
        if 0 <= new < len(self._columns):
            self._columns[old], self._columns[new] = self._columns[new], self._columns[old]
            self._draw()

    def action_take(self) -> None:
        chosen = [column.key for column in self._columns if column.key in self._shown]
        if chosen:
            self.dismiss(chosen)
        else:
            self.notify("choose at least one column", severity="warning", timeout=3)

    on_choices_chosen = action_take  # the list handles enter itself


_source = partial(key, group="Source")

Paragraph = tuple[str, str]


class ReadingScreen(ModalScreen[None], inherit_bindings=False):
    """Shows paragraphs, each a text and its role, in a window; an empty text is a blank line.

    Leading blanks indent wrapped lines too. ``opened_by`` is the action of the screen below whose key opened the
    window, and then also closes it; empty = none.
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
        key("escape,q,enter", "dismiss", "close", "Close this window", id="reading.close", group="Window")
    ]

    def __init__(self, title: str, paragraphs: Sequence[Paragraph], *, opened_by: str = "") -> None:
        super().__init__()
        self._opened_by = opened_by
        self._title = title
        self._paragraphs = paragraphs

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Heading(self._title)
            with VerticalScroll():
                yield Painted()
            yield KeyBar()

    def on_mount(self) -> None:
        self.query_one(Painted).paint(self._draw)
        self.query_one(VerticalScroll).focus()

    def _draw(self, width: int, height: int) -> list[Row]:
        rows: list[Row] = []
        for text, role in self._paragraphs:
            rows.extend(paragraph(text, role, width))
        return rows

    def on_key(self, event: events.Key) -> None:
        """Close the window with the key that opened it, which the user may have remapped."""
        below = self.app.screen_stack[-2].active_bindings.get(event.key) if self._opened_by else None
        if below is not None and below.binding.action == self._opened_by:
            event.stop()
            self.dismiss()


def paragraph(text: str, role: str, width: int) -> list[Row]:
    """Wrap a paragraph, keeping its indent on every line."""
    bare = text.lstrip(" ")
    indent = " " * (len(text) - len(bare))
    return [[(indent + line, role)] for line in wrap(bare, max(width - len(indent), 8))]


def answer_paragraphs(answer: Report | Unavailable | None, question: str) -> list[Paragraph]:
    """Return an analysis in words: question, verdict, rules, notes, definitions of its figures and columns."""
    from tuiprof.model.report import Unavailable

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
    """Return all limitations of a trace, worst first, each with its remedy."""
    out: list[Paragraph] = [(f"{format_count(trust.events)} events read.", "dim"), ("", "text")]
    if not trust.remarks:
        out.append(("✓ No problems found in this trace.", "good"))
    for remark in trust.remarks:
        out.append((f"{MARKS[remark.level]} {sanitize(remark.text)}", remark.level))
        if remark.remedy:
            out.append((f"  → {sanitize(remark.remedy)}", "text"))
        out.append(("", "text"))
    return out


#: Maximum size of a script that is shown, bytes.
_MAX_SOURCE: Final = 4 << 20


class SourceScreen(Screen[None], inherit_bindings=False):
    """Shows a script from the first line below the header that contains a text in quotes, else from the top."""

    CSS = """
    SourceScreen #head { height: 1; }
    SourceScreen VerticalScroll { height: 1fr; scrollbar-size: 1 1; overflow-x: auto; }
    SourceScreen Static { width: auto; }
    """
    HELP = "The script as it is on disk. Copy it, change it, and run it with `tuiprof run -- python FILE`."
    BINDINGS: ClassVar[list[BindingType]] = [
        _source("up,k", "scroll(-1)", "up", "One line up", id="source.up", show=False),
        _source("down,j", "scroll(1)", "down", "One line down", id="source.down", show=False),
        _source("pageup", "page(-1)", "page up", "One page up", id="source.page_up"),
        _source("pagedown,space", "page(1)", "page down", "One page down", id="source.page_down"),
        _source("left,h", "across(-8)", "left", "Scroll to the left", id="source.left", show=False),
        _source("right,l", "across(8)", "right", "Scroll to the right", id="source.right", show=False),
        _source("home,g", "edge(0)", "first line", "Go to the first line", id="source.start"),
        _source("end,G", "edge(1)", "last line", "Go to the last line", id="source.end"),
        _source("escape,q", "leave", "back", "Back to the screen before", id="source.close", display="q"),
    ]

    def __init__(self, path: Path, find: str = "") -> None:
        super().__init__()
        self._path = path
        self._find = find
        self._first = 0

    def compose(self) -> ComposeResult:
        yield Painted(id="head")
        yield Heading("")
        with VerticalScroll(can_focus=False):
            yield Static(self._text(), markup=False)
        yield KeyBar()

    def on_mount(self) -> None:
        name, folder = sanitize(self._path.name), sanitize(str(self._path.parent))
        self.query_one("#head", Painted).paint(
            lambda width, _: [spread([(f" {name}", "title")], [(f"{folder} ", "dim")], width)]
        )
        if self._first:
            self.call_after_refresh(self.query_one(VerticalScroll).scroll_to, y=self._first, animate=False)

    def _text(self) -> Syntax | str:
        from rich.syntax import Syntax

        try:
            lines = read_small(self._path, _MAX_SOURCE).decode("utf-8", "replace").splitlines()
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
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_across(self, columns: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(x=columns, animate=False)

    def action_page(self, pages: int) -> None:
        box = self.query_one(VerticalScroll)
        box.scroll_relative(y=pages * max(1, box.size.height - 1), animate=False)

    def action_edge(self, last: int) -> None:
        """Go to the first (0) or last (1) line."""
        box = self.query_one(VerticalScroll)
        (box.scroll_end if last else box.scroll_home)(animate=False)

    def action_leave(self) -> None:
        self.app.pop_screen()
