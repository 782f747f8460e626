"""The probe on a real NVIDIA GPU: device step times, a capture, and the line of every planted wait.

Needs only pytest, torch and this checkout::

    PYTHONPATH=. python -m pytest -c /dev/null --rootdir=. -q -s tests/probe/test_gpu.py
"""

from __future__ import annotations

import gzip
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from probe_runs import environment, new_session

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def torch() -> Any:
    """PyTorch, imported only where these tests are run."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch


SCRIPT = """
import sys, threading, time, warnings, torch
device = torch.device("cuda")
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
host = torch.randn(4096, 2048)
total, losses, waits = 0.0, [], 0

def metric(loss):
    return loss.item()                                        # planted: aten item

def batch():
    return host.to(device)                                    # planted: pageable to

for step in range(24):
    x = batch()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total += metric(loss)
        (x[:, 0] > 0).nonzero()                               # planted: nonzero
    if loss > 1e9:                                            # planted: bool
        break
    torch.cuda.synchronize()                                  # planted: device synchronize
    torch.cuda.current_stream().synchronize()                 # planted: stream synchronize
    mark = torch.cuda.Event(); mark.record()
    mark.synchronize()                                        # planted: event synchronize
    losses.append(loss.detach().cpu())                        # planted: cpu
    optimizer.step()
print("trained", total == total)

# A whole step captured as a CUDA graph: the probe must record and query nothing while that goes on.
static = torch.randn(64, 2048, device=device)
small = torch.nn.Linear(2048, 2048).to(device)
graphed = torch.optim.SGD(small.parameters(), lr=1e-4, foreach=True)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(40):  # more than 32: from here on this optimizer's steps count
        graphed.zero_grad(set_to_none=True); small(static).sum().backward(); graphed.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
