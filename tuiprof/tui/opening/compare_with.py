"""Chooses what to compare a trace with: from a list, or by typing a path, a session or a rung."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tuiprof.errors import TuiprofError
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.dialogs.dialog import PickScreen
from tuiprof.tui.dialogs.form import TextForm
from tuiprof.tui.terminal.guest import TerminalApp

_MOST_FILES, _MOST_SESSIONS = 12, 12


def beside(path: Path) -> list[Path]:
    """Return the trace files in the folder of a trace, without itself.

    Those whose names begin with the same word come first, in each case the newest first.
    """
    from tuiprof.formats.directory import is_trace_name

    try:
        entries = [
            entry
            for entry in os.scandir(path.parent)
            if is_trace_name(entry.name) and entry.is_file() and entry.name != path.name
        ]
        word = _first_word(path.name)
        entries.sort(key=lambda entry: (_first_word(entry.name) != word, -entry.stat().st_mtime))
    except OSError:  # the folder is gone or may not be read: nothing to offer
        return []
    return [Path(entry.path) for entry in entries[:_MOST_FILES]]


def _first_word(name: str) -> str:
    return re.split(r"[-_.]", name, maxsplit=1)[0]


def sessions_with_traces(root: Path | None) -> list[tuple[str, Path]]:
    """Return name and directory of the newest sessions that have a trace.

    Args:
        root: Folder of sessions; None = the default one.
    """
    from tuiprof.session.store.folders import Session, session_dirs, sessions_root

    found: list[tuple[str, Path]] = []
    for path in session_dirs(sessions_root(root)):
        try:
            session = Session(path)
            if session.traces():
                found.append((f"{session.title}  {path.name}", path))
        except TuiprofError:  # one that cannot be read cannot be compared
            continue
        if len(found) == _MOST_SESSIONS:
            break
    return found


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
