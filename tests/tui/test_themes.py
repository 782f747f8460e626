"""Colours and characters by what the terminal can show; every screen in every theme, in plain ASCII too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_traces import small_trace
from on_screen import running, screen_text, until, workers_done
from synthetic import Synthetic
from textual.filter import LineFilter
from textual.screen import Screen
from trace_app import screen_of

from tuiprof.report import Terminal, detect_terminal
from tuiprof.report.sanitize import to_ascii, width
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.ladder.screen import LadderForm
from tuiprof.tui.live.forms import CaptureForm
from tuiprof.tui.terminal import themes
from tuiprof.tui.terminal.output import AsciiOnly, NoColour, StripControls

UTF8 = {"LANG": "en_GB.UTF-8"}


@pytest.mark.parametrize(
    ("environ", "colours", "plain"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", **UTF8}, "many", False),
        ({"TERM": "xterm-kitty", **UTF8}, "many", False),
        ({"TERM": "screen", **UTF8}, "16", False),
        ({"TERM": "xterm", **UTF8}, "16", False),
        ({"TERM": "tmux-256color", "NO_COLOR": "1", **UTF8}, "none", False),
        ({"TERM": "xterm-256color", "NO_COLOR": "", **UTF8}, "many", False),
        ({"TERM": "linux", **UTF8}, "16", True),
        ({"TERM": "vt100", **UTF8}, "none", True),
        ({"TERM": "dumb"}, "none", True),
        ({"TERM": "xterm-256color", "LANG": "de_DE.ISO-8859-1"}, "many", True),
        ({"TERM": "xterm-256color", "LC_ALL": "C", **UTF8}, "many", True),
        ({"TERM": "xterm-256color", "LANG": "C"}, "many", False),
        ({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}, "many", False),
    ],
)
def test_what_a_terminal_can_show(environ: dict[str, str], colours: str, plain: bool) -> None:
    found = detect_terminal(environ)
    assert (found.colours, found.plain) == (colours, plain)
    assert (
        themes.suited(found) == {"many": "tuiprof-dark", "16": "tuiprof-16", "none": "tuiprof-mono"}[colours]
    )


def test_each_cell_becomes_one_character() -> None:
    drawn = "".join(
        chr(code) for code in (*range(0x2190, 0x2200), *range(0x2300, 0x2600), *range(0x2800, 0x2900))
    )
    for text in (drawn, "µ·…é°–✓✗⚑", "カーネル", "e\u0301", "\u2400\u241b"):
        plain = to_ascii(text)
        assert plain.isascii()
        assert plain.isprintable()
        assert len(plain) == width(text)
    assert to_ascii("▁▄█⣿⠉⣀ü") == ".:##'.u"


@pytest.fixture
def session(tmp_path: Path) -> Path:
    made = Synthetic(tmp_path / "s").ran(10, code=0)
    return made.session.path


def start_of(screen: str, session: Path) -> Start:
    return Start("live", session) if screen == "live" else Start(sessions=session.parent)


@pytest.mark.parametrize("theme", [theme.name for theme in themes.OURS])
@pytest.mark.parametrize("screen", ["live", "library", "trace"])
async def test_every_screen_in_every_theme(
    theme: str, screen: str, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUIPROF_THEME", theme.removeprefix("tuiprof-"))
    async with running(TuiprofApp(start_of(screen, session)), size=(80, 24)) as (app, pilot):
        if screen == "trace":
            await app.push_screen(screen_of(small_trace()))
        await until(pilot, lambda: "help" in screen_text(app))
        await workers_done(pilot)
        assert app.theme == theme
        await pilot.press("question_mark")
        await until(pilot, lambda: "esc closes" in screen_text(app))
        await pilot.press("escape")
        colours = {
            segment.style.color.name
            for strip in painted(app.screen)
            for segment in strip
            if segment.style and segment.style.color
        }
        if theme == "tuiprof-mono":
            assert colours <= {"default"}
        if theme == "tuiprof-16":
            assert not {name for name in colours if name.startswith("#")}


def painted(screen: Screen[object]) -> list[list]:  # type: ignore[type-arg]
    """Return the segments of the screen as they are sent, filters applied."""
    lines = screen._compositor.render_strips()
    return [list(strip) for strip in lines]


@pytest.mark.parametrize("screen", ["live", "library", "trace"])
async def test_ascii_alone(screen: str, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_ASCII", "1")
    async with running(TuiprofApp(start_of(screen, session))) as (app, pilot):
        if screen == "trace":
            await app.push_screen(screen_of(small_trace()))
        await until(pilot, lambda: "help" in screen_text(app))
        for keys in ((), ("question_mark",), ("escape", "ctrl+p")):
            await pilot.press(*keys)
            await workers_done(pilot)
            text = screen_text(app)
            assert text.isascii(), [c for c in text if not c.isascii()][:20]


@pytest.mark.parametrize("theme", ["dark", "mono"])
async def test_a_line_that_stays_is_filtered_once(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_THEME", theme)
    monkeypatch.setenv("TUIPROF_ASCII", "1")
    filtered: list[LineFilter] = []
    for kind in (StripControls, NoColour, AsciiOnly):
        apply = kind.apply

        def counted(this: LineFilter, *line: Any, apply: Callable[..., Any] = apply) -> Any:
            filtered.append(this)
            return apply(this, *line)

        monkeypatch.setattr(kind, "apply", counted)
    app = TuiprofApp(Start())
    async with app.run_test() as pilot:
        await app.push_screen(screen_of(small_trace()))
        await workers_done(pilot)
        screen_text(app)
        assert len({type(one) for one in filtered}) == 2 + (theme == "mono")
        filtered.clear()
        screen_text(app)
        assert not filtered


def test_an_unknown_theme_is_said_and_a_short_name_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_THEME", "light")
    assert TuiprofApp(Start()).theme == "tuiprof-light"
    monkeypatch.setenv("TUIPROF_THEME", "none such")
    app = TuiprofApp(Start())
    assert app.theme == "tuiprof-dark"
    assert "unknown theme 'none such'; choose one of " in app._problems[0]


def test_without_a_wish_the_terminal_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUIPROF_THEME", raising=False)
    monkeypatch.setattr("tuiprof.tui.terminal.terminal_app.this_terminal", lambda: Terminal("16", plain=True))
    app = TuiprofApp(Start())
    assert app.theme == "tuiprof-16"
    assert app.terminal.plain


async def test_what_is_switched_on_says_so_without_its_colour(session: Path) -> None:
    async with running(TuiprofApp(Start(sessions=session.parent)), size=(100, 30)) as (app, pilot):
        await app.push_screen(CaptureForm(5))
        await until(pilot, lambda: screen_text(app).count("[ ]") == 3)
        await pilot.press("tab", "space")
        await until(pilot, lambda: "[x] Python stacks" in screen_text(app))
        assert screen_text(app).count("[ ]") == 2
        app.pop_screen()
        await app.push_screen(LadderForm("tiny", ["fit", "paper"]))
        await until(pilot, lambda: "(●) fit" in screen_text(app) and "( ) paper" in screen_text(app))
