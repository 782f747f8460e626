"""Plans and runs the trials of a ladder one after the other; a run can be stopped and resumed at any time.

Every trial is a fresh process, recorded as an ordinary session. First the numbers of each variant are checked and
some of its steps captured; then come the rounds of timing, interleaved (A B C A B C …), in which nothing is captured.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.ladder.availability import availability
from tuiprof.ladder.scenarios import Ladder, Variant, meant
from tuiprof.ladder.scenarios import command as command_of
from tuiprof.ladder.state import OUT, SCHEMA_VERSION, Kind, LadderMeta, LadderRun, Rung, State, Trial
from tuiprof.ladder.trial import begin, conclude
from tuiprof.model.characters import shell_word
from tuiprof.session.run.control import stop_unless_over
from tuiprof.session.run.interpreter import facts as ask
from tuiprof.session.run.launch import own_files, wait
from tuiprof.session.store.folders import RecorderLock, Session
from tuiprof.session.store.status import Status
from tuiprof.system import process
from tuiprof.system.files import explain, is_own, read_end, read_small_json, write_inside
from tuiprof.system.own_process import module_command, module_environment

if TYPE_CHECKING:
    from pathlib import PurePath

    from tuiprof.session.run.interpreter import Facts
    from tuiprof.telemetry import Device

_TICK_S: Final = 0.2
#: A script that failed with less free disk space than this is run again, as that may be the reason.
_MIN_FREE_BYTES: Final = 1 << 20


class Slot(NamedTuple):
    """One trial that belongs to a ladder, run or not."""

    kind: Kind
    round: int
    variant: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a ladder."""

    done: int  # completed trials that count
    total: int  # total number of trials, as currently known
    trial: Trial  # the trial that is running or has just ended
    ended: bool  # whether it has just ended
    left_s: float | None  # time left, estimated from similar trials; None = not known yet


def plan(
    ladder: Ladder,
    facts: Facts,
    devices: Sequence[Device] = (),
    *,
    variants: Sequence[str] = (),
    rounds: int = 5,
    preset: str = "fit",
    steps: int | None = None,
    price: float | None = None,
    cwd: PurePath | None = None,
    once: bool = False,
) -> LadderMeta:
    """Plan a ladder, without running or writing anything; raises UsageProblem if there is no such variant or preset."""
    chosen = _chosen(ladder, variants)
    rungs = []
    for variant in chosen:
        lacks = availability(variant, facts, devices)
        rungs.append(
            Rung(
                name=variant.name,
                baseline=variant.baseline,
                builds_on=variant.builds_on,
                note=variant.note,
                published=tuple(figure.text for figure in variant.published),
                published_at=tuple(ladder.sizes_of(figure) for figure in variant.published),
                reason=lacks.reason if lacks else "",
                remedy=lacks.remedy if lacks else "",
                command=command_of(variant, preset, steps),
                check=variant.check,
                check_and_run=variant.check_and_run,
            )
        )
    files = sources(ladder.script)
    return LadderMeta(
        v=SCHEMA_VERSION,
        ladder=ladder.name,
        title=ladder.title,
        source=ladder.source,
        script=str(ladder.script),
        digest=files[ladder.script.name],
        sources=files,
        software=software(ladder, chosen, facts),
        baseline=ladder.baseline,
        preset=preset,
        steps=steps,
        rounds=1 if once else rounds,
        once=once,
        python=facts.python,
        host=platform.node(),
        machine=facts.sentence,
        cwd=str(cwd or Path.cwd()),
        unix_ns=time.time_ns(),
        price=price,
        rungs=tuple(rungs),
    )


def _chosen(ladder: Ladder, names: Sequence[str]) -> list[Variant]:
    if not names:
        return list(ladder.variants)
    known = {variant.name: variant for variant in ladder.variants}
    for name in names:
        if name not in known:
            raise UsageProblem(
                f"the ladder {ladder.name!r} has no variant {name!r}", meant(name, list(known))
            )
    wanted = {*names, *(known[name].baseline for name in names)}
    return [variant for variant in ladder.variants if variant.name in wanted]


