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
# keeps it on the chip. torch.compile closes the gap where the sequence is short (196 tokens); with 3136 tokens (the
# long preset) only a fused kernel will do. What no fused kernel foresees (a soft cap on the scores, a mask of a
# special shape) is where FlexAttention compiles one: two pairs show it, each against the same thing in plain
# operators.
# """
# baseline = "native"
# check_and_run = ["--check"]
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
# [[tool.tuiprof.variants]]
# name = "native"
# note = "matmul, softmax, matmul: the definition, operator by operator."
# set = { attention = "native" }
# published = [{ text = "370 ms", value = 370, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "native-compiled"
# note = "The same model through torch.compile."
# builds_on = "native"
# set = { attention = "native", compile = true }
# published = [{ text = "242 ms", value = 242, unit = "ms" }]
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "sdpa-math"
# note = "scaled_dot_product_attention, held to its plain backend: one call, but the matrix is still written."
# builds_on = "native"
# set = { attention = "sdpa-math" }
# [[tool.tuiprof.variants]]
# name = "sdpa-math-compiled"
# note = "sdpa-math in a compiled model; where Inductor knows the formula, it puts a fused kernel in its place."
# builds_on = "sdpa-math"
# set = { attention = "sdpa-math", compile = true }
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "sdpa-flash"
# note = "scaled_dot_product_attention, held to the FlashAttention kernel."
# builds_on = "native"
# set = { attention = "sdpa-flash" }
# published = [{ text = "≈252 ms (flash-attention-3 is 5 % faster)", value = 252, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "sdpa-flash-compiled"
# note = "sdpa-flash in a compiled model."
# builds_on = "sdpa-flash"
# set = { attention = "sdpa-flash", compile = true }
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "sdpa-mem-efficient"
# note = "scaled_dot_product_attention, held to the memory-efficient kernel."
# builds_on = "native"
# set = { attention = "sdpa-mem-efficient" }
# published = [{ text = "≈272 ms (xformers is 10.5 % faster)", value = 272, unit = "ms" }]
# needs = { device = "cuda", why = "PyTorch has no memory-efficient SDPA kernel for a CPU" }
# [[tool.tuiprof.variants]]
# name = "sdpa-mem-efficient-compiled"
# note = "sdpa-mem-efficient in a compiled model."
# builds_on = "sdpa-mem-efficient"
# set = { attention = "sdpa-mem-efficient", compile = true }
# needs = { device = "cuda", why = "PyTorch has no memory-efficient SDPA kernel for a CPU", compile = true }
# [[tool.tuiprof.variants]]
# name = "sdpa-cudnn"
# note = "scaled_dot_product_attention, held to cuDNN, which is tuned for Hopper since PyTorch 2.5."
# builds_on = "native"
# set = { attention = "sdpa-cudnn" }
# needs = { device = "cuda", why = "cuDNN runs on NVIDIA GPUs only", capability = ">=8.0" }
# [[tool.tuiprof.variants]]
# name = "sdpa-cudnn-compiled"
# note = "sdpa-cudnn in a compiled model."
# builds_on = "sdpa-cudnn"
# set = { attention = "sdpa-cudnn", compile = true }
# needs = { device = "cuda", why = "cuDNN runs on NVIDIA GPUs only", capability = ">=8.0", compile = true }
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
# [[tool.tuiprof.variants]]
# name = "transformer-engine"
# note = "DotProductAttention of TransformerEngine, held to its fused backend (cuDNN); no mask, layout bshd."
# builds_on = "native"
# set = { attention = "transformer-engine" }
# published = [{ text = "243 ms", value = 243, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["transformer-engine>=1.9"]
# remedy = "pip install --no-build-isolation 'transformer-engine[pytorch]' (builds with nvcc)"
# device = "cuda"
# why = "TransformerEngine has CUDA kernels only"
# capability = ">=8.0"
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
# [[tool.tuiprof.variants]]
# name = "softcap-native"
# note = "Scores capped softly, 30·tanh(s/30), with plain operators."
# preset = "long"
# baseline = "softcap-native"
# set = { attention = "softcap-native" }
# [[tool.tuiprof.variants]]
# name = "softcap-native-compiled"
# note = "softcap-native in a compiled model."
# preset = "long"
# baseline = "softcap-native"
# builds_on = "softcap-native"
# set = { attention = "softcap-native", compile = true }
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "softcap-flex"
# note = "The cap as a score_mod of flex_attention, which is compiled (it must be); the rest of the model is eager."
# preset = "long"
# baseline = "softcap-native"
# builds_on = "softcap-native"
# set = { attention = "softcap-flex" }
# published = [{ preset = "long", text = "≈3.5× faster than softcap-native", value = 3.5, unit = "×" }]
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
# [[tool.tuiprof.variants]]
# name = "softcap-flex-compiled"
# note = "softcap-flex in a compiled model."
# preset = "long"
# baseline = "softcap-native"
# builds_on = "softcap-flex"
# set = { attention = "softcap-flex", compile = true }
# published = [{ preset = "long", text = "≈1.5× faster than softcap-native-compiled", value = 1.5, unit = "×" }]
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
# [[tool.tuiprof.variants]]
# name = "window-sdpa"
# note = "Each patch sees those at most 4 rows and columns away (9×9): a dense mask for scaled_dot_product_attention."
# preset = "long"
# baseline = "window-sdpa"
# set = { attention = "window-sdpa", reach = 4 }
# [[tool.tuiprof.variants]]
# name = "window-sdpa-compiled"
# note = "window-sdpa in a compiled model."
# preset = "long"
# baseline = "window-sdpa"
# builds_on = "window-sdpa"
# set = { attention = "window-sdpa", reach = 4, compile = true }
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "window-flex"
# note = "The window as a block_mask of flex_attention: blocks that are masked out entirely are never computed."
# preset = "long"
# baseline = "window-sdpa"
# builds_on = "window-sdpa"
# set = { attention = "window-flex", reach = 4 }
# published = [{ preset = "long", text = "2.19× faster than window-sdpa", value = 2.19, unit = "×" }]
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
# [[tool.tuiprof.variants]]
# name = "window-flex-compiled"
# note = "window-flex in a compiled model."
# preset = "long"
# baseline = "window-sdpa"
# builds_on = "window-flex"
# set = { attention = "window-flex", reach = 4, compile = true }
# published = [{ preset = "long", text = "2.59× faster than window-sdpa-compiled", value = 2.59, unit = "×" }]
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
# [[tool.tuiprof.variants]]
# name = "window-5x5-sdpa"
# note = "A smaller window, the 5×5 patches around each (the publication's words; it measured 9×9)."
# preset = "long"
# baseline = "window-5x5-sdpa"
# set = { attention = "window-sdpa", reach = 2 }
# [[tool.tuiprof.variants]]
# name = "window-5x5-sdpa-compiled"
# note = "window-5x5-sdpa in a compiled model."
# preset = "long"
# baseline = "window-5x5-sdpa"
# builds_on = "window-5x5-sdpa"
# set = { attention = "window-sdpa", reach = 2, compile = true }
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "window-5x5-flex"
# note = "The smaller window as a block_mask of flex_attention."
# preset = "long"
# baseline = "window-5x5-sdpa"
# builds_on = "window-5x5-sdpa"
# set = { attention = "window-flex", reach = 2 }
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
# [[tool.tuiprof.variants]]
# name = "window-5x5-flex-compiled"
# note = "window-5x5-flex in a compiled model."
# preset = "long"
# baseline = "window-5x5-sdpa"
# builds_on = "window-5x5-flex"
# set = { attention = "window-flex", reach = 2, compile = true }
# needs = { device = "cuda", why = "FlexAttention has no backward pass on a CPU", compile = true }
# ///
"""Attention functions in a ViT: ``python scenarios/attention.py --help`` tells the story."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
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

SOFTCAP = 30.0
HALF_PRECISION_ONLY = {"sdpa-flash", "sdpa-cudnn", "flash-attention-3", "transformer-engine", "xformers"}
#: The ``SDPBackend`` that a variant of scaled_dot_product_attention may take, by the name of its attention.
KERNELS = {
    "sdpa-math": "MATH",
    "sdpa-flash": "FLASH_ATTENTION",
    "sdpa-mem-efficient": "EFFICIENT_ATTENTION",
    "sdpa-cudnn": "CUDNN_ATTENTION",
}


def attention_function(run: scenario.Run, device: torch.device) -> Attention:
    """Return the variant's attention function.

    It takes q, k and v as ``[batch, tokens, heads, head_dim]`` ("bshd") and returns that shape. PyTorch's own functions
    want the heads before the tokens; the transposes are views and copy nothing.
    """
    from common.attentions import native

    size, reach = run.size, run.set.get("reach", 0)
    side = size.image // size.patch
    match run.set["attention"]:
        case "native":
            return native
        case name if name in KERNELS:
            return sdpa(KERNELS[name])
        case "flash-attention-3":
            return flash_attention_3()
        case "transformer-engine":
            return transformer_engine(size.heads, size.head_dim)
        case "xformers":
            return xformers()
        case "softcap-native":
            return lambda q, k, v: native(q, k, v, softcap=SOFTCAP)
        case "softcap-flex":
            return softcap_flex(SOFTCAP)
        case "window-sdpa":
            return sdpa(mask=window_mask(side, reach, device))
        case "window-flex":
            return window_flex(side, reach, device)
        case other:
            raise ValueError(f"no attention function is called {other!r}")


def sdpa(kernel: str = "", mask: torch.Tensor | None = None) -> Attention:
    """PyTorch's scaled_dot_product_attention, held to a kernel.

    The context stands within the function, not around the training, so that torch.compile sees it. Its cache tells
    graphs apart by what is traced: with the context outside, it hands one process the kernel that another had chosen.

    Args:
        kernel: Name of the only ``SDPBackend`` it may take; empty = whichever PyTorch chooses.
        mask: ``[tokens, tokens]``, true = seen.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backend = getattr(SDPBackend, kernel) if kernel else None

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        with sdpa_kernel(backend) if backend is not None else nullcontext():
            return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    return attention


