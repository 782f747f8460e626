"""Starting a script under tuiprof: where its steps end, the copy of its source, and waiting for its end.

What is kept of the source is the text of the script that the user launched, of a scenario also the files in the folder
of its name, up to a size, in ``source/``; the digest of each in ``session.json``. Two runs of a script that was edited
in place can be distinguished by it. Nothing else is kept: no module that it imports, no environment, no data. A script
may hold secrets of its own; ``--no-source``, or ``keep_source = false`` in the configuration file, leaves the text out
and keeps the digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from tuiprof import config
from tuiprof.errors import LaunchError, SessionError, TuiprofError, UsageProblem
from tuiprof.session.log import SCHEMA_VERSION, End
from tuiprof.session.run.control import put_black_box, put_capture, put_trigger
from tuiprof.session.run.interpreter import choose_python, is_python, must_be_python, resolve
from tuiprof.session.run.supervisor import Plan, Reply
from tuiprof.session.store.folders import Session, create, sessions_root
from tuiprof.session.store.meta import (
    CaptureRequest,
    Scenario,
    SessionMeta,
    Source,
    TriggerRequest,
    write_meta,
)
from tuiprof.session.store.status import Status, last_end
from tuiprof.system.files import open_regular, read_small, typed_path, write_atomic
from tuiprof.system.own_process import IGNORED, module_command, module_environment
from tuiprof.system.process import boot_id

_PACKAGE: Final = Path(__file__).resolve().parents[2]
#: Put on the script's PYTHONPATH: loads the probe, and gives ``import tuiprof`` where it is not installed.
INJECT: Final = _PACKAGE / "probe" / "inject"
#: Three steps after ten of warm-up (compilation, allocator growth, the first loader batches) and twenty more, of
#: which the figures are made should the profiler slow down what comes after it (see :mod:`tuiprof.probe.slowdown`).
DEFAULT_CAPTURE: Final = CaptureRequest("start", steps=3, at=30)

#: When a capture by the clock begins, and how long it can be.
DEFAULT_AFTER_S: Final = 20.0
LONGEST_S: Final = 60.0
_TIMED: Final = re.compile(r"(?P<seconds>\d+(\.\d+)?)s(@(?P<after>\d+(\.\d+)?)s)?")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to run and how."""

    argv: tuple[str, ...]  # the command as typed. ``python`` and ``x.py`` mean the chosen interpreter
    name: str = ""  # name of the session; empty = the scenario, or the name of the script
    cwd: Path | None = None  # where to run it; None = here
    #: ``--python`` (see :func:`tuiprof.session.run.interpreter.choose_python`)
    python: str | os.PathLike[str] | None = None
    scenario: Scenario | None = None  # the scenario, if it is one
    env: Mapping[str, str] = field(default_factory=dict)  # environment variables on top of this process's
    capture: CaptureRequest | None = DEFAULT_CAPTURE  # steps to profile from the start on; None = none
    triggers: tuple[TriggerRequest, ...] = ()  # captures to make again and again
    root: Path | None = None  # where to keep the session; None = :func:`sessions_root`'s choice
    #: When stopped: time from the first signal to SIGTERM, and from there to SIGKILL
    patience_s: tuple[float, float] = (10.0, 10.0)
    #: Whether the session keeps the script's text, where the configuration does not forbid it
    keep_source: bool = True
    #: Whether the script reads what is piped into this process, or redirected to it. It never gets the terminal, which
    #: it would share with the screen
    stdin: bool = False
    watch_nan: bool = False  # check loss and gradients for NaN and infinite values, once per step


