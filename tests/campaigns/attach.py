"""Processes that train are entered and left again and again, under load, by every Python that is here.

A target trains until it is told to end, and then prints how many steps it made, a digest of what it trained, and what
could have been left in it: threads, descriptors, environment, modules, the functions that the probe wraps. Bare, it
makes the same number of steps. This Python's targets train with the real PyTorch, where it is installed; the others
with a stand-in that has the functions which the probe hooks, so there the entering is tested, and not PyTorch.

Not counted as left behind: some builds of libffi keep their own library open once a callback is made (docs/attach.md).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuiprof.errors import TuiprofError
from tuiprof.session.attach import attach, detach
from tuiprof.session.store.folders import Session

from .campaign import Options, Outcome
from .same_script import _python

PROMISE = "a running process is entered and left again, and trains as if nobody had been there"

_PYTHONS = ("", "3.9", "3.10", "3.12", "3.13", "3.14")
_LIMIT_S = 120.0
_MAX_STEPS = 20

#: What the probe hooks of PyTorch, for interpreters that have none.
_STAND_IN = """
import functools, sys, types


def _module(name, **names):
    made = types.ModuleType(name)
    made.__dict__.update(names)
    sys.modules[name] = made
    return made


def _backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, grad_variables=None, inputs=None):
    tensors.run()


class Optimizer:
    def __init__(self):
        self._patch_step_function()

    def _patch_step_function(self):
        if not getattr(type(self).step, "hooked", None):
            type(self).step = self.profile_hook_step(type(self).step)
            type(self).step.hooked = True

    @staticmethod
    def profile_hook_step(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)
        return wrapper


class profile:
    def __enter__(self):
        return self

    def __exit__(self, *info):
        pass


__version__ = "0"
_C = _module("torch._C")
version = _module("torch.version", cuda=None)
cuda = _module("torch.cuda")
backends = _module("torch.backends", cuda=_module("torch.backends.cuda", is_built=lambda: False))
_profiler = _module("torch.autograd.profiler", profile=profile)
autograd = _module("torch.autograd", backward=_backward, profiler=_profiler)
optim = _module("torch.optim", Optimizer=Optimizer)
"""

_COMMON = '''
import hashlib, json, os, select, sys, threading, time


def state():
    """What could be left in a process."""
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "counted": threading.active_count(),
        "files": sorted(os.readlink("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd") if
                        os.path.exists("/proc/self/fd/" + name) and
                        "/libffi.so" not in os.readlink("/proc/self/fd/" + name)),
        "environment": sorted(os.environ),
        "tuiprof": [name for name in sys.modules if "tuiprof" in name],
        "finders": [str(type(finder)) for finder in sys.meta_path],
        "wrapped": [str(f.__code__.co_filename) for f in hooked()],
        "main": sorted(vars(sys.modules["__main__"])),
    }


steps = int(sys.argv[1])
pool = [threading.Thread(target=threading.Event().wait, daemon=True) for _ in range(int(sys.argv[2]))]
for thread in pool:
    thread.start()


def ended(n):
    if steps:
        return n >= steps
    return n % 8 == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
'''

_PLAIN = (
    _COMMON
    + """
import torch


class Loss:
    def run(self):
        for i in range(64):
            weights[i] = (weights[i] * 6364136223846793005 + i) & 0xFFFFFFFFFFFFFFFF


class Rule(torch.optim.Optimizer):
    def step(self, closure=None):
        weights.append(weights.pop(0))


def hooked():
    return [torch.autograd.backward, torch.optim.Optimizer._patch_step_function, Rule.step]


weights = list(range(64))
rule = Rule()
n, loss, digest, before, after = 0, None, None, None, None
before = state()
print("ready", flush=True)
while not ended(n):
    loss = Loss()
    torch.autograd.backward(loss)
    rule.step()
    n += 1
digest = hashlib.sha256(repr(weights).encode()).hexdigest()
after = state()
print(json.dumps({"n": n, "digest": digest, "same": before == after, "before": before, "after": after}))
"""
)

_TORCH = (
    _COMMON
    + """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
rule = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.StepLR(rule, 100)


def hooked():
    kinds = [torch.optim.Optimizer, torch.optim.AdamW, torch.optim.Adam]
    return [torch.autograd.backward, torch.optim.Optimizer._patch_step_function, *[
        kind.step for kind in kinds], torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        torch.autograd.profiler.profile.__exit__, rule.step.__closure__[0].cell_contents
        if hasattr(rule.step.__closure__[0].cell_contents, "__code__") else rule.step]


def batches():
    while True:
        yield from torch.utils.data.DataLoader(torch.arange(512.0).reshape(32, 16) / 512, batch_size=4)


