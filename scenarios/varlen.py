# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.5"]
#
# [tool.tuiprof]
# name = "varlen"
# title = "documents of different lengths in a decoder"
# story = """
# Documents are 1 … 1024 tokens long, each length as likely, so a batch padded to 1024 is half padding: half of the
# work is thrown away, and a mask keeps FlashAttention out (PyTorch 2.11 takes cuDNN's kernel instead). Padding to the
# longest of 32 documents hardly helps, and costs where cuDNN's kernel is slower on odd lengths and the host stops at
# each new one. Joined to one row there is no padding at all, but attention must be told where each document starts;
# all else in a transformer looks at one token at a time. FlashAttention, xFormers, torch.nn.attention.varlen and
# FlexAttention can be told; nested tensors carry it themselves.
# As published, training is causal, and evaluation (no gradients) lets a token see its whole document; GPT-2 trains with
# its default dropout, which --check turns off to compare numbers.
# """
# baseline = "pad-max-train"
# check_and_run = ["--check"]
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
# [[tool.tuiprof.variants]]
# name = "xformers-train"
# note = "One row: memory_efficient_attention with a block-diagonal mask."
# builds_on = "pad-longest-train"
# set = { method = "xformers", train = true }
# published = [{ text = "159 ms", value = 159, unit = "ms" }]
# needs = { packages = ["xformers>=0.0.28"], device = "cuda", capability = ">=7.5" }
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
# [[tool.tuiprof.variants]]
# name = "gpt2-sdpa"
# note = "GPT-2 of Hugging Face with its default dropout, every document padded to 1024 tokens."
# baseline = "gpt2-sdpa"
# set = { method = "gpt2-sdpa", train = true }
# published = [{ text = "815 ms", value = 815, unit = "ms" }]
# needs = { packages = ["transformers>=4.56"] }
# [[tool.tuiprof.variants]]
# name = "gpt2-sdpa-compiled"
# note = "The same through torch.compile; every batch has one shape."
# baseline = "gpt2-sdpa"
# builds_on = "gpt2-sdpa"
# set = { method = "gpt2-sdpa", train = true, compile = true }
# published = [{ text = "440 ms", value = 440, unit = "ms" }]
# needs = { packages = ["transformers>=4.56"], compile = true }
# [[tool.tuiprof.variants]]
# name = "gpt2-sdpa-longest"
# note = "gpt2-sdpa, but padded to the longest document of the batch only; not in the publication."
# baseline = "gpt2-sdpa"
# builds_on = "gpt2-sdpa"
# set = { method = "gpt2-sdpa-longest", train = true }
# needs = { packages = ["transformers>=4.56"] }
# [[tool.tuiprof.variants]]
# name = "gpt2-flash"
# note = "flash_attention_2 on the same padded rows: each layer takes the padding out and puts it back."
# baseline = "gpt2-sdpa"
# builds_on = "gpt2-sdpa"
# set = { method = "gpt2-flash", train = true }
# published = [{ text = "620 ms", value = 620, unit = "ms" }]
# [tool.tuiprof.variants.needs]
# packages = ["transformers>=4.56", "flash-attn>=2.6"]
# device = "cuda"
# capability = ">=8.0"
# remedy = "pip install transformers; pip install --no-build-isolation flash-attn (builds with nvcc)"
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
# [[tool.tuiprof.variants]]
# name = "gpt2-in-tree-flattened"
# note = """One row, and varlen_attn of PyTorch registered as an attention of transformers: no flash-attn needed. It has
# no dropout of attention weights; the other dropouts are GPT-2's."""
# baseline = "gpt2-sdpa"
# builds_on = "gpt2-sdpa"
# set = { method = "gpt2-in-tree-flattened", train = true }
# needs = { packages = ["torch>=2.10", "transformers>=4.56"], device = "cuda", capability = ">=8.0" }
# ///
"""Documents of different lengths in a decoder: ``python scenarios/varlen.py --help`` tells the story."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

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
    from varlen.decoder import Arrangement, Batch


def arrangement(run: scenario.Run) -> Arrangement:
    """Return how the variant brings documents through attention."""
    causal, method, length = run.set.get("train", False), run.set["method"], run.size.length
    match method:
        case "pad-max":
            return padded(causal, length)
        case "pad-longest":
            return padded(causal)
        case "pad-longest-64":
            return padded(causal, multiple=64)
        case "nested":
            return nested(causal)
        case "flash-varlen":
            return flash_attention(causal)
        case "xformers":
            return xformers(causal)
        case "in-tree":
            return in_tree(causal)
        case "flex":
            return flex(causal)
        case _ if method in GPT2_ATTENTION:
            return of_gpt2(method, length)
        case other:
            raise ValueError(f"no way is called {other!r}")


def padded(causal: bool, length: int | None = None, multiple: int = 1) -> Arrangement:
    """Rows of one length, and a mask that hides padding (and, if causal, the future) from every token.

    Args:
        causal: A token sees those before it only.
        length: Length of the rows; None = that of the longest document of the batch, rounded up.
        multiple: What it is rounded up to a multiple of.
    """
    import torch
    from varlen.decoder import Arrangement, pad

    def mask(batch: Batch) -> tuple[torch.Tensor]:
        lengths, index = batch.starts.diff(), torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        seen = (index < lengths[:, None])[:, None, None, :]
        if causal:
            seen = seen & (index <= index[:, None])
        return (seen,)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    return Arrangement(partial(pad, length=length, multiple=multiple), attention, mask)


def nested(causal: bool) -> Arrangement:
    """A nested (jagged) tensor: one row and its offsets, which PyTorch's own operators understand."""
    from torch.nn.functional import scaled_dot_product_attention
    from varlen.decoder import Arrangement, join

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.device.type == "cpu":  # without a fused kernel they must not be slices of one tensor
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    return Arrangement(join, attention, lambda batch: (), nested=True)