def parse_capture(
    text: str, *, stack: bool = False, shapes: bool = False, memory: bool = False
) -> CaptureRequest:
    """Read ``--capture``: ``5@20`` is five steps from step 20 on, ``5`` five steps from where the default begins.

    ``3s@20s`` is three seconds from the twentieth second on, whatever the steps are; ``3s`` begins then as well.

    Raises:
        UsageProblem: It has neither form, or the time is too long.
    """
    if timed := _TIMED.fullmatch(text):
        seconds, after_s = float(timed["seconds"]), float(timed["after"] or DEFAULT_AFTER_S)
        if not 0 < seconds <= LONGEST_S:
            raise UsageProblem(
                f"--capture {text!r} is not between 0 and {LONGEST_S:g} s",
                "traces of several seconds are large",
            )
        return CaptureRequest(
            DEFAULT_CAPTURE.id, 1, None, stack, shapes, memory, seconds=seconds, after_s=after_s
        )
    steps, at, first = text.partition("@")
    if not steps.isdecimal() or int(steps) < 1 or (at and not first.isdecimal()):
        raise UsageProblem(
            f"--capture {text!r} is not N, N@STEP or SECONDSs@SECONDSs",
            "for example 5@20: 5 steps from step 20 on; or 3s@20s: 3 seconds after 20 seconds",
        )
    begin = int(first) if at else DEFAULT_CAPTURE.at
    return CaptureRequest(DEFAULT_CAPTURE.id, int(steps), begin, stack, shapes, memory)


def in_time(request: CaptureRequest, steps: int | None) -> CaptureRequest:
    """Return a capture, begun earlier where a run is too short for it."""
    if steps is None or request.at is None:
        return request
    latest = steps - request.steps - 1  # it is written when the step after it begins
    return msgspec.structs.replace(request, at=max(0, min(request.at, latest)))


def start(spec: LaunchSpec) -> Session:
    """Start a script with its own supervisor, which outlives this process and its terminal.

    Returns:
        The session, once the script runs.

    Raises:
        LaunchError: The script cannot be started; the message says why and what was probably meant.
        SessionError: The session directory cannot be written.
    """
    cwd = (spec.cwd or Path.cwd()).absolute()
    if not cwd.is_dir():
        raise LaunchError(f"there is no directory {cwd}")
    env = {**os.environ, **spec.env}
    python = choose_python(spec.python, env)
    if spec.python is not None:
        must_be_python(python)
    command = resolve(spec.argv, cwd, python, env)
    session = create(sessions_root(spec.root), _meta(spec, cwd, python, command))
    try:
        _keep_source(spec, session, cwd)
        if spec.capture is not None:
            put_capture(session, spec.capture)
        for trigger in spec.triggers:
            put_trigger(session, trigger)
        put_black_box(session, nan=spec.watch_nan, memory=spec.capture is not None and spec.capture.memory)
        with _piped_in(spec.stdin) as stdin:
            plan = Plan(command, str(cwd), script_env(env, session), spec.patience_s, stdin, sorted(IGNORED))
            _supervise(session, plan)
    except TuiprofError as error:
        _never_started(session, error.message)
        raise
    return session


def _keep_source(spec: LaunchSpec, session: Session, cwd: Path) -> None:
    script = script_of(spec.argv, cwd)
    if script is not None:
        text = spec.keep_source and config.keeps_source()
        session.meta.source = keep(session, script, scenario=spec.scenario is not None, text=text)
        write_meta(session.path, session.meta)


def _never_started(session: Session, why: str) -> None:
    """Record in the session that its supervisor failed, so that it is not listed as starting."""
    if last_end(session, "recorder") is None:
        with contextlib.suppress(OSError):  # what failed may be the disk
            end = End(time.monotonic_ns(), 126, None, why)
            with open(session.log / "recorder.jsonl", "ab") as log:
                log.write(msgspec.json.encode(end) + b"\n")


def script_env(env: Mapping[str, str], session: Session) -> dict[str, str]:
    """Return the environment of a script: the caller's, the session, and the probe on the module path."""
    old = env.get("PYTHONPATH")
    return {
        "PYTHONUNBUFFERED": "1",
        **env,
        "TUIPROF_SESSION": str(session.path),
        "PYTHONPATH": f"{INJECT}{os.pathsep}{old}" if old else str(INJECT),
    }


