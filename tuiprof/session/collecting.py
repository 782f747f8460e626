"""Collecting: growing copies of other hosts' session folders over ssh and rsync, with requests sent back.

Each host has two threads: one for logs, which a screen follows, and one for large files. A host that does not answer
is retried without delaying the others. Its answers are not trusted: folder names must look like session names, links
and special files are not copied, and no answer determines a local path or becomes an option of a command.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tuiprof.errors import SessionError, TuiprofError, UsageProblem
from tuiprof.model.units import format_bytes
from tuiprof.session.store.folders import Session, named_ns
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

#: A name, a number or an IPv6 address in brackets, but never something that ssh would parse as an option.
_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\])"
)
_SESSION: Final = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9._-]{1,100}")
#: No password prompts: several hosts are queried at once, repeatedly.
_SSH_OPTIONS: Final = (
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
)
#: Timeout of rsync without data, s.
_SILENT_S: Final = 30
_ANSWER_S: Final = 60.0
#: Maximum length of an answer or error, characters.
_LONGEST: Final = 1 << 16
_COPY: Final = (
    "--recursive",
    "--no-links",
    "--no-perms",
    "--chmod=ugo=rwX",
    "--protect-args",
    f"--timeout={_SILENT_S}",
)
#: Append-only files, of which only new data is sent.
_GROWING: Final = (
    "--append",
    "--include=/log/",
    "--include=/log/*.jsonl",
    "--include=/std*.log",
    "--exclude=*",
)
#: Small files, which may change without changing their size. From ``control`` only answers; requests go the other way.
_SMALL: Final = (
    "--ignore-times",
    "--include=/session.json",
    "--include=/control/",
    "--include=/control/process.json",
    "--include=/control/output.json",
    "--exclude=*",
)
#: Other files are written once. Local labels of the copy are kept.
_REST: Final = (
    "--size-only",
    "--exclude=/session.json",
    "--exclude=/control",
    "--exclude=/log",
    "--exclude=/std*.log",
    "--exclude=/views",
    "--exclude=/labels.json",
    "--exclude=/collected.json",
    "--exclude=*.tmp",
)


class Unreached(SessionError):
    """A host does not answer, or its answer is invalid."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A host accessed by ssh. Methods that access it raise :class:`Unreached` if it does not answer."""

    host: str  # its name for ssh: ``[user@]host``
    root: str = ""  # folder of its sessions; empty = tuiprof's default there
    ssh: tuple[str, ...] = ("ssh",)  # the command, with options of the user's
    #: Folder of the socket for shared connections; None = no sharing
    control: Path | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str, ssh: str = "ssh", control: Path | None = None) -> Remote:
        """Read ``[USER@]HOST[:FOLDER]``.

        Raises:
            UsageProblem: The text is not of this form, or ``ssh`` is not a command.
        """
        match = _HOST.match(text)
        rest = text[match.end() :] if match else ""
        if match is None or (rest and not rest.startswith(":")) or "\n" in rest or "\0" in rest:
            raise UsageProblem(
                f"{text!r} is not the name of a host", "for example node2, me@node2 or node2:/data/sessions"
            )
        try:
            command = tuple(shlex.split(ssh))
        except ValueError as error:
            raise UsageProblem(
                f"--ssh {ssh!r} cannot be read: {error}", "for example --ssh 'ssh -p 2222'"
            ) from error
        if not command:
            raise UsageProblem("--ssh is empty", "for example --ssh 'ssh -p 2222'")
        return cls(match[0], rest[1:], command, control)

    @property
    def name(self) -> str:
        """The host as a part of a file name."""
        return re.sub(r"[^A-Za-z0-9_-]+", "-", self.host.rpartition("@")[2]).strip("-")[:40] or "host"

    def check(self) -> None:
        """Check that the required programs are installed here; raises UsageProblem if one is not installed."""
        for program in (self.ssh[0], "rsync"):
            if shutil.which(program) is None:
                package = "openssh-client" if program == "ssh" else program
                raise UsageProblem(f"{program} is not installed", f"install it: apt install {package}")

    def sessions(self, name: str = "") -> list[str]:
        """Return the folders of its newest run (of this name), as full paths there; several where each process has one.

        Raises:
            Unreached: It does not answer, or its folder of sessions cannot be read.
        """
        where = (
            _quoted(self.root)
            or '"${TUIPROF_SESSIONS:-${XDG_DATA_HOME:-$HOME/.local/share}/tuiprof/sessions}"'
        )
        # The marker: what a login script of the host prints comes before it.
        script = f"cd {where} && echo && echo tuiprof-sessions && pwd -P && ls -1"
        answer = self._run([*self._shell(), "--", self._address, script])
        _, marker, listed = answer.partition("\ntuiprof-sessions\n")
        root, *names = listed.splitlines() or [""]
        if not marker or not root.startswith("/"):
            raise Unreached(
                f"{self.host} did not list its sessions", "check whether a login script there ends the shell"
            )
        found = sorted(it for it in names if _SESSION.fullmatch(it) and _fits(it, name))
        return [f"{root.rstrip('/')}/{it}" for it in _of_newest(found)]

    def copy(self, which: Sequence[str], folder: str, into: Path) -> None:
        """Copy files of a session: the growing ones, the small ones or the rest (options of rsync)."""
        self._rsync(which, f"{self.host}:{folder}/", f"{into}/")

    def send(self, files: Sequence[Path], folder: str) -> None:
        """Send request files."""
        self._rsync((), *map(str, files), f"{self.host}:{folder}/control/")

    def remove(self, names: Sequence[str], folder: str) -> None:
        """Delete request files on the host."""
        paths = " ".join(shlex.quote(f"{folder}/control/{name}") for name in names)
        self._run([*self._shell(), "--", self._address, f"rm -f -- {paths}"])

    def close(self) -> None:
        """End the shared connection."""
        if self.control is not None:
            command = [*self._shell(), "-O", "exit", "--", self._address]
            subprocess.run(command, capture_output=True, check=False, timeout=_ANSWER_S)

    @property
    def _address(self) -> str:
        """The host as ssh takes it: brackets around an IPv6 address are rsync's."""
        return self.host.replace("[", "").replace("]", "")

    def _shell(self) -> list[str]:
        if self.control is None:
            return [*self.ssh, *_SSH_OPTIONS]
        shared = ("-oControlMaster=auto", f"-oControlPath={self.control}/%C", "-oControlPersist=30")
        return [*self.ssh, *_SSH_OPTIONS, *shared]

    def _rsync(self, options: Sequence[str], *paths: str) -> None:
        self._run(["rsync", *_COPY, *options, "-e", shlex.join(self._shell()), "--", *paths], timeout_s=None)

    def _run(self, command: list[str], timeout_s: float | None = _ANSWER_S) -> str:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as error:
            raise Unreached(f"{self.host} did not answer within {_ANSWER_S:.0f} s") from error
        if done.returncode:
            raise Unreached(*self._why(done.returncode, done.stderr[-_LONGEST:].decode(errors="replace")))
        return done.stdout[:_LONGEST].decode(errors="replace")

    def _why(self, code: int, errors: str) -> tuple[str, str]:
        """Return the error and a remedy, from the output of the command."""
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        of_ssh = [line for line in lines if line.startswith("ssh:")]
        others = [
            line for line in lines if not line.startswith(("rsync error", "rsync: connection unex", "mux_"))
        ]
        silent = "the connection was lost" if lines else f"ended with status {code}"
        by_ssh = code == 255 or "(code 255)" in errors  # of ssh the last line is the reason
        said = (of_ssh or others[-1 if by_ssh else 0 :] or [silent])[0]
        if code == 127 or "rsync: command not found" in errors or "rsync: not found" in errors:
            return f"rsync is not installed on {self.host}", "install it there: apt install rsync"
        if "Permission denied" in said and "(" in said:
            return (
                f"{self.host} refuses: {said[:200]}",
                "set up a key, as passwords are not asked for: ssh-copy-id",
            )
        return f"{self.host}: {said[:200]}", ""


