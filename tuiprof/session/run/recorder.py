"""Samples the devices while a script runs and appends the readings to the session; reads the state of its checkout."""

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
from tuiprof.telemetry import visible

#: Time between two readings.
PERIOD_S: Final = 0.5
#: Where reading is slow (many devices, many processes) the period grows until it takes at most this share …
CPU_BUDGET: Final = 0.02
#: … of one core, up to this period.
LONGEST_PERIOD_S: Final = 5.0
_COST_EVERY: Final = 10
#: The amount of output is logged when it changed, and every n readings, so that it is never far back.
_PRINTED_EVERY: Final = 120


class Recorder:
    """A thread that samples every telemetry backend.

    A backend that fails is named in a note and dropped; the others go on. All times are monotonic.

    Args:
        path: Session directory.
        meta: Its metadata; devices and git state are added and stored.
        log: Where to write.
        root_pid: Process tree of the script.
        env: The script's environment.
        backends: Telemetry backends by name; None = all there are.
        output: The pipes that the script prints into, emptied by a process that counts as part of the recorder.
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
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after one last reading."""
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
            # Missed beats (a suspended machine, a slow driver) are not made up for.
            due_s = max(due_s + period_s, time.monotonic())
            self._stop.wait(due_s - time.monotonic())
        for name in list(self._sources):
            self._close(name)

    def _open(self) -> None:
        try:
            found = self._backends()
        except Exception as error:  # noqa: BLE001 - a third party's broken backend must not end the recording
            self._note("warn", f"telemetry is off: {_said(error)}")
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
            except Exception as error:  # noqa: BLE001 - the drivers behind a backend raise what they like
                self._meta.absent[name] = _said(error)
                self._note("warn", f"telemetry of {name} is off: {_said(error)}")

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
            except Exception as error:  # noqa: BLE001 - see above: noted and dropped, never fatal
                self._note("warn", f"telemetry of {name} stopped: {_said(error)}")
                self._close(name)
                continue
            at = time.monotonic_ns()
            for reading in readings:
                figures = {key: float(value) for key, value in reading.values.items() if math.isfinite(value)}
                self._log.write(Telemetry(at, reading.device, figures, dict(reading.text)))

    def _record_printed(self, *, again: bool) -> None:
        """Record how much the script has printed so far."""
        sizes = []
        for name in ("stdout.log", "stderr.log"):
            try:
                sizes.append((self._path / name).stat().st_size)
            except OSError:  # not made yet
                sizes.append(0)
        now = (sizes[0], sizes[1])
        if now != self._printed or again:
            self._printed = now
            self._log.write(Printed(time.monotonic_ns(), *now))

    def _close(self, name: str) -> None:
        try:
            self._sources.pop(name).close()
        except Exception as error:  # noqa: BLE001 - see above
            self._note("info", f"telemetry of {name} did not close: {_said(error)}")

    def _note(self, level: str, text: str) -> None:
        self._log.write(Note(time.monotonic_ns(), level, text))


def _device_meta(device: telemetry.Device, chosen: Set[str] | None) -> DeviceMeta:
    seen = None if chosen is None else device.key in chosen
    return DeviceMeta(device.key, device.kind, device.name, device.memory_bytes, dict(device.details), seen)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def git_state(cwd: Path) -> Git | None:
    """Return the state of the checkout of a directory; None = none, git is not installed, or it takes more than a few
    seconds.
    """
    try:
        commit = _git(cwd, "rev-parse", "HEAD")
        branch = _git(cwd, "rev-parse", "--abbrev-ref", "HEAD")
        dirty = bool(_git(cwd, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None
    return Git(commit, "" if branch == "HEAD" else branch, dirty)


def _git(cwd: Path, *arguments: str) -> str:
    # Without optional locks, so that a git command of the user's never meets ours.
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
