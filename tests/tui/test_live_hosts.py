"""The live screen on a run of several hosts or ranks, and where every thread of it is."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from on_screen import live, press, running, screen_text, until, until_shown
from synthetic import Synthetic

from tests.session.host_parts import MS, START, S, goes_on, part
from tests.session.session_logs import append, line
from tuiprof.session.live.hosts import host_states
from tuiprof.session.live.replay import read_fold
from tuiprof.session.log import Stacks, Thread
from tuiprof.session.store.folders import run_of
from tuiprof.session.store.status import STARTING_S
from tuiprof.tui.live.devices import device_views
from tuiprof.tui.live.screen import LiveScreen
from tuiprof.tui.live.view import devices_of, hosts_row

#: So long ago the run began: the screen's clock is the wall clock.
AGO_S = (time.time_ns() - START) / S - 10


async def test_a_host_that_comes_later_is_taken_up(tmp_path: Path) -> None:
    first = goes_on(part(tmp_path, "node1", [0], began_s=AGO_S, ended=False))
    async with running(live(first.path), size=(160, 48)) as (_, pilot):
        text = await until_shown(pilot, "100 ms median")
        assert "hosts" not in text
        goes_on(part(tmp_path, "node2", [1], began_s=AGO_S, ahead_ns=4 * S, ended=False))
        screen = pilot.app.screen
        assert isinstance(screen, LiveScreen)
        screen._find_runs()
        await until_shown(pilot, "rank 1 node2", "clock 4.00 s ahead")
        await press(pilot, "]", shows=("devices of node2", "rank 1/2 node2"))


async def test_a_capture_is_asked_for_on_all_hosts_for_the_same_later_steps(tmp_path: Path) -> None:
    first = goes_on(part(tmp_path, "node1", [0], began_s=AGO_S, ended=False))
    second = goes_on(part(tmp_path, "node2", [1], began_s=AGO_S, steps=37, ended=False))
    async with running(live(second.path), "p capture", "rank 1 node2") as (_, pilot):
        await press(pilot, "p", shows="capture requested")
        requests = [json.loads((it.control / "capture-c1.json").read_text()) for it in (first, second)]
        assert requests[0] == requests[1]
        assert requests[0]["steps"] == 5
        assert requests[0]["at"] >= 39 + 2_000 // 100  # two seconds of steps behind the last of any rank


async def test_a_lost_host_is_named_on_a_small_screen(tmp_path: Path) -> None:
    began_s = AGO_S - STARTING_S  # too long ago for one that has not started yet
    first = goes_on(part(tmp_path, "node1", [0], began_s=began_s, ended=False))
    part(tmp_path, "node2", [1], began_s=began_s, steps=20, ended=False)
    async with running(live(first.path), "node2 1 lost: ", size=(80, 24)) as (app, _):
        append(first, "rank0", line("step", n=40, at=first.meta.mono_ns + 8 * S, dur=100 * MS))
        text = screen_text(app)
        assert "● running" in text
        assert all(len(line_) <= 80 for line_ in text.splitlines())


def test_of_many_hosts_those_come_first_of_which_something_is_wrong(tmp_path: Path) -> None:
    sessions = [part(tmp_path, f"node{n}", [n], world=20, ended=n != 17) for n in range(20)]
    run = run_of(sessions[0])
    row = "".join(text for text, _ in hosts_row(host_states(run, read_fold(run)), 80))
    assert row.index("node17") < row.index("node0")
    assert "more" in row
    assert len(row) <= 80


def test_the_devices_are_those_of_the_host_of_the_rank(tmp_path: Path) -> None:
    sessions = [part(tmp_path / "run", f"node{n}", [n - 1]) for n in (1, 2)]
    for session, share in zip(sessions, (0.25, 0.75), strict=True):
        at = session.meta.mono_ns + S
        append(session, "recorder", line("tele", at=at, dev="gpu0", m={"util": share}))
    run = run_of(sessions[0])
    fold = read_fold(run)
    for rank, share in zip(fold.ranks, (0.25, 0.75), strict=True):
        [device] = device_views(fold, devices_of(run, rank), rank)
        assert device.latest["util"] == share
        assert device.label == "gpu0"


_FRAMES = [
    ("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    ("/home/u/\x1b[31mtrain.py", 81, "train"),
]


def _answer(made: Synthetic, name: str, cause: str = "") -> None:
    for rank in range(made.ranks):
        at = made.mono_ns + made.t_ns
        made.write(f"rank{rank}", Stacks(at, name, [Thread(_FRAMES, main=True)], cause=cause))


async def test_the_processes_of_a_run_are_asked(tmp_path: Path) -> None:
    made = Synthetic(tmp_path, ranks=2, pid=os.getpid())  # who has ended is not waited for
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
    made = Synthetic(tmp_path).ran(3)
    _answer(made, "stall-rank0-9", cause="no step for 31 s")
    made.end(1)
    async with live(made.session.path).run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "failed (exit 1)")
        await press(pilot, "s", shows="no step for 31 s: rank 0 in all_reduce from")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
