"""Comparing a variant's numbers with its baseline's, in whatever framework they are."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any


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
        """Compare two arrays (or lists of numbers) by ‖got − want‖ ÷ ‖want‖, in float64.

        Args:
            what: Name of the comparison.
            got: The variant's values.
            want: The baseline's values, same shape.
            tolerance: Largest error that counts as equal; 0 = they must be the same.
        """
        got, want = _in_float64(got), _in_float64(want)
        if got.shape != want.shape:
            raise ValueError(f"{what}: shapes {tuple(got.shape)} and {tuple(want.shape)} differ")
        error, norm = (float((values**2).sum()) ** 0.5 for values in (got - want, want))
        self.lines.append((what, error / max(norm, 1e-30), tolerance))

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


def _in_float64(values: Any) -> Any:
    if "torch" in sys.modules:  # a script of torch alone has no NumPy
        return sys.modules["torch"].as_tensor(values).detach().cpu().double()
    import numpy

    return numpy.asarray(values, dtype=numpy.float64)
