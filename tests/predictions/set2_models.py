"""More training steps with a planted cost: other models than :mod:`tests.predictions.cases` has, and other idioms.

They were written and recorded after the rules were, and scored before any of them was looked at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import Step, adamw, case, trained

# -- models -------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """A transformer encoder with padded rows; attention in one call or written out with an additive mask."""

    def __init__(
        self, layers: int, width: int, heads: int, *, written_out: bool = False, gelu: Any = F.gelu
    ) -> None:
        super().__init__()
        self.heads, self.written_out, self.gelu = heads, written_out, gelu
        self.tokens, self.places = nn.Embedding(8192, width), nn.Embedding(2048, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                    "norm1": nn.LayerNorm(width),
                    "norm2": nn.LayerNorm(width),
                }
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 8192)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        b, t = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(t, device=ids.device))
        mask = keep[:, None, None, :]
        for layer in self.layers:
            q, k, v = (
                part.view(b, t, self.heads, -1).transpose(1, 2)
                for part in layer["qkv"](layer["norm1"](x)).chunk(3, dim=-1)
            )
            if self.written_out:
                scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
                scores = scores + (~mask).float() * -10_000.0
                y = torch.matmul(F.dropout(torch.softmax(scores, -1).to(v.dtype), 0.0), v)
            else:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + layer["out"](y.transpose(1, 2).reshape(b, t, -1))
            x = x + layer["down"](self.gelu(layer["up"](layer["norm2"](x))))
        return self.head(x)


class Mixer(nn.Module):
    """An MLP-Mixer on image patches."""

    def __init__(self, depth: int = 12, width: int = 512, patches: int = 196) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.across = nn.ModuleList(
            nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches)) for _ in range(depth)
        )
        self.within = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width)) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for i, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x = x + across(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


class Wave(nn.Module):
    """Dilated convolutions over sound."""

    def __init__(self, norm: Callable[[int], nn.Module], layers: int = 16, width: int = 256) -> None:
        super().__init__()
        self.begin = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2 ** (i % 8), dilation=2 ** (i % 8)) for i in range(layers)
        )
        self.norms = nn.ModuleList(norm(width) for _ in range(layers))
        self.end = nn.Conv1d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for convolution, norm in zip(self.layers, self.norms, strict=True):
            a, b = convolution(norm(x.transpose(1, 2)).transpose(1, 2).to(x.dtype)).chunk(2, 1)
            x = x + torch.tanh(a) * torch.sigmoid(b)
        return self.end(x)


class WrittenLayerNorm(nn.Module):
    """A layer norm in elementwise operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.weight * (x - mean) / torch.sqrt(variance + 1e-5) + self.bias


class Generator(nn.Sequential):
    """The generator of DCGAN, 64 pixels."""

    def __init__(self, width: int = 64) -> None:
        parts: list[nn.Module] = [nn.ConvTranspose2d(100, 8 * width, 4, bias=False)]
        for a, b in ((8, 4), (4, 2), (2, 1)):
            parts += [nn.BatchNorm2d(a * width), nn.ReLU(True)]
            parts += [nn.ConvTranspose2d(a * width, b * width, 4, 2, 1, bias=False)]
        parts += [nn.BatchNorm2d(width), nn.ReLU(True), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh()]
        super().__init__(*parts)


class Discriminator(nn.Sequential):
    """The discriminator of DCGAN, 64 pixels."""

    def __init__(self, width: int = 64) -> None:
        parts: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True)]
        for a, b in ((1, 2), (2, 4), (4, 8)):
            parts += [nn.Conv2d(a * width, b * width, 4, 2, 1, bias=False), nn.BatchNorm2d(b * width)]
            parts += [nn.LeakyReLU(0.2, True)]
        super().__init__(*parts, nn.Conv2d(8 * width, 1, 4), nn.Flatten(0))