def schedule(meta: LadderMeta) -> list[Slot]:
    """Return all trials of the ladder in order, including completed ones.

    Variants that proved wrong, failed or turned out unavailable are not run any further.
    """
    able = [rung for rung in meta.rungs if not rung.reason]
    if meta.once:
        return [Slot("once", 1, rung.name) for rung in able]
    slots = [Slot("check", 0, rung.name) for rung in able if rung.check is not None]
    slots += [Slot("trace", 0, rung.name) for rung in able]
    slots += [Slot("timing", number, rung.name) for number in range(1, meta.rounds + 1) for rung in able]
    ran = _final(meta)
    out = {trial.variant for trial in meta.trials if trial.state in OUT}
    return [slot for slot in slots if slot in ran or slot.variant not in out]


def pending(meta: LadderMeta) -> list[Slot]:
    """Return the remaining trials in order."""
    ran = _final(meta)
    return [slot for slot in schedule(meta) if slot not in ran]


def _final(meta: LadderMeta) -> set[Slot]:
    return {_slot(trial) for trial in meta.trials if trial.state not in ("running", "stopped")}


def _slot(trial: Trial) -> Slot:
    return Slot(trial.kind, trial.round, trial.variant)


def left_s(meta: LadderMeta) -> float | None:
    """Return the estimated time of the remaining trials: as the same trial of the variant took, else the mean of such
    trials.

    Returns:
        Seconds; None = no trial is over yet.
    """
    ran = [trial for trial in meta.trials if trial.state == "done"]
    if not ran:
        return None
    total = 0.0
    for slot in pending(meta):
        like = [trial.wall_ns for trial in ran if (trial.kind, trial.variant) == (slot.kind, slot.variant)]
        like = like or [trial.wall_ns for trial in ran if trial.kind == slot.kind]
        like = like or [trial.wall_ns for trial in ran]
        total += sum(like) / len(like) / 1e9
    return total


def run(
    ladder: LadderRun,
    asked: Callable[[], int] = lambda: 0,
    *,
    checks_at_once: int = 1,
    limit_s: float | None = None,
) -> Iterator[Progress]:
    """Run the remaining trials; yields several times a second.

    Args:
        ladder: The ladder; results are stored in it.
        asked: Returns how often the user has asked to stop: once = after the current trial, twice = stop that too (it
            will be repeated).
        checks_at_once: How many variants are checked at the same time. Timed and captured trials always run alone.
            A check that fails beside others is repeated alone: together they may have needed too much memory.
        limit_s: A trial that takes longer is stopped, and its variant has failed; None = none is.

    Yields:
        How far it is.

    Raises:
        SessionError: Someone else runs this ladder, its script changed since it was planned, it was planned on
            another machine, or the disk is full.
    """
    meta = ladder.meta
    _must_fit(ladder)
    try:
        lock = RecorderLock(ladder.path / "control")
    except SessionError as error:
        if not isinstance(error.__cause__, BlockingIOError):
            raise
        remedy = f"wait for it, or show its progress: tuiprof ladder --show {shell_word(ladder.id)}"
        raise SessionError(f"{ladder.id} is being measured by another tuiprof", remedy) from error
    note_runner(ladder)
    try:
        # Trials whose runner died may still be running themselves.
        live = [
            _Live(ladder, trial, limit_s, adopted=True) for trial in meta.trials if trial.state == "running"
        ]
        alone: set[Slot] = set()  # they failed beside others
        while True:
            for slot in () if asked() else _next(meta, [one.trial for one in live], checks_at_once, alone):
                trial = begin(ladder, slot.kind, slot.round, meta.rung(slot.variant))
                ladder.put(trial)
                live.append(_Live(ladder, trial, limit_s))
            if not live:
                return
            for one in live if len(live) > 1 else ():
                one.beside_others = True
            for one in tuple(live):
                over = one.look(_TICK_S / len(live), stop=asked() > 1)
                if over:
                    live.remove(one)
                    if one.to_repeat:
                        alone.add(_slot(one.trial))
                yield _progress(ladder, one.trial, over, one.left_s)
                if one.disk_was_full:  # the next one would fail just so
                    remedy = f"free some space in {ladder.path}, then: tuiprof ladder --resume {shell_word(ladder.id)}"
                    raise SessionError(f"{ladder.id}: the disk is full", remedy)
    finally:
        lock.release()


