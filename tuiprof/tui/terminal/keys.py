"""Key bindings: each has an id, a tooltip and a group, and can be remapped in ``config.toml``.

::

    theme = "tuiprof-light"

    [keys]
    "live.capture" = "c"            # one key
    "output.end" = "end,G"          # or several

The file is in the platform's user configuration directory, unless ``TUIPROF_CONFIG`` names another. The help (``?``)
lists the ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from textual.binding import Binding

from tuiprof import config
from tuiprof.errors import UsageProblem


def key(
    keys: str,
    action: str,
    label: str,
    tooltip: str,
    *,
    id: str,  # noqa: A002 - the name Textual uses
    group: str,
    show: bool = True,
    priority: bool = False,
    display: str | None = None,
) -> Binding:
    """Return a binding with everything that help, palette and configuration need."""
    return Binding(
        keys,
        action,
        label,
        show=show,
        priority=priority,
        tooltip=tooltip,
        id=id,
        group=Binding.Group(group),
        key_display=display,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's configuration."""

    keys: dict[str, str] = field(default_factory=dict)  # keys by binding id
    theme: str = ""  # empty = the default
    problems: tuple[str, ...] = ()  # error messages


def load_settings() -> Settings:
    """Read the user's configuration; errors in it are returned as problems."""
    path = config.config_path()
    try:
        content = config.read(path)
    except UsageProblem as error:
        return Settings(problems=(error.message,))
    problems = [f"{path}: unknown setting {name!r}" for name in content if name not in config.SETTINGS]
    keys: dict[str, str] = {}
    table = content.get("keys", {})
    if not isinstance(table, dict):
        problems.append(f"{path}: [keys] must be a table of binding ids and keys")
        table = {}
    for name, value in table.items():
        if isinstance(value, str) and value.strip():
            keys[name] = value
        else:
            problems.append(f'{path}: the key of {name!r} must be text such as "c" or "ctrl+s"')
    theme = content.get("theme", "")
    if not isinstance(theme, str):
        problems.append(f"{path}: theme must be the name of a theme")
        theme = ""
    return Settings(keys, theme, tuple(problems))
