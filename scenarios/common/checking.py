"""How far a variant's numbers in torch may be from its baseline's; the comparison itself is ``common.check``."""

from __future__ import annotations

import torch

from common.check import Check

__all__ = ["LOSS_TOLERANCE", "TOLERANCE", "UPDATE_TOLERANCE", "Check"]

#: Largest relative error that rounding alone explains, by the precision of the arithmetic. bf16 keeps 8 bits, so one
#: rounding is 0.4 %; several in a row, in another order, stay below 2 %. float32 keeps 24 bits; a long sum in another
#: order, or a convolution by another algorithm, stays below 0.01 %.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}

#: The same for losses of the first steps: a loss is a mean over a batch, in which roundings average out.
LOSS_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2.5e-3, torch.float16: 1e-3}

#: The same for what a few optimizer steps change in the last layer: roundings of the whole network add up in it.
UPDATE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}
