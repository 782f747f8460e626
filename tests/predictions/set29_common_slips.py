"""Steps on a GPU with a planted cost: common slips, those that reviews of training code find first, in ordinary models.

``codegen-dropout``, ``patchtst-float32``, ``wideresnet-layout``, ``bestrq-layernorm``, ``yolov4-mish`` and
``multilingual-logits`` are meant to be bound by the GPU, the others by the host or by its waits. ``codegen-dropout``
has two smaller costs besides, which its fix leaves as they are. ``act-policy`` is a loop of inference. Every fix
computes what its step computes: the same numbers, up to the order of sums, in ``patchtst-float32`` and ``yolov4-mish``
up to their precision, and in ``codegen-dropout`` up to which weights are dropped. The rules that are named are those
that would be right.
"""

from __future__ import annotations

import gc
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import DEVICE, ON_GPU, Step, adamw, case, channels_last, sized, trained
from tests.predictions.graphed import graphed
from tests.predictions.set3_devices import jax_case
from tests.predictions.set19_plain_steps import Text, layers
from tests.predictions.set27_plain_models import conv, residual_stages
from tests.predictions.set28_mixed_trades import heads_of, joined

# -- bound by the GPU ---------------------------------------------------------------------------------------


class CodeLayer(nn.Module):
    """A layer of a GPT-J: causal attention with dropout and a perceptron, side by side."""

    mask: torch.Tensor

    def __init__(self, width: int, length: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.written_out = max(2, width // 64), written_out
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length))[None, None])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not self.written_out:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        t = q.shape[2]
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.shape[-1]))  # cost: codegen-dropout
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))  # cost: codegen-dropout
        share = F.dropout(F.softmax(scores, dim=-1), 0.1)  # cost: codegen-dropout
        return share @ v  # cost: codegen-dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(y).chunk(3, -1))
        return x + self.out(joined(self.attend(q, k, v))) + self.down(F.gelu(self.up(y)))


