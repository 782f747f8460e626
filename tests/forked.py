"""Scripts that run in forks of an interpreter that has imported a framework, which is most of what small ones take.

A script sees what it would see in a fresh interpreter with the framework imported by a ``sitecustomize``: its own
arguments, environment, folder and ``__main__``; and its process ends as any other does, except that nothing is freed at
its end. Not for what depends on when the framework is imported.

All workers of a run share the interpreter. Each has a fork of it, which runs one script after the other.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import site
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_LIMIT_S = 120


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Yield where an interpreter is asked; meanwhile none begins or ends."""
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / "socket"


class ForkedPython:
    """A fork of an interpreter that has imported a module, which waits to be forked.

    Args:
        folder: What all workers share; the interpreter is asked there.
        module: What it has imported.
    """

    def __init__(self, folder: Path, module: str) -> None:
        self._folder, self._module = folder, module
        self._socket: socket.socket | None = None

    def run(self, script: Path, *args: str, env: Mapping[str, str], cwd: Path) -> tuple[int, str, str]:
        """Run a script to its end; return its exit status, what it wrote, and its errors."""
        if self._socket is None:
            self._socket = self._connected()
            self._answers = self._socket.makefile()
            self._pid = int(self._answers.readline())
        out, err = (cwd / f".{script.name}.{name}" for name in ("out", "err"))
        asked = {"argv": [str(script), *args], "env": dict(env), "cwd": str(cwd)}
        self._socket.sendall(f"{json.dumps({**asked, 'out': str(out), 'err': str(err)})}\n".encode())
        if not select.select([self._socket], [], [], _LIMIT_S)[0]:
            os.killpg(self._pid, signal.SIGKILL)
            self.close()
            raise subprocess.TimeoutExpired([str(script), *args], _LIMIT_S, out.read_text(), err.read_text())
        status = int(self._answers.readline())
        written = out.read_text(), err.read_text()
        out.unlink()
        err.unlink()
        return status, *written

    def another(self) -> ForkedPython:
        """Return another fork of the same interpreter, for a script that runs meanwhile."""
        return ForkedPython(self._folder, self._module)

    def close(self) -> None:
        """End it."""
        if self._socket is not None:
            self._answers.close()
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        """Ask the interpreter for a fork, and begin one where there is none."""
        self._folder.mkdir(exist_ok=True)
        one = socket.socket(socket.AF_UNIX)
        with _locked(self._folder) as path:
            try:
                one.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                path.unlink(missing_ok=True)
                with socket.socket(socket.AF_UNIX) as waits:
                    waits.bind(str(path))
                    waits.listen()
                    subprocess.run(
                        [sys.executable, __file__, str(waits.fileno()), str(self._folder), self._module],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[waits.fileno()],
                        env={**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
                        check=True,
                    )
                one.connect(str(path))
        return one


def _serve(waits: socket.socket, folder: Path, module: str) -> Sequence[str]:
    """Fork for each worker that asks, until none is left; in the fork of a fork, return the arguments of a script."""
    if os.fork():  # the worker that begins it may end before the others
        os._exit(0)
    os.setsid()
    importlib.import_module(module)
    gc.collect()
    gc.freeze()
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    workers = set[int]()
    while True:
        if select.select([waits], [], [], 0.2)[0]:
            one = waits.accept()[0]
            workers.add(pid := os.fork())
            if pid == 0:
                waits.close()
                return _scripts(one)
            one.close()
        workers = {pid for pid in workers if os.waitpid(pid, os.WNOHANG) == (0, 0)}
        if not workers:
            with _locked(folder) as path:
                if not select.select([waits], [], [], 0)[0]:
                    path.unlink()
                    os._exit(0)


def _scripts(asks: socket.socket) -> Sequence[str]:
    """Fork for each script that is asked for; in a fork, return its arguments."""
    os.setsid()
    with asks.makefile("r") as lines, asks.makefile("w") as answers:
        print(os.getpid(), file=answers, flush=True)
        for line in lines:
            asked = json.loads(line)
            pid = os.fork()
            if pid == 0:
                break
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)
        else:
            os._exit(0)
    asks.close()
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    return asked["argv"]  # type: ignore[no-any-return]


#: Exit status of the script; None = it has not ended yet, or Python is to end this process in its own way.
_status: int | None = None


def _end() -> None:
    """End this process once threads have ended and whatever is registered for the end has run.

    To free all that was imported takes nine tenths of the time of a small script: each page is copied for it.
    """
    if _status is not None:
        with contextlib.suppress(OSError, ValueError):
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(_status & 0xFF)


def _main() -> None:
    global _status
    atexit.register(_end)  # before all that others register, after which it is called
    descriptor, folder, module = sys.argv[1:]
    with warnings.catch_warnings():
        sys.argv = list(_serve(socket.socket(fileno=int(descriptor)), Path(folder), module))
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
