"""Waiting for a screen ends where the application does."""

from __future__ import annotations

import pytest
from on_screen import until
from textual import events
from textual.app import App


class Fails(App[int]):
    def on_key(self, _event: events.Key) -> None:
        raise IndexError("planted")


async def wait_in_vain(app: App[int], seconds: float) -> None:
    async with app.run_test() as pilot:
        await pilot.press("x")
        await until(pilot, lambda: False, seconds)


async def test_an_application_that_fails_ends_every_wait_with_its_exception() -> None:
    with pytest.raises(IndexError, match="planted"):
        await wait_in_vain(Fails(), 60)


async def test_what_does_not_come_is_said_with_what_the_screen_shows() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s; the screen shows:"):
        await wait_in_vain(App[int](), 0.1)
