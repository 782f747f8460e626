"""Bindings: each has an id, a tooltip and a group, is in the help, and can be remapped."""

from __future__ import annotations

from pathlib import Path

import pytest
from on_screen import live, press, running, screen_text, until, until_shown
from synthetic import Synthetic
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import OptionList

from tests import real_traces
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.app.help import HelpScreen, all_bindings
from tuiprof.tui.app.palette import moves_cursor
from tuiprof.tui.live.screen import LiveScreen
from tuiprof.tui.terminal.keys import load_settings
from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.widgets.table import VirtualTable


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("TUIPROF_CONFIG", str(path))
    return path


@pytest.fixture
def session(tmp_path: Path) -> Path:
    made = Synthetic(tmp_path / "s", ranks=2).ran(3)
    return made.session.path


def test_every_binding_has_an_id_a_tooltip_and_a_group() -> None:
    bindings = list(all_bindings())
    assert len({binding.id for binding in bindings}) > 40
    for binding in bindings:
        assert binding.id, binding
        assert "." in binding.id, binding
        assert binding.tooltip, binding
        assert binding.group is not None, binding
        assert binding.description, binding


async def test_help_lists_every_key_that_works(session: Path, config: Path) -> None:
    async with running(live(session), "step time", "rank +", size=(140, 100)) as (app, pilot):
        working = {active.binding.id for active in app.screen.active_bindings.values()}
        text = await press(pilot, "question_mark", shows=("esc closes", "What this screen shows"))
        assert "app.palette" not in text  # ids are for those who ask
        assert text.index("Search commands, scenarios") < text.index("Jitter is the median")
        # The screen's own keys first; of Textual's own only those for the panes, in our words.
        assert text.index("Pause the display") < text.index("Everywhere")
        assert text.index("Capture the next 5 steps") < text.index("One line up")
        assert "Go to the next pane" in text
        assert "Focus Next" not in text
        assert "^" not in text.replace("ctrl+", ""), "one notation for ctrl"
        text = await press(pilot, "i", shows=("i ids", str(config)))
        assert isinstance(app.screen, HelpScreen)
        for binding in LiveScreen.BINDINGS:
            assert not isinstance(binding, tuple)
            # Long ids may be cut by the width of the page, never left out.
            assert (str(binding.id) in text) == (binding.id in working), binding.id
        assert "app.palette" in text
        assert "output.home" in text
        assert "Jitter is the median" in text
        await press(pilot, "escape", shows="step time")


@pytest.mark.parametrize(("columns", "text_cells"), [(60, 33), (50, 24), (20, 8)])
async def test_long_lines_of_the_help_go_on_below_their_text(
    session: Path, columns: int, text_cells: int
) -> None:
    async with running(live(session), "? help", size=(columns, 100)) as (app, pilot):
        await press(pilot, "question_mark", opens=HelpScreen)
        assert isinstance(app.screen, HelpScreen)
        below = [line for line in app.screen._page().plain.splitlines() if line.startswith(" " * 16)]
        widest = max(len(line) - 16 for line in below)
        assert text_cells - 8 < widest <= text_cells


async def test_home_and_end_scroll_the_help(session: Path) -> None:
    async with running(live(session), "? help", size=(80, 24)) as (app, pilot):
        await press(pilot, "question_mark", opens=HelpScreen)
        box = app.screen.query_one(VerticalScroll)
        assert box.max_scroll_y > 0
        await pilot.press("end")
        await until(pilot, lambda: box.scroll_y == box.max_scroll_y)
        await pilot.press("home")
        await until(pilot, lambda: box.scroll_y == 0)


async def test_help_of_a_trace_has_one_line_for_the_digits_and_its_footer_no_key_without_effect() -> None:
    app = TuiprofApp(Start("trace", real_traces.path("hta-cpu-only-rank34.pt.trace.json.gz")))
    async with app.run_test(size=(140, 60)) as pilot:
        text = await until_shown(pilot, "gloo:all_reduce", "9 Advice ✓", "+ - 0 zoom")
        assert "next sync" not in text
        assert "launch ↔ work" not in text
        text = await press(pilot, "question_mark", shows=("Open the tab of this number", "Search commands"))
        assert text.count("Open the tab of this number") == 1
        assert "1–9 " in text
        await press(pilot, "i", shows=("trace.tab_1", "trace.tab_9"))


