"""The command line as a user meets it: exit codes and output, of processes where those start, wait or are signalled."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from command_line import here
from waiting import running, until

from tests import real_traces
from tuiprof.cli import cli, main
from tuiprof.resources import shipped
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import create, find_session
from tuiprof.session.store.meta import SessionMeta

_TRAIN = """
import time, sys
import tuiprof
for n in range(int(sys.argv[1])):
    with tuiprof.phase("data"):
        time.sleep(0.002)
    time.sleep(0.003)
    tuiprof.step(loss=1 / (n + 1))
print("trained")
"""


def tuiprof(*args: str, sessions: Path | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line without a terminal."""
    return subprocess.run(
        _argv(*args), env=_env(sessions), capture_output=True, text=True, timeout=90, **options
    )  # type: ignore[call-overload,no-any-return]


def _argv(*args: str) -> list[str]:
    return [sys.executable, "-m", "tuiprof", *args]


def _env(sessions: Path | None) -> dict[str, str]:
    env = {**os.environ, "NO_COLOR": "1"}
    if sessions is not None:
        env["TUIPROF_SESSIONS"] = str(sessions)
    return env


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(_TRAIN)
    return path


def test_help_names_every_verb() -> None:
    out = tuiprof("--help").stdout
    for verb in cli.commands:
        assert len(re.findall(rf"^  {verb} +[A-Z]", out, re.MULTILINE)) == 1, verb
    assert out.index("Run a script:") < out.index("  run ") < out.index("  record ") < out.index("  why ")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("train.py --lr 1", "To run a script: tuiprof run -- python train.py --lr 1"),
        ("record python train.py", "a command comes after --: tuiprof record -- python train.py"),
        ("run train.py 12 --lr 3", "tuiprof run -- python train.py 12 --lr 3"),
        (
            "record --capture 3@5 torchrun --nproc-per-node 2 train.py",
            "tuiprof record --capture 3@5 -- torchrun --nproc-per-node 2 train.py",
        ),
        ("record train.py --no-captur", "--no-capture"),
        ("record metrics:naive 3", "Got unexpected extra argument (3)"),
    ],
)
def test_a_command_without_the_dashes_before_it_is_recognised(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_captures_after_slow_steps_and_at_every_so_many(script: Path, tmp_path: Path) -> None:
    options = [
        "--capture-slower",
        "1.5x",
        "--capture-every",
        "40",
        "--capture-budget",
        "2MB",
        "--capture",
        "2@12",
    ]
    done = tuiprof("record", "-q", *options, "--", "python", str(script), "30", sessions=tmp_path / "s")
    assert done.returncode == 0, done.stderr
    (control,) = (tmp_path / "s").glob("*/control")
    slow, every = (json.loads((control / f"trigger-{name}.json").read_text()) for name in ("slow", "every"))
    assert (slow["times"], slow["above_ns"], slow["steps"], slow["budget_bytes"]) == (1.5, None, 2, 2_000_000)
    assert (every["every"], every["steps"], every["cooldown_s"]) == (40, 2, 10.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--capture-slower", "1x"], "multiple of the median above 1 (1.5x)"),
        (["--capture-slower", "fast"], "is not a time (40ms, 2s)"),
        (["--capture-every", "9", "--capture-budget", "plenty"], "not a size; for example 500MB"),
        (["--capture-budget", "1GB"], "requires --capture-slower or --capture-every"),
        (["--no-capture", "--capture-slower", "40ms"], "cannot be used with"),
    ],
)
def test_capture_options_that_make_no_sense(
    options: list[str], said: str, script: Path, tmp_path: Path
) -> None:
    done = here("record", *options, "--", "python", str(script), "3", sessions=tmp_path / "s")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert not list((tmp_path / "s").glob("*"))


def test_record_prints_a_report_and_returns_the_scripts_status(script: Path, tmp_path: Path) -> None:
    done = tuiprof(
        "--record", "--json", "--no-capture", "--", "python", str(script), "60", sessions=tmp_path / "s"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["reports"][0]
    assert report["facts"]["steps"] == 60
    assert report["facts"]["step_median_ns"] > 5_000_000
    assert (next((tmp_path / "s").iterdir()) / "stdout.log").read_text() == "trained\n"
    listed = here("list", "--json", sessions=tmp_path / "s").stdout
    assert json.loads(listed)["state"] == "finished"
    text = here("report", "last", sessions=tmp_path / "s")
    assert text.returncode == 0
    assert "60 steps" in text.stdout


def test_a_changed_line_of_a_script_is_shown_unless_its_text_was_not_kept(
    script: Path, tmp_path: Path
) -> None:
    root = tmp_path / "sessions"
    tuiprof("record", "-q", "--no-capture", "--", str(script), sessions=root)
    script.write_text(script.read_text() + "print('one more')\n")
    tuiprof("record", "-q", "--no-capture", "--", str(script), sessions=root)
    assert "+  print('one more')" in here("compare", "last~1", "last", sessions=root).stdout
    tuiprof("record", "-q", "--no-capture", "--no-source", "--", str(script), sessions=root)
    told = here("compare", "last~1", "last", "-f", "json", sessions=root).stdout
    assert '"the same"' in told
    assert "one more" not in told


#: In the place of NVML's binding: two GPUs whose processes the driver does not tell, as in a container.
HOST_OF_TWO = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("real_pynvml", {real!r})
sys.modules["real_pynvml"] = real = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)
globals().update({{name: value for name, value in vars(real).items() if name.startswith(("NVML_", "NVMLError"))}})

