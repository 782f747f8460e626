"""Text that a trace, a script or a file name brings: wherever it is shown it is text, never a command to the terminal.

Names are made by hypothesis from what terminals obey and what markup means. Every place that shows them is visited,
and every cell of every screen is looked at, as it is sent.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from made_traces import MadeRaw, trace_of
from on_screen import live, until
from synthetic import Synthetic
from terminals import in_terminal
from textual.pilot import Pilot

from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.report import Style, formats, render_all
from tuiprof.report.terminal import Terminal
from tuiprof.session.meta import Scenario
from tuiprof.session.replay import load
from tuiprof.session.store import write_meta
from tuiprof.tui.app import TuiprofApp
from tuiprof.tui.inline import Strip, strip_rows
from tuiprof.tui.screens.trace import TraceScreen
from tuiprof.tui.start import Start

#: What terminals obey, what turns or hides text, and what Rich and Textual take for markup.
OBEYED = (
    *(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))),
    *"\u00ad\u061c\u200b\u200d\u200e\u200f\u2028\u2029\u202a\u202d\u202e\u2066\u2067\u2069\ufeff",
    "\x1b[2J", "\x1b[31;7m", "\x1b]0;OWNED\x07", "\x1b]52;c;T1dORUQ=\x07", "\x1bP1$r\x1b\\", "\x9b2J",
    "\x9d0;OWNED\x9c",
    "\x1b]8;;http://x.example\x1b\\link", "\x1b[?1049l", "\x1bc", "\r\n", "\x1b",
    "[red]", "[/red]", "[/]", "[@click=app.bell]OWNED[/]", "[link=http://x.example]l[/link]", "[bold",
    "$(reboot)", "\\[b]",
    ":skull:", "<b>", "{{x}}", "%s", "…", "ß", "カー", "e\u0301", "🤖",
)  # fmt: skip
NAMES = st.lists(st.sampled_from(OBEYED) | st.text("abc_:/", max_size=4), min_size=1, max_size=6).map("".join)
#: Fewer, and the same ones every time: each is a walk through screens.
WALKS = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WORST = "".join(OBEYED)
SAFE_ALWAYS = "[red]x[/red] [@click=app.bell]OWNED[/]"


def obeyed(text: str) -> list[str]:
    """Return the characters of a line that a terminal would obey, or that hide or turn what follows."""
    hiding = "\u00ad\u061c\u180e\u200b\u200c\u200d\u200e\u200f\ufeff"
    return [
        f"U+{ord(c):04X}"
        for c in text
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        or c in hiding
        or unicodedata.bidirectional(c) in _TURNING
    ]


_TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def look(app: TuiprofApp, after: str = "") -> str:
    """Look at every cell of the screen, after a key; return the text."""
    lines = []
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            assert not obeyed(segment.text), (app.screen, after, obeyed(segment.text), segment.text)
            if segment.style is not None:
                assert segment.style.link is None
                assert "bell" not in str(segment.style.meta)
        lines.append("".join(segment.text for segment in strip))
    return "\n".join(lines)


async def walk(pilot: Pilot[int], keys: Iterable[str]) -> None:
    """Press keys one after the other and look at the screen after each."""
    app = pilot.app
    assert isinstance(app, TuiprofApp)
    for key in keys:
        await pilot.press(key)
        await pilot.pause(0.05)
        look(app, key)


@pytest.mark.parametrize("fmt", sorted(formats()))
@given(name=NAMES)
@example(name=WORST)
@settings(max_examples=60, deadline=None)
def test_reports(fmt: str, name: str) -> None:
    columns = (
        Column("a", name, help=name),
        Column("b", name, "ns", help=name),
        Column("c", name, "share"),
        Column("d", name, figure=True),
    )
    rows = pl.DataFrame({"a": [name, "x"], "b": [5, 3], "c": [0.6, 0.4], "d": [name, "1"]})
    tables = [
        Table(key, name, columns, rows, name, name, prose) for key, prose in (("t", False), ("p", True))
    ]
    tables += [replace(tables[0], key="steps", rows=rows.rename({"a": "step", "b": "step_ns"}), columns=(
        Column("step", name), Column("step_ns", name, "ns"))), replace(tables[0], rows=rows.head(0))]  # fmt: skip
    report = Report(
        "x", name, Verdict(name, "bad"), (Fact("f", name, name, "text", name),), tuple(tables),
        (Rule(name, name),), (name,), Window(None, None, name),
    )  # fmt: skip
    style = Style(width=80, details=True, title=name)
    text = render_all([report, Unavailable("y", name, name)], fmt, trust=name, style=style)
    assert not [bad for line in text.split("\n") for bad in obeyed(line)]
    if fmt == "html":
        assert "<b>{{" not in text
        assert text.count("<script>") == 1


def hostile_trace(names: list[str]) -> Trace:
    """Return a trace in which everything that has a name has one of these."""
    given = iter(names * 20)
    rows: list[tuple[str, str, int, int, int, int | None]] = []
    for step in range(2):
        at = step * 12
        rows += [
            ("annotation", f"ProfilerStep#{step}", at, at + 10, 0, None),
            ("annotation", next(given), at, at + 4, 0, None),
            ("python_function", f"{next(given)}.py(12): {next(given)}", at, at + 10, 0, None),
            ("cpu_op", f"aten::{next(given)}", at + 1, at + 3, 0, None),
            ("runtime", "cudaLaunchKernel", at + 1, at + 2, 0, 10 + step),
            ("runtime", "cudaStreamSynchronize", at + 6, at + 9, 0, 20 + step),
            ("kernel", f"void {next(given)}<float>", at + 3, at + 8, 1, 10 + step),
        ]
    trace = trace_of(rows)
    tracks = tuple(replace(track, name=next(given)) for track in trace.tracks)
    return Trace(trace.events, tracks, replace(trace.info, framework=next(given)), raw=MadeRaw())


@WALKS
@given(names=st.lists(NAMES, min_size=4, max_size=8))
@example(names=[WORST])
async def test_the_trace_screen(names: list[str], tmp_path: Path) -> None:
    app = TuiprofApp(Start.library(sessions=tmp_path))
    async with app.run_test(size=(140, 44), notifications=True) as pilot:
        await app.push_screen(TraceScreen(trace=hostile_trace(names)))
        await until(pilot, lambda: "Syncs" in look(app))
        await pilot.pause(0.3)
        for tab in "123456789":
            await walk(pilot, (tab, "enter", "escape"))
        await walk(pilot, ("i", "escape", "r", "escape", "t", "n", "e", "escape", "question_mark", "escape"))


@WALKS
@given(names=st.lists(NAMES, min_size=8, max_size=8))
@example(names=[WORST] * 8)
async def test_the_live_screen(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    made = hostile_run(names, tmp_path_factory.mktemp("s"))
    app = live(made.session.path)
    async with app.run_test(size=(140, 44), notifications=True) as pilot:
        await until(pilot, lambda: "step time" in look(app))
        await pilot.pause(0.4)
        await walk(
            pilot, ("l", "l", "a", "escape", "P", "escape", "question_mark", "escape", "z", "n", "ctrl+p")
        )
        await walk(pilot, "open")
        rows = strip_rows(made.session, load(made.session), made.session.status(), made.t_ns, 120)
        for terminal in (Terminal(), Terminal("none", plain=True)):
            strip = Strip(sys.stdout, terminal)
            for row in rows:
                assert not obeyed(re.sub(r"\x1b\[[\d;]*m", "", strip.painted(row)))


def hostile_run(names: list[str], root: Path) -> Synthetic:
    """Return a run in which everything that has a name has one of these."""
    made = Synthetic(
        root,
        phases={names[0]: 0.4, "forward": 0.3, names[1]: 0.3},
        scenario=Scenario(names[2], names[3], names[4]),
        argv=("python", names[5], "--name", names[6]),
        ranks=2,
    )
    meta = made.session.meta
    meta.host = names[7]
    meta.devices = [msgspec.structs.replace(device, name=names[0]) for device in meta.devices]
    meta.absent = {names[1]: names[2]}
    write_meta(made.session.path, meta)
    made.start()
    made.run_until(8)
    made.note("warn", names[3])
    made.capture("failed", id=names[4], why=names[5], path=names[6])
    with open(made.session.stdout, "ab") as file:
        file.write("\n".join(names).encode("utf-8", "surrogateescape") + b"\n\xff\xfe\x9b31m\n")
    with open(made.session.stderr, "ab") as file:
        file.write(names[6].encode() + b"\n")
    return made


@WALKS
@given(names=st.lists(NAMES, min_size=8, max_size=8))
@example(names=[WORST] * 8)
async def test_the_library_and_the_palette(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("s")
    hostile_run(names, root / "sessions")
    folder = root / "scenarios"
    folder.mkdir()
    header = [
        "requires-python = '>=3.11'",
        "dependencies = []",
        "[tool.tuiprof]",
        'name = "evil"',
        f"title = {_toml(names[0])}",
        f"story = {_toml(names[1])}",
        'baseline = "off"',
        "[[tool.tuiprof.variants]]",
        'name = "off"',
        f"note = {_toml(names[2])}",
        f"published = [{{ text = {_toml(names[3])} }}]",
    ]
    (folder / "evil.py").write_text("# /// script\n" + "".join(f"# {line}\n" for line in header) + "# ///\n")
    app = TuiprofApp(Start.library(sessions=root / "sessions", scenarios=(folder,)))
    async with app.run_test(size=(140, 44), notifications=True) as pilot:
        await until(pilot, lambda: "Sessions" in look(app) and "evil" in look(app))
        await pilot.pause(0.3)
        await walk(pilot, ["down"] * 24)
        await walk(pilot, ("tab", "down", "escape", "slash", "e", "escape", "ctrl+p", "o", "p", "escape"))
        for name in names[:3]:
            app.open_path(root / "sessions" / name.replace("/", "").replace("\x00", "")[:40])
            app.open_trace(root / name.replace("/", "").replace("\x00", "")[:40])
            await pilot.pause(0.3)
            look(app)


def _toml(text: str) -> str:
    """Return a text as TOML writes it, all but the plainest characters by their number."""
    return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text) + '"'


def test_the_bytes_that_reach_a_real_terminal(tmp_path: Path) -> None:
    """Nothing of the payload is among them, and every escape sequence is one that a screen of ours sends."""
    made = hostile_run([WORST] * 8, tmp_path)
    command = [sys.executable, "-m", "tuiprof", "--sessions", str(tmp_path), "open", str(made.session.path)]
    with in_terminal(command, 120, 36) as terminal:
        terminal.until_shown("step time", "? help")
        for key in "lla":
            terminal.press(key)
            terminal.pump(0.6)
        sent = terminal.received
    for payload in (
        b"\x1b]0;",
        b"\x1b]52;",
        b"\x1b]8;;http",
        b"\x1bP1",
        b"\x1bc",
        b"\x1b[2J\x1b",
        b"\x9b",
        b"\x9d0",
    ):
        text = sent.decode("utf-8", "strict")
        assert payload.decode("latin-1") not in text, payload
    assert not obeyed(
        re.sub(
            r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\]22;[a-z-]*\x07|\x1b[()][A-Z0-9]|\x1b[=>78]|[\r\n\x08\x0f\x0e]",
            "",
            text,
        )
    )
    for turned in ("\u202e", "\u2067", "\u200b"):
        assert turned not in text


def test_names_stand_as_they_are(tmp_path: Path) -> None:
    made = hostile_run([SAFE_ALWAYS] * 8, tmp_path)
    shown = "".join(
        text
        for row in strip_rows(made.session, load(made.session), made.session.status(), made.t_ns, 400)
        for text, _ in row
    )
    assert SAFE_ALWAYS in shown


def test_the_verbs_print_it_safely(tmp_path: Path) -> None:
    import subprocess

    made = hostile_run([WORST] * 8, tmp_path)
    for verb in (
        ["list"],
        ["report", str(made.session.path)],
        ["report", str(made.session.path), "-f", "html"],
    ):
        command = [sys.executable, "-m", "tuiprof", "--sessions", str(tmp_path), *verb]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert not [bad for line in (done.stdout + done.stderr).split("\n") for bad in obeyed(line)]
    assert msgspec.json.decode((made.session.path / "session.json").read_bytes())
