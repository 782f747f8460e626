"""Modules that a step calls again on the same inputs, marked in captures without harm to the script."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
from installed import needs
from probe_runs import Run

from tuiprof.analyses.shared.model_calls import PROBE_RANGE

needs("torch")

#: A model whose ``turns`` the scripts replace, and its training; the steps 6 and 7 are captured.
MODEL = """
import copy, io, torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
original = torch.nn.Module._call_impl
class Keys(torch.nn.Sequential): pass
class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        self.keys = Keys(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.more = torch.nn.ModuleDict()
    def forward(self, x):
        return self.out(self.turns(self.encoder(x)))
    def turns(self, memory):
        state = 0
        for _ in range(3):
            state = state + self.keys(memory)  # the line
        return state
data = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=4)
def train(model, after=lambda n: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n, (x,) in enumerate(data):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(n)
    assert torch.nn.Module._call_impl is original
"""
LINE = MODEL[: MODEL.index("# the line")].count("\n") + 1
CAPTURE = [{"id": "a", "steps": 2, "at": 6}]


def ranges(done: Run) -> list[str]:
    """Return the names of the ranges in the capture."""
    events = done.events(done.captures("a")[-1])
    return [event["name"] for event in events if event.get("cat") == "user_annotation"]


def marked(done: Run) -> Counter[str]:
    """Return how often which calls are marked in the capture, without the number of the module."""
    found = [name for name in ranges(done) if ", at " in name]
    return Counter(name.partition(" #")[0] + name[name.index(",") :] for name in found)


def same(done: Run) -> dict[str, int]:
    """Return how often each class is called on the same inputs in a step."""
    counts: Counter[str] = Counter()
    for name, count in marked(done).items():
        if "same inputs" in name:
            counts[name.partition(",")[0]] += count
    return {name: count // 2 for name, count in counts.items()}


def test_a_module_called_again_on_the_same_tensor_is_marked_with_its_line(
    run_forked: Callable[..., Run],
) -> None:
    done = run_forked(MODEL + "train(Decoder())", requests=CAPTURE)
    calls = marked(done)
    again = {name: count for name, count in calls.items() if "same inputs" in name}
    assert list(again.values()) == [2 * 2], "of the outermost module alone, in both steps"
    (name,) = again
    assert name.startswith("Keys, same inputs, at ")
    assert f":{LINE} " in name
    assert name.endswith("turns")
    first = {name.partition(",")[0]: count for name, count in calls.items() if name not in again}
    assert first == {"Keys": 2, "Linear": 2}, "the first call, and the part of it that sees the same tensor"
    compared = [name for name in ranges(done) if re.search(PROBE_RANGE, name)]
    assert len(compared) == sum(calls.values()), (
        "what it takes to compare the inputs is known to be the probe's"
    )


UNLIKE = """
class Counting(torch.nn.Linear):
    turn = 0
    def forward(self, x): self.turn = self.turn + 1; return super().forward(x) * self.turn
class Noted(torch.nn.Linear):
    def forward(self, x): return super().forward(x)
class Plus(torch.nn.Linear):
    def forward(self, x, more=0): return super().forward(x) + more
class Unlike(Decoder):
    def __init__(self):
        super().__init__()
        self.more.update(dict(
            dropped=torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)),
            normed=torch.nn.BatchNorm1d(8), counting=Counting(8, 8), noted=Noted(8, 8), plus=Plus(8, 8),
            kept=torch.nn.Sequential(torch.nn.Dropout(0.0), torch.nn.LayerNorm(8)),
        ))
    def turns(self, memory):
        more, state, seen = self.more, 0, memory.detach()
        changed = seen.clone()
        for turn in range(2):
            state = state + more["dropped"](memory) + more["normed"](memory) + more["counting"](memory)
            state = state + more["plus"](memory, turn) + more["kept"](memory)
            with torch.no_grad(): more["noted"].weight.add_(1)
            state = state + more["noted"](seen)
            with torch.no_grad(): state = state + more["noted"](changed.add_(1))
        return state
