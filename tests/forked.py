"""Scripts that run in forks of one interpreter that has imported PyTorch: most of what a small script takes is that.

A script sees what it would see in a fresh interpreter with PyTorch imported by a ``sitecustomize``: its own arguments,
environment, folder and ``__main__``; and its process ends as any other does, except that nothing is freed at its end.
Not for what depends on when PyTorch is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_LIMIT_S = 120


class ForkedPython:
    """An interpreter that waits to be forked; each worker of the tests has at most one, which ends with it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, script: Path, *args: str, env: Mapping[str, str], cwd: Path) -> tuple[int, str, str]:
        """Run a script to its end; return its exit status, what it wrote, and its errors."""
        if self._process is None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = (cwd / f".{script.name}.{name}" for name in ("out", "err"))
        asked = {"argv": [str(script), *args], "env": dict(env), "cwd": str(cwd)}
        print(json.dumps({**asked, "out": str(out), "err": str(err)}), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], _LIMIT_S)[0]:
            os.killpg(self._process.pid, signal.SIGKILL)
            self.close()
            raise subprocess.TimeoutExpired([str(script), *args], _LIMIT_S, out.read_text(), err.read_text())
        status = int(self._process.stdout.readline())
        written = out.read_text(), err.read_text()
        out.unlink()
        err.unlink()
        return status, *written

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            with self._process:  # its input is closed, and it has ended
                self._process = None


def _serve() -> Sequence[str]:
    """Fork for each script that is asked for; in a fork, return its arguments."""
    atexit.register(_end)  # before all that others register, after which it is called
    import torch._dynamo  # noqa: F401 - which every optimizer imports

    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            for name, descriptor in (("out", 1), ("err", 2)):
                file = os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(file, descriptor)
                os.close(file)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            os.environ.clear()
            os.environ.update(asked["env"])
            os.chdir(asked["cwd"])
            return asked["argv"]  # type: ignore[no-any-return]
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    os._exit(0)


#: Exit status of the script; None = it has not ended yet, or Python is to end this process in its own way.
_status: int | None = None


def _end() -> None:
    """End this process once threads have ended and whatever is registered for the end has run.

    To free all that PyTorch has imported takes nine tenths of the time of a small script: each page is copied for it.
    """
    if _status is not None:
        with contextlib.suppress(OSError, ValueError):
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(_status & 0xFF)


def _main() -> None:
    global _status
    sys.argv = list(_serve())
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [path for path in paths if path]
    # Python of Debian and Ubuntu has one of its own, which the interpreter that forks has already run.
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        _status = 0
    except SystemExit as ended:
        _status = 0 if ended.code is None else ended.code if isinstance(ended.code, int) else 1
        raise
    except Exception:
        _status = 1
        raise


if __name__ == "__main__":
    _main()
