"""The probe in processes without a framework: other Pythons, forks, kills, full disks."""

from __future__ import annotations

import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from probe_runs import Run, environment, read
from waiting import running, until

from tuiprof.session import log as records
from tuiprof.system.process import boot_id

MARKS = """
import tuiprof
for i in range(5):
    with tuiprof.phase("load"):
        sum(range(1000))
    tuiprof.step(loss=i / 2)
"""


def other_pythons() -> list[str]:
    """Pythons of this machine that are not this one and have no tuiprof."""
    found = {}
    for minor in range(9, 20):
        folders = [*Path.home().glob(f".pyenv/versions/3.{minor}.*/bin")]
        names = [shutil.which(f"python3.{minor}", path=str(folder)) for folder in folders]
        for path in [*names, shutil.which(f"python3.{minor}")]:
            if path is None or minor == sys.version_info.minor or minor in found:
                continue
            asked = subprocess.run(
                [path, "-Ic", "import tuiprof"], capture_output=True, text=True, check=False
            )
            if "No module named" in asked.stderr:
                found[minor] = path
    return list(found.values())


def test_a_task_of_srun_says_which_machine_it_runs_on(run: Callable[..., Run]) -> None:
    """The recorder may be on another, whose monotonic clock is not this one."""
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    [head] = run(MARKS, **task).of(records.Head, "rank1")
    assert (head.rank, head.world, head.job) == (1, 2, {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})
    assert (head.host, head.boot) == (platform.node(), boot_id())


def test_first_uses_of_memory_are_counted(run: Callable[..., Run]) -> None:
    """32 MiB that are mapped anew in each step, half of which is written: one page fault for each page."""
    pages = (16 << 20) // mmap.PAGESIZE
    script = f"""
import mmap, time, tuiprof
end = time.monotonic() + 1.5
while time.monotonic() < end:
    with mmap.mmap(-1, 32 << 20) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, {pages} * mmap.PAGESIZE, mmap.PAGESIZE):
            memory[at] = 1
    tuiprof.step()
"""
    done = run(script)
    first, *_, last = done.of(records.Usage)
    steps = [step for step in done.of(records.Step) if first.at < step.at <= last.at]
    assert len(steps) > 1
    assert (last.faults - first.faults) / len(steps) == pytest.approx(pages, rel=0.5)
    assert last.system_ns - first.system_ns > 0
    assert last.system_ns - first.system_ns + last.user_ns - first.user_ns <= 1.5 * (last.at - first.at)


def test_the_time_that_the_stepping_thread_is_on_a_core_is_its_own(run: Callable[..., Run]) -> None:
    """The thread that makes the steps sleeps, while another one computes."""
    script = """
import threading, time, tuiprof
end = time.monotonic() + 3.5
def compute():
    while time.monotonic() < end: sum(range(1000))
def train():
    while time.monotonic() < end:
        time.sleep(0.02)
        tuiprof.step()
threading.Thread(target=compute).start()
thread = threading.Thread(target=train); thread.start(); thread.join()
"""
    first, *_, last = (used for used in run(script).of(records.Usage) if used.thread_ns is not None)
    assert first.thread_ns is not None
    assert last.thread_ns is not None
    cpu_ns = last.user_ns + last.system_ns - first.user_ns - first.system_ns
    assert 0 < last.thread_ns - first.thread_ns < 0.2 * cpu_ns


def test_texts_that_are_not_unicode_are_written(run: Callable[..., Run]) -> None:
    done = run(
        "import tuiprof\nfor name in ('\\udcff', '😀'):\n    with tuiprof.phase(name): pass\n    tuiprof.step()"
    )
    assert [list(step.ph) for step in done.of(records.Step)] == [["\N{REPLACEMENT CHARACTER}"], ["😀"]]


def test_a_script_may_have_a_module_called_resource(run: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "resource.py").write_text('print("mine")')
    done = run(f"import sys{MARKS}assert 'resource' not in sys.modules\nimport resource")
    assert (done.code, done.out) == (0, "mine\n"), done.err
    assert len(done.of(records.Step)) == 5
    assert done.of(records.Usage)


