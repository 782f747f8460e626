"""Runs small scripts under the probe alone, as the launcher does, and reads back what it wrote."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.forked import ForkedPython
    from tuiprof.session import log as records

INJECT = Path(__file__).resolve().parents[2] / "tuiprof" / "probe" / "inject"

#: Modes of a script that note every function of PyTorch and every operator that is called.
MODES = """
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
seen = []
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen.append(str(function))
        return function(*args, **(kwargs or {}))
"""


@dataclass
class Run:
    """A finished (or killed) script."""

    session: Path
    code: int
    out: str
    err: str
    logs: dict[str, list[records.Record]] = field(default_factory=dict)
    cut: dict[str, bytes] = field(default_factory=dict)

    def of(self, kind: type[Any], writer: str = "rank0") -> list[Any]:
        return [record for record in self.logs[writer] if type(record) is kind]

    def captures(self, identity: str) -> list[records.Capture]:
        from tuiprof.session import log as records

        return [record for record in self.of(records.Capture) if record.id == identity]

    def events(self, capture: records.Capture) -> list[dict[str, Any]]:
        """Return the events of the trace that PyTorch wrote."""
        with gzip.open(self.session / capture.path, "rt") as file:
            found: list[dict[str, Any]] = json.load(file)["traceEvents"]
        return found


def new_session(
    folder: Path, requests: Sequence[dict[str, Any]] = (), triggers: Sequence[dict[str, Any]] = ()
) -> Path:
    for name in ("log", "traces", "control"):
        (folder / name).mkdir(parents=True)
    for request in requests:
        (folder / "control" / f"capture-{request['id']}.json").write_text(json.dumps(request))
    for trigger in triggers:
        (folder / "control" / f"trigger-{trigger['id']}.json").write_text(json.dumps(trigger))
    return folder


def environment(session: Path, **more: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD", "SLURM"))}
    env |= {
        "TUIPROF_SESSION": str(session),
        "PYTHONPATH": str(INJECT),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }
    return env | more


def run_script(
    folder: Path,
    script: str,
    *args: str,
    how: Sequence[str] | None = None,
    python: str = sys.executable,
    flags: Sequence[str] = (),
    requests: Sequence[dict[str, Any]] = (),
    triggers: Sequence[dict[str, Any]] = (),
    cwd: Path | None = None,
    forked: ForkedPython | None = None,
    fails: bool = False,
    **more: str,
) -> Run:
    """Run a script in a session of its own below ``folder`` to its end, in place of its path with arguments ``how``.

    Its exit status has to be 0 unless it ``fails``. With ``forked`` it runs in a fork of that; ``more`` is put into its
    environment.
    """
    session = new_session(folder / f"session{len(list(folder.glob('session*')))}", requests, triggers)
    path = folder / "script.py"
    path.write_text(script)
    env = environment(session, **more)
    if forked is not None:
        ended = forked.run(path, *args, env=env, cwd=folder)
    else:
        command = [python, *flags, *(how if how is not None else [str(path)]), *args]
        done = subprocess.run(
            command, env=env, cwd=cwd or folder, capture_output=True, text=True, timeout=120
        )
        ended = done.returncode, done.stdout, done.stderr
    run = Run(session, *ended, *read(session))
    assert (run.code != 0) == fails, run.err
    return run


def read(session: Path) -> tuple[dict[str, list[records.Record]], dict[str, bytes]]:
    """Decode every line of every log with the session's own types; what follows the last newline is kept."""
    import msgspec  # not above: the tests on a GPU machine have only pytest and torch

    from tuiprof.session import log as records

    decode = msgspec.json.Decoder(records.Record, strict=True).decode
    logs, cut = {}, {}
    for path in sorted((session / "log").glob("*.jsonl")):
        *lines, rest = path.read_bytes().split(b"\n")
        logs[path.stem] = [decode(line) for line in lines]
        cut[path.stem] = rest
    return logs, cut
