"""What the probe keeps for when a run goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forked import ForkedPython
from installed import needs
from probe_runs import Run, environment, new_session, read, run_script
from waiting import running, until

from tuiprof.session import log as records

needs("torch")

#: Without PyTorch, whose import takes two seconds: of the stacks that are looked at here it has no part.
HANGS = """
import sys, threading, time, tuiprof
threading.Thread(target=threading.Event().wait, name="helper", daemon=True).start()
def train():
    for i in range(30):
        time.sleep(0.002)
        tuiprof.step()
    print("hanging", flush=True)
    sys.stdin.read()
train()
"""

NAN = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
for i in range(20):
    x = torch.randn(8, 4)
    if i == 12:
        x[0, 0] = float("nan")
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item(), sum(float(p.detach().double().sum()) for p in model.parameters()))
"""


@contextlib.contextmanager
def _hanging(session: Path, script: Path) -> Iterator[subprocess.Popen[str]]:
    script.write_text(HANGS)
    command = [sys.executable, str(script)]
    with running(
        command, env=environment(session), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "hanging\n"
        yield child


def _stacks(session: Path, name: str) -> records.Stacks:
    """Wait for an answer."""

    def given() -> records.Stacks | None:
        log = read(session)[0].get("rank0", [])
        return next((it for it in log if isinstance(it, records.Stacks) and it.id.startswith(name)), None)

    until(given, f"stacks {name}")
    found = given()
    assert found is not None
    return found


def test_stacks_are_given_when_asked_for(tmp_path: Path) -> None:
    session = new_session(tmp_path / "session")
    with _hanging(session, tmp_path / "script.py") as child:
        request = {"id": "asked-1", "unix_ns": time.time_ns()}
        (session / "control" / "stacks-old.json").write_text(
            json.dumps(request | {"id": "old", "unix_ns": 1})
        )
        (session / "control" / "stacks-asked-1.json").write_text(json.dumps(request))
        found = _stacks(session, "asked-1")
        child.communicate("")
    assert child.returncode == 0
    main, helper = found.threads
    assert main.main
    assert [(Path(file).name, line, function) for file, line, function in main.frames[-2:]] == [
        ("script.py", 9, "train"),
        ("script.py", 10, "<module>"),
    ]
    assert helper.name == "helper"
    assert found.n == 30
    assert not found.cause
    logs, _ = read(session)
    assert [it.id for it in logs["rank0"] if isinstance(it, records.Stacks)] == ["asked-1"]


def test_stacks_are_taken_when_steps_stop_coming(tmp_path: Path) -> None:
    session = new_session(tmp_path / "session")
    (session / "control" / "black-box.json").write_text('{"stall_s": 0.5}')
    with _hanging(session, tmp_path / "script.py") as child:
        found = _stacks(session, "stall-rank0-30")
        child.communicate("")
    assert found.cause.startswith("no step for ")
    assert "the median step takes" in found.cause
    # Every rank is asked, in the way a user asks.
    assert (session / "control" / "stacks-stall-rank0-30.json").exists()
    logs, _ = read(session)
    assert len([it for it in logs["rank0"] if isinstance(it, records.Stacks)]) == 1


def test_an_exception_leaves_where_it_came_from(run: Callable[..., Run]) -> None:
    script = HANGS.replace("sys.stdin.read()", "raise ValueError('boom')")
    done = run(script, fails=True)
    assert done.code == 1
    assert done.err.rstrip().endswith("ValueError: boom")
    [found] = done.of(records.Stacks)
    assert found.id == "end"
    assert found.cause == "ended by ValueError"
    assert [line for _, line, _ in found.threads[0].frames] == [9, 10]


#: Gradients are sharded tensors then, of which only what this rank holds is looked at.
SHARDED = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
fully_shard(model)
"""


@pytest.mark.parametrize("sharded", [False, True])
def test_loss_and_gradients_that_are_none_are_told_with_their_step(
    tmp_path: Path, forked: ForkedPython, sharded: bool
) -> None:
    if sharded and not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("PyTorch 2.6 or newer is needed")
    script = NAN.replace("optimizer =", f"{SHARDED}optimizer =") if sharded else NAN
    plain = run_script(tmp_path, script, forked=forked)
    assert not plain.of(records.NotFinite), "nobody asked for them"
    session = new_session(tmp_path / "watched")
    (session / "control" / "black-box.json").write_text('{"nan": true}')
    assert forked.run(tmp_path / "script.py", env=environment(session), cwd=tmp_path) == (
        plain.code,
        plain.out,
        plain.err,
    )
    found = [it for it in read(session)[0]["rank0"] if isinstance(it, records.NotFinite)]
    assert [(it.what, it.n, it.value) for it in found] == [
        ("loss", 12, "nan"),
        ("gradient of 0.weight", 12, "nan"),
        ("gradient of 0.bias", 12, "nan"),
        ("gradient of 2.weight", 12, "nan"),
    ]


def test_checks_that_the_device_has_not_done_keep_no_model(tmp_path: Path, forked: ForkedPython) -> None:
    end = """
import gc, weakref
model, optimizer, loss = weakref.ref(model[0].weight), None, None
gc.collect()
print(model() is None)
"""
    waiting = (
        "from _tuiprof_probe.frameworks.torch_black_box import NanWatch\nNanWatch._read = lambda self: None\n"
    )
    session = new_session(tmp_path / "watched")
    (session / "control" / "black-box.json").write_text('{"nan": true}')
    (tmp_path / "script.py").write_text(waiting + NAN + end)
    code, out, err = forked.run(tmp_path / "script.py", env=environment(session), cwd=tmp_path)
    assert (code, out.splitlines()[-1]) == (0, "True"), err


def test_a_metric_that_is_none_is_told_with_its_step(run: Callable[..., Run]) -> None:
    done = run("import tuiprof\nfor i in range(9):\n    tuiprof.step(loss=1.0 if i < 5 else float('inf'))\n")
    [found] = done.of(records.NotFinite)
    assert (found.what, found.n, found.value) == ("metric loss", 5, "inf")


RANKS = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(30):
    model(torch.ones(2, 4)).sum().backward()
    if rank == 1 and i == 20:
        open(sys.argv[2]).read()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_two_ranks_the_one_that_is_late_is_named(tmp_path: Path, forked: ForkedPython) -> None:
    from tuiprof.blackbox.dumps import of_session
    from tuiprof.blackbox.stacks import Process, group

    pytest.importorskip("torch.distributed")
    if not hasattr(__import__("torch")._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this PyTorch has no Flight Recorder for gloo")
    session = new_session(tmp_path / "session")
    (session / "control" / "black-box.json").write_text('{"stall_s": 3}')
    (tmp_path / "ranks.py").write_text(RANKS)
    meet, late = tmp_path / "meet", tmp_path / "late"
    os.mkfifo(late)

    def rank(number: int) -> tuple[int, str, str]:
        (folder := tmp_path / str(number)).mkdir()
        env = environment(session, RANK=str(number), WORLD_SIZE="2")
        with contextlib.closing(forked.another()) as python:
            return python.run(tmp_path / "ranks.py", str(meet), str(late), env=env, cwd=folder)

    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(rank, number) for number in range(2)]
        stacks: dict[int, records.Stacks] = {}
        flights: dict[int, str] = {}

        def both_of_both() -> bool:
            for name, log in read(session)[0].items():
                stacks.update((int(name[4:]), it) for it in log if isinstance(it, records.Stacks))
                flights.update((int(name[4:]), it.path) for it in log if isinstance(it, records.Flight))
            return len(stacks) == len(flights) == 2

        try:
            until(both_of_both, lambda: f"stacks and flights of two ranks: {stacks.keys()}, {flights}", 90)
            said = of_session(session, flights)
        finally:
            with contextlib.suppress(OSError):  # it has ended
                os.close(os.open(late, os.O_WRONLY | os.O_NONBLOCK))
        for ended in ranks:
            status, _, err = ended.result()
            assert status == 0, err
    assert said == ["rank 1 never entered all_reduce 21 of default_pg; rank 0 did"]
    groups = group([Process(f"rank {n}", stacks[n].threads, n) for n in stacks])
    assert {(one.who, one.call) for one in groups if one.main} == {("rank 0", "all_reduce"), ("rank 1", "")}
