"""The black box on a real GPU: snapshots when memory runs out, NaN without a wait, NCCL's Flight Recorder.

Needs torch with a GPU and this checkout, two GPUs for the last case; takes about two minutes::

    python tests/gpu/black_box.py            # all, and one line each
    python tests/gpu/black_box.py oom        # the cases whose names hold this
    OUT=folder python tests/gpu/black_box.py # keeps the snapshots and dumps there

Each case is a process of its own under the probe, as ``tuiprof record`` starts it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
INJECT = ROOT / "tuiprof" / "probe" / "inject"
LIMIT_S = 100

TRAINS = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
def step(batch):
    loss = model(torch.ones(batch, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
def grab():
    return torch.empty(1 << 46, dtype=torch.uint8, device="cuda")
"""


@dataclass
class Did:
    """A process that has ended."""

    session: Path
    code: int
    out: str
    err: str

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of a kind, of all writers."""
        found = []
        for path in sorted((self.session / "log").glob("*.jsonl")):
            found += [
                record for record in map(json.loads, path.read_text().splitlines()) if record["t"] == kind
            ]
        return found


def run(script: str, *, probe: bool = True, how: tuple[str, ...] = (), **wanted: object) -> Did:
    """Run a script under the probe, or bare."""
    session = Path(tempfile.mkdtemp(prefix="black-box-"))
    for name in ("log", "traces", "control"):
        (session / name).mkdir()
    if wanted:
        (session / "control" / "black-box.json").write_text(json.dumps(wanted))
    path = session / "script.py"
    path.write_text(script)
    env = dict(os.environ, PYTHONUNBUFFERED="1")
    if probe:
        env |= {"TUIPROF_SESSION": str(session), "PYTHONPATH": str(INJECT)}
    command = [sys.executable, *how, str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    return Did(session, done.returncode, done.stdout, done.stderr)


def snapshot_of(did: Did) -> dict[str, Any]:
    """Return the only snapshot, which is kept for who asked for it."""
    [record] = did.records("oom")
    assert record["path"], record
    path = did.session / record["path"]
    keep(path, f"{sys._getframe(1).f_code.co_name}.pickle")
    found: dict[str, Any] = pickle.loads(path.read_bytes())
    return found


def keep(path: Path, name: str) -> None:
    """Copy a file to $OUT."""
    if os.environ.get("OUT"):
        folder = Path(os.environ["OUT"])
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / name)


# -- cases --------------------------------------------------------------------------------------------------------


def oom_ends_the_script() -> str:
    """The exception, the status and the snapshot, after some steps."""
    script = TRAINS + "for i in range(5):\n    step(64)\ngrab()\n"
    did, bare = run(script), run(script, probe=False)
    assert (did.code, bare.code) == (1, 1), (did.code, bare.code)
    last, last_bare = did.err.strip().splitlines()[-1], bare.err.strip().splitlines()[-1]
    assert last.split(".")[:3] == last_bare.split(".")[:3], (last, last_bare)
    found = snapshot_of(did)
    held = sum(b["size"] for s in found["segments"] for b in s["blocks"] if b["state"] == "active_allocated")
    weights = 4 * (1024 * 1024 + 1024) * 4
    assert held >= 3 * weights, held  # weights and both moments
    [record] = did.records("oom")
    assert record["wanted"] >= 1 << 46, record
    assert record["n"] == 5, record
    [end] = did.records("end")
    assert "OutOfMemory" in end["why"], end
    return f"{len(found['segments'])} segments, {held >> 20} MiB held; the record: {record}"


def oom_in_the_first_step() -> str:
    """Before any step was seen there is no log yet: it is opened at the end."""
    did = run(TRAINS + "grab()\n")
    assert did.code == 1
    found = snapshot_of(did)
    return f"{len(found['segments'])} segments"


def oom_with_history() -> str:
    """Blocks have the stack that asked for them, and the history its events."""
    did = run(TRAINS + "for i in range(5):\n    step(64)\ngrab()\n", memory=True)
    assert did.code == 1
    found = snapshot_of(did)
    named = [
        b
        for s in found["segments"]
        for b in s["blocks"]
        if any("script.py" in frame["filename"] for frame in b.get("frames") or ())
    ]
    assert named, "no block has a stack with a line of the script"
    actions = {entry["action"] for trace in found["device_traces"] for entry in trace}
    assert {"alloc", "oom"} <= actions, actions
    return f"{len(named)} blocks with a line, actions {sorted(actions)}"


def oom_that_is_caught() -> str:
    """A script that tries something smaller goes on, with the same numbers."""
    script = TRAINS + (
        "for i in range(20):\n"
        "    if i % 4 == 0:\n"
        "        try:\n            grab()\n"
        "        except torch.OutOfMemoryError:\n            print('caught')\n"
        "    print(step(64).item())\n"
    )
    did, bare = run(script), run(script, probe=False)
    assert (did.code, did.out) == (0, bare.out), did.err
    assert len(did.records("oom")) == 5
    kept = list((did.session / "memory").iterdir())
    assert 1 <= len(kept) <= 2, kept
    return f"{did.out.count('caught')} failures, {len(kept)} snapshots kept"


def cuda_is_left_alone() -> str:
    """The probe never initialises CUDA: a script that forks before it does must be able to."""
    script = (
        "import os, torch\nassert not torch.cuda.is_initialized()\npid = os.fork()\n"
        "if pid == 0:\n    print(torch.ones(1, device='cuda').item(), flush=True)\n    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nassert not torch.cuda.is_initialized()\n"
    )
    did = run(script, memory=True, nan=True)
    assert (did.code, did.out) == (0, "1.0\n"), did.err
    return "a fork uses CUDA first"


def nan_without_a_wait() -> str:
    """Loss and gradients are checked without a synchronisation, and the training is the same to the bit."""
    script = TRAINS + (
        "torch.cuda.set_sync_debug_mode('error')\nlosses = []\n"
        "for i in range(40):\n"
        "    if i == 30:\n"
        "        with torch.no_grad():\n            model[1].weight[0, 0].fill_(float('nan'))\n"
        "    losses.append(step(64).detach())\n"
        "torch.cuda.set_sync_debug_mode('default')\nprint(torch.stack(losses).tolist())\n"
    )
    did, bare = run(script, nan=True), run(script, probe=False)
    assert (did.code, did.out) == (0, bare.out), did.err[-2000:]
    bad = [note for note in did.records("note") if note["level"] == "bad"]
    assert not bad, bad
    found = [(record["what"], record["n"]) for record in did.records("nan")]
    assert ("loss", 30) in found, found
    assert any(what.startswith("gradient of") and n == 30 for what, n in found), found
    return str(found)


RANKS = """
import os, sys, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for i in range(60):
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    if rank == 1 and i == 40:
        time.sleep(12)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
