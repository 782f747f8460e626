"""Steps on a GPU with a planted cost: plain models, written as tutorials have them, each with one everyday mistake.

``unet-layout``, ``gpt-float-head``, ``vit-written-norm``, ``mlp-foreach`` and ``resnet18-pageable`` are meant to be
bound by the GPU, the others by the host. Every fix computes what its step computes: the same numbers, up to the order
of sums or, in ``gpt-float-head``, up to their precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, DEVICE, ON_GPU, Step, adamw, case, channels_last, sized, trained


class Layer(nn.Module):
    """A transformer layer with its norms first."""

    def __init__(self, width: int, causal: bool, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.heads, self.causal = max(2, width // 64), causal
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def layers(
    width: int, depth: int, *, causal: bool = False, norm: Callable[[int], nn.Module] = nn.LayerNorm
) -> nn.Sequential:
    return nn.Sequential(*(Layer(width, causal, norm) for _ in range(depth)))


class Text(nn.Module):
    """Words with their places, through layers: the body of a GPT or a BERT."""

    def __init__(self, words: int, length: int, width: int, depth: int, *, causal: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = layers(width, depth, causal=causal)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers(self.words(ids) + self.places))


class ViT(nn.Module):
    """A vision transformer that averages its patches."""

    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        depth: int,
        classes: int,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn((size // patch) ** 2, width) * 0.02)
        self.layers = layers(width, depth, norm=norm)
        self.norm, self.head = norm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(x)).mean(1))


# -- bound by the GPU ---------------------------------------------------------------------------------------


class DoubleConv(nn.Module):
    """Two convolutions, each with its norm."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, 1, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(b), nn.BatchNorm2d(b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))  # cost: unet-layout
        return F.relu(self.norm2(self.conv2(x)))  # cost: unet-layout


class UNet(nn.Module):
    """The U-Net that segments images."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        pairs = list(itertools.pairwise(widths))
        self.first = DoubleConv(3, width)
        self.downs = nn.ModuleList(DoubleConv(a, b) for a, b in pairs)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.joins = nn.ModuleList(DoubleConv(2 * a, a) for a, _ in reversed(pairs))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for down in self.downs:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))  # cost: unet-layout
        return self.head(x)


@case(
    "unet-layout",
    "a U-Net in bfloat16 has its images and its weights channels first",
    "model and images in torch.channels_last",
    "channels-last",
)
def _(bad: bool) -> Step:
    batch, size, classes = sized(16, 2), sized(256, 16), sized(8, 3)
    model = UNet(sized(64, 4), sized(4, 2), classes).to(DEVICE)
    x = torch.randn(batch, 3, size, size, device=DEVICE)
    y = torch.randint(classes, (batch, size, size), device=DEVICE)
    if not bad:
        model, x = channels_last(model), channels_last(x)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y))  # cost: unet-layout


class GPT(nn.Module):
    """A GPT whose head may be kept out of autocast."""

    def __init__(self, words: int, length: int, width: int, depth: int, float_head: bool) -> None:
        super().__init__()
        self.body = Text(words, length, width, depth, causal=True)
        self.head, self.float_head = nn.Linear(width, words, bias=False), float_head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.body(ids)
        if self.float_head:
            with torch.autocast(DEVICE, enabled=False):
                return self.head(x.float())  # cost: gpt-float-head
        return self.head(x).float()


@case(
    "gpt-float-head",
    "the head of a GPT, with 32,768 words, is multiplied in float32, without TF32, since it's kept out of autocast",
    "the head under autocast, and only its result in float32",
    "fp32-matmul",
    "mixed-precision",
)
def _(bad: bool) -> Step:
    batch, length, words = sized(8, 2), sized(1024, 12), sized(32_768, 40)
    model = GPT(words, length, sized(768, 16), sized(12, 2), float_head=bad).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)
    y = x[:, 1:].flatten()
    return trained(model, lambda: F.cross_entropy(model(x[:, :-1]).flatten(0, 1), y))


class WrittenNorm(nn.Module):
    """A LayerNorm as its formula has it."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()  # cost: vit-written-norm
        mean = x.mean(-1, keepdim=True)  # cost: vit-written-norm
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)  # cost: vit-written-norm
        x = (x - mean) / torch.sqrt(variance + self.eps)  # cost: vit-written-norm
        return x * self.weight + self.bias  # cost: vit-written-norm


@case(
    "vit-written-norm",
    "the layer norms of a ViT are written out, in float32",
    "nn.LayerNorm",
    "unfused-norm",
    "elementwise-chain",
    "uncompiled-step",
)
def _(bad: bool) -> Step:
    batch, size, classes = sized(128, 2), sized(224, 8), sized(1000, 5)
    norm = WrittenNorm if bad else nn.LayerNorm
    model = ViT(size, sized(16, 4), sized(512, 16), sized(10, 2), classes, norm).to(DEVICE)
    x = torch.randn(batch, 3, size, size, device=DEVICE)
    y = torch.randint(classes, (batch,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y))


