# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5"]
#
# [tool.tuiprof]
# name = "attention"
# title = "attention functions in a ViT"
# story = """
# A vision transformer is trained; only the function softmax(q kᵀ / √d) v inside it changes. Written as three operators
# it makes a tokens × tokens matrix a head, writes it to memory, reads it back, and again backwards. A fused kernel
# keeps it on the chip. torch.compile closes part of the gap, the more so the shorter the sequence; with 3136 tokens
# (the long preset) only a fused kernel will do. What no fused kernel foresees (a soft cap on the scores, a mask of a
# special shape) is where FlexAttention compiles one: two pairs show it, each against the same thing in plain operators.
# """
# baseline = "native"
# reference = { hardware = "NVIDIA H100", software = "CUDA 12.4, PyTorch 2.5.1" }
#
# [tool.tuiprof.presets.paper]
# note = "image 224, patch 16: 196 tokens; 16 heads × 64, depth 24, 1000 classes, batch 128"
# image = 224
# patch = 16
# heads = 16
# head_dim = 64
# depth = 24
# classes = 1000
# batch = 128
# workers = 8
# steps = 60
# warmup = 20
#
# [tool.tuiprof.presets.long]
# note = "image 224, patch 4: 3136 tokens; 12 heads × 64, depth 6, 1000 classes, batch 8"
# image = 224
# patch = 4
# heads = 12
# head_dim = 64
# depth = 6
# classes = 1000
# batch = 8
# workers = 8
# steps = 60
# warmup = 20
#
# [tool.tuiprof.presets.smoke]
# note = "image 32, patch 4: 64 tokens; 2 heads × 64, depth 1, 10 classes, batch 2; runs anywhere in seconds"
# image = 32
# patch = 4
# heads = 2
# head_dim = 64
# depth = 1
# classes = 10
# batch = 2
# workers = 1
# steps = 14
# warmup = 2
#
# [[tool.tuiprof.variants]]
# name = "native"
# note = "matmul, softmax, matmul: the definition, operator by operator."
# set = { attention = "native" }
# published = [{ text = "370 ms", value = 370, unit = "ms" }]
#
# [[tool.tuiprof.variants]]
# name = "native-compiled"
# note = "The same model through torch.compile."
# builds_on = "native"
# set = { attention = "native", compile = true }
# published = [{ text = "242 ms", value = 242, unit = "ms" }]
# needs = { compile = true }
#
# [[tool.tuiprof.variants]]
# name = "sdpa-math"
# note = "scaled_dot_product_attention, held to its plain backend: one call, but the matrix is still written."
# builds_on = "native"
# set = { attention = "sdpa-math" }
# published = [{ text = "eager not in the text" }]
#
# [[tool.tuiprof.variants]]
# name = "sdpa-math-compiled"
# note = "sdpa-math in a compiled model; where Inductor knows the formula, it puts a fused kernel in its place."
# builds_on = "sdpa-math"
# set = { attention = "sdpa-math", compile = true }
# published = [{ text = "≈202–204 ms, as every compiled SDPA", value = 203, unit = "ms" }]
# needs = { compile = true }
#
# [[tool.tuiprof.variants]]
# name = "sdpa-flash"
# note = "scaled_dot_product_attention, held to the FlashAttention kernel."
# builds_on = "native"
# set = { attention = "sdpa-flash" }
# published = [{ text = "≈252 ms (flash-attention-3 is 5 % faster)", value = 252, unit = "ms" }]
#
# [[tool.tuiprof.variants]]
# name = "sdpa-flash-compiled"
# note = "sdpa-flash in a compiled model."
# builds_on = "sdpa-flash"
# set = { attention = "sdpa-flash", compile = true }
# published = [{ text = "≈202–204 ms, as every compiled SDPA", value = 203, unit = "ms" }]
# needs = { compile = true }
#
# [[tool.tuiprof.variants]]
# name = "sdpa-mem-efficient"
# note = "scaled_dot_product_attention, held to the memory-efficient kernel."
# builds_on = "native"
# set = { attention = "sdpa-mem-efficient" }
# published = [{ text = "≈272 ms (xformers is 10.5 % faster)", value = 272, unit = "ms" }]
# needs = { device = "cuda", why = "PyTorch has no memory-efficient SDPA kernel for a CPU" }
#
# [[tool.tuiprof.variants]]
# name = "sdpa-mem-efficient-compiled"
# note = "sdpa-mem-efficient in a compiled model."
# builds_on = "sdpa-mem-efficient"
# set = { attention = "sdpa-mem-efficient", compile = true }
# published = [{ text = "≈202–204 ms, as every compiled SDPA", value = 203, unit = "ms" }]
# needs = { device = "cuda", why = "PyTorch has no memory-efficient SDPA kernel for a CPU", compile = true }
#
# [[tool.tuiprof.variants]]
# name = "sdpa-cudnn"
# note = "scaled_dot_product_attention, held to cuDNN, which is tuned for Hopper since PyTorch 2.5."
# builds_on = "native"
# set = { attention = "sdpa-cudnn" }
# published = [{ text = "eager not in the text" }]
# needs = { device = "cuda", why = "cuDNN runs on NVIDIA GPUs only", capability = ">=8.0" }
#
# [[tool.tuiprof.variants]]
# name = "sdpa-cudnn-compiled"
# note = "sdpa-cudnn in a compiled model."
# builds_on = "sdpa-cudnn"
# set = { attention = "sdpa-cudnn", compile = true }
# published = [{ text = "≈202–204 ms, as every compiled SDPA", value = 203, unit = "ms" }]
# needs = { device = "cuda", why = "cuDNN runs on NVIDIA GPUs only", capability = ">=8.0", compile = true }
#
# [[tool.tuiprof.variants]]
# name = "flash-attention-3"
# note = "flash_attn_func of FlashAttention 3, written for Hopper; it takes [batch, tokens, heads, head_dim]."
# builds_on = "native"
# set = { attention = "flash-attention-3" }
# published = [
#   { text = "240 ms", value = 240, unit = "ms" },
#   { preset = "long", text = "≈5× faster than native", value = 5, unit = "×" },
# ]
# [tool.tuiprof.variants.needs]
# packages = ["flash-attn-3>=3.0"]
# remedy = "build it with nvcc: pip install . in the folder hopper/ of the flash-attention repository"
# device = "cuda"
# why = "FlashAttention 3 is written for Hopper"
# capability = ">=9.0,<10.0"
#
# [[tool.tuiprof.variants]]
# name = "transformer-engine"
# note = "DotProductAttention of TransformerEngine (fused, no mask, layout bshd)."
# builds_on = "native"
# set = { attention = "transformer-engine" }
# published = [{ text = "243 ms", value = 243, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["transformer-engine>=1.9"]
# remedy = "pip install --no-build-isolation 'transformer-engine[pytorch]' (builds with nvcc)"
# device = "cuda"
# why = "TransformerEngine has CUDA kernels only"
# capability = ">=8.0"
#
# [[tool.tuiprof.variants]]
# name = "transformer-engine-compiled"
# note = "transformer-engine in a compiled model."
# builds_on = "transformer-engine"
# set = { attention = "transformer-engine", compile = true }
# published = [
#   { text = "204 ms", value = 204, unit = "ms" },
#   { preset = "long", text = "53 ms, the best", value = 53, unit = "ms" },
# ]
# [tool.tuiprof.variants.needs]
# packages = ["transformer-engine>=1.9"]
# remedy = "pip install --no-build-isolation 'transformer-engine[pytorch]' (builds with nvcc)"
# device = "cuda"
# why = "TransformerEngine has CUDA kernels only"
# capability = ">=8.0"
# compile = true
#
# [[tool.tuiprof.variants]]
# name = "xformers"
# note = "memory_efficient_attention of xFormers (layout bshd)."
# builds_on = "native"
# set = { attention = "xformers" }
# published = [{ text = "246 ms", value = 246, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["xformers>=0.0.28"]
# device = "cuda"
# why = "the attention of xFormers has CUDA kernels only"
# capability = ">=7.5"
#
# [[tool.tuiprof.variants]]
# name = "xformers-compiled"
# note = "xformers in a compiled model."
# builds_on = "xformers"
# set = { attention = "xformers", compile = true }
# published = [{ text = "203 ms", value = 203, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["xformers>=0.0.28"]
# device = "cuda"
# why = "the attention of xFormers has CUDA kernels only"
# capability = ">=7.5"
# compile = true
#
# [[tool.tuiprof.variants]]
# name = "softcap-native"
# note = "Scores capped softly, 30·tanh(s/30), with plain operators."
# preset = "long"
# baseline = "softcap-native"
# set = { attention = "softcap-native" }
#
# [[tool.tuiprof.variants]]
# name = "softcap-native-compiled"
# note = "softcap-native in a compiled model."
# preset = "long"
# baseline = "softcap-native"
# builds_on = "softcap-native"
# set = { attention = "softcap-native", compile = true }
# needs = { compile = true }
#
# [[tool.tuiprof.variants]]
# name = "softcap-flex"
# note = "The cap as a score_mod of flex_attention, which is compiled (it must be); the rest of the model is eager."
# preset = "long"
# baseline = "softcap-native"
# builds_on = "softcap-native"
# set = { attention = "softcap-flex" }
# published = [
#   { preset = "long", text = "≈3.5× faster than softcap-native", value = 3.5, unit = "×" },
# ]
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
#
# [[tool.tuiprof.variants]]
# name = "softcap-flex-compiled"
# note = "softcap-flex in a compiled model."
# preset = "long"
# baseline = "softcap-native"
# builds_on = "softcap-flex"
# set = { attention = "softcap-flex", compile = true }
# published = [
#   { preset = "long", text = "≈1.5× faster than softcap-native-compiled", value = 1.5, unit = "×" },
# ]
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
#
# [[tool.tuiprof.variants]]
# name = "window-sdpa"
# note = "Each patch sees the 5×5 patches around it: a dense mask given to scaled_dot_product_attention."
# preset = "long"
# baseline = "window-sdpa"
# set = { attention = "window-sdpa" }
#
# [[tool.tuiprof.variants]]
# name = "window-sdpa-compiled"
# note = "window-sdpa in a compiled model."
# preset = "long"
# baseline = "window-sdpa"
# builds_on = "window-sdpa"
# set = { attention = "window-sdpa", compile = true }
# needs = { compile = true }
#
# [[tool.tuiprof.variants]]
# name = "window-flex"
# note = "The window as a block_mask of flex_attention: blocks that are masked out entirely are never computed."
# preset = "long"
# baseline = "window-sdpa"
# builds_on = "window-sdpa"
# set = { attention = "window-flex" }
# published = [
#   { preset = "long", text = "2.19× faster than window-sdpa", value = 2.19, unit = "×" },
# ]
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
#
# [[tool.tuiprof.variants]]
# name = "window-flex-compiled"
# note = "window-flex in a compiled model."
# preset = "long"
# baseline = "window-sdpa"
# builds_on = "window-flex"
# set = { attention = "window-flex", compile = true }
# published = [
#   { preset = "long", text = "2.59× faster than window-sdpa-compiled", value = 2.59, unit = "×" },
# ]
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
# ///
"""Attention functions in a ViT: ``python scenarios/attention.py --help`` tells the story."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from common import scenario

if TYPE_CHECKING:
    import torch
    from common.checking import Check
    from common.training import Loop
    from common.vit import Attention

SOFTCAP = 30.0
REACH = 2  # patches on either side: a window of 5×5
HALF_PRECISION_ONLY = {"sdpa-flash", "sdpa-cudnn", "flash-attention-3", "transformer-engine", "xformers"}


def attention_function(run: scenario.Run, device: torch.device) -> Attention:
    """Return the variant's attention function; ``common/attentions.py`` has them all."""
    from common import attentions

    size = run.size
    match run.set["attention"]:
        case "native":
            return attentions.native
        case name if name in attentions.KERNELS:
            return attentions.sdpa(attentions.KERNELS[name])
        case "flash-attention-3":
            return attentions.flash_attention_3()
        case "transformer-engine":
            return attentions.transformer_engine(size.heads, size.head_dim)
        case "xformers":
            return attentions.xformers()
        case "softcap-native":
            return lambda q, k, v: attentions.native(q, k, v, softcap=SOFTCAP)
        case "softcap-flex":
            return attentions.softcap_flex(SOFTCAP)
        case "window-sdpa":
            return attentions.sdpa(mask=attentions.window_mask(size.image // size.patch, REACH, device))
        case "window-flex":
            return attentions.window_flex(size.image // size.patch, REACH, device)
        case other:
            raise ValueError(f"no attention function is called {other!r}")


def train(run: scenario.Run) -> Loop:
    """Train the variant and return the timed loop."""
    import torch
    from common.training import Images, Loop, accelerator, loader, normalise, phase
    from common.vit import ViT

    size, device = run.size, accelerator()
    torch.manual_seed(run.seed)
    torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    attention = attention_function(run, device)
    dim = size.heads * size.head_dim
    with device:  # random weights are drawn where they are needed
        model = ViT(size.image, size.patch, dim, size.heads, size.depth, size.classes, attention)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if run.set.get("compile"):
        model = torch.compile(model)

    images = Images(run.steps * size.batch, size.image, size.classes, run.seed)
    loop = Loop(loader(images, size.batch, size.workers, device), size.batch, run.warmup, device)
    for pixels, labels in loop:
        with phase("h2d"):
            pixels = normalise(pixels.to(device, non_blocking=True))
            labels = labels.to(device, non_blocking=True)
        with phase("forward"), torch.autocast(device.type, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        with phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        loop.note(loss)
    return loop


def check(run: scenario.Run) -> Check:
    """Hold the attention function to its definition in float64, and three training steps to the baseline's losses.

    At the start of training the scores of a ViT are so small that softmax is nearly flat, and even a wrong scale hardly
    shows in the loss. So the function itself is fed with larger random numbers, and its gradients are compared too.
    """
    import torch
    from common.attentions import output_and_gradients
    from common.checking import Check, compare_attention, compare_losses
    from common.training import accelerator

    size, device = run.size, accelerator()
    shape = (1, (size.image // size.patch) ** 2, size.heads, size.head_dim)
    checked = Check(run.baseline)

    half_only = device.type == "cuda" and run.set["attention"] in HALF_PRECISION_ONLY
    dtype = torch.bfloat16 if half_only else torch.float32
    attention = attention_function(run, device)
    if run.set.get("compile"):
        attention = torch.compile(attention)
    got = output_and_gradients(attention, shape, device, dtype)
    definition = attention_function(run.of(run.baseline), device)
    want = output_and_gradients(definition, shape, device, dtype, compute=torch.float64)
    compare_attention(checked, got, want, dtype)
    del got, want
    compare_losses(checked, run, train, torch.bfloat16)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
