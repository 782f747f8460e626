"""Which interpreters are found, on a home directory and a PATH of our own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tuiprof.session.run.interpreter import find_interpreters


def python(folder: Path, name: str = "python", target: Path | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if target is None:
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    else:
        path.symlink_to(target)
    return path


def test_environments_conda_pyenv_and_path_are_found_once_each(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    base = python(home / ".pyenv" / "versions" / "3.12.1" / "bin")
    active = python(tmp_path / "active" / "bin", target=base)
    beside = python(project / ".venv" / "bin", target=base)
    conda = python(tmp_path / "conda" / "train" / "bin")
    on_path = python(tmp_path / "bin", "python3")
    python(tmp_path / "bin", "python", target=on_path)  # the same one by another name
    python(home / ".pyenv" / "shims")
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text(f"{conda.parent.parent}\n/gone\n")
    (tmp_path / "broken" / "bin").mkdir(parents=True)
    (tmp_path / "broken" / "bin" / "python").write_text("not executable")
    path = [
        home / ".pyenv" / "shims",
        tmp_path / "broken" / "bin",
        tmp_path / "bin",
        tmp_path / "bin",
        tmp_path / "x",
    ]
    env = {"VIRTUAL_ENV": str(active.parent.parent), "PATH": os.pathsep.join(map(str, path))}

    found = [(one.path, one.origin) for one in find_interpreters(project, env, home)]

    assert found == [
        (active, "active environment"),
        (beside, ".venv in project"),
        (conda, "conda train"),
        (base, "pyenv 3.12.1"),
        (tmp_path / "bin" / "python", "PATH"),
        (Path(sys.executable), "tuiprof's own"),
    ]
