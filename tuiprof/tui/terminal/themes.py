"""tuiprof's themes, and which of them suits a terminal. Any other Textual theme works as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from textual.app import App
from textual.theme import BUILTIN_THEMES, Theme

from tuiprof.report import Colours, Terminal

#: Colours of the dark, the light and the high-contrast theme.
_COLOURS: Final = {
    "primary": ("#6ea8fe", "#1f5fae", "#6cc6ff"),
    "secondary": ("#7f8ea3", "#5d6b7e", "#ffffff"),
    "accent": ("#e8b45a", "#8f5a00", "#ffd400"),
    "success": ("#7cc48a", "#27713a", "#5bff7f"),
    "warning": ("#e8b45a", "#8f5a00", "#ffd400"),
    "error": ("#ef7e7e", "#b3261e", "#ff8080"),
    "foreground": ("#d5dae2", "#22272e", "#ffffff"),
    "background": ("#0f1216", "#fbfbf8", "#000000"),
    "surface": ("#161a20", "#f1f1ec", "#000000"),
    "panel": ("#1d232b", "#e7e7e1", "#1a1a1a"),
}
_VARIABLES: Final = {
    "border": ("#2f3844", "#c3c6c0", "#b0b0b0"),
    "scrollbar": ("#56708f", "#71879f", "#8c8c8c"),
    "primary-muted": ("#1d3149", "#e0eaf8", "#10344a"),
    "heat-1": ("#e8b45a 10%", "#8f5a00 7%", "#ffd400 14%"),
    "heat-2": ("#e8b45a 22%", "#8f5a00 15%", "#ffd400 26%"),
    "heat-3": ("#e8b45a 34%", "#8f5a00 24%", "#ffd400 38%"),
    "lane-idle": ("#f0cd8e", "#ad7200", "#ffd400"),
    "lane-counter": ("#9fb2c9", "#6f7f92", "#c8c8c8"),
    "lane-outside": ("#5c6979", "#8d928a", "#6e6e6e"),
    "lane-outside-style": ("none", "none", "none"),
    "block-cursor-background": ("#26415f", "#cfe0f5", "#ffd400"),
    "block-cursor-foreground": ("#f2f5f9", "#10151b", "#000000"),
    "block-cursor-text-style": ("bold", "bold", "bold"),
    "phase-1": ("#6ea8fe", "#1f5fae", "#6cc6ff"),
    "phase-2": ("#7cc4c4", "#1c7a7a", "#5ff0f0"),
    "phase-3": ("#7cc48a", "#27713a", "#5bff7f"),
    "phase-4": ("#b79ae8", "#6b4aa8", "#d9a8ff"),
    "phase-5": ("#e0a37e", "#a4552a", "#ffb070"),
    "phase-6": ("#d4c26a", "#7d6a00", "#fff27a"),
}
_HEAT: Final = [key for key in _VARIABLES if key.startswith("heat-")]
_PHASES: Final = [key for key in _VARIABLES if key.startswith("phase-")]


def _coloured(column: int, name: str, *, dark: bool) -> Theme:
    colours: dict[str, Any] = {key: values[column] for key, values in _COLOURS.items()}
    return Theme(
        name, **colours, dark=dark, variables={key: values[column] for key, values in _VARIABLES.items()}
    )


DARK: Final = _coloured(0, "tuiprof-dark", dark=True)
LIGHT: Final = _coloured(1, "tuiprof-light", dark=False)
CONTRAST: Final = _coloured(2, "tuiprof-contrast", dark=True)

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
        **dict.fromkeys(_HEAT, "ansi_default"),
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
        "phase-1": "ansi_bright_cyan",
        "phase-2": "ansi_bright_magenta",
        "phase-3": "ansi_green",
        "phase-4": "ansi_cyan",
        "phase-5": "ansi_bright_red",
        "phase-6": "ansi_bright_yellow",
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
        "border": "ansi_default",
        "block-cursor-background": "ansi_white",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-text-style": "bold",
        "scrollbar": "ansi_white",
        "scrollbar-background": "ansi_default",
        "lane-outside-style": "dim",
        **dict.fromkeys(("lane-idle", "lane-counter", "lane-outside", *_HEAT, *_PHASES), "ansi_default"),
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
