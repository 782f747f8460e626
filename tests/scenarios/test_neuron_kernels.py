"""The kernels for AWS NeuronCores without the SDK: their sources run as they are on stand-ins for what it provides."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    from giou_kernel import nki_in_numpy as nki
    from giou_kernel.score_nki import kernel

    first, second, want = pairs(batch, boxes)
    flat = [nki.Tensor(one.reshape(batch, 4 * boxes), nki.shared_hbm) for one in (first, second)]
    scores = kernel(nki, nki)(*flat)
    assert scores.buffer == nki.shared_hbm
    np.testing.assert_allclose(scores.values, want, atol=2e-5)


@pytest.fixture
def gpsimd() -> ctypes.CDLL:
    """Return the operator for GpSimd, compiled for this machine."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on PATH")
    from giou_kernel.score_proofs import operator

    return operator()


@pytest.mark.parametrize(
    ("batch", "boxes"), [(64, 256), (7, 11), (1, 3)], ids=["even", "uneven", "fewer than cores"]
)
def test_the_operator_for_gpsimd_computes_the_scores_on_eight_cores(
    gpsimd: ctypes.CDLL, batch: int, boxes: int
) -> None:
    from giou_kernel.score_proofs import run_core

    first, second, want = pairs(batch, boxes)
    scores = np.full((batch, boxes), np.nan, np.float32)
    written = np.zeros((batch, boxes), int)
    for core in range(8):
        before = np.isnan(scores)
        run_core(gpsimd, first, second, scores, core, 8)
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
