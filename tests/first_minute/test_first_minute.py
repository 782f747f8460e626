"""Scripts as people write them: the steps are theirs, and so is the result."""

from __future__ import annotations

from pathlib import Path

import pytest
import survey


@pytest.mark.parametrize("case", [case for case in survey.CASES if case.cheap], ids=lambda case: case.name)
def test_steps_and_result(case: survey.Case, tmp_path: Path) -> None:
    if not survey.available(case):
        pytest.skip(f"{' or '.join(case.needs)} is not installed")
    found = survey.survey(case, tmp_path)
    assert found.same, "the script's result changed"
    assert found.steps is not None
    missing = found.own_steps - found.steps
    assert 0 <= missing <= (2 if case.late else 0), found.said
    assert found.captured.startswith("steps 30"), found.said
