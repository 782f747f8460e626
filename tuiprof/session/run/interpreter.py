"""Facts about the interpreter that runs scripts, collected in a subprocess that needs only the standard library.

That interpreter need not be tuiprof's: it may be of another environment, another Python (3.9+), without tuiprof.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from tuiprof.errors import LaunchError
from tuiprof.session.run.command import choose_python

__all__ = ["Facts", "choose_python", "facts"]

_SCRIPT = Path(__file__).with_name("ask.py")
_MARK = "tuiprof-facts:"
_NAMED = ("torch", "torchmetrics", "triton", "jax", "torch-xla", "torch-neuronx")

_known: dict[Path, Facts] = {}


class Facts(msgspec.Struct, frozen=True):
    """Properties of an interpreter and its machine.

    Attributes:
        python: The interpreter.
        version: For example ``"3.12.3"``.
        implementation: For example ``"cpython"``.
        prefix: Its environment.
        distributions: Version of each installed distribution by its normalised name (lower case, ``-``).
        torch_cuda: The installed torch has its CUDA library; False = no CUDA library, or no torch.
        gpus: Name and compute capability of each NVIDIA GPU that CUDA would see, in its order.
        nvcc: The CUDA compiler; empty = none.
        cxx: The C++ compiler; empty = none.
        cpu: Name of the CPU; empty = unknown.
        cpu_flags: Instruction sets as the kernel names them.
        cores: Physical cores that a process may use (hyper-threads count once).
        numa_nodes: NUMA nodes with CPUs.
        libraries: Which of ``tcmalloc``, ``jemalloc`` and ``iomp5`` lie where run_cpu would find them.
    """

    python: str
    version: str
    implementation: str
    prefix: str
    distributions: dict[str, str]
    torch_cuda: bool
    gpus: tuple[tuple[str, str], ...]
    nvcc: str
    cxx: str
    cpu: str
    cpu_flags: frozenset[str]
    cores: int
    numa_nodes: int
    libraries: frozenset[str]

    def distribution(self, name: str) -> str | None:
        """Return the version of a distribution; None = it is not installed."""
        return self.distributions.get(re.sub(r"[-_.]+", "-", name).lower())

    @property
    def sentence(self) -> str:
        """The platform for scenarios, in one line: ``"NVIDIA H200 ×1 · Python 3.12.3 · torch 2.11.0"``."""
        devices = [f"{name} ×{count}" for name, count in _counted(name for name, _ in self.gpus)]
        if not devices:
            devices = [f"{self.cores} CPU cores"]
        frameworks = [f"{name} {have}" for name in _NAMED if (have := self.distribution(name))]
        return " · ".join([*devices, f"Python {self.version}", *frameworks])


def facts(
    python: str | os.PathLike[str] | None = None, *, refresh: bool = False, timeout_s: float = 30.0
) -> Facts:
    """Inspect an interpreter; cached for the life of this process.

    Raises:
        LaunchError: The interpreter does not exist or does not answer.
    """
    path = choose_python(python)
    if refresh or path not in _known:
        _known[path] = _ask(path, timeout_s)
    return _known[path]


def _ask(python: Path, timeout_s: float) -> Facts:
    try:
        # Not with -I: the script sees PYTHONPATH and the user's site too. Not in the current directory, whose modules
        # would shadow the standard library's.
        done = subprocess.run(
            [python, "-c", _SCRIPT.read_text(encoding="utf-8")],
            cwd=python.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"{python} did not answer within {timeout_s:g} s", "check that it starts: run it with -c pass"
        ) from error
    except OSError as error:
        raise LaunchError(f"{python} cannot be started: {error.strerror}", "check --python") from error
    answer = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.startswith(_MARK)]
    if done.returncode or not answer:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = re.sub(r"[^\x20-\x7e\u00a0-\uffff]", "", said[-1]) if said else f"exit status {done.returncode}"
        raise LaunchError(f"{python} cannot be inspected: {why}", "tuiprof runs scripts in Python 3.9+")
    try:
        raw: dict[str, Any] = msgspec.json.decode(answer[-1][len(_MARK) :])
        return msgspec.convert({"python": str(python), **raw}, Facts)
    except msgspec.MsgspecError as error:
        raise LaunchError(f"{python} returned an invalid answer: {error}", "") from error


def _counted(names: Any) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return list(counts.items())
