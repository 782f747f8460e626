"""Where a step ends whose iteration has several optimizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby, pairwise
from unittest.mock import MagicMock

import pytest
from installed import needs
from probe_runs import Run

from tuiprof.probe.capture import Capturer
from tuiprof.probe.events import CAPTURE, DEVICE
from tuiprof.probe.requests import Request
from tuiprof.probe.steps.counting import Steps
from tuiprof.probe.steps.sources import OPTIMIZER
from tuiprof.session import log as records

needs("torch")

#: ``d(i)`` and ``g(i)`` let an optimizer step in iteration ``i``, and note when it begins to.
SCRIPT = """
import json, time, torch
from functools import partial
def weights(): return [torch.ones(2, requires_grad=True) for _ in range(2)]
of_d, of_g, of_a = weights(), weights(), weights()
optimizers = {
    name: kind(of, lr=0.01)
    for name, kind, of in (("d", torch.optim.Adam, of_d), ("g", torch.optim.SGD, of_g), ("a", torch.optim.SGD, of_a))
}
stepped = []
def step(name, i):
    time.sleep(0.0005)
    sum(w.square().sum() for w in globals()["of_" + name]).backward()
    stepped.append((time.monotonic_ns(), i, name))
    optimizers[name].step()
d, g, a = (partial(step, name) for name in "dga")
"""
AT_END = "\nprint(json.dumps(stepped))"
BOTH = "for i in range(20): d(i); g(i)"
WITH_LOADER = """
batches = torch.utils.data.DataLoader(torch.ones(40, 2), batch_size=4)
i = 0
for epoch in range(2):
    for batch in batches: d(i); g(i); i += 1
"""
IN_FUNCTIONS = """
class Trainer:
    def critic(self, i): d(i)
    def generator(self, i): g(i)
    def step(self, i):
        self.critic(i)
        self.generator(i)
    def fit(self):
        for i in range(20): self.step(i)
