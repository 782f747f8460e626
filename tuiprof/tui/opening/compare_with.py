"""Chooses what to compare a trace with: from a list, or by typing a path, a session or a rung."""

from __future__ import annotations

from pathlib import Path

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.dialogs.dialog import PickScreen
from tuiprof.tui.dialogs.form import TextForm
from tuiprof.tui.opening.compare_targets import beside, sessions_with_traces
from tuiprof.tui.terminal.guest import TerminalApp


def compare_with_another(app: TerminalApp, path: Path) -> None:
    """Ask what a trace is to be compared with, then compare: the other is the baseline."""
    files = beside(path)
    sessions = sessions_with_traces(app.start.sessions)
    targets = [str(file) for file in files] + [str(session) for _, session in sessions]
    names = [file.name for file in files] + [name for name, _ in sessions]

    def compare(other: str | None) -> None:
        if other:
            app.go.compare(other, str(path))

    def picked(index: int | None) -> None:
        if index is None:
            return
        if index < len(targets):
            compare(targets[index])
        else:
            hint = "a trace file, a session (path, name or last) or LADDER:VARIANT"
            app.push_screen(TextForm("compare with", placeholder=hint), compare)

    question = f"baseline for {sanitize(path.name)}"
    app.push_screen(PickScreen(question, [*names, "type another …"]), picked)
