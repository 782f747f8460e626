"""A script in a fork ends as it does in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ForkedPython


@pytest.mark.parametrize(
    "script",
    [
        "print('done', end='')",
        "raise ValueError('no')",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('no')",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(print, 'last'); print('first'); raise SystemExit(-1)",
        "import threading; threading.Timer(0.05, print, ['late']).start()",
        "import os, sys\nif os.fork() == 0: sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
    ],
)
def test_status_and_output_are_those_of_an_interpreter(
    script: str, forked: ForkedPython, tmp_path: Path
) -> None:
    path = tmp_path / "script.py"
    path.write_text(script)
    alone = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    status, out, err = forked.run(path, env=os.environ, cwd=tmp_path)
    assert (status, out) == (alone.returncode, alone.stdout)
    assert set(alone.stderr.splitlines()[-1:]) <= set(err.splitlines())