def _starts_and_longest(batch: Batch) -> tuple[torch.Tensor, int]:
    return batch.starts, max(batch.lengths)


def flash_attention(causal: bool) -> Arrangement:
    """flash_attn_varlen_func of FlashAttention, which is told where each document starts."""
    from flash_attn import flash_attn_varlen_func
    from varlen.decoder import Arrangement, join

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int
    ) -> torch.Tensor:
        return flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, longest, longest, causal=causal)[None]

    return Arrangement(join, attention, _starts_and_longest)


def in_tree(causal: bool) -> Arrangement:
    """torch.nn.attention.varlen: the same kernel as FlashAttention's, in PyTorch since 2.10."""
    from varlen.decoder import Arrangement, join
    from varlen.in_tree import in_tree_attention

    of_row = in_tree_attention(causal)
    return Arrangement(
        join, lambda q, k, v, *where: of_row(q[0], k[0], v[0], *where)[None], _starts_and_longest
    )


def xformers(causal: bool) -> Arrangement:
    """memory_efficient_attention of xFormers with a block-diagonal mask, of which it computes the blocks only."""
    import torch
    from common.attentions import no_xformers_operator
    from varlen.decoder import Arrangement, join
    from xformers.ops import fmha, memory_efficient_attention

    bias = fmha.attn_bias.BlockDiagonalCausalMask if causal else fmha.attn_bias.BlockDiagonalMask

    def where(batch: Batch) -> tuple[Any]:
        return (bias.from_seqlens(batch.lengths, device=batch.tokens.device),)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        return memory_efficient_attention(q, k, v, attn_bias=mask)

    try:
        probe = torch.zeros(1, 16, 1, 64, device="cuda", dtype=torch.bfloat16)
        attention(probe, probe, probe, bias.from_seqlens([8, 8], device=probe.device))
    except NotImplementedError as error:
        raise no_xformers_operator(error) from error
    return Arrangement(join, attention, where)