def _next(
    meta: LadderMeta, live: Sequence[Trial], checks_at_once: int, alone: Collection[Slot]
) -> list[Slot]:
    """Return what may be started now: most checks run concurrently, anything else alone."""
    taken = {_slot(trial) for trial in live}
    slots = [slot for slot in pending(meta) if slot not in taken]
    if any(trial.kind != "check" for trial in live):
        return []
    checks = [slot for slot in slots if slot.kind == "check" and slot not in alone]
    if checks and not any(_slot(trial) in alone for trial in live):
        return checks[: max(0, checks_at_once - len(live))]
    return [] if live else slots[:1]


class _Live:
    def __init__(
        self, ladder: LadderRun, trial: Trial, limit_s: float | None, *, adopted: bool = False
    ) -> None:
        self.trial = trial
        self._ladder, self._limit_s = ladder, limit_s
        self._adopted = adopted
        self._began_s, self._expected_s = time.monotonic(), left_s(ladder.meta)
        self._stopping = False
        self._too_long = False
        self._over = False
        self.beside_others = False  # for some of its time
        self.to_repeat = False
        self.disk_was_full = False

    @property
    def left_s(self) -> float | None:
        """Seconds until the ladder is done; None = unknown."""
        if self._over:
            return left_s(self._ladder.meta)
        gone_s = time.monotonic() - self._began_s
        return None if self._expected_s is None else max(0.0, self._expected_s - gone_s)

    def look(self, timeout_s: float, *, stop: bool) -> bool:
        """Return whether it has ended, and if so store its outcome; waits for its end that long."""
        if self.trial.state == "running":
            try:
                session = self._ladder.session(self.trial)
            except SessionError as error:
                self._ends("stopped", error.message)
            else:
                status = wait(session, timeout_s)
                if not status.over:
                    self._stop_if(stop, session)
                    return False
                self._conclude(session, status)
            self._ladder.put(self.trial)
        self._over = True
        return True

    def _stop_if(self, asked: bool, session: Session) -> None:
        """Stop it once, if that is asked for or it takes too long."""
        if self._stopping:
            return
        self._too_long = self._limit_s is not None and time.monotonic() - self._began_s > self._limit_s
        if asked or self._too_long:
            self._stopping = True
            stop_unless_over(session)

    def _conclude(self, session: Session, status: Status) -> None:
        if self._adopted and status.state == "interrupted":  # the machine went down: it is repeated
            self._ends("stopped", str(status))
        else:
            self.trial = conclude(self.trial, session, status)
        if self.trial.state == "stopped" and self._too_long:
            remedy = f"use a longer --limit; see {session.stderr}"
            self._ends("failed", f"not finished after {self._limit_s:g} s", remedy=remedy)
        elif self.trial.state == "failed" and shutil.disk_usage(session.path).free < _MIN_FREE_BYTES:
            self.disk_was_full = True
            self._ends("stopped", f"failed as the disk was full: {self.trial.why}")
        if self.trial.state == "failed" and self.beside_others:
            self.to_repeat = True
            self._ends("stopped", f"failed next to other checks, repeated alone: {self.trial.why}")

    def _ends(self, state: State, why: str, **more: str) -> None:
        self.trial = msgspec.structs.replace(self.trial, state=state, why=why, **more)


