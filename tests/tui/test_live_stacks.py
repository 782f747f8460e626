"""The key that shows where every thread is."""

from __future__ import annotations

from pathlib import Path

from on_screen import live, until, until_shown
from synthetic import Synthetic

from tuiprof.session.log import Stacks, Thread
from tuiprof.tui.live.screen import LiveScreen

_FRAMES = [
    ("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    ("/home/u/\x1b[31mtrain.py", 81, "train"),
]


def _answer(made: Synthetic, name: str, cause: str = "") -> None:
    for rank in range(made.ranks):
        at = made.mono_ns + made.t_ns
        made.write(f"rank{rank}", Stacks(at, name, [Thread(_FRAMES, main=True)], cause=cause))


async def test_the_processes_of_a_run_are_asked(tmp_path: Path) -> None:
    made = Synthetic(tmp_path, ranks=2)
    made.start()
    made.run_until(3)
    asked = made.session.control
    async with live(made.session.path).run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "stacks")
        await pilot.press("s")
        await until(pilot, lambda: bool(list(asked.glob("stacks-*.json"))))
        [request] = asked.glob("stacks-*.json")
        _answer(made, request.stem.removeprefix("stacks-"))
        text = await until_shown(
            pilot, "ranks 0, 1 in all_reduce from", "Stack 1: ranks 0, 1", "distributed_c10d.py:3252"
        )
        assert "\x1b" not in text


async def test_stacks_that_were_kept_are_shown_of_a_run_that_is_over(tmp_path: Path) -> None:
    made = Synthetic(tmp_path)
    made.start()
    made.run_until(3)
    _answer(made, "stall-rank0-9", cause="no step for 31 s")
    made.end(1)
    async with live(made.session.path).run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "failed (exit 1)")
        await pilot.press("s")
        await until_shown(pilot, "no step for 31 s: rank 0 in all_reduce from")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
