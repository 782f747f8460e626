"""What keeps text of others from being obeyed by a screen; the campaign hostile_text tries to come past it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from on_screen import running
from rich.cells import cell_len
from rich.segment import Segment
from textual.app import ComposeResult
from textual.color import Color
from textual.screen import Screen
from textual.widgets import Label

from tests.hostile import CORPUS, WORST, obeyed, run_of
from tuiprof.report import Terminal
from tuiprof.session.live.replay import read_fold
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.app.inline import Strip, strip_rows
from tuiprof.tui.app.snapshot import text_of
from tuiprof.tui.dialogs.dialog import ConfirmScreen
from tuiprof.tui.terminal.output import StripControls

MARKUP = "[red]x[/red] [/] [@click=app.leave_all]OWNED[/]"


class Careless(Screen[None]):
    """A screen that draws a name as it is."""

    def compose(self) -> ComposeResult:
        yield Label(f"begin {CORPUS['CSI']} {CORPUS['bidi override']} end", markup=False)


async def test_a_widget_that_forgets_is_made_harmless(tmp_path: Path) -> None:
    async with running(TuiprofApp(Start(sessions=tmp_path)), size=(100, 20)) as (app, pilot):
        await app.push_screen(Careless())
        assert "begin a[2J" in text_of(pilot)
        assert not obeyed(text_of(pilot).replace("\n", ""))


def test_a_line_keeps_its_width() -> None:
    text = "".join(CORPUS[name] for name in ("C0 and DEL", "C1", "CSI", "bidi override"))
    (kept,) = StripControls().apply([Segment(f"a{text}b")], Color(0, 0, 0))
    assert not obeyed(kept.text)
    assert cell_len(kept.text) == cell_len(f"a{text}b")


async def test_a_title_and_a_notice_are_no_markup(tmp_path: Path) -> None:
    app = TuiprofApp(Start(sessions=tmp_path))
    async with app.run_test(size=(140, 40), notifications=True) as pilot:
        await app.push_screen(ConfirmScreen(f"Delete {MARKUP}?", [MARKUP], yes="do", no="do not"))
        app.notify(MARKUP, title=MARKUP)
        await pilot.pause()
        assert text_of(pilot).count(MARKUP) == 4


async def test_what_is_copied_does_nothing_where_it_is_pasted(tmp_path: Path) -> None:
    app = TuiprofApp(Start(sessions=tmp_path))
    async with app.run_test():
        app.copy_to_clipboard("a\tb\n\x1b[201~reboot")
        assert app.clipboard == "a\tb␊␛[201~reboot"


@pytest.mark.parametrize("terminal", [Terminal(), Terminal("none", plain=True)])
def test_a_run_under_the_prompt(terminal: Terminal, tmp_path: Path) -> None:
    made = run_of(tmp_path, WORST)
    strip = Strip(sys.stdout, terminal)
    for row in strip_rows(made.session, read_fold(made.session), made.session.status(), made.t_ns, 120):
        assert not obeyed(re.sub(r"\x1b\[[\d;]*m", "", strip.painted(row)))


def test_names_that_look_like_markup_stand_as_they_are(tmp_path: Path) -> None:
    made = run_of(tmp_path, MARKUP)
    rows = strip_rows(made.session, read_fold(made.session), made.session.status(), made.t_ns, 400)
    assert MARKUP in "".join(text for row in rows for text, _ in row)