@pytest.mark.parametrize(
    "inherited", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}], ids=["alone", "in Slurm"]
)
@pytest.mark.parametrize("variables", ["OMPI_COMM_WORLD_{}", "PMI_{}"])
def test_a_process_of_mpirun_is_a_rank(
    run: Callable[..., Run], variables: str, inherited: dict[str, str]
) -> None:
    own = {variables.format("RANK"): "1", variables.format("SIZE"): "2"}
    [head] = run(MARKS, **own, **inherited).of(records.Head, "rank1")
    assert (head.rank, head.world) == (1, 2)


def test_another_python_without_tuiprof_gets_step_and_phase(run: Callable[..., Run], tmp_path: Path) -> None:
    pythons = other_pythons()
    if len(pythons) < 2:
        pytest.skip("two other Pythons of 3.9 or newer are needed")
    heavy = (
        "import sys; print(tuiprof.__version__, [m for m in sys.modules if 'tuiprof.' in m or 'polars' in m])"
    )
    for python in pythons:
        environment_of_its_own = tmp_path / Path(python).name
        subprocess.run(
            [python, "-m", "venv", "--without-pip", str(environment_of_its_own)], check=True, timeout=60
        )
        done = run(MARKS + heavy, python=str(environment_of_its_own / "bin" / "python"))
        assert (done.code, done.err) == (0, ""), python
        assert done.out == f"{__import__('tuiprof').__version__} []\n", "something heavy came with it"
        assert [step.n for step in done.of(records.Step)] == [0, 1, 2, 3, 4]
        assert [step.v["loss"] for step in done.of(records.Step)] == [0, 0.5, 1, 1.5, 2]
        assert all(0 < step.ph["load"] <= step.dur for step in done.of(records.Step))


#: The innermost loop takes 50 ns an iteration, the one around it 0.5 s, nearly all of it in the innermost.
SHORT_LOOPS = """
import glob, os, time
import equinox._jit  # one of the frameworks that the probe waits for
log = os.environ["TUIPROF_SESSION"] + "/log/rank0.jsonl"
def add(count):
    total = 0
    for number in range(count): total += number
end = time.monotonic() + 30
while time.monotonic() < end and not (os.path.exists(log) and ":9\\"" in open(log).read()):
    add(10_000_000)
"""


def test_loops_whose_iterations_are_too_short_for_steps_are_left(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    monitored = [sys.executable] if sys.version_info >= (3, 12) else other_pythons()[::-1]
    if (
        not monitored
        or subprocess.run([monitored[0], "-c", "import sys; sys.monitoring"], check=False).returncode
    ):
        pytest.skip("sys.monitoring is there from Python 3.12 on")
    (tmp_path / "equinox").mkdir()
    for name in ("__init__", "_jit"):
        (tmp_path / "equinox" / f"{name}.py").touch()
    done = run(SHORT_LOOPS, python=monitored[0])
    short, none, long = done.of(records.StepSource)
    assert [one.where.rpartition(":")[2] for one in (short, none, long)] == ["7", "", "9"]
    assert none.withdrawn < 10_000, "they take a second of the log's thread"
    assert "too short for steps" in " ".join(note.text for note in done.of(records.Note))


def test_what_is_installed_is_preferred(run: Callable[..., Run]) -> None:
    done = run(MARKS + "print(tuiprof.open_trace.__module__)")
    assert (done.code, done.out) == (0, "tuiprof.formats.open\n")
    (head,) = done.of(records.Head)
    assert (head.writer, head.rank, head.v) == ("rank0", 0, records.SCHEMA_VERSION)
    assert done.of(records.End)[-1].why == "exit"
    (cost,) = done.of(records.Cost)[-1:]
    assert cost.steps == 5
    assert cost.ns > 0


@pytest.mark.parametrize("how", [["-c", MARKS], ["-m", "package.inner"]])
def test_every_way_to_start_a_script(run: Callable[..., Run], tmp_path: Path, how: list[str]) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "inner.py").write_text(MARKS)
    assert len(run("", how=how).of(records.Step)) == 5


