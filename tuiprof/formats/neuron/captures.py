"""Raw captures of Neuron devices: private binary formats, and the command that turns them into what is read here."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from tuiprof.errors import TraceError

#: Parts of a system capture; the first two are required.
_SYSTEM: Final = ("ntrace.pb", "trace_info.pb", "cpu_util.pb", "host_mem.pb")
#: A NEFF's header: two 64-bit versions' worth of fields, the second of which is its own length, 1024.
_NEFF_HEADER_SIZE: Final = (1024).to_bytes(8, "little")


def is_capture(head: bytes, path: Path) -> bool:
    """Tell whether a file is a raw capture or a compiled program.

    Args:
        head: Its first bytes.
        path: The file.
    """
    if path.suffix in (".ntff", ".neff") or path.name.endswith(_SYSTEM):
        return True
    return head[:2] == b"\x02\x00" and head[8:16] == _NEFF_HEADER_SIZE


def is_capture_directory(path: Path) -> bool:
    """Tell whether a directory holds a raw capture.

    Args:
        path: The directory.
    """
    return (path / "ntrace.pb").exists() or any(path.glob("*.ntff"))


def refuse(path: Path, tool: str | None) -> TraceError:
    """Return the error that says what to run.

    Args:
        path: The capture: a file, or the directory it lies in.
        tool: Path of ``neuron-explorer``; None = not installed.
    """
    program = tool or "neuron-explorer"
    where = "" if tool else " (neuron-explorer is in aws-neuronx-tools; it runs without a Neuron device)"
    folder = path if path.is_dir() else path.parent
    out = folder / "explorer"
    then = f", then open {out}{where}"
    if path.suffix == ".ntff":
        what = "a raw Neuron device trace (NTFF)"
        command = _view(program, _partner(path, ".neff"), path, out)
    elif path.suffix == ".neff" or (path.is_file() and not path.name.endswith(_SYSTEM)):
        what = "a compiled Neuron program (NEFF), not a trace"
        capture = next(iter(sorted(folder.glob("*.ntff"))), None)
        if capture is None:
            run = shlex.join([program, "capture", "-n", str(path), "-s", str(folder / "profile.ntff")])
            return TraceError(f"{path} is {what}", f"record one on a Neuron device: {run}{where}")
        command = _view(program, path, capture, out)
    else:
        what = "a raw Neuron capture"
        command = shlex.join(
            [program, "view", "-d", str(folder), "--output-format", "parquet", "--output-file", str(out)]
        )
    return TraceError(f"{path} is {what}", f"run: {command}{then}")


def _view(program: str, neff: Path, ntff: Path, out: Path) -> str:
    arguments = [
        "view",
        "-n",
        str(neff),
        "-s",
        str(ntff),
        "--output-format",
        "parquet",
        "--output-file",
        str(out),
    ]
    return shlex.join([program, *arguments])


def _partner(path: Path, suffix: str) -> Path:
    """Return the program a capture belongs to: of the same name, of the same model id, or the only one there."""
    same = path.with_suffix(suffix)
    model = path.parent / f"neff_{path.name.partition('_')[0]}{suffix}"
    others = sorted(path.parent.glob(f"*{suffix}"))
    for candidate in (same, model):
        if candidate.exists():
            return candidate
    return others[0] if len(others) == 1 else same
