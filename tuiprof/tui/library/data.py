"""Finds what the library lists: scenarios and whether they can run here, sessions, traces, measurements."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.errors import SessionError
from tuiprof.resources import shipped
from tuiprof.tui.library.view import LadderItem, PastCommand, Shelf, VariantItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tuiprof.comparison.headline import Headline
    from tuiprof.ladder import scenarios
    from tuiprof.ladder.state import LadderRun
    from tuiprof.session.run.interpreter import Facts
    from tuiprof.session.store.folders import Session, Summary
    from tuiprof.session.store.meta import Scenario
    from tuiprof.telemetry import Device

#: So many of the newest sessions are listed; older ones open by their name.
_MOST_SESSIONS: Final = 200
#: So many of the newest commands that were run are offered again.
_MOST_COMMANDS: Final = 5
#: Number of newest sessions whose traces are listed.
_WITH_TRACES: Final = 20
EXAMPLE: Final = "metrics-naive.pt.trace.json.gz"
TRASH: Final = ".trash"


class Library:
    """Finds the listed items. Its methods may take long and are called in threads; they use no widgets.

    What they need is imported in them, because the first picture comes before.
    """

    def __init__(
        self, sessions: Path | None = None, extra: tuple[Path, ...] = (), python: Path | None = None
    ) -> None:
        self._sessions = sessions
        self._extra = extra
        self._python = python
        self._known: dict[str, Summary] = {}
        self._measured = Measured()
        self._sizes: dict[str, int] = {}
        self._facts: Facts | None = None
        self._devices: tuple[Device, ...] = ()
        self._commands: dict[str, PastCommand | None] = {}
        self._example = ""

    @property
    def example(self) -> Path | None:
        """The trace to look at without a run of one's own; None = it was not shipped."""
        path = shipped("traces") / EXAMPLE
        return path if path.is_file() else None

    def read_example(self, cancelled: Callable[[], bool]) -> None:
        """Read the main finding of the example; takes seconds unless it was read before."""
        from tuiprof.comparison.headline import ask

        if self.example is not None and not self._example:
            self._example = ask(self.example, cancelled).line

    def choose_python(self, python: Path) -> None:
        """Run scripts in another interpreter from now on, queried by :meth:`ask_interpreter`."""
        self._python, self._facts = python, None

    @property
    def python(self) -> Path:
        """The interpreter that scripts run in.

        Raises:
            LaunchError: There is no such interpreter.
        """
        from tuiprof.session.run.interpreter import choose_python

        return choose_python(self._python)

    @property
    def root(self) -> Path:
        """Folder of the sessions."""
        from tuiprof.session.store.folders import sessions_root

        return sessions_root(self._sessions)

    @property
    def trash(self) -> Path:
        """The folder of deleted sessions."""
        return self.root / TRASH

    def look(self) -> Shelf:
        """Return what there is now.

        Raises:
            SessionError: The folder of sessions cannot be read.
        """
        from tuiprof.ladder import scenarios
        from tuiprof.session.store.folders import list_sessions
        from tuiprof.session.store.meta import Labels, read_labels

        sessions = list_sessions(self.root, limit=_MOST_SESSIONS, known=self._known)
        for session in sessions:  # finished sessions do not grow
            if (
                session.id not in self._sizes
                or session.id not in self._known
                or not self._known[session.id].over
            ):
                self._sizes[session.id] = sum(disk_bytes(Path(folder)) for folder in session.folders)
        self._known = {session.id: session for session in sessions}
        labels = {session.id: read_labels(Path(session.path)) for session in sessions}
        self._measured.look(self.root)
        scan, facts = scenarios.scan(self._extra), self._facts
        return Shelf(
            ladders=tuple(self._ladder(ladder, sessions) for ladder in scan.ladders),
            problems=tuple(str(problem) for problem in scan.problems),
            sessions=tuple(sessions),
            traces=tuple(sample_traces()),
            machine=facts.sentence if facts is not None else "",
            root=self.root,
            labels={id_: label for id_, label in labels.items() if label != Labels()},
            sizes={session.id: self._sizes[session.id] for session in sessions},
            total_bytes=sum(self._sizes[session.id] for session in sessions) + self._measured.ladder_bytes,
            commands=tuple(self._last_commands(sessions)),
            captured=captured(sessions[:_WITH_TRACES]),
            python=facts.python if facts is not None else "",
            prefix=facts.prefix if facts is not None else "",
            example=self._example,
        )

    def _last_commands(self, sessions: list[Summary]) -> Iterator[PastCommand]:
        """Yield the newest commands that were not scenarios, each once."""
        seen: set[tuple[tuple[str, ...], str]] = set()
        for session in sessions:
            if session.id not in self._commands:
                self._commands[session.id] = _command(session)
            command = self._commands[session.id]
            if command is not None and (command.argv, command.cwd) not in seen:
                seen.add((command.argv, command.cwd))
                yield replace(command, median_ns=session.median_ns)
            if len(seen) == _MOST_COMMANDS:
                return

    def run(self, argv: tuple[str, ...], cwd: Path, capture: str, *, stack: bool = False) -> Session:
        """Start a command and return its session.

        Raises:
            TuiprofError: It cannot be started.
        """
        from tuiprof.session.run.launch import LaunchSpec, parse_capture, start

        request = parse_capture(capture, stack=stack) if capture else None
        return start(LaunchSpec(argv, cwd=cwd, python=self._python, capture=request, root=self.root))

    def ask_interpreter(self) -> None:
        """Ask the interpreter that scenarios would run in what it has; takes a second or two.

        Raises:
            LaunchError: There is no such interpreter, or it does not answer.
        """
        from tuiprof.session.run import interpreter
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
        """Start a variant and return its session.

        Raises:
            TuiprofError: It cannot be started.
        """
        from tuiprof.ladder import scenarios
        from tuiprof.session.run.launch import LaunchSpec, in_time, parse_capture, start
        from tuiprof.session.store.meta import Scenario

        found = scenarios.find(f"{ladder}:{variant}", self._extra)
        request = parse_capture(capture, stack=stack) if capture else None
        if request is not None and "@" not in capture:
            request = in_time(request, scenarios.least_steps(found, preset, steps))
        return start(
            LaunchSpec(
                scenarios.command(found, preset=preset, steps=steps),
                python=self._python,
                scenario=Scenario(ladder, variant, preset),
                capture=request,
                root=self.root,
            )
        )

    def throw_away(self, path: Path) -> Path:
        """Move a session to the trash folder and return where it is now.

        Raises:
            SessionError: It cannot be moved.
        """
        if self.trash.is_symlink():
            raise SessionError(f"{self.trash} is a link: nothing is moved there", "put a folder in its place")
        try:
            self.trash.mkdir(exist_ok=True)
            target = self.trash / path.name
            for count in range(2, 10_000):  # one of that name may lie there already
                if not target.exists():
                    break
                target = self.trash / f"{path.name}-{count}"
            shutil.move(path, target)
        except OSError as error:
            raise SessionError(f"{path.name} cannot be moved to {self.trash}: {error.strerror}") from error
        return target

    def bring_back(self, thrown: Path, path: Path) -> None:
        """Move a session from the trash folder back to where it was.

        Raises:
            SessionError: It no longer exists, or its original path is taken.
        """
        if path.exists():
            raise SessionError(f"{path} exists: {thrown} is not restored")
        try:
            shutil.move(thrown, path)
        except OSError as error:
            raise SessionError(f"{thrown} cannot be moved back: {error.strerror}") from error

    def read_trace(self, ladder: str, cancelled: Callable[[], bool]) -> bool:
        """Read one more trace of a ladder's variants (takes seconds); return whether there was one to read."""
        return self._measured.read_one(ladder, cancelled)

    def last_errors(self, session: Summary, count: int = 8) -> list[str]:
        """Return the last lines of a failed session's standard error, safe to show; else nothing."""
        from tuiprof.session.store.output import last_lines

        return last_lines(Path(session.path) / "stderr.log", count) if session.state == "failed" else []

    def _ladder(self, ladder: scenarios.Ladder, sessions: list[Summary]) -> LadderItem:
        found = self._measured.of(ladder.name, sessions)
        base = found.get(ladder.baseline)
        variants = []
        for variant in ladder.variants:
            here = found.get(variant.name)
            change = None
            if here is not None and here.what == "ladder":
                change = here.change  # what a ladder found undecided is not decided by two figures of it
            elif here is not None and base is not None and here is not base and here.preset == base.preset:
                change = here.step_ns / base.step_ns - 1
            runnable, why = self._can_run(variant)
            variants.append(
                VariantItem(
                    name=variant.name,
                    note=variant.note,
                    published=" · ".join(
                        figure.text
                        for figure in variant.published
                        if here is None or here.preset in (ladder.sizes_of(figure) or (here.preset,))
                    ),
                    here_ns=here.step_ns if here else None,
                    here_preset=here.preset if here else "",
                    change=change,
                    runnable=runnable,
                    why=why,
                    syncs_per_step=self._measured.syncs(here),
                    trace=here.trace if here else None,
                    measured=here.what if here else "",
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
            script=ladder.script,
        )

    def _can_run(self, variant: scenarios.Variant) -> tuple[bool | None, str]:
        """Return whether a variant can run and why not; (None, "") until the interpreter has answered."""
        if self._facts is None:
            return None, ""
        from tuiprof.ladder.availability import Missing, availability

        answer = availability(variant, self._facts, self._devices)
        if isinstance(answer, Missing):
            return False, f"{answer.reason} — {answer.remedy}" if answer.remedy else answer.reason
        return True, ""


def _command(session: Summary) -> PastCommand | None:
    """Return what a session ran; None = a scenario, or it cannot be read."""
    from tuiprof.session.store.folders import Session

    try:
        meta = Session(session.path).meta
    except SessionError:  # deleted since it was listed, or damaged
        return None
    if meta.scenario is not None or not meta.argv:
        return None
    return PastCommand(tuple(meta.argv), meta.cwd, meta.unix_ns)


def captured(sessions: Sequence[Summary]) -> Mapping[str, tuple[Path, ...]]:
    """Return the traces that sessions captured, the newest first, by the session's id."""
    from tuiprof.session.store.folders import Session

    found: dict[str, tuple[Path, ...]] = {}
    for summary in sessions:
        with contextlib.suppress(OSError, SessionError):  # unreadable sessions are skipped
            if traces := Session(summary.path).traces():
                found[summary.id] = tuple(reversed(traces))
    return found


def sample_traces() -> list[Path]:
    """Return the traces shipped with tuiprof, by name."""
    from tuiprof.formats.directory import is_trace_name

    folder = shipped("traces")
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if is_trace_name(path.name) and path.is_file())


