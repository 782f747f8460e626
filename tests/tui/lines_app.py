"""What the tests of single widgets share: an application around one, and reading what is on it."""

from __future__ import annotations

from textual.app import App, ComposeResult

from tuiprof.tui.widgets.lines import Lines


class Host(App[None]):
    CSS_PATH = "../../tuiprof/tui/app.tcss"

    def __init__(self, widget: Lines) -> None:
        super().__init__()
        self.widget = widget

    def get_theme_variable_defaults(self) -> dict[str, str]:
        from tuiprof.tui.terminal.themes import DEFAULTS

        return dict(DEFAULTS)

    def compose(self) -> ComposeResult:
        yield self.widget


def text_of_widget(widget: Lines) -> list[str]:
    return ["".join(segment.text for segment in widget.render_line(y)) for y in range(widget.size.height)]
