"""Starting a script under tuiprof, copying its source into the session, and waiting for its end.

The session keeps the text of the launched script in ``source/`` and its digest in ``session.json``, so that runs of a
script that was edited in between can be told apart; for a scenario, also the files in the folder of the same name, up
to a size. Imported modules, the environment and data are not copied. A script may contain secrets: ``--no-source``, or
``keep_source = false`` in the configuration file, keeps only the digests.
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
from tuiprof.system.described import described
from tuiprof.system.files import open_regular, read_small, typed_path, write_atomic
from tuiprof.system.own_process import IGNORED, module_command, module_environment
from tuiprof.system.process import boot_id

_PACKAGE: Final = Path(__file__).resolve().parents[2]
#: Added to the script's PYTHONPATH: loads the probe, and provides ``import tuiprof`` if it is not installed there.
INJECT: Final = _PACKAGE / "probe" / "inject"
#: Three steps, after ten of warm-up (compilation, allocator growth, the first batches) and twenty that give step times
#: in case the profiler slows down all later steps (see :mod:`tuiprof.probe.slowdown`). Where steps take long, a run may
#: end before: a process alone then waits for a few steps only. Several ranks have to agree on a step beforehand.
DEFAULT_CAPTURE: Final = CaptureRequest("start", steps=3, at=30, or_after_s=20.0)

#: Default start and maximum length of a capture by time.
DEFAULT_AFTER_S: Final = 20.0
MAX_CAPTURE_S: Final = 60.0
_TIMED: Final = re.compile(r"(?P<seconds>\d+(\.\d+)?)s(@(?P<after>\d+(\.\d+)?)s)?")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to run and how."""

    argv: tuple[str, ...]  # the command as typed; ``python`` and ``x.py`` mean the chosen interpreter
    name: str = ""  # name of the session; empty = name of the scenario or script
    cwd: Path | None = None  # None = the current directory
    python: str | os.PathLike[str] | None = None  # see :func:`tuiprof.session.run.interpreter.choose_python`
    scenario: Scenario | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # additional environment variables
    capture: CaptureRequest | None = DEFAULT_CAPTURE  # capture requested at the start
    triggers: tuple[TriggerRequest, ...] = ()
    root: Path | None = None  # folder of the session; None = the default of :func:`sessions_root`
    #: Time from the first signal to SIGTERM, and from there to SIGKILL, when the run is stopped
    grace_s: tuple[float, float] = (10.0, 10.0)
    keep_source: bool = True  # whether to copy the script's text, if the configuration allows it
    #: Whether the script gets this process's standard input if it is a pipe or a file. It never gets the terminal
    stdin: bool = False
    trial: bool = False  # see :class:`SessionMeta`
    watch_nan: bool = False  # check loss and gradients for NaN and infinite values, once per step


