"""The loop that is counted ends, and another one follows: training after a loop of the setup, or an evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from probe_runs import Run

from tuiprof.probe.sampler import Loop, loops_of
from tuiprof.probe.steps.later_loop import LaterLoop, needed_ns
from tuiprof.session import log as records

from_monitoring = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="sys.monitoring is there from Python 3.12 on"
)
before_monitoring = pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring counts any loop")

#: What ends by itself when the capture is written, at the latest after a minute.
SCRIPT = """
import glob, os, time
import jax, jax.numpy as jnp
update = jax.jit(lambda w: w * 0.99)
written = os.environ["TUIPROF_SESSION"] + "/traces/plugins/profile/*/*.xplane.pb"
began = time.monotonic()
def over(): return glob.glob(written) or time.monotonic() - began > 60
w = jnp.ones(64)
"""
SETUP = """
layers = []
def init():
    for layer in range(40):
        layers.append(READ)
        time.sleep(0.1)
"""
IN_MAIN = """
def main():
    global w, step
    init()
    for step in range(10**9):
        w = update(w)
        if over(): break
        time.sleep(0.005)
main()
print(step)
"""
IN_FIT = """
class Trainer:
    def fit(self):
        w = jnp.ones(64)
        for self.step in range(10**9):
            w = update(w)
            if self.step % 50 == 0: float(w[0])
            if over(): break
            time.sleep(0.005)
init()
trainer = Trainer()
trainer.fit()
print(trainer.step)
"""


def line_of(script: str, text: str) -> str:
    return f":{script[: script.index(text)].count(chr(10)) + 1}"


@from_monitoring
@pytest.mark.parametrize("training", [IN_MAIN, IN_FIT], ids=["main", "fit"])
def test_training_takes_the_place_of_a_loop_of_the_setup(training: str, run_jax: Callable[..., Run]) -> None:
    script = SCRIPT + SETUP.replace("READ", "jnp.ones(64)") + training
    requests = [{"id": "a", "steps": 3, "at": 30}]
    done = run_jax(script, requests=requests, JAX_PLATFORMS="cpu")
    setup, training_source = done.of(records.StepSource)
    assert setup.where.endswith(line_of(script, "for layer"))
    assert training_source.where.endswith(
        line_of(script, "for self.step" if "fit" in training else "for step")
    )
    assert training_source.withdrawn > 10
    steps = [step.n for step in done.of(records.Step) if step.at > training_source.at]
    assert steps == list(range(len(steps)))
    assert 33 <= len(steps) <= int(done.out)
    assert [state.state for state in done.captures("a")][-1] == "written"
    assert done.captures("a")[-1].at > training_source.at
    assert not [note.text for note in done.of(records.Note) if note.level == "bad"]


#: An evaluation after each epoch, which takes twice as long.
WITH_EVALUATION = """
done = 0
def evaluate(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: time.sleep(0.01)
for EPOCH in range(2):
    for batch in range(60):
        w = update(w)
        time.sleep(0.05)
        done += 1
    evaluate(8.0)
print(done)
"""


@from_monitoring
@pytest.mark.parametrize("name", ["epoch", "turn"])
def test_an_evaluation_does_not_take_the_place_of_training(name: str, run_jax: Callable[..., Run]) -> None:
    script = SCRIPT + WITH_EVALUATION.replace("EPOCH", name)
    done = run_jax(script, JAX_PLATFORMS="cpu")
    (source,) = done.of(records.StepSource)
    assert source.where.endswith(line_of(script, "for batch"))
    steps = [step.n for step in done.of(records.Step)]
    assert steps == list(range(len(steps)))
    assert 60 < len(steps) < int(done.out)


@before_monitoring
def test_a_loop_of_the_setup_that_reads_arrays_is_no_longer_counted(run_jax: Callable[..., Run]) -> None:
    """The training reads none, so that its iterations cannot be counted: its loop is named."""
    script = SCRIPT + SETUP.replace("READ", "float(update(w)[0])")
    script += IN_MAIN.replace("if over()", "if time.monotonic() - began > 16")
    done = run_jax(script, JAX_PLATFORMS="cpu")
    setup, none = done.of(records.StepSource)
    assert setup.where.endswith(line_of(script, "for layer"))
    assert (none.what, none.withdrawn > 10) == ("", True)
    assert done.of(records.LikelyStep)[-1].where.endswith(line_of(script, "for step"))
    assert not [note.text for note in done.of(records.Note) if note.level == "bad"]


def nested(items: Any) -> None:
    for turn in items:
        for first in turn:
            print(first)
        for second in turn:
            print(second)


def over_epochs(items: Any) -> None:
    for epoch in items:
        for first in epoch:
            print(first)
        for second in epoch:
            print(second)


def test_how_long_a_later_loop_has_to_take() -> None:
    around, first, second = loops_of(nested.__code__)
    assert needed_ns([first], 12, 10, [second]) == 10
    assert needed_ns([first], 1000, 10, [second]) == 40, "what went around often may be the training"
    assert needed_ns([around, first], 12, 10, [around, second]) == 40, "it may be entered again"
    assert needed_ns([around, first], 12, 10, [second]) == 10, "that has ended as well"
    epoch, first, second = loops_of(over_epochs.__code__)
    assert needed_ns([epoch, first], 12, 10, [epoch, second]) is None


@pytest.mark.parametrize(
    ("times_ms", "has", "too_short"),
    [
        ([1000] * 5, True, False),
        ([9000, 10, 10], False, False),  # the first waits for what was launched before
        ([9000], False, False),
        ([3000] * 2, False, False),  # too few
        ([1] * 3500, True, False),
        ([0.05] * 60_000, True, True),
    ],
)
def test_a_later_loop_is_timed_between_its_iterations(
    times_ms: list[float], has: bool, too_short: bool
) -> None:
    now = 10**9
    loop: Loop = loops_of(nested.__code__)[2]
    later = LaterLoop([loop], 1, now)
    others: list[int] = []
    jumped = later.callback(lambda _code, _at, to: others.append(to), lambda: now)
    for ms in times_ms:
        now += round(ms * 1e6)
        jumped(loop.code, loop.end, loop.head)
        jumped(loop.code, 0, 2)
        jumped(over_epochs.__code__, loop.end, loop.head)
    assert (later.has_iterated(), later.is_too_short) == (has, too_short)
    assert others == [2, loop.head] * len(times_ms), "jumps of the counted loop are counted"
