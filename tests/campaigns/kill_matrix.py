"""Every process of a recording killed, ended, stopped and hung up, at every moment of a run.

A case is a victim, a signal and a moment. *Inside* is inside the profiler's write: the raw trace, which Kineto writes
into a hidden file, has been seen to grow between two looks, and there is no trace yet, when the signal is sent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil

from tests.campaigns._recorded import PLAIN, TORCH, Recorded, alive, recorded
from tests.campaigns.campaign import Options, Outcome, SkippedError
from tests.served_page import served_page
from tests.terminals import InTerminal
from tests.waiting import Missed, until
from tuiprof.session.run.control import request_capture

PROMISE = (
    "Whichever process is killed, ended, stopped or hung up, and whenever: the script goes on as it would without "
    "tuiprof, what was recorded can be read, and no process is left"
)

SIGNALS: Final = ("KILL", "TERM", "STOP", "HUP", "HUP ignored")
MOMENTS: Final = ("start", "running", "armed", "inside", "end")
VICTIMS: Final = (
    "viewer",
    "command",
    "recorder",
    "output writer",
    "script",
    "loader",
    "decoder",
    "telemetry",
    "dashboard",
)
#: A process may outlive what it serves by so long.
GRACE_S: Final = 5.0
#: So much of the end of a run may be lost with a script that is killed: the probe writes every 0.1 s, on a busy machine
#: somewhat later.
LOST_MS: Final = 1000.0
_CAPTURED: Final = 60
_SHORT: Final = (
    ("recorder", "KILL", "running"),
    ("script", "KILL", "inside"),
    ("viewer", "HUP ignored", "running"),
)
#: Prints what a monitor of an idle Neuron machine prints.
_MONITOR: Final = """#!{python}
import json, sys, time
document = {{"neuron_runtime_data": [], "system_data": {{}}, "instance_info": {{}}, "neuron_hardware_info": {{
    "neuron_device_count": 1, "neuroncore_per_device_count": 2}}}}
while True:
    print(json.dumps(document), flush=True)
    time.sleep(0.5)
