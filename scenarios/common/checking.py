"""Comparing a variant's numbers with its baseline's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

#: Largest relative error that rounding alone explains, by the precision of the arithmetic. bf16 keeps 8 bits, so one
#: rounding is 0.4 %; several in a row, in another order, stay below 2 %. float32 keeps 24 bits; a long sum in another
#: order, or a convolution by another algorithm, stays below 0.01 %.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}

#: The same for losses of the first steps: a loss is a mean over a batch, in which roundings average out.
LOSS_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2.5e-3, torch.float16: 1e-3}

#: The same for what a few optimizer steps change in the last layer: roundings of the whole network add up in it.
UPDATE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}


@dataclass
class Check:
    """What was compared, and how far apart it was.

    Attributes:
        baseline: Name of the variant, or the method, compared with.
        lines: For each comparison its name, relative error and tolerance.
    """

    baseline: str
    lines: list[tuple[str, float, float]] = field(default_factory=list)

    def close(self, what: str, got: Any, want: Any, tolerance: float) -> None:
        """Compare two tensors (or lists of numbers) by ‖got − want‖ ÷ ‖want‖, in float64.

        Args:
            what: Name of the comparison.
            got: The variant's values.
            want: The baseline's values, same shape.
            tolerance: Largest error that counts as equal.
        """
        got, want = (torch.as_tensor(value).detach().double().cpu() for value in (got, want))
        if got.shape != want.shape:
            raise ValueError(f"{what}: shapes {tuple(got.shape)} and {tuple(want.shape)} differ")
        error = ((got - want).norm() / want.norm().clamp_min(1e-30)).item()
        self.lines.append((what, error, tolerance))

    @property
    def ok(self) -> bool:
        """Whether every comparison is within its tolerance (a NaN is not)."""
        return all(error <= tolerance for _, error, tolerance in self.lines)

    def result(self) -> dict[str, Any]:
        """Return the check as plain data."""
        keys = ("what", "relative_error", "tolerance")
        compared = [dict(zip(keys, line, strict=True)) for line in self.lines]
        return {"ok": self.ok, "baseline": self.baseline, "compared": compared}

    def __str__(self) -> str:
        """One line a comparison."""
        return "\n".join(
            f"check {what}: relative error {error:.2e}, tolerance {tolerance:.1e} — "
            + ("same as " if error <= tolerance else "NOT the same as ")
            + self.baseline
            for what, error, tolerance in self.lines
        )