def parse_capture(
    text: str, *, stack: bool = False, shapes: bool = False, memory: bool = False
) -> CaptureRequest:
    """Parse ``--capture``: ``5@20`` is five steps from step 20 on, ``3s@20s`` is three seconds after 20 seconds.

    Without ``@``, the capture starts where :data:`DEFAULT_CAPTURE` does, or after :data:`DEFAULT_AFTER_S`.

    Raises:
        UsageProblem: The text has neither form, or the time is too long.
    """
    if timed := _TIMED.fullmatch(text):
        seconds, after_s = float(timed["seconds"]), float(timed["after"] or DEFAULT_AFTER_S)
        if not 0 < seconds <= MAX_CAPTURE_S:
            raise UsageProblem(
                f"--capture {text!r} is not between 0 and {MAX_CAPTURE_S:g} s",
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
    request = CaptureRequest(DEFAULT_CAPTURE.id, int(steps), None, stack, shapes, memory)
    if at:
        return msgspec.structs.replace(request, at=int(first))
    return msgspec.structs.replace(request, at=DEFAULT_CAPTURE.at, or_after_s=DEFAULT_CAPTURE.or_after_s)


def fit_capture(request: CaptureRequest, steps: int | None) -> CaptureRequest:
    """Return a capture request that starts early enough for a run of this many steps; None = unknown."""
    if steps is None or request.at is None:
        return request
    latest = steps - request.steps - 1  # the trace is written when the next step starts
    return msgspec.structs.replace(request, at=max(0, min(request.at, latest)), or_after_s=None)


def start(spec: LaunchSpec) -> Session:
    """Start a script with a supervisor that outlives this process and its terminal, and wait until the script runs.

    Raises:
        LaunchError: The script cannot be started.
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
        script = script_of(spec.argv, cwd)
        if script is not None:
            text = spec.keep_source and config.keeps_source()
            session.meta.source = copy_source(session, script, scenario=spec.scenario is not None, text=text)
            write_meta(session.path, session.meta)
        if spec.capture is not None:
            put_capture(session, spec.capture)
        for trigger in spec.triggers:
            put_trigger(session, trigger)
        put_black_box(session, nan=spec.watch_nan, memory=spec.capture is not None and spec.capture.memory)
        with _piped_in(spec.stdin) as stdin:
            plan = Plan(command, str(cwd), script_env(env, session), spec.grace_s, stdin, sorted(IGNORED))
            _supervise(session, plan)
    except TuiprofError as error:
        # Record the failure in the session, or it would be listed as starting.
        if last_end(session, "recorder") is None:
            with contextlib.suppress(OSError), open(session.log / "recorder.jsonl", "ab") as log:
                end = End(time.monotonic_ns(), 126, None, error.message)
                log.write(msgspec.json.encode(end) + b"\n")
        raise
    return session


def script_env(env: Mapping[str, str], session: Session) -> dict[str, str]:
    """Return the environment of a script: the given one, with the session and the probe."""
    old = env.get("PYTHONPATH")
    return {
        "PYTHONUNBUFFERED": "1",
        **env,
        "TUIPROF_SESSION": str(session.path),
        "PYTHONPATH": f"{INJECT}{os.pathsep}{old}" if old else str(INJECT),
    }


def wait(session: Session, timeout_s: float | None = None) -> Status:
    """Wait for the end of a run; return its status, at the end or at the timeout."""
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
        trial=spec.trial,
    )


def new_meta(name: str, argv: list[str], cwd: str, **more: Any) -> SessionMeta:
    """Return the metadata of a session that starts now on this machine; ``more`` are further fields."""
    return SessionMeta(
        v=SCHEMA_VERSION,
        name=name,
        argv=argv,
        cwd=cwd,
        unix_ns=time.time_ns(),
        mono_ns=time.monotonic_ns(),
        boot=boot_id(),
        host=platform.node(),
        # By name, because this package must not depend on the top-level package.
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
    """Yield a copy of standard input if it is wanted and is a pipe, socket or file, else None."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
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
    # The plan is sent through a pipe, because an environment may contain secrets that must not be written to disk.
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
    # It forks: the process started here exits at once and is reaped; its child answers through the pipe.
    try:
        answer, _ = process.communicate(msgspec.json.encode(plan))
        reply = msgspec.json.decode(answer, type=described(Reply))
    except (OSError, msgspec.DecodeError) as error:
        raise process_died("supervisor", log) from error
    if reply.error:
        kind = SessionError if reply.of_session else LaunchError
        raise kind(reply.error, reply.remedy)


def recorder_environment() -> dict[str, str]:
    """Return the environment of a process that records: this process's, without the script's settings."""
    own = ("PYTHONHOME", "TUIPROF_SESSION")
    return {name: value for name, value in module_environment().items() if name not in own}


def process_died(name: str, log: Path) -> LaunchError:
    """Return the error for a recording process that died, with the last line of its output."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return LaunchError(f"the {name} died: {lines[-1] if lines else 'no output'}", f"see {log}")


#: Variables of the script's environment that the probe reads.
STEP_AT, STEP_FUNCTION = "TUIPROF_STEP_AT", "TUIPROF_STEP_FUNCTION"


def step_environment(at: str | None, function: str | None, option: str = "--step-{}") -> dict[str, str]:
    """Return the environment variables that tell the probe where a step ends.

    That is ``FILE:LINE``, or ``MODULE:NAME``, where the script itself is ``__main__``. ``option`` is the name of the
    options in error messages, with ``{}`` for ``at`` and ``function``.

    Raises:
        UsageProblem: A value is invalid, there is no such file, or both are given.
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


#: Folder of the source in a session.
SOURCE_FOLDER: Final = "source"
#: Maximum size of all source text in a session.
MAX_SOURCE_BYTES: Final = 256 << 10
#: Limits for the files in a scenario's folder, which may also contain data.
_MAX_FILE_BYTES: Final = 1 << 20
_MAX_FILES: Final = 1000


def script_of(argv: Sequence[str], cwd: Path) -> Path | None:
    """Return the absolute path of the Python file that a command runs; None = none, or unknown.

    The command is as typed: ``python train.py``, ``train.py``, ``torchrun … train.py``, ``python -m train``.
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
    """Return the other files of a scenario's script: its TOML header, and the files in the folder of the same name."""
    header = script.with_suffix(".toml")
    found = [
        path
        for path in islice(_walk_sorted(script.with_suffix("")), _MAX_FILES)
        if path.is_file() and path.suffix != ".pyc" and path.stat().st_size <= _MAX_FILE_BYTES
    ]
    return [header, *found] if header.is_file() else found


def _walk_sorted(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder in a reproducible order, so that a limit always selects the same ones."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (Path(where, name) for name in sorted(names))


def copy_source(session: Session, script: Path, *, scenario: bool, text: bool) -> Source | None:
    """Copy a script (only digests if ``text`` is False) into its session; None = the script cannot be read."""
    digests: dict[str, str] = {}
    kept: list[str] = []
    room = MAX_SOURCE_BYTES
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
        with contextlib.suppress(OSError, SessionError):  # a full disk is reported elsewhere
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, content)
            kept.append(name)
            room -= len(content)
    return Source(script.name, digests, kept) if script.name in digests else None


def source_texts(session: Session) -> dict[str, str]:
    """Return the source text in a session (untrusted) by relative path, the script first."""
    source = session.meta.source
    folder = (session.path / SOURCE_FOLDER).resolve()
    found: dict[str, str] = {}
    for name in source.kept if source is not None else ():
        path = (folder / name).resolve()
        if path.is_relative_to(folder):
            with contextlib.suppress(OSError):
                found[name] = read_small(path)[:MAX_SOURCE_BYTES].decode("utf-8", "replace")
    return found
