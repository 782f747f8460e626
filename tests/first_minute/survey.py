"""Scripts as people write them, recorded as a user would: what tuiprof says of each, beside what the script says.

``python -m tests.first_minute.survey [NAME …] [--write docs/first-minute.md]``: one row a script. Each script runs
twice, plain and recorded, and prints its number of steps and its last loss. Where there is an NVIDIA GPU the rows are
those of a table of its own. ``--help`` says how the time is limited and how scripts run side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.series import step_stats
from tuiprof.session.store.folders import Session

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Packages whose versions are named above a table.
VERSIONS_OF = (
    "torch",
    "jax",
    "transformers",
    "accelerate",
    "lightning",
    "keras",
    "flax",
    "equinox",
    "numpyro",
)
#: Bare runs, at most, to learn whether they differ by themselves.
MAX_BARE_RUNS = 3
#: Seconds a script may take to end when it is told to.
GRACE_S = 10.0
#: How far a median step may be from that of the script's own clock, as a share of it.
CLOCKS_AGREE = 0.05


@dataclass(frozen=True)
class Clocked:
    """What a step takes by the script's own clock (see ``step_clock.py``) and by tuiprof, in one run."""

    own_ns: float
    ours_ns: float
    #: The host runs ahead of the device: both are means, because only these are the same on either of them.
    ahead: bool = False

    @property
    def off(self) -> float:
        """How much longer tuiprof's step is than the clock's, as a share of that."""
        return self.ours_ns / self.own_ns - 1


@dataclass(frozen=True)
class Case:
    """A script and how it is run."""

    name: str
    script: str
    idiom: str
    needs: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    #: Arguments on a GPU where they differ: loops that are found by sampling have to last some seconds.
    gpu_arguments: tuple[str, ...] = ()
    #: Steps before they were found that may be missing; the report says that there are some.
    late: bool = False
    cheap: bool = False


