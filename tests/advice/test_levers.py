"""What a framework calls a setting is what advice says to write, and these names exist in the framework."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
from analyses.made import Made, in_session, site
from installed import needs

from tuiprof.advice import advise
from tuiprof.advice.levers import ACCELERATE, LEVERS, LIGHTNING, TRANSFORMERS, argument, trainer_of
from tuiprof.model import Trace

IN_PROCESS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
#: A frame of each framework's loop, as Kineto names it.
FRAMES = {
    TRANSFORMERS: "transformers/trainer.py(1800): _inner_training_loop",
    LIGHTNING: "lightning/pytorch/loops/fit_loop.py(191): run",
    ACCELERATE: "accelerate/optimizer.py(150): step",
}


def steps(
    trainer: str = "", *frames: str, optimizer: str = "AdamW", where: str = "train.py:57 step"
) -> Trace:
    """Four steps that make their batches, update each parameter by itself, and read a value from the device."""
    made, correlation = Made(), 1
    for _, at in made.steps(10_000):
        for frame in frames:
            made.add("python_function", frame, at + 50, at + 9_950)
        made.op(IN_PROCESS, at + 100, at + 4_100)
        made.launch("gemm", (at + 4_500, at + 4_505), (at + 4_510, at + 6_900), correlation)
        made.add("annotation", f"Optimizer.step#{optimizer}.step", at + 7_000, at + 9_000)
        for i in range(60):
            correlation += 1
            begin = at + 7_010 + 30 * i
            made.op("aten::mul_", begin, begin + 20)
            made.launch("mul", (begin + 5, begin + 9), (begin + 12, begin + 20), correlation)
        correlation += 1
        made.op("aten::_local_scalar_dense", at + 9_100, at + 9_300)
        made.call("cudaMemcpyAsync", at + 9_110, at + 9_200, correlation=correlation)
        made.kernel("Memcpy DtoH", at + 9_190, at + 9_191, correlation, category="memcpy", bytes=4)
        made.call("cudaStreamSynchronize", at + 9_210, at + 9_250)
        correlation += 2
    trace = made.trace([site(number * 10_000 + 9_290, where) for number in range(4)])
    in_session(trace, 1e7, idle_cores=4.0, usable_cores=8, trainer=trainer)
    return trace


def instead(trace: Trace, rule: str) -> str:
    found = advise(trace).table("findings").rows.filter(pl.col("rule") == rule)
    assert len(found) == 1, rule
    text: str = found["instead"][0]
    return text


@pytest.mark.parametrize(
    ("trainer", "loader", "optimizer"),
    [
        ("", "DataLoader(num_workers=4, pin_memory=True, persistent_workers=True)", "fused=True"),
        (
            TRANSFORMERS,
            "TrainingArguments(dataloader_num_workers=4, dataloader_persistent_workers=True)",
            'TrainingArguments(optim="adamw_torch_fused")',
        ),
        (
            LIGHTNING,
            "DataLoader(num_workers=4",
            "in configure_optimizers, fused=True",
        ),
        (ACCELERATE, "DataLoader(num_workers=4", "fused=True"),
        ("a framework of another time", "DataLoader(num_workers=4", "fused=True"),
    ],
)
def test_advice_names_the_argument_of_the_framework_that_makes_the_steps(
    trainer: str, loader: str, optimizer: str
) -> None:
    trace = steps(trainer)
    assert instead(trace, "loader-workers").startswith(loader)
    assert instead(trace, "single-tensor-optimizer").startswith(optimizer)


def test_an_argument_for_one_kind_of_optimizer_is_not_advised_for_another() -> None:
    assert instead(steps(TRANSFORMERS, optimizer="SGD"), "single-tensor-optimizer").startswith("fused=True")


@pytest.mark.parametrize(
    ("trainer", "where", "words"),
    [
        (
            TRANSFORMERS,
            "/env/lib/python3.12/site-packages/transformers/trainer.py:1922 train",
            "logging_steps=N",
        ),
        (TRANSFORMERS, "train.py:57 compute_loss", "one .item() when logging"),
        (LIGHTNING, "train.py:57 training_step", "log_every_n_steps=N"),
        (ACCELERATE, "train.py:57 main", "one .item() when logging"),
    ],
)
def test_a_read_of_the_trainer_is_a_matter_of_its_arguments_and_one_of_the_script_is_not(
    trainer: str, where: str, words: str
) -> None:
    assert words in instead(steps(trainer, where=where), "item-each-step")


def test_python_frames_tell_the_framework_and_the_outermost_of_them_counts() -> None:
    for trainer, frame in FRAMES.items():
        assert trainer_of(steps("", frame)) == trainer
    assert trainer_of(steps("", *FRAMES.values())) == TRANSFORMERS
    assert trainer_of(steps("", FRAMES[ACCELERATE], FRAMES[LIGHTNING])) == LIGHTNING
    assert trainer_of(steps("", "transformers/models/gpt2/modeling_gpt2.py(9): forward")) == "", (
        "only a model"
    )
    assert trainer_of(steps(ACCELERATE, FRAMES[LIGHTNING])) == ACCELERATE, "what the session saw counts first"


@pytest.mark.parametrize("lever", LEVERS)
@pytest.mark.parametrize("trainer", ["", TRANSFORMERS, LIGHTNING, ACCELERATE])
def test_every_lever_says_something_in_every_framework(lever: str, trainer: str) -> None:
    text = argument(steps(trainer), lever, "plain", workers=2)
    assert text
    assert text.count("(") == text.count(")")
    assert "{plain" not in text
    assert "{workers" not in text
    assert (text == "plain") == (trainer not in LEVERS[lever])


def named(trainer: str, call: str) -> set[str]:
    """Return the arguments that levers give to a class."""
    texts = [text for of_lever in LEVERS.values() for name, text in of_lever.items() if name == trainer]
    inside = [found for text in texts for found in re.findall(rf"\b{call}\((.*)", text)]
    return {name for text in inside for name in re.findall(r"(?:^|[(, ])(\w+)=", text.partition("), ")[0])}


def source(package: str, *path: str) -> str:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], *path).read_text()


def test_the_arguments_of_transformers_exist() -> None:
    needs("transformers")
    text = source("transformers", "training_args.py")
    wanted = named(TRANSFORMERS, "TrainingArguments") - {"group_by_length"}  # that one of older versions
    assert len(wanted) > 10
    assert [name for name in sorted(wanted) if not re.search(rf"^    {name}: ", text, re.MULTILINE)] == []
    assert '"adamw_torch_fused"' in text


def test_the_arguments_of_lightning_exist() -> None:
    needs("lightning")
    text = source("lightning", "pytorch", "trainer", "trainer.py")
    wanted = named(LIGHTNING, "Trainer") - named(LIGHTNING, "DDPStrategy") - {"refresh_rate"}
    assert {"precision", "log_every_n_steps", "strategy"} <= wanted
    assert [name for name in sorted(wanted) if not re.search(rf"^        {name}: ", text, re.MULTILINE)] == []
