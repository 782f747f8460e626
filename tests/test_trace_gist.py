"""The one line that stands for a trace: what asks for action comes first."""

from __future__ import annotations

import pytest
from analyses.made import Made

from tuiprof.trace_gist import gist

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(("wait_us", "analysis"), [(60, "data_loading"), (1, "kernels")])
def test_of_a_cpu_trace_the_wait_for_data_comes_before_the_largest_operator(
    wait_us: int, analysis: str
) -> None:
    made = Made()
    for number in range(4):
        at = number * 100
        made.step(number, at, at + 100).op(LOADER, at, at + wait_us).op("aten::mm", at + 70, at + 95)
    found = gist(made.trace())
    assert found.analysis == analysis
    assert ("num_workers=0" in found.line) == (analysis == "data_loading")
