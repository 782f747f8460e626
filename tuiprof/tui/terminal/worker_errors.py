"""Reports the failure of a worker, so that a result that never comes does not look pending."""

from __future__ import annotations

from textual.widget import Widget
from textual.worker import Worker, WorkerState


def tell_worker_error(widget: Widget, event: Worker.StateChanged) -> None:
    """Show the error of a worker that failed."""
    if event.state is WorkerState.ERROR:
        error = event.worker.error
        text = f"{type(error).__name__}: {error}. This is a bug of tuiprof: please report it with the trace."
        widget.notify(text, title="not worked out", severity="error", timeout=15)
