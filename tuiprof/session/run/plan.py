"""Messages between launcher and supervisor, through the supervisor's stdin and a pipe."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """What to execute.

    Attributes:
        command: Program (absolute) and arguments.
        cwd: Where.
        env: The whole environment.
        patience_s: When stopped: time from the first signal to SIGTERM, and from there to SIGKILL.
        stdin: File descriptor, open in the supervisor, that the script reads as its standard input; None = nothing.
        ignored: Signals that the script begins with ignoring, as it would without tuiprof, for example under ``nohup``.
    """

    command: list[str]
    cwd: str
    env: dict[str, str]
    patience_s: tuple[float, float]
    stdin: int | None = None
    ignored: list[int] = []


class Reply(msgspec.Struct, frozen=True):
    """Whether the script runs.

    Attributes:
        error: What is wrong; empty = it runs.
        remedy: What to do about it.
        of_session: The fault is the session directory's, not the script's.
    """

    error: str = ""
    remedy: str = ""
    of_session: bool = False
