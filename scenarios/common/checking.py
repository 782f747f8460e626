"""How far a variant's numbers in torch may be from its baseline's; the comparison itself is ``common.check``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from common.check import Check

if TYPE_CHECKING:
    from common.scenario import Run
    from common.training import Loop

__all__ = ["LOSS_TOLERANCE", "TOLERANCE", "UPDATE_TOLERANCE", "Check", "compare_attention", "compare_losses"]

#: Largest relative error that rounding alone explains, by the precision of the arithmetic. bf16 keeps 8 bits, so one
#: rounding is 0.4 %; several in a row, in another order, stay below 2 %. float32 keeps 24 bits; a long sum in another
#: order, or a convolution by another algorithm, stays below 0.01 %.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}

#: The same for losses of the first steps: a loss is a mean over a batch, in which roundings average out.
LOSS_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2.5e-3, torch.float16: 1e-3}

#: The same for what a few optimizer steps change in the last layer: roundings of the whole network add up in it.
UPDATE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}


def compare_attention(
    checked: Check, got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], dtype: torch.dtype
) -> None:
    """Hold what an attention function gives to what it is defined to give.

    Args:
        checked: Takes the comparisons.
        got: Its output, and the gradients of q, k and v if it trains.
        want: The same of the definition.
        dtype: What the function computed in.
    """
    names = ("output", "gradient of q", "gradient of k", "gradient of v")
    for name, ours, theirs in zip(names, got, want, strict=False):
        checked.close(name, ours, theirs, TOLERANCE[dtype])


def compare_losses(checked: Check, run: Run, train: Callable[[Run], Loop], dtype: torch.dtype) -> None:
    """Hold the first three training steps of a variant to the losses of its baseline.

    Args:
        checked: Takes the comparison.
        run: What was asked for.
        train: Trains a variant.
        dtype: What the forward pass computes in.
    """
    run = run.shortened(steps=3)
    losses, wanted = (torch.stack(train(one).losses) for one in (run, run.of(run.baseline)))
    checked.close("losses", losses, wanted, LOSS_TOLERANCE[dtype])
