"""The kernels for AWS NeuronCores without the SDK: their sources run as they are on stand-ins for what it provides."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nki_in_numpy as nki
import numpy as np
import pytest
from scripts import SCENARIOS, forget


@pytest.fixture(autouse=True)
def scenarios(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(SCENARIOS))
    before = set(sys.modules)
    yield
    forget(before)


@pytest.mark.parametrize("shape", [(1024, 1024), (128, 512), (1, 4), (129, 516), (300, 1000)])
def test_tiles_hold_every_number_once_and_fit_the_chip(shape: tuple[int, int]) -> None:
    from giou_kernel.tiles import PARTITIONS, WIDTH, tiles

    numbers, scores = np.zeros(shape, int), np.zeros((shape[0], shape[1] // 4), int)
    for tile in tiles(*shape):
        rows, columns = numbers[tile.boxes].shape
        assert (rows, columns) == (tile.rows, tile.columns)
        assert rows <= PARTITIONS
        assert columns <= WIDTH
        numbers[tile.boxes] += 1
        scores[tile.scores] += 1
        edges = np.zeros((rows, columns), int)
        for number in range(4):
            edges[tile.edge(number)] += number + 1
        assert (edges.reshape(rows, -1, 4) == [1, 2, 3, 4]).all()
    assert (numbers == 1).all()
    assert (scores == 1).all()


def test_rows_of_broken_boxes_are_refused() -> None:
    from giou_kernel.tiles import tiles

    with pytest.raises(ValueError, match="no whole boxes"):
        list(tiles(8, 510))


def pairs(batch: int, boxes: int) -> tuple[Any, Any, Any]:
    """Return two batches of boxes and their scores in float64."""
    from giou_kernel.score import in_numpy, random_pairs

    first, second = random_pairs(batch, boxes, 256, seed=3)
    second[0] = first[0]
    first[-1, :, 2:] = first[-1, :, :2]
    return first, second, in_numpy(first.astype(np.float64), second.astype(np.float64))


@pytest.mark.parametrize(
    ("batch", "boxes"), [(1024, 256), (130, 129)], ids=["paper", "tiles cut at both ends"]
)
def test_the_nki_kernel_computes_the_scores(batch: int, boxes: int) -> None:
    from giou_kernel.score_nki import kernel

    first, second, want = pairs(batch, boxes)
    flat = [nki.Tensor(one.reshape(batch, 4 * boxes), nki.shared_hbm) for one in (first, second)]
    scores = kernel(nki, nki)(*flat)
    assert scores.buffer == nki.shared_hbm
    np.testing.assert_allclose(scores.values, want, atol=2e-5)


# What the operator uses of Neuron's headers: tensors of float, read and written through a core's own memory of 16 KiB.
TORCH_H = """
#pragma once
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
namespace torch {
struct Accessor {
  float* data; size_t numel;
  template <typename T> void tensor_to_tcm(T* tcm, size_t offset, size_t count) {
    assert(offset + count <= numel); std::memcpy(tcm, data + offset, count * sizeof(T)); }
  template <typename T> void tcm_to_tensor(T* tcm, size_t offset, size_t count) {
    assert(offset + count <= numel); std::memcpy(data + offset, tcm, count * sizeof(T)); }
};
struct Tensor {
  float* data; size_t count;
  size_t numel() const { return count; }
  Accessor tcm_accessor() const { return {data, count}; }
};
namespace neuron {
inline void* tcm_malloc(size_t bytes) { return bytes <= 16384 ? std::malloc(bytes) : nullptr; }
inline void tcm_free(void* memory) { std::free(memory); }
}
}
"""
UTILS_H = """
#pragma once
#include <torch/torch.h>
extern torch::Tensor destination;
extern uint32_t core, cores;
inline torch::Tensor get_dst_tensor() { return destination; }
inline uint32_t get_cpu_id() { return core; }
inline uint32_t get_cpu_count() { return cores; }
"""
HARNESS = """
#include "gpsimd.cpp"
torch::Tensor destination;
uint32_t core, cores;
extern "C" void run(float* a, float* b, float* scores, size_t pairs, uint32_t number, uint32_t of, double epsilon) {
  destination = {scores, pairs}; core = number; cores = of;
  giou_scores({a, 4 * pairs}, {b, 4 * pairs}, epsilon);
}
"""


@pytest.fixture(scope="module")
def gpsimd(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the operator for GpSimd, compiled for this machine as C++14, which is what its compiler takes."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not on PATH")
    folder = tmp_path_factory.mktemp("gpsimd")
    for name, text in {
        "torch/torch.h": TORCH_H,
        "neuron/neuron-utils.hpp": UTILS_H,
        "harness.cpp": HARNESS,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    library = folder / "gpsimd.so"
    sources = SCENARIOS / "giou_kernel"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [compiler, "-std=c++14", "-O1", "-shared", "-fPIC", *warnings, f"-I{folder}", f"-I{sources}"]
    done = subprocess.run(
        [*command, str(folder / "harness.cpp"), "-o", str(library)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize(
    ("batch", "boxes"), [(64, 256), (7, 11), (1, 3)], ids=["even", "uneven", "fewer than cores"]
)
def test_the_operator_for_gpsimd_computes_the_scores_on_eight_cores(
    gpsimd: ctypes.CDLL, batch: int, boxes: int
) -> None:
    from giou_kernel.score import EPSILON

    first, second, want = pairs(batch, boxes)
    scores = np.full((batch, boxes), np.nan, np.float32)
    written = np.zeros((batch, boxes), int)
    addresses = [ctypes.c_void_p(one.ctypes.data) for one in (first, second, scores)]
    for core in range(8):
        before = np.isnan(scores)
        gpsimd.run(*addresses, ctypes.c_size_t(scores.size), core, 8, ctypes.c_double(EPSILON))
        written += before & ~np.isnan(scores)
        assert abs(int((before & ~np.isnan(scores)).sum()) - scores.size / 8) < 1
    assert (written == 1).all(), "a pair was taken by no core, or by two"
    np.testing.assert_allclose(scores, want, atol=2e-5)


def test_the_neuron_scripts_are_valid_and_need_the_sdk() -> None:
    """Importing what needs the SDK fails for its lack and for nothing else."""
    if importlib.util.find_spec("torch_neuronx") is not None:
        pytest.skip("torch_neuronx is installed")
    pytest.importorskip("torch")
    with pytest.raises(ModuleNotFoundError, match="torch_neuronx"):
        __import__("giou_kernel.score_neuron")


def test_the_shape_of_the_operator_is_registered_under_the_name_that_is_called() -> None:
    python = (SCENARIOS / "giou_kernel" / "score_neuron.py").read_text(encoding="utf-8")
    shape = (SCENARIOS / "giou_kernel" / "gpsimd_shape.cpp").read_text(encoding="utf-8")
    compute = (SCENARIOS / "giou_kernel" / "gpsimd.cpp").read_text(encoding="utf-8")
    assert "NEURON_LIBRARY(tuiprof_giou_neuron, m)" in shape
    assert '"scores", &giou_scores_shape, "giou_scores"' in shape
    assert "torch::Tensor giou_scores(" in compute
    assert "torch.ops.tuiprof_giou_neuron.scores(" in python
    assert all(Path(SCENARIOS, "giou_kernel", name).exists() for name in ("gpsimd.cpp", "gpsimd_shape.cpp"))
