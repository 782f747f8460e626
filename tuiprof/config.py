"""The user's configuration file: where it is, which folders of scenarios it names, and whether scripts are kept.

::

    scenarios = ["~/ladders", "/data/team/ladders"]
    keep_source = false         # sessions do not keep the text of the script that ran

The dashboard reads its keys and theme from the same file (:mod:`tuiprof.tui.terminal.keys`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tuiprof.errors import UsageProblem

#: Everything that can be set; others are reported as unknown.
SETTINGS = ("scenarios", "keep_source", "keys", "theme")


def config_path() -> Path:
    """Return where the configuration is, whether or not it exists: TUIPROF_CONFIG, else the platform's directory."""
    if named := os.environ.get("TUIPROF_CONFIG"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_config_path("tuiprof", appauthor=False) / "config.toml"


def scenario_folders() -> tuple[Path, ...]:
    """Return the folders of scenarios that the configuration names, relative ones taken from its own folder.

    Raises:
        UsageProblem: The file cannot be read, or ``scenarios`` is not a list of folders.
    """
    path = config_path()
    named = read(path).get("scenarios", [])
    if not isinstance(named, list) or not all(isinstance(item, str) for item in named):
        raise UsageProblem(f"{path}: scenarios must be a list of folders", 'scenarios = ["~/ladders"]')
    return tuple(path.parent / Path(item).expanduser() for item in named)


def keeps_source() -> bool:
    """Return whether sessions keep the text of the script that ran (see :mod:`tuiprof.session.run.launch`).

    Where the configuration cannot be read, nothing is kept.
    """
    try:
        return read(config_path()).get("keep_source", True) is True
    except UsageProblem:  # reported by every verb
        return False


def read(path: Path) -> dict[str, Any]:
    """Return what the configuration says; nothing where there is no file.

    Raises:
        UsageProblem: It cannot be read, or is not TOML.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror}", "check its permissions") from error
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{path} is not TOML: {error}", "fix the file") from error