def _quoted(root: str) -> str:
    """Return a folder for a shell there; ``~`` is the home there. Empty = none is named."""
    if root == "~" or root.startswith("~/"):
        return f'"$HOME"{shlex.quote(root[1:]) if root[1:] else ""}'
    return shlex.quote(root) if root else ""


def _fits(folder: str, name: str) -> bool:
    named = folder.partition("-")[2]
    return (
        not named.startswith("ladder-")
        if not name
        else _base(named) == name or named == name or folder == name
    )


def _base(named: str) -> str:
    """Return a session's name without the number that distinguishes sessions of the same second."""
    return re.sub(r"-\d{1,4}$", "", named)


def _of_newest(names: Sequence[str]) -> list[str]:
    """Return those of sorted names that are parts of the newest run: of its name, begun within two minutes."""
    if not names:
        return []
    newest = names[-1]
    name = _base(newest.partition("-")[2])
    return [
        it for it in names if _base(it.partition("-")[2]) == name and named_ns(newest) - named_ns(it) <= 120e9
    ]


#: Minimum pause before retrying a host that did not answer, s.
_AGAIN_S: Final = 5.0
#: Interval of checks for a newer run on a host, s.
_NEWER_S: Final = 10.0
_REQUESTS: Final = ("capture-*.json", "trigger-*.json", "stacks-*.json", "steps-*.json", STOP_FILE)

