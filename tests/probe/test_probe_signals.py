"""The probe's threads and the script's signals: the script sees the first nowhere, and gets all of the second."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
from probe_runs import Run

from tuiprof.session import log as records

FIRST_STEPS = "import tuiprof\nfor _ in range(3): tuiprof.step()\n"


def test_a_signal_that_the_script_waits_for_reaches_it(run: Callable[..., Run]) -> None:
    script = """
import os, signal, threading, time
def send():
    while not waiting: time.sleep(.001)
    for number in (signal.SIGUSR1, signal.SIGTERM): os.kill(os.getpid(), number)
waiting = []
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
sender = threading.Thread(target=send); sender.start()
waiting.append(True)
got = {signal.sigwait({signal.SIGUSR1, signal.SIGTERM}) for _ in range(2)}
print(sorted(number.name for number in got))
sender.join()
"""
    done = run(FIRST_STEPS + script)
    assert (done.code, done.out, done.err) == (0, "['SIGTERM', 'SIGUSR1']\n", "")


def test_the_scripts_threads_are_all_that_it_sees(run: Callable[..., Run]) -> None:
    script = """
import os, pathlib, threading, time
log = pathlib.Path(os.environ["TUIPROF_SESSION"], "log", "rank0.jsonl")
while log.read_text().count('"t":"step"') < 3: time.sleep(.005)  # the probe's thread has run
print(threading.active_count(), [thread.name for thread in threading.enumerate()])
"""
    done = run(FIRST_STEPS + script)
    assert (done.code, done.out) == (0, "1 ['MainThread']\n")
    assert len(done.of(records.Step)) == 3


def test_what_a_signal_handler_raises_inside_the_probe_reaches_the_script(run: Callable[..., Run]) -> None:
    """A timer that fires after 50 µs of CPU time hits hooks sooner or later; each time-out must arrive."""
    script = """
import signal, tuiprof
class TimeOut(Exception): pass
raised = caught = inside = 0
def handler(number, frame):
    global raised, inside
    raised += 1
    inside += "probe" in frame.f_code.co_filename
    raise TimeOut
signal.signal(signal.SIGVTALRM, handler)
tuiprof.step()  # the probe is loaded: an import drops what is raised in some places of it
steps = 0
while inside < 20:
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, .00005)
        while True:
            tuiprof.step(); steps += 1
    except TimeOut:
        caught += 1
for _ in range(5): tuiprof.step()
print(raised - caught)
"""
    done = run(script)
    assert (done.code, done.out, done.err) == (0, "0\n", "")
    assert not [note.text for note in done.of(records.Note)], "a hook was switched off"
    numbers = [step.n for step in done.of(records.Step)]
    assert numbers == sorted(set(numbers)), (
        "a step that was interrupted may be missing, but none counts twice"
    )


@pytest.mark.parametrize("place", ["open", "start", "_poll"])
def test_a_time_out_while_the_probe_starts(run: Callable[..., Run], place: str) -> None:
    """The first step opens the log; the script's handler interrupts that, and the next step is the first."""
    script = f"""
    import signal, sys, tuiprof
    tuiprof.phase("load")  # loads the probe
    import _tuiprof_probe.log as log
    owner = log.Log if hasattr(log.Log, {place!r}) else sys.modules["_tuiprof_probe.runtime"].Runtime
    class TimeOut(Exception): pass
    def handler(*arguments): raise TimeOut
    signal.signal(signal.SIGALRM, handler)
    original = getattr(owner, {place!r})
    def interrupted(*arguments, **options):
        setattr(owner, {place!r}, original)
        signal.raise_signal(signal.SIGALRM)
        return original(*arguments, **options)
    setattr(owner, {place!r}, interrupted)
    try:
        tuiprof.step()
        print("swallowed")
    except TimeOut:
        print("raised")
    for _ in range(3): tuiprof.step()
    """
    done = run(textwrap.dedent(script))
    assert (done.code, done.out, done.err) == (0, "raised\n", "")
    assert set(done.logs) == {"rank0"}
    assert len(done.of(records.Head)) == 1
    assert len(done.of(records.Step)) == 3
