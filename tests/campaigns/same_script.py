"""Small scripts, bare and recorded, without and with a capture: they must do the same.

Each file of ``scripts/`` is one, or a table of several (see :func:`scripts`). A script is run in an empty folder of
its own; compared are what it prints on both streams, its exit status or signal, the files that it leaves with their
contents, and the processes that outlive it. What must differ is said in the script, with the reason, and counted.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .campaign import Options, Outcome

PROMISE = "a script does the same recorded as bare, with a capture and without"

_SCRIPTS = Path(__file__).parent / "scripts"
_INJECT = Path(__file__).resolve().parents[2] / "tuiprof" / "probe" / "inject"
_LIMIT_S = 120
_MARK = "TUIPROF_CAMPAIGN_CASE"
#: What Kineto writes for tracers when a capture begins and ends; no setting silences it without its errors.
_KINETO = re.compile(rb"USDT:[^\n]*profiler_(?:start|stop)\s*\n")
_ADDRESS = re.compile(rb"0x[0-9a-f]{6,}|(?<=started )\d{9,}|(?<=pid=)\d+")
_LAST_S = 3.0  # helpers of multiprocessing end a moment after the script
#: What ``record`` sets so that output arrives at once; the bare script gets it, too.
_ALIKE = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
_ASPECTS = ("exit", "stdout", "stderr", "files", "left")


@dataclass(frozen=True)
class Script:
    """One script, and how it is run."""

    name: str
    text: str  # the script
    run: str = "{python} {script}"  # its command; ``{python}`` is the interpreter, ``{script}`` the file
    python: str = ""  # version of the interpreter, such as ``3.9``; empty = this one
    stdin: str = ""  # what is piped in; with ``tty`` what is typed
    #: It is run in a terminal, with the probe alone: tuiprof gives no script its own terminal.
    tty: bool = False
    needs: str = ""  # a module that it imports
    fast: bool = False  # part of the short form, too
    #: The aspects that must differ, of ``exit``, ``stdout``, ``stderr``, ``files`` and ``left``, and why.
    differs: str = ""

    @property
    def may_differ(self) -> set[str]:
        """Aspects that are not compared."""
        return set(re.findall(r"[a-z]+", self.differs.partition(":")[0])) & set(_ASPECTS)


@dataclass(frozen=True)
class Did:
    """What a script did."""

    exit: int
    stdout: bytes
    stderr: bytes
    files: dict[str, str]
    left: int


def scripts() -> list[Script]:
    """Return every script.

    A file begins with comments ``# key: value`` for the attributes of :class:`Script`. ``#---`` begins the next script
    of the same file, whose name is given by ``# name: …``; text before the first such line begins each of them.
    """
    found = []
    for path in sorted(_SCRIPTS.glob("*.py")):
        common, *parts = re.split(r"^#---.*\n", path.read_text(), flags=re.MULTILINE)
        for part in parts or [""]:
            keys: dict[str, Any] = dict(re.findall(r"^# (\w+): (.*)$", common + part, flags=re.MULTILINE))
            keys = {key: value for key, value in keys.items() if key in Script.__dataclass_fields__}
            for key in ("tty", "fast"):
                keys[key] = keys.get(key) == "yes"
            keys["stdin"] = keys.get("stdin", "").encode().decode("unicode_escape")
            found.append(Script(**{"name": path.stem, "text": common + part, **keys}))
    names = [script.name for script in found]
    if len(names) != len(set(names)):
        raise ValueError(f"two scripts have the same name: {sorted(names)}")
    return found


def run(options: Options) -> Outcome:
    """Run all, or for the short form the fast ones with the probe alone."""
    outcome = Outcome()
    every = [script for script in scripts() if script.fast or not options.short]
    options.rng("order").shuffle(every)
    chosen = every[: options.count(len(every), len(every))]
    # A script waits for most of its time, so that the probe's thread runs.
    with concurrent.futures.ThreadPoolExecutor(3 * (os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda script: _try(script, options), chosen))
    listed, runs = 0, 0
    for script, (why, failures, count) in zip(chosen, results, strict=True):
        if why:
            outcome.skipped.append(f"{script.name}: {why}")
            continue
        outcome.cases += 1
        runs += count
        outcome.failures += failures
        listed += bool(script.differs)
    outcome.figures = {"runs": str(runs), "differences that are listed": str(listed)}
    return outcome


def _try(script: Script, options: Options) -> tuple[str, list[str], int]:
    """Return why a script was not tried, the differences, and the number of runs."""
    python = _python(script.python)
    if python is None:
        return f"there is no Python {script.python} here", [], 0
    if script.needs and _lacks(python, script.needs):
        return f"this Python has no {script.needs}", [], 0
    root = options.folder / re.sub(r"\W", "-", script.name)
    try:
        bare = _bare(script, python, root / "bare")
        if not script.tty and not options.short:
            ways = {"recorded": _recorded, "captured": _captured}
        else:
            ways = {"recorded": _probed, "captured": _probed_with_capture}
        failures = []
        for way, do in ways.items():
            did = do(script, python, root / way)
            for aspect in _ASPECTS:
                if aspect not in script.may_differ and getattr(did, aspect) != getattr(bare, aspect):
                    told = f"{getattr(bare, aspect)!r} bare, {getattr(did, aspect)!r} {way}"
                    failures.append(f"{script.name}: {aspect} differs: {told[:1500]}")
        return "", failures, 1 + len(ways)
    except subprocess.TimeoutExpired as late:
        return "", [f"{script.name}: still running after {late.timeout} s"], 1
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _python(version: str) -> str | None:
    """Return an interpreter; None = there is none of this version."""
    if not version:
        return sys.executable
    folders = [
        *Path.home().glob(f".pyenv/versions/{version}*/bin"),
        *Path.home().glob(f".local/share/uv/python/*{version}*/bin"),
    ]
    found = [shutil.which(f"python{version}", path=str(folder)) for folder in folders]
    return next(filter(None, [*found, shutil.which(f"python{version}")]), None)


def _lacks(python: str, module: str) -> bool:
    command = [
        python,
        "-c",
        f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)",
    ]
    return subprocess.run(command, check=False, env=_environment("")).returncode != 0


# -- ways to run --------------------------------------------------------------------------------------------------


def _bare(script: Script, python: str, folder: Path) -> Did:
    """Run it without tuiprof."""
    return _direct(script, python, folder, {})


def _probed(script: Script, python: str, folder: Path, request: str = "") -> Did:
    """Run it with the probe, and without a recorder."""
    session = folder.parent / f"{folder.name}-session"
    for name in ("log", "traces", "control"):
        (session / name).mkdir(parents=True)
    if request:
        (session / "control" / "capture-a.json").write_text(request)
    return _direct(script, python, folder, {"TUIPROF_SESSION": str(session), "PYTHONPATH": str(_INJECT)})


def _probed_with_capture(script: Script, python: str, folder: Path) -> Did:
    return _probed(script, python, folder, '{"id": "a", "steps": 2, "at": 2}')


def _recorded(script: Script, python: str, folder: Path, *how: str) -> Did:
    """Run it as ``tuiprof record`` does."""
    command, cwd = _prepare(script, python, folder)
    sessions = folder.parent / f"{folder.name}-sessions"
    case = f"{os.getpid()}-{folder}"
    tuiprof = [
        sys.executable,
        "-m",
        "tuiprof",
        "--sessions",
        str(sessions),
        "record",
        "--quiet",
        *(how or ["--no-capture"]),
    ]
    # -P: the folder of the script must not shadow modules of ours.
    tuiprof.insert(1, "-P")
    done = subprocess.run(
        [*tuiprof, "--", *command],
        input=script.stdin.encode(),
        cwd=cwd,
        env=_environment(case),
        capture_output=True,
        timeout=_LIMIT_S,
        check=False,
    )
    [session] = [path for path in sessions.iterdir() if (path / "session.json").exists()]
    streams = [(session / f"{name}.log").read_bytes() for name in ("stdout", "stderr")]
    return _did(done.returncode, *streams, folder, cwd, case)


def _captured(script: Script, python: str, folder: Path) -> Did:
    return _recorded(script, python, folder, "--capture", "2@2")


def _direct(script: Script, python: str, folder: Path, more: dict[str, str]) -> Did:
    """Run its command as it is."""
    command, cwd = _prepare(script, python, folder)
    case = f"{os.getpid()}-{folder}"
    env = _environment(case) | more
    if script.tty:
        code, said = _in_terminal(command, cwd, env, script.stdin.encode())
        return _did(code, said, b"", folder, cwd, case)
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        done = subprocess.run(
            command,
            input=script.stdin.encode(),
            cwd=cwd,
            env=env,
            stdout=out,
            stderr=err,
            timeout=_LIMIT_S,
            check=False,
        )
    # As a shell gives it, and so tuiprof.
    code = 128 - done.returncode if done.returncode < 0 else done.returncode
    return _did(code, (folder / "stdout").read_bytes(), (folder / "stderr").read_bytes(), folder, cwd, case)


def _prepare(script: Script, python: str, folder: Path) -> tuple[list[str], Path]:
    """Write the script and what it may import; return the command and where to run it."""
    cwd = folder / "cwd"
    cwd.mkdir(parents=True)
    (cwd / "script.py").write_text(script.text)
    shutil.copy(_SCRIPTS / "helpers" / "marks.py", cwd)
    values = {"python": python, "script": "script.py"}
    return [re.sub(r"\{(\w+)\}", lambda m: values[m[1]], part) for part in _words(script.run)], cwd


def _words(command: str) -> list[str]:
    import shlex

    return shlex.split(command)


def _environment(case: str) -> dict[str, str]:
    kept = (
        "PATH",
        "HOME",
        "LANG",
        "TERM",
        "TZ",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "VIRTUAL_ENV",
    )
    return {name: os.environ[name] for name in kept if name in os.environ} | _ALIKE | {_MARK: case}


def _in_terminal(command: Sequence[str], cwd: Path, env: dict[str, str], typed: bytes) -> tuple[int, bytes]:
    """Run a command in a terminal and type lines into it, one whenever it has said something and waits."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(cwd)
        os.execvpe(command[0], list(command), env)
    said = b""
    lines = typed.splitlines(keepends=True)
    deadline = time.monotonic() + _LIMIT_S
    try:
        while time.monotonic() < deadline:
            ready, _, _ = select.select([terminal], [], [], 0.5)
            if ready:
                try:
                    piece = os.read(terminal, 1 << 16)
                except OSError:  # it is gone
                    break
                said += piece
            elif lines and said and psutil.Process(child).status() == psutil.STATUS_SLEEPING:
                os.write(terminal, lines.pop(0))
    finally:
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    code = os.waitstatus_to_exitcode(status)
    return (128 - code if code < 0 else code), said


# -- what it did --------------------------------------------------------------------------------------------------


def _did(code: int, stdout: bytes, stderr: bytes, folder: Path, cwd: Path, case: str) -> Did:
    left = 0
    for process in _left(case):
        left += 1
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    files = {
        str(path.relative_to(cwd)): _digest(path)
        for path in sorted(cwd.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return Did(code, _plain(stdout, folder), _plain(stderr, folder), files, left)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _plain(text: bytes, folder: Path) -> bytes:
    """Return output without what differs from run to run: addresses, the folder, the interpreter's process."""
    text = _KINETO.sub(b"", text).replace(str(folder).encode(), b"FOLDER")
    return _ADDRESS.sub(b"0xADDRESS", text)


def _left(case: str) -> list[psutil.Process]:
    """Return the processes of a case that go on; the others are given the time to end."""
    deadline = time.monotonic() + _LAST_S
    while True:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == case and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