class WideBlock(nn.Module):
    """A residual block of an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@case(
    "mlp-foreach",
    "AdamW of an MLP with 300 million parameters runs operator by operator (foreach=True)",
    "fused=True",
    "unfused-optimizer",
)
def _(bad: bool) -> Step:
    batch, columns, width = sized(2048, 4), sized(512, 8), sized(3072, 16)
    blocks = (WideBlock(width) for _ in range(sized(8, 2)))
    model = nn.Sequential(nn.Linear(columns, width), *blocks, nn.Linear(width, 64)).to(DEVICE)
    optimizer = adamw(model, fused=False, foreach=True) if bad else adamw(model)
    x = torch.randn(batch, columns, device=DEVICE)
    y = torch.randint(64, (batch,), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, dtype=BF16):
            out = model(x)
        F.cross_entropy(out.float(), y).backward()
        optimizer.step()  # cost: mlp-foreach
        optimizer.zero_grad(set_to_none=True)

    return step


class BasicBlock(nn.Module):
    """The block of a ResNet-18."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(a, b, 3, stride, 1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(),
            nn.Conv2d(b, b, 3, 1, 1, bias=False),
            nn.BatchNorm2d(b),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or a != b:
            self.skip = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.net(x) + self.skip(x))


def resnet18(width: int, classes: int) -> nn.Sequential:
    stem = (nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks: list[nn.Module] = []
    for stage in range(4):
        b = width << stage
        blocks += [BasicBlock(b // 2 if stage else b, b, 2 if stage else 1), BasicBlock(b, b, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))


@case(
    "resnet18-pageable",
    "the batches of a ResNet-18, 128 images in float32, are copied from pageable memory, and waited for",
    "pinned memory and non_blocking=True",
    "pageable-memory",
    "blocking-copy",
    "awaited-copies",
)
def _(bad: bool) -> Step:
    batch, size, classes = sized(128, 2), sized(224, 32), sized(1000, 5)
    model = channels_last(resnet18(sized(64, 4), classes).to(DEVICE))
    images = [channels_last(torch.randn(batch, 3, size, size)) for _ in range(3)]
    if not bad and ON_GPU:
        images = [x.pin_memory() for x in images]
    turn = itertools.cycle(images)
    y = torch.randint(classes, (batch,), device=DEVICE)

    def loss() -> torch.Tensor:
        x = next(turn)
        x = x.to(DEVICE) if bad else x.to(DEVICE, non_blocking=True)  # cost: resnet18-pageable
        return F.cross_entropy(model(x).float(), y)

    return trained(model, loss)


# -- bound by the host --------------------------------------------------------------------------------------


def clipped(parameters: list[nn.Parameter], limit: float) -> None:
    """Scale the gradients so that their norm isn't above the limit."""
    total = 0.0
    for p in parameters:
        total += p.grad.norm().item() ** 2  # cost: narrow-gpt-clip
    scale = limit / (total**0.5 + 1e-6)
    if scale < 1:
        for p in parameters:
            p.grad.mul_(scale)  # cost: narrow-gpt-clip


@case(
    "narrow-gpt-clip",
    "the gradients of a GPT of 24 narrow layers are clipped in a Python loop that reads each norm with .item()",
    "torch.nn.utils.clip_grad_norm_",
    "item-each-step",
    "waits-in-turn",
    "operator-loop",
    "kernel-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, words = sized(4, 2), sized(128, 12), sized(4096, 40)
    model = GPT(words, length, sized(256, 16), sized(24, 2), float_head=False).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)
    y = x[:, 1:].flatten()
    parameters = list(model.parameters())
    clip = clipped if bad else nn.utils.clip_grad_norm_
    return trained(
        model,
        lambda: F.cross_entropy(model(x[:, :-1]).flatten(0, 1), y),
        after=lambda _: clip(parameters, 0.1),
    )


@case(
    "tagger-cpu-metrics",
    "the scores of a tagger are copied to the host after each step, for the counts of each class in NumPy",
    "argmax and a confusion matrix on the device, read when a report is due",
    "blocking-copy",
    "pageable-memory",
    "array-read",
    "item-each-step",
    "metric-compute",
    "python-time",
    "waits-in-turn",
    "host-operators",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, words, classes = sized(64, 2), sized(128, 12), sized(8192, 40), sized(64, 5)
    width = sized(256, 16)
    body = Text(words, length, width, sized(6, 2), causal=False)
    model = nn.Sequential(body, nn.Linear(width, classes)).to(DEVICE)
    ids = torch.randint(words, (batch, length), device=DEVICE)
    y = torch.randint(classes, (batch * length,), device=DEVICE)
    hits, found, there = (np.zeros(classes, np.int64) for _ in range(3))
    confusion = torch.zeros(classes * classes, dtype=torch.int64, device=DEVICE)
    ones = torch.ones_like(y)
    scores = torch.empty(0)

    def loss() -> torch.Tensor:
        nonlocal scores
        out = model(ids).float().flatten(0, 1)
        scores = out.detach()
        return F.cross_entropy(out, y)

    def counted_on_host() -> None:
        predicted = scores.cpu().numpy().argmax(-1)  # cost: tagger-cpu-metrics
        true = y.cpu().numpy()  # cost: tagger-cpu-metrics
        for c in range(classes):
            hits[c] += ((predicted == c) & (true == c)).sum()  # cost: tagger-cpu-metrics
            found[c] += (predicted == c).sum()  # cost: tagger-cpu-metrics
            there[c] += (true == c).sum()  # cost: tagger-cpu-metrics

    def counted_on_device() -> None:
        confusion.scatter_add_(0, y * classes + scores.argmax(-1), ones)

    return trained(model, loss, last=counted_on_host if bad else counted_on_device)


class ExitingBERT(nn.Module):
    """A BERT that can be left after each layer: each has a head."""

    def __init__(self, words: int, length: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.body = Text(words, length, width, depth, causal=False)
        self.heads = nn.ModuleList(nn.Linear(width, classes) for _ in range(depth))

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        x, outs = self.body.words(ids) + self.body.places, []
        for layer, head in zip(self.body.layers, self.heads, strict=True):
            x = layer(x)
            outs.append(head(self.body.norm(x)).float())
        return outs


@case(
    "bert-masked-losses",
    "a BERT has a loss after each of its twelve layers, of the tokens that a boolean mask picks: each indexing waits "
    "for the count",
    "cross_entropy with ignore_index, over all tokens",
    "size-from-device",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, words, classes = sized(16, 2), sized(64, 12), sized(8192, 40), sized(64, 5)
    model = ExitingBERT(words, length, sized(256, 16), sized(12, 2), classes).to(DEVICE)
    ids = torch.randint(words, (batch, length), device=DEVICE)
    y = torch.randint(classes, (batch, length), device=DEVICE)
    mask = torch.rand(batch, length, device=DEVICE) < 0.6

    def picked() -> torch.Tensor:
        total = torch.zeros((), device=DEVICE)
        for out in model(ids):
            total = total + F.cross_entropy(out[mask], y[mask])  # cost: bert-masked-losses
        return total

    def ignored() -> torch.Tensor:
        total, wanted = torch.zeros((), device=DEVICE), y.masked_fill(~mask, -100).flatten()
        for out in model(ids):
            total = total + F.cross_entropy(out.flatten(0, 1), wanted, ignore_index=-100)
        return total

    return trained(model, picked if bad else ignored)


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Small pictures, padded, cropped, flipped and scaled as they are asked for."""

    def __init__(self, count: int) -> None:
        draw = np.random.default_rng(0)
        self.images = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        self.labels = draw.integers(0, 10, count)
        self.mean = np.array([0.49, 0.48, 0.45], np.float32)
        self.deviation = np.array([0.25, 0.24, 0.26], np.float32)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        which = index % len(self.images)
        image = np.pad(self.images[which], ((4, 4), (4, 4), (0, 0)), mode="reflect")
        x, y = index * 31 % 9, index * 17 % 9
        image = image[y : y + 32, x : x + 32]
        image = image[:, ::-1] if index % 2 else image
        scaled = (image.astype(np.float32) / 255 - self.mean) / self.deviation
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1))), int(self.labels[which])


@case(
    "tiny-vit-loader",
    "the pictures of a small ViT are augmented by a DataLoader without workers, in the process that trains",
    "num_workers=8",
    "loader-workers",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    model = ViT(32, sized(4, 8), sized(192, 16), sized(9, 2), 10).to(DEVICE)
    workers = 0 if bad else sized(8, 1)
    loader = torch.utils.data.DataLoader(
        Pictures(sized(4096, 8)), sized(96, 2), num_workers=workers, pin_memory=ON_GPU
    )  # cost: tiny-vit-loader
    batches = iter(loader)

    def loss() -> torch.Tensor:
        images, labels = next(batches)  # cost: tiny-vit-loader
        x, y = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        return F.cross_entropy(model(x).float(), y)

    return trained(model, loss)


class LSTMLanguage(nn.Module):
    """A language model with an LSTM, which goes on where the batch before ended."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True)

    def forward(self, ids: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        x, state = self.lstm(self.words(ids), state)
        return self.head(x).float(), tuple(part.detach().float() for part in state)


@case(
    "lstm-empty-cache",
    "torch.cuda.empty_cache() after every step of an LSTM language model: all memory is freed and allocated anew",
    "without empty_cache()",
    "allocator-in-steps",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, words = sized(32, 2), sized(48, 6), sized(10_000, 40)
    width, depth = sized(768, 16), 2
    model = LSTMLanguage(words, width, depth).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)
    y = x[:, 1:].flatten()
    state: Any = tuple(torch.zeros(depth, batch, width, device=DEVICE) for _ in range(2))

    def loss() -> torch.Tensor:
        nonlocal state
        out, state = model(x[:, :-1], state)
        return F.cross_entropy(out.flatten(0, 1), y)

    def tidied() -> None:
        torch.cuda.empty_cache()  # cost: lstm-empty-cache

    return trained(model, loss, last=tidied if bad else lambda: None)
