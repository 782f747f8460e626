"""What the tests of the screens share: running the application, and reading what is on its screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from textual._context import active_app
from textual.app import App
from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.screen import Screen

from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp

AnyApp = TypeVar("AnyApp", bound=App[Any])

#: What a screen may take on a machine that does much else; below the limit of a test, whose alarm an event loop may
#: swallow.
LIMIT_S = 60.0


def screen_text(app: App[Any]) -> str:
    """Return what the terminal shows, line by line."""
    if not app.screen_stack:
        return "nothing: it has ended"
    return "\n".join(
        "".join(segment.text for segment in strip).rstrip()
        for strip in app.screen._compositor.render_strips()
    )


def _waits(pump: MessagePump) -> bool:
    """Whether a widget has handled all messages, and waits for the next one."""
    arrived = pump._message_queue.ready_event
    return pump._closing or not (arrived.is_set() or pump._next_callbacks or not arrived._waiters)  # type: ignore[attr-defined]


async def handled(pilot: Pilot[int], timeout: float = LIMIT_S) -> bool:
    """Wait until the current screen has handled every message; return whether it has, and nothing has failed.

    Textual's own pilot asks every widget to call it back, which is two thirds of all messages of these tests.
    """
    app = pilot.app
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    deadline = time.monotonic() + timeout
    while app.screen_stack and not (app._exit or app._exception):
        if time.monotonic() > deadline:
            raise AssertionError(f"no rest within {timeout:.0f} s; the screen shows:\n{screen_text(app)}")
        await asyncio.sleep(0)
        if ready:  # others go on at once
            continue
        if all(_waits(pump) for pump in (app, *app.screen.walk_children(with_self=True))):
            return True
        await asyncio.sleep(0.001)  # one of them waits for a thread or a time
    return False


async def at_rest(*_: float) -> None:
    """Wait until no message waits to be handled and nothing waits to be drawn.

    Textual's own pilot waits until the process takes no processor time: 20 ms twice a key at least, up to a second
    where a thread works, and on a busy machine for something else than on an idle one.
    """
    app = active_app.get()
    pilot: Pilot[int] = Pilot(app)
    # One that has failed comes to no rest: its exception is raised where the test leaves it.
    while await handled(pilot):
        screen = app.screen
        if not (screen._dirty_widgets or screen._callbacks or screen._recompose_required) and not (
            screen._layout_required or screen._scroll_required or screen._repaint_required
        ):
            return
        screen._on_timer_update()


async def until(pilot: Pilot[int], condition: Callable[[], object], seconds: float = LIMIT_S) -> None:
    """Wait for something to become true; fail with what the screen shows when it does not, or the application fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert pilot.app._exception is None, f"the application failed: {pilot.app._exception!r}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s; the screen shows:\n{screen_text(pilot.app)}")
        await pilot.pause(0.02)


async def workers_done(pilot: Pilot[int]) -> None:
    """Wait until nothing is loaded or worked out any more, and what came of it is drawn."""
    await until(pilot, lambda: all(worker.is_finished for worker in pilot.app.workers))
    await pilot.pause()


async def until_shown(pilot: Pilot[int], *texts: str) -> str:
    """Wait until the screen shows all texts, and return it whole."""
    app = pilot.app
    assert isinstance(app, TuiprofApp)
    seen, shown = -1, ""

    def has_all() -> bool:
        nonlocal seen, shown
        drawn = _drawn.get(app, 0)
        if drawn == seen:  # reading the screen takes longer than what is waited for in between
            return False
        seen, shown = drawn, screen_text(app)
        return all(text in shown for text in texts)

    await until(pilot, has_all)
    return shown


async def press(
    pilot: Pilot[int],
    *keys: str,
    opens: type[Screen[Any]] | None = None,
    shows: str | tuple[str, ...] = (),
) -> str:
    """Press keys, wait until they have opened a screen and it shows a text, or all of several; return what it shows."""
    await pilot.press(*keys)
    if opens is not None:
        await until(pilot, lambda: isinstance(pilot.app.screen, opens))
    return await until_shown(pilot, *((shows,) if isinstance(shows, str) else shows))


#: How many times each application has drawn.
_drawn: WeakKeyDictionary[App[Any], int] = WeakKeyDictionary()
_display = App._display


def _count_and_display(app: App[Any], *args: Any) -> None:
    _drawn[app] = _drawn.get(app, 0) + 1
    _display(app, *args)


App._display = _count_and_display  # type: ignore[method-assign]


@asynccontextmanager
async def running(
    app: AnyApp, *texts: str, size: tuple[int, int] = (120, 36), notifications: bool = False
) -> AsyncIterator[tuple[AnyApp, Pilot[int]]]:
    """Run an application, once it shows all texts, without any from its start."""
    async with app.run_test(size=size, notifications=notifications) as pilot:
        if texts:
            await until_shown(pilot, *texts)
        yield app, pilot


def live(path: Path) -> TuiprofApp:
    """Return the application as ``tuiprof attach`` opens it."""
    return TuiprofApp(Start("live", path))
