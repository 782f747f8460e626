"""The interpreter that runs scripts: choosing and finding one, its properties, and the command for it.

It may belong to another environment and another Python version (3.9+), without tuiprof. Its properties are collected
by a subprocess that needs only the standard library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tuiprof.errors import LaunchError
from tuiprof.system.described import described
from tuiprof.system.files import similar, text_of, typed_path

#: Timeout for an interpreter to answer.
_ANSWER_S: Final = 30.0
_PYTHON_NAME = re.compile(r"python(3(\.\d+)?)?")
#: The oldest Python version that the probe supports.
_OLDEST = (3, 9)
_VERSION = re.compile(r"tuiprof-python:(\d+)\.(\d+)")
_ASK_VERSION = "import sys; sys.stdout.write('tuiprof-python:%d.%d' % sys.version_info[:2])"


def choose_python(explicit: str | os.PathLike[str] | None, env: Mapping[str, str] | None = None) -> Path:
    """Return the interpreter that runs scripts.

    This is the first of: ``--python`` (an interpreter, the name of one on PATH, or the directory of an environment);
    the active environment (VIRTUAL_ENV, then CONDA_PREFIX); ``python``, then ``python3``, on PATH; the interpreter that
    tuiprof runs in.

    Raises:
        LaunchError: ``explicit`` does not exist or is not executable.
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
    # Do not resolve links: the location of a virtual environment's python matters.
    return Path(found).absolute()


def must_be_python(python: Path) -> None:
    """Run a program once to check that it is a supported Python.

    Raises:
        LaunchError: It is not a Python interpreter, or is too old.
    """
    remedy = "give --python the path of a Python, or the directory of a virtual environment"
    done = _run([python, "-S", "-c", _ASK_VERSION], None, _ANSWER_S, remedy, remedy)
    answer = _VERSION.fullmatch(done.stdout.decode("utf-8", "replace"))
    if done.returncode or answer is None:
        raise LaunchError(f"{python} is not a Python interpreter", remedy)
    if (int(answer[1]), int(answer[2])) < _OLDEST:
        raise LaunchError(
            f"{python} is Python {answer[1]}.{answer[2]}, which is too old",
            "tuiprof runs scripts in Python 3.9 and later",
        )


def _run(
    command: Sequence[str | Path], cwd: Path | None, timeout_s: float, slow: str, broken: str
) -> subprocess.CompletedProcess[bytes]:
    """Run an interpreter; ``slow`` and ``broken`` are the remedies if it does not answer or cannot be started."""
    try:
        return subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{command[0]} did not answer within {timeout_s:g} s", slow) from error
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started: {error.strerror}", broken) from error


def is_python(program: str) -> bool:
    """Return whether a program as typed, for example ``python3``, means the chosen interpreter."""
    return _PYTHON_NAME.fullmatch(program) is not None


def resolve(argv: Sequence[str], cwd: Path, python: Path, env: Mapping[str, str]) -> list[str]:
    """Return a command as typed with its program's absolute path.

    ``python …`` and ``script.py …`` use the chosen interpreter. Other names (``torchrun``) are looked up in that
    interpreter's directory, then on PATH.

    Raises:
        LaunchError: The program or script does not exist or cannot be executed.
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
            raise LaunchError(
                f"there is no file {path.name!r} in {path.parent}", similar(path) or "check the path"
            )
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
        from difflib import get_close_matches

        close = get_close_matches(program, _commands(env.get("PATH", os.defpath)), n=1, cutoff=0.7)
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
        raise LaunchError(
            f"there is no script {path.name!r} in {path.parent}", similar(path) or "check the path"
        )


def _commands(path: str) -> set[str]:
    names: set[str] = set()
    for folder in path.split(os.pathsep):
        try:
            names.update(entry.name for entry in os.scandir(folder or "."))
        except OSError:  # folders on PATH often do not exist
            continue
    return names


#: Names of a virtual environment's folder in a project.
_ENVIRONMENTS: Final = (".venv", "venv", ".env", "env")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter that was found."""

    path: Path  # links are not resolved: the location of a virtual environment's python matters
    origin: str  # where it was found, for example ``"pyenv 3.12.1"``


def find_interpreters(
    cwd: Path | None = None, env: Mapping[str, str] | None = None, home: Path | None = None
) -> list[Interpreter]:
    """Return all interpreters found, without duplicates, the most likely ones for scripts in a directory first."""
    env = os.environ if env is None else env
    found: dict[tuple[str, str], Interpreter] = {}
    for path, origin in _candidates(cwd or Path.cwd(), env, home or Path.home()):
        if os.access(path, os.X_OK) and path.is_file():
            # python and python3 in one folder are the same; a virtual environment's link and its target are not.
            identity = (os.path.realpath(path.parent), os.path.realpath(path))
            found.setdefault(identity, Interpreter(path, origin))
    return list(found.values())