def _progress(ladder: LadderRun, trial: Trial, ended: bool, left: float | None) -> Progress:
    slots = schedule(ladder.meta)
    return Progress(len(slots) - len(pending(ladder.meta)), len(slots), trial, ended, left)


def _must_fit(ladder: LadderRun) -> None:
    """Refuse to mix trials that cannot be compared."""
    meta, again = ladder.meta, f"start a new one: tuiprof ladder {shell_word(ladder.meta.ladder)}"
    if not pending(meta) and not any(trial.state == "running" for trial in meta.trials):
        return  # nothing will be run
    if meta.host != platform.node():
        raise SessionError(f"{ladder.id} was started on {meta.host}, this is {platform.node()}", again)
    said = differences(meta, ask(meta.python or None))
    if said:
        raise SessionError(f"{'; '.join(said)}, since {ladder.id} was started", again)


# -- conditions of resuming ----------------------------------------------------------------------------------

# A ladder is resumed only if it belongs to the user, and its code and software are unchanged. The code is the script,
# its header, the modules beside it that it imports (and those that these import), and the folder of its name with
# sources in other languages. The software is Python and the packages that its variants name; the GPUs count too.


def must_be_own(ladder: LadderRun) -> None:
    """Refuse a ladder that may come from somebody else, as its file contains the commands to run.

    Raises:
        SessionError: Its folder is another user's, or it was not begun in this folder, but copied there.
    """
    try:
        folder = ladder.path.stat()
    except OSError as error:
        raise explain(error, ladder.path, "read") from error
    if folder.st_uid != os.geteuid():
        why = "its folder belongs to another user"
    elif folder.st_ino != ladder.meta.inode:
        why = "it was not started in this folder, so it may come from somebody else"
    else:
        return
    remedy = f"check what it runs, then: tuiprof ladder --resume {shell_word(str(ladder.path))} --trust"
    raise SessionError(f"{ladder.id}: {why}", remedy)