n, x, loss, digest, before, after = 0, None, None, None, None, None
source = batches()
torch.nn.functional.mse_loss(model(torch.ones(1, 16)), torch.ones(1, 16)).backward()
rule.zero_grad()
before = state()
print("ready", flush=True)
while not ended(n):
    x = next(source)
    loss = (model(x) - x).square().mean()
    loss.backward()
    rule.step()
    schedule.step()
    rule.zero_grad()
    n += 1
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
after = state()
print(json.dumps({"n": n, "digest": digest, "same": before == after, "before": before, "after": after}))
"""
)


def run(options: Options) -> Outcome:
    """Enter and leave each target as often as asked for."""
    outcome = Outcome()
    if sys.platform != "linux" or importlib.util.find_spec("hypno") is None:
        outcome.skipped.append("hypno is not installed, or this is not Linux")
        outcome.cases = 1
        return outcome
    times = options.count(10, 1)
    entered: list[float] = []
    for version in _PYTHONS[:1] if options.short else _PYTHONS:
        python = _python(version)
        if python is None or (version and sys.version.startswith(version + ".")):
            outcome.skipped.append(f"Python {version}: not installed here")
            continue
        real = not version and importlib.util.find_spec("torch") is not None
        folder = options.folder / (version or "this")
        _one(folder, python, real, times, outcome, entered)
    if entered:
        entered.sort()
        outcome.figures["time to enter"] = (
            f"median {entered[len(entered) // 2]:.2f} s, longest {entered[-1]:.2f} s"
        )
    return outcome


def _one(folder: Path, python: str, real: bool, times: int, outcome: Outcome, entered: list[float]) -> None:
    """Enter and leave one target, end it, and hold it against a bare one."""
    folder.mkdir(parents=True)
    script = folder / "target.py"
    script.write_text(_TORCH if real else _PLAIN)
    if not real:
        (folder / "torch.py").write_text(_STAND_IN)
    child = _begin(python, script)
    name = f"{Path(python).name} with {'PyTorch' if real else 'a stand-in'}"
    try:
        with _load(2):
            for turn in range(times):
                outcome.cases += 1
                outcome.failures += [
                    f"{name}, turn {turn + 1}: {said}" for said in _turn(child, folder, entered)
                ]
                if child.poll() is not None:
                    break
        assert child.stdin is not None
        out, err = child.communicate("\n", timeout=_LIMIT_S)
    except (subprocess.TimeoutExpired, BrokenPipeError) as error:
        outcome.failures.append(f"{name}: {error}")
        return
    finally:
        child.kill()
        child.wait()
    if child.returncode != 0 or err:
        outcome.failures.append(f"{name}: ended with {child.returncode}, and said {err[-500:]!r}")
        return
    did: dict[str, Any] = json.loads(out)
    if not did["same"]:
        differs = {key: (did["before"][key], did["after"][key]) for key in did["before"]}
        outcome.failures.append(
            f"{name}: left in it: { ({k: v for k, v in differs.items() if v[0] != v[1]})!r}"
        )
    bare = _begin(python, script, did["n"])
    out, _ = bare.communicate(timeout=_LIMIT_S)
    if json.loads(out.splitlines()[-1])["digest"] != did["digest"]:
        outcome.failures.append(f"{name}: {did['n']} steps came to another result than bare")


def _turn(child: subprocess.Popen[str], folder: Path, entered: list[float]) -> list[str]:
    """Enter, wait for steps, leave; return what went wrong."""
    began = time.monotonic()
    try:
        session, [answer] = attach([child.pid], root=folder / "sessions")
        entered.append(time.monotonic() - began)
        steps = _steps(session)
        detach(session)
    except TuiprofError as error:
        return [str(error)]
    said = [] if answer.optimizers == 1 else [f"{answer.optimizers} optimizers were found instead of 1"]
    if steps < _MAX_STEPS:
        said.append(f"{steps} steps were recorded within {_LIMIT_S:.0f} s")
    if str(session.status()) != "finished (detached, the process keeps running)":
        said.append(f"the session is {session.status()}")
    left = json.loads((session.control / f"leave-{child.pid}.json").read_text())
    if left.get("left") != []:
        said.append(f"not put back: {left}")
    return said


def _steps(session: Session) -> int:
    """Wait for steps; return how many there are."""
    count = 0
    deadline = time.monotonic() + _LIMIT_S
    while count < _MAX_STEPS and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            count = (session.log / "rank0.jsonl").read_bytes().count(b'{"t":"step"')
        time.sleep(0.05)
    return count


def _begin(python: str, script: Path, steps: int = 0) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TUIPROF", "PYTHON"))}
    child = subprocess.Popen(
        [python, "-W", "error::RuntimeWarning", str(script), str(steps), "2"],
        env=env | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


@contextlib.contextmanager
def _load(count: int) -> Iterator[None]:
    """Keep processors busy meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
