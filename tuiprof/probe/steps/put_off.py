"""An end of a step that is put off, as a call of the framework runs that has called back into Python."""

from __future__ import annotations

#: What the framework's state is where no such call runs.
NO_CALL = -1


def no_call() -> int:
    """Replacement for the framework's state if there is no framework."""
    return NO_CALL