class Experts(nn.Module):
    """A mixture of experts; each takes its tokens by a mask, or all take equally many."""

    def __init__(self, width: int, count: int, by_mask: bool) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.up = nn.Parameter(torch.randn(count, width, 4 * width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(count, 4 * width, width) / math.sqrt(4 * width))
        self.by_mask = by_mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = torch.softmax(self.router(x), -1)
        count = share.shape[-1]
        if self.by_mask:
            out, chosen = torch.zeros_like(x), share.argmax(-1)
            for expert in range(count):
                rows = (chosen == expert).nonzero().squeeze(-1)
                y = F.gelu(x[rows] @ self.up[expert]) @ self.down[expert]
                out = out.index_add(0, rows, (y * share[rows, expert].unsqueeze(-1)).to(out.dtype))
            return out
        best = share.topk(len(x) // count, dim=0)
        rows = best.indices.t()
        y = torch.bmm(F.gelu(torch.bmm(x[rows], self.up)), self.down) * best.values.t().unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, rows.flatten(), y.flatten(0, 1).to(x.dtype))


class Graph(nn.Module):
    """Message passing on a graph."""

    def __init__(self, width: int = 256, layers: int = 6) -> None:
        super().__init__()
        self.begin, self.end = nn.Linear(64, width), nn.Linear(width, 16)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for layer in self.layers:
            around = torch.zeros_like(x).index_add_(0, target, x[source])
            x = x + F.relu(layer(torch.cat([x, around], -1)))
        return self.end(x)


# -- steps --------------------------------------------------------------------------------------------------


def encoded(model: Encoder, batch: int, length: int, **how: Any) -> Step:
    model = model.cuda()
    ids = torch.randint(8192, (batch, length), device="cuda")
    keep = torch.arange(length, device="cuda") < torch.randint(length // 2, length, (batch, 1), device="cuda")

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(ids, keep).flatten(0, 1), ids.flatten())

    return trained(model, loss, **how)


def mixed(model: nn.Module, batch: int, **how: Any) -> Step:
    model = model.cuda()
    x, y = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(1000, (batch,), device="cuda")
    return trained(model, lambda: F.cross_entropy(model(x), y), **how)


@case(
    "bert-attention",
    "attention with an additive padding mask, written out",
    "scaled_dot_product_attention(attn_mask=…)",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    return encoded(Encoder(12, 768, 12, written_out=bad), 16, 512)


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@case("bert-gelu", "GELU by its formula", 'F.gelu(approximate="tanh")', "elementwise-chain")
def _(bad: bool) -> Step:
    gelu = tanh_gelu if bad else (lambda x: F.gelu(x, approximate="tanh"))
    return encoded(Encoder(8, 1024, 16, gelu=gelu), 16, 512)


@case(
    "bert-item",
    "loss and share of right answers read with .item() before the optimizer's step",
    "never read",
    "item-each-step",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    def read(loss: torch.Tensor) -> None:
        if bad:
            loss.item()
            (loss.detach() < 1.0).float().mean().item()

    return encoded(Encoder(12, 512, 8), 16, 256, after=read)


@case("mixer-fp32", "float32 in full precision", "bf16 autocast", "mixed-precision", "fp32-matmul")
def _(bad: bool) -> Step:
    return mixed(Mixer(), 128, autocast=not bad)


@case(
    "mixer-average",
    "a moving average of the weights, parameter by parameter",
    "torch._foreach_lerp_",
    "kernel-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Mixer().cuda()
    kept = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def average() -> None:
        if bad:
            for old, new in zip(kept, model.parameters(), strict=True):
                old.mul_(0.999).add_(new, alpha=0.001)
        else:
            torch._foreach_lerp_(kept, list(model.parameters()), 0.001)

    return mixed(model, 64, last=average)


@case(
    "mixer-adam",
    "AdamW(foreach=False)",
    "fused=True",
    "single-tensor-optimizer",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Mixer(depth=16).cuda()
    return mixed(model, 96, optimizer=adamw(model, fused=not bad, foreach=False))


@case("wave-norm", "a layer norm written out", "nn.LayerNorm", "unfused-norm", "elementwise-chain")
def _(bad: bool) -> Step:
    model = Wave(WrittenLayerNorm if bad else nn.LayerNorm).cuda()
    x = torch.randn(16, 1, 16_000, device="cuda")
    return trained(model, lambda: F.mse_loss(model(x).float(), x))


@case(
    "wave-copy",
    "each batch is made on the host and copied from pageable memory",
    "pinned, non_blocking=True",
    "pageable-memory",
)
def _(bad: bool) -> Step:
    model = Wave(nn.LayerNorm, layers=4, width=64).cuda()
    host = [torch.randn(256, 1, 32_000) for _ in range(2)]
    turn = itertools.cycle(host if bad else [x.pin_memory() for x in host])

    def loss() -> torch.Tensor:
        x = next(turn).to("cuda", non_blocking=not bad)
        return F.mse_loss(model(x[:, :, :4000]).float(), x[:, :, :4000])

    return trained(model, loss)


def adversarial(read: bool, clear: bool) -> Step:
    g, d = Generator().cuda(), Discriminator().cuda()
    g_adam, d_adam = adamw(g), adamw(d)
    real, ones, zeros = torch.randn(256, 3, 64, 64, device="cuda"), torch.ones(256), torch.zeros(256)
    ones, zeros = ones.cuda(), zeros.cuda()
    criterion = nn.BCEWithLogitsLoss()

    def step() -> None:
        d.zero_grad(set_to_none=True)
        of_real = criterion(d(real), ones)
        of_real.backward()
        fake = g(torch.randn(256, 100, 1, 1, device="cuda"))
        of_fake = criterion(d(fake.detach()), zeros)
        of_fake.backward()
        d_adam.step()
        g.zero_grad(set_to_none=True)
        of_g = criterion(d(fake), ones)
        of_g.backward()
        g_adam.step()
        if read:
            f"{of_real.item() + of_fake.item():.4f} {of_g.item():.4f}"
        if clear:
            torch.cuda.empty_cache()

    return step


@case(
    "gan-item",
    "both losses printed in every step, as the tutorial does",
    "never read",
    "item-each-step",
    may_precede=("launch-bound", "mixed-precision", "fp32-matmul", "channels-last"),
)
def _(bad: bool) -> Step:
    return adversarial(bad, False)


@case(
    "gan-empty",
    "empty_cache() in every step",
    "never",
    "allocator-in-steps",
    may_precede=("mixed-precision", "fp32-matmul"),
)
def _(bad: bool) -> Step:
    return adversarial(False, bad)


@case(
    "experts-mask",
    "tokens of each expert found with nonzero()",
    "equally many tokens an expert, in one batched product",
    "size-from-device",
    "kernel-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    layers = [Experts(512, 16, bad) for _ in range(4)]
    model = nn.Sequential(*layers).cuda()
    x = torch.randn(8192, 512, device="cuda")
    return trained(model, lambda: model(x).float().square().mean())


@case(
    "graph-python",
    "the neighbours of each node are drawn by a Python loop in every step",
    "drawn by one call",
    "python-time",
)
def _(bad: bool) -> Step:
    import random

    model = Graph().cuda()
    nodes, edges = 50_000, 400_000
    x, y = torch.randn(nodes, 64, device="cuda"), torch.randint(16, (nodes,), device="cuda")
    source = torch.randint(nodes, (edges,), device="cuda")
    draw = random.Random(0)

    def loss() -> torch.Tensor:
        if bad:
            drawn = [draw.randrange(nodes) for _ in range(40_000)]
            target = torch.tensor(drawn).pin_memory().to("cuda", non_blocking=True).repeat(edges // 40_000)
        else:
            target = torch.randint(nodes, (edges,), device="cuda")
        return F.cross_entropy(model(x, source, target).float(), y)

    return trained(model, loss)


@case(
    "graph-times",
    "torch.cuda.synchronize() after forward, backward and optimizer, to time each",
    "never",
    "explicit-wait",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Graph(width=64, layers=12).cuda()
    nodes, edges = 10_000, 40_000
    x, y = torch.randn(nodes, 64, device="cuda"), torch.randint(16, (nodes,), device="cuda")
    ends = torch.randint(nodes, (2, edges), device="cuda")
    wait = torch.cuda.synchronize if bad else lambda: None

    def loss() -> torch.Tensor:
        out = F.cross_entropy(model(x, *ends).float(), y)
        wait()
        return out

    return trained(model, loss, after=lambda _: wait(), last=wait)


@case(
    "lstm-steps",
    "an LSTM cell called for each time step",
    "nn.LSTM",
    "launch-bound",
    "kernel-loop",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    width, length = 256, 64
    model: Any = (nn.LSTMCell if bad else nn.LSTM)(width, width).cuda()
    head = nn.Linear(width, 32).cuda()
    both = nn.ModuleList([model, head])
    x = torch.randn(length, 64, width, device="cuda")
    y = torch.randint(32, (length * 64,), device="cuda")

    def loss() -> torch.Tensor:
        if bad:
            h = c = torch.zeros(64, width, device="cuda")
            outs = []
            for t in range(length):
                h, c = model(x[t], (h, c))
                outs.append(h)
            out = torch.stack(outs)
        else:
            out = model(x)[0]
        return F.cross_entropy(head(out).flatten(0, 1).float(), y)

    return trained(both, loss, autocast=False)


class Drawn(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images that NumPy distorts, item by item."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import numpy as np

        rng = np.random.default_rng(index)
        image = rng.random((3, 160, 160), dtype=np.float32)
        image = np.clip(image * rng.uniform(0.6, 1.4) + rng.normal(0, 0.05, image.shape), 0, 1)
        return torch.from_numpy(image.astype(np.float32)), index % 1000


@case("mobile-loader", "one worker distorts all images", "num_workers=6", "loader-workers")
def _(bad: bool) -> Step:
    def depthwise(a: int, b: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU(True)),
            *(nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)),
        )

    sizes = [
        (32, 64, 1),
        (64, 128, 2),
        (128, 128, 1),
        (128, 256, 2),
        (256, 256, 1),
        (256, 512, 2),
        (512, 512, 1),
    ]
    model = (
        nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            *(depthwise(*size) for size in sizes),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, 1000),
        )
        .cuda()
        .to(memory_format=torch.channels_last)
    )
    loader = torch.utils.data.DataLoader(Drawn(), 64, num_workers=1 if bad else 6, pin_memory=True)
    batches = iter(loader)

    def loss() -> torch.Tensor:
        x, y = next(batches)
        x = x.to("cuda", non_blocking=True).to(memory_format=torch.channels_last)
        return F.cross_entropy(model(x).float(), y.to("cuda", non_blocking=True))

    return trained(model, loss)


@case(
    "clip-finite",
    "clip_grad_norm_(error_if_nonfinite=True) in every step",
    "without the check",
    "nan-check",
    "item-each-step",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Encoder(8, 512, 8)

    def clip(_loss: torch.Tensor) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=bad)

    return encoded(model, 8, 512, after=clip)


@case(
    "both-encoder",
    "attention written out, GELU by its formula, AdamW parameter by parameter, and a pageable batch",
    "scaled_dot_product_attention",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    model = Encoder(8, 768, 12, written_out=bad, gelu=tanh_gelu).cuda()
    host = torch.randn(64, 3, 224, 224)
    return encoded(
        model,
        16,
        768,
        optimizer=adamw(model, fused=False, foreach=False),
        after=lambda _: host.to("cuda"),
    )
