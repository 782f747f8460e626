"""On a small machine without an accelerator every variant either can run or is listed with the reason and a remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tuiprof.ladder.availability import Missing, availability
from tuiprof.ladder.plan import plan
from tuiprof.ladder.scenarios import Variant, command, ladders
from tuiprof.session.run import interpreter

LADDERS = {ladder.name: ladder for ladder in ladders()}
VARIANTS = {str(variant): variant for ladder in LADDERS.values() for variant in ladder.variants}

#: What a reason begins with, and a part of its remedy.
GPU = ("needs an NVIDIA GPU", "install a CUDA build of PyTorch on a machine with an NVIDIA GPU")
NEURON = ("needs an AWS Neuron device", "run it on a machine with one")
TPU = ("needs a Google TPU", "run it on a machine with one")
NVCC = ("needs nvcc, the CUDA compiler", "install the CUDA toolkit")
NUMA = ("needs 2 NUMA nodes, this machine has 1", "machine")
FLASH_2 = ("flash-attn is not installed", "flash-attn (builds with nvcc)")
FLASH_3 = ("flash-attn-3 is not installed", "in the folder hopper/ of the flash-attention repository")
ENGINE = (
    "transformer-engine is not installed",
    "pip install --no-build-isolation 'transformer-engine[pytorch]'",
)
XFORMERS = ("xformers is not installed", "pip install 'xformers>=")
HUGGING_FACE = ("transformers is not installed", "pip install")
JAX = ("jax is not installed", "pip install 'jax>=")
XLA_JAX = ("jax is not installed", "pip install 'torch_xla[tpu,pallas]'")
JAX_DEVICE = ("needs a TPU or an NVIDIA GPU", "run it on a machine with one")
ABSL = ("absl-py is not installed", "pip install 'absl-py'")
TRITON = ("triton is not installed", "pip install 'triton>=")
NINJA = ("ninja is not installed", "pip install")
TORCHVISION = ("torchvision is not installed", "pip install 'torchvision>=")
XLA = ("torch_xla is not installed", "pip install 'torch_xla>=")
XLA_TORCH = ("needs torch >=2.5,<2.10, 2.13", "pip install 'torch>=2.5,<2.10'")
TCMALLOC = ("libtcmalloc.so is not installed", "apt install libtcmalloc-minimal4")
OPENMP = ("libiomp5.so is not installed", "pip install intel-openmp")
OLD_TORCH = ("needs torch >=2.8,<2.9", "'torch==2.8.*'")
IPEX = ("intel-extension-for-pytorch is not installed", "discontinued after 2.8")
NEURONX = ("torch-neuronx is not installed", "https://pip.repos.neuron.amazonaws.com")
NEURON_XLA = ("torch-xla is not installed", "https://pip.repos.neuron.amazonaws.com")
NEURON_CC = ("neuronx-cc is not installed", "https://pip.repos.neuron.amazonaws.com")
NKI = ("nki is not installed", "https://pip.repos.neuron.amazonaws.com")

#: Whatever is not here can run.
LACKS = [
    (
        [GPU],
        "attention: sdpa-mem-efficient sdpa-mem-efficient-compiled sdpa-cudnn sdpa-cudnn-compiled softcap-flex"
        " softcap-flex-compiled window-flex window-flex-compiled window-5x5-flex window-5x5-flex-compiled",
    ),
    ([GPU, FLASH_3], "attention: flash-attention-3"),
    ([GPU, ENGINE], "attention: transformer-engine transformer-engine-compiled"),
    ([GPU, XFORMERS], "attention: xformers xformers-compiled"),
    (
        [GPU],
        "varlen: in-tree-eval in-tree-eval-compiled flex-eval-compiled in-tree-train in-tree-train-compiled flex-train"
        " flex-train-compiled",
    ),
    ([GPU, FLASH_2], "varlen: flash-varlen-eval flash-varlen-train"),
    ([GPU, XFORMERS], "varlen: xformers-eval xformers-eval-compiled xformers-train"),
    ([HUGGING_FACE], "varlen: gpt2-sdpa gpt2-sdpa-compiled gpt2-sdpa-longest"),
    ([GPU, HUGGING_FACE, FLASH_2], "varlen: gpt2-flash gpt2-flash-flattened"),
    ([GPU, HUGGING_FACE], "varlen: gpt2-in-tree-flattened"),
    ([TCMALLOC, OPENMP], "cpu-training: run-cpu"),
    ([OLD_TORCH, IPEX], "cpu-training: compile-ipex compile-ipex-channels-last"),
    ([OLD_TORCH, IPEX, TCMALLOC, OPENMP], "cpu-training: ipex"),
    ([NUMA], "cpu-training: ddp-numa"),
    ([XLA_TORCH, XLA], "cpu-training: xla"),
    ([GPU], "cpu-training: gpu"),
    ([XLA_TORCH, XLA], "pallas-attention: native sdpa"),
    ([TPU, XLA_TORCH, XLA, XLA_JAX], "pallas-attention: pallas"),
    (
        [NEURON, NEURONX, NEURON_XLA, NEURON_CC],
        "neuron-training: baseline workers-1 batch-8 amp-bf16 xla-use-bf16 model-bf16 batches-per-execution"
        " auto-cast-bf16 auto-cast-fp8 transformer-o3 auto-cast-o3 openxla",
    ),
    ([NEURON, NEURONX], "neuron-training: native native-compiled"),
    ([TRITON], "giou-loss: triton"),
    ([GPU, TRITON], "giou-loss: triton-compiled triton-native-compiled"),
    (
        [GPU, NVCC],
        "giou-loss: cuda cuda-conditional cuda-native cuda-work-64 cuda-conditional-work-64 cuda-work-1024"
        " cuda-conditional-work-1024",
    ),
    ([TRITON], "giou-kernel: triton"),
    ([GPU, NINJA, NVCC], "giou-kernel: cuda"),
    ([JAX], "giou-kernel: jax jax-jit pallas pallas-triton"),
    ([NEURON, NEURONX], "giou-kernel: neuron-eager"),
    ([NEURON, NEURONX, NKI], "giou-kernel: nki"),
    ([NEURON, NEURONX, NINJA], "giou-kernel: neuron-cpp"),
    (
        [JAX],
        "matmul-int8: xla-bf16 xla-int8 pallas-bf16 pallas-int8 pallas-triton-bf16 pallas-triton-int8",
    ),
    ([TRITON], "matmul-int8: triton-bf16 triton-int8"),
    ([JAX], "nms: jax-cpu pallas pallas-triton"),
    ([JAX_DEVICE, JAX], "nms: jax"),
    ([TORCHVISION], "nms: torchvision"),
    ([TRITON], "nms: triton"),
    ([GPU, TRITON], "nms: triton-4-warps triton-1-warp"),
    ([GPU, TRITON], "giou-kernel: triton-8-warps triton-autotuned"),
    ([GPU, TRITON], "matmul-int8: triton-4-warps-bf16 triton-autotuned-bf16 triton-autotuned-int8"),
    ([JAX_DEVICE, JAX, ABSL], "giou-kernel: pallas-mosaic"),
    ([JAX_DEVICE, JAX, ABSL], "matmul-int8: pallas-mosaic-bf16 pallas-mosaic-int8"),
    ([JAX_DEVICE, JAX, ABSL], "nms: pallas-mosaic"),
    ([NKI], "giou-kernel: nki-simulated"),
]
EXPECTED = {
    f"{line.split(':')[0]}:{name}": lacks for lacks, line in LACKS for name in line.split(":")[1].split()
}


#: What `make setup` adds to torch, and what is no reason any more with it.
ADDED = {"jax": "0.10.2", "triton": "3.9.0", "transformers": "5.23.0"}
MET = (JAX, TRITON, HUGGING_FACE)


@pytest.fixture(scope="module", params=[{}, ADDED], ids=["torch alone", "with jax, triton and transformers"])
def small_machine(request: pytest.FixtureRequest) -> interpreter.Facts:
    """Two cores, torch for CPUs with torchmetrics, and a C++ compiler; what runs in interpreters, or not."""
    torch = {"torch": "2.13.0+cpu", "torchmetrics": "1.9.0", "numpy": "2.4.6"}
    return msgspec.structs.replace(
        interpreter.facts(sys.executable),
        version="3.11.7",
        distributions={**torch, **request.param},
        torch_cuda=False,
        gpus=(),
        nvcc="",
        cxx="/usr/bin/g++",
        cores=2,
        numa_nodes=1,
        libraries=frozenset(),
    )


def expected(variant: object, machine: interpreter.Facts) -> list[tuple[str, str]]:
    """Return what a variant lacks on a small machine."""
    met = {reason for reason, _ in MET if machine.distribution(reason.split()[0])}
    return [lack for lack in EXPECTED.get(str(variant), []) if lack[0] not in met]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_variant_is_listed_with_the_right_reason_and_remedy(
    variant: Variant, small_machine: interpreter.Facts
) -> None:
    answer = availability(variant, small_machine)
    reasons = answer.reasons if isinstance(answer, Missing) else ()
    lacks = expected(variant, small_machine)
    assert len(reasons) == len(lacks), reasons
    for (reason, remedy), (begins, holds) in zip(reasons, lacks, strict=True):
        assert reason.startswith(begins)
        assert holds in remedy


def test_no_variant_of_the_list_is_gone() -> None:
    assert EXPECTED.keys() <= VARIANTS.keys()


@pytest.mark.parametrize("name", LADDERS)
def test_a_ladder_lists_what_it_cannot_run(name: str, small_machine: interpreter.Facts) -> None:
    rungs = plan(LADDERS[name], small_machine).rungs
    assert [rung.name for rung in rungs if rung.reason] == [
        variant.name for variant in LADDERS[name].variants if expected(variant, small_machine)
    ]
    assert all(rung.remedy for rung in rungs if rung.reason)


@pytest.mark.parametrize("name", ["pallas-attention:native", "cpu-training:xla"])
def test_pytorch_xla_of_another_release_than_pytorch_is_named_with_the_pins(
    name: str, tmp_path: Path, small_machine: interpreter.Facts
) -> None:
    """Installed side by side they crash at import: both the script and tuiprof say so before."""
    versions = {"torch": "2.9.1+cpu", "torch-xla": "2.8.0", "numpy": "2.4.6"}
    facts = msgspec.structs.replace(small_machine, distributions=versions)
    answer = availability(VARIANTS[name], facts)
    assert isinstance(answer, Missing)
    reason = "needs torch and torch_xla of one release, torch 2.9.1+cpu and torch_xla 2.8.0 are installed"
    assert answer.reasons == ((reason, "pip install 'torch==2.8.*' 'torch_xla==2.8.*'"),)
    same = msgspec.structs.replace(facts, distributions=versions | {"torch-xla": "2.9.0"})
    assert not isinstance(availability(VARIANTS[name], same), Missing)

    for package, version in versions.items():
        folder = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    script, *arguments = command(VARIANTS[name], preset="smoke")
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 77, done.stderr
    assert f"cannot run here: {reason} — pip install 'torch==2.8.*' 'torch_xla==2.8.*'" in done.stderr
