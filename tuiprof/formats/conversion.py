"""Raw captures that another program converts to a supported format."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import TraceError

if TYPE_CHECKING:
    from tuiprof.formats.neuron.captures import Conversion


def possible(path: Path) -> Conversion | None:
    """Return how a capture can be converted on this machine."""
    from tuiprof.formats.neuron import captures
    from tuiprof.system.monitors import find_tool

    tool = find_tool("neuron-explorer")
    return captures.conversion(path, tool) if tool is not None and _is_capture(path) else None


def refuse(path: Path) -> None:
    """Return the command to run for a raw capture.

    Raises:
        TraceError: It is a raw capture; the remedy is the conversion command.
    """
    from tuiprof.formats.neuron import captures
    from tuiprof.system.monitors import find_tool

    if _is_capture(path):
        raise captures.refuse(path, find_tool("neuron-explorer"))


def _is_capture(path: Path) -> bool:
    from tuiprof.formats.neuron import captures
    from tuiprof.formats.registry import first_bytes
    from tuiprof.formats.source import open_source

    if path.is_dir():
        return captures.is_capture_directory(path)
    try:
        return captures.is_capture(first_bytes(open_source(path)), path)
    except TraceError:  # reported when it is read
        return False


def done_before(found: Conversion) -> bool:
    """Whether the capture was already converted and is unchanged since."""
    if not any(found.out.rglob("*.parquet")):
        return False
    made = found.out.stat().st_mtime
    return all(file.stat().st_mtime <= made for file in found.out.parent.iterdir() if file.is_file())


def convert(found: Conversion, say: Callable[[str], None]) -> Path:
    """Convert a capture and return the directory that can be opened.

    Raises:
        TraceError: The program could not be started, failed, or wrote nothing.
    """
    last = ""
    try:
        with subprocess.Popen(
            found.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.strip():
                        last = line.strip()
                        say(last)
            except BaseException:  # interrupted by the user
                process.terminate()
                raise
    except OSError as error:
        raise TraceError(f"{found.command[0]} could not be started: {error.strerror}") from error
    if process.returncode:
        said = f": {last}" if last else ""
        raise TraceError(
            f"{found.command[0]} failed with status {process.returncode}{said}",
            "it may be older than the capture: upgrade aws-neuronx-tools",
        )
    if not found.out.exists():
        raise TraceError(f"{found.command[0]} succeeded but did not write {found.out}")
    return found.out
