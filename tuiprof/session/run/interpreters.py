"""Which Python interpreters there are to run scripts in: environments by their usual places, then PATH.

Nothing is started here; the properties of each are queried by :func:`tuiprof.session.run.interpreter.facts`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Names of a virtual environment's folder in a project.
_ENVIRONMENTS: Final = (".venv", "venv", ".env", "env")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One interpreter.

    Attributes:
        path: The program, not resolved: in a virtual environment it is a link whose location matters.
        origin: How it was found, for example ``"pyenv 3.12.1"``.
    """

    path: Path
    origin: str


def find_interpreters(
    cwd: Path | None = None, env: Mapping[str, str] | None = None, home: Path | None = None
) -> list[Interpreter]:
    """Return the interpreters found, each once, those that are meant most often first.

    Args:
        cwd: Where scripts are run; None = here.
        env: Environment variables; None = this process's.
        home: The user's home directory; None = as the system says.
    """
    env = os.environ if env is None else env
    found: dict[tuple[str, str], Interpreter] = {}
    for path, origin in _candidates(cwd or Path.cwd(), env, home or Path.home()):
        if os.access(path, os.X_OK) and path.is_file():
            # python and python3 of one folder are one; a virtual environment's link is another than what it links to.
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
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    for folder in _folders(pyenv):
        yield folder / "bin" / "python", f"pyenv {folder.name}"
    shims = str(pyenv.parent / "shims")
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        if directory and directory != shims:  # a shim starts one of the versions above
            for name in ("python", "python3"):
                yield Path(directory).absolute() / name, "PATH"
    yield Path(sys.executable), "tuiprof's own"


def _conda_prefixes(env: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the environments that conda lists, then those next to the conda program."""
    try:
        listed = (home / ".conda" / "environments.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        listed = ""
    yield from (Path(line.strip()) for line in listed.splitlines() if line.strip())
    if env.get("CONDA_EXE"):
        base = Path(env["CONDA_EXE"]).parent.parent
        yield base
        yield from _folders(base / "envs")


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:  # most machines have not all of these tools
        return []
