"""Other runs of the folder: those running at the same time, and the baseline of its ladder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tuiprof.errors import SessionError
from tuiprof.session.store.folders import Session, Summary, list_sessions

#: Number of newest sessions to search for runs.
_NEWEST: Final = 40


class OtherRuns:
    """The runs that go on in the folder of a session.

    Attributes:
        shown: They and the session itself, the oldest first.
    """

    def __init__(self, session: Session) -> None:
        self.shown: list[Summary] = []
        self._session = session
        self._known: dict[str, Summary] = {}

    def find(self) -> list[Summary]:
        """Return the runs that go on and the session itself; reads the folder, so it is called in a thread."""
        try:
            found = list_sessions(self._session.path.parent, limit=_NEWEST, known=self._known)
        except SessionError:  # the folder was removed
            return self.shown
        self._known = {summary.id: summary for summary in found}
        return [one for one in reversed(found) if one.state == "running" or one.id == self._session.id]

    def neighbour(self, by: int) -> Path | None:
        """Return the folder of the run ``by`` positions further; None = no other."""
        positions = [index for index, one in enumerate(self.shown) if one.id == self._session.id]
        if not positions or len(self.shown) < 2:
            return None
        return Path(self.shown[(positions[0] + by) % len(self.shown)].path)


def baseline_of(session: Session) -> tuple[str, float] | None:
    """Return the baseline to compare a run with: the newest finished one of its ladder and preset.

    Returns:
        Name of the baseline variant and its median step time in ns; None = there is none, or this is one.
    """
    from tuiprof.ladder.scenarios import ladders
    from tuiprof.session.store.folders import summary_of

    scenario = session.meta.scenario
    if scenario is None:
        return None
    ladder = next((found for found in ladders(()) if found.name == scenario.name), None)
    if ladder is None or not ladder.baseline or ladder.baseline == scenario.variant:
        return None
    for other in newest_first(session.path.parent):
        meta = other.meta
        if (
            meta.scenario is not None
            and (meta.scenario.name, meta.scenario.variant, meta.scenario.preset)
            == (scenario.name, ladder.baseline, scenario.preset)
            and meta.host == session.meta.host
            and other.status().state == "finished"
        ):
            median_ns = summary_of(other).median_ns
            if median_ns:
                return ladder.baseline, median_ns
    return None


def newest_first(root: Path) -> list[Session]:
    """Return the readable sessions of a folder, the newest first."""
    from tuiprof.session.store.folders import session_dirs

    found = []
    for path in session_dirs(root):
        try:
            found.append(Session(path))
        except SessionError:  # the list shows it as unreadable; nothing can be learnt from it here
            continue
    return sorted(found, key=lambda session: -session.meta.unix_ns)
