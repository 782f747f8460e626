"""The wall clock stepped under a run: an hour, a year, to 1970 and back. CLOCK_MONOTONIC is never stepped, as in Linux.

A library of a few lines (``wall_clock.c``), compiled on the spot and preloaded, gives every process of a recording a
wall clock that is set from a file.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from tests.campaigns._recorded import Recorded, alive, recorded
from tests.campaigns.campaign import Options, Outcome
from tests.waiting import until
from tuiprof.session.run.control import request_capture, request_stop

PROMISE = "A wall clock that is stepped changes no step time, loses no step, and neither ends nor hides a run"

_HOUR_NS: Final = 3_600_000_000_000
#: What is added to the clock, hours, one after the other.
STEPS: Final = {
    "an hour on": (1,),
    "an hour back": (-1,),
    "a year on": (24 * 366,),
    "a year back": (-24 * 366,),
    "to 1970": (-24 * 366 * 100,),
    "to the year 2080": (24 * 366 * 54,),
    "back and forth": (2, -2, 0, -1),
}
MOMENTS: Final = ("start", "running", "armed", "stopped", "end")
#: The time of a step in the session may differ from the script's own note of it by so much, as the two are taken one
#: after the other on a machine that may be busy. The clock is stepped by an hour or more.
_OFF_MS: Final = 500.0


def run(options: Options) -> Outcome:
    """Step the clock by each step at each moment."""
    every = list(itertools.product(STEPS, MOMENTS))
    outcome = Outcome()
    library = options.folder / "wall_clock.so"
    source = Path(__file__).with_name("wall_clock.c")
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        outcome.cases = 1
        outcome.skipped.append("no C compiler (cc), or not Linux")
        return outcome
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    most_off_ms = lost = 0.0
    for number, (step, moment) in enumerate(options.sample(every, 2)):
        outcome.cases += 1
        try:
            problems, off_ms, lost_steps = _try(library, step, moment, options.folder / str(number))
            most_off_ms, lost = max(most_off_ms, off_ms), lost + max(0, lost_steps)
        except Exception as error:  # noqa: BLE001 - the other cases are still to be tried
            problems = [f"{type(error).__name__}: {error}"]
        outcome.failures += [f"{step}, {moment}: {problem}" for problem in problems]
    outcome.figures = {"steps lost": f"{lost:.0f}", "steps off by": f"{most_off_ms:.1f} ms at most"}
    return outcome


def _try(library: Path, step: str, moment: str, folder: Path) -> tuple[list[str], float, int]:
    clock = folder.with_name(f"{folder.name}-clock")
    clock.write_bytes(bytes(8))
    with recorded(folder, env={"LD_PRELOAD": str(library), "WALL_CLOCK": str(clock)}) as run:
        if moment == "start":
            until(lambda: run.root.exists() and any(run.root.iterdir()), "a folder")
        else:
            _ = run.supervisor, run.script
            until(lambda: run.steps > 20, "20 steps")
        _set(clock, STEPS[step])
        script = run.script
        run.until_steps(20)
        problems = []
        if moment == "armed":
            request_capture(run.session, 3, at=10_000_000, id="far")
            until(lambda: "far" in run.fold().captures, "an answer to a request")
        if str(run.session.status()) != "running":
            problems.append(f"while it runs its status is {run.session.status()}")
        if moment == "stopped":
            request_stop(run.session, sig=signal.SIGTERM)
        else:
            run.go()
        until(lambda: not alive(script), "the end of the script")
        if moment == "end":
            _set(clock, (0,))
        code = run.command.wait(60)
        wanted, state = (128 + signal.SIGTERM, "stopped") if moment == "stopped" else (0, "finished")
        if code != wanted:
            problems.append(f"record ended with {code}")
        if run.session.status().state != state:
            problems.append(f"its status is {run.session.status()}")
        problems += [f"cannot be read: {what}" for what in run.unreadable()]
        off_ms, lost = _off_ms(run), run.lost_steps()
        if off_ms > _OFF_MS:
            problems.append(f"a step is {off_ms:.0f} ms off")
        if lost > 0 and moment != "stopped":
            problems.append(f"{lost} steps lost")
        lasted_s = run.fold().now_ns / 1e9
        if not 0 < lasted_s < 120:
            problems.append(f"it is said to have lasted {lasted_s:.0f} s")
        return problems, off_ms, lost if moment != "stopped" else 0


def _set(clock: Path, hours: tuple[int, ...]) -> None:
    for one in hours:
        with open(clock, "r+b", buffering=0) as file:  # in place: it is mapped
            file.write(struct.pack("=q", one * _HOUR_NS))
        time.sleep(0.05)


def _off_ms(run: Recorded) -> float:
    """Return by how much the spacing of the steps differs at most from what the script noted itself."""
    lead = run.fold().lead
    if lead is None:
        return float("inf")
    recorded_ns = np.asarray(lead.steps.rows["t_ns"])
    noted_ns = np.asarray(run.step_times()[: len(recorded_ns)])
    off_ns = (recorded_ns - recorded_ns[0])[: len(noted_ns)] - (noted_ns - noted_ns[0])
    return float(np.abs(off_ns).max()) / 1e6
