"""Every case, by name, and one of them as the script that is recorded.

``python -m tests.predictions.run CASE [--steps N] [--good]``
"""

from __future__ import annotations

import argparse

import torch

from tests.predictions import (  # noqa: F401 - they add their cases
    blind_cases,
    blind_host_cases,
    copied_cases,
    cpu_cases,
    device_cases,
    fresh_cases,
    habit_cases,
    other_cases,
    review_cases,
    shop_cases,
    unseen_cases,
    written_cases,
)
from tests.predictions.cases import CASES


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--good", action="store_true")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    case = CASES[chosen.case]
    if case.cpu:
        torch.set_num_threads(1)
    step = case.build(not chosen.good)
    if case.marked:
        import tuiprof
    last = None
    for _ in range(chosen.steps):
        last = step()
        if case.marked:
            tuiprof.step()
    case.wait(last)


if __name__ == "__main__":
    main()
