"""Pictures of the screens, so that a change of how they look is seen in review."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from on_screen import live, press, until_shown, workers_done
from synthetic import Synthetic
from textual.pilot import Pilot
from tiny_library import choose

from tuiprof.session.live.listing import Summary
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.library.data import Library
from tuiprof.tui.library.view import LadderItem, Listing, VariantItem

DAY = 1_583_150_400 * 10**9  # a day long ago, which every machine says the same way

SHELF = Listing(
    ladders=(
        LadderItem(
            "attention",
            "attention functions in a ViT",
            "Only the function inside changes.",
            "native",
            "NVIDIA H100",
            ("torch>=2.5",),
            ("paper", "smoke"),
            (VariantItem("native", published="370 ms", runnable=False, why="torch is not installed"),),
        ),
        LadderItem(
            "metrics",
            "metric collection and the syncs it hides",
            "A ResNet-18 step with five metrics. Each variant removes one host-device sync.",
            "off",
            "NVIDIA A40, PyTorch 2.5.1",
            ("torch>=2.5", "torchmetrics>=1.7"),
            ("paper", "smoke"),
            (
                VariantItem("off", "No metrics.", "baseline", 25.8e6, "fit", None, True),
                VariantItem("naive", "As documented.", "≈10 % lower throughput", 27e6, "fit", 0.0465, True),
                VariantItem("no-nan-check", "No check for NaN.", "= baseline", 25.9e6, "fit", 0.002, True),
            ),
        ),
    ),
    sessions=(
        Summary("c", "/s/c", "metrics:naive", "running", unix_ns=DAY, steps=214, median_ns=27e6),
        Summary("b", "/s/b", "train", "failed", code=1, unix_ns=DAY, argv=["python", "train.py"]),
        Summary("a", "/s/a", "attention:sdpa-flash", "finished", code=0, unix_ns=DAY, median_ns=252e6),
    ),
    traces=(Path("/traces/metrics-naive.pt.trace.json.gz"),),
    machine="NVIDIA H200 ×1 · Python 3.12.3 · torch 2.11.0",
)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
def test_live(tmp_path: Path, snap_compare: Any, size: tuple[int, int]) -> None:
    made = Synthetic(tmp_path).ran(40, code=0)

    async def settled(pilot: Pilot[int]) -> None:
        now, before = await until_shown(pilot, "finished after", "27.0 ms"), ""
        while now != before:  # the chart's edge and what is worked out meanwhile come to rest
            pilot.app.screen.tick(asked=True)  # type: ignore[attr-defined]
            await workers_done(pilot)
            now, before = await until_shown(pilot, "finished after"), now

    assert snap_compare(live(made.session.path), terminal_size=size, run_before=settled)


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
def test_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snap_compare: Any, size: tuple[int, int]
) -> None:
    monkeypatch.setattr(Library, "scan", lambda _self: SHELF)
    monkeypatch.setattr(Library, "ask_interpreter", lambda _self: None)

    async def settled(pilot: Pilot[int]) -> None:
        await until_shown(pilot, "metrics", "attention")
        await choose(pilot.app, "ladder:metrics")  # type: ignore[arg-type]
        await press(pilot, "tab", "down", shows="As documented")

    assert snap_compare(TuiprofApp(Start(sessions=tmp_path)), terminal_size=size, run_before=settled)
