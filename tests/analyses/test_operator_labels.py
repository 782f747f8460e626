"""What operators are called: the same in every run of a script."""

from __future__ import annotations

import pytest

from tuiprof.analyses.shared.frames import operator_label


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("aten::item", "item"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"),
        ("torchvision::nms", "torchvision::nms"),
        (
            "## Call CompiledFxGraph fzqwfgrwewfy3y53piq6uadhr7lneg4pofvx3yzepjdzwy5qjary ##",
            "CompiledFxGraph",
        ),
    ],
)
def test_operators(name: str, label: str) -> None:
    assert operator_label(name) == label
