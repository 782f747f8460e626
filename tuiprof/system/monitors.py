"""Monitor programs: where they are, and the JSON objects that they print."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

_TOOLS: Final = "/opt/aws/neuron/bin"  # where aws-neuronx-tools puts them, often outside PATH


def find_tool(name: str) -> str | None:
    """Return the path of a Neuron tool, for example ``neuron-monitor``."""
    return shutil.which(name) or shutil.which(name, path=_TOOLS)


#: A longer document is not a report.
_MAX_BYTES = 16 << 20


def documents(lines: Iterable[bytes], said: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """Decode a stream of JSON objects, one a line or pretty-printed over several, in order.

    One that is cut off or damaged is left out; the next one counts again. ``said`` is called with every line that
    belongs to no document (messages of the program).
    """
    pending: list[bytes] = []
    size = 0
    for line in lines:
        text = line.strip()
        inside = pending and not line.startswith(b"{")  # an object on a line of its own, within one
        if (
            not inside
            and text.startswith(b"{")
            and text.endswith(b"}")
            and (whole := _object(text)) is not None
        ):
            pending, size = [], 0
            yield whole
        elif line.startswith(b"{"):
            pending, size = [line], len(line)
        elif pending:
            pending.append(line)
            size += len(line)
            if line.startswith(b"}") and (whole := _object(b"".join(pending))) is not None:
                yield whole
            if line.startswith(b"}") or size > _MAX_BYTES:
                pending, size = [], 0
        elif text and said is not None:
            said(text.decode("utf-8", "replace"))


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # damaged, not UTF-8, a number without end, or nested beyond sense
        return None
    return value if isinstance(value, dict) else None


class JsonStream:
    """Runs a program and hands over each document it prints; raises OSError if the program cannot be started."""

    def __init__(self, argv: list[str], take: Callable[[dict[str, Any]], None]) -> None:
        self._take = take
        self._said = ""
        self._arrived = threading.Event()
        self._arrived_at: float | None = None
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C in the terminal is not meant for it
        )
        self._thread = threading.Thread(target=self._read, name=f"read {argv[0]}", daemon=True)
        self._thread.start()

    def wait_first(self, timeout_s: float) -> bool:
        """Wait for the first document, or for the end of the program; return whether a document arrived."""
        self._arrived.wait(timeout_s)
        return self._arrived_at is not None

    @property
    def age_s(self) -> float | None:
        """Seconds since the last document; None before the first."""
        return None if self._arrived_at is None else time.monotonic() - self._arrived_at

    @property
    def ended(self) -> str:
        """How the program ended, with the last thing it said; empty while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        return f"ended with status {code}" + (f": {self._said[:200]}" if self._said else "")

    def close(self) -> None:
        """End the program."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._thread.join(timeout=1.0)
        if self._process.stdout is not None and not self._thread.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed under our feet while the program is ended
            for document in documents(self._process.stdout, self._hear):
                self._take(document)
                self._arrived_at = time.monotonic()
                self._arrived.set()
        with contextlib.suppress(subprocess.TimeoutExpired):  # so that `ended` can tell how it ended
            self._process.wait(timeout=1.0)
        self._arrived.set()

    def _hear(self, line: str) -> None:
        self._said = line
