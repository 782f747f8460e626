"""A figure that another tab explains leads there."""

from __future__ import annotations

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
        await until_shown(pilot, "Syncs by place")