def sources(script: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a script, by its path relative to the script's folder.

    Raises:
        SessionError: A file cannot be read.
    """
    root = script.parent
    found = {script}
    waiting = [script]
    while waiting:
        for module in _imported(waiting.pop(), root) - found:
            found.add(module)
            waiting.append(module)
    found |= set(own_files(script))
    return {path.relative_to(root).as_posix(): _sha256(path) for path in sorted(found)}


def software(ladder: Ladder, variants: Iterable[Variant], facts: Facts) -> dict[str, str]:
    """Return the versions that a ladder's results depend on, by name.

    Returns:
        The version of Python, of each package that they name (empty = not installed), and the names of the GPUs, by
        which scripts choose their size.
    """
    wanted = [*ladder.needs, *(package for variant in variants for package in variant.needs.packages)]
    names = {re.split(r"[^\w.-]", package, maxsplit=1)[0] for package in wanted}
    return {name: _version(name, facts) for name in ("python", "GPU", *sorted(names))}


def differences(meta: LadderMeta, facts: Facts) -> list[str]:
    """Return what has changed since a ladder was planned, one clause each.

    Raises:
        SessionError: A file cannot be read.
    """
    script = Path(meta.script)
    now = sources(script)
    then = meta.sources or {script.name: meta.digest}  # an earlier tuiprof considered only the script
    if not meta.sources:
        now = {script.name: now[script.name]}
    said = [f"{script.parent / name} was removed" for name in then if name not in now]
    said += [f"{script.parent / name} was added" for name in now if name not in then]
    said += [
        f"{script.parent / name} has changed" for name in then if name in now and now[name] != then[name]
    ]
    for name, version in meta.software.items():
        have = _version(name, facts)
        if have != version:
            said.append(f"{name} was {version or 'missing'} and is {have or 'missing'}")
    return said


def _version(name: str, facts: Facts) -> str:
    match name:
        case "python":
            return facts.version
        case "GPU":
            return ", ".join(gpu for gpu, _ in facts.gpus)
        case _:
            return facts.distribution(name) or ""


def _imported(file: Path, root: Path) -> set[Path]:
    """Return the modules below a folder that a module imports, at any point in it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # it will say so itself when it is run
        return set()
    except OSError as error:
        raise SessionError(f"{file} cannot be read: {error.strerror}") from error
    return {path for name in _names(tree, file, root) for path in _files(name, root)}


def _names(tree: ast.AST, file: Path, root: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, absolute ones and those relative to its package."""
    package = file.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _files(name: str, root: Path) -> Iterator[Path]:
    """Yield the files below a folder that importing a dotted name would load."""
    parts = name.split(".") if name else []
    for end in range(1, len(parts) + 1):
        stem = root.joinpath(*parts[:end])
        for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if path.is_file():
                yield path


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror}") from error


# -- in its own process, which outlives the one that started it ------------------------------------------

#: In ``control``: the process that runs the ladder.
RUNNER_FILE: Final = "runner.json"
#: What it printed, should it fail; the last line is shown.
RUNNER_LOG: Final = "runner.log"
_LAST_BYTES: Final = 8192


class Runner(msgspec.Struct, frozen=True):
    """``control/runner.json``."""

    who: process.ProcessId  # the process
    #: Where its process number is valid (:func:`tuiprof.system.process.pid_namespace`).
    pid_namespace: str = msgspec.field(name="place")


def note_runner(ladder: LadderRun, pid: int | None = None) -> None:
    """Store which process runs a ladder."""
    who = process.identify(os.getpid() if pid is None else pid)
    if who is not None:
        runner = Runner(who, process.pid_namespace())
        with contextlib.suppress(SessionError):  # then it cannot be stopped from another terminal
            write_inside(ladder.path / "control", RUNNER_FILE, msgspec.json.encode(runner))


def runner_of(ladder: Path) -> Runner | None:
    """Return the process that runs a ladder now; None = none, as far as this machine knows."""
    runner = read_small_json(ladder / "control" / RUNNER_FILE, Runner)
    if runner is None or runner.pid_namespace != process.pid_namespace() or not process.alive(runner.who):
        return None
    return runner


def start_in_background(ladder: LadderRun) -> subprocess.Popen[bytes]:
    """Run the remaining trials of a ladder in the background.

    Returns:
        The process; it goes on when this one ends.

    Raises:
        SessionError: It cannot be started, or may belong to another user.
    """
    must_be_own(ladder)
    command = module_command("tuiprof", "ladder", "--resume", str(ladder.path), "--quiet", "-o", os.devnull)
    log = ladder.path / "control" / RUNNER_LOG
    try:
        with open(log, "wb") as out:
            child = subprocess.Popen(
                command,
                cwd=ladder.meta.cwd,
                env=module_environment(),  # not what this process alone was given for its own libraries
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise explain(error, log, "write") from error
    note_runner(ladder, child.pid)  # as it will itself, once it has begun
    # The screen that started it may be closed when it ends; the thread reaps the process.
    threading.Thread(target=child.wait, name="ladder-runner", daemon=True).start()
    return child


def stop_runner(ladder: Path) -> bool:
    """Ask what runs a ladder to stop (once = after the current trial, twice = at once); return whether it ran."""
    runner = runner_of(ladder)
    if runner is None or not is_own(ladder / "control" / RUNNER_FILE):
        return False
    try:
        os.kill(runner.who.pid, signal.SIGINT)
    except OSError:  # it has just ended
        return False
    return True


def last_words(ladder: Path) -> str:
    """Return the last line that the process printed; empty = none."""
    text = read_end(ladder / "control" / RUNNER_LOG, _LAST_BYTES).decode(errors="replace")
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
