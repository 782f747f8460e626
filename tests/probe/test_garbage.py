"""Garbage collections are timed in each step, without a change of what the script sees of signals and exceptions."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_runs import Run

from tuiprof.probe.assembly import END, SOURCE, Assembly
from tuiprof.probe.garbage import COLLECTED, COLLECTS, MAX_PER_S, Collected, GarbageRanges, GarbageWatch
from tuiprof.session import log as records


@pytest.fixture
def watch() -> Iterator[tuple[GarbageWatch, deque[Any], Collected]]:
    """A watch that has started, its marks, and what takes them."""
    marks: deque[Any] = deque()
    collected = Collected()
    watch = GarbageWatch(marks, lambda: collected)
    watch.start()
    yield watch, marks, collected
    watch.stop()


def test_a_collection_is_marked_where_it_begins_and_ends_on_its_thread(
    watch: tuple[GarbageWatch, deque[Any], Collected],
) -> None:
    _, marks, _ = watch
    marks.clear()
    thread = Thread(target=gc.collect)
    thread.start()
    thread.join()
    ident = thread.ident
    mine = [mark for mark in marks if mark[3] == ident]
    (begins, began, _, _), (ends, ended, _, _) = mine[-2:]
    assert (begins, ends) == (COLLECTS, COLLECTED)
    assert began <= ended


def test_no_more_is_timed_if_collections_are_too_frequent(
    watch: tuple[GarbageWatch, deque[Any], Collected],
) -> None:
    timed, _, collected = watch
    at = timed._looked_at + 1_000_000_000
    collected.steps = 1
    collected.seen = MAX_PER_S
    assert timed.record(at, 3) is not None
    assert collected.watched
    collected.seen += MAX_PER_S + 1
    assert timed.record(at + 1_000_000_000, 4) is not None, "of the steps until now"
    assert not collected.watched
    before = list(gc.callbacks)
    timed.stop()
    assert gc.callbacks == before
    assert timed.record(at + 2_000_000_000, 5) is None


def made(kind: type) -> Any:
    return kind(deque(), Collected) if kind is GarbageWatch else kind(nullcontext)


@pytest.mark.parametrize("kind", [GarbageWatch, GarbageRanges])
def test_the_script_may_empty_the_list_at_any_moment(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    class Emptied(list[Any]):
        """A list that is empty as soon as someone has looked at it."""

        def __contains__(self, one: object) -> bool:
            return super().__contains__(one) and not self.clear()

        def __getitem__(self, index: Any) -> Any:
            one = super().__getitem__(index)
            self.clear()
            return one

    watch = made(kind)
    watch.start()
    monkeypatch.setattr(gc, "callbacks", Emptied(gc.callbacks))
    watch.stop()
    monkeypatch.undo()
    watch.stop()


@pytest.mark.parametrize("kind", [GarbageWatch, GarbageRanges])
def test_the_collector_skips_no_callback_of_the_script(kind: type) -> None:
    """One of them is running when the watch stops, on any thread."""
    called: list[str] = []

    def stops(phase: str, _info: dict[str, int]) -> None:
        called.append(f"first {phase}")
        watch.stop()

    def after(phase: str, _info: dict[str, int]) -> None:
        called.append(f"second {phase}")

    watch = made(kind)
    before = list(gc.callbacks)
    watch.start()
    try:
        gc.callbacks.extend([stops, after])
        gc.collect()
    finally:
        gc.callbacks[:] = before
    assert called == ["first start", "second start", "first stop", "second stop"]


def test_what_stays_in_the_list_does_nothing() -> None:
    marks: deque[Any] = deque()
    watch = GarbageWatch(marks, Collected)
    opened: list[str] = []
    ranges = GarbageRanges(lambda name: nullcontext(opened.append(name)))
    before = list(gc.callbacks)
    try:
        for one in (watch, ranges):
            one.start()
            gc.callbacks.append(lambda *_: None)
        watch.stop()
        ranges.stop()
        marks.clear()
        opened.clear()
        gc.collect()
        assert not marks
        assert not opened
        watch.start()
        ranges.start()
        gc.collect()
        assert marks
        assert opened
        assert len(gc.callbacks) == len(before) + 4, "no second entry"
    finally:
        watch.stop()
        ranges.stop()
        gc.callbacks[:] = before


def test_a_range_that_fails_ends_the_watch(capfd: pytest.CaptureFixture[str]) -> None:
    def fails(_name: str) -> Any:
        raise RuntimeError("no ranges")

    ranges = GarbageRanges(fails)
    before = list(gc.callbacks)
    ranges.start()
    gc.collect()
    assert gc.callbacks == before
    assert capfd.readouterr().err == ""


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 2)), max_size=4), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_a_step_has_the_collections_of_its_thread(steps: list[tuple[list[tuple[int, int]], bool]]) -> None:
    """Of thread 0 while it steps; the others belong to threads beside it."""
    assembly = Assembly(1)
    assembly.thread = 0
    assembly.collected.watched = True
    marks: deque[Any] = deque()
    at, expected, sums = 10, {}, [0, 0, 0, 0.0]
    for n, (collections, captured) in enumerate(steps):
        own = [length for length, thread in collections if thread == 0]
        for length, thread in collections:
            marks.append((COLLECTS, at, 0, thread))
            at += length
            marks.append((COLLECTED, at, 0, thread))
            at += 1
        marks.append((END, n, at, None, captured, at))
        if own:
            expected[n] = (len(own), sum(own))
        if not captured:
            for index, value in enumerate((1, len(own), sum(own), sum(own) ** 2)):
                sums[index] += value
    assembly.take(marks)
    assert assembly.collections == expected
    fields = assembly.collected.fields(at, len(steps))
    assert [fields[name] for name in ("steps", "count", "ns", "squares")] == sums
    assembly.take(deque([(SOURCE, at, "", "", len(steps), 0, 0)]))
    assert assembly.collections == {}
    assert assembly.collected.steps == assembly.collected.ns == 0


LOOP = """
import gc, signal, time, tuiprof
kept = [[i] for i in range(200_000)]
gc.disable()
for i in range(60):
    if i % 10 == 5: gc.collect()
    time.sleep(0.002)
    tuiprof.step()
