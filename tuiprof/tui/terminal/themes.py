"""tuiprof's themes, and which of them suits a terminal. Any other Textual theme works as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from textual.app import App
from textual.theme import BUILTIN_THEMES, Theme

from tuiprof.report import Colours, Terminal


def _phases(*colours: str) -> dict[str, str]:
    return {f"phase-{number}": colour for number, colour in enumerate(colours, 1)}


def _heat(*colours: str) -> dict[str, str]:
    """Return the backgrounds of the heat levels of tables."""
    return {f"heat-{level}": colour for level, colour in enumerate(colours, 1)}


DARK: Final = Theme(
    name="tuiprof-dark",
    primary="#6ea8fe",
    secondary="#7f8ea3",
    accent="#e8b45a",
    success="#7cc48a",
    warning="#e8b45a",
    error="#ef7e7e",
    foreground="#d5dae2",
    background="#0f1216",
    surface="#161a20",
    panel="#1d232b",
    dark=True,
    variables={
        "border": "#2f3844",
        "scrollbar": "#56708f",
        "primary-muted": "#1d3149",
        **_heat("#e8b45a 10%", "#e8b45a 22%", "#e8b45a 34%"),
        "lane-idle": "#f0cd8e",
        "lane-counter": "#9fb2c9",
        "lane-outside": "#5c6979",
        "lane-outside-style": "none",
        "block-cursor-background": "#26415f",
        "block-cursor-foreground": "#f2f5f9",
        "block-cursor-text-style": "bold",
        **_phases("#6ea8fe", "#7cc4c4", "#7cc48a", "#b79ae8", "#e0a37e", "#d4c26a"),
    },
)

LIGHT: Final = Theme(
    name="tuiprof-light",
    primary="#1f5fae",
    secondary="#5d6b7e",
    accent="#8f5a00",
    success="#27713a",
    warning="#8f5a00",
    error="#b3261e",
    foreground="#22272e",
    background="#fbfbf8",
    surface="#f1f1ec",
    panel="#e7e7e1",
    dark=False,
    variables={
        "border": "#c3c6c0",
        "scrollbar": "#71879f",
        "primary-muted": "#e0eaf8",
        **_heat("#8f5a00 7%", "#8f5a00 15%", "#8f5a00 24%"),
        "lane-idle": "#ad7200",
        "lane-counter": "#6f7f92",
        "lane-outside": "#8d928a",
        "lane-outside-style": "none",
        "block-cursor-background": "#cfe0f5",
        "block-cursor-foreground": "#10151b",
        "block-cursor-text-style": "bold",
        **_phases("#1f5fae", "#1c7a7a", "#27713a", "#6b4aa8", "#a4552a", "#7d6a00"),
    },
)

CONTRAST: Final = Theme(
    name="tuiprof-contrast",
    primary="#6cc6ff",
    secondary="#ffffff",
    accent="#ffd400",
    success="#5bff7f",
    warning="#ffd400",
    error="#ff8080",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#1a1a1a",
    dark=True,
    variables={
        "border": "#b0b0b0",
        "scrollbar": "#8c8c8c",
        "primary-muted": "#10344a",
        **_heat("#ffd400 14%", "#ffd400 26%", "#ffd400 38%"),
        "lane-idle": "#ffd400",
        "lane-counter": "#c8c8c8",
        "lane-outside": "#6e6e6e",
        "lane-outside-style": "none",
        "block-cursor-background": "#ffd400",
        "block-cursor-foreground": "#000000",
        "block-cursor-text-style": "bold",
        **_phases("#6cc6ff", "#5ff0f0", "#5bff7f", "#d9a8ff", "#ffb070", "#fff27a"),
    },
)

#: The terminal's default foreground and background.
_TERMINAL_DEFAULT: Final[Mapping[str, Any]] = {
    "ansi": True,
    "dark": True,
    **dict.fromkeys(("foreground", "background", "surface", "panel", "boost"), "ansi_default"),
}

#: The 16 ANSI colours on the terminal's background, which is black most often: dark red, blue, magenta and yellow
#: (which many terminals show as brown) are too faint for text on it.
SIXTEEN: Final = Theme(
    name="tuiprof-16",
    primary="ansi_bright_cyan",
    secondary="ansi_cyan",
    accent="ansi_bright_yellow",
    success="ansi_green",
    warning="ansi_bright_yellow",
    error="ansi_bright_red",
    **_TERMINAL_DEFAULT,
    variables={
        **BUILTIN_THEMES["ansi-dark"].variables,
        "surface-active": "ansi_blue",
        "primary-muted": "ansi_blue",
        **_heat("ansi_default", "ansi_default", "ansi_default"),
        "border": "ansi_bright_black",
        "block-cursor-background": "ansi_blue",
        "block-cursor-foreground": "ansi_bright_white",
        "block-cursor-text-style": "bold",
        "scrollbar": "ansi_cyan",
        "scrollbar-background": "ansi_default",
        "lane-idle": "ansi_bright_yellow",
        "lane-counter": "ansi_cyan",
        "lane-outside": "ansi_bright_black",
        "lane-outside-style": "none",
        **_phases(
            "ansi_bright_cyan",
            "ansi_bright_magenta",
            "ansi_green",
            "ansi_cyan",
            "ansi_bright_red",
            "ansi_bright_yellow",
        ),
    },
)

_NO_COLOUR: Final[Mapping[str, Any]] = {
    **_TERMINAL_DEFAULT,
    **dict.fromkeys(("primary", "secondary", "accent", "success", "warning", "error"), "ansi_default"),
}

#: No colours: only bold, dim and reverse. Every meaning of a colour also has a character.
MONO: Final = Theme(
    name="tuiprof-mono",
    **_NO_COLOUR,
    variables={
        **BUILTIN_THEMES["ansi-dark"].variables,
        "surface-active": "ansi_white",
        "primary-muted": "ansi_white",
        **_heat("ansi_default", "ansi_default", "ansi_default"),
        "border": "ansi_default",
        "block-cursor-background": "ansi_white",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-text-style": "bold",
        "scrollbar": "ansi_white",
        "scrollbar-background": "ansi_default",
        "lane-outside-style": "dim",
        **_phases(*["ansi_default"] * 6),
        **dict.fromkeys(("lane-idle", "lane-counter", "lane-outside"), "ansi_default"),
    },
)

OURS: Final = (DARK, LIGHT, CONTRAST, SIXTEEN, MONO)
_FOR: Final[dict[Colours, str]] = {"many": DARK.name, "16": SIXTEEN.name, "none": MONO.name}


def suited(terminal: Terminal) -> str:
    """Return the name of the theme for a terminal's capabilities."""
    return _FOR[terminal.colours]


def whole_name(name: str) -> str:
    """Return the name of a theme; those of tuiprof may be given without their prefix, for example ``light``."""
    return next((theme.name for theme in OURS if theme.name == f"tuiprof-{name}"), name)


#: Variables used in the style sheets that Textual's themes do not define.
DEFAULTS: Final = {
    key: value
    for key, value in DARK.variables.items()
    if key.startswith(("phase-", "lane-", "heat-")) or key == "border"
}


def begin_with(app: App[Any], theme: str) -> None:
    """Set the initial theme without parsing every style sheet twice, as setting it later would."""
    first = app.available_themes[theme]
    if not first.dark or first.ansi:  # these change more than variables
        app.theme = theme
        return
    app.set_reactive(App.theme, theme)
    app.stylesheet.set_variables(app.get_css_variables())
