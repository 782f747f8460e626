# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5,<2.10", "torch_xla>=2.5,<2.10"]
#
# [tool.tuiprof]
# name = "pallas-attention"
# title = "flash attention in PyTorch/XLA"
# story = """
# On a GPU a fused attention kernel wins; does it on a TPU? PyTorch/XLA writes the whole training step down as one
# graph, and XLA fuses what it can by itself, attention written as three operators included. A Pallas kernel is a black
# box in that graph: XLA can neither fuse into it nor choose the layout of what goes in and out. With the 256 tokens of
# this vision transformer the matrix that flash attention avoids is small, and the kernel costs more than it saves: the
# publication found it 23 % slower than the plain operators. Measure before you swap. The host times the step: it hands
# a graph over and waits for the one before, so that in a row of steps it goes at the pace of the device.
# """
# baseline = "native"
# check_and_run = ["--check"]
# reference = { hardware = "Google TPU v5e", software = "PyTorch/XLA 2.4" }
# needs = { same_release = ["torch", "torch_xla"] }
#
# [tool.tuiprof.presets.paper]
# note = "ViT-Base: image 256, patch 16: 256 tokens; 12 heads × 64, depth 12, 1000 classes, batch 128"
# image = 256
# patch = 16
# heads = 12
# head_dim = 64
# depth = 12
# classes = 1000
# batch = 128
# workers = 8
# steps = 60
# warmup = 20
#
# [tool.tuiprof.presets.smoke]
# note = "image 32, patch 4: 64 tokens; 2 heads × 64, depth 1, 10 classes, batch 8; runs anywhere in seconds"
# image = 32
# patch = 4
# heads = 2
# head_dim = 64
# depth = 1
# classes = 10
# batch = 8
# workers = 1
# steps = 14
# warmup = 3
# [[tool.tuiprof.variants]]
# name = "native"
# note = "matmul, softmax, matmul: XLA sees the operators and fuses what it can."
# published = [{ text = "baseline" }]
# [[tool.tuiprof.variants]]
# name = "sdpa"
# note = "scaled_dot_product_attention with scale 1 (q is scaled before, as in native): XLA gets it as plain operators."
# builds_on = "native"
# [[tool.tuiprof.variants]]
# name = "pallas"
# note = "The flash attention kernel in Pallas that PyTorch/XLA brings; a custom call in XLA's graph."
# builds_on = "native"
# published = [{ text = "23 % slower than native", value = 23, unit = "% slower" }]
# [tool.tuiprof.variants.needs]
# packages = ["jax>=0.4.30"]
# remedy = "pip install 'torch_xla[tpu,pallas]'"
# device = "tpu"
# why = "the Pallas kernels of PyTorch/XLA are compiled for TPUs only"
# ///
"""Flash attention in PyTorch/XLA: ``python scenarios/pallas_attention.py --help`` tells the story."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

try:
    from common import scenario
except ModuleNotFoundError:
    sys.exit(
        f"{__file__} was copied without the folder common, which lies beside the original: copy that too"
    )

if TYPE_CHECKING:
    import torch
    from common.checking import Check
    from common.training import Loop
    from common.vit import Attention


def attention_function(variant: str) -> Attention:
    """Return the attention function of a variant; q, k and v come as ``[batch, tokens, heads, head_dim]``."""
    from common import attentions

    if variant == "native":
        return attentions.native
    if variant == "sdpa":
        from torch.nn.functional import scaled_dot_product_attention

        def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return scaled_dot_product_attention(q, k, v, scale=1.0)
    else:
        from torch_xla.experimental.custom_kernel import flash_attention as fused  # its scale is 1

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q = q * q.shape[-1] ** -0.5
        return fused(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2)

    return attention


def train(run: scenario.Run) -> Loop:
    """Train the variant and return the timed loop."""
    import torch
    from common.training import Images, Loop, loader, normalise, phase
    from common.vit import ViT
    from common.xla import xla_device

    size, device = run.size, xla_device()
    import torch_xla

    torch.manual_seed(run.seed)
    dim, attention = size.heads * size.head_dim, attention_function(run.variant["name"])
    model = ViT(size.image, size.patch, dim, size.heads, size.depth, size.classes, attention).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = Images(run.steps * size.batch, size.image, size.classes, run.seed)
    loop = Loop(loader(images, size.batch, size.workers, device), size.batch, run.warmup, device)
    for pixels, labels in loop:
        with phase("h2d"):
            pixels, labels = normalise(pixels.to(device)), labels.to(device)
        with phase("forward"), torch.autocast("xla", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        with phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        with phase("execute"):  # until here XLA has only written down what is to be computed
            torch_xla.sync()
        loop.note(loss)
    return loop


def check(run: scenario.Run) -> Check:
    """Hold the attention function to its definition in float64 on the CPU, and three steps to the losses of native.

    At the start of training softmax is nearly flat, and even a wrong scale hardly shows in the loss. So the function
    itself is fed with larger random numbers, and its gradients are compared too.
    """
    import torch
    from common.attentions import native, output_and_gradients
    from common.checking import Check, compare_attention, compare_losses
    from common.xla import xla_device

    size, device, checked = run.size, xla_device(), Check("native")
    shape = (1, (size.image // size.patch) ** 2, size.heads, size.head_dim)
    # A TPU multiplies matrices in bf16, whatever they are made of.
    dtype = torch.bfloat16 if run.preset == "paper" else torch.float32
    got = output_and_gradients(attention_function(run.variant["name"]), shape, device, dtype)
    want = output_and_gradients(native, shape, torch.device("cpu"), dtype, compute=torch.float64)
    compare_attention(checked, got, want, dtype)
    compare_losses(checked, run, train, torch.bfloat16)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