"""


def test_steps_and_the_run_tell_what_collections_took(run: Callable[..., Run]) -> None:
    done = run(LOOP)
    assert (done.code, done.err) == (0, "")
    steps = done.of(records.Step)
    assert [step.n for step in steps if step.gc is not None] == [5, 15, 25, 35, 45, 55]
    assert all(step.gc[0] == 1 and 0 < step.gc[1] < step.dur for step in steps if step.gc is not None)
    last = done.of(records.Garbage)[-1]
    assert last.steps in (59, 60), "the first one opens the log"
    assert last.count == 6
    assert last.ns == sum(step.gc[1] for step in steps if step.gc is not None)
    assert last.squares == pytest.approx(sum(step.gc[1] ** 2 for step in steps if step.gc is not None))


def test_a_signal_in_a_collection_reaches_the_script(run: Callable[..., Run]) -> None:
    """A timer goes off while the collector runs; the exception of its handler is the script's."""
    script = """
import gc, signal, time, tuiprof
class Late(Exception): pass
def late(number, frame): raise Late
signal.signal(signal.SIGALRM, late)
kept = [[i] for i in range(1_000_000)]
caught = timed = 0
for i in range(3): tuiprof.step()
for i in range(5):
    before = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        gc.collect()
        timed = time.monotonic() - before
        while True: time.sleep(0.01)
    except Late:
        caught += 1
    tuiprof.step()
print(caught)
"""
    done = run(script)
    assert (done.code, done.out, done.err) == (0, "5\n", "")
    longest = max(step.gc[1] for step in done.of(records.Step) if step.gc is not None)
    assert longest > 2_000_000, "the timer did not go off inside of a collection"


def test_a_forked_child_has_no_watch_until_it_steps(run: Callable[..., Run]) -> None:
    script = """
import gc, os, tuiprof
for i in range(3): tuiprof.step()
def child(steps):
    pid = os.fork()
    if pid == 0:
        before = len(gc.callbacks)
        for _ in range(steps): tuiprof.step()
        print(before, len(gc.callbacks), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
child(0)
child(2)
tuiprof.step()
print(len(gc.callbacks))
"""
    done = run(script)
    assert (done.code, done.out) == (0, "0 0\n0 1\n1\n"), done.err
