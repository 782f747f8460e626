"""Raw captures of Neuron devices: private binary formats, and the command that converts them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuiprof.errors import TraceError

#: Parts of a system capture; the first two are required.
_SYSTEM: Final = ("ntrace.pb", "trace_info.pb", "cpu_util.pb", "host_mem.pb")
#: A NEFF's header: two 64-bit versions' worth of fields, the second of which is its own length, 1024.
_NEFF_HEADER_SIZE: Final = (1024).to_bytes(8, "little")

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


def conversion(path: Path, tool: str | None) -> Conversion | None:
    """Return how to convert a capture, or its directory; None for a program without one next to it."""
    program = tool or "neuron-explorer"
    folder = path if path.is_dir() else path.parent
    out = folder / "explorer"
    if path.suffix == ".ntff":
        what, source = "a raw Neuron device trace (NTFF)", _of_device(_partner(path, ".neff"), path)
    elif _is_program(path):
        capture = next(iter(sorted(folder.glob("*.ntff"))), None)
        if capture is None:
            return None
        what, source = _PROGRAM, _of_device(path, capture)
    else:
        what, source = "a raw Neuron capture", ("-d", str(folder))
    command = (program, "view", *source, "--output-format", "parquet", "--output-file", str(out))
    return Conversion(what, command, out)


def refuse(path: Path, tool: str | None) -> TraceError:
    """Return the error with the command to run."""
    where = "" if tool else " (neuron-explorer is in aws-neuronx-tools; it runs without a Neuron device)"
    found = conversion(path, tool)
    if found is None:
        record = (
            tool or "neuron-explorer",
            "capture",
            "-n",
            str(path),
            "-s",
            str(path.parent / "profile.ntff"),
        )
        return TraceError(
            f"{path} is {_PROGRAM}", f"record one on a Neuron device: {shlex.join(record)}{where}"
        )
    return TraceError(
        f"{path} is {found.what}", f"run: {shlex.join(found.command)}, then open {found.out}{where}"
    )


def _is_program(path: Path) -> bool:
    return path.suffix == ".neff" or (path.is_file() and not path.name.endswith(_SYSTEM))


def _of_device(neff: Path, ntff: Path) -> tuple[str, ...]:
    return "-n", str(neff), "-s", str(ntff)


def _partner(path: Path, suffix: str) -> Path:
    """Return the program a capture belongs to: of the same name, of the same model id, or the only one there."""
    same = path.with_suffix(suffix)
    model = path.parent / f"neff_{path.name.partition('_')[0]}{suffix}"
    others = sorted(path.parent.glob(f"*{suffix}"))
    for candidate in (same, model):
        if candidate.exists():
            return candidate
    return others[0] if len(others) == 1 else same
