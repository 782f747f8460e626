"""Tabs and what they say agree: a figure that another tab explains leads there, and shares are the same on both."""

from __future__ import annotations

import re

from on_screen import until_shown

from tuiprof.resources import shipped
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.start import Start


async def test_idle_time_after_syncs_leads_to_the_syncs() -> None:
    app = TuiprofApp(Start.trace(shipped("traces") / "planted-syncs.pt.trace.json.gz"))
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "saves about")
        await pilot.press("3")
        await until_shown(pilot, "Idle time by cause")
        await pilot.press("/", *"sync", "enter")
        await until_shown(pilot, "more in", "Syncs: enter goes there")
        await pilot.press("enter")
        await until_shown(pilot, "Syncs by location")


async def test_a_tab_carries_what_its_analysis_saves() -> None:
    app = TuiprofApp(Start.trace(shipped("traces") / "planted-syncs.pt.trace.json.gz"))
    async with app.run_test(size=(200, 50)) as pilot:
        await until_shown(pilot, "saves about")
        await pilot.press("1")
        text = await until_shown(pilot, "removing them saves", "Syncs by location")
        said = re.search(r"removing them saves about [^(]+\(([\d.]+) %\)", text)
        tab = re.search(r"1 Syncs ✗ +(\d+) %", text)
        assert said is not None, text
        assert tab is not None, text
        assert round(float(said[1])) == int(tab[1])
