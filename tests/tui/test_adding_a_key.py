"""The key that docs/adding.md shows, added to the live screen and pressed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from on_screen import live, until_shown
from synthetic import recorded

from tuiprof.tui.live import screen
from tuiprof.tui.live.screen import LiveScreen

PAGE = Path(__file__).parents[2] / "docs" / "adding.md"
BINDING, ACTION, TEST = re.findall(
    r"```python\n(.*?)```",
    PAGE.read_text().partition("## A key")[2].partition("## A scenario")[0],
    flags=re.S,
)


async def test_the_key_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {"Path": Path, "recorded": recorded, "live": live, "until_shown": until_shown}
    exec(ACTION + TEST, made)
    monkeypatch.setattr(LiveScreen, "BINDINGS", [*LiveScreen.BINDINGS, eval(BINDING, vars(screen))])
    monkeypatch.setattr(LiveScreen, "_merged_bindings", LiveScreen._merge_bindings())
    monkeypatch.setattr(LiveScreen, "action_copy_path", made["action_copy_path"], raising=False)
    await made["test_the_folder_is_copied"](tmp_path)
