"""What is squeezed draws the same cells, in fewer bytes."""

from __future__ import annotations

from pathlib import Path

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_screen import running
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from synthetic import Synthetic
from textual.strip import Strip

from tuiprof.tui.terminal.output import SentCells, squeeze

COLOURS = st.none() | st.sampled_from(
    ["red", "bright_blue", "#6ea8fe", "#0f1216", "color(99)", "default"]
).map(Color.parse)
FLAG = st.sampled_from([None, True, False])
STYLES = st.builds(
    lambda color, bgcolor, bold, dim, reverse, underline: Style(
        color=None if color is None else color.name,
        bgcolor=None if bgcolor is None else bgcolor.name,
        bold=bold, dim=dim, reverse=reverse, underline=underline,
    ),
    COLOURS, COLOURS, FLAG, FLAG, FLAG, FLAG,
)  # fmt: skip
SEGMENTS = st.lists(st.tuples(st.text("ab ▄", min_size=1, max_size=3), STYLES), min_size=1, max_size=12)


def cells(data: str) -> list[object]:
    screen = pyte.Screen(40, 6)
    pyte.Stream(screen).feed(data)
    return [[screen.buffer[y][x] for x in range(40)] for y in range(6)]


@given(rows=st.lists(SEGMENTS, min_size=1, max_size=5))
@settings(max_examples=150, deadline=None)
def test_it_draws_the_same(rows: list[list[tuple[str, Style]]]) -> None:
    from rich.console import Console

    console = Console(color_system="truecolor", force_terminal=True)
    data = "".join(
        f"\x1b[{y + 1};1H" + Strip([Segment(*segment) for segment in row]).render(console)
        for y, row in enumerate(rows)
    )
    squeezed = squeeze(data)
    assert cells(squeezed) == cells(data)
    assert len(squeezed) <= len(data)
    assert squeeze(squeezed) == squeezed


WRITES = st.tuples(st.integers(1, 6), st.sampled_from([1, 1, 3]), SEGMENTS)


def test_only_what_differs_within_a_line_is_sent() -> None:
    sent_cells = SentCells()
    line = "\x1b[4;11H" + "\x1b[31m" + 40 * "\u28ff" + "\x1b[0m"
    assert cells(sent_cells.changes(line)) == cells(line)
    changed = line.replace("\u28ff\x1b[0m", "x\x1b[0m")
    assert sent_cells.changes(changed) == "\x1b[4;50H\x1b[31mx\x1b[0m"
    assert sent_cells.changes(changed.replace("[31m", "[32m")).count("\u28ff") == 39
    wide = "\x1b[4;11H日本"
    assert sent_cells.changes(wide) == wide  # which cells such characters fill is not known for sure
    assert sent_cells.changes(changed) == changed


@given(pictures=st.lists(st.lists(WRITES, min_size=1, max_size=5), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_cells_that_stand_there_already_are_not_sent_again(
    pictures: list[list[tuple[int, int, list[tuple[str, Style]]]]],
) -> None:
    from rich.console import Console

    console, sent_cells = Console(color_system="truecolor", force_terminal=True), SentCells()
    written, sent = "", ""
    for picture in [*pictures, pictures[0], pictures[-1]]:
        data = "".join(
            f"\x1b[{y};{x}H" + Strip([Segment(*segment) for segment in row]).render(console)
            for y, x, row in picture
        )
        written, sent = written + data, sent + sent_cells.changes(data)
        assert cells(sent) == cells(written)


@pytest.mark.parametrize("erased", ["\x1b[2J", "\x1b[1;1H\x1b[K", "text at an unknown place", "\x1bD"])
def test_what_may_change_any_line_makes_all_of_them_unknown(erased: str) -> None:
    sent_cells, line = SentCells(), "\x1b[2;1Hsome text"
    assert sent_cells.changes(line) == line
    assert sent_cells.changes(line) == ""
    assert sent_cells.changes(erased) == erased
    assert sent_cells.changes(line) == line
    assert sent_cells.changes("\x1b[2;1H") == "\x1b[2;1H"  # the cursor goes there all the same
    assert sent_cells.changes("\x1b]52;c;eA==\x07") == "\x1b]52;c;eA==\x07"
    assert sent_cells.changes(line) == ""
    sent_cells.forget()
    assert sent_cells.changes(line) == line


@pytest.mark.parametrize(
    "data", ["", "plain", "\x1b[?2026h\x1b[1;1H\x1b[1;31mx\x1b[0m\x1b[?2026l", "\x1b[0m"]
)
def test_what_it_must_not_touch(data: str) -> None:
    assert cells(squeeze(data)) == cells(data)
    assert squeeze(data).startswith(data[:8].partition("\x1b[0m")[0])


async def test_a_real_screen_takes_half(tmp_path: Path) -> None:
    from on_screen import live

    made = Synthetic(tmp_path).ran(30)
    async with running(live(made.session.path), "27.0 ms") as (app, _):
        data = app.screen._compositor.render_update(full=True).render_segments(app.console)
        squeezed = squeeze(data)
        screens = []
        for text in (data, squeezed):
            screen = pyte.Screen(120, 36)
            pyte.Stream(screen).feed(text)
            screens.append([[screen.buffer[y][x] for x in range(120)] for y in range(36)])
        assert screens[0] == screens[1]
        assert len(squeezed) < 0.75 * len(data)