graphed.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    small(static).sum().backward(); graphed.step()
for _ in range(3): graph.replay()
torch.cuda.synchronize()
print("graphed")
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[dict[str, Any]]]:
    """The script's path, its log by kind of record, and the sync sites."""
    folder = tmp_path_factory.mktemp("gpu")
    session = new_session(folder / "session", [{"id": "a", "steps": 4, "at": 8, "stack": True}])
    path = folder / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-W", "error:called a synchronizing", str(path)]
    done = subprocess.run(command, env=environment(session), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained True\ngraphed\n"
    assert "synchroniz" not in done.stderr, "a warning of ours reached the user"
    log: dict[str, Any] = {"path": session}
    for line in (session / "log" / "rank0.jsonl").read_text().splitlines():
        record = json.loads(line)
        log.setdefault(record["t"], []).append(record)
    sidecars = list((session / "traces").glob("rank0.*.syncs.jsonl"))
    assert len(sidecars) == 1
    return path, log, [json.loads(line) for line in sidecars[0].read_text().splitlines()]


def test_device_step_times(recorded: tuple[Path, dict[str, Any], list[dict[str, Any]]]) -> None:
    _, log, _ = recorded
    assert [note["text"] for note in log.get("note", []) if note["level"] == "bad"] == []
    host = {record["n"]: record["dur"] for record in log["step"]}
    device = {record["n"]: record["dur"] for record in log["dev"]}
    assert set(range(1, 24)) <= set(device)
    plain = [n for n in range(2, 24) if n not in range(7, 13)]
    ratio = statistics.median(device[n] / host[n] for n in plain)
    print(f"\nstep: host {statistics.median(host[n] for n in plain) / 1e6:.3f} ms, device/host {ratio:.3f}")
    assert 0.8 < ratio < 1.2, "a step that waits for the device lasts as long on both"
    assert max(host) >= 24, "the steps after the graph's warm-up are there"
    cost = log["cost"][-1]
    print(
        f"probe: {cost['ns'] / cost['steps'] / 1e3:.1f} µs a step in hooks, {cost['flush_ns'] / 1e6:.1f} ms beside"
    )


def test_memory(recorded: tuple[Path, dict[str, Any], list[dict[str, Any]]], torch: Any) -> None:
    _, log, _ = recorded
    last = log["mem"][-1]
    assert 0 < last["alloc"] <= last["peak"]
    assert last["alloc"] <= last["reserved"]
    assert log["head"][0]["versions"]["cuda"] == torch.version.cuda


def test_the_device_is_named_as_the_driver_names_it(
    recorded: tuple[Path, dict[str, Any], list[dict[str, Any]]],
) -> None:
    nvidia = pytest.importorskip("tuiprof.telemetry.nvidia")
    pytest.importorskip("pynvml")
    _, log, _ = recorded
    [uses] = log["uses"]
    source = nvidia.BACKEND.open(None)
    names = [(device.details["uuid"], device.details["pci"]) for device in source.devices()]
    source.close()
    print(f"\nPyTorch says {uses['uuid']!r} at {uses['pci']!r}, NVML {names}")
    assert uses["uuid"] or uses["pci"]
    assert len([1 for uuid, pci in names if uuid == f"GPU-{uses['uuid']}" or pci == uses["pci"]]) == 1
    assert uses["uuid"] in ("", *(uuid.removeprefix("GPU-") for uuid, _ in names))
    assert uses["pci"] in ("", *(pci for _, pci in names))


def test_every_planted_wait_is_named(recorded: tuple[Path, dict[str, Any], list[dict[str, Any]]]) -> None:
    path, _, sites = recorded
    planted = {
        f"{path}:{number}": text.split("planted: ")[1]
        for number, text in enumerate(SCRIPT.splitlines(), 1)
        if "planted: " in text
    }
    seen: dict[str, int] = {}
    for site in sites:
        inner = next((frame for frame in site["frames"] if frame.startswith(str(path))), "").split(" ")[0]
        seen[inner] = seen.get(inner, 0) + 1
    missing = {line: what for line, what in planted.items() if seen.get(line, 0) < 4}
    print("\n" + "\n".join(f"{planted.get(line, '(not planted)'):20} {line} {n}" for line, n in seen.items()))
    assert not missing, f"4 steps were captured; seen {seen}"
    explicit = [line for line, what in planted.items() if what.endswith("synchronize")]
    assert [seen[line] for line in explicit] == [4, 4, 4], "one wait, one site"


def test_the_capture_joins_the_sites(recorded: tuple[Path, dict[str, Any], list[dict[str, Any]]]) -> None:
    _, log, sites = recorded
    written = log["capture"][-1]
    assert written["state"] == "written", written
    with gzip.open(log["path"] / written["path"], "rt") as file:
        trace = json.load(file)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    marks = sorted(event["name"] for event in events if event["name"].startswith("ProfilerStep#"))
    assert set(marks) == {f"ProfilerStep#{n}" for n in range(8, 12)}
    assert any(event.get("cat") == "kernel" for event in events)
    base = trace.get("baseTimeNanoseconds", 0)
    waits = [
        (base + (event["ts"] + event["dur"]) * 1e3, event["tid"])
        for event in events
        if event.get("cat") == "cuda_runtime" and "Synchronize" in event["name"]
    ]
    distances = []
    for site in sites:
        before = [
            site["unix_ns"] - end
            for end, tid in waits
            if tid == site["tid"] and end <= site["unix_ns"] + 50_000
        ]
        assert before, "the trace has no wait of this thread before the site"
        distances.append(min(before))
    print(
        f"\nsite after its wait: median {statistics.median(distances) / 1e3:.1f} µs, max {max(distances) / 1e3:.1f} µs"
    )
    assert statistics.median(distances) < 200_000


FORKS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 8))
model = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for epoch in range(4):
    for (x,) in DataLoader(data, batch_size=8, num_workers=2):
        model(x.cuda()).mean().backward(); optimizer.step(); optimizer.zero_grad()
print("trained")
"""


def test_workers_forked_after_device_steps_live(tmp_path: Path) -> None:
    """Workers of the second epoch inherit the events of the first one's steps; destroying those would abort."""
    session = new_session(tmp_path)
    path = tmp_path / "forks.py"
    path.write_text(FORKS)
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment(session),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    steps = [json.loads(line) for line in (session / "log" / "rank0.jsonl").read_text().splitlines()]
    assert sum(record["t"] == "step" for record in steps) == 32
    assert any(record["t"] == "dev" for record in steps)
