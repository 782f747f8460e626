"""Each change that follows the advice applies to its script."""

from __future__ import annotations

import ast

import pytest

from tests.predictions import followed


@pytest.mark.parametrize(
    ("script", "change"), [(script, change) for script, of in followed.CHANGES.items() for change in of]
)
def test_a_changed_script_is_another_valid_one(script: str, change: str) -> None:
    text = followed.changed(script, change)
    ast.parse(text)
    assert text != followed.changed(script)


def test_lines_become_the_body_of_a_function() -> None:
    enclose = ("    loss.b", "step()\n", "    def update():\n", "    update()\n")
    text = "for one in data:\n    loss.backward()\n    step()\n    log()\n"
    assert followed.replaced(text, *enclose) == (
        "for one in data:\n    def update():\n        loss.backward()\n        step()\n    update()\n    log()\n"
    )
    with pytest.raises(ValueError, match="missing"):
        followed.replaced(text, "    loss.b", "missing", "", "")
    with pytest.raises(ValueError, match="missing"):
        followed.replaced(text, "missing", "new")
