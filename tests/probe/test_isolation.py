"""What the script notices of the probe: none of its files, even if it closes all descriptors, and none of its threads.

Nothing of ours gets into the script's files, and it receives all of its signals.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from probe_runs import Run

from tuiprof.probe.isolation import signals_blocked
from tuiprof.session import log as records

#: ``nothing_opened``: the probe opens no files meanwhile, as it does now and then for a moment, to look for requests. A
#: script that closes one of these fails, but only by chance.
STEPPED = """
import contextlib, os, pathlib, sys, time, tuiprof
@contextlib.contextmanager
def nothing_opened():
    thread = sys.modules["_tuiprof_probe.runtime"].RUNTIME.log
    thread.pause()
    yield
    thread.start()
def log(): return next(pathlib.Path(os.environ["TUIPROF_SESSION"], "log").glob(f"rank0{suffix}.jsonl"))
def step(count):
    for _ in range(count): tuiprof.step()
def wait_for(count):
    while log().read_text().count('"t":"step"') < count: time.sleep(.005)
suffix = ""
step(3); wait_for(3)
"""
THEIRS = """
    mine = [open(f"mine{number}.txt", "w+") for number in range(300)]  # as many as it takes to get every number
step(3)
wait_for(6)
for file in mine: file.write("mine"); file.flush()
for file in mine:
    file.seek(0)
    assert file.read() == "mine", (file.name, file.read())
print("clean", flush=True)
"""


@pytest.mark.parametrize(
    "closing",
    [
        "os.closerange(3, 1024)",
        "[os.close(int(number)) for number in os.listdir('/proc/self/fd') if 2 < int(number) < 1024 and "
        "os.path.exists('/proc/self/fd/' + number)]",
    ],
)
def test_a_script_that_closes_all_and_opens_its_own(run: Callable[..., Run], closing: str) -> None:
    done = run(f"{STEPPED}\nwith nothing_opened():\n    {closing}{THEIRS}")
    assert (done.code, done.out, done.err) == (0, "clean\n", "")
    assert [step.n for step in done.of(records.Step)] == list(range(6))
    assert done.of(records.End)[-1].why == "exit"


def test_a_script_that_puts_its_file_in_the_place_of_ours(run: Callable[..., Run]) -> None:
    script = """
ours = [int(name) for name in os.listdir("/proc/self/fd")
        if os.path.realpath("/proc/self/fd/" + name) == os.path.realpath(log())]
theirs = os.open("theirs.txt", os.O_RDWR | os.O_CREAT)
for number in ours: os.dup2(theirs, number)
step(3); wait_for(6)
print(os.fstat(theirs).st_size, [os.fstat(number).st_size for number in ours] == [0] * len(ours))
"""
    done = run(STEPPED + script)
    assert (done.code, done.out, done.err) == (0, "0 True\n", "")
    assert len(done.of(records.Step)) == 6


def test_a_daemon_opens_a_log_of_its_own(run: Callable[..., Run], tmp_path: Path) -> None:
    """Twice forked, everything closed, as daemons do; it goes on training."""
    script = """
reader, writer = os.pipe()
if os.fork():
    os.close(writer)
    os.read(reader, 1)  # the daemon is done
    os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
keep = os.dup2(writer, 1000)
suffix = f"-{os.getpid()}"
step(1); wait_for(1)
with nothing_opened():
    os.closerange(0, 1000)
    mine = [os.open(f"daemon{number}.txt", os.O_RDWR | os.O_CREAT) for number in range(300)]
step(2); wait_for(3)
sizes = {os.fstat(number).st_size for number in mine}
with open("sizes", "w") as file: file.write(str(sizes))
os.write(keep, b"x")
os._exit(0)
"""
    done = run(STEPPED + script)
    assert (tmp_path / "sizes").read_text() == "{0}", "the probe wrote into the daemon's files"
    (child,) = set(done.logs) - {"rank0"}
    assert len(done.of(records.Step, child)) == 3


def test_the_scripts_descriptors_have_the_numbers_that_they_have_without_us(run: Callable[..., Run]) -> None:
    done = run(STEPPED + "print(os.open('mine', os.O_RDWR | os.O_CREAT))")
    assert (done.code, done.out) == (0, "3\n")


def test_a_log_that_is_closed_and_gone_ends_without_a_word(run: Callable[..., Run]) -> None:
    script = """
import shutil
shutil.rmtree(os.environ["TUIPROF_SESSION"])
os.closerange(3, 1024)
step(50); time.sleep(.3); step(50)
print("trained")
"""
    done = run(STEPPED + script)
    assert (done.code, done.out, done.err) == (0, "trained\n", "")


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


def test_signals_do_not_stay_blocked_where_a_handler_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    original = signal.pthread_sigmask

    def interrupted(how: int, signals: set[signal.Signals]) -> set[int | signal.Signals]:
        before = original(how, signals)
        if how == signal.SIG_BLOCK and signals:
            raise TimeoutError  # as of the handler of a signal that came just before
        return before

    before = original(signal.SIG_BLOCK, ())
    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(TimeoutError), signals_blocked():
        pass
    assert original(signal.SIG_SETMASK, before) == before


def test_what_a_handler_raises_is_no_lack_of_threads(run: Callable[..., Run]) -> None:
    """The signal arrives while the thread begins, and is delivered after that: the work is done once."""
    script = """
import _thread, os, signal, tuiprof
tuiprof.phase("load")  # loads the probe
from _tuiprof_probe import isolation
def handler(*_): raise RuntimeError("of the script")
signal.signal(signal.SIGUSR1, handler)
class Interrupted:
    allocate_lock, get_native_id, get_ident = _thread.allocate_lock, _thread.get_native_id, _thread.get_ident
    @staticmethod
    def start_new_thread(*arguments):
        ident = _thread.start_new_thread(*arguments)
        os.kill(os.getpid(), signal.SIGUSR1)
        return ident
isolation._thread = Interrupted
worked = []
thread = isolation.ProbeThread(lambda: worked.append(1))
try:
    thread.start_or_run()
except RuntimeError as error:
    print("raised", error)
thread.join(10)
print(len(worked))
"""
    done = run(script)
    assert (done.code, done.out, done.err) == (0, "raised of the script\n1\n", "")


@pytest.mark.parametrize("kind", ["Exception", "TimeoutError"])
@pytest.mark.parametrize("place", ["open", "start", "_poll"])
def test_a_time_out_while_the_probe_starts(run: Callable[..., Run], place: str, kind: str) -> None:
    """The first step opens the log; the script's handler interrupts that, and the next step is the first."""
    script = f"""
    import signal, sys, tuiprof
    tuiprof.phase("load")  # loads the probe
    import _tuiprof_probe.log as log
    owner = log.Log if hasattr(log.Log, {place!r}) else sys.modules["_tuiprof_probe.runtime"].Runtime
    class TimeOut({kind}): pass
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