@case(
    "codegen-dropout",
    "causal attention with dropout is written out in a language model of code; AdamW is as it is by default, and the "
    "loss is read at the end of each step",
    "scaled_dot_product_attention(dropout_p=0.1, is_causal=True); AdamW and the read stay",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    batch, length, width, words = sized(16, 2), sized(512, 12), sized(1024, 16), sized(32_768, 40)
    model = nn.Sequential(
        nn.Embedding(words, width),
        *(CodeLayer(width, length, written_out=bad) for _ in range(sized(12, 2))),
        nn.LayerNorm(width),
        nn.Linear(width, words, bias=False),
    ).to(DEVICE)
    code = torch.randint(words, (batch, length + 1), device=DEVICE)
    y = code[:, 1:].flatten()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    history: list[float] = []
    losses: list[torch.Tensor] = []

    def loss() -> torch.Tensor:
        losses[:] = [F.cross_entropy(model(code[:, :-1]).flatten(0, 1), y)]
        return losses[0]

    return trained(model, loss, optimizer=optimizer, last=lambda: history.append(losses[0].item()))


class PatchTST(nn.Module):
    """A forecaster of many series, each by itself: its patches are the tokens of a transformer."""

    def __init__(self, seen: int, ahead: int, patch: int, stride: int, width: int, depth: int) -> None:
        super().__init__()
        self.patch, self.stride = patch, stride
        count = (seen - patch) // stride + 1
        self.into, self.places = nn.Linear(patch, width), nn.Parameter(torch.randn(count, width) * 0.02)
        self.body, self.head = layers(width, depth), nn.Linear(count * width, ahead)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        mean, spread = series.mean(-1, keepdim=True), series.std(-1, keepdim=True) + 1e-5
        patches = ((series - mean) / spread).unfold(-1, self.patch, self.stride).flatten(0, 1)
        x = self.body(self.into(patches) + self.places)  # cost: patchtst-float32
        ahead = self.head(x.flatten(1)).unflatten(0, series.shape[:2])  # cost: patchtst-float32
        return ahead * spread + mean


@case(
    "patchtst-float32",
    "the products of a PatchTST for 321 consumers of electricity are in full float32, as they are by default",
    'torch.set_float32_matmul_precision("high")',
    "fp32-matmul",
    may_precede=("mixed-precision",),
)
def _(bad: bool) -> Step:
    batch, consumers, seen, ahead = sized(32, 2), sized(321, 3), sized(336, 32), sized(96, 8)
    model = PatchTST(seen, ahead, sized(16, 8), sized(8, 4), sized(128, 16), sized(3, 2)).to(DEVICE)
    x = torch.randn(batch, consumers, seen, device=DEVICE)
    y = torch.randn(batch, consumers, ahead, device=DEVICE)
    inner = trained(model, lambda: F.mse_loss(model(x), y), autocast=False)

    def step() -> None:
        torch.set_float32_matmul_precision("highest" if bad else "high")
        inner()
        torch.set_float32_matmul_precision("highest")

    return step


class WideBlock(nn.Module):
    """The block of a wide residual network: each convolution after its norm."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(a), nn.BatchNorm2d(b)
        self.conv1 = nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.side = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(x))  # cost: wideresnet-layout
        x = x if self.side is None else self.side(y)  # cost: wideresnet-layout
        y = self.conv1(y)  # cost: wideresnet-layout
        return x + self.conv2(F.relu(self.norm2(y)))  # cost: wideresnet-layout


@case(
    "wideresnet-layout",
    "a WRN-28-10 and its images are channels first, under bf16 autocast",
    "model and images in torch.channels_last",
    "channels-last",
)
def _(bad: bool) -> Step:
    batch, size, classes, each = sized(256, 2), sized(32, 16), sized(100, 5), sized(4, 1)
    widths = [sized(16, 4), *(sized(160, 8) << stage for stage in range(3))]
    blocks: list[nn.Module] = []
    for stage, (a, b) in enumerate(itertools.pairwise(widths)):
        blocks.append(WideBlock(a, b, 2 if stage else 1))
        blocks += [WideBlock(b, b, 1) for _ in range(each - 1)]
    end = (nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    first, last = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.Linear(widths[-1], classes)
    model = nn.Sequential(first, *blocks, *end, last).to(DEVICE)
    x = torch.randn(batch, 3, size, size, device=DEVICE)
    y = torch.randint(classes, (batch,), device=DEVICE)
    if not bad:
        model, x = channels_last(model), channels_last(x)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True, fused=True)
    return trained(model, lambda: F.cross_entropy(model(x), y), optimizer=optimizer)


class WrittenLayerNorm(nn.Module):
    """A layer norm in the style of TensorFlow, with the epsilon inside the root, as early BERTs in PyTorch have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        mean = x.mean(-1, keepdim=True)  # cost: bestrq-layernorm
        square = (x - mean).pow(2).mean(-1, keepdim=True)  # cost: bestrq-layernorm
        x = (x - mean) / torch.sqrt(square + 1e-5)  # cost: bestrq-layernorm
        return self.weight * x + self.bias  # cost: bestrq-layernorm


@case(
    "bestrq-layernorm",
    "the layer norms of a speech encoder, two in each of its twelve layers, are written out with mean, pow and sqrt",
    "nn.LayerNorm",
    "unfused-norm",
    "elementwise-chain",
    "uncompiled-step",
)
def _(bad: bool) -> Step:
    batch, frames, width, codes = sized(16, 2), sized(800, 12), sized(768, 16), sized(8192, 20)
    norm: Callable[[int], nn.Module] = WrittenLayerNorm if bad else nn.LayerNorm
    model = nn.Sequential(
        nn.Linear(160, width),
        layers(width, sized(12, 2), norm=norm),
        norm(width),
        nn.Linear(width, codes),
    ).to(DEVICE)
    sound = torch.randn(batch, frames, 160, device=DEVICE)
    hidden = torch.rand(batch, frames, device=DEVICE) < 0.4
    noise = torch.randn(batch, frames, 160, device=DEVICE) * 0.1
    y = torch.randint(codes, (batch, frames), device=DEVICE).masked_fill(~hidden, -100).flatten()

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(torch.where(hidden[..., None], noise, sound)).flatten(0, 1), y)

    return trained(model, loss)


class Mish(nn.Module):
    """The activation of a YOLOv4, by its formula or in one call."""

    def __init__(self, written_out: bool) -> None:
        super().__init__()
        self.written_out = written_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.written_out:
            return x * torch.tanh(F.softplus(x))  # cost: yolov4-mish
        return F.mish(x)