"""


@dataclass(frozen=True)
class Case:
    """What is done to whom, and when."""

    victim: str
    signal: str
    moment: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.victim}, SIG{self.signal}, {self.moment}"

    @property
    def torch(self) -> bool:
        """Whether the script needs PyTorch."""
        return self.victim == "loader" or self.moment == "inside"


@dataclass
class Figures:
    """What the cases found, together."""

    lost_steps: int = 0
    lost_ms: float = 0.0
    lost_lines: int = 0
    unreadable: int = 0
    orphans: int = 0
    zombies: int = 0
    inside: int = 0


def cases() -> list[Case]:
    """Return every case that makes sense: a decoder knows no captures, and a command and a script know no page."""
    found = [Case(*names) for names in itertools.product(VICTIMS, SIGNALS, MOMENTS)]
    return [case for case in found if case.victim != "decoder" or case.moment in ("start", "running")]


def run(options: Options) -> Outcome:
    """Try the cases."""
    short = options.short and options.cases is None
    chosen = [Case(*names) for names in _SHORT] if short else options.sample(cases(), 3)
    outcome, figures = Outcome(), Figures()
    # Under nohup every process would ignore SIGHUP; a signal that is handled is none that is ignored by those started.
    signal.signal(signal.SIGHUP, lambda *_: None)
    for number, case in enumerate(chosen):
        outcome.judge(case, partial(_try, case, options.folder / str(number), figures))
    outcome.figures = {
        "signals inside the profiler's write": str(figures.inside),
        "steps lost unless the script was killed": str(figures.lost_steps),
        "lost at the end of a killed script": f"{figures.lost_ms:.0f} ms at most",
        "lines of output lost": str(figures.lost_lines),
        "unreadable": str(figures.unreadable),
        "orphans": str(figures.orphans),
        "zombies": str(figures.zombies),
    }
    return outcome


def _try(case: Case, folder: Path, figures: Figures) -> list[str]:
    if case.torch and find_spec("torch") is None:
        raise SkippedError("PyTorch is not installed")
    if case.victim == "dashboard" and find_spec("textual_serve") is None:
        raise SkippedError("textual-serve is not installed")
    if case.victim == "decoder":
        return _try_decoder(case, folder, figures)
    tools = folder.with_name(f"{folder.name}-tools")
    tools.mkdir()
    if case.victim == "telemetry":
        monitor = tools / "neuron-monitor"
        monitor.write_text(_MONITOR.format(python=sys.executable))
        monitor.chmod(0o755)
    path = os.pathsep.join((str(tools), os.environ["PATH"]))
    with (
        recorded(
            folder,
            TORCH if case.torch else PLAIN,
            prefix=_ignoring(case, "command", "recorder", "output writer", "script", "loader", "telemetry"),
            env={"PATH": path, "OMP_NUM_THREADS": "1"},
        ) as run,
        contextlib.ExitStack() as stack,
    ):
        if case.moment == "end":
            (folder / "slowly").touch()
        _ = run.supervisor, run.script  # found while they run
        victim = _victim(case, run, stack)
        problems = _reach(case, run, victim, figures)
        problems += _strike(case, run, victim)
        if not _stops_script(case):  # else it might come to its end before it is stopped
            run.go()
        problems += _expect_end(case, run, victim)
        stack.close()  # who watches leaves
        problems += _expect_nothing_left(case, run, figures)
        problems += _expect_recorded(case, run, figures)
        return problems


def _ignoring(case: Case, *of: str) -> tuple[str, ...]:
    """Return what starts a command as ``nohup`` does, where the case is about one of these victims."""
    return (
        ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
        if case.signal == "HUP ignored" and case.victim in of
        else ()
    )


# -- the victim ------------------------------------------------------------------------------------------------


@dataclass
class Victim:
    """Who is struck."""

    process: psutil.Process
    hang_up: Callable[[], None] | None = None  # takes its terminal away; None = it has none


def _victim(case: Case, run: Recorded, stack: contextlib.ExitStack) -> Victim:
    """Start, or find, who is struck."""
    early = case.moment == "start"
    match case.victim:
        case "viewer":
            attach = [sys.executable, "-m", "tuiprof", "attach", str(run.session.path)]
            terminal = InTerminal(
                [*_ignoring(case, "viewer"), *attach], 120, 36, **{k: run.env[k] for k in _marks(run)}
            )
            stack.callback(terminal.close)
            stack.enter_context(_pumped(terminal))
            if not early:
                until(lambda: "running" in terminal.text(), "the live screen")
            return Victim(psutil.Process(terminal.pid), lambda: _hang_up(terminal))
        case "command":
            if not early:
                until(lambda: run.steps, "a step")
            return Victim(psutil.Process(run.command.pid))
        case "recorder":
            return Victim(run.supervisor)
        case "output writer":
            return Victim(run.writer)
        case "script":
            return Victim(run.script)
        case "loader":
            until(lambda: run.script.children(), "a worker of the loader")
            return Victim(run.script.children()[0])
        case "telemetry":
            return Victim(run.one("neuron-monitor", run.supervisor))
        case _:
            prefix = _ignoring(case, "dashboard")
            page = stack.enter_context(
                served_page([run.session.path], drawn=not early, env=run.env, prefix=prefix)
            )
            return Victim(page.dashboard)


def _marks(run: Recorded) -> list[str]:
    return [name for name in run.env if name.startswith(("TUIPROF_", "XDG_CACHE"))]


@contextlib.contextmanager
def _pumped(terminal: InTerminal) -> Iterator[None]:
    """Read what a program draws, as a terminal does, while other things go on."""
    import threading

    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, ValueError):
                terminal.pump(0.05)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _hang_up(terminal: InTerminal) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, terminal.fd)
    os.close(nothing)


# -- the moment ------------------------------------------------------------------------------------------------


def _reach(case: Case, run: Recorded, victim: Victim, figures: Figures) -> list[str]:
    """Wait for the moment."""
    match case.moment:
        case "running":
            until(lambda: run.steps >= 30, "30 steps")
        case "armed":
            until(lambda: run.steps >= 5, "5 steps")
            request_capture(run.session, 3, at=10_000_000, id="far")
            until(lambda: _capture(run, "far") == "armed", "an armed capture")
        case "inside":
            until(lambda: run.steps >= 5, "5 steps")
            request_capture(run.session, _CAPTURED, id="big")
            size = _until_writing(run)
            figures.inside += 1
            if not size:
                return ["the profiler's write was not seen"]
        case "end":
            until(lambda: run.steps >= 20, "20 steps")
            run.go()
            until(lambda: "ending" in run.session.stdout.read_text(), "the last line")
    return []


def _until_writing(run: Recorded) -> int:
    """Wait until the profiler is seen to write; return how much it had written."""
    seen: list[int] = []

    def grows() -> bool:
        for raw in (run.session.path / "traces").glob(
            ".*.json*"
        ):  # .tmp while Kineto writes, then .gz beside it
            with contextlib.suppress(FileNotFoundError):
                size = raw.stat().st_size
                if size and size not in seen:
                    seen.append(size)
        return len(seen) > 1 and not run.session.traces()

    until(grows, "a raw trace that grows")
    return seen[-1]


def _capture(run: Recorded, name: str) -> str:
    capture = run.fold().captures.get(name)
    return capture.state if capture is not None else ""


# -- the blow --------------------------------------------------------------------------------------------------


def _strike(case: Case, run: Recorded, victim: Victim) -> list[str]:
    number = signal.Signals[f"SIG{case.signal.removesuffix(' ignored')}"]
    with contextlib.suppress(psutil.NoSuchProcess):  # at the end of a run it may have ended by itself
        if victim.hang_up is not None and number == signal.SIGHUP:
            victim.hang_up()
        victim.process.send_signal(number)
        if number != signal.SIGSTOP:
            return []
        if case.victim == "output writer":  # which its supervisor wakes
            until(lambda: victim.process.status() != psutil.STATUS_STOPPED, "a writer that goes on", GRACE_S)
        elif case.victim != "script" and case.moment not in ("start", "end"):
            with contextlib.suppress(
                Missed
            ):  # a loader that is stopped stops its script; that is its own affair
                before = run.steps
                until(lambda: run.steps > before + 5, "steps of the script", 3.0)
        else:
            time.sleep(0.5)
        victim.process.send_signal(signal.SIGCONT)
    return []


# -- what must come of it --------------------------------------------------------------------------------------


def _ends_script(case: Case) -> bool:
    """Whether the blow ends the script: it, or a worker that it needs, is its target, or it is a request to stop."""
    if case.signal in ("STOP", "HUP ignored"):
        return False
    if case.victim in ("script", "loader"):
        return True
    return case.victim in ("command", "recorder") and case.signal == "TERM"


def _stops_script(case: Case) -> bool:
    """Whether the script must not come to its own end."""
    return _ends_script(case) and case.moment not in ("end", "start") and case.victim != "loader"


def _expect_end(case: Case, run: Recorded, victim: Victim) -> list[str]:
    """Return what is wrong with how everything ends."""
    problems = []
    ends = _ends_script(case)
    script = run.script
    until(lambda: not alive(script), "the end of the script", 90.0)
    if not run.done and not ends:
        problems.append(f"the script did not come to its end: {_tail(run)}")
    if run.done and _stops_script(case):
        problems.append("the script was not ended")
    # A viewer is struck by the loss of its terminal, whatever it does about SIGHUP.
    stays = case.signal == "STOP" or (case.signal == "HUP ignored" and case.victim != "viewer")
    if case.victim in ("viewer", "dashboard", "telemetry") and not stays:
        with contextlib.suppress(Missed):
            until(lambda: not alive(victim.process), "its end", GRACE_S)
        if alive(victim.process):
            problems.append("the victim goes on")
    return problems


def _tail(run: Recorded) -> str:
    return f"{run.session.stderr.read_text()[-300:]!r}"


def _expect_nothing_left(case: Case, run: Recorded, figures: Figures) -> list[str]:
    problems = []
    deadline = time.monotonic() + GRACE_S
    while (left := run.processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        figures.orphans += len(left)
        with contextlib.suppress(psutil.Error):
            problems.append(f"left behind: {', '.join(' '.join(one.cmdline())[-120:] for one in left)}")
    zombies = run.zombies()
    figures.zombies += len(zombies)
    problems += [f"not collected: {one}" for one in zombies]
    return problems


def _expect_recorded(case: Case, run: Recorded, figures: Figures) -> list[str]:
    problems = [f"cannot be read: {what}" for what in run.unreadable()]
    figures.unreadable += bool(problems)
    lost, lost_ms, ends = run.lost_steps(), run.lost_ms(), _ends_script(case)
    if ends:
        figures.lost_ms = max(figures.lost_ms, lost_ms)
        if lost_ms > LOST_MS:
            problems.append(f"{lost} steps lost, {lost_ms:.0f} ms")
    else:
        figures.lost_steps += max(0, lost)
        if lost > 0:
            problems.append(f"{lost} of {run.steps} steps lost")
        missing = run.printed()
        figures.lost_lines += len(missing)
        if missing:
            problems.append(f"{len(missing)} lines of output lost, the first: {missing[0]!r}")
    status = run.session.status()
    if not status.over:
        problems.append(f"its status is {status}")
    wanted = _wanted_state(case)
    if wanted and status.state not in wanted:
        problems.append(f"its status is {status}, not {' or '.join(wanted)}")
    return problems


def _wanted_state(case: Case) -> tuple[str, ...]:
    if case.victim == "recorder" and case.signal == "KILL":
        return ("finished",)
    if not _ends_script(case):
        return ("finished",)
    if case.moment in ("start", "end"):
        return ()  # it may have been quicker, or have been struck before it could set itself up
    return ("stopped",) if case.victim in ("command", "recorder") else ("failed",)


# -- decoding --------------------------------------------------------------------------------------------------


def _try_decoder(case: Case, folder: Path, figures: Figures) -> list[str]:
    """A worker that decodes a trace for `tuiprof report`: the report is the same without it."""
    folder.mkdir()
    trace = folder / "big.pt.trace.json"
    _write_trace(trace)
    report = [sys.executable, "-m", "tuiprof", "report", str(trace), "--format", "json"]
    env = {**os.environ, "TUIPROF_CACHE": "0", "XDG_CACHE_HOME": str(folder / "cache")}
    prefix = _ignoring(case, "decoder")
    out = folder / "report.json"
    with (
        open(out, "wb") as file,
        subprocess.Popen([*prefix, *report], stdout=file, stderr=subprocess.PIPE, env=env) as reader,
    ):
        process = psutil.Process(reader.pid)
        found: list[psutil.Process] = []

        def look() -> bool:
            with contextlib.suppress(psutil.Error):
                found[:] = [one for one in process.children() if "worker.serve" in " ".join(one.cmdline())]
            return bool(found) or reader.poll() is not None

        until(look, "a worker")
        if not found:
            return [f"no worker was started (the report ended with {reader.returncode})"]
        worker = found[0]
        if case.moment == "running":
            until(lambda: not alive(worker) or worker.cpu_times().user > 0.2, "work")
        number = signal.Signals[f"SIG{case.signal.removesuffix(' ignored')}"]
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(0.5)
                worker.send_signal(signal.SIGCONT)
        assert reader.stderr is not None
        said = reader.stderr.read().decode()
        code = reader.wait(120)
    problems = [] if code == 0 else [f"the report ended with {code}: {said[-300:]}"]
    whole = subprocess.run(report, capture_output=True, env=env, check=True).stdout
    if code == 0 and out.read_bytes() != whole:
        problems.append("another report than without the blow")
    with contextlib.suppress(Missed):
        until(lambda: not alive(worker), "end of the worker", GRACE_S)
    if alive(worker):
        figures.orphans += 1
        worker.kill()
        problems.append("the worker is left behind")
    return problems


def _write_trace(path: Path) -> None:
    """Write a trace that is worth a worker."""
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::mul","pid":1,"tid":1,"ts":%d,"dur":1,"args":{"External id":%d}},\n'
    with open(path, "wb") as file:
        file.write(b'{"schemaVersion":1,"traceEvents":[\n')
        for block in range(60):
            file.write(b"".join(event % (n, n) for n in range(block * 10_000, block * 10_000 + 10_000)))
        file.write((event % (600_000, 600_000))[:-2] + b"]}")
