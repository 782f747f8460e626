"""FlexAttention with and without a block mask."""

from __future__ import annotations

from typing import Any

import pytest
from analyses.made import with_arguments

from tests.advice.findings import finding, found
from tests.advice.host_ahead import gpu_bound
from tuiprof.model import Trace

FORWARD, BACKWARD = "triton_tem_fused_flex_attention_4", "triton_tem_fused_mul_flex_attention_backward_1"


def flex(positions: int = 4096, blocks: int = 1, *, shapes: bool = True, keys: int | None = None) -> Trace:
    """Steps of a layer, and of kernels that take a table of so many blocks of keys for as many blocks of queries."""
    trace = gpu_bound(("aten::mm", "gemm", 600), (FORWARD, FORWARD, 100), (BACKWARD, BACKWARD, 300))
    heads = [4, 16, positions, 64]
    arguments: dict[str, Any] = {
        "Input Dims": [
            heads,
            [*heads[:2], keys or positions, 64],
            heads,
            heads[:3],
            *2 * [[1, 1, blocks]],
            [0],
            [],
        ],
        "Input type": [*3 * ["c10::BFloat16"], "float", "int", "int", "int", "Scalar"],
    }
    arguments["Input Dims"][5] = [1, 1, blocks, blocks]
    return with_arguments(trace, lambda ordinal: arguments) if shapes else trace


def test_queries_and_keys_may_differ_in_number() -> None:
    assert "all 512 × 4 096 positions" in found(flex(512, keys=4096), "flex-block-mask")["what"]


def test_a_kernel_without_a_table_of_blocks_computes_all_scores() -> None:
    row = found(flex(), "flex-block-mask")
    assert "all 4 096 × 4 096 positions: 40 % of device time" in row["what"]
    assert "create_block_mask" in row["instead"]
    # What a causal mask leaves, of 400 µs; all of them, and a tenth.
    assert row["wins_ns"] == pytest.approx(0.45 * 400_000, rel=0.02)
    assert row["wins_low_ns"] == 0
    assert row["wins_high_ns"] > 0.9 * 400_000


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(flex(blocks=32), id="with-a-mask"),
        pytest.param(flex(shapes=False), id="without-shapes"),
        pytest.param(flex(positions=128), id="few-positions"),
        pytest.param(flex(positions=1, keys=4096), id="decoding"),
    ],
)
def test_others_get_no_advice(trace: Trace) -> None:
    assert finding(trace, "flex-block-mask") is None
