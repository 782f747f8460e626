"""Collecting: growing copies of other hosts' session folders, with requests sent back.

Each host has two threads: one for logs, which a screen follows, and one for large files. A host that does not answer
is retried without delaying the others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tuiprof.errors import SessionError, TuiprofError
from tuiprof.model.units import format_bytes
from tuiprof.session.collecting.remote import Remote, Unreached
from tuiprof.session.store.folders import Session
from tuiprof.session.store.status import (
    COLLECTED_FILE,
    STOP_FILE,
    Collected,
    last_end,
    read_collected,
    write_collected,
)
from tuiprof.system import process
from tuiprof.system.files import explain

#: Minimum pause before retrying a host that did not answer, s.
_AGAIN_S: Final = 5.0
#: Interval of checks for a newer run on a host, s.
_NEWER_S: Final = 10.0
_REQUESTS: Final = ("capture-*.json", "trigger-*.json", "stacks-*.json", "steps-*.json", STOP_FILE)

Say = Callable[[str], None]


class Copy:
    """One session folder of another host, and its copy here.

    Args:
        remote: The host.
        folder: The session's folder there.
        root: Folder of the sessions here.

    Attributes:
        path: The copy.
        over: Its recorder has ended and everything has been copied.

    Raises:
        SessionError: The path of the copy exists and is not a copy.
    """

    def __init__(self, remote: Remote, folder: str, root: Path) -> None:
        self.remote = remote
        self.folder = folder
        self.path = root / f"{folder.rpartition('/')[2]}.{remote.name}"
        self.over = False
        self._sent: dict[str, int] = {}
        before = read_collected(self.path)
        if os.path.lexists(self.path) and (
            before is None or (before.host, before.folder) != (remote.host, folder) or self.path.is_symlink()
        ):
            raise SessionError(
                f"{self.path} is not a copy of {remote.host}:{folder}",
                "move it, or collect into another --sessions",
            )
        if before is not None and before.goes_on and before.collector != process.identify(os.getpid()):
            raise SessionError(
                f"{self.path} is already being collected", "a session can have only one collector"
            )
        try:
            for name in ("", "log", "control", "traces"):
                (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, self.path, "create") from error

    def copy_logs(self) -> None:
        """Copy new data of the logs, and send requests."""
        self.remote.copy_logs(self.folder, self.path)
        self._send_requests()

    def copy_files(self) -> bool:
        """Copy the other files; return whether these were the last, because the recorder has ended."""
        ended = last_end(Session(self.path), "recorder") is not None
        if ended:  # files written just before the end may have been missed
            self.remote.copy_logs(self.folder, self.path)
        self.remote.copy_small(self.folder, self.path)
        self.remote.copy_files(self.folder, self.path)
        self.over = ended
        return ended

    def tell(self, every_s: float, problem: str = "", *, ended: bool = False) -> None:
        """Store in the copy that it is collected, or why it is not."""
        before = read_collected(self.path)
        reached_ns = before.unix_ns if before is not None and problem else time.time_ns()
        own = None if ended else process.identify(os.getpid())
        write_collected(
            self.path,
            Collected(
                self.remote.host, self.folder, reached_ns, every_s, problem, own, process.pid_namespace()
            ),
        )

    def _send_requests(self) -> None:
        found = {
            path: path.stat().st_mtime_ns
            for pattern in _REQUESTS
            for path in (self.path / "control").glob(pattern)
            if path.is_file() and not path.is_symlink()
        }
        new = [path for path, changed in found.items() if self._sent.get(path.name) != changed]
        if new:
            self.remote.send(new, self.folder)
            self._sent.update((path.name, found[path]) for path in new)
        gone = [name for name in self._sent if name not in {path.name for path in found}]
        if gone:  # a trigger was disarmed
            self.remote.remove(gone, self.folder)
            for name in gone:
                del self._sent[name]


class Collector:
    """Collects from several hosts until their runs are over.

    Args:
        remotes: The hosts.
        root: Folder of the sessions here.
        say: Called with progress messages, one line each, from several threads.
        name: Name of the run; empty = the newest on each host.
        every_s: Pause between two copies, s.
        once: Copy the current state and return.

    Attributes:
        copies: What is collected, by host.
    """

    def __init__(
        self,
        remotes: Sequence[Remote],
        root: Path,
        say: Say,
        *,
        name: str = "",
        every_s: float = 2.0,
        once: bool = False,
    ) -> None:
        self._remotes, self._root, self._say = remotes, root, say
        self._name, self._every_s, self._once = name, every_s, once
        self._stopped = threading.Event()
        self.error: TuiprofError | None = None
        self.copies: dict[str, list[Copy]] = {remote.host: [] for remote in remotes}

    def run(self) -> None:
        """Collect; returns when the runs are over on all hosts, or :meth:`stop` was called.

        Raises:
            UsageProblem: ssh or rsync is not installed.
            SessionError: A copy cannot be written.
        """
        for remote in self._remotes:
            remote.check()
        threads = [
            threading.Thread(target=work, args=(remote,), daemon=True)
            for remote in self._remotes
            for work in (self._logs, self._files)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that signals are handled
        for copies in self.copies.values():
            for copy in copies:
                copy.tell(self._every_s, ended=True)
        for remote in self._remotes:
            remote.close()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop collecting."""
        self._stopped.set()

    def _logs(self, remote: Remote) -> None:
        """Find a host's sessions and follow their logs (in a thread)."""
        looked_s, problem = -_NEWER_S, ""
        while not self._stopped.is_set():
            copies = self.copies[remote.host]
            try:
                if time.monotonic() - looked_s >= _NEWER_S:
                    self._find(remote)
                    looked_s = time.monotonic()
                for copy in copies:
                    if not copy.over:
                        copy.copy_logs()
                        copy.tell(self._every_s)
                if problem:
                    self._say(f"{remote.host}: reached again")
                problem = ""
            except Unreached as error:
                if self._stopped.is_set():  # Ctrl+C reaches ssh as well
                    return
                for copy in copies:
                    copy.tell(self._every_s, error.message)
                if self._once:
                    self.error = error
                    return
                if str(error) != problem:
                    self._say(f"{error}; retrying every {max(self._every_s, _AGAIN_S):g} s")
                problem = str(error)
            except TuiprofError as error:  # retrying does not help
                self.error = error
                self._stopped.set()
                return
            if not problem and (self._once or self._all_over()):
                return
            self._stopped.wait(max(self._every_s, _AGAIN_S) if problem else self._every_s)

    def _find(self, remote: Remote) -> None:
        """Start collecting the sessions of a host's newest run."""
        copies = self.copies[remote.host]
        known = {copy.folder for copy in copies}
        for folder in remote.sessions(self._name):
            if folder not in known:
                copy = Copy(remote, folder, self._root)
                remote.copy_small(folder, copy.path)
                copy.tell(self._every_s)
                copies.append(copy)
                self._say(f"{remote.host}: collecting {folder} into {copy.path}")
        if not copies:
            name = f" named {self._name}" if self._name else ""
            raise Unreached(f"{remote.host} has no session{name} yet")

    def _files(self, remote: Remote) -> None:
        """Copy a host's other files (in a thread)."""
        while True:
            last = self._stopped.is_set()
            for copy in self.copies[remote.host]:
                if copy.over:
                    continue
                try:
                    if copy.copy_files():
                        self._say(
                            f"{remote.host}: {copy.path.name} has ended, {format_bytes(_size(copy.path))}"
                        )
                except Unreached:
                    continue  # the logs' thread reports it
                except TuiprofError as error:
                    self.error = error
                    self._stopped.set()
            done = self._once and self.copies[remote.host]
            if last or done or self.error is not None or self._all_over():
                return
            self._stopped.wait(self._every_s)

    def _all_over(self) -> bool:
        """Whether the runs are over on all hosts; until then a newer one may begin on each."""
        return all(copies and all(copy.over for copy in copies) for copies in self.copies.values())


def _size(folder: Path) -> int:
    return sum(
        path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != COLLECTED_FILE
    )
