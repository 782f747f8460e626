"""The short form of every campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.campaign import Campaign, Options, campaigns


@pytest.mark.timeout(600)  # on a machine that does much else
@pytest.mark.parametrize("campaign", campaigns(), ids=lambda campaign: campaign.name)
def test_nothing_breaks_the_promise(campaign: Campaign, tmp_path: Path) -> None:
    outcome = campaign.run(Options(tmp_path, short=True))
    assert outcome.cases > 0
    assert not outcome.failures, "\n".join(outcome.failures)