def wait(session: Session, timeout_s: float | None = None) -> Status:
    """Wait for the end of a run; return how it ended (``code`` as in a shell), or its status at the timeout."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = 0.01
    while True:
        status = session.status()
        if status.over or (deadline is not None and time.monotonic() >= deadline):
            return status
        time.sleep(pause_s)
        pause_s = min(0.1, pause_s * 1.5)


def _meta(spec: LaunchSpec, cwd: Path, python: Path, command: list[str]) -> SessionMeta:
    return new_meta(
        spec.name or _name(spec),
        list(spec.argv),
        str(cwd),
        python=str(python) if command[0] == str(python) else "",
        scenario=spec.scenario,
        capture=spec.capture,
    )


def new_meta(name: str, argv: list[str], cwd: str, **more: Any) -> SessionMeta:
    """Return the metadata of a session that begins now, on this machine; ``more`` are further fields."""
    return SessionMeta(
        v=SCHEMA_VERSION,
        name=name,
        argv=argv,
        cwd=cwd,
        unix_ns=time.time_ns(),
        mono_ns=time.monotonic_ns(),
        boot=boot_id(),
        host=platform.node(),
        # By name: the package itself reaches every room, which this one must not import.
        versions={
            "tuiprof": import_module("tuiprof").__version__,
            "tuiprof's python": platform.python_version(),
        },
        **more,
    )


def _name(spec: LaunchSpec) -> str:
    if spec.scenario is not None:
        return str(spec.scenario).replace(":", "-")
    if "-m" in spec.argv[1:-1]:
        return spec.argv[spec.argv.index("-m") + 1]
    scripts = [Path(part).stem for part in spec.argv if part.endswith(".py")]
    return scripts[0] if scripts else Path(spec.argv[0]).name


@contextlib.contextmanager
def _piped_in(wanted: bool) -> Iterator[int | None]:
    """Return the descriptor of this process's standard input if it is a pipe, socket or file, else None."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # it was started without one
        mode = 0
    if not wanted or not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        yield None
        return
    copy = os.dup(0)
    try:
        yield copy
    finally:
        os.close(copy)


def _supervise(session: Session, plan: Plan) -> None:
    """Start the supervisor and wait until the script runs or cannot."""
    # The plan goes through a pipe: an environment may hold secrets, which must not be written to disk.
    log = session.control / "supervisor.log"
    try:
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                module_command("tuiprof.session.run.supervisor", str(session.path)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=recorder_environment(),
                start_new_session=True,
                pass_fds=() if plan.stdin is None else (plan.stdin,),
            )
    except OSError as error:
        raise LaunchError(f"the supervisor could not be started: {error}") from error
    # It forks: the started process ends at once (and is reaped here), its child answers through the pipe.
    try:
        answer, _ = process.communicate(msgspec.json.encode(plan))
        reply = msgspec.json.decode(answer, type=Reply)
    except (OSError, msgspec.DecodeError) as error:
        raise died("supervisor", log) from error
    if reply.error:
        kind = SessionError if reply.of_session else LaunchError
        raise kind(reply.error, reply.remedy)


def recorder_environment() -> dict[str, str]:
    """Return the environment of a process that records; what it needs may lie where the caller's own path says."""
    own = ("PYTHONHOME", "TUIPROF_SESSION")
    return {name: value for name, value in module_environment().items() if name not in own}


def died(what: str, log: Path) -> LaunchError:
    """Return the error for a process that ended instead of recording, with the last line of its output."""
    said = log.read_text(errors="replace").strip().splitlines()
    return LaunchError(f"the {what} died: {said[-1] if said else 'no output'}", f"see {log}")


#: Variables of the script's environment that the probe reads.
STEP_AT, STEP_FUNCTION = "TUIPROF_STEP_AT", "TUIPROF_STEP_FUNCTION"


