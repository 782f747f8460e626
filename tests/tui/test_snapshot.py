"""Pictures of screens: made without a terminal, of what was asked for, and needing nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from command_line import here
from synthetic import Synthetic

from tests import real_traces
from tuiprof.cli import main
from tuiprof.errors import TuiprofError
from tuiprof.resources import shipped
from tuiprof.tui.app.snapshot import to_png

TRACE = shipped("traces") / "metrics-naive.pt.trace.json.gz"


def snapshot(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the verb without a terminal."""
    command = [sys.executable, "-m", "tuiprof", "snapshot", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


@pytest.fixture
def session(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path / "s").ran(20, code=0)


def text_in(svg: str) -> str:
    """Return what a drawing says, in the order of its rows."""
    root = ET.fromstring(svg)
    found = [e for e in root.iter() if e.tag.endswith("}text")]
    return "".join(e.text or "" for e in found).replace("\xa0", " ")


def test_a_picture_of_a_trace_fetches_nothing_and_shows_the_step_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "shot.svg"
    done = snapshot(TRACE, "-o", out, "--size", "120x36", "--step", "22", "--press", "3")
    assert done.returncode == 0, done.stderr
    svg = out.read_text()
    assert "window: step 22" in text_in(svg)
    assert "Idle time by cause" in text_in(svg)
    addresses = set(re.findall(r"https?://[^\s\"<>)]+", re.sub(r"<!--.*?-->", "", svg)))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "@font-face" not in svg


def test_a_picture_of_a_session_is_of_its_end_or_of_a_moment(session: Synthetic, tmp_path: Path) -> None:
    end, early = tmp_path / "end.txt", tmp_path / "early.txt"
    shot = ("snapshot", session.session.path, "--size", "120x36", "-o")
    assert here(*shot, end).returncode == 0
    assert here(*shot, early, "--at", "5").returncode == 0
    assert "finished" in end.read_text()
    assert f"step {session.steps - 1}" in end.read_text()
    assert f"step {session.steps - 1}" not in early.read_text()
    assert "00:00:05" in early.read_text()
    assert all(len(line) <= 120 for line in end.read_text().splitlines())


def test_a_page_with_the_library(tmp_path: Path) -> None:
    out = tmp_path / "shot.html"
    done = here("snapshot", "-o", out, "--screen", "library", "--size", "100x30")
    assert done.returncode == 0, done.stderr
    page = out.read_text()
    assert "metrics" in text_in(page[page.index("<svg") : page.index("</svg>") + 6])


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ((real_traces.SMALL, "-o", "x.bmp"), 2, "the extension must be one of .svg"),
        ((real_traces.SMALL, "-o", "x.svg", "--step", "999"), 2, "there are steps 1 to 3"),
        ((real_traces.SMALL, "-o", "x.svg", "--at", "3"), 2, "for a trace, use --step N"),
        ((real_traces.SMALL, "-o", "x.svg", "--size", "12"), 2, "not a size such as 160x48"),
        ((real_traces.SMALL, "-o", "/nowhere/x.svg"), 2, "cannot be written"),
        ((Path(__file__), "-o", "x.svg"), 3, ""),
    ],
)
def test_what_cannot_be_shown_is_said(
    args: tuple[str | Path, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshot", *map(str, args)]) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_png_is_drawn_or_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    svg = '<svg viewBox="0 0 60 40" xmlns="http://www.w3.org/2000/svg"><rect width="60" height="40"/></svg>'
    try:
        picture = to_png(svg)
    except TuiprofError as error:
        if "no renderer for PNG" not in error.message:
            raise
        pytest.skip(error.message)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (60, 40)


def test_without_a_renderer_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(TuiprofError, match="no renderer for PNG") as caught:
        to_png('<svg viewBox="0 0 1 1"/>')
    assert "shot.svg needs neither" in caught.value.remedy