CASES = (
    Case("nanogpt", "nanogpt.py", "nanoGPT train.py: accumulation, evaluation, checkpoints", ("torch",),
         cheap=True),
    Case("dcgan", "dcgan.py", "PyTorch examples, DCGAN: two optimizers", ("torch",)),
    Case("wgan", "wgan.py", "Wasserstein GAN, Algorithm 1: five critic steps a step", ("torch",), late=True),
    Case("maml", "maml.py", "MAML, first order: an optimizer for each task's learner", ("torch",), late=True),
    Case("fine-tuning", "fine_tuning.py", "transfer learning: the head, then all layers", ("torch",)),
    Case("gan-turns", "gan_turns.py", "GAN: three steps of one, two of the other", ("torch",), late=True),
    Case("ppo", "ppo.py", "CleanRL: PPO, rollouts and minibatches", ("torch",)),
    Case("distillation", "distillation.py", "PyTorch tutorial: knowledge distillation", ("torch",)),
    Case("sam", "sharpness_aware.py", "davda54/sam: first_step, second_step", ("torch",)),
    Case("child-process", "child_process.py", "training in a process of multiprocessing", ("torch",)),
    Case("lbfgs", "lbfgs.py", "torch.optim documentation: closure", ("torch",)),
    Case("by-hand", "torch_by_hand.py", "What is torch.nn really?: SGD by hand", ("torch",), late=True),
    Case("compiled", "compiled.py", "torch.compile tutorial (aot_eager)", ("torch",)),
    Case("loader-inference", "loader_inference.py", "PyTorch quick start: evaluation", ("torch",), late=True,
         cheap=True),
    Case("ddp", "ddp.py", "DDP tutorial, torchrun, two ranks (gloo; NCCL with a GPU each)", ("torch",),
         launcher=("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")),
    Case("hf-4", "hf_trainer.py", "Transformers Trainer, accumulation 4", ("transformers", "accelerate"),
         ("--accumulate", "4", "--steps", "40")),
    Case("hf-40", "hf_trainer.py", "Transformers Trainer, accumulation 40", ("transformers", "accelerate"),
         ("--steps", "12"), ("--capture", "2@5")),
    Case("hf-evaluate", "hf_trainer.py", "Transformers Trainer, evaluation and checkpoints",
         ("transformers", "accelerate"), ("--accumulate", "2", "--steps", "50", "--evaluate", "20")),
    Case("accelerate", "accelerate_loop.py", "Accelerate, accumulate()", ("accelerate",)),
    Case("lightning", "lightning_fit.py", "Lightning in 15 minutes, validation", ("lightning",)),
    Case("lightning-profiler", "lightning_fit.py", "the same with Lightning's SimpleProfiler", ("lightning",),
         ("--profiler", "simple")),
    Case("keras-torch", "keras_fit.py", "Keras MNIST convnet on torch", ("keras", "optree"),
         environment={"KERAS_BACKEND": "torch"}),
    Case("keras-jax", "keras_fit.py", "Keras MNIST convnet on JAX", ("keras", "jax"),
         environment={"KERAS_BACKEND": "jax"}),
    Case("jax-torch-loader", "jax_torch_loader.py", "JAX notebook: torch DataLoader feeds jit",
         ("jax", "torch"), late=True),
    Case("jax-jit", "jax_jit_loop.py", "JAX documentation: plain jit loop", ("jax",),
         ("--width", "512", "--steps", "600"), gpu_arguments=("--width", "512", "--steps", "30000"),
         late=True),
    Case("jax-jit-at", "jax_jit_loop.py", "the same with --step-at, the line of the jitted call", ("jax",),
         ("--steps", "200"), ("--step-at", "jax_jit_loop.py:46"), cheap=True),
    Case("nnx", "flax_nnx.py", "Flax NNX MNIST tutorial", ("flax", "optax"), ("--steps", "600"), late=True),
    Case("equinox", "equinox_loop.py", "Equinox Train RNN: filter_jit, generator", ("equinox", "optax"),
         ("--steps", "4000"), late=True),
    Case("equinox-evaluate", "equinox_evaluate.py", "Equinox: more batches are evaluated than trained on",
         ("equinox", "optax"), late=True),
    Case("nnx-gan", "nnx_gan.py", "Flax NNX: GAN, two steps and one", ("flax", "optax"), late=True),
    Case("jax-epochs", "jax_epochs.py", "JAX: twelve batches in train_one_epoch", ("jax",),
         ("--epochs", "600"), gpu_arguments=("--epochs", "2000"), late=True),
    Case("equinox-function", "equinox_loop.py", "the same with --step-function __main__:make_step",
         ("equinox", "optax"), ("--steps", "300"), ("--step-function", "__main__:make_step")),
    Case("grad-scaler", "grad_scaler.py", "PyTorch AMP recipe: GradScaler leaves steps out", ("torch",)),
    Case("averaged", "averaged.py", "torch.optim.swa_utils: SWA, schedulers, update_bn", ("torch",)),
    Case("word-lm", "word_lm.py", "PyTorch examples, word language model: SGD by hand", ("torch",),
         late=True),
    Case("own-optimizer", "own_optimizer.py", "an optimizer that derives from nothing", ("torch",),
         late=True),
    Case("hogwild", "hogwild.py", "PyTorch examples, hogwild: the parent evaluates", ("torch",)),
    Case("reinforce", "reinforce.py", "PyTorch examples, REINFORCE on CartPole", ("torch", "gymnasium")),
    Case("torch-func", "torch_func.py", "torch.func: no backward(), no optimizer", ("torch",),
         gpu_arguments=("--steps", "6000"), late=True),
    Case("ignite", "ignite_trainer.py", "PyTorch-Ignite quick start", ("ignite",)),
    Case("skorch", "skorch_fit.py", "skorch README: NeuralNetClassifier", ("skorch",)),
    Case("sb3", "sb3_ppo.py", "Stable-Baselines3 quick start: PPO", ("stable_baselines3",)),
    Case("fabric", "fabric_loop.py", "Lightning Fabric: convert PyTorch code", ("lightning",)),
    Case("lightning-manual", "lightning_manual.py", "Lightning manual optimization: GAN", ("lightning",)),
    Case("peft", "peft_lora.py", "PEFT quick tour: LoRA", ("peft", "transformers")),
    Case("metric-learning", "metric_learning.py", "pytorch-metric-learning README",
         ("pytorch_metric_learning",)),
    Case("keras-custom", "keras_custom.py", "Keras guide: custom training loop in PyTorch",
         ("keras", "torch"), environment={"KERAS_BACKEND": "torch"}, late=True),
    Case("haiku", "haiku_loop.py", "Haiku MNIST: hk.transform and Optax", ("haiku", "optax"),
         gpu_arguments=("--steps", "60000"), late=True),
    Case("haiku-function", "haiku_loop.py", "the same with --step-function __main__:update",
         ("haiku", "optax"), options=("--step-function", "__main__:update")),
    Case("flax-linen", "flax_linen.py", "Flax Linen MNIST: TrainState", ("flax", "optax"),
         gpu_arguments=("--steps", "40000"), late=True),
    Case("numpyro", "numpyro_svi.py", "NumPyro SVI tutorial: jitted update", ("numpyro",),
         gpu_arguments=("--steps", "60000"), late=True),
    Case("inference", "torch_inference.py", "inference loop without a DataLoader", ("torch",),
         ("--prompts", "600"), gpu_arguments=("--prompts", "5000"), late=True),
    Case("scan", "jax_scan.py", "all of the training in one lax.scan", ("jax",), ("--steps", "20000"),
         ("--capture", "1s@4s"), gpu_arguments=("--steps", "200000"), late=True),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a script said and what tuiprof did."""

    case: Case
    own_steps: int
    steps: int | None
    steps_are: str
    median_ns: float
    phases: str
    captured: str
    #: The script's result is that of a bare run; None = bare runs differ by themselves, and the steps are the same.
    same: bool | None
    cost_ns: float
    said: str
    #: How far the share of a phase is from what the framework's own profiler says, at most; None = it has none.
    phases_off: float | None
    #: Mean time of a step on the device; None = it was not read.
    device_step_ns: float | None
    #: Pieces of work on a device in the capture; None = the capture was not read.
    device_events: int | None
    advice: str
    bare_s: float
    recorded_s: float
    #: None = the script has no clock, or tuiprof found no step.
    clocked: Clocked | None = None

    @property
    def right(self) -> str:
        """Whether the steps are right, as a word of the table."""
        if self.steps == self.own_steps:
            return "yes"
        if self.steps and self.steps > self.own_steps:
            return "**no**, a loop inside the step was taken"
        if self.steps and self.case.late:
            return f"all but the first {self.own_steps - self.steps}"
        return "none, said so" if not self.steps else "**no**"


class NotDoneError(Exception):
    """A script was not judged, and why."""


class Scripts:
    """The scripts that run now, each in a process group of its own, and when they have to be done."""

    def __init__(self, ends_at: float = math.inf) -> None:
        self.ends_at = ends_at

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path = HERE
    ) -> tuple[subprocess.CompletedProcess[str], float]:
        """Run a command to its end; return what it printed and the seconds it took.

        Raises:
            NotDoneError: The time was up. The command and all that it started have ended.
        """
        began = time.monotonic()
        if began >= self.ends_at:
            raise NotDoneError("the time was up")
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=min(600.0, self.ends_at - began))
        except subprocess.TimeoutExpired:
            process.terminate()  # tuiprof ends its script; torchrun ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise NotDoneError(f"the time was up after {time.monotonic() - began:.0f} s of it") from None
        return subprocess.CompletedProcess(command, process.returncode, out, err), time.monotonic() - began


@cache
def installed(python: str) -> dict[str, str]:
    """Return the packages that the scripts need and an interpreter has, with their versions."""
    names = sorted({name for case in CASES for name in case.needs} | set(VERSIONS_OF))
    code = """
import importlib.metadata, importlib.util, sys
distributions = importlib.metadata.packages_distributions()
for name in sys.argv[1:]:
    if importlib.util.find_spec(name) is not None:
        try:
            print(name, importlib.metadata.version(distributions[name][0]))
        except (KeyError, importlib.metadata.PackageNotFoundError):
            print(name, "?")
"""
    listed = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in listed.splitlines())


def missing(case: Case, python: str = sys.executable) -> list[str]:
    """Return the packages that a script needs and an interpreter does not have."""
    return [name for name in case.needs if name not in installed(python)]


@cache
def gpu() -> str:
    """Return the name of the first NVIDIA GPU; empty = there is none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.partition("\n")[0].strip()


def survey(
    case: Case,
    folder: Path,
    python: str = sys.executable,
    on_gpu: bool = False,
    scripts: Scripts | None = None,
) -> Outcome:
    """Run a script plain and recorded.

    Args:
        case: The script.
        folder: An empty folder; the report is left in its ``report.json``.
        python: Interpreter of the script.
        on_gpu: Run it where the script finds the GPU, with the arguments for it.
        scripts: What runs it, with a limit to its time.

    Raises:
        NotDoneError: The script or the recording failed, or the time was up.
    """
    scripts = scripts or Scripts()
    environment = {
        **os.environ,
        **case.environment,
        "OMP_NUM_THREADS": "1",
        "TUIPROF_SESSIONS": str(folder / "sessions"),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several scripts may share the GPU
    }
    arguments = (on_gpu and case.gpu_arguments) or case.arguments
    command = [*(case.launcher or ("python",)), case.script, *arguments]
    if case.script in ("nanogpt.py", "hf_trainer.py"):
        command += ["--out", str(folder / "out")]

    def bare() -> tuple[dict[str, str], float]:
        done, took_s = scripts.run([python, *command[1:]], environment)
        if done.returncode:
            raise NotDoneError(f"the bare script exited with {done.returncode}: {done.stderr[-800:]}")
        return _said(done.stdout), took_s

    own, bare_s = bare()
    record = [sys.executable, "-m", "tuiprof", "record", "-q", "--json", "--python", python, *case.options]
    path = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    command[command.index(case.script)] = str(clocked(HERE / case.script, folder / "clocked"))
    done, recorded_s = scripts.run(
        [*record, "--", *command], environment | {"PYTHONPATH": path}, folder / "clocked"
    )
    (folder / "report.json").write_text(done.stdout)
    if done.returncode:
        raise NotDoneError(f"the recorded script exited with {done.returncode}: {done.stderr[-800:]}")
    session = next((folder / "sessions").glob("*/session.json")).parent
    printed = (session / "stdout.log").read_text()
    recorded = _said(printed)
    same: bool | None = own == recorded
    for _ in range(MAX_BARE_RUNS - 1):
        if same is False and own.get("steps") == recorded.get("steps") and bare()[0] != own:
            same = None
    reports = {report["analysis"]: report for report in json.loads(done.stdout)["reports"]}
    report = reports["session"]
    facts = report["facts"]
    rows = {table["key"]: table["rows"] for table in report["tables"]}
    phases = [row for row in rows.get("phases", ()) if row["share"] >= 0.01]
    captures = rows.get("captures", ())
    kernels = reports.get("kernels")
    return Outcome(
        case,
        int(own["steps"]),
        facts.get("steps"),
        facts.get("steps_are", "–"),
        facts.get("step_median_ns") or float("nan"),
        ", ".join(f"{row['phase'].replace('rest of the step', 'rest')} {row['share']:.0%}" for row in phases)
        or "–",
        ", ".join(_capture(row, report["notes"]) for row in captures) or "–",
        same,
        facts.get("probe_ns_per_step") or float("nan"),
        report["verdict"]["sentence"],
        _phases_off(printed, rows.get("phases", ())),
        facts.get("device_step_mean_ns"),
        kernels and kernels.get("facts", {}).get("device_events", 0),
        _first_advice(reports.get("advice")),
        bare_s,
        recorded_s,
        by_clock(session, folder / "clocked", int(own["steps"])),
    )


def clocked(script: Path, folder: Path) -> Path:
    """Copy a script into a new folder, with the calls of its clock that its comments name, line by line the same."""
    folder.mkdir()
    shutil.copy(HERE / "step_clock.py", folder)
    text = re.sub(
        r"  # the clock: (.+)$", r'; __import__("step_clock").\1', script.read_text(), flags=re.MULTILINE
    )
    copy = folder / script.name
    copy.write_text(text)
    return copy


def by_clock(session: Path, folder: Path, own_steps: int) -> Clocked | None:
    """Compare the median step of a session's report with that of the clock of the process it is about.

    Of tuiprof is used what the steps' numbers are and which of them the median is made of, no time. The clock's last
    step is the last one of tuiprof, which may have missed the first ones.

    Raises:
        NotDoneError: The clock has not noted every step.
    """
    lead = read_fold(Session(session)).lead
    if lead is None or lead.head is None or not len(lead.steps):
        return None
    file = folder / f"{lead.head.pid}.ticks"
    if not file.is_file():
        return None
    ticks = np.array(array("q", file.read_bytes()))
    took = np.diff(ticks[ticks > 0])
    if len(took) != own_steps - 1:
        raise NotDoneError(f"the clock noted {len(took) + 1} of {own_steps} steps")
    steps = lead.steps
    stats = steps.whole_run()
    numbers, captured = steps.rows["n"], steps.rows["captured"]
    counted = steps.comparable()
    if stats.on_device:
        # The profiler starts and stops in the clock's steps beside the captured ones, and evaluations are in them too:
        # neither belongs in the mean.
        beside = np.isin(numbers, numbers[captured][:, None] + np.array((-1, 1)))
        counted = counted & ~beside & (steps.rows["apart_ns"] == 0)
    positions = len(took) - 1 - (numbers[-1] - numbers[counted])
    own = took[positions[positions >= 0]]
    if not len(own):
        return None
    if not stats.on_device:
        return Clocked(float(np.median(own)), stats.median_ns)
    ours = step_stats(steps.rows["dur_ns"][counted], steps.rows["device_ns"][counted])
    return Clocked(float(own.mean()), ours.mean_ns, ahead=True)


def _first_advice(report: dict[str, Any] | None) -> str:
    """Return what is advised first, and where; what the report says instead where nothing is."""
    if report is None:
        return "–"
    if not report["available"]:
        return report["reason"]
    findings = next((table["rows"] for table in report["tables"] if table["key"] == "findings"), [])
    if not findings:
        return report["verdict"]["sentence"]
    return ", ".join(filter(None, (findings[0]["what"], findings[0]["where"])))


def _phases_off(output: str, phases: list[dict[str, Any]]) -> float | None:
    """Return the largest difference between the script's own phases and those of the report, as shares of its time."""
    own = {name: float(share) for name, share in re.findall(r"^phase (\S+) (\S+)$", output, re.MULTILINE)}
    total = sum(row["mean_ns"] or 0.0 for row in phases)
    shares = {row["phase"]: (row["mean_ns"] or 0.0) / total for row in phases}
    return max((abs(share - shares.get(name, 0.0)) for name, share in own.items()), default=None)


def _capture(row: dict[str, Any], notes: list[str]) -> str:
    if any("not representative" in note and f"capture {row['id']!r} " in note for note in notes):
        return "refused"
    if row["state"] != "written":
        return f"{row['state']}: {row['why']}"
    return "by the clock" if row["first"] is None else f"steps {row['first']}–{row['last']}"


def _said(output: str) -> dict[str, str]:
    """Return what a script printed last under each of the names that count."""
    return dict(re.findall(r"^(steps|loss) (\S+)$", output, re.MULTILINE))


def _cells(one: Outcome, on_gpu: bool) -> dict[str, str]:
    """Return a row by the titles of its columns; on a GPU there are three more."""
    off = one.phases_off
    if off is not None:
        off_text = f" (the framework's own within {off:.1%})" if off <= 0.05 else f" (**off** by {off:.1%})"
    result = {True: "yes", False: "**no**", None: "the steps are; the bare runs differ by themselves"}[
        one.same
    ]
    device = {
        "step on the device": "–" if one.device_step_ns is None else f"{one.device_step_ns / 1e6:.3g} ms",
        "device work in the capture": "–" if one.device_events is None else f"{one.device_events:,}",
        "first advice": one.advice,
    }
    return {
        "script": f"`{one.case.name}`",
        "idiom": one.case.idiom,
        "steps right": f"{one.right} ({one.steps if one.steps is not None else 0} of {one.own_steps})",
        "median step: script's clock, tuiprof": _clocks(one.clocked),
        "what is a step": one.steps_are,
        "phases": one.phases + ("" if off is None else off_text),
        "capture": one.captured,
        **(device if on_gpu else {}),
        "result unchanged": result,
        "probe a step": f"{one.cost_ns / 1e3:.1f} µs" if one.cost_ns == one.cost_ns else "–",
    }


def _clocks(found: Clocked | None) -> str:
    if found is None:
        return "–"
    own, ours = (f"{ns / 1e6:.3g} ms" for ns in (found.own_ns, found.ours_ns))
    off = f"{found.off:+.1%}".replace("-", "\N{MINUS SIGN}")
    off = off if abs(found.off) <= CLOCKS_AGREE else f"**{off}**"
    return f"{own}, {ours} ({off}{'; means, the host runs ahead' if found.ahead else ''})"


def row(one: Outcome, on_gpu: bool = False) -> str:
    """Return an outcome as a row of the table."""
    cells = _cells(one, on_gpu).values()
    return f"| {' | '.join(' '.join(cell.replace('|', '&#124;').split()) for cell in cells)} |"


def written(page: str, heading: str, outcomes: Sequence[Outcome], on_gpu: bool = False) -> str:
    """Return the page with the outcomes in it, in the table below a heading in the block of this kind of machine.

    The rows of other scripts in that table stay, and so do the block's tables below other headings. A block without a
    table of the survey is replaced.
    """
    mark = "survey: gpu" if on_gpu else "survey"
    found = re.search(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- /{mark} -->)", page, re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no <!-- {mark} --> … <!-- /{mark} -->")
    if not outcomes:
        return page
    block = found[0] if "| `" in found[0] else ""
    old = re.search(rf"^{re.escape(heading)}\n\n((?:\|.*\n)+)", block, re.MULTILINE)
    titles = list(_cells(outcomes[0], on_gpu))
    rows = _rows(old[1], titles) if old else {}
    rows |= {f"`{one.case.name}`": row(one, on_gpu) for one in outcomes}
    order = {f"`{case.name}`": index for index, case in enumerate(CASES)}
    lines = [heading, "", f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += [rows[name] for name in sorted(rows, key=lambda name: order.get(name, len(order)))]
    table = "\n".join(lines) + "\n"
    if old:
        block = block[: old.start()] + table + block[old.end() :]
    else:
        block += ("\n" if block else "") + table
    return page[: found.start()] + block + page[found.end() :]


def _rows(table: str, titles: Sequence[str]) -> dict[str, str]:
    """Return a table's rows by script, with the columns that these titles name; a row without one has a dash there."""
    had, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines())
    cells = [dict(zip(had, row, strict=False)) for row in rows]
    return {
        row[had[0]]: f"| {' | '.join([row[had[0]], *(row.get(title, '–') for title in titles[1:])])} |"
        for row in cells
    }