Trainer().fit()
"""
ACCUMULATED = """
for k in range(80):
    sum(w.sum() for w in of_d + of_g).backward()
    if k % 4 == 3: d(k // 4); g(k // 4)
"""
OTHER_FIRST = "for i in range(20): g(i); [d(i) for _ in range(5)]"
IN_TURNS = """
for i in range(20):
    for _ in range(3): d(i)
    for _ in range(2): g(i)
"""
SELDOM_AFTER = """
for i in range(60):
    d(i)
    if i % 5 == 0: g(i)
"""
SELDOM_BEFORE = """
for i in range(20):
    if i % 3 == 0: g(i)
    d(i)
"""
LATER_BEFORE = """
for i in range(40):
    if i >= 20: g(i)
    d(i)
"""
LATER_AFTER = LATER_BEFORE.replace("    d(i)\n", "").replace("    if", "    d(i)\n    if")
LEFT_OUT = """
for i in range(60):
    d(i)
    if i != 30: g(i)
"""
LEFT_OUT_AT_LAST = """
for i in range(12):
    d(i)
    if i != 11: g(i)
"""
TWICE = """
for i in range(20):
    d(i)
    d(i)
    g(i)
"""
TWICE_IN_TWO_LOOPS = TWICE + TWICE.replace("20", "20, 40")
THRICE_FROM_20_ON = """
for i in range(40):
    if i >= 20: d(i)
    d(i)
    d(i)
    g(i)
"""
TWICE_AT_TIMES = """
for i in range(64):
    d(i)
    if i % 8 == 0: d(i)
    g(i)
    if i % 4 == 0: g(i)
"""
TWICE_AND_THEN_ALONE = TWICE + "for i in range(20, 80): d(i)"
LATER_IN_LOOPS = """
for i in range(12):
    for one in (g,) if i else (): one(i)
    for one in (d,): one(i)
"""
TAKEN_OVER = "for i in range(20):\n    for one in ((d,) if i < 5 else (g, a)): one(i)"
JOINED = TAKEN_OVER.replace("(g, a)", "(g, a, d)")
TWO_LOOPS = "for i in range(20): d(i); g(i)\nfor i in range(20, 40): a(i); d(i); g(i)"
LATER_AROUND = """
for i in range(20):
    for _ in range(3): d(i)
    if i: a(i)
    g(i)
"""
IN_HOOKS = """
each = {w: torch.optim.SGD([w], lr=0.01) for w in of_d + of_g}
def update(w): each[w].step()
for w in each: w.register_post_accumulate_grad_hook(update)
for i in range(20):
    for name, of in (("d", of_d), ("g", of_g)):
        stepped.append((time.monotonic_ns(), i, name))
        sum(w.square().sum() for w in of).backward()
    a(i)
"""
REPLACED = """
for i in range(20):
    if i == 10:
        optimizers["d"] = torch.optim.Adam(of_d, lr=0.01)
        optimizers["g"] = torch.optim.SGD(of_g, lr=0.01)
    d(i); g(i)
"""


def contents(done: Run) -> tuple[list[list[tuple[int, str]]], list[list[tuple[int, str]]]]:
    """Return which optimizers stepped in each iteration, and in each step since they were last counted from 0."""
    stepped = [(at, (i, name)) for at, i, name in json.loads(done.out)]
    iterations = [
        [one for _, one in several] for _, several in groupby(stepped, key=lambda found: found[1][0])
    ]
    steps = done.of(records.Step)
    steps = steps[max(index for index, step in enumerate(steps) if step.n == 0) :]
    assert [step.n for step in steps] == list(range(len(steps)))
    # What came first may have begun before the first step, which begins with its backward pass.
    edges = [0 if len(steps) == len(iterations) else steps[0].at - steps[0].dur, *(step.at for step in steps)]
    return iterations, [
        [one for at, one in stepped if after < at <= until] for after, until in pairwise(edges)
    ]


@pytest.mark.parametrize(
    ("loop", "missed"),
    [
        (BOTH, 0),
        ("for i in range(20): g(i); d(i)", 0),
        ("for i in range(20): d(i); g(i); a(i)", 0),
        ("for i in range(20):\n    for one in (d, g, a): one(i)", 0),
        (WITH_LOADER, 0),
        (IN_FUNCTIONS, 0),
        (ACCUMULATED, 0),
        (OTHER_FIRST, 0),
        (IN_TURNS, 1),
        (SELDOM_BEFORE, 0),
        (LATER_BEFORE, 0),
        (TWICE, 0),
        (TWICE_AND_THEN_ALONE, 0),
        (TWICE_IN_TWO_LOOPS, 0),
        (LATER_IN_LOOPS, 0),
        (LATER_AROUND, 1),
        (REPLACED, 0),
        (IN_HOOKS, 0),
    ],
)
def test_a_step_ends_with_the_last_optimizer_of_its_iteration(
    run_forked: Callable[..., Run], loop: str, missed: int
) -> None:
    done = run_forked(SCRIPT + loop + AT_END)
    iterations, steps = contents(done)
    assert steps == iterations[missed:]
    assert all(sum(step.ph.values()) <= step.dur for step in done.of(records.Step))


@pytest.mark.parametrize(
    ("loop", "known_from"),
    [
        (SELDOM_AFTER, 18),
        (LATER_AFTER, 25),
        (LEFT_OUT, 48),
        (LEFT_OUT_AT_LAST, 12),
        (TWICE_AT_TIMES, 24),
        (THRICE_FROM_20_ON, 26),
        (TWO_LOOPS, 22),
        (TAKEN_OVER, 10),
        (JOINED, 10),
    ],
)
def test_an_optimizer_that_steps_now_and_then_changes_no_count(
    run_forked: Callable[..., Run], loop: str, known_from: int
) -> None:
    done = run_forked(SCRIPT + loop + AT_END)
    iterations, steps = contents(done)
    assert len(steps) == len(iterations)
    assert steps[known_from:] == iterations[known_from:]
    assert all(sum(step.ph.values()) <= step.dur for step in done.of(records.Step))


def test_the_last_step_before_the_probe_leaves_may_have_waited_for_another_optimizer(
    run_forked: Callable[..., Run],
) -> None:
    leave = "\nfrom _tuiprof_probe import attached; attached.leave()"
    done = run_forked(SCRIPT + LEFT_OUT_AT_LAST + leave + AT_END)
    iterations, steps = contents(done)
    assert steps == iterations
    assert done.of(records.End)[-1].why == "detached"


def test_an_optimizer_that_goes_on_alone_after_its_turns_is_counted(run_forked: Callable[..., Run]) -> None:
    iterations, steps = contents(run_forked(SCRIPT + IN_TURNS + "for i in range(20, 80): d(i)" + AT_END))
    assert steps[-20:] == iterations[-20:]


def test_each_step_of_a_capture_is_one_iteration(run_forked: Callable[..., Run]) -> None:
    done = run_forked(SCRIPT + BOTH + AT_END, requests=[{"id": "a", "steps": 3, "at": 4}])
    events = done.events(done.captures("a")[-1])
    annotations = [e for e in events if e.get("cat") == "user_annotation"]
    marks = {e["name"]: e for e in annotations}
    for n in (4, 5, 6):
        mark = marks[f"ProfilerStep#{n}"]
        inside = [
            e["name"].partition("#")[2]
            for e in sorted(annotations, key=lambda e: float(e["ts"]))
            if e["name"].startswith("Optimizer.step#")
            and mark["ts"] <= e["ts"] <= e["ts"] + e["dur"] <= mark["ts"] + mark["dur"]
        ]
        assert inside == ["Adam.step", "SGD.step"]


def test_a_capture_begins_late_where_a_step_was_to_end_that_another_optimizer_was_left_out_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps(lambda: None)
    steps.several_optimizers()
    capture = Capturer("", steps)
    begun: list[int] = []
    monkeypatch.setattr(
        capture,
        "make_profiler",
        lambda request: MagicMock(step_begins=begun.append, start_follow_up=lambda: False),
    )
    capture.offer(Request("a", steps=2, at=6))
    first, second = MagicMock(), MagicMock()
    for n in range(12):
        steps.optimizer_ended(first, 10 * n, 10 * n + 1)
        if n != 5:
            steps.optimizer_ended(second, 10 * n + 5, 10 * n + 6)
    capture.wait(60)
    assert steps.n == 12
    assert begun == [7, 8]
    states = [(item[1]["state"], item[1]["first"]) for item in steps.out if item[0] == CAPTURE]
    assert states == [("armed", 6), ("started", 7), ("written", 7)]


def test_each_step_of_a_single_optimizer_counts(run_forked: Callable[..., Run]) -> None:
    script = """
import torch
w = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for i in range(10):
    w.sum().backward()
    optimizer.step()
    w.sum().backward()
    optimizer.step()
"""
    assert len(run_forked(script, requests=[{"id": "a", "steps": 3, "at": 4}]).of(records.Step)) == 20


def test_the_device_time_of_a_step_that_was_found_to_end_later_is_not_recorded() -> None:
    steps = Steps(lambda: None)
    steps.several_optimizers()
    steps.time_on(MagicMock(boundary=lambda n: n + 1))
    steps.out.append((DEVICE, 0, 1, 1))
    first, second = MagicMock(), MagicMock()
    for t in range(0, 60, 10):
        steps.optimizer_ended(first, t, t + 1)
        steps.optimizer_ended(second, t + 5, t + 6)
    assert steps.source == OPTIMIZER
    assert steps.device.drop_pending.call_count == 1
    steps.assembly.take(steps.marks)
    assert [step[1] for step in steps.assembly.steps] == [6, 16, 26, 36, 46, 56]


@pytest.mark.parametrize("condition", ["if i % 3 == 0: ", ""])
def test_steps_of_several_iterations_are_said_to_be(condition: str, run_forked: Callable[..., Run]) -> None:
    done = run_forked(f"{SCRIPT}\nfor i in range(12):\n    for _ in range(2): d(i)\n    {condition}g(i)")
    said = [note.text for note in done.of(records.Note) if "does not step in every iteration" in note.text]
    assert len(said) == (1 if condition else 0)