train(Unlike())
"""


def test_calls_that_differ_are_not_on_the_same_inputs(run_forked: Callable[..., Run]) -> None:
    """Dropout, running statistics, counters, other arguments, changed weights and inputs."""
    assert same(run_forked(MODEL + UNLIKE, requests=CAPTURE)) == {"Sequential": 1}


def test_a_checkpointed_module_runs_again_in_the_backward_pass(run_forked: Callable[..., Run]) -> None:
    script = """
class Checkpointed(Decoder):
    def turns(self, memory): return checkpoint(self.keys, memory, use_reentrant=False)
train(Checkpointed())
"""
    assert not marked(run_forked(MODEL + script, requests=CAPTURE))


def test_nothing_is_wrapped_during_a_capture_that_has_nothing_to_mark(run_forked: Callable[..., Run]) -> None:
    script = """
class Once(Decoder):
    def turns(self, memory): return self.keys(memory)
train(Once(), lambda n: print(n, torch.nn.Module._call_impl is original))
"""
    done = run_forked(MODEL + script, requests=CAPTURE)
    assert not marked(done)
    wrapped = [line.split()[0] for line in done.out.splitlines() if line.endswith("False")]
    assert wrapped == ["4"], "after the end of that step: in the one before the capture"


def test_a_child_that_is_forked_meanwhile_has_nothing_wrapped(run_forked: Callable[..., Run]) -> None:
    script = """
import os
class Forking(Decoder):
    def turns(self, memory):
        wrapped = torch.nn.Module._call_impl is not original
        if os.fork() == 0:
            if wrapped: print(torch.nn.Module._call_impl is original, flush=True)
            os._exit(0)
        os.wait()
        return super().turns(memory)
train(Forking())
"""
    done = run_forked(MODEL + script, requests=CAPTURE)
    assert same(done) == {"Keys": 2}
    assert done.out == "True\n" * 3, "in the step before the capture, and in both of the capture"


def test_a_marked_module_that_fails_is_left_as_it_was(run_forked: Callable[..., Run]) -> None:
    script = """
import traceback
class Failing(Decoder):
    def turns(self, memory):
        state = super().turns(memory)
        self.fails = True
        try: self.keys(memory)
        except ZeroDivisionError as error:
            assert "tuiprof" not in str(traceback.extract_tb(error.__traceback__))
        self.fails = False
        return state + self.keys(memory)
def fail(*_):
    if model.fails: raise ZeroDivisionError
model = Failing()
model.fails = False
model.keys[1].register_forward_hook(fail)
train(model)
"""
    assert same(run_forked(MODEL + script, requests=CAPTURE)) == {"Keys": 4}


def test_what_is_copied_traced_or_wrapped_meanwhile_works_as_without_the_probe(
    run_forked: Callable[..., Run],
) -> None:
    script = """
import pickle
made, x = [], torch.randn(4, 8)
class Busy(Decoder):
    def turns(self, memory):
        made.append((copy.deepcopy(self.keys), pickle.dumps(self.keys), torch.jit.trace(self.keys, x)))
        made[-1] += torch.fx.symbolic_trace(self.keys), torch.export.export(self.keys, (x,)).module()
        made[-1] += (torch.func.vmap(self.keys)(x[None]),)
        return super().turns(memory)
model = Busy()
before = original
def wrap(n):
    global before, wrapped
    if n == 5:
        ours = torch.nn.Module._call_impl
        assert ours is not original
        def wrapped(self, *args, **kwargs): return ours(self, *args, **kwargs)
        torch.nn.Module._call_impl = wrapped
    if n == 9:
        assert torch.nn.Module._call_impl is wrapped
        torch.nn.Module._call_impl = original
