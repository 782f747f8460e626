"""Scripts as people write them, recorded as a user would: what tuiprof says of each, beside what the script says.

``python -m tests.first_minute.survey [NAME …] [--write docs/first-minute.md]``: one row a script. Each script runs
twice, plain and recorded, and prints its number of steps and its last loss.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE = re.compile(r"(<!-- survey -->\n).*?(<!-- /survey -->)", re.DOTALL)


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
    #: Steps before they were found that may be missing; the report says that there are some.
    late: bool = False
    cheap: bool = False


CASES = (
    Case(
        "nanogpt",
        "nanogpt.py",
        "nanoGPT train.py: accumulation, evaluation, checkpoints",
        ("torch",),
        cheap=True,
    ),
    Case("dcgan", "dcgan.py", "PyTorch examples, DCGAN: two optimizers", ("torch",)),
    Case("lbfgs", "lbfgs.py", "torch.optim documentation: closure", ("torch",)),
    Case("by-hand", "torch_by_hand.py", "What is torch.nn really?: SGD by hand", ("torch",), late=True),
    Case("compiled", "compiled.py", "torch.compile tutorial (aot_eager)", ("torch",)),
    Case(
        "loader-inference",
        "loader_inference.py",
        "PyTorch quick start: evaluation",
        ("torch",),
        late=True,
        cheap=True,
    ),
    Case(
        "ddp",
        "ddp.py",
        "DDP tutorial, torchrun, two ranks, gloo",
        ("torch",),
        launcher=("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    ),
    Case(
        "hf-4",
        "hf_trainer.py",
        "Transformers Trainer, accumulation 4",
        ("transformers",),
        ("--accumulate", "4", "--steps", "40"),
    ),
    Case(
        "hf-40",
        "hf_trainer.py",
        "Transformers Trainer, accumulation 40",
        ("transformers",),
        ("--steps", "12"),
        ("--capture", "2@5"),
    ),
    Case(
        "hf-evaluate",
        "hf_trainer.py",
        "Transformers Trainer, evaluation and checkpoints",
        ("transformers", "accelerate"),
        ("--accumulate", "2", "--steps", "50", "--evaluate", "20"),
    ),
    Case("accelerate", "accelerate_loop.py", "Accelerate, accumulate()", ("accelerate",)),
    Case("lightning", "lightning_fit.py", "Lightning in 15 minutes, validation", ("lightning",)),
    Case(
        "lightning-profiler",
        "lightning_fit.py",
        "the same with Lightning's SimpleProfiler",
        ("lightning",),
        ("--profiler", "simple"),
    ),
    Case(
        "keras-torch",
        "keras_fit.py",
        "Keras MNIST convnet on torch",
        ("keras", "optree"),
        environment={"KERAS_BACKEND": "torch"},
    ),
    Case(
        "keras-jax",
        "keras_fit.py",
        "Keras MNIST convnet on JAX",
        ("keras", "jax"),
        environment={"KERAS_BACKEND": "jax"},
    ),
    Case(
        "jax-torch-loader",
        "jax_torch_loader.py",
        "JAX notebook: torch DataLoader feeds jit",
        ("jax", "torch"),
        late=True,
    ),
    Case(
        "jax-jit",
        "jax_jit_loop.py",
        "JAX documentation: plain jit loop",
        ("jax",),
        ("--width", "512", "--steps", "600"),
        late=True,
    ),
    Case(
        "jax-jit-at",
        "jax_jit_loop.py",
        "the same with --step-at, the line of the jitted call",
        ("jax",),
        ("--steps", "200"),
        ("--step-at", "jax_jit_loop.py:46"),
        cheap=True,
    ),
    Case("nnx", "flax_nnx.py", "Flax NNX MNIST tutorial", ("flax", "optax"), ("--steps", "600"), late=True),
    Case(
        "equinox",
        "equinox_loop.py",
        "Equinox Train RNN: filter_jit, generator",
        ("equinox", "optax"),
        ("--steps", "4000"),
        late=True,
    ),
    Case(
        "equinox-function",
        "equinox_loop.py",
        "the same with --step-function __main__:make_step",
        ("equinox", "optax"),
        ("--steps", "300"),
        ("--step-function", "__main__:make_step"),
    ),
    Case("grad-scaler", "grad_scaler.py", "PyTorch AMP recipe: GradScaler leaves steps out", ("torch",)),
    Case("averaged", "averaged.py", "torch.optim.swa_utils: SWA, schedulers, update_bn", ("torch",)),
    Case(
        "word-lm", "word_lm.py", "PyTorch examples, word language model: SGD by hand", ("torch",), late=True
    ),
    Case(
        "own-optimizer", "own_optimizer.py", "an optimizer that derives from nothing", ("torch",), late=True
    ),
    Case("hogwild", "hogwild.py", "PyTorch examples, hogwild: the parent evaluates", ("torch",)),
    Case("reinforce", "reinforce.py", "PyTorch examples, REINFORCE on CartPole", ("torch", "gymnasium")),
    Case("torch-func", "torch_func.py", "torch.func: no backward(), no optimizer", ("torch",), late=True),
    Case("ignite", "ignite_trainer.py", "PyTorch-Ignite quick start", ("ignite",)),
    Case("skorch", "skorch_fit.py", "skorch README: NeuralNetClassifier", ("skorch",)),
    Case("sb3", "sb3_ppo.py", "Stable-Baselines3 quick start: PPO", ("stable_baselines3",)),
    Case("fabric", "fabric_loop.py", "Lightning Fabric: convert PyTorch code", ("lightning",)),
    Case("lightning-manual", "lightning_manual.py", "Lightning manual optimization: GAN", ("lightning",)),
    Case("peft", "peft_lora.py", "PEFT quick tour: LoRA", ("peft", "transformers")),
    Case(
        "metric-learning",
        "metric_learning.py",
        "pytorch-metric-learning README",
        ("pytorch_metric_learning",),
    ),
    Case(
        "keras-custom",
        "keras_custom.py",
        "Keras guide: custom training loop in PyTorch",
        ("keras", "torch"),
        environment={"KERAS_BACKEND": "torch"},
        late=True,
    ),
    Case("haiku", "haiku_loop.py", "Haiku MNIST: hk.transform and Optax", ("haiku", "optax"), late=True),
    Case(
        "haiku-function",
        "haiku_loop.py",
        "the same with --step-function __main__:update",
        ("haiku", "optax"),
        options=("--step-function", "__main__:update"),
    ),
    Case("flax-linen", "flax_linen.py", "Flax Linen MNIST: TrainState", ("flax", "optax"), late=True),
    Case("numpyro", "numpyro_svi.py", "NumPyro SVI tutorial: jitted update", ("numpyro",), late=True),
    Case(
        "inference",
        "torch_inference.py",
        "inference loop without a DataLoader",
        ("torch",),
        ("--prompts", "600"),
        late=True,
    ),
    Case(
        "scan",
        "jax_scan.py",
        "all of the training in one lax.scan",
        ("jax",),
        ("--steps", "20000"),
        ("--capture", "1s@4s"),
        late=True,
    ),
)


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
    same: bool
    cost_ns: float
    said: str
    #: How far the share of a phase is from what the framework's own profiler says, at most; None = it has none.
    phases_off: float | None = None

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


def available(case: Case) -> bool:
    """Whether the packages that a script needs are here."""
    return all(importlib.util.find_spec(name) is not None for name in case.needs)


def survey(case: Case, folder: Path, python: str = sys.executable) -> Outcome:
    """Run a script plain and recorded.

    Args:
        case: The script.
        folder: An empty folder.
        python: Interpreter of the script.
    """
    environment = (
        os.environ | case.environment | {"OMP_NUM_THREADS": "1", "TUIPROF_SESSIONS": str(folder / "sessions")}
    )
    command = [*(case.launcher or ("python",)), case.script, *case.arguments]
    out = ["--out", str(folder / "out")] if case.script in ("nanogpt.py", "hf_trainer.py") else []
    plain = subprocess.run(
        [python, *command[1:], *out],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    ).stdout
    record = [sys.executable, "-m", "tuiprof", "record", "-q", "--json", "--python", python, *case.options]
    done = subprocess.run(
        [*record, "--", *command, *out],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    session = next((folder / "sessions").glob("*/session.json")).parent
    own, recorded = _said(plain), _said((session / "stdout.log").read_text())
    report = next(one for one in json.loads(done.stdout)["reports"] if one["analysis"] == "session")
    facts = report["facts"]
    rows = {table["key"]: table["rows"] for table in report["tables"]}
    phases = [row for row in rows.get("phases", ()) if row["share"] >= 0.01]
    captures = rows.get("captures", ())
    return Outcome(
        case,
        int(own["steps"]),
        facts.get("steps"),
        facts.get("steps_are", "–"),
        facts.get("step_median_ns") or float("nan"),
        ", ".join(f"{row['phase'].replace('rest of the step', 'rest')} {row['share']:.0%}" for row in phases)
        or "–",
        ", ".join(_capture(row, report["notes"]) for row in captures) or "–",
        own == recorded,
        facts.get("probe_ns_per_step") or float("nan"),
        report["verdict"]["sentence"],
        _phases_off((session / "stdout.log").read_text(), rows.get("phases", ())),
    )


def _phases_off(output: str, phases: list[dict[str, Any]]) -> float | None:
    """Return the largest difference between the script's own phases and those of the report, as shares of its time."""
    own = {name: float(share) for name, share in re.findall(r"^phase (\S+) (\S+)$", output, re.MULTILINE)}
    total = sum(row["mean_ns"] or 0.0 for row in phases)
    shares = {row["phase"]: (row["mean_ns"] or 0.0) / total for row in phases}
    return max((abs(share - shares.get(name, 0.0)) for name, share in own.items()), default=None)


