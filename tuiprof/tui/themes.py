"""The two themes of tuiprof, calm by default; any other theme of Textual works as well."""

from __future__ import annotations

from typing import Final

from textual.theme import Theme

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
        "block-cursor-background": "#26415f",
        "block-cursor-foreground": "#f2f5f9",
        "block-cursor-text-style": "bold",
        "phase-1": "#6ea8fe",
        "phase-2": "#7cc4c4",
        "phase-3": "#7cc48a",
        "phase-4": "#b79ae8",
        "phase-5": "#e0a37e",
        "phase-6": "#d4c26a",
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
        "block-cursor-background": "#cfe0f5",
        "block-cursor-foreground": "#10151b",
        "block-cursor-text-style": "bold",
        "phase-1": "#1f5fae",
        "phase-2": "#1c7a7a",
        "phase-3": "#27713a",
        "phase-4": "#6b4aa8",
        "phase-5": "#a4552a",
        "phase-6": "#7d6a00",
    },
)

#: What the style sheets use and other themes do not define.
DEFAULTS: Final = {
    key: value for key, value in DARK.variables.items() if key.startswith("phase-") or key == "border"
}
