"""The box of a dialog."""

from __future__ import annotations

from textual.containers import Vertical
from textual.content import Content

from tuiprof.report.sanitize import sanitize


def dialog(title: str, classes: str = "dialog") -> Vertical:
    """Return the box; its title is text, never markup, as it may name a session or file.

    Args:
        title: What stands in its border.
        classes: Of the style sheet.
    """
    box = Vertical(classes=classes)
    box.border_title = Content(sanitize(title))
    return box