def test_the_users_own_sitecustomize_still_runs(run: Callable[..., Run], tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys; sys.of_the_user = __name__, __file__")
    script = MARKS + "import sys, sitecustomize; print(sys.of_the_user, sitecustomize.__spec__.origin)"
    path = environment(tmp_path)["PYTHONPATH"] + os.pathsep + str(theirs)
    done = run(script, PYTHONPATH=path)
    origin = str(theirs / "sitecustomize.py")
    assert done.out == f"{('sitecustomize', origin)} {origin}\n"
    assert len(done.of(records.Step)) == 5

    (theirs / "sitecustomize.py").write_text("raise ValueError('theirs')")
    broken = run(MARKS, PYTHONPATH=path)
    assert broken.code == 0
    assert "theirs" in broken.err
    assert len(broken.of(records.Step)) == 5, "the probe needs no working sitecustomize of the user"


def test_nothing_is_written_without_a_step(run: Callable[..., Run]) -> None:
    done = run("import json, threading; print(threading.active_count())")
    assert (done.out, done.logs) == ("1\n", {})


def test_kill_9_loses_at_most_a_partial_line(session: Path, tmp_path: Path) -> None:
    script = "import time, tuiprof\nwhile True:\n    time.sleep(.0005); tuiprof.step(loss=1.0)\n"
    log = session / "log" / "rank0.jsonl"
    with running([sys.executable, "-c", script], env=environment(session)) as process:
        until(lambda: log.exists() and log.stat().st_size >= 20_000, "20 kB of steps")
        seen = log.read_bytes().rpartition(b"\n")[0]
        process.send_signal(signal.SIGKILL)
    logs, _ = read(session)
    steps = [record for record in logs["rank0"] if isinstance(record, records.Step)]
    assert log.read_bytes().startswith(seen)
    assert [step.n for step in steps] == list(range(len(steps)))
    assert len(steps) > 50


def test_forked_children_write_only_when_they_step(run: Callable[..., Run]) -> None:
    script = """
import os, pathlib, threading, time, tuiprof, warnings
def steps_of(pid):
    log = pathlib.Path(os.environ["TUIPROF_SESSION"], "log", f"rank0-{pid}.jsonl")
    return log.exists() and log.read_text().count('"t":"step"')
tuiprof.step()
for trains in (False, True):
    with tuiprof.phase("fork"):
        child = os.fork()
        if not child:
            threads = threading.active_count()
            if trains:
                for _ in range(3): tuiprof.step(loss=threads)
                while steps_of(os.getpid()) < 3: time.sleep(.02)
            os._exit(0)
    os.waitpid(child, 0)
for _ in range(3): tuiprof.step()
print(child)
"""
    done = run(script, flags=["-W", "error"])
    assert (done.code, done.err) == (0, "")
    child = f"rank0-{int(done.out)}"
    assert set(done.logs) == {"rank0", child}
    assert [step.n for step in done.of(records.Step)] == [0, 1, 2, 3]
    steps = done.of(records.Step, child)
    assert [step.n for step in steps] == [0, 1, 2]
    assert {step.v["loss"] for step in steps} == {1.0}, "a thread of the parent's probe was seen by the fork"


def test_workers_of_multiprocessing_end_their_logs(run: Callable[..., Run]) -> None:
    script = """
import multiprocessing, os, sys, tuiprof
def work(rank):
    os.environ["RANK"] = str(rank); os.environ["WORLD_SIZE"] = "2"
    for _ in range(rank + 1): tuiprof.step()
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    workers = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    [worker.start() for worker in workers]; [worker.join() for worker in workers]
"""
    for method in ("fork", "spawn"):
        done = run(script, method)
        assert set(done.logs) == {"rank0", "rank1"}, done.err
        for rank in range(2):
            writer = f"rank{rank}"
            assert len(done.of(records.Step, writer)) == rank + 1
            assert len(done.of(records.End, writer)) == 1
            assert done.of(records.Head, writer)[0].world == 2


def test_a_second_process_of_a_rank_has_its_own_file(run: Callable[..., Run]) -> None:
    script = (
        MARKS
        + "import os, sys\nif len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, '2'])"
    )
    done = run(script)
    assert len(done.logs) == 2
    assert all(len(done.of(records.Step, writer)) == 5 or writer == "rank0" for writer in done.logs)


def test_two_threads_open_one_log(run: Callable[..., Run]) -> None:
    """As a capture by the clock does, in a thread, while the script ends its first step."""
    script = """
import sys, threading, tuiprof
tuiprof.phase("load")  # loads the probe
from _tuiprof_probe.log import Log
other = threading.Thread(target=sys.modules["_tuiprof_probe.runtime"].RUNTIME.record)
original = Log.open
def opening(*arguments):
    Log.open = original
    other.start()
    other.join(0.5)  # it waits for this thread
    return original(*arguments)
Log.open = opening
for _ in range(3): tuiprof.step()
other.join()
"""
    done = run(script)
    assert (done.code, done.err) == (0, "")
    assert set(done.logs) == {"rank0"}
    assert [step.n for step in done.of(records.Step)] == [0, 1, 2]


def test_a_full_disk_stops_the_log_and_not_the_script(run: Callable[..., Run]) -> None:
    script = """
import resource, time, tuiprof
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
for i in range(3000):
    tuiprof.step(loss=1.0)
    if i % 100 == 0: time.sleep(.02)
print("trained")
"""
    done = run(script)
    assert (done.code, done.out) == (0, "trained\n")
    assert done.err.count("\n") == 1
    assert "recording stopped" in done.err
    assert done.of(records.Step)[0].n == 0


def test_a_log_folder_that_is_not_there(run: Callable[..., Run], tmp_path: Path) -> None:
    done = run("import os, shutil\nshutil.rmtree(os.environ['TUIPROF_SESSION'])\n" + MARKS)
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "is not recorded" in done.err


def test_metrics_that_are_no_numbers_are_noted_once(run: Callable[..., Run]) -> None:
    script = """
import tuiprof
class OnDevice:
    device = type("Device", (), {"type": "cuda"})
    def __float__(self): raise SystemExit("it was read")
class Raising:
    @property
    def device(self): raise KeyError
for _ in range(3):
    tuiprof.step(loss=float("nan"), acc=OnDevice(), name="x", ok=2, flag=True, large=10**400, other=Raising())
"""
    done = run(script)
    assert [step.v for step in done.of(records.Step)] == [{"ok": 2, "flag": 1}] * 3
    notes = [note.text for note in done.of(records.Note)]
    assert len(notes) == 5
    assert "would block the host" in "".join(notes)


def test_a_crash_is_named_in_the_last_line(run: Callable[..., Run]) -> None:
    done = run(MARKS + "raise RuntimeError('out of luck')", fails=True)
    end = done.of(records.End)[-1]
    assert (done.code, end.code, end.why) == (1, 1, "RuntimeError: out of luck")
    assert run(MARKS + "raise KeyboardInterrupt", fails=True).of(records.End)[-1].why == "KeyboardInterrupt"


def test_a_broken_hook_is_switched_off_and_noted_once(run: Callable[..., Run]) -> None:
    script = """
import tuiprof
tuiprof.step(); tuiprof.step()
import _tuiprof_probe.runtime as runtime
def broken(*_): raise ZeroDivisionError("planted")
runtime.Steps.end = broken
for _ in range(3): tuiprof.step()
"""
    done = run(script)
    assert (done.code, done.err) == (0, "")
    assert len(done.of(records.Step)) == 2
    (note,) = done.of(records.Note)
    assert note.level == "bad"
    assert "tuiprof.step" in note.text
    assert "planted" in note.text