class CSPStage(nn.Module):
    """A stage of a CSPDarknet: it halves the image, and half of its channels go past its blocks."""

    def __init__(self, a: int, b: int, count: int, written_out: bool) -> None:
        super().__init__()

        def unit(a: int, b: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
            convolution = nn.Conv2d(a, b, kernel, stride, kernel // 2, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(b), Mish(written_out))

        half = b // 2
        self.down, self.past, self.through = unit(a, b, 3, 2), unit(b, half), unit(b, half)
        self.blocks = nn.ModuleList(
            nn.Sequential(unit(half, half), unit(half, half, 3)) for _ in range(count)
        )
        self.after, self.join = unit(half, half), unit(b, b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(x)
        y = self.through(x)
        for block in self.blocks:
            y = y + block(y)
        return self.join(torch.cat([self.after(y), self.past(x)], 1))


@case(
    "yolov4-mish",
    "the activation of a CSPDarknet that finds things is written x * tanh(softplus(x)), under autocast",
    "F.mish",
    "elementwise-chain",
    "uncompiled-step",
)
def _(bad: bool) -> Step:
    batch, size, classes, width = sized(16, 2), sized(416, 64), sized(80, 3), sized(32, 4)
    counts = (1, 2, 8, 8, 4) if ON_GPU else (1, 1, 1, 1, 1)
    pairs = itertools.pairwise(width << level for level in range(6))
    stages = nn.ModuleList(CSPStage(a, b, n, bad) for (a, b), n in zip(pairs, counts, strict=True))
    heads = nn.ModuleList(nn.Conv2d(width << level, 3 * (5 + classes), 1) for level in (3, 4, 5))
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), Mish(bad))
    model = channels_last(nn.ModuleList([stem, stages, heads]).to(DEVICE))
    x = channels_last(torch.rand(batch, 3, size, size, device=DEVICE))
    sides = [size >> level for level in (3, 4, 5)]
    targets = [torch.rand(batch, 3, side, side, 5 + classes, device=DEVICE) for side in sides]
    there = [(torch.rand(batch, 3, side, side, device=DEVICE) < 0.01).float() for side in sides]

    def loss() -> torch.Tensor:
        y, seen = stem(x), []
        for stage in stages:
            y = stage(y)
            seen.append(y)
        wrong: Any = 0.0
        for head, at, right, mine in zip(heads, seen[-3:], targets, there, strict=True):
            out = head(at).float().unflatten(1, (3, -1)).movedim(2, -1)
            box = (out[..., :4].sigmoid() - right[..., :4]).abs().sum(-1)
            kind = F.binary_cross_entropy_with_logits(out[..., 5:], right[..., 5:], reduction="none").sum(-1)
            object_ = F.binary_cross_entropy_with_logits(out[..., 4], mine)
            wrong = wrong + object_ + ((box + kind) * mine).sum() / (mine.sum() + 1)
        return wrong

    return trained(model, loss)


def next_word_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the loss of a causal language model, as transformers computed it for years."""
    logits = logits.float()  # cost: multilingual-logits
    shifted = logits[..., :-1, :].contiguous()  # cost: multilingual-logits
    labels = ids[..., 1:].contiguous()
    return F.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels.view(-1))  # cost: multilingual-logits


@case(
    "multilingual-logits",
    "the logits of a small multilingual GPT, 131 072 words wide, are made float32, shifted and copied before "
    "cross_entropy",
    "torch.compile of the loss, which makes them float32 in registers",
    "elementwise-chain",
    "uncompiled-step",
    "copy-each-step",
)
def _(bad: bool) -> Step:
    batch, length, words, width = sized(4, 2), sized(1024, 12), sized(131_072, 50), sized(768, 16)
    model = Text(words, length, width, sized(12, 2), causal=True).to(DEVICE)
    optimizer = adamw(model)
    ids = torch.randint(words, (batch, length), device=DEVICE)
    loss_of = next_word_loss if bad or not ON_GPU else torch.compile(next_word_loss, dynamic=False)

    def step() -> None:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = F.linear(model(ids), model.words.weight)
        loss_of(logits, ids).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


# -- bound by the host --------------------------------------------------------------------------------------


class GatedGCN(nn.Module):
    """A layer of a gated graph network: atoms and bonds, each gate made from a bond and its two atoms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.sent, self.bond, self.first, self.second = (nn.Linear(width, width) for _ in range(5))
        self.norm_atoms, self.norm_bonds = nn.BatchNorm1d(width), nn.BatchNorm1d(width)

    def forward(
        self, x: torch.Tensor, bonds: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self.first(x).index_select(0, source), self.second(x).index_select(0, target)
        new = self.bond(bonds) + first + second
        gate = torch.sigmoid(new)
        sent = gate * self.sent(x).index_select(0, source)
        total = torch.zeros_like(x).index_add(0, target, sent)
        gates = torch.zeros_like(x).index_add(0, target, gate)
        y = self.own(x) + total / (gates + 1e-6)
        return x + F.relu(self.norm_atoms(y)), bonds + F.relu(self.norm_bonds(new))


class AdamByHand:
    """Adam in a few lines, parameter by parameter."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        self.params, self.lr, self.count = params, lr, 0
        self.means = [torch.zeros_like(p) for p in params]
        self.squares = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        unbias1, unbias2 = 1 - 0.9**self.count, 1 - 0.999**self.count
        for p, mean, square in zip(self.params, self.means, self.squares, strict=True):
            if p.grad is None:
                continue
            mean.mul_(0.9).add_(p.grad, alpha=0.1)  # cost: gatedgcn-adam
            square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)  # cost: gatedgcn-adam
            root = (square.sqrt() / math.sqrt(unbias2)).add_(1e-8)  # cost: gatedgcn-adam
            p.addcdiv_(mean, root, value=-self.lr / unbias1)  # cost: gatedgcn-adam

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.params:
            p.grad = None


@case(
    "gatedgcn-adam",
    "a hand-written Adam updates the 230 parameters of a gated graph network one after the other, by eight "
    "operators each",
    "torch.optim.Adam(fused=True)",
    "kernel-loop",
    "operator-loop",
    "single-tensor-optimizer",
    "unfused-optimizer",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    molecules, atoms, width = sized(512, 3), sized(24, 4), sized(128, 8)
    count, each = molecules * atoms, 2 * atoms + 4
    deep = nn.ModuleList(GatedGCN(width) for _ in range(sized(16, 2)))
    kinds, ways = nn.Embedding(28, width), nn.Embedding(4, width)
    head = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 1))
    model = nn.ModuleList([deep, kinds, ways, head]).to(DEVICE)
    atom = torch.randint(28, (count,), device=DEVICE)
    bond = torch.randint(4, (molecules * each,), device=DEVICE)
    first = (torch.arange(molecules) * atoms).repeat_interleave(each)
    source, target = ((torch.randint(atoms, first.shape) + first).to(DEVICE) for _ in range(2))
    y = torch.randn(molecules, 1, device=DEVICE)
    params = list(model.parameters())
    optimizer: Any = AdamByHand(params, 1e-3) if bad else torch.optim.Adam(params, 1e-3, fused=True)

    def loss() -> torch.Tensor:
        x, bonds = kinds(atom), ways(bond)
        for layer in deep:
            x, bonds = layer(x, bonds, source, target)
        return F.l1_loss(head(x.unflatten(0, (molecules, atoms)).mean(1)), y)

    return trained(model, loss, optimizer=optimizer, autocast=False)


class SoundLayer(nn.Module):
    """A layer of a FastSpeech 2: attention, and convolutions for its perceptron."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = 2, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up = nn.Conv1d(width, 4 * width, kernel, padding=kernel // 2)
        self.down = nn.Conv1d(4 * width, width, 1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        x = self.norm1(x + self.out(joined(F.scaled_dot_product_attention(q, k, v))))
        y = self.down(F.relu(self.up(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + y)


class Guess(nn.Module):
    """One number for each sound: how long, high or loud it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(F.relu(self.conv1(x.transpose(1, 2))).transpose(1, 2))
        x = self.norm2(F.relu(self.conv2(x.transpose(1, 2))).transpose(1, 2))
        return self.head(x).squeeze(-1).float()


class FastSpeech2(nn.Module):
    """From sounds of a language to the spectrum of a voice, all frames at once."""

    def __init__(self, sounds: int, width: int, depth: int, mels: int) -> None:
        super().__init__()
        self.sounds, self.kernel = nn.Embedding(sounds, width), 9
        self.encoder = nn.Sequential(*(SoundLayer(width, 9) for _ in range(depth)))
        self.decoder = nn.Sequential(*(SoundLayer(width, 9) for _ in range(depth)))
        self.guesses = nn.ModuleList(Guess(width) for _ in range(3))
        self.high, self.loud, self.mels = nn.Linear(1, width), nn.Linear(1, width), nn.Linear(width, mels)
        ways = [mels, *[2 * width] * 4, mels]
        self.after = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 5, padding=2), nn.BatchNorm1d(b))
            for a, b in itertools.pairwise(ways)
        )

    def forward(
        self, text: torch.Tensor, index: torch.Tensor, pitch: torch.Tensor, energy: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = self.encoder(self.sounds(text))
        duration, high, loud = (guess(x) for guess in self.guesses)
        x = x + self.high(pitch[..., None]) + self.loud(energy[..., None])
        x = x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
        mel = self.mels(self.decoder(x)).float()
        y = mel.transpose(1, 2)
        for i, layer in enumerate(self.after):
            y = layer(y) if i == len(self.after) - 1 else torch.tanh(layer(y))
        return mel, mel + y.transpose(1, 2).float(), duration, high, loud


@case(
    "fastspeech2-losses",
    "the five losses of a FastSpeech 2 are each read with .item() for the progress bar, before the backward pass",
    "their running means kept on the GPU, and read now and then",
    "item-each-step",
    "waits-in-turn",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, sounds, frames, mels = sized(32, 2), sized(96, 6), sized(576, 18), sized(80, 8)
    model = FastSpeech2(sized(360, 12), sized(256, 16), sized(4, 1), mels).to(DEVICE)
    text = torch.randint(sized(360, 12), (batch, sounds), device=DEVICE)
    index = torch.randint(sounds, (batch, frames), device=DEVICE).sort(1).values
    pitch, energy, length = torch.randn(3, batch, sounds, device=DEVICE)
    right = torch.randn(batch, frames, mels, device=DEVICE)
    shown = dict.fromkeys(("mel", "postnet", "duration", "pitch", "energy"), 0.0)
    running = torch.zeros(len(shown), device=DEVICE)

    def loss() -> torch.Tensor:
        mel, after, duration, high, loud = model(text, index, pitch, energy)
        losses = {
            "mel": F.l1_loss(mel, right),
            "postnet": F.l1_loss(after, right),
            "duration": F.mse_loss(duration, length),
            "pitch": F.mse_loss(high, pitch),
            "energy": F.mse_loss(loud, energy),
        }
        if bad:
            for name, value in losses.items():
                shown[name] += 0.02 * (value.item() - shown[name])  # cost: fastspeech2-losses
        else:
            running.lerp_(torch.stack(list(losses.values())).detach(), 0.02)
        return sum(losses.values(), torch.zeros((), device=DEVICE))

    return trained(model, loss)


@case(
    "sasrec-mask",
    "the scores of a SASRec for what was bought next and for what was not are picked by a boolean mask of the places "
    "that aren't padding",
    "all of them, with the mask as their weights",
    "size-from-device",
    may_precede=("launch-bound", "uncompiled-step", "dense-embedding-gradient"),
)
def _(bad: bool) -> Step:
    batch, length, items, width = sized(128, 3), sized(200, 8), sized(20_000, 30), sized(256, 16)
    model = Text(items, length, width, sized(4, 2), causal=True).to(DEVICE)
    lengths = torch.randint(length // 4, length + 1, (batch, 1), device=DEVICE)
    real = torch.arange(length, device=DEVICE) >= length - lengths
    seen, bought, other = (
        torch.randint(1, items, (batch, length), device=DEVICE).masked_fill(~real, 0) for _ in range(3)
    )

    def loss() -> torch.Tensor:
        x = model(seen)
        positive = (x * model.words(bought)).sum(-1).float()
        negative = (x * model.words(other)).sum(-1).float()
        ones, zeros = torch.ones_like(positive), torch.zeros_like(negative)
        error = F.binary_cross_entropy_with_logits
        mask = bought != 0
        if bad:
            wrong = error(positive[mask], ones[mask])  # cost: sasrec-mask
            return wrong + error(negative[mask], zeros[mask])  # cost: sasrec-mask
        both = error(positive, ones, reduction="none") + error(negative, zeros, reduction="none")
        return (both * mask).sum() / mask.sum()

    return trained(model, loss)


class CNN14(nn.Module):
    """A network that says what is heard: convolutions over a log-mel spectrogram, which it makes itself."""

    window: torch.Tensor
    filters: torch.Tensor

    def __init__(self, width: int, levels: int, size: int, mels: int, classes: int) -> None:
        super().__init__()
        self.size, self.hop = size, size * 5 // 16
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("filters", torch.rand(size // 2 + 1, mels) / size)
        widths = [width << level for level in range(levels)]
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(a, b), conv(b, b)) for a, b in itertools.pairwise([1, *widths])
        )
        self.first, self.last = nn.Linear(widths[-1], widths[-1]), nn.Linear(widths[-1], classes)

    def spectrogram(self, waves: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, enabled=False):
            spectrum = torch.stft(waves, self.size, self.hop, window=self.window, return_complex=True)
            power = torch.view_as_real(spectrum).square().sum(-1).transpose(1, 2)
            return (power @ self.filters).clamp_min(1e-10).log10()[:, None]

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        x = self.spectrogram(waves)
        for i, block in enumerate(self.blocks):
            x = block(x)
            x = F.avg_pool2d(x, 2) if i < len(self.blocks) - 1 else x
        x = x.mean(3)
        return self.last(F.relu(self.first(x.amax(2) + x.mean(2)))).float()


@case(
    "panns-pageable",
    "32 sounds of ten seconds in float32 are copied from pageable memory in each step of a CNN14",
    "pinned memory and non_blocking=True",
    "pageable-memory",
    "blocking-copy",
    "awaited-copies",
)
def _(bad: bool) -> Step:
    batch, length, classes = sized(32, 2), sized(320_000, 4000), sized(527, 5)
    model = channels_last(
        CNN14(sized(64, 4), sized(6, 3), sized(1024, 256), sized(64, 16), classes).to(DEVICE)
    )
    pairs = [(torch.rand(batch, length) * 2 - 1, torch.rand(batch, classes).round()) for _ in range(4)]
    if not bad and ON_GPU:
        pairs = [(waves.pin_memory(), y.pin_memory()) for waves, y in pairs]
    batches = itertools.cycle(pairs)

    def loss() -> torch.Tensor:
        waves, y = next(batches)
        if bad:
            waves, y = waves.to(DEVICE), y.to(DEVICE)  # cost: panns-pageable
        else:
            waves, y = waves.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
        return F.binary_cross_entropy_with_logits(model(waves), y)

    return trained(model, loss)


class NestedUNet(nn.Module):
    """A U-Net++: each level sees all that came before it at its own size, and the level below."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.levels = levels
        self.nodes = nn.ModuleDict()
        for turn in range(levels):
            for level in range(levels - turn):
                b = widths[level]
                a = turn * b + widths[level + 1] if turn else ([3, *widths])[level]
                self.nodes[f"{level}-{turn}"] = nn.Sequential(conv(a, b), conv(b, b))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows: list[list[torch.Tensor]] = [[] for _ in range(self.levels)]
        for turn in range(self.levels):
            for level in range(self.levels - turn):
                if turn:
                    below = F.interpolate(rows[level + 1][turn - 1], scale_factor=2)
                    x = torch.cat([*rows[level], below], 1)
                else:
                    x = F.max_pool2d(rows[level - 1][0], 2) if level else images
                rows[level].append(self.nodes[f"{level}-{turn}"](x))
        return self.head(rows[0][-1]).squeeze(1).float()


@case(
    "unetplus-collect",
    "gc.collect() at the end of each step of a U-Net++ that finds nuclei",
    "never",
    "garbage-collector",
    "python-time",
)
def _(bad: bool) -> Step:
    batch, size = sized(32, 2), sized(256, 32)
    model = channels_last(NestedUNet(sized(32, 4), sized(5, 3), 1).to(DEVICE))
    images = channels_last(torch.rand(batch, 3, size, size, device=DEVICE))
    nuclei = torch.rand(batch, size, size, device=DEVICE).round()

    def loss() -> torch.Tensor:
        out = model(images)
        found = torch.sigmoid(out)
        both, all_ = (found * nuclei).sum((1, 2)), (found + nuclei).sum((1, 2))
        return F.binary_cross_entropy_with_logits(out, nuclei) + (1 - (2 * both + 1) / (all_ + 1)).mean()

    def collected() -> None:
        if bad:
            gc.collect()  # cost: unetplus-collect

    return trained(model, loss, last=collected)


class LookingLayer(nn.Module):
    """A decoder layer of a DETR: queries look at each other and at what is seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(2, width // 64)
        self.qkv, self.q, self.kv = (nn.Linear(width, n * width) for n in (3, 1, 2))
        self.out1, self.out2 = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 6 * width), nn.Linear(6 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        x = self.norms[0](x + self.out1(joined(F.scaled_dot_product_attention(q, k, v))))
        q, (k, v) = self.q(x), self.kv(seen).chunk(2, -1)
        q, k, v = (heads_of(part, self.heads) for part in (q, k, v))
        x = self.norms[1](x + self.out2(joined(F.scaled_dot_product_attention(q, k, v))))
        return self.norms[2](x + self.down(F.relu(self.up(x))))


class ActionChunks(nn.Module):
    """The policy of an ACT: what some cameras see and where the joints are, and where these go next."""

    def __init__(self, width: int, vision: int, chunk: int, joints: int, depths: tuple[int, int]) -> None:
        super().__init__()
        widths = [vision << level for level in range(4)]
        self.stem = nn.Sequential(conv(3, vision, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.stages, self.into = residual_stages(widths), nn.Conv2d(widths[-1], width, 1)
        self.joints, self.queries = nn.Linear(joints, width), nn.Parameter(torch.randn(chunk, width))
        self.encoder = layers(width, depths[0])
        self.decoder = nn.ModuleList(LookingLayer(width) for _ in range(depths[1]))
        self.head = nn.Linear(width, joints)

    def see(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)  # cost: act-policy
        for stage in self.stages:
            x = stage(x)  # cost: act-policy
        return self.into(x).flatten(2).transpose(1, 2)  # cost: act-policy

    def forward(self, images: torch.Tensor, joints: torch.Tensor) -> torch.Tensor:
        images = (images.float() / 255 - 0.45) / 0.22
        views = [self.see(images[:, camera]) for camera in range(images.shape[1])]
        seen = self.encoder(torch.cat([*views, self.joints(joints)[:, None]], 1))  # cost: act-policy
        x = self.queries.expand(len(images), -1, -1)
        for layer in self.decoder:
            x = layer(x, seen)  # cost: act-policy
        return self.head(x).float()


@case(
    "act-policy",
    "an ACT decides for four simulated robots, operator by operator, in a loop that reads its actions",
    "the policy as a CUDA graph; the actions are still read",
    "launch-bound",
    "uncompiled-step",
    may_precede=("mixed-precision", "channels-last"),
    marked=True,
)
def _(bad: bool) -> Step:
    robots, cameras, height, width, joints = sized(4, 2), sized(4, 2), sized(480, 32), sized(640, 64), 14
    depths = (4, 7) if ON_GPU else (1, 2)
    model = ActionChunks(sized(512, 16), sized(64, 4), sized(100, 5), joints, depths).to(DEVICE).eval()
    frames = [
        torch.randint(256, (robots, cameras, 3, height, width), dtype=torch.uint8, pin_memory=ON_GPU)
        for _ in range(3)
    ]
    turn = itertools.cycle(frames)
    where = torch.zeros(robots, joints, pin_memory=ON_GPU)

    def decide(images: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return model(images, now)  # cost: act-policy

    policy = decide if bad else graphed(decide)

    @torch.inference_mode()
    def step() -> None:
        images = next(turn).to(DEVICE, non_blocking=True)
        actions = policy(images, where.to(DEVICE, non_blocking=True)).cpu()
        where.copy_(actions[:, 0].clamp(-1, 1))

    return step


class Comments(torch.utils.data.Dataset[tuple[torch.Tensor, float]]):
    """Comments from a forum, cut into pieces of words when they are asked for."""

    def __init__(self, texts: list[str], known: dict[str, int], length: int) -> None:
        self.texts, self.known, self.length = texts, known, length

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        text = self.texts[index % len(self.texts)]
        ids: list[int] = []
        for word in re.findall(r"\w+|[^\w\s]", text.lower()):  # cost: toxic-tokens
            start = 0
            while start < len(word):
                end = len(word)
                while end > start + 1 and word[start:end] not in self.known:  # cost: toxic-tokens
                    end -= 1  # cost: toxic-tokens
                ids.append(self.known.get(word[start:end], 1))  # cost: toxic-tokens
                start = end
        ids = ids[: self.length]
        return torch.tensor(ids + [0] * (self.length - len(ids))), float(len(text) % 2)


@case(
    "toxic-tokens",
    "the loader of a BERT that judges comments has no workers, as by default: texts are cut into pieces of words by "
    "Python in the process that trains",
    "num_workers=8",
    "loader-workers",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, width = sized(64, 3), sized(128, 12), sized(768, 16)
    random = np.random.default_rng(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    syllables = [a + b for a in letters for b in "aeiou"]
    vocabulary = ["".join(random.choice(syllables, size)) for size in random.integers(1, 5, sized(6000, 60))]
    known = {piece: i for i, piece in enumerate(dict.fromkeys(["[PAD]", "[UNK]", *letters, *vocabulary]))}
    texts = []
    for _ in range(sized(2000, 20)):
        chosen = [str(word) for word in random.choice(vocabulary, sized(160, 8))]
        for i in range(0, len(chosen), 12):
            chosen[i] = chosen[i].capitalize() + random.choice(syllables) + ","  # an unknown word
        texts.append(" ".join(chosen) + ".")
    model = nn.ModuleList(
        [Text(len(known), length, width, sized(8, 2), causal=False), nn.Linear(width, 1)]
    ).to(DEVICE)
    loader = torch.utils.data.DataLoader(
        Comments(texts, known, length), batch, num_workers=0 if bad or not ON_GPU else 8, pin_memory=ON_GPU
    )  # cost: toxic-tokens
    batches = iter(loader)

    def loss() -> torch.Tensor:
        ids, toxic = next(batches)  # cost: toxic-tokens
        ids, toxic = ids.to(DEVICE, non_blocking=True), toxic.to(DEVICE, non_blocking=True)
        body, head = model
        return F.binary_cross_entropy_with_logits(head(body(ids)[:, 0]).squeeze(-1).float(), toxic.float())

    return trained(model, loss)


@jax_case(
    "jax-dit-average",
    "the step of a DiT is jitted, but the moving average of its 130 arrays of weights is a jax.tree.map outside of it, "
    "three operators each",
    "the average within the jitted step",
    "kernel-loop",
    "operator-loop",
    "launch-bound",
    "host-operators",
    "python-time",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    batch, places, patch, width, depth = sized(64, 2), sized(64, 4), sized(64, 6), sized(512, 8), sized(14, 2)
    heads, kind = sized(8, 2), jnp.bfloat16
    keys = iter(jax.random.split(jax.random.key(0), 6 * depth + 9))

    def weights_of(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape, jnp.float32) * shape[0] ** -0.5

    params = {
        "into": weights_of(patch, width),
        "places": weights_of(places, width),
        "out": weights_of(width, patch),
        "time": weights_of(width, width),
        "layers": [
            {
                "told": weights_of(width, 6 * width),
                "bias": jnp.zeros(6 * width),
                "qkv": weights_of(width, 3 * width),
                "back": weights_of(width, width),
                "up": weights_of(width, 4 * width),
                "up_bias": jnp.zeros(4 * width),
                "down": weights_of(4 * width, width),
                "down_bias": jnp.zeros(width),
                "back_bias": jnp.zeros(width),
            }
            for _ in range(depth)
        ],
    }
    images = jax.random.normal(next(keys), (batch, places, patch))

    def norm(x: Any) -> Any:
        x = x.astype(jnp.float32)
        x = x - jnp.mean(x, -1, keepdims=True)
        return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(kind)

    def layer(x: Any, told: Any, w: Any) -> Any:
        shift1, scale1, gate1, shift2, scale2, gate2 = jnp.split(told @ w["told"] + w["bias"], 6, -1)
        y = norm(x) * (1 + scale1) + shift1
        q, k, v = (part.reshape(batch, places, heads, -1) for part in jnp.split(y @ w["qkv"], 3, -1))
        y = jax.nn.dot_product_attention(q, k, v).reshape(batch, places, -1)
        x = x + gate1 * (y @ w["back"] + w["back_bias"])
        y = norm(x) * (1 + scale2) + shift2
        return x + gate2 * (jax.nn.gelu(y @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"])

    def loss(params: Any, key: Any) -> Any:
        params = jax.tree.map(lambda p: p.astype(kind), params)
        when, what = jax.random.split(key)
        time = jax.random.uniform(when, (batch, 1, 1))
        noise = jax.random.normal(what, images.shape)
        x = ((1 - time) * images + time * noise).astype(kind) @ params["into"] + params["places"]
        waves = jnp.cos(time * jnp.exp(-8.0 * jnp.arange(width) / width) * 1000)
        told = jax.nn.silu(waves.astype(kind) @ params["time"])
        for w in params["layers"]:
            x = layer(x, told, w)
        out = (norm(x) @ params["out"]).astype(jnp.float32)
        return jnp.mean(jnp.square(out - (noise - images)))

    def averaged(average: Any, params: Any) -> Any:
        return jax.tree.map(
            lambda old, new: 0.999 * old + 0.001 * new, average, params
        )  # cost: jax-dit-average

    def updated(params: Any, momentum: Any, key: Any) -> tuple[Any, Any, Any]:
        key, now = jax.random.split(key)
        grads = jax.grad(loss)(params, now)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 1e-3 * m, params, momentum), momentum, key

    @jax.jit
    def update(params: Any, momentum: Any, key: Any) -> tuple[Any, Any, Any]:
        return updated(params, momentum, key)

    @jax.jit
    def update_all(params: Any, momentum: Any, key: Any, average: Any) -> tuple[Any, Any, Any, Any]:
        params, momentum, key = updated(params, momentum, key)
        return params, momentum, key, averaged(average, params)

    state: list[Any] = [params, jax.tree.map(jnp.zeros_like, params), jax.random.key(1), params]

    def step() -> Any:
        if bad:
            state[:3] = update(*state[:3])
            state[3] = averaged(state[3], state[0])  # cost: jax-dit-average
        else:
            state[:] = update_all(*state)
        return state[3]["time"]

    return step
