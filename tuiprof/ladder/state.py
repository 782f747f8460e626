"""The stored state of a ladder: one folder with ``ladder.json`` and the session of every trial.

::

    <root>/<utc time>-ladder-<name>/
      ladder.json      LadderMeta, written atomically after every trial
      trials/          one ordinary session a trial
      control/         the runner's lock

Such a folder is not a session: lists of sessions pass it over, and :func:`list_runs` lists it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.session.store.folders import LADDER_FILE, Session, ladder_dirs, make_dir, slug
from tuiprof.system.files import read_versioned, typed_path, write_atomic

SCHEMA_VERSION: Final = 1
#: ``check`` compares numbers, ``trace`` captures some steps, ``timing`` only measures; ``once`` is all
#: three in one process.
Kind = Literal["check", "trace", "timing", "once"]
#: ``stopped``: by the user before its end; it is repeated. All others but ``running`` are final.
State = Literal["running", "done", "wrong", "failed", "unavailable", "stopped"]
OUT: Final = frozenset({"wrong", "failed", "unavailable"})


class Rung(msgspec.Struct, frozen=True):
    """One variant of the ladder, as planned."""

    name: str
    baseline: str  # the variant it is compared with
    builds_on: str = ""  # the variant it changes one thing of; empty = none
    note: str = ""  # what it changes
    published: tuple[str, ...] = ()  # figures of the publication
    #: For each, the presets with which it may be compared; empty = any.
    published_at: tuple[tuple[str, ...], ...] = ()
    reason: str = ""  # why it cannot run here; empty = it can
    remedy: str = ""  # how to fix that
    command: tuple[str, ...] = ()  # command line of its script, without the flags of a check
    #: Flags that turn the command into a check of its numbers; None = the script has none.
    check: tuple[str, ...] | None = None
    #: Flags that make the command check its numbers before it goes on; empty = none are known.
    check_and_run: tuple[str, ...] = ()

    def published_beside(self, sizes: Collection[str]) -> str:
        """Return the published figures of the given sizes (presets; none = of any size) in words."""
        places = self.published_at or ((),) * len(self.published)
        return "; ".join(
            text
            for text, presets in zip(self.published, places, strict=True)
            if not sizes or not presets or not set(presets).isdisjoint(sizes)
        )


class KernelFigures(msgspec.Struct, frozen=True):
    """What one trial measured of a single kernel."""

    moved_bytes: int  # bytes that a call must read and write at least: inputs once, outputs once; 0 = unknown
    operations: int  # minimum number of arithmetic operations, a multiply-add counting as two; 0 = unknown
    arithmetic: str  # their type: ``"float32"``, ``"bfloat16"``, ``"int8"``; empty = unknown
    #: Median time of a call: ``cold`` with its inputs in memory only, ``warm`` right after another call, ``replayed``
    #: among many that the host started at once (a CUDA graph, a compiled loop), ``host`` what the host needs to start
    #: one. What could not be measured is not there.
    times_ns: dict[str, float]
    not_measured: dict[str, str] = {}  # reasons for missing times, by the same names


class Figures(msgspec.Struct, frozen=True):
    """What one trial measured."""

    median_ns: float  # median time of the measured steps
    steps: int  # number of measured steps
    warmup: int = 0  # number of steps before them, which are left out
    #: ``script``: the script measured them (on a GPU by device events); ``probe``: host time of the steps.
    clock: Literal["script", "probe"] = "script"
    batch: int | None = None  # samples a step; None = unknown
    samples_per_s: float | None = None  # throughput over the measured steps; None = unknown
    peak_bytes: int | None = None  # peak memory; None = unknown
    #: From the start of the process to the end of its first step: imports, weights, compilation; None = no step was
    #: marked.
    start_ns: int | None = None
    warmup_ns: int | None = None  # the further warm-up steps, together; None = unknown
    device: str = ""  # its device, from the script; may be empty
    preset: str = ""  # its preset, from the script; may be empty
    #: A kernel was interpreted because its device is missing, so its speed is meaningless.
    interpreted: bool = False
    ranges_ns: dict[str, float] = {}  # median time of named parts of the step, from the script; may be empty
    #: Measurements of a single kernel; None = the step is not a call of one.
    kernel: KernelFigures | None = None


class Trial(msgspec.Struct, frozen=True):
    """One process that was started."""

    kind: Kind  # its purpose
    round: int  # 0 for checks and traces, 1 … for timing, 1 for ``once``
    variant: str
    session: str = ""  # name of its session's folder under ``trials``; empty = it could not be started
    state: State = "running"
    why: str = ""  # why it is wrong, failed or unavailable; for others, a note
    remedy: str = ""  # how to fix that
    wall_ns: int = 0  # its duration
    equal: bool | None = None  # whether its numbers equal those of the reference; None = unknown
    figures: Figures | None = None  # its measurements; None for checks and trials that failed


class LadderMeta(msgspec.Struct):
    """``ladder.json``."""

    v: int  # schema version
    ladder: str
    title: str  # its subject
    source: str  # hardware and software of the published figures; empty = none
    script: str
    digest: str  # SHA-256 of the script when the ladder was planned
    baseline: str  # the ladder's baseline
    preset: str  # preset asked for
    steps: int | None  # steps asked for; None = the preset's
    rounds: int  # timing trials a variant
    python: str  # the interpreter
    host: str
    machine: str  # description of the machine, one line
    cwd: str  # working directory of the scripts
    unix_ns: int  # when it was planned
    price: float | None = None  # price of the machine, dollars per hour; None = not given
    rungs: tuple[Rung, ...] = ()  # the variants, in the order of the script
    trials: list[Trial] = []  # the trials started so far, in order
    #: SHA-256 of every file of the script, by its path relative to the script's folder; empty = written by an earlier
    #: tuiprof.
    sources: dict[str, str] = {}
    #: Version of Python and of each package that the variants name, and the GPUs; empty = not installed.
    software: dict[str, str] = {}
    once: bool = False  # every variant runs in a single process, which is checked, captured and timed
    #: Inode of the folder in which it was started, which differs in a copy; 0 = written by an earlier tuiprof.
    inode: int = 0

    def sizes(self, figures: Iterable[Figures]) -> set[str]:
        """Return the presets that figures were measured at.

        Without figures, those of the whole ladder; before any was measured the one asked for, and none for ``fit``.
        """
        known = {figure.preset for figure in figures if figure.preset}
        known = known or {one.figures.preset for one in self.trials if one.figures and one.figures.preset}
        return known or ({self.preset} - {"fit", ""})

    def rung(self, name: str) -> Rung:
        """Return a variant by name; raises KeyError if it is not part of this ladder."""
        for rung in self.rungs:
            if rung.name == name:
                return rung
        raise KeyError(name)


class LadderRun:
    """One ladder folder, with its metadata if they are already known.

    Raises:
        SessionError: It holds no ladder, cannot be read, or a newer tuiprof wrote it.
    """

    def __init__(self, path: str | os.PathLike[str], meta: LadderMeta | None = None) -> None:
        self.path = Path(os.path.abspath(path))
        self.meta: LadderMeta = meta or _read(self.path)

    def __repr__(self) -> str:
        """Return the path."""
        return f"LadderRun({str(self.path)!r})"

    @property
    def id(self) -> str:
        """The folder's name: unique under its root, and what ``--resume`` accepts."""
        return self.path.name

    @property
    def root(self) -> Path:
        """Directory of the sessions of its trials."""
        return self.path / "trials"

    def session(self, trial: Trial) -> Session:
        """Return the session of a trial; raises SessionError if it is gone, or cannot be read."""
        return Session(self.session_path(trial))

    def session_path(self, trial: Trial) -> Path:
        """Return the path of the session of a trial, which need not exist; never outside :attr:`root`."""
        name = trial.session
        return self.root / (name if name == Path(name).name and name != ".." else "none")

    def put(self, trial: Trial) -> None:
        """Store a trial: append a new one, or update one that was running.

        Raises:
            SessionError: It cannot be written.
        """
        trials = self.meta.trials
        for index, known in enumerate(trials):
            if known.state == "running" and known.session == trial.session:
                trials[index] = trial
                break
        else:
            trials.append(trial)
        self.save()

    def save(self) -> None:
        """Write ``ladder.json``; raises SessionError if it cannot be written."""
        data = msgspec.json.format(msgspec.json.encode(self.meta), indent=2)
        write_atomic(self.path / LADDER_FILE, data + b"\n")