train(model, wrap)
for copied, pickled, traced, symbolic, exported, mapped in made:
    loaded = pickle.loads(pickled)
    for same in (loaded, traced, symbolic, exported): same(x)
    assert (copied(x) == loaded(x)).all() and mapped.shape == (1, 4, 8)
    assert "tuiprof" not in str(traced.graph) + symbolic.code + str(exported.graph)
"""
    assert same(run_forked(MODEL + script, requests=CAPTURE))["Keys"] >= 2


def test_a_warning_points_to_the_line_that_it_points_to_without_the_probe(
    run_forked: Callable[..., Run],
) -> None:
    script = """
import warnings
class Warns(torch.nn.Linear):
    def forward(self, x):
        for level in range(1, 7): warnings.warn(str(level), stacklevel=level)
        return super().forward(x)
model = Decoder()
model.keys.append(Warns(8, 8))
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    train(model)
print(len(found), len({(str(one.message), one.filename, one.lineno) for one in found}))
"""
    done = run_forked(MODEL + script, requests=CAPTURE)
    assert same(done) == {"Keys": 2}
    assert done.out == f"{12 * 3 * 6} 6\n", "of each of the levels in each of the steps"


def test_a_module_that_calls_itself_may_use_all_frames(run_forked: Callable[..., Run]) -> None:
    script = """
import sys
class Recursive(Decoder):
    def turns(self, memory): return self.again(memory)
class Again(torch.nn.Module):
    def forward(self, x, turns=200): return self(x, turns - 1) if turns else x
model = Recursive()
model.again = Again()
limit, done = 500, None
while done is None:
    limit += 20
    sys.setrecursionlimit(limit)
    try: done = model(torch.ones(4, 8))
    except RecursionError: pass
sys.setrecursionlimit(limit + 100)
train(model)
"""
    assert run_forked(MODEL + script, requests=CAPTURE).captures("a")[-1].state == "written"


def test_a_wrapper_that_the_script_has_kept_marks_nothing(run_forked: Callable[..., Run]) -> None:
    script = """
class Once(Decoder):
    def turns(self, memory): return self.keys(memory)
def keep(n):
    global ours
    if n == 0:
        ours = torch.nn.Module._call_impl
        assert ours is not original
        torch.nn.Module._call_impl = lambda *args, **kwargs: ours(*args, **kwargs)
    if n in (3, 9): torch.nn.Module._call_impl = ours if n == 3 else original
train(Once(), keep)
"""
    assert not marked(run_forked(MODEL + script, requests=[{"id": "b", "steps": 1, "at": 2}, *CAPTURE]))


def test_a_module_may_hold_a_vocabulary(run_forked: Callable[..., Run]) -> None:
    """Looking at all of it in each call would take longer than the call. No code of a proxy runs."""
    script = """
class Proxy:
    looked = 0
    @property
    def __class__(self):
        Proxy.looked += 1
        return str
model = Decoder()
model.keys.words = [Proxy() for _ in range(10_000)] + [torch.ones(1)]
model.keys.numbers = dict(enumerate(model.keys.words))
model.keys.dropped = Proxy()
Proxy.looked = 0
train(model)
print(Proxy.looked)
"""
    done = run_forked(MODEL + script, requests=CAPTURE)
    assert same(done) == {"Keys": 2}
    assert done.out == "0\n"


@pytest.mark.parametrize("first", [2, 4, 5])
def test_what_is_compiled_before_or_meanwhile_is_compiled_once(
    run_forked: Callable[..., Run], first: int
) -> None:
    script = f"""
import torch._dynamo
from torch._dynamo.utils import counters
other = torch.compile(Decoder(), backend="eager")
x = torch.randn(4, 8)
def after(n):
    if n >= {first}: other(x)
    assert torch.nn.Module._call_impl is original or n < {first}, n
    if n >= {first}: assert counters["stats"]["unique_graphs"] == 1, (n, counters)
train(Decoder(), after)
"""
    assert run_forked(MODEL + script, requests=CAPTURE).captures("a")[-1].state == "written"
