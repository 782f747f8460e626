"""Ranks of one host with a planted cause in one of them, and what the report of the job says.

Needs torch and, for NCCL, as many GPUs as ranks (gloo on CPUs otherwise); takes half a minute a case::

    python tests/gpu/ranks.py OUT                    # DDP and FSDP2, each cause
    python tests/gpu/ranks.py OUT ddp-data fsdp-slow

Each case is recorded as a user would, ``tuiprof record -- torchrun …``, with a capture of six steps. ``OUT/<case>``
gets the session, ``OUT/<case>.txt`` the report of the job; what a step took is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CAUSES = ("none", "data", "slow", "sync")
#: The rank that has the cause, and what it does: seconds of its loader a batch, its batch, host seconds after its wait.
LATE, LOADER_S, MORE, HOST_S = 1, 0.06, 1.3, 0.02
STEPS, CAPTURED, CAPTURE_AT = 120, 6, 40
#: Steps that are timed: after the warm-up and before the capture.
TIMED = range(12, 38)


def train(parallel: str, cause: str) -> None:
    """Train on this rank; rank 0 prints the median step in ms."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    gpu = torch.cuda.is_available()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    width, batch, depth = (4096, 4096, 8) if gpu else (256, 64, 4)
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if gpu else "gloo")
    late = rank == LATE
    rows = int(batch * (MORE if late and cause == "slow" else 1))

    class Made(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> torch.Tensor:
            if late and cause == "data":
                time.sleep(LOADER_S)
            return torch.full((rows, width), 1 / (index + 1))

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(depth))
    ).to(device)
    if parallel == "ddp":
        model = DistributedDataParallel(model, device_ids=[local] if gpu else None)
    else:
        for block in model.children():
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Made(), batch_size=None, pin_memory=gpu)
    times, began = [], time.perf_counter()
    for step, x in enumerate(loader):
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            loss = model(x.to(device, non_blocking=True)).square().mean()
        if late and cause == "sync":
            loss.item()
            time.sleep(HOST_S)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if gpu and step in (TIMED.start - 1, TIMED.stop - 1):
            torch.cuda.synchronize()
        now = time.perf_counter()
        times.append(now - began)
        began = now
    if rank == 0:
        mean_ms = sum(times[TIMED.start : TIMED.stop]) / len(TIMED) * 1e3
        print(json.dumps({"ms": mean_ms, "median_ms": statistics.median(times) * 1e3}), flush=True)
    torch.distributed.destroy_process_group()


def recorded(case: str, out: Path, ranks: int) -> None:
    """Record a case, and report on its ranks."""
    parallel, cause = case.split("-")
    sessions = out / case
    script = [str(Path(__file__).resolve()), str(out), "--train", parallel, "--cause", cause]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    tuiprof = [sys.executable, "-m", "tuiprof", "--sessions", str(sessions)]
    record = [*tuiprof, "record", "-q", "--capture", f"{CAPTURED}@{CAPTURE_AT}", "--name", case, "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*record, *torchrun, *script], env=environment, text=True, capture_output=True, timeout=240
    )
    measured = [line for line in done.stdout.splitlines() if line.startswith('{"ms"')]
    print(f"{case}: status {done.returncode}, {measured or done.stderr[-600:]}", flush=True)
    traces = sorted(path for path in sessions.rglob("*.pt.trace.json*") if path.is_file())
    if len(traces) != ranks:
        print(f"{case}: {len(traces)} traces of {ranks} ranks", flush=True)
        return
    report = [*tuiprof, "report", *map(str, traces)]
    for options, name in (([], f"{case}.txt"), (["-f", "json"], f"{case}.json")):
        (out / name).write_text(
            subprocess.run([*report, *options], text=True, capture_output=True).stdout, "utf-8"
        )
    print("\n".join((out / f"{case}.txt").read_text("utf-8").splitlines()[:14]), flush=True)


def main() -> None:
    """Record the cases, or train as one rank of one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    every = [f"{parallel}-{cause}" for parallel in ("ddp", "fsdp") for cause in CAUSES]
    parser.add_argument("cases", nargs="*", default=every)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--train", choices=("ddp", "fsdp"), help=argparse.SUPPRESS)
    parser.add_argument("--cause", choices=CAUSES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.cause)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for case in options.cases:
        recorded(case, options.out, options.ranks)


if __name__ == "__main__":
    main()
