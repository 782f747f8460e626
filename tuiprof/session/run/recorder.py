"""Samples the devices while a script runs and appends the readings to the session's log; also reads the git state."""

from __future__ import annotations

import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Final

from tuiprof import telemetry
from tuiprof.errors import TuiprofError
from tuiprof.session.log import Cost, LogWriter, Note, Printed, Telemetry
from tuiprof.session.run.output_pipes import OutputPipes
from tuiprof.session.store.meta import DeviceMeta, Git, SessionMeta, write_meta
from tuiprof.system.files import size_of
from tuiprof.telemetry import visible

#: Interval between readings.
PERIOD_S: Final = 0.5
#: If reading is slow (many devices or processes), the interval grows until reading takes at most this share of a core.
CPU_BUDGET: Final = 0.02
#: Maximum interval.
LONGEST_PERIOD_S: Final = 5.0
_COST_EVERY: Final = 10
#: The size of the output is logged when it has changed and every n readings, so that a reader never has to go far back.
_PRINTED_EVERY: Final = 120


class Recorder:
    """A thread that samples all telemetry backends, whose readings go to the recorder's log.

    A backend that fails is reported in a note and closed; the others continue. All times are monotonic. Devices and git
    state are added to the session's metadata. The CPU time of the writer of ``output`` counts as the recorder's.
    """

    def __init__(
        self,
        path: Path,
        meta: SessionMeta,
        log: LogWriter,
        root_pid: int,
        env: Mapping[str, str],
        backends: Callable[[], Mapping[str, telemetry.Backend]] = telemetry.backends,
        output: OutputPipes | None = None,
    ) -> None:
        self._path = path
        self._meta = meta
        self._log = log
        self._root_pid = root_pid
        self._env = env
        self._backends = backends
        self._output = output
        self._sources: dict[str, telemetry.Source] = {}
        self._printed = (0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop after one last reading."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        started_ns = time.thread_time_ns()
        self._open()
        self._describe()
        samples = 0
        due_s = time.monotonic()
        while True:
            last = self._stop.is_set()
            before_ns = time.thread_time_ns()
            self._sample()
            self._record_printed(again=samples % _PRINTED_EVERY == 0)
            samples += 1
            now_ns = time.thread_time_ns()
            if last or samples % _COST_EVERY == 1:
                writer_ns = self._output.cpu_ns if self._output is not None else 0
                self._log.write(Cost(time.monotonic_ns(), samples, now_ns - started_ns + writer_ns))
            if last:
                break
            period_s = min(LONGEST_PERIOD_S, max(PERIOD_S, (now_ns - before_ns) / 1e9 / CPU_BUDGET))
            # Do not catch up on readings missed by a suspended machine or a slow driver.
            due_s = max(due_s + period_s, time.monotonic())
            self._stop.wait(due_s - time.monotonic())
        for name in list(self._sources):
            self._close(name)

    def _open(self) -> None:
        try:
            found = self._backends()
        except Exception as error:  # noqa: BLE001 - a broken plug-in must not end the recording
            self._note("warn", f"telemetry is off: {_message(error)}")
            return
        for name, backend in found.items():
            try:
                source = backend.open(self._root_pid)
                if isinstance(source, telemetry.Absent):
                    self._meta.absent[name] = source.reason
                    continue
                devices = source.devices()
                chosen = visible(devices, self._env)
                self._meta.devices += [_device_meta(device, chosen) for device in devices]
                self._sources[name] = source
            except Exception as error:  # noqa: BLE001 - drivers raise any exception
                self._meta.absent[name] = _message(error)
                self._note("warn", f"telemetry of {name} is off: {_message(error)}")

    def _describe(self) -> None:
        self._meta.git = git_state(Path(self._meta.cwd))
        try:
            write_meta(self._path, self._meta)
        except TuiprofError as error:
            self._note("warn", f"devices are not in session.json: {error.message}")

    def _sample(self) -> None:
        for name, source in list(self._sources.items()):
            try:
                readings = source.sample()
            except Exception as error:  # noqa: BLE001 - see above
                self._note("warn", f"telemetry of {name} stopped: {_message(error)}")
                self._close(name)
                continue
            at = time.monotonic_ns()
            for reading in readings:
                figures = {key: float(value) for key, value in reading.values.items() if math.isfinite(value)}
                self._log.write(Telemetry(at, reading.device, figures, dict(reading.text)))

    def _record_printed(self, *, again: bool) -> None:
        """Record the size of the output so far, if it has changed or ``again`` is set."""
        now = size_of(self._path / "stdout.log"), size_of(self._path / "stderr.log")
        if now != self._printed or again:
            self._printed = now
            self._log.write(Printed(time.monotonic_ns(), *now))

    def _close(self, name: str) -> None:
        try:
            self._sources.pop(name).close()
        except Exception as error:  # noqa: BLE001 - see above
            self._note("info", f"telemetry of {name} did not close: {_message(error)}")

    def _note(self, level: str, text: str) -> None:
        self._log.write(Note(time.monotonic_ns(), level, text))


def _device_meta(device: telemetry.Device, chosen: Set[str] | None) -> DeviceMeta:
    seen = None if chosen is None else device.key in chosen
    return DeviceMeta(device.key, device.kind, device.name, device.memory_bytes, dict(device.details), seen)


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def git_state(cwd: Path) -> Git | None:
    """Return the git state of a directory; None = not a checkout, git is not installed, or it is too slow."""
    try:
        commit = _git(cwd, "rev-parse", "HEAD")
        branch = _git(cwd, "rev-parse", "--abbrev-ref", "HEAD")
        dirty = bool(_git(cwd, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None
    return Git(commit, "" if branch == "HEAD" else branch, dirty)


def _git(cwd: Path, *arguments: str) -> str:
    # Without optional locks, which could make the user's own git commands fail.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(
        ("git", "-C", str(cwd), *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=5,
        env=environment,
    )
    return done.stdout.strip()
