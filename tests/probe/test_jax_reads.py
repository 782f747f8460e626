"""Loops of JAX that are counted by what each iteration reads, before Python 3.12."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from typing import Any

import pytest
from probe_runs import Run

from tuiprof.probe.sampler import is_always_run, loops_of
from tuiprof.session import log as records


def each(steps: Any, read: Any) -> None:
    for step in steps:
        read(step)


def after_another_loop(steps: Any, read: Any) -> None:
    for step in steps:
        for part in step:
            print(part)
        read(step)


def while_there_are_some(steps: Any, read: Any) -> None:
    while steps:
        steps.pop()
        read(steps)


def after_what_may_end_it(steps: Any, read: Any) -> None:
    for step in steps:
        if step is None:
            break
        read(step)


def now_and_then(steps: Any, read: Any) -> None:
    for step in steps:
        if step % 10 == 0:
            read(step)


def or_another_value(steps: Any, read: Any) -> None:
    for step in steps:
        print(read(step) if step else 0)


def unless_it_goes_on(steps: Any, read: Any) -> None:
    for step in steps:
        if step is None:
            continue
        read(step)


def several_times(steps: Any, read: Any) -> None:
    for step in steps:
        for part in step:
            read(part)
        print(step)


def until_it_is_done(steps: Any, read: Any) -> None:
    for step in steps:
        while True:
            read(step)
            if step:
                break


def at_the_end(steps: Any, read: Any) -> None:
    for step in steps:
        print(step)
    read(steps)


@pytest.mark.parametrize(
    ("function", "always"),
    [
        (each, True),
        (after_another_loop, True),
        (while_there_are_some, True),
        (after_what_may_end_it, True),
        (now_and_then, False),
        (or_another_value, False),
        (unless_it_goes_on, False),
        (several_times, False),
        (until_it_is_done, False),
        (at_the_end, False),
    ],
)
def test_what_each_iteration_runs_once(function: Any, always: bool) -> None:
    code = function.__code__
    (at, *_) = [
        one.offset
        for one in dis.get_instructions(code)
        if one.opname.startswith("LOAD_") and one.argval == "read"
    ]
    assert is_always_run(loops_of(code)[0], at) == always


LOOP = """
import glob, os, sys, time
import jax, jax.numpy as jnp
step = jax.jit(lambda w: (w - 0.01 * (w @ w), (w ** 2).mean()))
weights, losses, began = jnp.eye(64) / 9, [], time.monotonic()
done = os.environ["TUIPROF_SESSION"] + "/traces/plugins/profile/*/*.xplane.pb"
for number in range(10**9):
    weights, loss = step(weights)
    READ
    time.sleep(0.002)
    if glob.glob(done) or time.monotonic() - began > LIMIT: break
print(number)
"""

before_monitoring = pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring counts any loop")


@before_monitoring
@pytest.mark.parametrize(
    "read",
    [
        "losses.append(float(loss))",
        "loss.block_until_ready()",
        "jax.block_until_ready(loss)",
        "losses.append(jax.device_get(loss))",
    ],
)
def test_a_loop_that_reads_a_value_in_each_iteration(read: str, run_jax: Callable[..., Run]) -> None:
    script = LOOP.replace("READ", read).replace("LIMIT", "60")
    requests = [{"id": "a", "steps": 3, "at": 5}]
    done = run_jax(script, requests=requests, JAX_PLATFORMS="cpu")
    steps = [step.n for step in done.of(records.Step)]
    (source,) = done.of(records.StepSource)
    assert source.what == "iterations of a loop"
    assert source.where.endswith(":7")
    assert steps == list(range(len(steps)))
    assert 8 <= len(steps) <= int(done.out), "a capture that waits for arrays itself ends no steps"
    assert [state.state for state in done.captures("a")][-1] == "written"
    assert not [note.text for note in done.of(records.Note) if note.level == "bad"]


@before_monitoring
def test_what_is_read_now_and_then_ends_no_steps(run_jax: Callable[..., Run]) -> None:
    script = LOOP.replace("READ", "float(loss) if number % 7 == 0 else None").replace("LIMIT", "4")
    assert not run_jax(script, JAX_PLATFORMS="cpu").of(records.Step)


#: The loop is counted after two seconds, and then captured.
FAILING = """
import os, time, traceback
import jax, jax.numpy as jnp
update = jax.jit(lambda w: w * 0.99)
w = jnp.ones(3)
log = os.environ["TUIPROF_SESSION"] + "/log/rank0.jsonl"
def text():
    try:
        float(w)
    except TypeError:
        return traceback.format_exc()
def written(): return os.path.exists(log) and '"written"' in open(log).read()
plain = text()
end = time.monotonic() + 20
while time.monotonic() < end and not written():
    w = update(w)
    float(w[0])
    time.sleep(0.01)
    assert text() == plain, text()
"""


def test_a_read_that_fails_has_the_traceback_that_it_has_without_the_probe(
    run_jax: Callable[..., Run],
) -> None:
    done = run_jax(FAILING, requests=[{"id": "a", "steps": 3, "at": 5}], JAX_PLATFORMS="cpu")
    assert done.captures("a")[-1].state == "written"
