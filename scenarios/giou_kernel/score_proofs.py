"""The Neuron kernels of ``giou_kernel.score`` without a Neuron device: what they compute, not how fast."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common.clocks import Clock
from common.scenario import CannotRun

from giou_kernel.score import EPSILON

if TYPE_CHECKING:
    from numpy.typing import NDArray

SOURCES = Path(__file__).parent
CORES = 8


def prepared(
    name: str, first: NDArray[Any], second: NDArray[Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], Clock]:
    """Return the variant's function, its inputs and the clock for it.

    Args:
        name: ``"nki-numpy"``, ``"nki-simulated"`` or ``"neuron-cpp-host"``.
        first: float32 ``[batch, boxes, 4]``.
        second: The same.

    Raises:
        CannotRun: There is no C++ compiler.
    """
    function = {"nki-numpy": in_numpy, "nki-simulated": simulated(), "neuron-cpp-host": on_host}
    return function[name], (first, second), Clock("cpu", interpreted=True, numpy=np.__version__)


def in_numpy(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the scores by the NKI kernel on the stand-in for NKI."""
    from giou_kernel import nki_in_numpy as nki
    from giou_kernel.score_nki import kernel

    flat = (nki.Tensor(boxes.reshape(len(boxes), -1), nki.shared_hbm) for boxes in (first, second))
    return kernel(nki, nki)(*flat).values


def simulated() -> Callable[..., NDArray[Any]]:
    """Return the NKI kernel in the SDK's simulator, which takes and returns NumPy arrays."""

    def function(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        import nki
        import nki.isa
        import nki.language

        from giou_kernel.score_nki import kernel

        run = nki.simulate(nki.jit(kernel(nki.language, nki.isa)))
        return np.asarray(run(*(boxes.reshape(len(boxes), -1) for boxes in (first, second))))

    return function


def on_host(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the scores by the operator for GpSimd; what no core wrote is NaN."""
    scores = np.full(first.shape[:-1], np.nan, np.float32)
    for core in range(CORES):
        run_core(operator(), first, second, scores, core, CORES)
    return scores


def run_core(
    library: ctypes.CDLL,
    first: NDArray[Any],
    second: NDArray[Any],
    scores: NDArray[Any],
    core: int,
    cores: int,
) -> None:
    """Let one core write its scores."""
    addresses = [ctypes.c_void_p(each.ctypes.data) for each in (first, second, scores)]
    library.run(*addresses, ctypes.c_size_t(scores.size), core, cores, ctypes.c_double(EPSILON))


@functools.cache
def operator() -> ctypes.CDLL:
    """Compile the operator for this machine, as C++14, which is what GpSimd's compiler takes.

    Raises:
        CannotRun: There is no C++ compiler, or it refuses the source.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise CannotRun("needs a C++ compiler, g++ is not on PATH", "apt install g++")
    library = Path(tempfile.mkdtemp(prefix="gpsimd-"), "gpsimd.so")
    warnings = ["-Wall", "-Wextra", "-Werror"]
    folders = [f"-I{SOURCES / 'host'}", f"-I{SOURCES}"]
    command = [compiler, "-std=c++14", "-O1", "-shared", "-fPIC", *warnings, *folders]
    command += [str(SOURCES / "host/run.cpp"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"the operator for GpSimd does not compile: {done.stderr.strip()}", "another g++")
    try:
        return ctypes.CDLL(str(library))
    finally:
        shutil.rmtree(library.parent)