def create(root: Path, meta: LadderMeta) -> LadderRun:
    """Create the folder of a new ladder.

    Raises:
        SessionError: No permission, no space.
    """
    path = make_dir(root, meta.unix_ns, f"ladder-{slug(meta.ladder)}", ("trials", "control"))
    meta.inode = path.stat().st_ino
    ladder = LadderRun(path, meta)
    ladder.save()
    return ladder


def list_runs(root: Path) -> list[LadderRun | SessionError]:
    """Return the ladders under a root, which need not exist, newest first; a damaged one as its error.

    Raises:
        SessionError: The root cannot be read.
    """
    listed: list[LadderRun | SessionError] = []
    for path in ladder_dirs(root):
        try:
            listed.append(LadderRun(path))
        except SessionError as error:
            listed.append(error)
    return listed


def find_run(root: Path, text: str) -> LadderRun:
    """Return the ladder a user means.

    That is a path; ``last``; a folder's name or its beginning; or a ladder's name (the newest of that name).

    Raises:
        UsageProblem: There is none.
        SessionError: It cannot be read.
    """
    path = typed_path(text)
    if os.path.exists(path / LADDER_FILE):
        return LadderRun(path)
    paths = ladder_dirs(root)
    if paths and text == "last":
        return LadderRun(paths[0])
    # An exact match precedes a prefix; of several, the newest.
    for found in paths:
        name = found.name.partition("-")[2]
        if text in (found.name, name, name.removeprefix("ladder-")):
            return LadderRun(found)
    for found in paths:
        if text and found.name.startswith(text):
            return LadderRun(found)
    known = f"there are {', '.join(path.name for path in paths[:3])}" if paths else "tuiprof ladder NAME"
    raise UsageProblem(f"there is no ladder {text!r} in {root}", known)


def _read(path: Path) -> LadderMeta:
    return read_versioned(
        path / LADDER_FILE, LadderMeta, what="ladder", version=SCHEMA_VERSION, remedy="start a new ladder"
    )
