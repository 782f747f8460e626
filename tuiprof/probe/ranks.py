"""The rank of this process, and its framework versions."""

from __future__ import annotations

import os
import sys
from typing import Any

_RANK_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
#: Variables that launchers set in every process of a distributed run, equal on all hosts.
_JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
_FRAMEWORKS = ("torch", "torch_xla", "jax", "lightning", "transformers", "torchmetrics", "triton")


def rank_and_world() -> tuple[int | None, int | None]:
    """Return the rank and the number of ranks, as far as known.

    An initialized ``torch.distributed`` takes precedence (spawned workers have no RANK in their environment), then
    RANK and WORLD_SIZE (torchrun), then SLURM_PROCID and SLURM_NTASKS.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank_name, world_name in _RANK_VARIABLES:
        rank, world = os.environ.get(rank_name, ""), os.environ.get(world_name, "")
        if rank.isdecimal():
            return int(rank), int(world) if world.isdecimal() else None
    return None, None


def job() -> dict[str, str]:
    """Return the environment variables that describe the distributed run of this process; may be empty."""
    found = {name: os.environ.get(name, "")[:256] for name in _JOB_VARIABLES}
    return {name: value for name, value in found.items() if value}


def versions() -> dict[str, str]:
    """Return the versions of the frameworks that the script has imported."""
    found: dict[str, str] = {}
    for name in _FRAMEWORKS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    about: Any = getattr(sys.modules.get("torch"), "version", None)
    for name in ("cuda", "hip"):
        version = getattr(about, name, None)
        if version:
            found[name] = str(version)
    return found


def process_name() -> str:
    """Return the name of this process if ``multiprocessing`` started it, else empty."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return ""
    return str(process.current_process().name)
