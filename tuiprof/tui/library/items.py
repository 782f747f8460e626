"""What the library lists, as it stands at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuiprof.session.store.glance import Summary
    from tuiprof.session.store.labels import Labels


@dataclass(frozen=True, slots=True)
class VariantItem:
    """One variant of a ladder, as listed.

    Attributes:
        name: Its name.
        note: What it changes.
        published: The publication's figure, as text; empty = none.
        here_ns: Median step time of its newest measurement on this host, a ladder's or a run's; None = not run yet.
        here_preset: Preset of that run.
        change: That against the baseline's run of the same preset, as a share; None = cannot be told.
        runnable: Whether it can run in the chosen interpreter; None = not known yet.
        why: Why it cannot, and how to change that.
        syncs_per_step: Syncs a step in the trace of that run; None = cannot be told, or not read yet.
        trace: That trace; None = there is none.
        measured: What that run was: ``ladder``, or ``run``; empty = not run yet.
    """

    name: str
    note: str = ""
    published: str = ""
    here_ns: float | None = None
    here_preset: str = ""
    change: float | None = None
    runnable: bool | None = None
    why: str = ""
    syncs_per_step: float | None = None
    trace: Path | None = None
    measured: str = ""


@dataclass(frozen=True, slots=True)
class LadderItem:
    """One ladder, as listed.

    Attributes:
        name: Its name.
        title: What it is about, in a line.
        story: What it shows, in some sentences.
        baseline: Name of the variant the others are compared with.
        source: Hardware and software of the published figures.
        needs: Packages it needs.
        presets: Names of its presets.
        variants: Its variants.
        script: The file.
    """

    name: str
    title: str
    story: str
    baseline: str
    source: str
    needs: tuple[str, ...]
    presets: tuple[str, ...]
    variants: tuple[VariantItem, ...]
    script: Path = Path()

    @property
    def runnable(self) -> int | None:
        """How many variants can run; None = not known yet."""
        known = [variant.runnable for variant in self.variants]
        return None if None in known else sum(bool(one) for one in known)

    def variant(self, name: str) -> VariantItem | None:
        """Return a variant by name; None = there is none.

        Args:
            name: Its name.
        """
        return next((variant for variant in self.variants if variant.name == name), None)


@dataclass(frozen=True)
class Shelf:
    """All that is listed, at one moment.

    Attributes:
        ladders: Scenarios.
        sessions: Recorded sessions, the newest first.
        traces: Shipped sample traces.
        machine: What scenarios would run on, in words; empty = not known yet.
        problems: What could not be listed, each with the reason.
        root: Folder of the sessions.
        labels: Tags and notes of the sessions that have any, by id.
        sizes: Disk use of each session in bytes, by id.
        total_bytes: Disk use of the whole folder.
    """

    ladders: tuple[LadderItem, ...] = ()
    sessions: tuple[Summary, ...] = ()
    traces: tuple[Path, ...] = ()
    machine: str = ""
    problems: tuple[str, ...] = ()
    root: Path = Path()
    labels: Mapping[str, Labels] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    total_bytes: int = 0

    def ladder(self, name: str) -> LadderItem | None:
        """Return a ladder by name; None = there is none.

        Args:
            name: Its name.
        """
        return next((ladder for ladder in self.ladders if ladder.name == name), None)

    def session(self, path: str) -> Summary | None:
        """Return a session by its path; None = it is gone.

        Args:
            path: Its directory.
        """
        return next((session for session in self.sessions if session.path == path), None)
