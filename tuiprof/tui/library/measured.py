"""What variants took here: from the newest ladder or recording of each, whichever is newer."""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuiprof.headline.trace import Gist
    from tuiprof.ladder.state import LadderRun
    from tuiprof.session.store.glance import Summary
    from tuiprof.session.store.meta import Scenario


@dataclass(frozen=True, slots=True)
class Figure:
    """What one variant took.

    Attributes:
        step_ns: Median step time.
        preset: Preset.
        unix_ns: When it was measured.
        what: ``ladder`` or ``run``.
        change: Step time against the baseline's of the same ladder, as a share; None = not told, or undecided there.
        trace: A trace of it; None = there is none.
    """

    step_ns: float
    preset: str
    unix_ns: int
    what: str
    change: float | None = None
    trace: Path | None = None


class Measured:
    """Finds the newest measurement of every variant on this host; called in threads, one after the other.

    Attributes:
        ladder_bytes: Disk use of the ladders' folders.
    """

    def __init__(self) -> None:
        self.ladder_bytes = 0
        self._host = platform.node()
        self._scenario_of: dict[str, Scenario | None] = {}
        self._ladders: dict[Path, tuple[int, dict[str, Figure], str, int]] = {}
        self._found: dict[str, dict[str, Figure]] = {}
        self._gists: dict[Path, Gist] = {}

    def look(self, root: Path) -> None:
        """Take up the ladders of a folder; what did not change is not read again.

        Args:
            root: The folder.
        """
        from tuiprof.ladder.state import LadderRun
        from tuiprof.session.store.folders import LADDER_FILE, ladder_dirs

        known: dict[Path, tuple[int, dict[str, Figure], str, int]] = {}
        for path in ladder_dirs(root):
            try:
                changed_ns = (path / LADDER_FILE).stat().st_mtime_ns
                kept = self._ladders.get(path)
                if kept is None or kept[0] != changed_ns:
                    ladder = LadderRun(path)
                    kept = (changed_ns, self._of_ladder(ladder), ladder.meta.ladder, disk_bytes(path))
            except (OSError, SessionError):  # deleted meanwhile or damaged: it has nothing to show
                continue
            known[path] = kept
        self._ladders = known
        self.ladder_bytes = sum(kept[3] for kept in known.values())

    def of(self, ladder: str, sessions: list[Summary]) -> dict[str, Figure]:
        """Return the newest measurement of each variant of a ladder.

        Args:
            ladder: Its name.
            sessions: Recorded sessions, the newest first.
        """
        found: dict[str, Figure] = {}
        for _changed, figures, name, _bytes in self._ladders.values():  # the newest first
            if name == ladder:
                for variant, figure in figures.items():
                    found.setdefault(variant, figure)
        for variant, figure in self._of_sessions(ladder, sessions).items():
            if variant not in found or figure.unix_ns > found[variant].unix_ns:
                found[variant] = figure
        self._found[ladder] = found
        return found

    def syncs(self, figure: Figure | None) -> float | None:
        """Return the syncs a step in the trace of a measurement; None = cannot be told, or not read yet.

        Args:
            figure: The measurement; None = none.
        """
        gist = self._gists.get(figure.trace) if figure is not None and figure.trace is not None else None
        return gist.syncs_per_step if gist is not None else None

    def read_one(self, ladder: str, cancelled: Callable[[], bool]) -> bool:
        """Read one trace of a ladder that was not read yet; takes seconds unless it was read before.

        Args:
            ladder: Its name.
            cancelled: Asked again and again; reading stops once it answers True.

        Returns:
            Whether there was one.
        """
        from tuiprof.headline.trace import ask

        for figure in list(self._found.get(ladder, {}).values()):
            if figure.trace is not None and figure.trace not in self._gists:
                found = ask(figure.trace, cancelled)
                if not cancelled():
                    self._gists[figure.trace] = found
                return True
        return False

    def _of_ladder(self, ladder: LadderRun) -> dict[str, Figure]:
        from tuiprof.ladder.statistics import judge

        meta = ladder.meta
        if meta.host != self._host:
            return {}
        traces: dict[str, Path] = {}
        for trial in meta.trials:
            if trial.kind == "trace" and trial.state == "done":
                try:
                    traces[trial.variant] = ladder.session(trial).traces()[0]
                except (SessionError, IndexError):
                    continue  # it captured nothing, or its session was deleted
        return {
            one.name: Figure(
                one.step_ns.value,
                meta.preset,
                meta.unix_ns,
                "ladder",
                one.ratio.value - 1 if one.ratio is not None and one.word != "undecided" else None,
                traces.get(one.name),
            )
            for one in judge(meta)
            if one.step_ns is not None and one.word not in ("wrong", "failed", "unavailable")
        }

    def _of_sessions(self, ladder: str, sessions: list[Summary]) -> dict[str, Figure]:
        """Return what the newest finished run of each variant on this host took."""
        found: dict[str, Figure] = {}
        for summary in sessions:
            if summary.state != "finished" or summary.median_ns is None or summary.host != self._host:
                continue
            if not summary.title.startswith(f"{ladder}:"):
                continue
            scenario = self._scenario(summary)
            if scenario is not None and scenario.name == ladder and scenario.variant not in found:
                found[scenario.variant] = Figure(
                    summary.median_ns, scenario.preset, summary.unix_ns, "run", trace=_newest_trace(summary)
                )
        return found

    def _scenario(self, summary: Summary) -> Scenario | None:
        """Return what scenario a session ran; read once, since that does not change."""
        from tuiprof.session.store.folders import Session

        if summary.id not in self._scenario_of:
            try:
                self._scenario_of[summary.id] = Session(summary.path).meta.scenario
            except SessionError:  # deleted since it was listed, or damaged: it has no run to show
                return None
        return self._scenario_of[summary.id]


def _newest_trace(summary: Summary) -> Path | None:
    from tuiprof.session.store.folders import Session

    try:
        return next(reversed(Session(summary.path).traces()), None)
    except (OSError, SessionError):  # deleted since it was listed
        return None


def disk_bytes(folder: Path) -> int:
    """Return what the files below a folder take on disk, in bytes; what vanishes meanwhile counts as nothing.

    Args:
        folder: It.
    """
    total = 0
    for where, _folders, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
    return total
