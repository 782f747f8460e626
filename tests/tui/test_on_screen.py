"""Waiting for a screen ends where the application does."""

from __future__ import annotations

import pytest
from on_screen import until
from textual import events
from textual.app import App


class Fails(App[int]):
    def on_key(self, _event: events.Key) -> None:
        raise IndexError("planted")


async def test_an_application_that_fails_ends_every_wait_with_its_exception() -> None:
    with pytest.raises(IndexError, match="planted"):
        async with Fails().run_test() as pilot:
            await pilot.press("x")
            await until(pilot, lambda: False)
    with pytest.raises(AssertionError, match=r"not within 0 s; the screen shows:"):
        async with App[int]().run_test() as pilot:
            await until(pilot, lambda: False, seconds=0.1)
