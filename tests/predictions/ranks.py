"""Measures and records the cases of data-parallel training, in two processes that torchrun starts.

    python -m tests.predictions.ranks OUT [CASE…] [--seconds 540] [--ranks 2]

As :mod:`tests.predictions.record` does it: each case is timed with the cost and with its fix, in turns in the same
processes, where a round takes as long as in the slowest of them; then it is recorded with the cost. ``OUT/truth.json``
gets what was measured and ``OUT/<case>`` the session, both in the form that :mod:`tests.predictions.score` reads: one
process's trace, with those of the others in ``OUT/<case>/others``. NCCL, or gloo where there are no GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from tests.predictions.record import RECORDED, ROUNDS, STEPS, WARM, compared, keep, recorded


def timed(name: str) -> dict[str, Any]:
    """Return the medians of a step with and without its cost, ms, of the slowest process."""
    import torch
    import torch.distributed as dist

    from tests.predictions.rank_cases import RANK_CASES, here

    case = RANK_CASES[name]
    torch.manual_seed(0)
    steps = {"bad": case.build(True), "good": case.build(False)}
    for step in steps.values():
        for _ in range(WARM):
            step()
        case.wait(None)
    all_ms: dict[str, list[float]] = {"bad": [], "good": []}
    for _ in range(ROUNDS):
        for which, step in steps.items():
            for _ in range(3):
                step()
            case.wait(None)
            dist.barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            case.wait(None)
            took = torch.tensor((time.perf_counter() - began) / STEPS * 1e3, device=here())
            dist.all_reduce(took, dist.ReduceOp.MAX)
            all_ms[which].append(took.item())
    on_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else platform.processor() or "CPU"
    machine = (
        f"{dist.get_world_size()} × {device}, PyTorch {torch.__version__}, Python {platform.python_version()}"
    )
    return compared(case, all_ms, machine)


def run(name: str, *, good: bool) -> None:
    """Run the steps of one case: what is recorded."""
    from tests.predictions.rank_cases import RANK_CASES

    case = RANK_CASES[name]
    step = case.build(not good)
    for _ in range(RECORDED):
        step()
    case.wait(None)


def joined(name: str, what: str) -> None:
    """Join the other processes, and time or run a case."""
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    if what == "time":
        measured = timed(name)
        if dist.get_rank() == 0:
            print(json.dumps(measured), flush=True)
    else:
        run(name, good=what == "good")
    dist.barrier()
    dist.destroy_process_group()


def one_trace(session: Path, rank: int) -> None:
    """Leave the trace of one process where it is looked for, and move the others aside."""
    others = session / "others"
    for path in sorted((session / "traces").rglob("*.pt.trace.json.gz")):
        if not path.name.startswith(f"rank{rank}."):
            others.mkdir(exist_ok=True)
            path.rename(others / path.name)


def main() -> None:
    """Time and record cases until the time is up; what was done before is kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--in-rank", choices=("time", "bad", "good"), help="what torchrun's processes do")
    chosen = parser.parse_args()
    if chosen.in_rank:
        joined(chosen.cases[0], chosen.in_rank)
        return
    from tests.predictions.rank_cases import RANK_CASES

    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={chosen.ranks}")
    here = ("-m", "tests.predictions.ranks", str(chosen.out))

    def record(name: str) -> None:
        argv = (sys.executable, *torchrun, *here, name, "--in-rank", "bad")
        one_trace(recorded(name, chosen.out, argv), RANK_CASES[name].rank)

    keep(
        chosen.out,
        chosen.cases or list(RANK_CASES),
        chosen.seconds,
        lambda name: [sys.executable, *torchrun, *here, name, "--in-rank", "time"],
        record,
    )


if __name__ == "__main__":
    main()
