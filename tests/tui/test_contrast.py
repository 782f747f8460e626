"""What is drawn can be read: contrast by the formula of the Web Content Accessibility Guidelines, theme by theme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from on_screen import running, until_shown, workers_done
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from synthetic import Synthetic
from textual.app import App
from textual.widget import Widget
from trace_app import app_of, settled

from tests import real_traces
from tuiprof.resources import shipped
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.terminal import themes
from tuiprof.tui.timeline.canvas import Overlay
from tuiprof.tui.timeline.view import Kind
from tuiprof.tui.widgets.lines import ROLES

#: Solid shapes: what they say lies in their height or shade, as in any chart.
SHAPES = {Kind.KERNEL, Kind.IDLE, Kind.COUNTER}
#: Ticks, rules, what is spread around a line, and words that only repeat what the keys say.
ORNAMENTS = {"faint", "rule", "spread", "median"}
TEXT, SHAPE, TINTED = 4.5, 3.0, 4.0
COLOURED = [theme.name for theme in (themes.DARK, themes.LIGHT, themes.CONTRAST, themes.SIXTEEN)]

#: The colours of the Linux console, the darkest of those that are in use.
VGA = TerminalTheme(
    (0, 0, 0),
    (170, 170, 170),
    # Black, red, green, brown, blue, magenta, cyan, white.
    [(0, 0, 0), (170, 0, 0), (0, 170, 0), (170, 85, 0), (0, 0, 170), (170, 0, 170), (0, 170, 170), (170,) * 3],
    [(red, green, blue) for blue in (85, 255) for green in (85, 255) for red in (85, 255)],
)  # fmt: skip


def contrast(style: Style) -> float:
    """Return the contrast of a style's text with what is behind it, from 1 to 21; without a theme, on a console."""

    def light(part: float) -> float:
        return part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4

    def luminance(red: int, green: int, blue: int) -> float:
        return 0.2126 * light(red / 255) + 0.7152 * light(green / 255) + 0.0722 * light(blue / 255)

    text = style.color.get_truecolor(VGA) if style.color else VGA.foreground_color
    behind = style.bgcolor.get_truecolor(VGA, foreground=False) if style.bgcolor else VGA.background_color
    dark, bright = sorted(luminance(*color) for color in (text, behind))
    return (bright + 0.05) / (dark + 0.05)


def faint_words(app: App[Any], within: Widget | None = None) -> dict[str, float]:
    """Return the words on the screen that are too faint to be read, with their contrast."""
    found: dict[str, float] = {}
    for y, strip in enumerate(app.screen._compositor.render_strips()):
        x = 0
        for segment in strip:
            inside = within is None or within.region.contains(x, y)
            x += segment.cell_length
            if inside and segment.style and any(char.isalpha() for char in segment.text):
                ratio = contrast(segment.style)
                # The 16 colours have one blue for the tint of a selection.
                tinted = segment.style.bgcolor is not None and segment.style.bgcolor.number == 4
                if ratio < (TINTED if tinted else TEXT):
                    found[segment.text.strip()] = round(ratio, 2)
    return found


def test_the_formula() -> None:
    assert contrast(Style.parse("#ffffff on #000000")) == pytest.approx(21)
    assert contrast(Style.parse("#777777 on #ffffff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", COLOURED)
async def test_lanes_tables_and_words_can_be_read(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_THEME", theme.removeprefix("tuiprof-"))
    async with settled(app_of()) as (app, _):
        found: dict[str, tuple[float, float]] = {}
        for kind in Kind:
            for over in (
                Overlay(0),
                Overlay.CURSOR,
                Overlay.SELECTION,
                Overlay.HIT,
                Overlay.LINK,
                Overlay.EVENT,
            ):
                wanted = SHAPE if kind in SHAPES else TEXT
                # A selection is a tint that comes and goes; large enough to be read is enough.
                tinted = over is Overlay.SELECTION or (
                    over is Overlay.CURSOR and theme == themes.SIXTEEN.name
                )
                wanted = min(wanted, TINTED) if tinted else wanted
                found[f"{kind!r} {over!r}"] = (contrast(app.timeline.canvas.style(kind, over)), wanted)
            # What the analyses do not look at steps back.
            outside, inside = (
                contrast(app.timeline.canvas.style(kind, over)) for over in (Overlay.OUTSIDE, Overlay(0))
            )
            assert (SHAPE if theme != themes.SIXTEEN.name else 2.5) < outside < inside, kind
        for name in sorted(app.table.COMPONENT_CLASSES):
            found[name] = (contrast(app.table.get_component_rich_style(name)), TEXT)
        below = app.view.pane.tables.below
        for role in ROLES:
            found[role] = (
                contrast(below.style_of(role)),
                1.5 if role in ORNAMENTS else SHAPE if role == "history" else TEXT,
            )
        bar = app.table.styles
        line = Style(color=bar.scrollbar_color.rich_color, bgcolor=bar.scrollbar_background.rich_color)
        found["scroll line"] = (contrast(line), SHAPE)
    weak = {name: round(ratio, 2) for name, (ratio, wanted) in found.items() if ratio < wanted}
    assert not weak


@pytest.mark.parametrize("theme", [themes.SIXTEEN.name, themes.MONO.name])
async def test_few_colours_never_draw_a_colour_on_itself(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_THEME", theme.removeprefix("tuiprof-"))
    async with settled(app_of()) as (app, _):
        for kind in Kind:
            for over in (Overlay(0), Overlay.CURSOR, Overlay.SELECTION):
                style = app.timeline.canvas.style(kind, over)
                assert style.color is not None
                assert style.bgcolor is not None
                assert style.color.is_default or style.color.name != style.bgcolor.name, (kind, over)


@pytest.mark.parametrize("theme", COLOURED)
async def test_no_word_of_a_dialog_or_a_table_is_too_faint_to_be_read(
    theme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUIPROF_THEME", theme.removeprefix("tuiprof-"))
    app = TuiprofApp(Start("trace", real_traces.SMALL))

    async with app.run_test(size=(120, 36)) as pilot:
        await until_shown(pilot, "saves about", "table 1 of", "lost to this finding")
        assert not faint_words(app)
        for keys in ("c", "slash", "ctrl+p"):
            await pilot.press(keys)
            await pilot.pause()
            box = app.screen.query(".dialog, CommandPalette > Vertical, FilterBar").first()
            assert not faint_words(app, box), keys
            await pilot.press("escape")
            await pilot.pause()


async def test_no_word_of_a_run_a_comparison_the_library_or_a_message_is_too_faint_to_be_read(
    tmp_path: Path,
) -> None:
    made = Synthetic(tmp_path / "sessions", gpus=2).ran(20, code=0)
    traces = [
        str(shipped("traces") / f"metrics-{name}.pt.trace.json.gz") for name in ("naive", "no-nan-check")
    ]
    for start, shown in (
        (Start("live", made.session.path), "finished after"),
        (Start(), "Learn"),
        (Start("compare", compared=(traces[0], traces[1])), "What changed"),
    ):
        async with running(TuiprofApp(start), shown, "help", notifications=True) as (app, pilot):
            for severity in ("information", "warning", "error"):
                app.notify(f"what is {severity}", title="A title", severity=severity)
            await until_shown(pilot, "what is error")
            for theme in COLOURED:
                app.theme = theme
                await workers_done(pilot)
                assert not faint_words(app), theme