async def test_the_palette_does_what_every_key_of_every_pane_does(config: Path) -> None:
    app = TuiprofApp(Start("trace", real_traces.SMALL))
    async with app.run_test(size=(140, 48)) as pilot:
        await until_shown(pilot, "By operator", "stream 7")
        timeline, table = app.screen.query_one(Timeline), app.screen.query_one(VirtualTable)
        assert app.focused is table
        works = {a.binding for a in app.screen.active_bindings.values() if a.enabled and a.tooltip}
        wanted = {*works, *Binding.make_bindings(timeline.BINDINGS), *Binding.make_bindings(table.BINDINGS)}
        moving = {b.id for b in wanted if moves_cursor(b)}
        assert {"table.down", "timeline.cursor_forward"} <= moving
        sentences = {b.tooltip for b in wanted if b.action != "command_palette" and b.id not in moving}
        await pilot.press("ctrl+p")
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count >= len(sentences))
        offered = "\n".join(str(option.prompt) for option in options.options)
        assert {sentence for sentence in sentences if sentence not in offered} == set()
        texts = [str(option.prompt).rpartition("  ")[0].strip() for option in options.options]
        assert len(set(texts)) == len(texts), "nothing is offered twice"
        assert any(text.startswith("tab Kernels — ") for text in texts), "every tab by its title"
        await press(pilot, *"next event", shows=". in timeline")
        await pilot.press("enter")
        await until(pilot, lambda: timeline.has_focus and timeline.state.event is not None)


@pytest.mark.parametrize("width", [60, 120])
async def test_palette_help_and_the_way_out_are_at_the_same_place_in_every_footer(
    session: Path, tmp_path: Path, width: int
) -> None:
    app = TuiprofApp(Start(sessions=tmp_path))

    def footer() -> str:
        return screen_text(app).rstrip("\n").split("\n")[-1].ljust(width)

    async with app.run_test(size=(width, 30)) as pilot:
        await until_shown(pilot, "ctrl+p", "? help", "q quit")
        places = [footer().index(text) for text in ("ctrl+p", "? help", "q quit")]
        app.go.session(session)
        await until_shown(pilot, "step time", "q leave")
        assert [footer().index(text) for text in ("ctrl+p", "? help", "q leave")] == places
        await pilot.press("q")
        app.go.trace(real_traces.SMALL)
        await until_shown(pilot, "q close", "stream 7" if width > 100 else "step")
        assert [footer().index(text) for text in ("ctrl+p", "? help", "q close")] == places
        await pilot.click(offset=(places[1], 29))
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))


async def test_the_footer_of_a_text_field_shows_no_key_that_is_typed_into_it(tmp_path: Path) -> None:
    app = TuiprofApp(Start(sessions=tmp_path))

    def footer() -> str:
        return screen_text(app).rstrip("\n").split("\n")[-1]

    async with app.run_test(size=(120, 30)) as pilot:
        await until_shown(pilot, "? help", "Learn")
        await press(pilot, "slash", "plus", "question_mark", "slash", shows=("+?/", "no match"))
        assert footer().split() == ["esc", "clear", "filter", "ctrl+p", "commands", "f1", "help"]
        await press(pilot, "f1", opens=HelpScreen)
        await pilot.press("escape")
        app.go.trace(real_traces.SMALL)
        await until_shown(pilot, "By operator", "+ - 0 zoom", "/ filter")
        await press(pilot, "slash", shows="text to search for")
        assert footer().split() == ["esc", "clear", "filter", "ctrl+p", "commands", "f1", "help"]


async def test_keys_and_theme_come_from_the_configuration(session: Path, config: Path) -> None:
    config.write_text('theme = "tuiprof-light"\n[keys]\n"live.window" = "w"\n')
    async with running(live(session), "w zoom", "last 60 s", size=(140, 40)) as (app, pilot):
        assert app.theme == "tuiprof-light"
        await pilot.press("z")
        await press(pilot, "w", shows="last 5 min")


async def test_what_is_wrong_with_the_configuration_is_said(session: Path, config: Path) -> None:
    config.write_text('theme = "none such"\ncolour = 1\n[keys]\n"live.nothing" = "w"\n"live.window" = 3\n')
    async with running(live(session), size=(160, 60), notifications=True) as (_, pilot):
        await until_shown(
            pilot, "unknown theme 'none such'", "unknown setting 'colour'", "'live.nothing'", "'live.window'"
        )


def test_a_file_that_is_not_toml_is_told(config: Path) -> None:
    config.write_text("[keys\n")
    assert "is not TOML" in load_settings().problems[0]
    config.write_bytes(b"\xff\xfe")
    assert "is not TOML" in load_settings().problems[0]
    config.unlink()
    assert load_settings().problems == ()


def test_every_setting_of_the_configuration_is_known(config: Path) -> None:
    config.write_text('scenarios = []\nkeep_source = false\ntheme = "tuiprof-light"\n[keys]\n')
    assert load_settings().problems == ()