def flash_attention_3() -> Attention:
    from flash_attn_interface import flash_attn_func

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = flash_attn_func(q, k, v)
        return out[0] if isinstance(out, tuple) else out  # before 2026 with the log-sum-exp

    return attention


def transformer_engine(heads: int, head_dim: int) -> Attention:
    # Read before its first use: which of its backends it may take.
    os.environ |= {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "1", "NVTE_UNFUSED_ATTN": "0"}
    from transformer_engine.pytorch import DotProductAttention

    fused = DotProductAttention(heads, head_dim, qkv_format="bshd", attn_mask_type="no_mask")
    return lambda q, k, v: fused(q, k, v).view_as(q)  # it merges heads and head_dim


def xformers() -> Attention:
    import torch
    from common.attentions import no_xformers_operator
    from xformers.ops import memory_efficient_attention

    try:
        memory_efficient_attention(*(torch.zeros(1, 8, 1, 64, device="cuda", dtype=torch.bfloat16),) * 3)
    except NotImplementedError as error:
        raise no_xformers_operator(error) from error
    return lambda q, k, v: memory_efficient_attention(q, k, v)


def softcap_flex(softcap: float) -> Attention:
    """The cap as a score_mod: compiled into the kernel, where the scores are."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    def cap(score, batch, head, query, key):  # traced: its arguments are symbols
        return softcap * torch.tanh(score / softcap)

    compiled = torch.compile(flex_attention)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return compiled(q, k, v, score_mod=cap).transpose(1, 2)

    return attention


def window_mask(side: int, reach: int, device: torch.device) -> torch.Tensor:
    """Return the mask ``[side², side²]`` (bool, true = seen) of patches at most ``reach`` apart on a square grid."""
    import torch

    index = torch.arange(side * side, device=device)
    rows, columns = index // side, index % side
    near = (rows[:, None] - rows).abs() <= reach
    return near & ((columns[:, None] - columns).abs() <= reach)


def window_flex(side: int, reach: int, device: torch.device) -> Attention:
    """The same window as a block mask: FlexAttention skips each block of the matrix that it empties."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def near(batch, head, query, key):  # traced: its arguments are symbols
        rows_near = (query // side - key // side).abs() <= reach
        return rows_near & ((query % side - key % side).abs() <= reach)

    mask = create_block_mask(near, B=None, H=None, Q_LEN=side**2, KV_LEN=side**2, device=device)
    compiled = torch.compile(flex_attention)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return compiled(q, k, v, block_mask=mask).transpose(1, 2)

    return attention


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
