"""The command line in this process, where a process of its own would say no more: its start takes half a second."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tuiprof.cli import main


@dataclass(frozen=True)
class Said:
    """What a command line printed, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


def here(*args: str | Path, sessions: Path | None = None) -> Said:
    """Run the command line without a terminal and without colours."""
    env = {"NO_COLOR": "1"} | ({} if sessions is None else {"TUIPROF_SESSIONS": str(sessions)})
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with patch.dict(os.environ, env), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(map(str, args)))
    return Said(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]
