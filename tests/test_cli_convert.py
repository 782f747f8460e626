"""Raw Neuron captures: converted by the vendor's program when the user says so, never without a word."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import real_traces
from tuiprof.cli import main

#: Writes what neuron-explorer would: a directory of Parquet tables, beside a line on stdout that tries an escape code.
_FAKE = """#!{python}
import sys
import polars as pl
from pathlib import Path
arguments = sys.argv[1:]
Path({log!r}).open("a").write(" ".join(arguments) + "\\n")
if {status}:
    print("NEFF version 9 is not supported")
    raise SystemExit({status})
print("\\x1b[2Jprocessing 1 of 1")
out = Path(arguments[arguments.index("--output-file") + 1])
out.mkdir()
pl.DataFrame(
    [{{"start_ts": 1500 * k, "end_ts": 1500 * k + 900, "duration_ns": 900, "engine": "Tensor", "opcode": "MATMUL",
       "pcore_idx": 0, "id": k}} for k in range(20)]
).write_parquet(out / "Instruction.parquet")
"""


class Machine:
    """A folder with a capture, and a PATH with or without the program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capture = folder / "capture" / "fused.ntff"
        self.capture.parent.mkdir()
        for ending in ("ntff", "neff"):
            shutil.copy(
                real_traces.path(f"neuron-fused-fp32-s512.{ending}"), folder / "capture" / f"fused.{ending}"
            )
        self.log = folder / "log"
        self._bin = folder / "bin"
        self._bin.mkdir()
        monkeypatch.setenv("PATH", f"{self._bin}:{os.environ['PATH']}")

    def install(self, status: int = 0) -> None:
        program = self._bin / "neuron-explorer"
        program.write_text(_FAKE.format(python=sys.executable, log=str(self.log), status=status))
        program.chmod(0o755)

    @property
    def runs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_without_the_program_the_command_is_said(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("open", "report"):
        assert main([verb, str(machine.capture), "--convert"]) == 3
        said = capsys.readouterr().err
        assert "neuron-explorer view -n" in said
        assert "aws-neuronx-tools" in said


def test_with_it_nothing_runs_unasked(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.install()
    assert main(["report", str(machine.capture)]) == 3  # nobody to ask: no terminal
    assert main(["report", str(machine.capture), "--no-convert"]) == 3
    assert "neuron-explorer view -n" in capsys.readouterr().err
    assert machine.runs == []


def test_convert_runs_it_once(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.install()
    assert main(["report", str(machine.capture), "kernels", "--convert"]) == 0
    said = capsys.readouterr()
    assert "MATMUL" in said.out
    assert "running" in said.err
    assert "␛[2Jprocessing 1 of 1" in said.err  # shown, and not obeyed
    out = machine.capture.parent / "explorer"
    capture = f"-n {machine.capture.with_suffix('.neff')} -s {machine.capture}"
    assert machine.runs == [f"view {capture} --output-format parquet --output-file {out}"]
    assert main(["report", str(machine.capture), "kernels"]) == 0
    assert "was converted before" in capsys.readouterr().err
    assert len(machine.runs) == 1


def test_a_program_that_fails_says_what_it_said(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.install(status=4)
    assert main(["report", str(machine.capture), "--convert"]) == 3
    assert "failed with status 4: NEFF version 9 is not supported" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "runs"), [("y", 1), ("n", 0), ("", 0)])
def test_on_a_terminal_it_asks(machine: Machine, answer: str, runs: int) -> None:
    machine.install()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tuiprof", "report", str(machine.capture), "kernels"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        said, deadline = b"", time.monotonic() + 60
        while b"[y/N]" not in said and time.monotonic() < deadline:
            said += os.read(ours, 4096)
        os.write(ours, f"{answer}\n".encode())
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the terminal is gone with the last who had it open
            pass
        assert process.stdout is not None
        out = process.stdout.read().decode()
    os.close(ours)
    assert b"--output-format parquet" in said
    assert len(machine.runs) == runs
    assert ("MATMUL" in out) == bool(runs)
    assert process.returncode == (0 if runs else 3)