def _heading(python: str, on_gpu: bool) -> str:
    """Return what a table's rows were taken with."""
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    machine = gpu() if on_gpu else "no accelerator"
    packages = ", ".join(
        f"{name} {installed(python)[name]}" for name in VERSIONS_OF if name in installed(python)
    )
    return f"{version}, {platform.machine()}, {os.cpu_count()} cores, {machine}; {packages}:"


def main() -> None:
    """Run the survey."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts by name; default: all")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the scripts")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the rows into this page, after each script"
    )
    parser.add_argument("--on", choices=("cpu", "gpu"), help="default: gpu where nvidia-smi names one")
    parser.add_argument("--jobs", type=int, default=1, help="scripts that run at the same time; default: 1")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="stop after so long and keep what is done"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep each report there, as NAME.json")
    options = parser.parse_args()
    if unknown := set(options.names) - {case.name for case in CASES}:
        parser.error(f"no script is called {', '.join(sorted(unknown))}")
    if options.on == "gpu" and not gpu():
        parser.error("nvidia-smi names no GPU here")
    on_gpu = options.on != "cpu" and bool(gpu())
    if options.on == "cpu":
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    heading = _heading(options.python, on_gpu)
    print(heading, flush=True)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    scripts = Scripts(time.monotonic() + options.seconds)

    def one(case: Case) -> Outcome:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                return survey(case, Path(folder), options.python, on_gpu, scripts)
            finally:
                report = Path(folder) / "report.json"
                if options.keep is not None and report.is_file():
                    shutil.copyfile(report, options.keep / f"{case.name}.json")

    chosen = [case for case in CASES if not options.names or case.name in options.names]
    outcomes: list[Outcome] = []
    undone = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {}
        for case in chosen:
            if lacking := missing(case, options.python):
                print(f"{case.name}: not run: {', '.join(lacking)} not installed", flush=True)
                undone += 1
            else:
                running[pool.submit(one, case)] = case
        for future in as_completed(running):
            case = running[future]
            try:
                outcomes.append(future.result())
            except (NotDoneError, OSError, ValueError, LookupError, StopIteration) as error:
                why = str(error) if isinstance(error, NotDoneError) else repr(error)
                print(f"{case.name}: not judged: {why}", flush=True)
                undone += 1
                continue
            took = f"{outcomes[-1].bare_s:.1f} s bare, {outcomes[-1].recorded_s:.1f} s recorded"
            print(f"{row(outcomes[-1], on_gpu)} {took}", flush=True)
            if options.write is not None:
                options.write.write_text(written(options.write.read_text(), heading, outcomes, on_gpu))
    print(f"{len(outcomes)} of {len(chosen)} scripts judged, {undone} not")


if __name__ == "__main__":
    main()
