"""Waiting for other processes and threads: for what they bring about, never for a fixed time, never without end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Missed(AssertionError):
    """What was waited for did not come."""


def came(true: Callable[[], object], seconds: float) -> bool:
    """Wait until something is true; return whether it became so in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def until(true: Callable[[], object], what: str | Callable[[], str], seconds: float = 60.0) -> None:
    """Wait until something is true.

    Raises:
        Missed: It did not become so in time; the message is ``what``, asked for only then where it is a function.
    """
    if not came(true, seconds):
        raise Missed(f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}")


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a program as long as the block lasts: it is killed at its end, whatever failed there, if it goes on."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
