# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5"]
#
# [tool.tuiprof]
# name = "varlen"
# title = "documents of different lengths in a decoder"
# story = """
# Documents are 1 … 1024 tokens long, each length as likely, so a batch padded to 1024 is half padding: half of the work
# is thrown away, and a mask keeps the fast attention kernels out. Padding to the longest of 32 documents hardly helps.
# Joined to one row there is no padding at all, but attention must be told where each document starts; all else in a
# transformer looks at one token at a time. FlashAttention, xFormers, torch.nn.attention.varlen and FlexAttention can
# be told; nested tensors carry it themselves.
# As published, training is causal, and evaluation (no gradients) lets a token see its whole document.
# """
# baseline = "pad-max-train"
# reference = { hardware = "NVIDIA H100", software = "PyTorch 2.5.1" }
#
# [tool.tuiprof.presets.paper]
# note = "24 layers, 16 heads × 64, vocabulary 1024, batch 32 documents of 1 … 1024 tokens"
# depth = 24
# heads = 16
# head_dim = 64
# vocabulary = 1024
# length = 1024
# batch = 32
# workers = 8
# steps = 60
# warmup = 20
#
# [tool.tuiprof.presets.smoke]
# note = "1 layer, 2 heads × 64, vocabulary 64, batch 8 documents of 1 … 64 tokens; runs anywhere in seconds"
# depth = 1
# heads = 2
# head_dim = 64
# vocabulary = 64
# length = 64
# batch = 8
# workers = 1
# steps = 14
# warmup = 2
#
# [[tool.tuiprof.variants]]
# name = "pad-max-eval"
# note = "Evaluates with every document padded to 1024 tokens and a mask for scaled_dot_product_attention."
# baseline = "pad-max-eval"
# set = { method = "pad-max" }
# published = [{ text = "132 ms", value = 132, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "pad-max-eval-compiled"
# note = "The same through torch.compile; every batch has one shape."
# baseline = "pad-max-eval"
# builds_on = "pad-max-eval"
# set = { method = "pad-max", compile = true }
# published = [{ text = "130 ms", value = 130, unit = "ms" }]
# needs = { compile = true }
#
# [[tool.tuiprof.variants]]
# name = "pad-longest-eval"
# note = "Pads to the longest document of the batch only."
# baseline = "pad-max-eval"
# builds_on = "pad-max-eval"
# set = { method = "pad-longest" }
# published = [{ text = "129 ms", value = 129, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "pad-longest-eval-compiled"
# note = "The same through torch.compile, for any length of the rows."
# baseline = "pad-max-eval"
# builds_on = "pad-longest-eval"
# set = { method = "pad-longest", compile = true }
# published = [{ text = "116 ms", value = 116, unit = "ms" }]
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "pad-longest-64-eval"
# note = "Pads to the longest document rounded up to a multiple of 64: at most 16 shapes, and aligned rows."
# baseline = "pad-max-eval"
# builds_on = "pad-longest-eval"
# set = { method = "pad-longest-64" }
#
# [[tool.tuiprof.variants]]
# name = "nested-eval"
# note = "Nested (jagged) tensors through the whole model: no padding, but many operators on the host."
# baseline = "pad-max-eval"
# builds_on = "pad-longest-eval"
# set = { method = "nested" }
# published = [{ text = "131 ms", value = 131, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "nested-eval-compiled"
# note = "The same through torch.compile, which removes what the host had to do."
# baseline = "pad-max-eval"
# builds_on = "nested-eval"
# set = { method = "nested", compile = true }
# published = [{ text = "42 ms", value = 42, unit = "ms" }]
# needs = { compile = true }
#
# [[tool.tuiprof.variants]]
# name = "flash-varlen-eval"
# note = "One row, no padding: flash_attn_varlen_func is told where each document starts."
# baseline = "pad-max-eval"
# builds_on = "pad-longest-eval"
# set = { method = "flash-varlen" }
# published = [{ text = "51 ms", value = 51, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["flash-attn>=2.6"]
# device = "cuda"
# capability = ">=8.0"
# remedy = "pip install --no-build-isolation flash-attn (builds with nvcc)"
#
# [[tool.tuiprof.variants]]
# name = "xformers-eval"
# note = "One row: memory_efficient_attention with a block-diagonal mask."
# baseline = "pad-max-eval"
# builds_on = "pad-longest-eval"
# set = { method = "xformers" }
# published = [{ text = "50 ms", value = 50, unit = "ms" }]
# needs = { packages = ["xformers>=0.0.28"], device = "cuda", capability = ">=7.5" }
# [[tool.tuiprof.variants]]
# name = "xformers-eval-compiled"
# note = "xformers in a compiled model."
# baseline = "pad-max-eval"
# builds_on = "xformers-eval"
# set = { method = "xformers", compile = true }
# published = [{ text = "42 ms", value = 42, unit = "ms" }]
# needs = { packages = ["xformers>=0.0.28"], device = "cuda", capability = ">=7.5", compile = true }
#
# [[tool.tuiprof.variants]]
# name = "in-tree-eval"
# note = "One row: varlen_attn of torch.nn.attention.varlen, newer than the publication; no extra package."
# baseline = "pad-max-eval"
# builds_on = "pad-longest-eval"
# set = { method = "in-tree" }
# needs = { packages = ["torch>=2.10"], device = "cuda", capability = ">=8.0" }
# [[tool.tuiprof.variants]]
# name = "in-tree-eval-compiled"
# note = "in-tree in a compiled model."
# baseline = "pad-max-eval"
# builds_on = "in-tree-eval"
# set = { method = "in-tree", compile = true }
# needs = { packages = ["torch>=2.10"], device = "cuda", capability = ">=8.0", compile = true }
#
# [[tool.tuiprof.variants]]
# name = "flex-eval"
# note = "One row: a document mask for flex_attention, which is compiled (it must be); the rest is eager."
# baseline = "pad-max-eval"
# builds_on = "pad-longest-eval"
# set = { method = "flex" }
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "flex-eval-compiled"
# note = "flex in a compiled model."
# baseline = "pad-max-eval"
# builds_on = "flex-eval"
# set = { method = "flex", compile = true }
# [tool.tuiprof.variants.needs]
# device = "cuda"
# why = "inside a compiled model, the C++ that PyTorch 2.13 writes for a CPU does not build"
# compile = true
#
# [[tool.tuiprof.variants]]
# name = "pad-max-train"
# note = "Trains with every document padded to 1024 tokens and a mask for scaled_dot_product_attention."
# set = { method = "pad-max", train = true }
# published = [{ text = "342 ms", value = 342, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "pad-max-train-compiled"
# note = "The same through torch.compile; every batch has one shape."
# builds_on = "pad-max-train"
# set = { method = "pad-max", train = true, compile = true }
# published = [{ text = "299 ms", value = 299, unit = "ms" }]
# needs = { compile = true }
#
# [[tool.tuiprof.variants]]
# name = "pad-longest-train"
# note = "Pads to the longest document of the batch only."
# builds_on = "pad-max-train"
# set = { method = "pad-longest", train = true }
# published = [{ text = "337 ms", value = 337, unit = "ms" }]
# [[tool.tuiprof.variants]]
# name = "pad-longest-train-compiled"
# note = "The same through torch.compile, for any length of the rows."
# builds_on = "pad-longest-train"
# set = { method = "pad-longest", train = true, compile = true }
# published = [{ text = "294 ms", value = 294, unit = "ms" }]
# needs = { compile = true }
# [[tool.tuiprof.variants]]
# name = "pad-longest-64-train"
# note = "Pads to the longest document rounded up to a multiple of 64: at most 16 shapes, and aligned rows."
# builds_on = "pad-longest-train"
# set = { method = "pad-longest-64", train = true }
#
# [[tool.tuiprof.variants]]
# name = "flash-varlen-train"
# note = "One row, no padding: flash_attn_varlen_func is told where each document starts."
# builds_on = "pad-longest-train"
# set = { method = "flash-varlen", train = true }
# published = [{ text = "160 ms", value = 160, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["flash-attn>=2.6"]
# device = "cuda"
# capability = ">=8.0"
# remedy = "pip install --no-build-isolation flash-attn (builds with nvcc)"
#
# [[tool.tuiprof.variants]]
# name = "xformers-train"
# note = "One row: memory_efficient_attention with a block-diagonal mask."
# builds_on = "pad-longest-train"
# set = { method = "xformers", train = true }
# published = [{ text = "159 ms", value = 159, unit = "ms" }]
# needs = { packages = ["xformers>=0.0.28"], device = "cuda", capability = ">=7.5" }
#
# [[tool.tuiprof.variants]]
# name = "in-tree-train"
# note = "One row: varlen_attn of torch.nn.attention.varlen, newer than the publication; no extra package."
# builds_on = "pad-longest-train"
# set = { method = "in-tree", train = true }
# needs = { packages = ["torch>=2.10"], device = "cuda", capability = ">=8.0" }
# [[tool.tuiprof.variants]]
# name = "in-tree-train-compiled"
# note = "in-tree in a compiled model."
# builds_on = "in-tree-train"
# set = { method = "in-tree", train = true, compile = true }
# needs = { packages = ["torch>=2.10"], device = "cuda", capability = ">=8.0", compile = true }
#
# [[tool.tuiprof.variants]]
# name = "flex-train"
# note = "One row: a document mask for flex_attention, which is compiled (it must be); the rest is eager."
# builds_on = "pad-longest-train"
# set = { method = "flex", train = true }
# needs = { compile = true, device = "cuda", why = "FlexAttention has no backward pass on a CPU" }
# [[tool.tuiprof.variants]]
# name = "flex-train-compiled"
# note = "flex in a compiled model."
# builds_on = "flex-train"
# set = { method = "flex", train = true, compile = true }
# needs = { compile = true, device = "cuda", why = "FlexAttention has no backward pass on a CPU" }
#
# [[tool.tuiprof.variants]]
# name = "gpt2-sdpa"
# note = "GPT-2 of Hugging Face with its usual attention, padded to the longest document of the batch."
# baseline = "gpt2-sdpa"
# set = { method = "gpt2-sdpa", train = true }
# published = [{ text = "815 ms", value = 815, unit = "ms" }]
# needs = { packages = ["transformers>=4.56"] }
# [[tool.tuiprof.variants]]
# name = "gpt2-sdpa-compiled"
# note = "The same through torch.compile."
# baseline = "gpt2-sdpa"
# builds_on = "gpt2-sdpa"
# set = { method = "gpt2-sdpa", train = true, compile = true }
# published = [{ text = "440 ms", value = 440, unit = "ms" }]
# needs = { packages = ["transformers>=4.56"], compile = true }
#
# [[tool.tuiprof.variants]]
# name = "gpt2-flash"
# note = "flash_attention_2 on padded rows: each layer takes the padding out and puts it back."
# baseline = "gpt2-sdpa"
# builds_on = "gpt2-sdpa"
# set = { method = "gpt2-flash", train = true }
# published = [{ text = "620 ms", value = 620, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["transformers>=4.56", "flash-attn>=2.6"]
# device = "cuda"
# capability = ">=8.0"
# remedy = "pip install transformers; pip install --no-build-isolation flash-attn (builds with nvcc)"
#
# [[tool.tuiprof.variants]]
# name = "gpt2-flash-flattened"
# note = "flash_attention_2 on one row: transformers sees by position_ids where a document starts."
# baseline = "gpt2-sdpa"
# builds_on = "gpt2-flash"
# set = { method = "gpt2-flash-flattened", train = true }
# published = [{ text = "323 ms", value = 323, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["transformers>=4.56", "flash-attn>=2.6"]
# device = "cuda"
# capability = ">=8.0"
# remedy = "pip install transformers; pip install --no-build-isolation flash-attn (builds with nvcc)"
#
# [[tool.tuiprof.variants]]
# name = "gpt2-in-tree-flattened"
# note = "One row, and varlen_attn of PyTorch registered as an attention of transformers: no flash-attn needed."
# baseline = "gpt2-sdpa"
# builds_on = "gpt2-sdpa"
# set = { method = "gpt2-in-tree-flattened", train = true }
# needs = { packages = ["torch>=2.10", "transformers>=4.56"], device = "cuda", capability = ">=8.0" }
# ///
"""Documents of different lengths in a decoder: ``python scenarios/varlen.py --help`` tells the story."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from common import scenario

if TYPE_CHECKING:
    import torch
    from common.checking import Check
    from common.training import Loop
    from varlen.arrangements import Arrangement
    from varlen.decoder import Batch


def arrangement(run: scenario.Run) -> Arrangement:
    """Return how the variant brings documents through attention; ``varlen/arrangements.py`` has all ways."""
    from varlen import arrangements

    causal, method = run.set.get("train", False), run.set["method"]
    if method.startswith("gpt2"):
        from varlen import gpt2

        return gpt2.WAYS[method][1]
    if method == "pad-max":
        return arrangements.padded(causal, run.size.length)
    return arrangements.WAYS[method](causal)


def build(run: scenario.Run, way: Arrangement) -> torch.nn.Module:
    """Return the model with its first weights, not compiled."""
    import torch
    from varlen.decoder import Decoder

    size = run.size
    torch.manual_seed(run.seed)
    shape = (size.vocabulary, size.length, size.heads, size.head_dim, size.depth)
    if way.attention is None:
        from varlen import gpt2

        return gpt2.GPT2(*shape, gpt2.WAYS[run.set["method"]][0])
    return Decoder(*shape, way.attention)


def logits_of(model: torch.nn.Module, way: Arrangement, batch: Batch) -> torch.Tensor:
    """Return the logits of every token of a batch, padding included: ``[tokens, vocabulary]``."""
    logits = model(*way.arrange(batch, batch.tokens, batch.positions), *way.where(batch))
    return logits.values() if logits.is_nested else logits.flatten(0, 1)


def train(run: scenario.Run) -> Loop:
    """Train or evaluate the variant and return the timed loop."""
    import torch
    from common.training import Loop, accelerator, loader, phase
    from varlen.decoder import Documents

    size, device, trains = run.size, accelerator(), run.set.get("train", False)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    way = arrangement(run)
    with device:  # random weights are drawn where they are needed
        model = build(run, way)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if run.set.get("compile"):
        # Rows of one length get a graph of their own; else one graph serves all lengths.
        model = torch.compile(model, dynamic=run.set["method"] != "pad-max")

    documents = Documents(run.steps * size.batch, size.length, size.vocabulary, run.seed)
    batches = loader(documents, size.batch, size.workers, device, way.collate)
    loop = Loop(batches, size.batch, run.warmup, device)
    with nullcontext() if trains else torch.no_grad():
        for batch in loop:
            with phase("h2d"):
                batch = batch.to(device)
            with phase("forward"), torch.autocast(device.type, dtype=torch.bfloat16):
                logits = logits_of(model, way, batch)
                loss = torch.nn.functional.cross_entropy(logits, batch.targets.flatten())
            if trains:
                with phase("backward"):
                    optimizer.zero_grad()
                    loss.backward()
                with phase("optimizer"):
                    optimizer.step()
            loop.note(loss)
    return loop


def check(run: scenario.Run) -> Check:
    """Hold attention to its definition, document by document, and three steps to the losses of the baseline."""
    import torch
    from common.checking import compare_losses
    from varlen.comparing import compare

    checked = compare(run, arrangement, build, logits_of)
    compare_losses(checked, run, train, torch.bfloat16)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
