"""Few threads in tuiprof's own processes; as many as the user likes in the scripts it launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuiprof.system.own_process import cores

_VARIABLES = ("OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has said how many threads there are to be."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


def _own_process(code: str, **environment: str) -> str:
    """Run code in a process that bounds its threads as the command line does; return what it prints."""
    code = f"from tuiprof.system.own_process import bound_threads\nbound_threads()\nimport os\n{code}"
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux lists them")
def test_numpy_starts_no_threads(unset: None) -> None:
    count = "import numpy; print(len(os.listdir('/proc/self/task')))"
    assert _own_process(count) == "1"
    if cores() > 1:  # what would be otherwise: else the test could not fail
        assert _own_process(count, OPENBLAS_NUM_THREADS="2") == "2"


def test_polars_starts_few_threads(unset: None) -> None:
    count = "import polars; print(polars.thread_pool_size())"
    # As if there were many cores, since the machine may have few.
    many = "os.sched_getaffinity = lambda pid: set(range(64))\nbound_threads()\n" + count
    assert _own_process(many) == "8"
    assert int(_own_process(count)) <= cores()
    assert _own_process(many, POLARS_MAX_THREADS="3") == "3"


def test_a_script_gets_the_users_environment(unset: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    said_here = f"{{name: os.environ[name] for name in {_VARIABLES!r} if name in os.environ}}"
    script.write_text(f"import json, os\nprint(json.dumps({said_here}))")
    record = [sys.executable, "-m", "tuiprof", "--sessions", str(tmp_path), "record", "--tee", "-q", "--"]
    for said in ({}, {"OPENBLAS_NUM_THREADS": "3"}):
        done = subprocess.run(
            [*record, "python", str(script)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **said},
        )
        told = next(line for line in done.stdout.splitlines() if line.startswith("{"))
        assert json.loads(told) == said


DECODED_AT_ONCE = """
import sys, threading
import msgspec
from tuiprof.system.described import described
sys.setswitchinterval(1e-6)
def decode(kind, together):
    together.wait()
    assert msgspec.json.decode(b'{"outer": {"inner": {"value": 1}}}', type=described(kind)).outer.inner.value == 1
for _ in range(100):
    inner = msgspec.defstruct("Inner", [("value", int, 0), ("more", dict[str, float], {})])
    outer = msgspec.defstruct("Outer", [("inner", inner), ("several", list[inner], [])])
    kind = msgspec.defstruct("Kind", [("outer", outer), ("named", dict[str, outer], {})])
    together = threading.Barrier(4)
    threads = [threading.Thread(target=decode, args=(kind, together)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_threads_may_decode_a_type_for_the_first_time_at_once() -> None:
    """Without its description, msgspec ends the process (SIGSEGV) in most runs."""
    done = subprocess.run(
        [sys.executable, "-c", DECODED_AT_ONCE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
