"""Finds the items of the library: scenarios and whether they can run here, sessions, traces, measurements."""

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
from tuiprof.tui.library.view import LadderItem, Listing, PastCommand, VariantItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tuiprof.comparison.headline import Headline
    from tuiprof.ladder import scenarios
    from tuiprof.ladder.state import LadderRun
    from tuiprof.session.live.listing import Summary
    from tuiprof.session.run.interpreter import Facts
    from tuiprof.session.store.folders import Session
    from tuiprof.session.store.meta import Scenario
    from tuiprof.telemetry import Device

#: Maximum number of sessions listed, newest first; older ones can be opened by path.
_MAX_SESSIONS: Final = 200
#: Maximum number of recent commands.
_MAX_COMMANDS: Final = 5
#: Number of newest sessions whose traces are listed.
_WITH_TRACES: Final = 20
#: Number of lines of standard error of a failed session.
_ERRORS: Final = 8
EXAMPLE: Final = "metrics-naive.pt.trace.json.gz"
TRASH: Final = ".trash"


class Library:
    """Finds the listed items. Its methods may take long and are called in threads; they use no widgets.

    Imports are local to the methods, so that they do not delay the first frame.
    """

    def __init__(
        self, sessions: Path | None = None, extra: tuple[Path, ...] = (), python: Path | None = None
    ) -> None:
        self._sessions = sessions
        self._extra = extra
        self._python = python
        self._known: dict[str, Summary] = {}
        self.measurements = Measurements()
        self._sizes: dict[str, int] = {}
        self._facts: Facts | None = None
        self._devices: tuple[Device, ...] = ()
        self._commands: dict[str, PastCommand | None] = {}
        self._example = ""

    @property
    def example(self) -> Path | None:
        """The example trace; None = this installation does not include it."""
        path = shipped("traces") / EXAMPLE
        return path if path.is_file() else None

    def read_example(self, cancelled: Callable[[], bool]) -> None:
        """Read the main finding of the example; takes seconds the first time."""
        from tuiprof.comparison.headline import ask

        if self.example is not None and not self._example:
            self._example = ask(self.example, cancelled).line

    def choose_python(self, python: Path) -> None:
        """Run scripts in another interpreter; :meth:`ask_interpreter` then queries it."""
        self._python, self._facts = python, None

    @property
    def python(self) -> Path:
        """The interpreter that scripts run in; raises LaunchError if the interpreter does not exist."""
        from tuiprof.session.run.interpreter import choose_python

        return choose_python(self._python)

    @property
    def root(self) -> Path:
        from tuiprof.session.store.folders import sessions_root

        return sessions_root(self._sessions)

    @property
    def trash(self) -> Path:
        return self.root / TRASH

    def scan(self) -> Listing:
        """Return the present items; raises SessionError if the folder of sessions cannot be read."""
        from tuiprof.ladder import scenarios
        from tuiprof.session.live.listing import list_sessions
        from tuiprof.session.store.meta import Labels, read_labels

        sessions = list_sessions(self.root, limit=_MAX_SESSIONS, known=self._known)
        for session in sessions:  # a finished session does not grow, so its size is computed once
            if (
                session.id not in self._sizes
                or session.id not in self._known
                or not self._known[session.id].over
            ):
                self._sizes[session.id] = sum(disk_bytes(Path(folder)) for folder in session.folders)
        self._known = {session.id: session for session in sessions}
        labels = {session.id: read_labels(Path(session.path)) for session in sessions}
        self.measurements.scan(self.root)
        scan, facts = scenarios.scan(self._extra), self._facts
        return Listing(
            ladders=tuple(self._ladder(ladder, sessions) for ladder in scan.ladders),
            problems=tuple(str(problem) for problem in scan.problems),
            sessions=tuple(sessions),
            traces=tuple(sample_traces()),
            machine=facts.sentence if facts is not None else "",
            root=self.root,
            labels={id_: label for id_, label in labels.items() if label != Labels()},
            sizes={session.id: self._sizes[session.id] for session in sessions},
            total_bytes=sum(self._sizes[session.id] for session in sessions) + self.measurements.ladder_bytes,
            commands=tuple(self._last_commands(sessions)),
            captured=captured(sessions[:_WITH_TRACES]),
            python=facts.python if facts is not None else "",
            prefix=facts.prefix if facts is not None else "",
            example=self._example,
        )

    def _last_commands(self, sessions: list[Summary]) -> Iterator[PastCommand]:
        """Yield the newest commands without those of scenarios, each once."""
        seen: set[tuple[tuple[str, ...], str]] = set()
        for session in sessions:
            if session.id not in self._commands:
                self._commands[session.id] = _command(session)
            command = self._commands[session.id]
            if command is not None and (command.argv, command.cwd) not in seen:
                seen.add((command.argv, command.cwd))
                yield replace(command, median_ns=session.median_ns)
            if len(seen) == _MAX_COMMANDS:
                return

    def run(self, argv: tuple[str, ...], cwd: Path, capture: str, *, stack: bool = False) -> Session:
        """Start a command and return its session; raises TuiprofError if the command cannot be started."""
        from tuiprof.session.run.launch import LaunchSpec, parse_capture, start

        request = parse_capture(capture, stack=stack) if capture else None
        return start(LaunchSpec(argv, cwd=cwd, python=self._python, capture=request, root=self.root))

    def ask_interpreter(self) -> None:
        """Query version and packages of the interpreter, and the devices of the machine; takes a second or two.

        Raises:
            LaunchError: The interpreter does not exist or does not answer.
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
        """Start a variant and return its session; raises TuiprofError if the variant cannot be started."""
        from tuiprof.ladder import scenarios
        from tuiprof.session.run.launch import LaunchSpec, fit_capture, parse_capture, start
        from tuiprof.session.store.meta import Scenario

        found = scenarios.find(f"{ladder}:{variant}", self._extra)
        request = parse_capture(capture, stack=stack) if capture else None
        if request is not None and "@" not in capture:
            request = fit_capture(request, scenarios.least_steps(found, preset, steps))
        return start(
            LaunchSpec(
                scenarios.command(found, preset=preset, steps=steps),
                python=self._python,
                scenario=Scenario(ladder, variant, preset),
                capture=request,
                root=self.root,
            )
        )

    def move_to_trash(self, path: Path) -> Path:
        """Move a session to the trash folder and return its new path.

        Raises:
            SessionError: The session cannot be moved.
        """
        if self.trash.is_symlink():
            raise SessionError(f"{self.trash} is a link: nothing is moved there", "put a folder in its place")
        try:
            self.trash.mkdir(exist_ok=True)
            target = self.trash / path.name
            for count in range(2, 10_000):  # the trash may already contain a session of that name
                if not target.exists():
                    break
                target = self.trash / f"{path.name}-{count}"
            shutil.move(path, target)
        except OSError as error:
            raise SessionError(f"{path.name} cannot be moved to {self.trash}: {error.strerror}") from error
        return target

    def restore(self, trashed: Path, path: Path) -> None:
        """Move a session from the trash folder back to its original path.

        Raises:
            SessionError: It no longer exists, or the original path is taken.
        """
        if path.exists():
            raise SessionError(f"{path} exists: {trashed} is not restored")
        try:
            shutil.move(trashed, path)
        except OSError as error:
            raise SessionError(f"{trashed} cannot be moved back: {error.strerror}") from error

    def last_errors(self, session: Summary) -> list[str]:
        """Return the last lines of a failed session's standard error, sanitized; empty for other sessions."""
        from tuiprof.session.store.output import last_lines

        return last_lines(Path(session.path) / "stderr.log", _ERRORS) if session.state == "failed" else []

    def _ladder(self, ladder: scenarios.Ladder, sessions: list[Summary]) -> LadderItem:
        found = self.measurements.of(ladder.name, sessions)
        base = found.get(ladder.baseline)
        variants = []
        for variant in ladder.variants:
            here = found.get(variant.name)
            change = None
            if here is not None and here.what == "ladder":
                change = here.change  # None if the ladder was undecided, even though it has both step times
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
                    syncs_per_step=self.measurements.syncs(here),
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
        """Return whether a variant can run, and why not; (None, "") until the interpreter has answered."""
        if self._facts is None:
            return None, ""
        from tuiprof.ladder.availability import availability

        lacks = availability(variant, self._facts, self._devices)
        return lacks is None, " — ".join(filter(None, (lacks.reason, lacks.remedy))) if lacks else ""


