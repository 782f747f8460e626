"""Tells what went wrong in a worker: an answer that never comes must not look like one still to come."""

from __future__ import annotations

from textual.widget import Widget
from textual.worker import Worker, WorkerState


def tell_worker_error(widget: Widget, event: Worker.StateChanged) -> None:
    """Show the error of a worker that failed."""
    if event.state is WorkerState.ERROR:
        error = event.worker.error
        text = f"{type(error).__name__}: {error}. This is a bug of tuiprof: please report it with the trace."
        widget.notify(text, title="not worked out", severity="error", timeout=15)