def flex(causal: bool) -> Arrangement:
    """flex_attention with a document mask: blocks in which no two tokens share a document are never computed."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from varlen.decoder import Arrangement, join

    blocks, compiled = (
        torch.compile(create_block_mask, dynamic=True),
        torch.compile(flex_attention, dynamic=True),
    )

    def where(batch: Batch) -> tuple[Any]:
        total = batch.tokens.shape[1]
        index = torch.arange(total, device=batch.tokens.device)
        document = torch.searchsorted(batch.starts, index, right=True, out_int32=True)

        def same(batch, head, query, key):  # traced: its arguments are symbols
            seen = document[query] == document[key]
            return seen & (query >= key) if causal else seen

        # Integers alone: without autocast, so that it need not be compiled again for where there is none.
        with torch.autocast(index.device.type, enabled=False):
            return (blocks(same, B=None, H=None, Q_LEN=total, KV_LEN=total, device=index.device),)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return compiled(q, k, v, block_mask=mask).transpose(1, 2)

    return Arrangement(join, attention, where)


#: The attention function of transformers that each of GPT-2's methods names.
GPT2_ATTENTION = {
    "gpt2-sdpa": "sdpa",
    "gpt2-sdpa-longest": "sdpa",
    "gpt2-flash": "flash_attention_2",
    "gpt2-flash-flattened": "flash_attention_2",
    "gpt2-in-tree-flattened": "in_tree_varlen",
}


def of_gpt2(method: str, length: int) -> Arrangement:
    """Rows of ``length`` tokens with a mask ``[documents, length]``, or one row for the methods that flatten.

    In one row, transformers sees by the positions, which begin again at 0, where a document starts.
    """
    from varlen.decoder import Arrangement, join, pad

    def mask(batch: Batch) -> tuple[dict[str, Any]]:
        return ({"attention_mask": (batch.positions < batch.starts.diff()[:, None]).long()},)

    def starts_and_longest(batch: Batch) -> tuple[dict[str, Any]]:
        return ({"starts": batch.starts, "longest": max(batch.lengths)},)

    match method:
        case "gpt2-sdpa" | "gpt2-flash":
            return Arrangement(partial(pad, length=length), None, mask)
        case "gpt2-sdpa-longest":
            return Arrangement(pad, None, mask)
        case "gpt2-flash-flattened":
            return Arrangement(join, None, lambda batch: ({},))
        case _:
            return Arrangement(join, None, starts_and_longest)


def build(run: scenario.Run, way: Arrangement, *, dropout: bool = True) -> torch.nn.Module:
    """Return the model with its first weights, not compiled; ``dropout``: that of GPT-2's defaults."""
    import torch
    from varlen.decoder import Decoder

    size = run.size
    torch.manual_seed(run.seed)
    shape = (size.vocabulary, size.length, size.heads, size.head_dim, size.depth)
    if way.attention is None:
        from varlen.gpt2 import GPT2

        return GPT2(*shape, GPT2_ATTENTION[run.set["method"]], dropout=dropout)
    return Decoder(*shape, way.attention)


def logits_of(model: torch.nn.Module, way: Arrangement, batch: Batch) -> torch.Tensor:
    """Return the logits of every token of a batch, padding included: ``[tokens, vocabulary]``."""
    logits = model(*way.arrange(batch, batch.tokens, batch.positions), *way.where(batch))
    return logits.values() if logits.is_nested else logits.flatten(0, 1)


def train(run: scenario.Run, *, dropout: bool = True) -> Loop:
    """Train or evaluate the variant and return the timed loop."""
    import torch
    from common.training import Loop, accelerator, loader, phase
    from varlen.decoder import Documents

    size, device, trains = run.size, accelerator(), run.set.get("train", False)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    way = arrangement(run)
    with device:  # random weights are drawn where they are needed
        model = build(run, way, dropout=dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if run.set.get("compile"):
        # Rows of one length get a graph of their own; else one graph serves all lengths.
        model = torch.compile(model, dynamic=run.set["method"] not in ("pad-max", "gpt2-sdpa"))

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
    """Hold attention to its definition, document by document, and three steps to the losses of the baseline.

    Dropout is off: its random numbers depend on the shape of a batch, which is what the variants change.
    """
    import torch
    from common.checking import compare_losses
    from varlen.comparing import compare

    checked = compare(run, arrangement, partial(build, dropout=False), logits_of)
    compare_losses(checked, run, partial(train, dropout=False), torch.bfloat16)
    return checked


if __name__ == "__main__":
    sys.exit(scenario.main(__file__, train, check))
