"""Whether a way of bringing documents through attention computes what attention is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from common.checking import TOLERANCE, Check, compare_attention
from common.scenario import Run
from common.training import accelerator

from varlen.decoder import PADDING, Arrangement, Batch, Documents


def compare(
    run: Run,
    arrangement: Callable[[Run], Arrangement],
    build: Callable[[Run, Arrangement], torch.nn.Module],
    logits_of: Callable[[torch.nn.Module, Arrangement, Batch], torch.Tensor],
) -> Check:
    """Hold a variant's attention to its definition, or the logits of its model to those of its baseline.

    A loss hardly shows a wrong mask before much is learned. So the attention function is fed with larger random
    numbers, and output (and gradients, if it trains) compared with softmax(q kᵀ / √d) v of each document by itself, in
    float64. Where a package brings the whole model, the logits of the first batch are compared instead.

    Args:
        run: What was asked for.
        arrangement: Returns how a variant brings documents through attention.
        build: Returns a variant's model.
        logits_of: Returns the logits of every token of a batch, padding included.
    """
    device, way, causal = accelerator(), arrangement(run), run.set.get("train", False)
    compiled = run.set.get("compile", False)
    checked = Check(run.baseline)
    if way.attention is None:
        got, want = (
            first_logits(one, arrangement(one), build, logits_of, device)
            for one in (run, run.of(checked.baseline))
        )
        checked.close("logits", got, want, TOLERANCE[torch.bfloat16])
        return checked
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    got = by_arrangement(way, run.size, device, dtype, compiled, gradients=causal)
    want = by_definition(run.size, device, dtype, causal)
    compare_attention(checked, got, want, dtype)
    return checked


def first_logits(
    run: Run,
    way: Arrangement,
    build: Callable[[Run, Arrangement], torch.nn.Module],
    logits_of: Callable[[torch.nn.Module, Arrangement, Batch], torch.Tensor],
    device: torch.device,
) -> torch.Tensor:
    """Return the logits of every token of the first batch, as training begins: ``[tokens, vocabulary]``."""
    batch = way.collate(_documents(run.size)).to(device)
    with device:
        model = build(run, way)
    if run.set.get("compile"):
        model = torch.compile(model, dynamic=True)
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        return logits_of(model, way, batch)[batch.targets.flatten() != PADDING]


def by_definition(
    size: SimpleNamespace, device: torch.device, dtype: torch.dtype, causal: bool
) -> list[torch.Tensor]:
    """Return softmax(q kᵀ / √d) v of each document by itself, in float64, and its gradients.

    Args:
        size: The preset: batch, length, vocabulary, heads, head_dim.
        device: Where to compute.
        dtype: What the random numbers are rounded to.
        causal: A token sees those before it only.

    Returns:
        Output and gradients of q, k and v, each ``[total length, heads, head_dim]``.
    """
    lengths = [len(document) - 1 for document in _documents(size)]

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows = zip(*(part.split(lengths) for part in (q, k, v)), strict=True)
        return torch.cat([_softmax_attention(*row, causal) for row in rows])

    return _output_and_gradients(attention, sum(lengths), size, device, dtype, torch.float64)


def by_arrangement(
    way: Arrangement,
    size: SimpleNamespace,
    device: torch.device,
    dtype: torch.dtype,
    compiled: bool,
    gradients: bool,
) -> list[torch.Tensor]:
    """Return the same by an arrangement, brought back to the form of :func:`by_definition`.

    Args:
        way: The arrangement.
        size: The preset, as in :func:`by_definition`.
        device: Where to compute.
        dtype: What to compute in.
        compiled: Through torch.compile.
        gradients: With the gradients.
    """
    batch = way.collate(_documents(size)).to(device)
    kept = (batch.targets != PADDING).flatten()
    function = torch.compile(way.attention) if compiled else way.attention

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        arranged = way.arrange(batch, *(_rows(part, batch, kept) for part in (q, k, v)))
        out = function(*arranged, *way.where(batch))
        return out.values() if out.is_nested else out.flatten(0, 1)[kept]

    return _output_and_gradients(attention, int(kept.sum()), size, device, dtype, dtype, gradients)


def _documents(size: SimpleNamespace) -> list[torch.Tensor]:
    documents = Documents(size.batch, size.length, size.vocabulary)
    return [documents[index] for index in range(len(documents))]


def _softmax_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v)


def _rows(joined: torch.Tensor, batch: Batch, kept: torch.Tensor) -> torch.Tensor:
    """Put ``[total length, heads, head_dim]`` where the tokens of the batch are, zeros where it is padded."""
    rows = joined.new_zeros(*batch.tokens.shape, *joined.shape[1:])
    return rows.flatten(0, 1).index_put((kept.nonzero()[:, 0],), joined).view_as(rows)


def _output_and_gradients(
    attention: Callable[..., torch.Tensor],
    total: int,
    size: SimpleNamespace,
    device: torch.device,
    dtype: torch.dtype,
    compute: torch.dtype,
    gradients: bool = True,
) -> list[torch.Tensor]:
    shape = (4, total, size.heads, size.head_dim)
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).to(device, compute)
    *inputs, out_grad = numbers.unbind()
    if not gradients:
        with torch.no_grad():
            return [attention(*inputs)]
    inputs = [part.requires_grad_() for part in inputs]
    out = attention(*inputs)
    return [out, *torch.autograd.grad(out, inputs, out_grad)]
