"""Every case, by name, and one of them as the script that is recorded.

``python -m tests.predictions.run CASE [--steps N] [--good]``
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil

import torch

from tests import predictions
from tests.predictions.cases import CASES

for _module in pkgutil.iter_modules(predictions.__path__, f"{predictions.__name__}."):
    if _module.name.rpartition(".")[2].startswith(("set", "cpu_cases")):
        importlib.import_module(_module.name)  # it adds its cases


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
