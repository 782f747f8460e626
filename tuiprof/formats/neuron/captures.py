"""Raw captures of Neuron devices: private binary formats that ``neuron-explorer`` converts to profiles."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuiprof.errors import TraceError
from tuiprof.formats.registry import first_bytes
from tuiprof.formats.source import open_source
from tuiprof.system.monitors import find_tool

#: Parts of a system capture; the first two are required.
_SYSTEM: Final = ("ntrace.pb", "trace_info.pb", "cpu_util.pb", "host_mem.pb")
#: A NEFF's header: two 64-bit versions' worth of fields, the second of which is its own length, 1024.
_NEFF_HEADER_SIZE: Final = (1024).to_bytes(8, "little")

_TOOL: Final = "neuron-explorer"
_PROGRAM: Final = "a compiled Neuron program (NEFF), not a trace"


def is_capture(head: bytes, path: Path) -> bool:
    """Return whether a file is a raw capture or a compiled program."""
    if path.suffix in (".ntff", ".neff") or path.name.endswith(_SYSTEM):
        return True
    return head[:2] == b"\x02\x00" and head[8:16] == _NEFF_HEADER_SIZE


def is_capture_directory(path: Path) -> bool:
    """Return whether a directory contains a raw capture."""
    return (path / "ntrace.pb").exists() or any(path.glob("*.ntff"))


@dataclass(frozen=True, slots=True)
class Conversion:
    """The conversion of a raw capture."""

    what: str  # what the capture is
    command: tuple[str, ...]  # what to run
    out: Path  # the directory it writes


def possible(path: Path) -> Conversion | None:
    """Return how a capture can be converted on this machine; None if it is not a capture or the tool is missing."""
    return _conversion(path) if find_tool(_TOOL) and _is_capture_at(path) else None


def refuse(path: Path) -> None:
    """Raise a TraceError with the command that converts it if a path is a raw capture."""
    if _is_capture_at(path):
        raise refusal(path)


def refusal(path: Path) -> TraceError:
    """Return the error for a raw capture, with the command to run."""
    tool = find_tool(_TOOL)
    where = "" if tool else " (neuron-explorer is in aws-neuronx-tools; it runs without a Neuron device)"
    found = _conversion(path)
    if found is None:
        record = (tool or _TOOL, "capture", "-n", str(path), "-s", str(path.parent / "profile.ntff"))
        return TraceError(
            f"{path} is {_PROGRAM}", f"record one on a Neuron device: {shlex.join(record)}{where}"
        )
    return TraceError(
        f"{path} is {found.what}", f"run: {shlex.join(found.command)}, then open {found.out}{where}"
    )


def _is_capture_at(path: Path) -> bool:
    if path.is_dir():
        return is_capture_directory(path)
    try:
        return is_capture(first_bytes(open_source(path)), path)
    except TraceError:  # reported when it is read
        return False


def _conversion(path: Path) -> Conversion | None:
    """Return how to convert a capture, or its directory; None for a program without one next to it."""
    folder = path if path.is_dir() else path.parent
    out = folder / "explorer"
    if path.suffix == ".ntff":
        what, source = "a raw Neuron device trace (NTFF)", _of_device(_program_of(path), path)
    elif _is_program(path):
        capture = next(iter(sorted(folder.glob("*.ntff"))), None)
        if capture is None:
            return None
        what, source = _PROGRAM, _of_device(path, capture)
    else:
        what, source = "a raw Neuron capture", ("-d", str(folder))
    program = find_tool(_TOOL) or _TOOL
    command = (program, "view", *source, "--output-format", "parquet", "--output-file", str(out))
    return Conversion(what, command, out)


def _is_program(path: Path) -> bool:
    return path.suffix == ".neff" or (path.is_file() and not path.name.endswith(_SYSTEM))


def _of_device(neff: Path, ntff: Path) -> tuple[str, ...]:
    return "-n", str(neff), "-s", str(ntff)


def _program_of(path: Path) -> Path:
    """Return the program a capture belongs to: of the same name, of the same model id, or the only one there."""
    same = path.with_suffix(".neff")
    model = path.parent / f"neff_{path.name.partition('_')[0]}.neff"
    others = sorted(path.parent.glob("*.neff"))
    for candidate in (same, model):
        if candidate.exists():
            return candidate
    return others[0] if len(others) == 1 else same


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