dist.destroy_process_group()
"""


def nccl_rank_that_is_late() -> str:
    """Every rank writes its stacks and NCCL's Flight Recorder: rank 1 is behind."""
    import torch

    if torch.cuda.device_count() < 2:
        return "SKIPPED: one GPU"
    did = run(RANKS, how=("-m", "torch.distributed.run", "--nproc-per-node=2"), stall_s=3)
    assert did.code == 0, did.err[-3000:]
    stacks = [record for record in did.records("stacks") if record["id"].startswith("stall-")]
    assert len(stacks) >= 2, stacks
    dumps = {}
    for record in did.records("flight"):
        path = did.session / record["path"]
        data = path.read_bytes()
        rank = int(path.name.split(".")[0][-1])
        dumps[rank] = json.loads(data) if data[:1] == b"{" else pickle.loads(data)
        keep(path, f"flight-rank{rank}{path.suffix}")
    assert set(dumps) == {0, 1}, dumps.keys()
    last = {rank: max(e["collective_seq_id"] for e in dump["entries"]) for rank, dump in dumps.items()}
    assert last[0] > last[1], last
    return f"version {dumps[0]['version']}, last collective by rank {last}"


CASES: tuple[Callable[[], str], ...] = (
    oom_ends_the_script,
    oom_in_the_first_step,
    oom_with_history,
    oom_that_is_caught,
    cuda_is_left_alone,
    nan_without_a_wait,
    nccl_rank_that_is_late,
)


def main(wanted: list[str]) -> int:
    """Run the cases; return how many failed."""
    failed = 0
    for case in CASES:
        if wanted and not any(word in case.__name__ for word in wanted):
            continue
        try:
            print(f"ok      {case.__name__}: {case()}", flush=True)
        except Exception:  # noqa: BLE001 - one that fails must not hide the others
            failed += 1
            print(f"FAILED  {case.__name__}\n{traceback.format_exc()}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