@dataclass(frozen=True, slots=True)
class Figure:
    """Measurement of one variant."""

    step_ns: float  # median step time
    preset: str
    unix_ns: int  # when it was measured
    what: str  # ``ladder`` or ``run``
    #: Step time against the baseline's of the same ladder, as a share; None = unknown, or undecided there.
    change: float | None = None
    trace: Path | None = None  # a trace of it; None = there is none


class Measured:
    """Finds the newest measurement of every variant on this host; called in threads, one after the other."""

    def __init__(self) -> None:
        self.ladder_bytes = 0  # disk use of the ladders' folders
        self._host = platform.node()
        self._scenario_of: dict[str, Scenario | None] = {}
        self._ladders: dict[Path, tuple[int, dict[str, Figure], str, int]] = {}
        self._found: dict[str, dict[str, Figure]] = {}
        self._headlines: dict[Path, Headline] = {}

    def look(self, root: Path) -> None:
        """Take up the ladders of a folder; what did not change is not read again."""
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
            except (OSError, SessionError):  # deleted in the meantime, or damaged
                continue
            known[path] = kept
        self._ladders = known
        self.ladder_bytes = sum(kept[3] for kept in known.values())

    def of(self, ladder: str, sessions: list[Summary]) -> dict[str, Figure]:
        """Return the newest measurement of each variant of a ladder."""
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
        """Return the syncs a step in the trace of a measurement; None = unknown, or not read yet."""
        headline = (
            self._headlines.get(figure.trace) if figure is not None and figure.trace is not None else None
        )
        return headline.syncs_per_step if headline is not None else None

    def read_one(self, ladder: str, cancelled: Callable[[], bool]) -> bool:
        """Read one trace of a ladder that was not read yet (takes seconds); return whether there was one."""
        from tuiprof.comparison.headline import ask

        for figure in list(self._found.get(ladder, {}).values()):
            if figure.trace is not None and figure.trace not in self._headlines:
                found = ask(figure.trace, cancelled)
                if not cancelled():
                    self._headlines[figure.trace] = found
                return True
        return False

    def _of_ladder(self, ladder: LadderRun) -> dict[str, Figure]:
        from tuiprof.ladder.statistics import judge

        meta = ladder.meta
        if meta.host != self._host:
            return {}
        traces: dict[str, Path] = {}
        for trial in meta.trials:
            if trial.kind in ("trace", "once") and trial.state == "done":
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
    """Return the size on disk of the files below a folder, bytes; vanished files count as 0."""
    total = 0
    for where, _folders, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
    return total
