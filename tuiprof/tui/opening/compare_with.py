"""Chooses what to compare a trace with: from a list, or by typing a path, a session or a rung."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.app import App

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.compare.screen import CompareScreen
from tuiprof.tui.dialogs.pick import PickScreen
from tuiprof.tui.dialogs.text_form import TextForm
from tuiprof.tui.opening.compare_targets import beside, sessions_with_traces


def compare_with_another(app: App[Any], path: Path, root: Path | None) -> None:
    """Ask what a trace is to be compared with, then compare: the other is the baseline.

    Args:
        app: The dashboard.
        path: The trace.
        root: Folder of sessions; None = the default one.
    """
    files = beside(path)
    sessions = sessions_with_traces(root)
    targets = [str(file) for file in files] + [str(session) for _, session in sessions]
    names = [file.name for file in files] + [name for name, _ in sessions]

    def compare(other: str | None) -> None:
        if other:
            app.push_screen(CompareScreen(other, path, root=root))

    def picked(index: int | None) -> None:
        if index is None:
            return
        if index < len(targets):
            compare(targets[index])
        else:
            hint = "a trace file, a session (path, name or last) or LADDER:VARIANT"
            app.push_screen(TextForm("compare with", placeholder=hint), compare)

    question = f"baseline for {sanitize(path.name)}"
    app.push_screen(PickScreen(question, [*names, "another: type it …"]), picked)
