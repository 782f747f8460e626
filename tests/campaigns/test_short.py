"""The short form of every campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.campaign import Options, campaign, names


@pytest.mark.timeout(600)  # on a machine that does much else
@pytest.mark.parametrize("name", names())
def test_nothing_breaks_the_promise(name: str, tmp_path: Path) -> None:
    outcome = campaign(name).run(Options(tmp_path, short=True))
    assert outcome.cases > 0
    assert not outcome.failures, "\n".join(outcome.failures)
