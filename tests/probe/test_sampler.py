"""Where the script is: its lines, and what it does there."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

from installed import needs
from probe_runs import Run

from tuiprof.probe.sampler import Sampler, _doing
from tuiprof.session import log as records

needs("torch")

SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 12
    def __getitem__(self, index): time.sleep(0.06); return torch.ones(8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if __name__ == "__main__":
    for epoch in range(2):
        for batch in DataLoader(Slow(), batch_size=1, num_workers=1):
            model(batch).sum().backward()
            optimizer.step()
"""


IN_PROCESS = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 30
    def __getitem__(self, index):
        time.sleep(0.01 + index % 5 / 100)  # in no rhythm with the samples
        return torch.ones(8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
words = torch.rand(1000, 1000)
torch.set_printoptions(threshold=100_000_000)
for batch in DataLoader(Slow(), batch_size=1):
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    str(words[:8])
    words[:, :500].norm()
"""


def test_code_that_a_script_generates_is_not_kept() -> None:
    sampler = Sampler()
    sampler.restart(threading.get_ident())
    made: list[weakref.ref[CodeType]] = []
    for number in range(600):
        code = compile(f"for _ in [{number}]: sample()", f"made{number}.py", "exec")
        made.append(weakref.ref(code))
        exec(code, {"__name__": "made", "sample": sampler.sample})
        del code
    assert sampler.samples == 600
    assert sum(one() is not None for one in made) < 300


def test_lines_of_a_data_set_make_a_batch_and_text_of_a_tensor_is_no_backward(
    run_forked: Callable[..., Run],
) -> None:
    lines = run_forked(IN_PROCESS).of(records.Lines)[-1]
    seen: dict[int, set[str]] = {}
    for (_, line, _), doing in zip(lines.top, lines.doing, strict=True):
        seen.setdefault(line, set()).add(doing)
    assert seen[7] == {"makes a batch"}, lines
    assert "prints a tensor" in seen[17], lines
    assert "backward" not in seen[17], lines


def test_lines_say_what_is_done_there_and_what_the_samples_cost(run_forked: Callable[..., Run]) -> None:
    lines = run_forked(SCRIPT).of(records.Lines)[-1]
    seen = {
        (file.rpartition("/")[2], line): doing
        for (file, line, _), doing in zip(lines.top, lines.doing, strict=True)
    }
    assert seen["script.py", 11] == "waits for a batch", lines
    assert len(lines.doing) == len(lines.top)
    assert 0 < lines.ns < 50_000_000


IN_A_THREAD = """
import threading, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for batch in range(30):
        model(torch.ones(8)).sum().backward()
        optimizer.step()
        time.sleep(0.05)
if __name__ == "__main__":
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""


def test_of_a_script_that_trains_in_a_thread_lines_are_those_of_that_thread(
    run_forked: Callable[..., Run],
) -> None:
    (_, line, _), *_ = run_forked(IN_A_THREAD).of(records.Lines)[-1].top
    assert line == 9


IN_A_FRAMEWORK = """
import types, torch
def module(name, path, text):
    made = types.ModuleType(name)
    made.torch = torch
    exec(compile(text, path, "exec"), vars(made))
    return made
trainer = module("trainer", "/opt/site-packages/trainer.py", \"\"\"
def fit(loss, optimizer):
    torch.autograd.backward(loss)
    optimizer.step()
\"\"\")
generated = module("torch._inductor.runtime.compile_tasks.c0", "/tmp/cache/c0.py", \"\"\"
def call(x):
    for _ in range(3):
        x = x @ x
    return x
\"\"\")
model = torch.nn.Parameter(torch.rand(1800, 1800))
optimizer = torch.optim.SGD([model], lr=1e-9)
for step in range(3):
    trainer.fit((model @ model).sum(), optimizer)
    generated.call(model.detach())
"""


def test_what_a_framework_does_for_the_script_and_code_that_a_compiler_generated_are_at_the_line_that_calls_them(
    run_forked: Callable[..., Run],
) -> None:
    lines = run_forked(IN_A_FRAMEWORK).of(records.Lines)[-1]
    seen: dict[tuple[str, int], set[str]] = {}
    for (file, line, _), doing in zip(lines.top, lines.doing, strict=True):
        seen.setdefault((file.rpartition("/")[2], line), set()).add(doing)
    assert {file for file, _ in seen} == {"script.py"}, lines
    assert "backward" in seen["script.py", 22], lines
    assert ("script.py", 23) in seen, lines


def doing_in(*modules: str) -> str:
    """What is done by a call in the first of these modules, which calls one in the next, and so on."""

    def innermost() -> str:
        frame, below = sys._getframe(1), []
        for _ in modules:
            below.append(frame)
            assert frame.f_back is not None
            frame = frame.f_back
        return _doing(below)

    call = innermost
    for module in reversed(modules):
        space: dict[str, Any] = {"__name__": module, "call": call}
        exec("def run(): return call()", space)
        call = space["run"]
    return call()


def test_modules_that_run_while_they_are_imported_do_nothing_else() -> None:
    assert (
        doing_in("torch.optim.sgd", "torch._tensor", "importlib._bootstrap", "torch.distributed") == "imports"
    )
    assert doing_in("importlib._bootstrap", "torch._dynamo.convert_frame") == "imports"
    assert doing_in("torch._dynamo.convert_frame", "torch.optim.sgd") == "compiles"
    assert doing_in("torch.distributed", "torch.nn.modules.module") == "collectives"