class Use:
    gpu, memory = 50, 10

nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlSystemGetDriverVersion = lambda: "580.1"
nvmlSystemGetCudaDriverVersion = lambda: 13000
nvmlDeviceGetUtilizationRates = lambda gpu: Use
"""


def test_the_report_of_a_recording_leaves_out_gpus_that_are_not_the_runs(tmp_path: Path) -> None:
    import pynvml

    (tmp_path / "pynvml.py").write_text(HOST_OF_TWO.format(real=pynvml.__file__))
    (tmp_path / "libnvidia-ml.so.1").symlink_to(msgspec._core.__file__)  # any library
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    env = {**_env(tmp_path / "s"), "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "1"}
    env["LD_LIBRARY_PATH"] = str(tmp_path)
    done = subprocess.run(
        _argv("record", "-q", "--no-capture", "--json", "--", "python", "-c", "import time; time.sleep(1)"),
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    [table] = [
        table for table in json.loads(done.stdout)["reports"][0]["tables"] if table["key"] == "devices"
    ]
    assert {row["device"] for row in table["rows"]} == {"host", "gpu1"}
    assert table["note"].endswith("not used by this run, left out: gpu0")


def test_exit_status_is_the_scripts(tmp_path: Path) -> None:
    done = tuiprof("record", "--", "python", "-c", "raise SystemExit(7)", sessions=tmp_path)
    assert done.returncode == 7
    assert "failed (exit 7)" in done.stdout


def test_a_script_reads_what_is_piped_in_and_a_writer_learns_of_its_end(tmp_path: Path) -> None:
    code = "import sys; print(len(sys.stdin.readline()))"
    with running(["yes", "a" * 1000], stdout=subprocess.PIPE) as endless:
        done = subprocess.run(
            _argv("record", "-q", "--tee", "--", "python", "-c", code),
            env=_env(tmp_path / "s"), stdin=endless.stdout, capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert endless.stdout is not None
        endless.stdout.close()
        assert done.stdout.startswith("1001\n")
        assert endless.wait(timeout=20) != 0  # its pipe is closed everywhere: nothing of ours holds it open


def test_a_session_without_a_trace_says_so_of_what_is_asked(script: Path, tmp_path: Path) -> None:
    tuiprof("record", "-q", "--no-capture", "--", "python", str(script), "5", sessions=tmp_path / "s")
    assert (
        "sync_events: unavailable: no trace was captured"
        in here("report", "last", "sync_events", sessions=tmp_path / "s").stdout
    )
    typed = here("report", "last", "sync_evnts", sessions=tmp_path / "s")
    assert (typed.returncode, "no analysis 'sync_evnts'" in typed.stderr) == (2, True)
    done = here("check", "last", "--max", "syncs_per_step=0", sessions=tmp_path / "s")
    assert (done.returncode, "no trace was captured" in done.stdout) == (2, True)


def test_a_ladder_that_was_not_measured_is_told_from_a_session_that_is_missing(tmp_path: Path) -> None:
    done = here("report", "metrics", sessions=tmp_path)
    assert (done.returncode, "measure it: tuiprof ladder metrics" in done.stderr) == (2, True)
    assert "tuiprof ladder" not in here("report", "metricks", sessions=tmp_path).stderr


def test_tee_passes_output_through(script: Path, tmp_path: Path) -> None:
    done = tuiprof("record", "--tee", "--no-capture", "--", "python", str(script), "3", sessions=tmp_path)
    assert done.stdout.startswith("trained\n")


def test_interrupt_stops_the_script_politely(tmp_path: Path) -> None:
    code = "import time\ntry:\n  print('ready', flush=True); time.sleep(60)\n"
    code += "except KeyboardInterrupt:\n  print('saved'); raise SystemExit(3)"
    argv = _argv("record", "-q", "--", "python", "-c", code)
    with running(argv, env=_env(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: any(map(os.path.getsize, tmp_path.glob("*/stdout.log"))), "the script is ready")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 3
    assert next(tmp_path.glob("*/stdout.log")).read_text() == "ready\nsaved\n"


def test_hangup_leaves_the_run_going(script: Path, tmp_path: Path) -> None:
    argv = _argv("record", "-q", "--no-capture", "--", "python", str(script), "400")
    with running(argv, env=_env(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: list(tmp_path.glob("*/log/rank0.jsonl")), "the first step")
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=30)
    assert wait(find_session(tmp_path, "last"), 60).state == "finished"
    summary = json.loads(here("list", "--json", sessions=tmp_path).stdout)
    assert (summary["state"], summary["steps"]) == ("finished", 400)


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (("recrod",), 2, "Did you mean 'record'"),
        (("record",), 2, "nothing to run"),
        (("record", "metrcs:naive"), 2, "metrics"),
        (("record", "metrics:naiv"), 2, "naive"),
        (("record", "--capture", "x@y", "metrics:naive"), 2, "5@20"),
        (("list", "--sessions", "here"), 2, "tuiprof --sessions … list …"),
        (("record", "--", "pythn", "x.py"), 5, "did you mean"),
        (("record", "--python", "/bin/ls", "metrics:naive"), 5, "/bin/ls is not a Python interpreter"),
        (("record", "--", "python", "missing.py"), 5, "missing.py"),
        (("report", "nothing-here.json"), 2, "nothing-here.json"),
        (("attach",), 2, "no session"),
        (("run", "metrics:naive"), 2, "tuiprof record"),
        ((), 2, "terminal"),
    ],
)
def test_mistakes_are_explained(args: tuple[str, ...], status: int, says: str, tmp_path: Path) -> None:
    done = here(*args, sessions=tmp_path / "none")
    assert done.returncode == status, done.stderr
    assert says.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_without_a_trace_the_next_command_is_named(tmp_path: Path) -> None:
    sessions = tmp_path / "my sessions"
    session = create(sessions, SessionMeta(1, "mine", ["true"], "/", 1_767_323_045_000_000_000, 0)).path
    for verb in ("whatif", "fix"):
        said = here(verb, session.name, sessions=sessions)
        assert said.returncode == 2
        assert f"no trace was captured in {session.name}" in said.stderr, verb
        assert f"tuiprof why {session.name}" in said.stderr, verb
    for verb in ("why", "report"):
        said = here(verb, sessions, sessions=tmp_path / "none")
        assert said.returncode == 3
        assert f"no session in {sessions} has captured a trace" in said.stderr, verb
        assert f"tuiprof report '{session}'" in said.stderr, verb
    recorded = shipped("traces") / "session-metrics-naive"
    assert here("why", recorded / "traces").stdout.startswith("session-metrics-naive · ")
    script = tmp_path / "my train.py"
    script.write_text("import torch\n")
    said = here("report", script)
    assert "is a Python script, not a trace" in said.stderr
    assert f"tuiprof run -- python '{script}'" in said.stderr


def test_report_formats_and_analyses() -> None:
    trace = str(real_traces.path("hta-alexnet-a100-cuda-sync.json.gz"))
    assert "sync_events" in here("report", trace, "sync_events", "-f", "json").stdout
    assert "\n## Syncs\n" in here("report", trace, "sync_events", "-f", "md").stdout
    wrong = here("report", trace, "synk")
    assert wrong.returncode == 2
    assert "sync_events" in wrong.stderr


def test_completion_scripts() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "tuiprof" in here("completion", shell).stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tuiprof rec", "record"),
        ("tuiprof ladder giou", "giou-kernel giou-loss"),
        ("tuiprof run metrics:no", "no-nan-check"),  # bash takes the word to begin behind the colon
        ("tuiprof report some.json sync", "sync_events"),
        ("tuiprof open la", "compopt -o default last"),  # or a file
        ("tuiprof --sessions sessions attach 2026", "20260102T030405Z-mine"),
        ("tuiprof run -- python tr", "compopt -o default"),
    ],
)
def test_bash_completes(line: str, offered: str, tmp_path: Path) -> None:
    (tmp_path / "sessions/20260102T030405Z-mine").mkdir(parents=True)
    (tmp_path / "sessions/20260102T030405Z-mine/session.json").write_text("{}")
    (tmp_path / "completion.bash").write_text(here("completion", "bash").stdout)
    ask = """
        source completion.bash
        compopt() { echo compopt "$@"; }
        COMP_LINE="$1" COMP_POINT=${#1}
        _tuiprof_completion tuiprof
        printf '%s\n' "${COMPREPLY[@]}"
    """
    asked = subprocess.run(
        ["bash", "-c", ask, "bash", line], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert asked.stdout.split() == offered.split(), asked.stderr


@pytest.fixture(scope="module")
def with_one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sessions in which there is one."""
    folder = tmp_path_factory.mktemp("with-one-run")
    script = folder / "train.py"
    script.write_text(_TRAIN)
    tuiprof(
        "record", "-q", "--no-capture", "--", "python", str(script), "2", sessions=folder / "sessions"
    ).check_returncode()
    return folder / "sessions"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("where", "status", "says"),
    [
        ("list >/dev/full", 1, "the output could not be written: No space left on device"),
        ("list >&-", 0, ""),
        ("list <&- 2>&-", 0, ""),
        ("open last <&-", 2, "needs a terminal"),
        ("record -q -- python -c 'print(1)' <&- >&-", 0, ""),
    ],
)
def test_standard_streams_that_are_full_or_closed(
    where: str, status: int, says: str, with_one_run: Path
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m tuiprof {where}"],
        env=_env(with_one_run), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert says in done.stderr
