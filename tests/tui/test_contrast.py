"""What is drawn can be read: contrast by the formula of the Web Content Accessibility Guidelines, theme by theme."""

from __future__ import annotations

import pytest
from on_screen import until_shown
from rich.style import Style
from textual.widget import Widget
from trace_app import app_of, settle

from tuiprof.resources import shipped
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.start import Start
from tuiprof.tui.terminal import themes
from tuiprof.tui.timeline.canvas import Overlay
from tuiprof.tui.timeline.lane_cells import Kind
from tuiprof.tui.widgets.lines import ROLES

#: Solid shapes: what they say lies in their height or shade, as in any chart.
SHAPES = {Kind.KERNEL, Kind.IDLE, Kind.COUNTER}
#: Ticks, rules, what is spread around a line, and words that only repeat what the keys say.
ORNAMENTS = {"faint", "rule", "spread", "history", "median"}
TEXT, SHAPE = 4.5, 3.0


def contrast(style: Style) -> float:
    """Return the contrast of a style's text with what is behind it, from 1 to 21."""

    def light(part: float) -> float:
        return part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4

    def luminance(red: int, green: int, blue: int) -> float:
        return 0.2126 * light(red / 255) + 0.7152 * light(green / 255) + 0.0722 * light(blue / 255)

    assert style.color is not None
    assert style.bgcolor is not None
    dark, bright = sorted(luminance(*color.get_truecolor()) for color in (style.color, style.bgcolor))
    return (bright + 0.05) / (dark + 0.05)


def test_the_formula() -> None:
    assert contrast(Style.parse("#ffffff on #000000")) == pytest.approx(21)
    assert contrast(Style.parse("#777777 on #ffffff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [theme.name for theme in (themes.DARK, themes.LIGHT, themes.CONTRAST)])
async def test_lanes_tables_and_words_can_be_read(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_THEME", theme.removeprefix("tuiprof-"))
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
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
                wanted = min(wanted, 4.0) if over is Overlay.SELECTION else wanted
                found[f"{kind!r} {over!r}"] = (contrast(app.timeline.canvas.style(kind, over)), wanted)
            # What the analyses do not look at steps back.
            outside, inside = (
                contrast(app.timeline.canvas.style(kind, over)) for over in (Overlay.OUTSIDE, Overlay(0))
            )
            assert 1.2 < outside < inside, kind
        for name in sorted(app.table.COMPONENT_CLASSES):
            found[name] = (contrast(app.table.get_component_rich_style(name)), TEXT)
        below = app.view.pane.tables.below
        for role in ROLES:
            found[role] = (contrast(below.style_of(role)), 1.5 if role in ORNAMENTS else TEXT)
        bar = app.table.styles
        line = Style(color=bar.scrollbar_color.rich_color, bgcolor=bar.scrollbar_background.rich_color)
        found["scroll line"] = (contrast(line), SHAPE)
    weak = {name: round(ratio, 2) for name, (ratio, wanted) in found.items() if ratio < wanted}
    assert not weak


@pytest.mark.parametrize("theme", [themes.SIXTEEN.name, themes.MONO.name])
async def test_few_colours_never_draw_a_colour_on_itself(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_THEME", theme.removeprefix("tuiprof-"))
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        for kind in Kind:
            for over in (Overlay(0), Overlay.CURSOR, Overlay.SELECTION):
                style = app.timeline.canvas.style(kind, over)
                assert style.color is not None
                assert style.bgcolor is not None
                assert style.color.is_default or style.color.name != style.bgcolor.name, (kind, over)


@pytest.mark.parametrize("theme", [theme.name for theme in (themes.DARK, themes.LIGHT, themes.CONTRAST)])
async def test_no_word_of_a_dialog_or_a_table_is_too_faint_to_be_read(
    theme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUIPROF_THEME", theme.removeprefix("tuiprof-"))
    app = TuiprofApp(Start.trace(shipped("traces") / "metrics-naive.pt.trace.json.gz"))

    def weak(*, within: Widget | None = None) -> dict[str, float]:
        strips = app.screen._compositor.render_strips()
        found: dict[str, float] = {}
        for y, strip in enumerate(strips):
            x = 0
            for segment in strip:
                inside = within is None or within.region.contains(x, y)
                x += segment.cell_length
                if inside and segment.style and segment.text.strip(" ─│┃━▕▏╭╮╰╯"):
                    ratio = contrast(segment.style)
                    if ratio < TEXT and any(char.isalpha() for char in segment.text):
                        found[segment.text.strip()] = round(ratio, 2)
        return found

    async with app.run_test(size=(120, 36)) as pilot:
        await until_shown(pilot, "saves about", "table 1 of", "lost to this finding")
        assert not weak()
        for keys in ("c", "slash", "ctrl+p"):
            await pilot.press(keys)
            await pilot.pause()
            box = app.screen.query(".dialog, CommandPalette > Vertical, FilterBar").first()
            assert not weak(within=box), keys
            await pilot.press("escape")
            await pilot.pause()
