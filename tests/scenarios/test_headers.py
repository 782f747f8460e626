"""The shipped ladders have every variant and every figure of the publications, and say the same in- and outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tuiprof.ladder.availability import Missing, availability
from tuiprof.ladder.plan import plan
from tuiprof.ladder.scenarios import Ladder, least_steps, scan
from tuiprof.ladder.state import Figures
from tuiprof.resources import shipped
from tuiprof.session.run import interpreter
from tuiprof.session.run.launch import DEFAULT_CAPTURE, fit_capture

SCANNED = scan()
LADDERS = {ladder.name: ladder for ladder in SCANNED.ladders}

# Variant → the number published for it (None where there is only a text, or nothing).
PUBLISHED: dict[str, dict[str, float | None]] = {
    "attention": {
        "native": 370,
        "native-compiled": 242,
        "sdpa-math": None,
        "sdpa-math-compiled": None,
        "sdpa-flash": 252,
        "sdpa-flash-compiled": None,
        "sdpa-mem-efficient": 272,
        "sdpa-mem-efficient-compiled": None,
        "sdpa-cudnn": None,
        "sdpa-cudnn-compiled": None,
        "flash-attention-3": 240,
        "transformer-engine": 243,
        "transformer-engine-compiled": 204,
        "xformers": 246,
        "xformers-compiled": 203,
        "softcap-native": None,
        "softcap-native-compiled": None,
        "softcap-flex": 3.5,
        "softcap-flex-compiled": 1.5,
        "window-sdpa": None,
        "window-sdpa-compiled": None,
        "window-flex": 2.19,
        "window-flex-compiled": 2.59,
        "window-5x5-sdpa": None,
        "window-5x5-sdpa-compiled": None,
        "window-5x5-flex": None,
        "window-5x5-flex-compiled": None,
    },
    "varlen": {
        "pad-max-eval": 132,
        "pad-max-eval-compiled": 130,
        "pad-longest-eval": 129,
        "pad-longest-eval-compiled": 116,
        "pad-longest-64-eval": None,
        "nested-eval": 131,
        "nested-eval-compiled": 42,
        "flash-varlen-eval": 51,
        "xformers-eval": 50,
        "xformers-eval-compiled": 42,
        "in-tree-eval": None,
        "in-tree-eval-compiled": None,
        "flex-eval": None,
        "flex-eval-compiled": None,
        "pad-max-train": 342,
        "pad-max-train-compiled": 299,
        "pad-longest-train": 337,
        "pad-longest-train-compiled": 294,
        "pad-longest-64-train": None,
        "flash-varlen-train": 160,
        "xformers-train": 159,
        "in-tree-train": None,
        "in-tree-train-compiled": None,
        "flex-train": None,
        "flex-train-compiled": None,
        "gpt2-sdpa": 815,
        "gpt2-sdpa-compiled": 440,
        "gpt2-sdpa-longest": None,
        "gpt2-flash": 620,
        "gpt2-flash-flattened": 323,
        "gpt2-in-tree-flattened": None,
    },
    "neuron-training": {
        "baseline": 251.98,
        "workers-1": 253.56,
        "batch-8": 265.68,
        "amp-bf16": 196.64,
        "xla-use-bf16": 394.51,
        "model-bf16": None,
        "batches-per-execution": 1027.39,
        "auto-cast-bf16": None,
        "auto-cast-fp8": 940.36,
        "transformer-o3": 1093.25,
        "auto-cast-o3": None,
        "openxla": None,
        "native": None,
        "native-compiled": None,
    },
    "pallas-attention": {"native": None, "sdpa": None, "pallas": 23},
    "metrics": {
        "off": None,
        "naive": -10,
        "explicit-weight": None,
        "nan-check-overridden": 0,
        "no-nan-check": None,
        "step-time-on-cpu": 0,
        "step-time-on-device-float": 1,
        "step-time-on-device-tensor": 0,
        "ddp": None,
        "ddp-sync-on-compute": None,
    },
    "cpu-training": {
        "baseline": 9.12,
        "batch-64": None,
        "batch-32": None,
        "batch-16": None,
        "batch-8": None,
        "workers-1": None,
        "workers-2": None,
        "workers-4": None,
        "bf16": 24.34,
        "fp16": None,
        "channels-last": 37.93,
        "compile": 27,
        "compile-channels-last": None,
        "run-cpu": 39.05,
        "compile-ipex": 27,
        "compile-ipex-channels-last": None,
        "ipex": 40.73,
        "ddp-numa": None,
        "xla": 7,
        "gpu": 340,
    },
    "nan-capture": {
        "off": None,
        "capture": 1.5,
        "capture-rng": None,
        "deferred-check": None,
        "reproduce": None,
    },
    "giou-loss": {
        "per-sample": 938.07,
        "concatenated": 25.41,
        "padded": 1.844,
        "padded-compiled": 0.828,
        "padded-compiled-network": None,
        "cuda": 0.629,
        "cuda-conditional": 0.623,
        "cuda-native": None,
        "triton": 0.891,
        "triton-compiled": 0.719,
        "triton-native-compiled": 0.622,
        "cuda-work-64": None,
        "cuda-conditional-work-64": None,
        "cuda-work-1024": None,
        "cuda-conditional-work-1024": None,
    },
    "giou-kernel": {
        "numpy": None,
        "eager": None,
        "compiled": None,
        "triton": None,
        "cuda": None,
        "jax": None,
        "jax-jit": None,
        "pallas": None,
        "pallas-triton": None,
        "neuron-eager": 0.293,
        "nki": 0.211,
        "neuron-cpp": 0.061,
        "pallas-mosaic": None,
        "triton-8-warps": None,
        "triton-autotuned": None,
        "nki-numpy": None,
        "nki-simulated": None,
        "neuron-cpp-host": None,
    },
    "matmul-int8": {
        "xla-bf16": None,
        "xla-int8": None,
        "pallas-bf16": None,
        "pallas-int8": 1.71,
        "pallas-triton-bf16": None,
        "pallas-triton-int8": None,
        "torch-bf16": None,
        "torch-int8": None,
        "triton-bf16": None,
        "triton-int8": None,
        "pallas-mosaic-bf16": None,
        "pallas-mosaic-int8": None,
        "triton-4-warps-bf16": None,
        "triton-autotuned-bf16": None,
        "triton-autotuned-int8": None,
    },
    "nms": {
        "numpy": 2.99,
        "jax-cpu": 1.231,
        "jax": 0.416,
        "pallas": 0.139,
        "pallas-triton": None,
        "torch": None,
        "torchvision": None,
        "triton": None,
        "pallas-mosaic": None,
        "triton-4-warps": None,
        "triton-1-warp": None,
    },
}
HARDWARE = {
    "neuron-training": "inf2.xlarge",
    "pallas-attention": "TPU v5e",
    "attention": "H100",
    "varlen": "H100",
    "metrics": "A40",
    "cpu-training": "c7i.2xlarge",
    "nan-capture": "L40S",
    "giou-loss": "L4",
    "giou-kernel": "Inferentia2",
    "matmul-int8": "TPU v5e",
    "nms": "TPU v5e",
}


def test_every_header_can_be_read() -> None:
    assert [str(problem) for problem in SCANNED.problems] == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_ladder_has_the_published_variants_and_figures(name: str) -> None:
    ladder = LADDERS[name]
    figures = {
        variant.name: next((figure.value for figure in variant.published if figure.value is not None), None)
        for variant in ladder.variants
    }
    assert figures == PUBLISHED[name]
    assert HARDWARE[name] in ladder.source
    assert all(figure.unit for variant in ladder.variants for figure in variant.published if figure.value)


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_ladder_tells_its_story(ladder: Ladder) -> None:
    assert {"paper", "smoke"} <= set(ladder.presets)
    assert all(ladder.presets.values()), "a preset without a note"
    assert len(ladder.story) > 200
    for variant in ladder.variants:
        assert len(variant.note) > 10, variant
        assert all(figure.text for figure in variant.published), variant
        if variant.name != variant.baseline:
            assert variant.builds_on, f"{variant} does not say what it changes one thing of"


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_help_tells_the_story_in_80_columns(ladder: Ladder) -> None:
    environment = {**os.environ, "COLUMNS": "80"}
    command = [sys.executable, str(ladder.script), "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert max(map(len, told.splitlines())) <= 80
    words = " ".join(told.split())
    assert " ".join(ladder.story.split()) in words
    for variant in ladder.variants:
        assert variant.note in words, variant
    for note in ladder.presets.values():
        assert note in words


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_the_default_capture_comes_in_time_in_every_size(ladder: Ladder) -> None:
    for variant in ladder.variants:
        assert set(variant.presets) == set(ladder.presets)
        for preset, steps in variant.presets.items():
            assert steps is not None
            assert least_steps(variant, preset) == steps
            request = fit_capture(DEFAULT_CAPTURE, steps)
            assert request.at is not None
            assert 10 <= request.at <= steps - request.steps - 1, (
                "after warm-up, and one step more comes after it"
            )
        assert least_steps(variant) == min(steps for steps in variant.presets.values() if steps is not None)
        assert least_steps(variant, steps=7) == 7
    assert fit_capture(DEFAULT_CAPTURE, None) == DEFAULT_CAPTURE
    assert fit_capture(DEFAULT_CAPTURE, 2).at == 0
    assert fit_capture(DEFAULT_CAPTURE, 100).or_after_s is None, "that step comes"


def test_scripts_and_tuiprof_give_the_same_reasons() -> None:
    """What a variant lacks here is worked out twice, by the script and by tuiprof from outside."""
    ask = (
        "import json, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from common import needs, scenario\n"
        "answer = {}\n"
        "for script in sys.argv[2:]:\n"
        "    ladder = scenario.header(script)\n"
        "    for variant in ladder['variants']:\n"
        "        wanted = {**ladder['needs'], **variant.get('needs', {})}\n"
        "        answer[ladder['name'] + ':' + variant['name']] = needs.missing(wanted)\n"
        "print(json.dumps(answer))\n"
    )
    scripts = [str(ladder.script) for ladder in LADDERS.values()]
    command = [sys.executable, "-c", ask, str(shipped("scenarios")), *scripts]
    inside = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    facts = interpreter.facts(sys.executable)
    outside = {}
    for ladder in LADDERS.values():
        for variant in ladder.variants:
            answer = availability(variant, facts)
            reasons = answer.reasons if isinstance(answer, Missing) else ()
            outside[str(variant)] = [list(reason) for reason in reasons]
    assert inside == outside
    assert any(inside.values()), "everything can run here, so nothing was compared"


def test_a_figure_stands_only_beside_what_is_measured_at_its_size() -> None:
    def published(ladder: str, preset: str) -> dict[str, str]:
        meta = plan(LADDERS[ladder], interpreter.facts(sys.executable), preset=preset)
        return {rung.name: rung.published_beside(meta.sizes([])) for rung in meta.rungs}

    paper, long, smoke = (published("attention", preset) for preset in ("paper", "long", "smoke"))
    assert (paper["native"], long["native"]) == ("370 ms", "")
    assert (paper["flash-attention-3"], long["flash-attention-3"]) == ("240 ms", "≈5× faster than native")
    assert not any(smoke.values())
    assert published("giou-loss", "loss") == published("giou-loss", "paper")
    assert not any(published("giou-loss", "smoke").values())

    meta = plan(LADDERS["attention"], interpreter.facts(sys.executable))
    native = meta.rung("native")
    assert native.published_beside(meta.sizes([])) == "370 ms", (
        "nothing is measured yet, whose size may be any"
    )
    small, large = (Figures(median_ns=1e6, steps=1, preset=preset) for preset in ("smoke", "paper"))
    assert native.published_beside(meta.sizes([small])) == ""
    assert native.published_beside(meta.sizes([large])) == "370 ms"