def _candidates(cwd: Path, env: Mapping[str, str], home: Path) -> Iterator[tuple[Path, str]]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if env.get(variable):
            yield Path(env[variable]) / "bin" / "python", "active environment"
    for folder in (cwd, cwd.parent):
        for name in _ENVIRONMENTS:
            yield folder / name / "bin" / "python", f"{name} in {folder.name or folder}"
    for prefix in _conda_prefixes(env, home):
        yield prefix / "bin" / "python", f"conda {prefix.name}"
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv")
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        folder = Path(directory).absolute()
        if directory and folder != pyenv / "shims":  # a shim starts one of the versions below
            prefix = folder.parent
            origin = f"PATH: {prefix.name if (prefix / 'pyvenv.cfg').is_file() else folder}"
            for name in ("python", "python3"):
                yield folder / name, origin
    for folder in _folders(pyenv / "versions"):
        yield folder / "bin" / "python", f"pyenv {folder.name}"
    yield Path(sys.executable), "tuiprof's own"


def _conda_prefixes(env: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the environments that conda lists, then those in the conda installation."""
    listed = text_of(home / ".conda" / "environments.txt").splitlines()
    yield from (Path(line.strip()) for line in listed if line.strip())
    if env.get("CONDA_EXE"):
        base = Path(env["CONDA_EXE"]).parent.parent
        yield base
        yield from _folders(base / "envs")


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return []


_SCRIPT = Path(__file__).with_name("interpreter_facts.py")
_MARK = "tuiprof-facts:"
#: Packages named in one line, the most important first: a narrow line is cut.
_NAMED = ("torch", "jax", "torch-xla", "torch-neuronx", "triton", "torchmetrics")

_known: dict[Path, Facts] = {}


class Facts(msgspec.Struct, frozen=True):
    """Properties of an interpreter and its machine."""

    python: str
    version: str  # for example ``"3.12.3"``
    implementation: str  # for example ``"cpython"``
    prefix: str  # directory of its environment
    #: Versions of installed distributions by normalised name (lower case, ``-``)
    distributions: dict[str, str]
    torch_cuda: bool  # whether the installed torch has its CUDA library
    #: Name and compute capability of each NVIDIA GPU visible to CUDA, in its order
    gpus: tuple[tuple[str, str], ...]
    nvcc: str  # path of the CUDA compiler; empty = none
    cxx: str  # path of the C++ compiler; empty = none
    cpu: str  # name of the CPU; empty = unknown
    cores: int  # physical cores that a process may use
    numa_nodes: int  # NUMA nodes with CPUs
    libraries: frozenset[str]  # those of ``tcmalloc``, ``jemalloc`` and ``iomp5`` that run_cpu would find

    def distribution(self, name: str) -> str | None:
        """Return the version of a distribution; None = not installed."""
        return self.distributions.get(re.sub(r"[-_.]+", "-", name).lower())

    @property
    def sentence(self) -> str:
        """Devices and versions in one line: ``"NVIDIA H200 ×1 · Python 3.12.3 · torch 2.11.0"``."""
        devices = [f"{name} ×{count}" for name, count in Counter(name for name, _ in self.gpus).items()]
        if not devices:
            devices = [f"{self.cores} CPU cores"]
        frameworks = [f"{name} {have}" for name in _NAMED if (have := self.distribution(name))]
        return " · ".join([*devices, f"Python {self.version}", *frameworks])


def facts(
    python: str | os.PathLike[str] | None = None, *, refresh: bool = False, timeout_s: float = _ANSWER_S
) -> Facts:
    """Return facts about an interpreter (see :func:`choose_python`); cached in this process.

    Raises:
        LaunchError: The interpreter does not exist or does not respond.
    """
    path = choose_python(python)
    if refresh or path not in _known:
        _known[path] = _inspect(path, timeout_s)
    return _known[path]


def _inspect(python: Path, timeout_s: float) -> Facts:
    # Not with -I, because scripts see PYTHONPATH and the user's site-packages too. Not in the current directory, whose
    # modules could shadow the standard library's.
    command: list[str | Path] = [python, "-c", _SCRIPT.read_text(encoding="utf-8")]
    slow = "check that it starts: run it with -c pass"
    done = _run(command, python.parent, timeout_s, slow, "check --python")
    answer = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.startswith(_MARK)]
    if done.returncode or not answer:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = (
            re.sub(r"[^\x20-\x7e\u00a0-\uffff]", "", lines[-1]) if lines else f"exit status {done.returncode}"
        )
        raise LaunchError(f"{python} cannot be inspected: {why}", "tuiprof runs scripts in Python 3.9+")
    try:
        raw: dict[str, Any] = msgspec.json.decode(answer[-1][len(_MARK) :])
        return msgspec.convert({"python": str(python), **raw}, described(Facts))
    except msgspec.MsgspecError as error:
        raise LaunchError(f"{python} returned an invalid answer: {error}", "") from error
