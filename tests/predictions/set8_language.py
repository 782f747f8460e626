"""Steps on a GPU with a planted cost: a set of models and programs that no earlier set has, half bound by the host.

Next to nothing can be won in ``nerf-product`` and ``dlrm-logs``.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, Step, adamw, case, trained

# -- fine-tuning and distillation ---------------------------------------------------------------------------


class LowRank(nn.Module):
    """A layer that stays as it is, beside a product of two narrow matrices that is trained."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.02)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))


def adapted(layers: int = 12, width: int = 1024, count: int = 16_384) -> Any:
    """Return a Llama of transformers in bfloat16, with low-rank adapters in its attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=count,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        max_position_embeddings=2048,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model: Any = LlamaForCausalLM(config).to(BF16)
    model.requires_grad_(False)
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj, attention.v_proj = LowRank(attention.q_proj), LowRank(attention.v_proj)
    return model.cuda().train()


@case(
    "lora-checkpoint",
    "low-rank adapters are trained with gradient_checkpointing_enable(), though memory is free",
    "without checkpointing",
    "recomputed-forward",
    may_precede=("unfused-norm", "elementwise-chain"),
)
def _(bad: bool) -> Step:
    model: Any = adapted()
    if bad:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = torch.randint(16_384, (16, 1024), device="cuda")
    chosen = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=2e-4, fused=True)
    return trained(model, lambda: model(input_ids=ids, labels=ids).loss, optimizer=optimizer, autocast=False)


@case(
    "distil-teacher",
    "a Swin teacher runs without no_grad(), and the loss is differentiated through all of it",
    "torch.no_grad() around the teacher",
    "unneeded-gradients",
    may_precede=("channels-last", "elementwise-chain"),
)
def _(bad: bool) -> Step:
    from torchvision.models import convnext_tiny, swin_s

    teacher = swin_s(weights=None).cuda().eval()
    student = convnext_tiny(weights=None, stochastic_depth_prob=0.0).cuda().train()
    x, y = torch.randn(48, 3, 224, 224, device="cuda"), torch.randint(1000, (48,), device="cuda")

    def loss() -> torch.Tensor:
        with torch.set_grad_enabled(bad):
            wanted = teacher(x)
        out = student(x)
        soft = F.kl_div(
            F.log_softmax(out.float() / 4, -1), F.softmax(wanted.float() / 4, -1), reduction="batchmean"
        )
        return 0.3 * F.cross_entropy(out.float(), y) + 0.7 * 16 * soft

    return trained(student, loss)


# -- text to text -------------------------------------------------------------------------------------------


class T5Norm(nn.Module):
    """The norm of T5 in elementwise operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x


class T5Attention(nn.Module):
    """Attention with a bias of relative positions and no scale, to itself or to other states."""

    def __init__(self, width: int, heads: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.written_out = heads, written_out
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.q.weight, std=(width * width // heads) ** -0.5)

    def forward(self, x: torch.Tensor, other: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            layer(states).view(b, -1, self.heads, c // self.heads).transpose(1, 2)
            for layer, states in ((self.q, x), (self.k, other), (self.v, other))
        )
        if self.written_out:
            scores = torch.matmul(q, k.transpose(3, 2))
            scores = scores + bias
            weights = F.softmax(scores.float(), dim=-1).type_as(scores)
            y = torch.matmul(weights.to(v.dtype), v)
        else:
            # Fused kernels take no bias that is only permuted.
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype).contiguous(), scale=1.0)
        return self.o(y.transpose(1, 2).reshape(b, t, c))


def buckets(rows: int, columns: int, both_ways: bool, count: int = 32, far: int = 128) -> torch.Tensor:
    """Return the bucket of each relative position: exact ones nearby, then logarithmic ones."""
    apart = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]
    start = torch.zeros_like(apart)
    if both_ways:
        count //= 2
        start = (apart > 0).long() * count
        apart = apart.abs()
    else:
        apart = (-apart).clamp(min=0)
    exact = count // 2
    wide = exact + (
        torch.log(apart.clamp(min=1).float() / exact) / math.log(far / exact) * (count - exact)
    ).long().clamp(max=count - 1 - exact)
    return start + torch.where(apart < exact, apart, wide)