def _capture(row: dict[str, Any], notes: list[str]) -> str:
    if any("no evidence" in note and f"capture {row['id']} " in note for note in notes):
        return "refused"
    if row["state"] != "written":
        return f"{row['state']}: {row['why']}"
    return "by the clock" if row["first"] is None else f"steps {row['first']}–{row['last']}"


def _said(output: str) -> dict[str, str]:
    """Return what a script printed last under each of the names that count."""
    return dict(re.findall(r"^(steps|loss) (\S+)$", output, re.MULTILINE))


def table(outcomes: list[Outcome]) -> str:
    """Return the outcomes as a table."""
    lines = [
        "| script | idiom | steps right | what is a step | phases | capture | result unchanged | probe a step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        cells = (
            f"`{one.case.name}`",
            one.case.idiom,
            f"{one.right} ({one.steps if one.steps is not None else 0} of {one.own_steps})",
            one.steps_are,
            one.phases
            + (
                f" (the framework's own within {one.phases_off:.1%})"
                if one.phases_off is not None and one.phases_off <= 0.05
                else f" (**off** by {one.phases_off:.1%})"
                if one.phases_off is not None
                else ""
            ),
            one.captured,
            "yes" if one.same else "**no**",
            f"{one.cost_ns / 1e3:.1f} µs" if one.cost_ns == one.cost_ns else "–",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the survey."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    outcomes = []
    for case in CASES:
        if options.names and case.name not in options.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes.append(survey(case, Path(folder), options.python))
            except (AssertionError, subprocess.SubprocessError, KeyError) as error:
                print(f"{case.name}: {str(error)[-800:]}", file=sys.stderr)
                continue
        print(table(outcomes[-1:]).splitlines()[-1], flush=True)
    version = subprocess.run(
        [options.python, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    header = f"{version}, {platform.machine()}, {os.cpu_count()} cores, no accelerator.\n\n"
    if options.write is not None:
        text = options.write.read_text()
        options.write.write_text(
            TABLE.sub(lambda match: f"{match[1]}{header}{table(outcomes)}{match[2]}", text)
        )


if __name__ == "__main__":
    main()
