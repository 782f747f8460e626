"""Every error a user can meet, in one tree.

::

    TuiprofError            has a message, a remedy and an exit code
    ├── UsageProblem        2   the command line names something that does not exist
    ├── TraceError          3   a trace cannot be read
    ├── SessionError        4   a session directory cannot be read or written
    └── LaunchError         5   the script could not be started
"""

from __future__ import annotations

import os

#: What to do about a defect of tuiprof, or of what somebody added to it.
REPORT_IT = "please report this line, with the file if you can; everything else still works"


class TuiprofError(Exception):
    """What is wrong, where, and what to do about it.

    Args:
        message: What is wrong and where, one sentence.
        remedy: What to do, one sentence or a command; may be empty.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        """Return message and remedy in one line."""
        return f"{self.message} — {self.remedy}" if self.remedy else self.message


def describe(error: BaseException) -> str:
    """Return what a defect raised, and where: ``ZeroDivisionError: division by zero (kernels.py:123)``."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno})" if frame else ""
    said = " ".join(str(error).split())[:300]
    return type(error).__name__ + (f": {said}" if said else "") + where


class UsageProblem(TuiprofError):
    """The command line names something that does not exist."""

    exit_code = 2


class TraceError(TuiprofError):
    """A trace cannot be read."""

    exit_code = 3


class SessionError(TuiprofError):
    """A session directory cannot be read or written."""

    exit_code = 4


class LaunchError(TuiprofError):
    """The script could not be started."""

    exit_code = 5
