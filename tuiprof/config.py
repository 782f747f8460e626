"""The user's configuration file: where it is, and which folders of scenarios it names.

::

    scenarios = ["~/ladders", "/data/team/ladders"]

The dashboard reads its keys and theme from the same file (:mod:`tuiprof.tui.keys`).
"""

from __future__ import annotations

import os
from pathlib import Path

from tuiprof.errors import UsageProblem


def config_path() -> Path:
    """Return where the configuration is, whether or not it exists: TUIPROF_CONFIG, else the platform's place."""
    if named := os.environ.get("TUIPROF_CONFIG"):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("tuiprof", appauthor=False)) / "config.toml"


def scenario_folders(path: Path | None = None) -> tuple[Path, ...]:
    """Return the folders of scenarios that the configuration names.

    Args:
        path: The file; None = the user's.

    Returns:
        They, relative ones taken from the file's folder; none where there is no file.

    Raises:
        UsageProblem: The file cannot be read, or ``scenarios`` is not a list of folders.
    """
    path = path or config_path()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror}", "check its permissions") from error
    import tomllib

    try:
        named = tomllib.loads(data.decode()).get("scenarios", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{path} is not TOML: {error}", "mend it") from error
    if not isinstance(named, list) or not all(isinstance(item, str) for item in named):
        raise UsageProblem(f"{path}: scenarios must be a list of folders", 'scenarios = ["~/ladders"]')
    return tuple(path.parent / Path(item).expanduser() for item in named)
