"""What the library holds: scenarios and whether they can run, sessions, traces. No widget here."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.errors import SessionError
from tuiprof.resources import shipped

if TYPE_CHECKING:
    from tuiprof.session import scenarios
    from tuiprof.session.glance import Summary
    from tuiprof.session.interpreter import Facts
    from tuiprof.session.meta import Scenario
    from tuiprof.session.store import Session
    from tuiprof.telemetry import Device

_TRACE_SUFFIXES: Final = (".json", ".json.gz", ".xplane.pb", ".parquet")
#: So many of the newest sessions are listed; older ones open by their name.
_MOST_SESSIONS: Final = 200
TRASH: Final = ".trash"


@dataclass(frozen=True, slots=True)
class VariantItem:
    """One variant of a ladder, as listed.

    Attributes:
        name: Its name.
        note: What it changes.
        published: The publication's figure, as text; empty = none.
        here_ns: Median step time of its newest finished run on this host; None = not run yet.
        here_preset: Preset of that run.
        change: That against the baseline's run of the same preset, as a share; None = cannot be told.
        runnable: Whether it can run in the chosen interpreter; None = not known yet.
        why: Why it cannot, and how to change that.
    """

    name: str
    note: str = ""
    published: str = ""
    here_ns: float | None = None
    here_preset: str = ""
    change: float | None = None
    runnable: bool | None = None
    why: str = ""


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
    """

    name: str
    title: str
    story: str
    baseline: str
    source: str
    needs: tuple[str, ...]
    presets: tuple[str, ...]
    variants: tuple[VariantItem, ...]

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
    """

    ladders: tuple[LadderItem, ...] = ()
    sessions: tuple[Summary, ...] = ()
    traces: tuple[Path, ...] = ()
    machine: str = ""
    problems: tuple[str, ...] = ()
    root: Path = Path()

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


class Library:
    """Finds what is listed. Its methods may take long and are called in threads; they share no widget.

    What they need is imported in them, because the first picture comes before.

    Args:
        sessions: Folder of sessions; None = the default one.
        extra: More folders of scenarios.
        python: Interpreter that scenarios are to run in; None = the active environment's.
    """

    def __init__(
        self, sessions: Path | None = None, extra: tuple[Path, ...] = (), python: Path | None = None
    ) -> None:
        self._sessions = sessions
        self._extra = extra
        self._python = python
        self._known: dict[str, Summary] = {}
        self._scenario_of: dict[str, Scenario | None] = {}
        self._facts: Facts | None = None
        self._devices: tuple[Device, ...] = ()

    @property
    def root(self) -> Path:
        """Folder of the sessions."""
        from tuiprof.session.store import sessions_root

        return sessions_root(self._sessions)

    @property
    def trash(self) -> Path:
        """Where deleted sessions go."""
        return self.root / TRASH

    def look(self) -> Shelf:
        """Return what there is now.

        Raises:
            SessionError: The folder of sessions cannot be read.
        """
        from tuiprof.session import scenarios
        from tuiprof.session.store import list_sessions

        sessions = list_sessions(self.root, limit=_MOST_SESSIONS, known=self._known)
        self._known = {session.id: session for session in sessions}
        scan = scenarios.scan(self._extra)
        return Shelf(
            ladders=tuple(self._ladder(ladder, sessions) for ladder in scan.ladders),
            problems=tuple(str(problem) for problem in scan.problems),
            sessions=tuple(sessions),
            traces=tuple(sample_traces()),
            machine=self._machine(),
            root=self.root,
        )

    def ask_interpreter(self) -> None:
        """Ask the interpreter that scenarios would run in what it has; takes a second or two.

        Raises:
            LaunchError: There is no such interpreter, or it does not answer.
        """
        from tuiprof.session import interpreter
        from tuiprof.telemetry import Absent, backends

        devices: list[Device] = []
        for backend in backends().values():
            source = backend.open(None)
            if not isinstance(source, Absent):
                devices.extend(source.devices())
                source.close()
        self._devices = tuple(devices)
        self._facts = interpreter.facts(self._python)

    def launch(
        self, ladder: str, variant: str, preset: str, steps: int | None, capture: str, *, stack: bool = False
    ) -> Session:
        """Start a variant.

        Args:
            ladder: Name of its ladder.
            variant: Its name.
            preset: Name of a preset, or ``fit``.
            steps: Number of steps; None = the preset's.
            capture: ``N@STEP``; empty = none.
            stack: Record Python stacks while capturing.

        Returns:
            The session, running.

        Raises:
            TuiprofError: It cannot be started.
        """
        from tuiprof.session import scenarios
        from tuiprof.session.launch import LaunchSpec, parse_capture, start
        from tuiprof.session.meta import Scenario

        found = scenarios.find(f"{ladder}:{variant}", self._extra)
        return start(
            LaunchSpec(
                scenarios.command(found, preset=preset, steps=steps),
                python=self._python,
                scenario=Scenario(ladder, variant, preset),
                capture=parse_capture(capture, stack=stack) if capture else None,
                root=self.root,
            )
        )

    def throw_away(self, path: Path) -> None:
        """Move a session to the trash folder.

        Args:
            path: Its directory.

        Raises:
            SessionError: It cannot be moved.
        """
        try:
            self.trash.mkdir(exist_ok=True)
            shutil.move(path, self.trash / path.name)
        except OSError as error:
            raise SessionError(f"{path.name} cannot be moved to {self.trash}: {error.strerror}") from error

    def last_errors(self, session: Summary, count: int = 8) -> list[str]:
        """Return the last lines of a failed session's standard error, safe to show; else nothing.

        Args:
            session: It.
            count: At most so many.
        """
        from tuiprof.session.output import OutputReader

        if session.state != "failed":
            return []
        reader = OutputReader(Path(session.path) / "stderr.log", tail_bytes=8 << 10)
        lines = [line for line in [*reader.poll(), reader.unfinished] if line.strip()]
        reader.close()
        return lines[-count:]

    def _ladder(self, ladder: scenarios.Ladder, sessions: list[Summary]) -> LadderItem:
        runs = self._newest_runs(ladder.name, sessions)
        base = runs.get(ladder.baseline)
        variants = []
        for variant in ladder.variants:
            run = runs.get(variant.name)
            change = None
            if run is not None and base is not None and run is not base and run[1] == base[1]:
                change = run[0] / base[0] - 1
            runnable, why = self._can_run(variant)
            variants.append(
                VariantItem(
                    name=variant.name,
                    note=variant.note,
                    published=" · ".join(figure.text for figure in variant.published),
                    here_ns=run[0] if run else None,
                    here_preset=run[1] if run else "",
                    change=change,
                    runnable=runnable,
                    why=why,
                )
            )
        return LadderItem(
            name=ladder.name,
            title=ladder.title,
            story=ladder.story,
            baseline=ladder.baseline,
            source=ladder.source,
            needs=ladder.needs,
            presets=tuple(ladder.presets),
            variants=tuple(variants),
        )

    def _newest_runs(self, ladder: str, sessions: list[Summary]) -> dict[str, tuple[float, str]]:
        """Return median step time and preset of the newest finished run of each variant on this host."""
        runs: dict[str, tuple[float, str]] = {}
        for summary in sessions:
            if summary.state != "finished" or summary.median_ns is None or summary.host != platform.node():
                continue
            if not summary.title.startswith(f"{ladder}:"):
                continue
            scenario = self._scenario(summary)
            if scenario is not None and scenario.name == ladder:
                runs.setdefault(scenario.variant, (summary.median_ns, scenario.preset))
        return runs

    def _scenario(self, summary: Summary) -> Scenario | None:
        """Return what scenario a session ran; read once, since that does not change."""
        from tuiprof.session.store import Session

        if summary.id not in self._scenario_of:
            try:
                self._scenario_of[summary.id] = Session(summary.path).meta.scenario
            except SessionError:  # deleted since it was listed, or damaged: it has no run to show
                return None
        return self._scenario_of[summary.id]

    def _can_run(self, variant: scenarios.Variant) -> tuple[bool | None, str]:
        """Return whether a variant can run and why not; (None, "") until the interpreter has answered."""
        if self._facts is None:
            return None, ""
        from tuiprof.session.availability import Missing, availability

        answer = availability(variant, self._facts, self._devices)
        if isinstance(answer, Missing):
            return False, f"{answer.reason} — {answer.remedy}" if answer.remedy else answer.reason
        return True, ""

    def _machine(self) -> str:
        """Return what scenarios would run on, in words."""
        return "" if self._facts is None else self._facts.sentence


def sample_traces() -> list[Path]:
    """Return the traces shipped with tuiprof, by name."""
    folder = shipped("traces")
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.endswith(_TRACE_SUFFIXES))
