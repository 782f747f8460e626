"""Access to a host by ssh and rsync: the names of its sessions, their files, and sending requests.

A host's answers are not trusted: folder names must look like session names, links and special files are not copied,
and no answer determines a local path or becomes an option of a command.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tuiprof.errors import SessionError, UsageProblem

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
    """A host accessed by ssh.

    Attributes:
        host: Its name for ssh: ``[user@]host``.
        root: Folder of its sessions; empty = tuiprof's default there.
        ssh: The command, with options of the user's.
        control: Folder of the socket for shared connections; None = no sharing.
    """

    host: str
    root: str = ""
    ssh: tuple[str, ...] = ("ssh",)
    control: Path | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str, ssh: str = "ssh", control: Path | None = None) -> Remote:
        """Read ``[USER@]HOST[:FOLDER]``.

        Raises:
            UsageProblem: It is none.
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
        """Check that the required programs are installed here.

        Raises:
            UsageProblem: It is not.
        """
        for program in (self.ssh[0], "rsync"):
            if shutil.which(program) is None:
                package = _PACKAGES.get(program, program)
                raise UsageProblem(f"{program} is not installed", f"install it: apt install {package}")

    def sessions(self, name: str = "") -> list[str]:
        """Return the folders of its newest run, as full paths there; several where each process has one.

        Args:
            name: Name of the run; empty = whatever began last.

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

    def copy_logs(self, folder: str, into: Path) -> None:
        """Copy new data of the logs and the output.

        Raises:
            Unreached: It does not answer.
        """
        self._rsync(_GROWING, self._there(f"{folder}/"), f"{into}/")

    def copy_small(self, folder: str, into: Path) -> None:
        """Copy the session's metadata and status.

        Raises:
            Unreached: It does not answer.
        """
        self._rsync(_SMALL, self._there(f"{folder}/"), f"{into}/")

    def copy_files(self, folder: str, into: Path) -> None:
        """Copy the other files, such as traces.

        Raises:
            Unreached: It does not answer.
        """
        self._rsync(_REST, self._there(f"{folder}/"), f"{into}/")

    def send(self, files: Sequence[Path], folder: str) -> None:
        """Send request files.

        Raises:
            Unreached: It does not answer.
        """
        self._rsync((), *map(str, files), self._there(f"{folder}/control/"))

    def remove(self, names: Sequence[str], folder: str) -> None:
        """Delete request files on the host.

        Raises:
            Unreached: It does not answer.
        """
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

    def _there(self, path: str) -> str:
        return f"{self.host}:{path}"

    def _shell(self) -> list[str]:
        shared = (
            ()
            if self.control is None
            else (
                "-oControlMaster=auto",
                f"-oControlPath={self.control}/%C",
                "-oControlPersist=30",
            )
        )
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


_PACKAGES: Final = {"ssh": "openssh-client"}


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
        it for it in names if _base(it.partition("-")[2]) == name and _seconds(newest) - _seconds(it) <= 120
    ]


def _seconds(name: str) -> float:
    try:
        return datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:  # digits, but no time
        return 0.0