class T5Layer(nn.Module):
    """A layer of the encoder, or of the decoder if it looks at the encoder's states."""

    def __init__(self, width: int, heads: int, written_out: bool, crossed: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(T5Norm(width) for _ in range(3))
        self.own = T5Attention(width, heads, written_out)
        self.crossed = T5Attention(width, heads, written_out) if crossed else None
        self.gate, self.up = nn.Linear(width, 2048, bias=False), nn.Linear(width, 2048, bias=False)
        self.down = nn.Linear(2048, width, bias=False)

    def forward(
        self, x: torch.Tensor, bias: torch.Tensor, states: torch.Tensor | None, mask: torch.Tensor
    ) -> torch.Tensor:
        first = self.norms[0](x)
        x = x + self.own(first, first, bias)
        if self.crossed is not None and states is not None:
            x = x + self.crossed(self.norms[1](x), states, mask)
        last = self.norms[2](x)
        return x + self.down(F.gelu(self.gate(last), approximate="tanh") * self.up(last))


class T5(nn.Module):
    """An encoder and a decoder."""

    def __init__(
        self, written_out: bool, depth: int = 6, width: int = 768, heads: int = 12, longest: int = 512
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(32_128, width)
        self.encoder, self.decoder = (
            nn.ModuleList(T5Layer(width, heads, written_out, crossed) for _ in range(depth))
            for crossed in (False, True)
        )
        self.biases = nn.ModuleList(nn.Embedding(32, heads) for _ in range(2))
        self.ends = nn.ModuleList(T5Norm(width) for _ in range(2))
        self.register_buffer("near", buckets(longest, longest, True))
        self.register_buffer("past", buckets(longest, longest, False))
        self.head = nn.Linear(width, 32_128, bias=False)

    def forward(self, source: torch.Tensor, kept: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        s, t = source.shape[1], target.shape[1]
        mask = (1.0 - kept[:, None, None, :].float()) * -1e9
        bias = self.biases[0](self.near[:s, :s]).permute(2, 0, 1)[None] + mask
        x = self.words(source)
        for layer in self.encoder:
            x = layer(x, bias, None, mask)
        states = self.ends[0](x)
        later = torch.full((t, t), -1e9, device=x.device).triu(1)
        bias = (self.biases[1](self.past[:t, :t]).permute(2, 0, 1)[None] + later).expand(len(x), -1, -1, -1)
        crossed = mask.expand(-1, bias.shape[1], t, -1)
        x = self.words(target)
        for layer in self.decoder:
            x = layer(x, bias, states, crossed)
        return self.head(self.ends[1](x))


@case(
    "both-t5",
    "attention of an encoder and a decoder with a bias of positions, written out, and so are its norms",
    "scaled_dot_product_attention with the bias as its mask; the norms stay",
    "unfused-attention",
    may_precede=("unfused-norm",),
)
def _(bad: bool) -> Step:
    model = T5(bad).cuda()
    source, target = (torch.randint(32_128, (24, n), device="cuda") for n in (512, 257))
    kept = torch.arange(512, device="cuda") < torch.randint(300, 513, (24, 1), device="cuda")

    def loss() -> torch.Tensor:
        out = model(source, kept, target[:, :-1])
        return F.cross_entropy(out.float().flatten(0, 1), target[:, 1:].flatten())

    return trained(model, loss)


# -- sound --------------------------------------------------------------------------------------------------


class WaveNet(nn.Module):
    """Gated causal convolutions over a wave in 256 steps of loudness."""

    def __init__(self, one_hot: bool, width: int = 128, layers: int = 10) -> None:
        super().__init__()
        self.one_hot, self.width = one_hot, width
        self.begin = nn.Conv1d(256, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(layers))
        self.ways = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 256, 1))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        if self.one_hot:
            x = self.begin(F.one_hot(wave, 256).float().transpose(1, 2))
        else:
            table = self.begin.weight.squeeze(-1).t()
            x = (F.embedding(wave, table) + self.begin.bias).transpose(1, 2)
        total: torch.Tensor | float = 0.0
        for i, (gate, way) in enumerate(zip(self.gates, self.ways, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, dim=1)
            rest, skip = way(torch.tanh(a) * torch.sigmoid(b)).chunk(2, dim=1)
            x, total = x + rest, total + skip
        return self.end(total)


@case(
    "wavenet-onehot",
    "the samples of a wave enter a convolution of width one as one-hot vectors of 256",
    "F.embedding with the weights of that convolution",
    "one-hot-product",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    model = WaveNet(bad).cuda()
    wave = torch.randint(256, (16, 16_001), device="cuda")
    return trained(model, lambda: F.cross_entropy(model(wave[:, :-1]), wave[:, 1:]))


class Transducer(nn.Module):
    """An encoder of sound, a predictor of letters, and what joins each frame with each letter."""

    def __init__(self, width: int = 512, letters: int = 128) -> None:
        super().__init__()
        self.listen = nn.LSTM(240, width, 3, batch_first=True)
        self.letters = nn.Embedding(letters, width)
        self.predict = nn.LSTM(width, width, 1, batch_first=True)
        self.join = nn.Sequential(nn.Tanh(), nn.Linear(width, letters))

    def forward(
        self, sound: torch.Tensor, text: torch.Tensor, frames: Any, counts: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and wanted letters of each pair of a frame and a letter, without padding."""
        heard, said = self.listen(sound)[0], self.predict(self.letters(text))[0]
        pairs, wanted = [], []
        for i in range(len(sound)):
            one, two = heard[i, : frames[i]], said[i, : counts[i]]
            pairs.append((one[:, None] + two[None]).reshape(-1, one.shape[-1]))
            wanted.append(text[i, : counts[i]].repeat(one.shape[0]))
        return self.join(torch.cat(pairs)), torch.cat(wanted)


@case(
    "rnnt-lengths",
    "an RNN-T packs frames and letters by lengths that lie on the GPU: each slice of 24 utterances reads one",
    "lengths as Python numbers",
    "item-each-step",
    "size-from-device",
    may_precede=("launch-bound", "kernel-loop", "operator-loop"),
)
def _(bad: bool) -> Step:
    batch, most, letters = 24, 160, 32
    model = Transducer().cuda()
    sound = torch.randn(batch, most, 240, device="cuda")
    text = torch.randint(128, (batch, letters), device="cuda")
    frames, counts = torch.randint(most // 2, most + 1, (batch,)), torch.randint(8, letters + 1, (batch,))
    known = (frames.cuda(), counts.cuda()) if bad else (frames.tolist(), counts.tolist())

    def loss() -> torch.Tensor:
        scores, wanted = model(sound, text, *known)
        return F.cross_entropy(scores.float(), wanted)

    return trained(model, loss)


# -- volumes, rays and molecules ----------------------------------------------------------------------------


def solid(a: int, b: int, stride: int = 1) -> nn.Sequential:
    """Two convolutions of a volume."""
    return nn.Sequential(
        *(nn.Conv3d(a, b, 3, stride, 1, bias=False), nn.BatchNorm3d(b), nn.LeakyReLU(0.01, True)),
        *(nn.Conv3d(b, b, 3, 1, 1, bias=False), nn.BatchNorm3d(b), nn.LeakyReLU(0.01, True)),
    )


class UNet3D(nn.Module):
    """A volume down by strides and up again by transposed convolutions."""

    def __init__(self, width: int = 32, kinds: int = 4) -> None:
        super().__init__()
        w = [width, 2 * width, 4 * width, 8 * width]
        self.begin = solid(4, w[0])
        self.down = nn.ModuleList(solid(a, b, 2) for a, b in itertools.pairwise(w))
        self.wide = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in itertools.pairwise(w))
        self.up = nn.ModuleList(solid(2 * a, a) for a in w[:-1])
        self.out = nn.Conv3d(width, kinds, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.begin(x)]
        for stage in self.down:
            kept.append(stage(kept[-1]))
        x = kept.pop()
        for wide, stage in zip(reversed(self.wide), reversed(self.up), strict=True):
            x = stage(torch.cat([wide(x), kept.pop()], 1))
        return self.out(x)


def overlapping(out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross entropy, and one less the overlap of each kind of tissue."""
    seen = F.softmax(out, 1)
    true = torch.zeros_like(seen).scatter_(1, wanted[:, None], 1.0)
    both, all_of = (seen * true).sum((0, 2, 3, 4)), (seen + true).sum((0, 2, 3, 4))
    return F.cross_entropy(out, wanted) + 1 - ((2 * both + 1) / (all_of + 1)).mean()


@case(
    "unet3d-channels",
    "a 3D U-Net channels first",
    "channels_last_3d",
    "channels-last",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    layout = torch.contiguous_format if bad else torch.channels_last_3d
    model = UNet3D().cuda().to(memory_format=layout)
    x = torch.randn(2, 4, 96, 96, 96, device="cuda").to(memory_format=layout)
    wanted = torch.randint(4, (2, 96, 96, 96), device="cuda")
    return trained(model, lambda: overlapping(model(x).float(), wanted))


class Field(nn.Module):
    """Density and colour of points in space, from waves of their places."""

    def __init__(self, width: int = 256, waves: int = 10) -> None:
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(waves))
        sizes = [3 + 6 * waves, *[width] * 7]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU(True)]
        self.body, self.end = nn.Sequential(*layers), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = (x[..., None] * self.waves).flatten(-2)
        out = self.end(self.body(torch.cat([x, turned.sin(), turned.cos()], -1))).float()
        return F.softplus(out[..., 0] - 1.0), torch.sigmoid(out[..., 1:])


@case(
    "nerf-product",
    "how much light is left along a ray is a cumprod(), whose gradient asks the GPU for zeros: next to nothing",
    "the exponential of a sum",
    "prod-backward",
    "item-each-step",
    "size-from-device",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    rays, samples = 4096, 96
    model = Field().cuda()
    origin = torch.randn(rays, 1, 3, device="cuda") * 0.1
    towards = F.normalize(torch.randn(rays, 1, 3, device="cuda"), dim=-1)
    colour = torch.rand(rays, 3, device="cuda")
    near, far = 0.5, 3.0

    def loss() -> torch.Tensor:
        start = torch.linspace(near, far, samples, device="cuda").expand(rays, samples)
        depth = start + torch.rand(rays, samples, device="cuda") * (far - near) / samples
        density, seen = model(origin + towards * depth[..., None])
        gaps = F.pad(depth[:, 1:] - depth[:, :-1], (0, 1), value=0.1)
        stopped = 1.0 - torch.exp(-density * gaps)
        left = (
            torch.cumprod(1.0 - stopped + 1e-10, -1) if bad else torch.exp(torch.cumsum(-density * gaps, -1))
        )
        before = F.pad(left[:, :-1], (1, 0), value=1.0)
        return F.mse_loss(((stopped * before)[..., None] * seen).sum(1), colour)

    return trained(model, loss)


def softplus_less(x: torch.Tensor) -> torch.Tensor:
    """A softplus that is zero at zero, written out."""
    return torch.log(0.5 * torch.exp(x) + 0.5)


def smeared(far: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Distances as Gaussians around centres, each less the further away."""
    near = 0.5 * (torch.cos(far * (math.pi / 10.0)) + 1.0) * (far < 10.0).float()
    return torch.exp(-10.0 * (far[:, None] - centres[None]) ** 2) * near[:, None]


class SchNet(nn.Module):
    """Atoms that get messages from atoms nearby, filtered by how far away they are."""

    def __init__(self, act: Any, smear: Any, width: int = 128, depth: int = 6) -> None:
        super().__init__()
        self.act, self.smear = act, smear
        self.kinds = nn.Embedding(100, width)
        self.register_buffer("centres", torch.linspace(0, 10, 50))
        self.filters = nn.ModuleList(
            nn.ModuleList([nn.Linear(50, width), nn.Linear(width, width)]) for _ in range(depth)
        )
        self.into = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.out = nn.ModuleList(
            nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)]) for _ in range(depth)
        )
        self.end = nn.ModuleList([nn.Linear(width, width // 2), nn.Linear(width // 2, 1)])

    def forward(
        self, kinds: torch.Tensor, edges: torch.Tensor, far: torch.Tensor, molecule: torch.Tensor, count: int
    ) -> torch.Tensor:
        source, target = edges
        x, distance = self.kinds(kinds), self.smear(far, self.centres)
        for (one, two), into, (three, four) in zip(self.filters, self.into, self.out, strict=True):
            passed = two(self.act(one(distance))) * into(x)[source]
            got = torch.zeros_like(x).index_add_(0, target, passed.to(x.dtype))
            x = x + four(self.act(three(got)))
        energy = self.end[1](self.act(self.end[0](x))).squeeze(-1).float()
        return torch.zeros(count, device=x.device).index_add_(0, molecule, energy)


@case(
    "schnet-softplus",
    "the activation of a network on molecules and the Gaussians of its distances, each operator a kernel",
    "torch.compile of both functions",
    "elementwise-chain",
    may_precede=("mixed-precision", "fp32-matmul"),
)
def _(bad: bool) -> Step:
    molecules, atoms, edges = 512, 12_288, 262_144
    torch.set_float32_matmul_precision("high")
    act, smear = (one if bad else torch.compile(one, dynamic=False) for one in (softplus_less, smeared))
    model = SchNet(act, smear).cuda()
    kinds = torch.randint(100, (atoms,), device="cuda")
    pairs = torch.randint(atoms, (2, edges), device="cuda")
    far = torch.rand(edges, device="cuda") * 12
    molecule = torch.arange(atoms, device="cuda") % molecules
    energy = torch.randn(molecules, device="cuda")
    return trained(
        model,
        lambda: F.l1_loss(model(kinds, pairs, far, molecule, molecules), energy),
        autocast=False,
    )


# -- states that go on in time ------------------------------------------------------------------------------


class StateSpace(nn.Module):
    """A selective state space, scanned step by step or as one product with a matrix of decays."""

    def __init__(self, width: int, heads: int, states: int, *, scanned: bool) -> None:
        super().__init__()
        self.heads, self.states, self.scanned = heads, states, scanned
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 4 * width + 2 * states + heads)
        self.decay = nn.Parameter(torch.zeros(heads))
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        gate, value, write, read, step = self.into(self.norm(x)).split(
            [2 * c, 2 * c, self.states, self.states, self.heads], dim=-1
        )
        value = F.silu(value).float().view(b, t, self.heads, -1)
        step = F.softplus(step.float())
        less = -step * torch.exp(self.decay)
        fed = value * step[..., None]
        y = (
            self.scan(less, fed, write.float(), read.float())
            if self.scanned
            else self.product(less, fed, write.float(), read.float())
        )
        return x + self.out(y.reshape(b, t, -1).to(gate.dtype) * F.silu(gate))

    @staticmethod
    def scan(less: torch.Tensor, fed: torch.Tensor, write: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """Carry the state from each time to the next one."""
        b, t, heads, size = fed.shape
        kept = torch.exp(less)[..., None, None].unbind(1)
        new = (fed[..., None] * write[:, :, None, None, :]).unbind(1)
        looks = read.unbind(1)
        state = torch.zeros(b, heads, size, write.shape[-1], device=fed.device)
        out = []
        for i in range(t):
            state = kept[i] * state + new[i]
            out.append((state * looks[i][:, None, None, :]).sum(-1))
        return torch.stack(out, 1)

    @staticmethod
    def product(
        less: torch.Tensor, fed: torch.Tensor, write: torch.Tensor, read: torch.Tensor
    ) -> torch.Tensor:
        """Multiply with what is left at each time of each earlier one."""
        total = less.cumsum(1).transpose(1, 2)
        left = total[..., :, None] - total[..., None, :]
        later = torch.ones(left.shape[-2:], dtype=torch.bool, device=fed.device).triu(1)
        left = torch.exp(left.masked_fill(later, float("-inf")))
        weights = (read @ write.transpose(1, 2))[:, None] * left
        return (weights @ fed.transpose(1, 2)).transpose(1, 2)


@case(
    "mamba-scan",
    "a selective state space is scanned in Python, a few small kernels for each of 128 times and 3 layers",
    "one product with a matrix of decays",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    width, length = 256, 128
    model = nn.Sequential(
        nn.Embedding(4096, width),
        *(StateSpace(width, 8, 16, scanned=bad) for _ in range(3)),
        nn.LayerNorm(width),
        nn.Linear(width, 4096),
    ).cuda()
    x = torch.randint(4096, (8, length + 1), device="cuda")

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten())

    return trained(model, loss)


class CachedBlock(nn.Module):
    """A decoder layer that sees one new word, and keeps keys and values of the ones before it."""

    def __init__(self, width: int, heads: int, batch: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        size = (batch, heads, longest, width // heads)
        self.register_buffer("keys", torch.zeros(size))
        self.register_buffer("values", torch.zeros(size))

    def forward(self, x: torch.Tensor, place: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        b, _, c = x.shape
        q, k, v = (
            part.view(b, 1, self.heads, -1).transpose(1, 2) for part in self.qkv(self.first(x)).split(c, -1)
        )
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(b, 1, c))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Speaker(nn.Module):
    """A decoder of which each call says the next word of each sequence."""

    def __init__(
        self, batch: int = 8, width: int = 512, depth: int = 12, longest: int = 256, count: int = 8192
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(count, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(CachedBlock(width, width // 64, batch, longest) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, count)
        self.register_buffer("word", torch.zeros(batch, 1, dtype=torch.long))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("line", torch.arange(longest))

    def forward(self) -> None:
        x = self.words(self.word) + self.places(self.place)
        seen = (self.line <= self.place)[None, None, None]
        for block in self.blocks:
            x = block(x, self.place, seen)
        self.word.copy_(self.head(self.norm(x[:, -1])).argmax(-1, keepdim=True))
        self.place.add_(1)


def repeated(once: Callable[[], None]) -> Callable[[], None]:
    """Return a function that runs again what was recorded of this one."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph.replay


@case(
    "decode-eager",
    "sixteen words are decoded with a cache of keys and values, operator by operator",
    "a CUDA graph of one word",
    "launch-bound",
    "uncompiled-step",
    marked=True,
)
def _(bad: bool) -> Step:
    model = Speaker().to("cuda", BF16).eval()
    first = torch.randint(8192, (8, 1), device="cuda")

    with torch.inference_mode():
        speak = model if bad else repeated(model)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        model.word.copy_(first)
        model.place.zero_()
        said = []
        for _ in range(16):
            speak()
            said.append(model.word.clone())
        return torch.cat(said, 1)

    return step


# -- programs around a small network ------------------------------------------------------------------------


class Pendulums:
    """Many pendulums that a policy keeps upright, in NumPy."""

    def __init__(self, count: int) -> None:
        self.random = np.random.default_rng(0)
        self.angle, self.speed = self.random.normal(size=(2, count))

    def see(self) -> np.ndarray:
        parts = np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], 1)
        return parts.astype(np.float32)

    def push(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what is seen next, the rewards, and which ones have begun anew."""
        self.speed = self.speed + 0.05 * (10 * np.sin(self.angle) + 3.0 * (action - 2))
        self.angle = self.angle + 0.05 * self.speed
        reward = np.cos(self.angle) - 0.01 * self.speed**2
        fallen = np.abs(self.speed) > 8
        self.angle = np.where(fallen, 0.1, self.angle)
        self.speed = np.where(fallen, 0.0, self.speed)
        return self.see(), reward, fallen


class ActorCritic(nn.Module):
    """A policy and a value of what is seen."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 5), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        return self.actor(x), self.critic(x).squeeze(-1)


@case(
    "both-rollout",
    "rewards and ends of each of 48 moves are copied to the GPU by themselves, and advantages are summed in a loop",
    "rewards and ends copied once; the loop stays",
    "small-copy",
    may_precede=("kernel-loop", "operator-loop", "launch-bound", "array-read", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    moves, count = 48, 32
    world, model = Pendulums(count), ActorCritic().cuda()
    optimizer = adamw(model)
    rewards, ends = torch.zeros(2, moves, count, device="cuda")
    values = torch.zeros(moves + 1, count, device="cuda")
    now = [world.see()]

    def step() -> None:
        states, actions, paid, ended = [], [], [], []
        for t in range(moves):
            state = torch.from_numpy(now[0]).to("cuda")
            with torch.no_grad():
                logits, values[t] = model(state)
                noise = torch.empty_like(logits).exponential_().log()
                action = (logits - noise).argmax(-1)
            now[0], reward, end = world.push(action.cpu().numpy())
            if bad:
                rewards[t] = torch.tensor(reward, dtype=torch.float32).to("cuda")
                ends[t] = torch.tensor(end, dtype=torch.float32).to("cuda")
            else:
                paid.append(reward)
                ended.append(end)
            states.append(state)
            actions.append(action)
        if not bad:
            both = torch.from_numpy(np.stack([np.stack(paid), np.stack(ended)]).astype(np.float32))
            on_device = both.to("cuda")
            rewards.copy_(on_device[0])
            ends.copy_(on_device[1])
        with torch.no_grad():
            values[moves] = model(torch.from_numpy(now[0]).to("cuda"))[1]
            advantages, last = torch.zeros_like(rewards), torch.zeros(count, device="cuda")
            for t in reversed(range(moves)):
                on = 1.0 - ends[t]
                wrong = rewards[t] + 0.99 * values[t + 1] * on - values[t]
                advantages[t] = last = wrong + 0.99 * 0.95 * on * last
        logits, value = model(torch.cat(states))
        chance = F.log_softmax(logits, -1)
        chosen = chance.gather(1, torch.cat(actions)[:, None]).squeeze(1)
        spread = -(chance.exp() * chance).sum(-1).mean()
        flat = advantages.flatten()
        loss = -(chosen * (flat - flat.mean()) / (flat.std() + 1e-8)).mean() - 0.01 * spread
        loss = loss + 0.5 * F.mse_loss(value, flat + values[:-1].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Signal(nn.Module):
    """Convolutions over a curve."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(1, width, 7, 2, 3), nn.BatchNorm1d(width), nn.ReLU(True)]
        for i in range(4):
            a, b = width * 2**i, width * 2 ** (i + 1)
            layers += [nn.Conv1d(a, b, 5, 2, 2), nn.BatchNorm1d(b), nn.ReLU(True)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Linear(16 * width, 71)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x[:, None]))


@case(
    "server-json",
    "a server reads curves of 2048 numbers as JSON text, 32 requests at a time",
    "the numbers as base64 of their bytes",
    "python-time",
    may_precede=("array-read", "pageable-memory"),
    marked=True,
)
def _(bad: bool) -> Step:
    model = Signal().to("cuda", BF16).eval()
    curves = np.random.default_rng(0).normal(size=(4, 32, 2048)).astype(np.float32)
    text = [[json.dumps({"id": i, "curve": one.tolist()}) for i, one in enumerate(many)] for many in curves]
    packed = [
        [json.dumps({"id": i, "curve": base64.b64encode(one).decode()}) for i, one in enumerate(many)]
        for many in curves
    ]
    queue = itertools.cycle(text if bad else packed)

    def read(request: str) -> list[float] | np.ndarray:
        curve = json.loads(request)["curve"]
        return curve if bad else np.frombuffer(base64.b64decode(curve), np.float32)

    @torch.inference_mode()
    def step() -> list[str]:
        every = [read(request) for request in next(queue)]
        x = torch.tensor(every) if bad else torch.from_numpy(np.stack(every))
        chances = torch.sigmoid(model(x.to("cuda", BF16)).float()).cpu()
        return [json.dumps({"found": one}) for one in chances.topk(5).indices.tolist()]

    return step


def viewed(x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Flip, colour and blur images, each in a way of its own."""
    flips, bright, contrast, grey = (one.view(-1, 1, 1, 1) for one in drawn.unbind(1))
    x = torch.where(flips < 0.5, x, x.flip(-1))
    x = x * (0.6 + 0.8 * bright)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * (0.6 + 0.8 * contrast) + mean
    x = torch.where(grey < 0.8, x, x.mean(1, keepdim=True).expand_as(x))
    line = torch.exp(-0.5 * torch.linspace(-2, 2, 5, device=x.device) ** 2)
    line = line / line.sum()
    kernel = (line[:, None] * line[None])[None, None].expand(3, 1, 5, 5)
    return F.conv2d(x, kernel, padding=2, groups=3).clamp(-3, 3)


@case(
    "contrast-views",
    "two views of each image are flipped, coloured and blurred by operators on the CPU, between the steps",
    "the images copied as they are, and viewed on the GPU",
    "host-operators",
    may_precede=("launch-bound", "pageable-memory", "blocking-copy"),
)
def _(bad: bool) -> Step:
    from torchvision.models import resnet18

    batch = 192
    model = resnet18(weights=None, num_classes=128).to("cuda", memory_format=torch.channels_last)
    images = [torch.randn(batch, 3, 64, 64).pin_memory() for _ in range(4)]
    queue = itertools.cycle(images)
    right = (torch.arange(2 * batch) + batch) % (2 * batch)
    right, own = right.cuda(), torch.eye(2 * batch, dtype=torch.bool, device="cuda")

    def loss() -> torch.Tensor:
        x, drawn = next(queue), torch.rand(2, batch, 4)
        if bad:
            x = torch.cat([viewed(x, one) for one in drawn]).to("cuda")
        else:
            x, ways = x.to("cuda", non_blocking=True), drawn.to("cuda")
            with torch.autocast("cuda", enabled=False):
                x = torch.cat([viewed(x, one) for one in ways])
        z = F.normalize(model(x.to(memory_format=torch.channels_last)).float(), dim=-1)
        return F.cross_entropy((z @ z.t()).float().masked_fill(own, float("-inf")) / 0.5, right)

    return trained(model, loss)


class Clicks(nn.Module):
    """Bags of features and a few numbers, crossed by their products."""

    def __init__(self, features: int = 26, rows: int = 10_000, width: int = 32) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(features))
        self.low = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.register_buffer("pairs", torch.triu_indices(features + 1, features + 1, 1))
        pairs = features * (features + 1) // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = self.low(numbers)
        every = torch.stack([x, *(bag(one) for bag, one in zip(self.bags, ids, strict=True))], 1)
        crossed = (every @ every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, crossed], 1)).squeeze(-1)


@case(
    "dlrm-logs",
    "four figures for the log are read with .item() at the end of a step, one after the other: next to nothing",
    "read in one piece",
    "waits-in-turn",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step", "dense-embedding-gradient"),
)
def _(bad: bool) -> Step:
    batch = 2048
    model = Clicks().cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    numbers = torch.randn(batch, 13, device="cuda")
    ids = torch.randint(10_000, (26, batch, 3), device="cuda")
    clicked = torch.rand(batch, device="cuda").round()
    log: dict[str, float] = {}

    def step() -> None:
        out = model(numbers, ids)
        loss = F.binary_cross_entropy_with_logits(out, clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            chance = torch.sigmoid(out)
            right = ((chance > 0.5) == clicked.bool()).float().mean()
            figures = {"loss": loss, "right": right, "mean": chance.mean(), "most": chance.amax()}
        if bad:
            log.update({name: value.item() for name, value in figures.items()})
        else:
            log.update(zip(figures, torch.stack([*figures.values()]).tolist(), strict=True))

    return step
