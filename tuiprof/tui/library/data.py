"""What the library holds: scenarios and whether they can run, sessions, traces. No widget here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.errors import SessionError
from tuiprof.resources import shipped
from tuiprof.tui.library.items import LadderItem, Shelf, VariantItem
from tuiprof.tui.library.measured import Measured, disk_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuiprof.ladder import scenarios
    from tuiprof.session.run.interpreter import Facts
    from tuiprof.session.store.folders import Session
    from tuiprof.session.store.glance import Summary
    from tuiprof.telemetry import Device

#: So many of the newest sessions are listed; older ones open by their name.
_MOST_SESSIONS: Final = 200
TRASH: Final = ".trash"


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
        self._measured = Measured()
        self._sizes: dict[str, int] = {}
        self._facts: Facts | None = None
        self._devices: tuple[Device, ...] = ()

    @property
    def root(self) -> Path:
        """Folder of the sessions."""
        from tuiprof.session.store.folders import sessions_root

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
        from tuiprof.ladder import scenarios
        from tuiprof.session.store.folders import list_sessions
        from tuiprof.session.store.labels import Labels, read_labels

        sessions = list_sessions(self.root, limit=_MOST_SESSIONS, known=self._known)
        for session in sessions:  # what is over grows no more
            if (
                session.id not in self._sizes
                or session.id not in self._known
                or not self._known[session.id].over
            ):
                self._sizes[session.id] = disk_bytes(Path(session.path))
        self._known = {session.id: session for session in sessions}
        labels = {session.id: read_labels(Path(session.path)) for session in sessions}
        self._measured.look(self.root)
        scan = scenarios.scan(self._extra)
        return Shelf(
            ladders=tuple(self._ladder(ladder, sessions) for ladder in scan.ladders),
            problems=tuple(str(problem) for problem in scan.problems),
            sessions=tuple(sessions),
            traces=tuple(sample_traces()),
            machine=self._machine(),
            root=self.root,
            labels={id_: label for id_, label in labels.items() if label != Labels()},
            sizes={session.id: self._sizes[session.id] for session in sessions},
            total_bytes=sum(self._sizes[session.id] for session in sessions) + self._measured.ladder_bytes,
        )

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
        """Start a variant.

        Args:
            ladder: Name of its ladder.
            variant: Its name.
            preset: Name of a preset, or ``fit``.
            steps: Number of steps; None = the preset's.
            capture: ``N@STEP``, or ``N`` for steps after warm-up; empty = none.
            stack: Record Python stacks while capturing.

        Returns:
            The session, running.

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
        """Move a session to the trash folder.

        Args:
            path: Its directory.

        Returns:
            Where it is now.

        Raises:
            SessionError: It cannot be moved.
        """
        if self.trash.is_symlink():
            raise SessionError(f"{self.trash} is a link: nothing is moved there", "put a folder in its place")
        try:
            self.trash.mkdir(exist_ok=True)
            place = self.trash / path.name
            for count in range(2, 10_000):  # one of that name may lie there already
                if not place.exists():
                    break
                place = self.trash / f"{path.name}-{count}"
            shutil.move(path, place)
        except OSError as error:
            raise SessionError(f"{path.name} cannot be moved to {self.trash}: {error.strerror}") from error
        return place

    def bring_back(self, thrown: Path, path: Path) -> None:
        """Move a session from the trash folder back to where it was.

        Args:
            thrown: Where :meth:`throw_away` put it.
            path: Where it was.

        Raises:
            SessionError: It is not there any more, or something else has taken its place.
        """
        if path.exists():
            raise SessionError(f"{path} exists: {thrown} stays where it is")
        try:
            shutil.move(thrown, path)
        except OSError as error:
            raise SessionError(f"{thrown} cannot be moved back: {error.strerror}") from error

    def read_trace(self, ladder: str, cancelled: Callable[[], bool]) -> bool:
        """Read one more trace of a ladder's variants, for the figures that come from traces; takes seconds.

        Args:
            ladder: Its name.
            cancelled: Asked again and again; reading stops once it answers True.

        Returns:
            Whether there was one to read.
        """
        return self._measured.read_one(ladder, cancelled)

    def last_errors(self, session: Summary, count: int = 8) -> list[str]:
        """Return the last lines of a failed session's standard error, safe to show; else nothing.

        Args:
            session: It.
            count: At most so many.
        """
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
                    published=" · ".join(figure.text for figure in variant.published),
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

    def _machine(self) -> str:
        """Return what scenarios would run on, in words."""
        return "" if self._facts is None else self._facts.sentence


def sample_traces() -> list[Path]:
    """Return the traces shipped with tuiprof, by name."""
    from tuiprof.formats.directory import is_trace_name

    folder = shipped("traces")
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if is_trace_name(path.name) and path.is_file())
