"""A real script under ``tuiprof record``, and what campaigns ask of it: where it stands, what is left and lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import psutil

from tests.waiting import until
from tuiprof.session.live.fold import Fold
from tuiprof.session.live.replay import read_fold
from tuiprof.session.run import output_writer
from tuiprof.session.store.folders import Session, session_dirs
from tuiprof.session.store.status import processes

#: Says whose process it is: every process that a case starts inherits it.
_MARK = "TUIPROF_CAMPAIGN_CASE"

#: Trains until the file ``go`` is there, and five steps more. Each step is written down by the script itself.
SCRIPT = """
import os, sys, time
home = os.path.dirname(os.path.abspath(__file__))
steps = os.open(os.path.join(home, "steps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
{setup}
left, n = 5, 0
while left:
    {step}
    os.write(steps, b"%d %d\\n" % (n, time.monotonic_ns()))
    print("step", n)
    n += 1
    left -= os.path.exists(os.path.join(home, "go"))
print("ending")
sys.stdout.flush()
if os.path.exists(os.path.join(home, "slowly")):
    time.sleep(0.5)
with open(os.path.join(home, "done"), "w") as file:
    file.write(str(n))
"""
#: Steps by hand, so that a case takes a second.
PLAIN = SCRIPT.format(setup="import tuiprof", step="time.sleep(0.005); tuiprof.step(loss=1.0)")
#: Steps of PyTorch with a loader, whose profiler writes for a while.
TORCH = SCRIPT.format(
    setup="""import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(40)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(torch.utils.data.DataLoader(torch.zeros(1 << 20, 16), 8, num_workers=1))""",
    step="optimizer.zero_grad(); model(next(batches)).sum().backward(); optimizer.step()",
)


def alive(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class Recorded:
    """A script that is recorded.

    Args:
        folder: An empty folder for all of it.
        script: Its text, of :data:`SCRIPT`.
        options: Of ``tuiprof record``.
        root: Folder of sessions; None = below the folder.
        prefix: What the command is run by, e.g. a shell that ignores signals.
        env: More of the environment.

    Attributes:
        command: The process of ``tuiprof record``.
        env: The environment that marks its processes.
    """

    def __init__(
        self,
        folder: Path,
        script: str = PLAIN,
        options: tuple[str, ...] = ("--no-capture",),
        *,
        root: Path | None = None,
        prefix: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.root = root or folder / "sessions"
        self.env = {
            **os.environ,
            **(env or {}),
            _MARK: uuid.uuid4().hex,
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        path = folder / "train.py"
        path.write_text(script)
        verb = ["--sessions", str(self.root), "record", "-q", *options, "--", sys.executable, str(path)]
        with open(folder / "record.out", "wb") as out, open(folder / "record.err", "wb") as err:
            self.command = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tuiprof", *verb],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.env,
                start_new_session=True,
            )
        self._session: Session | None = None

    # -- where it stands -----------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """Its session, once it is made."""
        if self._session is None:
            until(
                lambda: session_dirs(self.root) and (session_dirs(self.root)[0] / "session.json").exists(),
                "a session",
            )
            self._session = Session(session_dirs(self.root)[0])
        return self._session

    @property
    def followed(self) -> bool:
        """Whether ``tuiprof record`` has opened its logs: it then knows how the run ends, even if they are deleted."""
        folder = str(self.session.path / "log")
        return any(file.path.startswith(folder) for file in psutil.Process(self.command.pid).open_files())

    @cached_property
    def supervisor(self) -> psutil.Process:
        """Its supervisor, once the script is started."""
        return self._process("supervisor")

    @cached_property
    def script(self) -> psutil.Process:
        """The script, once it is started."""
        return self._process("script")

    def _process(self, name: str) -> psutil.Process:
        def found() -> int | None:
            who = processes(self.session)
            one = getattr(who, name) if who is not None else None
            return one.pid if one is not None else None

        until(found, f"the {name}")
        pid = found()
        assert pid is not None
        return psutil.Process(pid)

    def one(self, word: str, of: psutil.Process | None = None) -> psutil.Process:
        """Return the process with a word in its command, among all of this case or among the children of one."""
        found: list[psutil.Process] = []

        def look() -> bool:
            those = of.children(recursive=True) if of is not None else self.processes()
            for process in those:
                with contextlib.suppress(psutil.Error):
                    if word in " ".join(process.cmdline()) and alive(process):
                        found.append(process)
            return bool(found)

        until(look, f"a process with {word!r}")
        return found[0]

    @property
    def writer(self) -> psutil.Process:
        """The process that writes the output."""
        return self.one(output_writer.__file__)

    @property
    def steps(self) -> int:
        """Steps that the script has made, by its own count."""
        return len(self.step_times())

    def step_times(self) -> list[int]:
        """Return when the script made its steps, monotonic ns."""
        try:
            lines = (self.folder / "steps").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [int(line.split()[1]) for line in lines]

    def until_steps(self, count: int) -> None:
        """Wait for so many more steps."""
        before = self.steps
        until(lambda: self.steps >= before + count, f"{count} more steps")

    def go(self) -> None:
        """Let the script come to its end."""
        (self.folder / "go").touch()

    @property
    def done(self) -> bool:
        """Whether the script came to its own end."""
        return (self.folder / "done").exists()

    # -- what is left --------------------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of this case, whatever became of their parents."""
        mark = f"{_MARK}={self.env[_MARK]}".encode()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                if mark in environment.split(b"\0") and alive(process):
                    found.append(process)
        return found

    def zombies(self) -> list[str]:
        """Return the ended children that a living process of tuiprof's does not collect, the script's left out."""
        found = []
        for parent in self.processes():
            if parent.pid == self.script.pid:
                continue
            with contextlib.suppress(psutil.Error):
                ended = [child for child in parent.children() if child.status() == psutil.STATUS_ZOMBIE]
                found += [f"{child.name()} of {parent.name()}" for child in ended]
        return found

    def fold(self) -> Fold:
        """Return what was recorded."""
        return read_fold(self.session)

    def lost_steps(self) -> int:
        """Return how many of the script's steps are not in the session."""
        lead = self.fold().lead
        return self.steps - (len(lead.steps) if lead is not None else 0)

    def lost_ms(self) -> float:
        """Return how much time at the end of the script is not in the session, milliseconds."""
        times, lost = self.step_times(), self.lost_steps()
        return (times[-1] - times[-1 - lost]) / 1e6 if 0 < lost < len(times) else 0.0

    def printed(self) -> list[str]:
        """Return the lines of the script's output that are missing, or were never printed."""
        stored = self.session.stdout.read_text().splitlines()
        wanted = [f"step {n}" for n in range(self.steps)]
        return [line for line in wanted if line not in set(stored)]

    def unreadable(self) -> list[str]:
        """Return what of the session cannot be read: by the reader, by the verbs, and each trace."""
        problems = []
        sessions = ["--sessions", str(self.root)]
        for verb in (["list"], ["report", self.session.id]):
            done = subprocess.run(
                [sys.executable, "-m", "tuiprof", *sessions, *verb],
                capture_output=True,
                text=True,
                env=self.env,
                timeout=120,
                check=False,
            )
            if done.returncode or "Traceback" in done.stderr:
                problems.append(f"{verb[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        for capture in self.fold().captures.values():
            problems += [
                f"no trace {path}" for path in capture.paths if not (self.session.path / path).exists()
            ]
        return problems

    def close(self) -> None:
        """End what is left of it; for a case that failed."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
                process.kill()
        self.command.wait(10)


@contextlib.contextmanager
def recorded(folder: Path, *args: object, **options: object) -> Iterator[Recorded]:
    """Record a script; nothing of it is left after the block."""
    folder.mkdir(parents=True)
    case = Recorded(folder, *args, **options)  # type: ignore[arg-type]
    try:
        yield case
    finally:
        case.close()
