"""One training process of several: `torchrun --nproc-per-node 2 scenarios/metrics.py --variant naive`."""

from __future__ import annotations

import atexit
import os

import torch


def join(device: torch.device, backend: str = "") -> tuple[torch.device, int, int]:
    """Join the processes that torchrun started beside this one.

    Args:
        device: What one process alone would train on: a CUDA device becomes that of this process's own.
        backend: Backend of the default process group; empty = NCCL on CUDA, gloo elsewhere.

    Returns:
        This process's device, its rank, and how many there are: 0 of 1 where it was started alone.

    Raises:
        RuntimeError: There are more processes than devices.
    """
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks == 1:
        return device, 0, 1
    if device.type == "cuda":
        local, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= devices:
            raise RuntimeError(
                f"rank {local} has no GPU of its own: there are {devices}; start fewer processes"
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    if not torch.distributed.is_initialized():  # a check trains before the run does
        torch.distributed.init_process_group(backend or ("nccl" if device.type == "cuda" else "gloo"))
        atexit.register(torch.distributed.destroy_process_group)
    return device, torch.distributed.get_rank(), ranks