def _command(session: Summary) -> PastCommand | None:
    """Return the command of a session; None = it ran a scenario or cannot be read."""
    from tuiprof.session.store.folders import Session

    try:
        meta = Session(session.path).meta
    except SessionError:  # deleted since it was listed, or damaged
        return None
    if meta.scenario is not None or not meta.argv:
        return None
    return PastCommand(tuple(meta.argv), meta.cwd, meta.unix_ns)


def captured(sessions: Sequence[Summary]) -> Mapping[str, tuple[Path, ...]]:
    """Return the captured traces of sessions, newest first, by session id."""
    from tuiprof.session.store.folders import Session

    found: dict[str, tuple[Path, ...]] = {}
    for summary in sessions:
        with contextlib.suppress(OSError, SessionError):  # unreadable sessions are skipped
            if traces := Session(summary.path).traces():
                found[summary.id] = tuple(reversed(traces))
    return found


def sample_traces() -> list[Path]:
    """Return the sample traces shipped with tuiprof, sorted by name."""
    from tuiprof.formats.directory import is_trace_name

    folder = shipped("traces")
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if is_trace_name(path.name) and path.is_file())


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement of one variant."""

    step_ns: float  # median step time
    preset: str
    unix_ns: int  # when it was measured
    what: str  # ``ladder`` or ``run``
    #: Change of step time against the baseline in the same ladder, as a share; None = unknown or undecided.
    change: float | None = None
    trace: Path | None = None  # trace of the run, if any


class Measurements:
    """Finds the newest measurement of every variant on this host. Not thread-safe: calls must not overlap."""

    def __init__(self) -> None:
        self.ladder_bytes = 0  # disk use of the ladders' folders
        self._host = platform.node()
        self._scenario_of: dict[str, Scenario | None] = {}
        self._ladders: dict[Path, tuple[int, dict[str, Measurement], str, int]] = {}
        self._found: dict[str, dict[str, Measurement]] = {}
        self._headlines: dict[Path, Headline] = {}

    def scan(self, root: Path) -> None:
        """Read the ladders of a folder that are new or have changed."""
        from tuiprof.ladder.state import LadderRun
        from tuiprof.session.store.folders import LADDER_FILE, ladder_dirs

        known: dict[Path, tuple[int, dict[str, Measurement], str, int]] = {}
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

    def of(self, ladder: str, sessions: list[Summary]) -> dict[str, Measurement]:
        """Return the newest measurement of each variant of a ladder."""
        found: dict[str, Measurement] = {}
        for _changed, figures, name, _bytes in self._ladders.values():  # the newest first
            if name == ladder:
                for variant, figure in figures.items():
                    found.setdefault(variant, figure)
        for variant, figure in self._of_sessions(ladder, sessions).items():
            if variant not in found or figure.unix_ns > found[variant].unix_ns:
                found[variant] = figure
        self._found[ladder] = found
        return found

    def syncs(self, figure: Measurement | None) -> float | None:
        """Return the syncs per step in a measurement's trace; None = unknown or not read yet."""
        headline = (
            self._headlines.get(figure.trace) if figure is not None and figure.trace is not None else None
        )
        return headline.syncs_per_step if headline is not None else None

    def read_one(self, ladder: str, cancelled: Callable[[], bool]) -> bool:
        """Read the next unread trace of a ladder, which takes seconds; return whether there was one."""
        from tuiprof.comparison.headline import ask

        for figure in list(self._found.get(ladder, {}).values()):
            if figure.trace is not None and figure.trace not in self._headlines:
                found = ask(figure.trace, cancelled)
                if not cancelled():
                    self._headlines[figure.trace] = found
                return True
        return False

    def _of_ladder(self, ladder: LadderRun) -> dict[str, Measurement]:
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
                    continue  # nothing was captured, or the session was deleted
        return {
            one.name: Measurement(
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

    def _of_sessions(self, ladder: str, sessions: list[Summary]) -> dict[str, Measurement]:
        """Return the newest finished run of each variant on this host."""
        found: dict[str, Measurement] = {}
        for summary in sessions:
            if summary.state != "finished" or summary.median_ns is None or summary.host != self._host:
                continue
            if not summary.title.startswith(f"{ladder}:"):
                continue
            scenario = self._scenario(summary)
            if scenario is not None and scenario.name == ladder and scenario.variant not in found:
                found[scenario.variant] = Measurement(
                    summary.median_ns, scenario.preset, summary.unix_ns, "run", trace=_newest_trace(summary)
                )
        return found

    def _scenario(self, summary: Summary) -> Scenario | None:
        """Return the scenario of a session, cached because it does not change."""
        from tuiprof.session.store.folders import Session

        if summary.id not in self._scenario_of:
            try:
                self._scenario_of[summary.id] = Session(summary.path).meta.scenario
            except SessionError:  # deleted since it was listed, or damaged
                return None
        return self._scenario_of[summary.id]


def _newest_trace(summary: Summary) -> Path | None:
    from tuiprof.session.store.folders import Session

    try:
        return next(reversed(Session(summary.path).traces()), None)
    except (OSError, SessionError):  # deleted since it was listed
        return None


def disk_bytes(folder: Path) -> int:
    """Return the disk use of the files below a folder, bytes; deleted files count as 0."""
    total = 0
    for where, _folders, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
    return total
