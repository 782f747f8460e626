"""The documents for contributors name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Files that docs/adding.md has its reader create.
NEW = set(re.findall(r'title="(\S+)"', (ROOT / "docs" / "adding.md").read_text()))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/adding.md"])
def test_every_file_named_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|tcss))`", text))
    named |= set(re.findall(r"\]\(([\w./-]+\.md)\)", text))
    assert named
    places = (ROOT, ROOT / "tuiprof", (ROOT / page).parent)
    missing = {name for name in named - NEW if not any((place / name).exists() for place in places)}
    assert not missing