def step_environment(at: str | None, function: str | None, option: str = "--step-{}") -> dict[str, str]:
    """Return the environment variables for the probe.

    Args:
        at: ``FILE:LINE``; None = not given.
        function: ``MODULE:NAME``, where the script itself is ``__main__``; None = not given.
        option: What the user typed before them, ``{}`` for ``at`` and ``function``.

    Raises:
        UsageProblem: It cannot be read, there is no such file, or both are given.
    """
    step_at, step_function = option.format("at"), option.format("function")
    if at and function:
        raise UsageProblem(f"{step_at} cannot be used with {step_function}", "use one of them")
    if at:
        file, _, line = at.rpartition(":")
        if not file or not line.isdecimal() or not int(line):
            raise UsageProblem(f"{step_at} {at!r} is not FILE:LINE", "for example train.py:88")
        path = Path(file)
        if not path.is_file():
            raise UsageProblem(
                f"{step_at}: there is no file {file}", "its path is relative to the current directory"
            )
        lines = path.read_bytes().count(b"\n") + 1
        if int(line) > lines:
            raise UsageProblem(f"{step_at}: {file} has {lines} lines", f"it has no line {line}")
        return {STEP_AT: f"{path.resolve()}:{int(line)}"}
    if function:
        module, _, name = function.partition(":")
        if not module or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise UsageProblem(
                f"{step_function} {function!r} is not MODULE:NAME", "for example __main__:train_step"
            )
        return {STEP_FUNCTION: function}
    return {}


#: Folder of the copies in a session.
SOURCE_FOLDER: Final = "source"
#: Bytes of text that are kept of one session.
MOST_SOURCE_BYTES: Final = 256 << 10
#: A folder named like the script may contain data as well: maximum size of a source file, and maximum number of files
#: to inspect.
_LARGEST_FILE: Final = 1 << 20
_MOST_FILES: Final = 1000


def script_of(argv: Sequence[str], cwd: Path) -> Path | None:
    """Return the Python file that a command runs.

    Args:
        argv: The command as typed: ``python train.py``, ``train.py``, ``torchrun … train.py``, ``python -m train``.
        cwd: Where it runs.

    Returns:
        Its absolute path; None = none, or unknown.
    """
    for part in argv:
        if part.endswith(".py") and os.path.isfile(path := cwd / typed_path(part)):
            return path
    if "-m" in argv[:-1]:
        module = cwd.joinpath(*argv[argv.index("-m") + 1].split("."))
        found = (module.with_name(f"{module.name}.py"), module / "__main__.py")
    elif len(argv) > 1 and is_python(argv[0]):
        found = (cwd / typed_path(argv[1]), cwd / argv[1] / "__main__.py")
    else:
        return None
    return next((path for path in found if os.path.isfile(path)), None)


def own_files(script: Path) -> list[Path]:
    """Return the files of a scenario's script alone: its TOML header, and what is in the folder of its name."""
    header = script.with_suffix(".toml")
    found = [
        path
        for path in islice(_in_order(script.with_suffix("")), _MOST_FILES)
        if path.is_file() and path.suffix != ".pyc" and path.stat().st_size <= _LARGEST_FILE
    ]
    return [header, *found] if header.is_file() else found


def _in_order(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder and below, always in the same order: which files are the first must not change."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (Path(where, name) for name in sorted(names))


def keep(session: Session, script: Path, *, scenario: bool, text: bool) -> Source | None:
    """Copy a script into its session; None = it cannot be read, which is reported when it is started."""
    digests: dict[str, str] = {}
    kept: list[str] = []
    room = MOST_SOURCE_BYTES
    for path in (script, *(own_files(script) if scenario else ())):
        name = path.relative_to(script.parent).as_posix()
        try:
            with open_regular(path) as file:
                content = file.read()
        except OSError:
            continue
        digests[name] = hashlib.sha256(content).hexdigest()
        if not text or len(content) > room or b"\0" in content:
            continue
        copy = session.path / SOURCE_FOLDER / name
        with contextlib.suppress(OSError, SessionError):  # a full disk is reported by what needs it
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, content)
            kept.append(name)
            room -= len(content)
    return Source(script.name, digests, kept) if script.name in digests else None


def texts(session: Session) -> dict[str, str]:
    """Return the texts that a session (untrusted) keeps of its script, by their paths beside it; the script first."""
    source = session.meta.source
    folder = (session.path / SOURCE_FOLDER).resolve()
    found: dict[str, str] = {}
    for name in source.kept if source is not None else ():
        path = (folder / name).resolve()
        if path.is_relative_to(folder):
            with contextlib.suppress(OSError):
                found[name] = read_small(path)[:MOST_SOURCE_BYTES].decode("utf-8", "replace")
    return found
