"""Resolves the interpreter and the file to run, with suggestions if a file does not exist."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tuiprof.errors import LaunchError
from tuiprof.system.files import typed_path

_PYTHON_NAME = re.compile(r"python(3(\.\d+)?)?")
#: The oldest Python that the probe runs in.
_OLDEST = (3, 9)
_ANSWER = re.compile(r"tuiprof-python:(\d+)\.(\d+)")
_ASK = "import sys; sys.stdout.write('tuiprof-python:%d.%d' % sys.version_info[:2])"


def choose_python(explicit: str | os.PathLike[str] | None, env: Mapping[str, str] | None = None) -> Path:
    """Return the interpreter that runs scripts.

    In this order: ``--python``; the active environment (VIRTUAL_ENV, then CONDA_PREFIX); the ``python``, then
    ``python3``, on PATH; the interpreter tuiprof itself runs in.

    Args:
        explicit: ``--python``: an interpreter, the name of one on PATH, or the directory of an environment.
        env: Environment variables; None = this process's.

    Raises:
        LaunchError: The explicit one does not exist or is not executable.
    """
    env = os.environ if env is None else env
    if explicit is not None:
        return _explicit_python(str(explicit), env)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if env.get(variable):
            python = Path(env[variable]) / "bin" / "python"
            if os.access(python, os.X_OK):
                return python
    for name in ("python", "python3"):
        if found := shutil.which(name, path=env.get("PATH", os.defpath)):
            return Path(found).absolute()
    return Path(sys.executable)


def _explicit_python(text: str, env: Mapping[str, str]) -> Path:
    path = typed_path(text)
    if os.path.isdir(path) and os.access(path / "bin" / "python", os.X_OK):
        return (path / "bin" / "python").absolute()
    found = shutil.which(str(path), path=env.get("PATH", os.defpath))
    if found is None:
        raise LaunchError(
            f"there is no interpreter {text!r}",
            "give --python the path of a Python, or the directory of a virtual environment",
        )
    # Not resolved: a virtual environment's python is a link whose location matters.
    return Path(found).absolute()


def must_be_python(python: Path, timeout_s: float = 30.0) -> None:
    """Raise an error if the probe cannot run in a program; the program is started once to find out.

    Raises:
        LaunchError: It does not answer as a Python does, or is too old.
    """
    remedy = "give --python the path of a Python, or the directory of a virtual environment"
    try:
        done = subprocess.run(
            [python, "-S", "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{python} did not answer within {timeout_s:g} s", remedy) from error
    except OSError as error:
        raise LaunchError(f"{python} cannot be started: {error.strerror}", remedy) from error
    answer = _ANSWER.fullmatch(done.stdout.decode("utf-8", "replace"))
    if done.returncode or answer is None:
        raise LaunchError(f"{python} is not a Python interpreter", remedy)
    if (int(answer[1]), int(answer[2])) < _OLDEST:
        raise LaunchError(
            f"{python} is Python {answer[1]}.{answer[2]}", "tuiprof runs scripts in Python 3.9 and later"
        )


def is_python(program: str) -> bool:
    """Whether a program as typed means the chosen interpreter.

    Args:
        program: For example ``python3``.
    """
    return _PYTHON_NAME.fullmatch(program) is not None


def resolve(argv: Sequence[str], cwd: Path, python: Path, env: Mapping[str, str]) -> list[str]:
    """Return the command to execute for a command as typed.

    ``python …`` and ``script.py …`` are run by the chosen interpreter; other names are looked up beside that
    interpreter first (its ``torchrun``), then on PATH.

    Returns:
        The command with an absolute program.

    Raises:
        LaunchError: Something named does not exist or cannot be executed.
    """
    if not argv or not argv[0]:
        raise LaunchError("no command given", "give one: tuiprof run -- python train.py")
    program, *rest = argv
    if is_python(program):
        if rest and not rest[0].startswith("-"):
            _script_must_exist(rest[0], cwd)
        return [str(python), *rest]
    path = cwd / typed_path(program)
    if program.endswith(".py"):
        _script_must_exist(program, cwd)
        return [str(python), str(path), *rest]
    if "/" in program:
        if not os.path.exists(path):
            raise LaunchError(f"there is no file {path.name!r} in {path.parent}", _did_you_mean(path))
        if os.path.isdir(path):
            raise LaunchError(f"{program!r} is a directory", "give the path of a script in it")
        if not os.access(path, os.X_OK):
            raise LaunchError(
                f"{program!r} is not executable", f"chmod +x {program}, or name its interpreter"
            )
        return [str(path), *rest]
    beside = python.parent / program
    if os.access(beside, os.X_OK) and os.path.isfile(beside):
        return [str(beside), *rest]
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        here = cwd / program
        if os.path.isfile(here):
            raise LaunchError(f"there is no command {program!r}", f"to run the file here, type ./{program}")
        close = difflib.get_close_matches(program, _commands(env.get("PATH", os.defpath)), n=1, cutoff=0.7)
        raise LaunchError(
            f"there is no command {program!r} on PATH",
            f"did you mean {close[0]!r}?" if close else "give its path, or activate its environment",
        )
    return [found, *rest]


def _script_must_exist(name: str, cwd: Path) -> None:
    path = cwd / typed_path(name)
    if os.path.isdir(path) and not os.path.exists(path / "__main__.py"):
        raise LaunchError(f"{name!r} is a directory without __main__.py", "give the path of a script in it")
    if not os.path.exists(path):
        raise LaunchError(f"there is no script {path.name!r} in {path.parent}", _did_you_mean(path))


def _did_you_mean(path: Path) -> str:
    folder = path.parent
    if not os.path.isdir(folder):
        return f"the directory {folder} does not exist"
    close = _close(path.name, (entry.name for entry in folder.iterdir()))
    return f"did you mean {close!r}?" if close else "check the path"


def _close(name: str, candidates: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return found[0] if found else None


def _commands(path: str) -> set[str]:
    names: set[str] = set()
    for folder in path.split(os.pathsep):
        try:
            names.update(entry.name for entry in os.scandir(folder or "."))
        except OSError:  # PATH often names folders that do not exist
            continue
    return names