Say = Callable[[str], None]


class Copy:
    """One session folder of another host, and its copy below ``root``.

    Raises:
        SessionError: The path of the copy exists and is not a copy.
    """

    def __init__(self, remote: Remote, folder: str, root: Path) -> None:
        self.remote = remote
        self.folder = folder
        self.path = root / f"{folder.rpartition('/')[2]}.{remote.name}"  # the copy
        self.over = False  # its recorder has ended and everything has been copied
        self._sent: dict[str, int] = {}
        before = read_collected(self.path)
        if os.path.lexists(self.path) and (
            before is None or (before.host, before.folder) != (remote.host, folder) or self.path.is_symlink()
        ):
            raise SessionError(
                f"{self.path} is not a copy of {remote.host}:{folder}",
                "move it, or collect into another --sessions",
            )
        if before is not None and before.is_collecting and before.collector != process.identify(os.getpid()):
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
        self.remote.copy(_GROWING, self.folder, self.path)
        self._send_requests()

    def copy_files(self) -> bool:
        """Copy the other files; return whether these were the last, because the recorder has ended."""
        ended = last_end(Session(self.path), "recorder") is not None
        if ended:  # files written just before the end may have been missed
            self.remote.copy(_GROWING, self.folder, self.path)
        self.remote.copy(_SMALL, self.folder, self.path)
        self.remote.copy(_REST, self.folder, self.path)
        self.over = ended
        return ended

    def store_state(self, every_s: float, problem: str = "", *, ended: bool = False) -> None:
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
    """Collects from several hosts until their runs are over, or ``once``; the newest run of each, or that of a name.

    ``say`` is called with progress messages, one line each, from several threads.
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
        #: What is collected, by host.
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
                copy.store_state(self._every_s, ended=True)
        for remote in self._remotes:
            remote.close()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop collecting."""
        self._stopped.set()

    def _logs(self, remote: Remote) -> None:
        """Find a host's sessions and follow their logs (in a thread)."""
        searched_s, problem = -_NEWER_S, ""
        while not self._stopped.is_set():
            copies = self.copies[remote.host]
            try:
                if time.monotonic() - searched_s >= _NEWER_S:
                    self._find(remote)
                    searched_s = time.monotonic()
                for copy in copies:
                    if not copy.over:
                        copy.copy_logs()
                        copy.store_state(self._every_s)
                if problem:
                    self._say(f"{remote.host}: reached again")
                problem = ""
            except Unreached as error:
                if self._stopped.is_set():  # Ctrl+C reaches ssh as well
                    return
                for copy in copies:
                    copy.store_state(self._every_s, error.message)
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
                remote.copy(_SMALL, folder, copy.path)
                copy.store_state(self._every_s)
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
