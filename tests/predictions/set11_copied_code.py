"""Steps on a GPU with a planted cost: what comes along when a paper's reference code is copied into one's own.

None of these models and programs is in an earlier set. ``smoothing-labels``, ``keypoint-grid`` and ``grpo-old`` are
meant to be bound by the GPU, ``gine-readout``, ``ppo-units`` and ``dino-crops`` by the host. Four have more than one
cost, of which the fix takes away the one that wins most, not the one that is seen first: ``keypoint-grid``,
``towers-adagrad``, ``grpo-old`` and ``jax-rates``. Every fix computes what its step computes: the same numbers, up to
the order of sums.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributions import Categorical

from tests.predictions.cases import BF16, DEVICE, Step, adamw, case, sized, trained
from tests.predictions.set3_devices import jax_case

# -- language models ----------------------------------------------------------------------------------------


class ParallelLayer(nn.Module):
    """A decoder layer whose attention and feed-forward part see the same input, as in GPT-J."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        y = self.norm(x)
        q, k, v = self.qkv(y).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(seen.transpose(1, 2).reshape(b, t, c)) + self.down(F.gelu(self.up(y)))


class Parallel(nn.Module):
    """A language model of such layers."""

    def __init__(self, words: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(ParallelLayer(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x) + self.places.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def smoothed(logits: torch.Tensor, y: torch.Tensor, share: float) -> torch.Tensor:
    """Cross entropy whose right answer gives a share to all words, written out."""
    words = logits.shape[-1]
    wanted = F.one_hot(y, words).float() * (1 - share) + share / words  # cost: smoothing-labels
    return -(wanted * F.log_softmax(logits, -1)).sum(-1).mean()  # cost: smoothing-labels


@case(
    "smoothing-labels",
    "smoothed labels of 32 768 words are a one-hot tensor in float32, times the log-probabilities of each word",
    "F.cross_entropy(label_smoothing=0.1), the same sum",
    "one-hot-product",
    "one-hot-sum",
    "log-of-softmax",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    words, length, batch = sized(32_768, 64), sized(1024, 8), sized(8, 2)
    model = Parallel(words, sized(1024, 16), sized(6, 1), length).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)

    def loss() -> torch.Tensor:
        logits, y = model(x[:, :-1]).flatten(0, 1).float(), x[:, 1:].flatten()
        return smoothed(logits, y, 0.1) if bad else F.cross_entropy(logits, y, label_smoothing=0.1)

    return trained(model, loss)


def rotations(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosine and sine that each place and pair of channels is turned by."""
    slower = 1.0 / 10_000.0 ** (torch.arange(0, size, 2).float() / size)
    angles = torch.outer(torch.arange(length).float(), slower)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn queries or keys, in float32."""
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


class RotaryLayer(nn.Module):
    """A layer of a Llama, in which four heads share keys and values."""

    def __init__(self, width: int, length: int, kept: bool) -> None:
        super().__init__()
        self.heads = max(4, width // 64)
        self.size, self.few, self.kept = width // self.heads, self.heads // 4, kept
        self.first, self.second = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, width // 2, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        if kept:
            cos, sin = rotations(length, self.size)
            self.register_buffer("cos", cos)
            self.register_buffer("sin", sin)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        y = self.first(x)
        q = self.q(y).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, self.few, self.size).permute(2, 0, 3, 1, 4)
        if self.kept:
            cos, sin = self.cos, self.sin
        else:
            cos, sin = rotations(t, self.size)  # cost: llama-rotations
            cos, sin = cos.to(x.device), sin.to(x.device)  # cost: llama-rotations
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, c))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@case(
    "llama-rotations",
    "each layer computes the cosines and sines of its rotary embedding on the CPU in every step and copies them",
    "computed once and kept as buffers on the GPU, to the last bit the same",
    "host-operators",
    "pageable-memory",
    "blocking-copy",
    "small-copy",
)
def _(bad: bool) -> Step:
    words, width, length, batch = sized(8192, 64), sized(1024, 32), sized(1024, 8), sized(8, 2)
    layers = [RotaryLayer(width, length, kept=not bad) for _ in range(sized(8, 2))]
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))
    model = nn.Sequential(nn.Embedding(words, width), *layers, *head).to(DEVICE)
    x = torch.randint(words, (batch, length + 1), device=DEVICE)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten())

    return trained(model, loss)


@case(
    "grpo-old",
    "what a policy said before its update is asked of the same weights again; five figures are read with .item()",
    "the log-probabilities that the loss is made of, detached: the same weights say the same; the rest stays",
    "repeated-forward",
)
def _(bad: bool) -> Step:
    words, length, groups, each = sized(16_384, 64), sized(512, 8), sized(4, 2), 4
    policy = Parallel(words, sized(1024, 16), sized(8, 1), length).to(DEVICE)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = adamw(policy)
    ids = torch.randint(words, (groups * each, length + 1), device=DEVICE)
    answer = (torch.arange(length, device=DEVICE) >= length // 4).float()
    rewards = torch.rand(groups * each, device=DEVICE)
    log: dict[str, float] = {}

    def chances(model: nn.Module) -> torch.Tensor:
        """Return the log-probability of each word that was said."""
        with torch.autocast(DEVICE, dtype=BF16):
            logits = model(ids[:, :-1])
        logits = logits.float()
        return logits.gather(-1, ids[:, 1:, None]).squeeze(-1) - logits.logsumexp(-1)

    def mean(x: torch.Tensor) -> torch.Tensor:
        return (x * answer).sum(1).div(answer.sum()).mean()

    def step() -> float:
        better = []
        for i in range(groups):
            group = rewards[i * each : (i + 1) * each]
            better.append((group - group.mean()) / (group.std() + 1e-4))
        advantage = torch.cat(better)[:, None]
        old = None
        with torch.no_grad():
            if bad:
                old = chances(policy)  # cost: grpo-old
            wanted = chances(reference)
        said = chances(policy)
        ratio = (said - (said.detach() if old is None else old)).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        apart = (wanted - said).exp() - (wanted - said) - 1
        loss = -mean(gain - 0.04 * apart)
        log["reward"], log["loss"], log["kl"] = rewards.mean().item(), loss.item(), mean(apart).item()
        log["clipped"] = mean(((ratio - 1).abs() > 0.2).float()).item()
        loss.backward()
        log["norm"] = nn.utils.clip_grad_norm_(policy.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return log["norm"]

    return step


# -- images -------------------------------------------------------------------------------------------------


class Basic(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _ in range(2))
        self.side = nn.Conv2d(a, b, 1, stride, bias=False) if stride > 1 or a != b else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(y + self.side(x))


def pose_net(width: int, joints: int) -> nn.Sequential:
    """Return a residual network and three transposed convolutions: a map for each joint, a quarter as large."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    a = width
    for b, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [Basic(a, b, stride), Basic(b, b, 1)]
        a = b
    for _ in range(3):
        layers += [
            nn.ConvTranspose2d(a, 4 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
        ]
        a = 4 * width
    return nn.Sequential(*layers, nn.Conv2d(a, joints, 1))


@case(
    "keypoint-grid",
    "the grid of a pose network is NumPy's float64, and so are its maps and loss; three figures are read each step",
    "the grid in float32, the same loss up to its last digits; the figures stay",
    "float64",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    high, wide, joints, batch = sized(256, 32), sized(192, 32), sized(17, 3), sized(64, 2)
    model = pose_net(sized(64, 4), joints).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, high, wide, device=DEVICE).to(memory_format=torch.channels_last)
    jx, jy = torch.rand(2, batch, joints, device=DEVICE).unbind()
    visible = (torch.rand(batch, joints, device=DEVICE) < 0.8).float()
    xs, ys = np.linspace(0, 1, wide), np.linspace(0, 1, high)  # cost: keypoint-grid
    if not bad:
        xs, ys = xs.astype(np.float32), ys.astype(np.float32)
    columns, rows = torch.from_numpy(xs).to(DEVICE), torch.from_numpy(ys).to(DEVICE)
    log: dict[str, float] = {}

    def near(places: torch.Tensor, joint: torch.Tensor) -> torch.Tensor:
        return torch.exp(-((places - joint[..., None]) ** 2) / (2 * 0.02**2))

    def loss() -> torch.Tensor:
        maps = F.interpolate(
            model(x).float().contiguous(), (high, wide), mode="bilinear", align_corners=False
        )
        target = near(rows, jy)[..., :, None] * near(columns, jx)[..., None, :]  # cost: keypoint-grid
        wrong = (((maps - target) ** 2).mean((2, 3)) * visible).mean()  # cost: keypoint-grid
        chance = maps.flatten(2).softmax(-1).view_as(maps)
        px = (chance * columns).sum((2, 3))  # cost: keypoint-grid
        py = (chance * rows[:, None]).sum((2, 3))  # cost: keypoint-grid
        away = (((px - jx).abs() + (py - jy).abs()) * visible).mean()
        close = ((px - jx) ** 2 + (py - jy) ** 2).detach().sqrt() < 0.05
        log["right"] = float(close.cpu().numpy().mean())
        log["wrong"], log["away"] = wrong.item(), away.item()
        return wrong + 0.1 * away

    return trained(model, loss)


class Crops(nn.Module):
    """A small transformer over the patches of images of any size, and the head of DINO."""

    def __init__(self, width: int, depth: int, side: int, size: int, out: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, size, size)
        self.places = nn.Parameter(torch.randn(1, width, side, side) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, max(1, width // 64), 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cut(x)
        x = x + F.interpolate(self.places, x.shape[-2:], mode="bilinear", align_corners=False)
        x = x.flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


@case(
    "dino-crops",
    "the student sees the four small views of each image one after the other",
    "the small views as one batch: no view knows of another",
    "launch-bound",
    "kernel-loop",
    "operator-loop",
    "repeated-forward",
    may_precede=("uncompiled-step",),
)
def _(bad: bool) -> Step:
    batch, out, few, size = sized(48, 2), sized(4096, 32), 4, sized(16, 8)
    student = Crops(sized(384, 32), sized(4, 1), sized(14, 4), size, out).to(DEVICE)
    teacher = copy.deepcopy(student).requires_grad_(False)
    large = torch.randn(2 * batch, 3, *[sized(224, 32)] * 2, device=DEVICE)
    small = torch.randn(few, batch, 3, *[sized(96, 16)] * 2, device=DEVICE)
    center = torch.zeros(out, device=DEVICE)
    mine, theirs = list(student.parameters()), list(teacher.parameters())

    def loss() -> torch.Tensor:
        with torch.no_grad():
            seen = teacher(large).float()
            wanted = ((seen - center) / 0.04).softmax(-1).chunk(2)
            center.lerp_(seen.mean(0), 0.1)
        said = list(student(large).chunk(2))
        if bad:
            said += [student(view) for view in small]  # cost: dino-crops
        else:
            said += student(small.flatten(0, 1)).chunk(few)
        total: Any = 0.0
        for i, right in enumerate(wanted):
            for j, view in enumerate(said):
                if i != j:
                    total = total - (right * F.log_softmax(view.float() / 0.1, -1)).sum(-1).mean()
        return total / (2 * len(said) - 2)

    def follow() -> None:
        torch._foreach_lerp_(theirs, mine, 0.004)

    return trained(student, loss, last=follow)


class NoiseBlock(nn.Module):
    """A residual block that is told how much noise there is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(2))
        self.told = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.convs[0](F.silu(self.norms[0](x))) + self.told(time)[:, :, None, None]
        return x + self.convs[1](F.silu(self.norms[1](y)))


class NoiseFinder(nn.Module):
    """Finds the noise in images, twice as coarse inside."""

    def __init__(self, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(12, width, 3, 1, 1), nn.Conv2d(width, 12, 3, 1, 1)
        self.blocks = nn.ModuleList(NoiseBlock(width) for _ in range(depth))
        self.kinds, self.time = nn.Embedding(kinds + 1, width), nn.Linear(1, width)

    def forward(self, x: torch.Tensor, noise: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        told = F.silu(self.time(noise) + self.kinds(kind))
        x = self.into(F.pixel_unshuffle(x, 2))
        for block in self.blocks:
            x = block(x, told)
        return F.pixel_shuffle(self.out(x), 2)


@case(
    "sampler-threshold",
    "a diffusion sampler asks how far each image reaches, one by one, and clamps and scales it by that",
    "all images at once, by a column of how far each reaches: the same images",
    "item-each-step",
    "waits-in-turn",
    "kernel-loop",
    "operator-loop",
    marked=True,
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(16, 3), sized(64, 16), 10
    model = NoiseFinder(sized(256, 16), sized(10, 1), kinds).to(DEVICE, BF16).eval()
    model = model.to(memory_format=torch.channels_last)
    kind = torch.randint(kinds, (batch,), device=DEVICE)
    both = torch.cat([kind, torch.full_like(kind, kinds)])
    start = torch.randn(batch, 3, size, size, device=DEVICE)
    amounts = [0.99, 0.85, 0.6, 0.3, 0.0]
    told = [torch.full((2 * batch, 1), amount, device=DEVICE, dtype=BF16) for amount in amounts]

    @torch.inference_mode()
    def step() -> torch.Tensor:
        x = start
        for (noise, then), tell in zip(itertools.pairwise(amounts), told, strict=False):
            twice = torch.cat([x, x]).to(BF16, memory_format=torch.channels_last)
            guided, free = model(twice, tell, both).float().chunk(2)
            found = free + 4.0 * (guided - free)
            image = (x - noise * found) / math.sqrt(1 - noise**2)
            reaches = torch.quantile(image.flatten(1).abs(), 0.995, dim=1)
            if bad:
                for i, reach in enumerate(reaches):
                    most = max(1.0, reach.item())  # cost: sampler-threshold
                    image[i] = image[i].clamp(-most, most) / most  # cost: sampler-threshold
            else:
                bound = reaches.clamp(min=1.0)[:, None, None, None]
                image = torch.clamp(image, -bound, bound) / bound
            x = math.sqrt(1 - then**2) * image + then * found
        return x

    return step


# -- sound, shops, molecules, games -------------------------------------------------------------------------


class Listener(nn.Module):
    """Letters from spectra, by a convolution and an LSTM that goes both ways."""

    def __init__(self, bands: int, width: int, letters: int) -> None:
        super().__init__()
        self.begin = nn.Conv1d(bands, width, 11, 2, 5)
        self.memory = nn.LSTM(width, width, 2, bidirectional=True)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.begin(x)).permute(2, 0, 1)
        return self.head(self.norm(self.memory(x)[0]))


def spelled(letters: Any) -> list[Any]:
    """Return the letters of an utterance without blanks and repetitions."""
    said, last = [], 0
    for letter in letters:
        keep = (letter != 0) & (letter != last)  # cost: listen-spell
        if keep:  # cost: listen-spell
            said.append(letter)
        last = letter
    return said


@case(
    "listen-spell",
    "the first utterance of each batch is spelled for the log, letter by letter, from a tensor on the GPU",
    ".tolist() before it is spelled: the same letters",
    "item-each-step",
    "waits-in-turn",
    "kernel-loop",
    "operator-loop",
)
def _(bad: bool) -> Step:
    bands, frames, batch, letters, said = sized(80, 8), sized(320, 24), sized(32, 2), 29, sized(30, 3)
    model = Listener(bands, sized(512, 16), letters).to(DEVICE)
    x = torch.randn(batch, bands, frames, device=DEVICE)
    y = torch.randint(1, letters, (batch, said), device=DEVICE)
    lengths, wanted = [frames // 2] * batch, [said] * batch
    first = sized(96, 8)
    log: list[Any] = []

    def loss() -> torch.Tensor:
        chances = model(x).log_softmax(-1)
        best = chances[:first, 0].detach().argmax(-1)
        log[:] = spelled(best if bad else best.tolist())
        return F.ctc_loss(chances, y, lengths, wanted)

    return trained(model, loss, autocast=False)


class Tower(nn.Module):
    """A table and a few numbers, and a point on a sphere made of them."""

    def __init__(self, rows: int, width: int, seen: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width, sparse=sparse, device=DEVICE)  # cost: towers-adagrad
        self.net = nn.Sequential(
            *(nn.Linear(width + seen, 8 * width), nn.ReLU(), nn.Linear(8 * width, 4 * width), nn.ReLU()),
            nn.Linear(4 * width, 2 * width),
        ).to(DEVICE)

    def forward(self, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.net(torch.cat([self.table(ids), seen], 1)), dim=1)


@case(
    "towers-adagrad",
    "gradients of tables of 3 and 1 million rows are dense; ids come from pageable memory, and two figures are read",
    "sparse=True, with which Adagrad does the same: a row without a gradient stays; the rest stays",
    "dense-embedding-gradient",
)
def _(bad: bool) -> Step:
    users, items, width, batch = sized(3_000_000, 50), sized(1_000_000, 40), sized(64, 8), sized(16_384, 8)
    towers = nn.ModuleList(Tower(rows, width, 16, sparse=not bad) for rows in (users, items))
    optimizer = torch.optim.Adagrad(towers.parameters(), lr=0.01)
    draw = np.random.default_rng(0)
    batches = [
        (
            *(torch.from_numpy(draw.integers(0, rows, batch)) for rows in (users, items)),
            *(torch.from_numpy(draw.random((batch, 16), dtype=np.float32)) for _ in range(2)),
        )
        for _ in range(8)
    ]
    turns = itertools.cycle(batches)
    right = torch.arange(batch, device=DEVICE)
    log: dict[str, float] = {}

    def loss() -> torch.Tensor:
        who, what, of_who, of_what = (part.to(DEVICE) for part in next(turns))
        logits = (towers[0](who, of_who) @ towers[1](what, of_what).t()).float() / 0.05
        wrong = F.cross_entropy(logits, right)
        log["found"] = (logits.detach().argmax(1) == right).float().mean().item()
        log["loss"] = wrong.item()
        return wrong

    return trained(towers, loss, optimizer=optimizer)


class EdgeLayer(nn.Module):
    """Message passing over bonds that have features of their own."""

    def __init__(self, width: int, seen: int) -> None:
        super().__init__()
        self.bond = nn.Linear(seen, width)
        self.own = nn.Parameter(torch.zeros(()))
        self.net = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width)
        )
        self.norm = nn.BatchNorm1d(width)

    def forward(
        self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, bonds: torch.Tensor
    ) -> torch.Tensor:
        sent = F.relu(x.index_select(0, source) + self.bond(bonds))
        got = torch.zeros_like(x).index_add(0, target, sent)
        return x + F.relu(self.norm(self.net((1 + self.own) * x + got)))


@case(
    "gine-readout",
    "the atoms of each of 20 graphs are picked by a mask and averaged",
    "one index_add and the sizes of the graphs, which the batch knows: the same averages",
    "kernel-loop",
    "operator-loop",
    "size-from-device",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    graphs, width, seen, kinds = sized(20, 3), sized(128, 8), 16, 12
    sizes = torch.randint(sized(60, 4), sized(140, 8), (graphs,)).tolist()
    atoms, begin = sum(sizes), np.cumsum([0, *sizes])
    ends = [torch.randint(n, (2, 4 * n)) + int(at) for n, at in zip(sizes, begin, strict=False)]
    source, target = torch.cat(ends, 1).to(DEVICE).unbind()
    graph = torch.repeat_interleave(torch.arange(graphs), torch.tensor(sizes)).to(DEVICE)
    count = torch.tensor(sizes, device=DEVICE)[:, None]
    first = nn.Linear(seen, width)
    layers = nn.ModuleList(EdgeLayer(width, seen) for _ in range(sized(8, 2)))
    model = nn.ModuleList([first, layers, nn.Linear(width, kinds)]).to(DEVICE)
    x, bonds = torch.randn(atoms, seen, device=DEVICE), torch.randn(4 * atoms, seen, device=DEVICE)
    y = torch.rand(graphs, kinds, device=DEVICE).round()

    def loss() -> torch.Tensor:
        h = model[0](x)
        for layer in layers:
            h = layer(h, source, target, bonds)
        if bad:
            number = int(graph.max()) + 1  # cost: gine-readout
            whole = torch.stack([h[graph == i].mean(0) for i in range(number)])  # cost: gine-readout
        else:
            whole = h.new_zeros(graphs, width).index_add(0, graph, h) / count
        return F.binary_cross_entropy_with_logits(model[2](whole), y)

    return trained(model, loss, autocast=False)


class Possible(Categorical):
    """A choice among the moves that are possible."""

    def __init__(self, logits: torch.Tensor, can: torch.Tensor, **how: Any) -> None:
        self.can = can
        super().__init__(logits=torch.where(can, logits, -1e8), **how)  # cost: ppo-units

    def entropy(self) -> torch.Tensor:
        return -torch.where(self.can, self.logits * self.probs, 0.0).sum(-1)


@case(
    "ppo-units",
    "torch.distributions looks whether the logits and moves of each of 7 choices of a unit are valid",
    "validate_args=False: the same numbers, not looked at",
    "item-each-step",
    "nan-check",
    may_precede=("launch-bound", "uncompiled-step", "kernel-loop", "operator-loop"),
)
def _(bad: bool) -> Step:
    choices, batch, side, width = [6, 4, 4, 4, 4, 7, 49], sized(64, 2), sized(16, 4), sized(32, 4)
    body = nn.Sequential(
        *(nn.Conv2d(27, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 1, 1), nn.ReLU()),
        *(nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU()),
    )
    actor = nn.Conv2d(2 * width, sum(choices), 1)
    critic = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 1))
    model = nn.ModuleList([body, actor, critic]).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5, fused=True)
    x = (torch.rand(batch, 27, side, side, device=DEVICE) < 0.2).float()
    rows = batch * side * side
    can = torch.rand(rows, sum(choices), device=DEVICE) < 0.5
    can[:, [sum(choices[:i]) for i in range(len(choices))]] = True
    parts = can.split(choices, 1)
    moves = [torch.rand(part.shape, device=DEVICE).mul(part).argmax(1) for part in parts]
    old = torch.full((batch,), -7.0 * side * side, device=DEVICE)
    advantage, returns = torch.randn(2, batch, device=DEVICE).unbind()
    how: dict[str, Any] = {} if bad else {"validate_args": False}

    def loss() -> torch.Tensor:
        seen = body(x)
        logits = actor(seen).permute(0, 2, 3, 1).reshape(rows, -1).split(choices, 1)
        plans = [Possible(one, part, **how) for one, part in zip(logits, parts, strict=True)]
        each = [plan.log_prob(move) for plan, move in zip(plans, moves, strict=True)]  # cost: ppo-units
        said = torch.stack(each).sum(0).view(batch, -1).sum(1)
        unsure = torch.stack([plan.entropy() for plan in plans]).sum(0).view(batch, -1).sum(1)
        ratio = ((said - old) / side**2).exp()
        lost = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.9, 1.1)).mean()
        return lost + 0.5 * F.mse_loss(critic(seen).squeeze(1), returns) - 0.01 * unsure.mean()

    def clip(_: torch.Tensor) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    return trained(model, loss, optimizer=optimizer, autocast=False, after=clip)


# -- JAX ----------------------------------------------------------------------------------------------------


def layers_of(jax: Any, jnp: Any, depth: int, width: int) -> list[Any]:
    """Return the weights of gated layers."""
    keys = jax.random.split(jax.random.key(3), 2 * depth)
    all_ = [jax.random.normal(key, (width, width), jnp.bfloat16) / math.sqrt(width) for key in keys]
    return list(zip(all_[::2], all_[1::2], strict=True))


def layer(jax: Any, jnp: Any, x: Any, gate: Any, value: Any) -> Any:
    """Add to the input what a gated layer makes of it, normalized."""
    size = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    y = x * jax.lax.rsqrt(size + 1e-6).astype(x.dtype)
    return x + jax.nn.silu(y @ gate) * (y @ value)


@jax_case(
    "jax-rates",
    "the number of the step is a static argument of the jitted learning rate; the loss is read in every step",
    "the number as an argument like any other: the same rate; the loss is still read",
    "recompiles",
    may_precede=("array-read", "explicit-wait"),
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    depth, width, batch = sized(12, 2), sized(4096, 16), sized(6144, 8)
    state, x = [layers_of(jax, jnp, depth, width)], jax.random.normal(jax.random.key(1), (batch, width))
    x, number, log = x.astype(jnp.bfloat16), [0], [0.0]

    @functools.partial(jax.jit, static_argnames=("number",) if bad else ())  # cost: jax-rates
    def rate(number: Any) -> Any:
        warm = jnp.minimum(number / 100, 1.0)
        return 1e-3 * warm * 0.5 * (1 + jnp.cos(jnp.pi * number / 10_000))

    @jax.jit
    def update(weights: Any, x: Any, rate: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for gate, value in weights:
                y = layer(jax, jnp, y, gate, value)
            return jnp.log1p(jnp.mean(jnp.square(y.astype(jnp.float32))))

        wrong, grads = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: (w - rate * g).astype(w.dtype), weights, grads), wrong

    def step() -> Any:
        number[0] += 1
        state[0], wrong = update(state[0], x, rate(number=number[0]))  # cost: jax-rates
        log[0] = float(wrong)
        return wrong

    return step


@jax_case(
    "jax-norms",
    "jax.debug.callback notes how large what each of eight layers returns is",
    "the eight figures are returned with the loss, and none is read before it is needed: the same figures",
    "host-callback",
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    depth, width, batch = sized(8, 2), sized(2048, 16), sized(8192, 8)
    state, x = [layers_of(jax, jnp, depth, width)], jax.random.normal(jax.random.key(1), (batch, width))
    x, log = x.astype(jnp.bfloat16), {}

    def note(i: int, size: Any) -> None:
        log[i] = float(size)

    @jax.jit
    def update(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y, sizes = x, []
            for i, (gate, value) in enumerate(weights):
                y = layer(jax, jnp, y, gate, value)
                sizes.append(jnp.sqrt(jnp.mean(jnp.square(y.astype(jnp.float32)))))
                if bad:
                    jax.debug.callback(functools.partial(note, i), sizes[-1])  # cost: jax-norms
            return jnp.log1p(jnp.mean(jnp.square(y.astype(jnp.float32)))), [] if bad else sizes

        (wrong, sizes), grads = jax.value_and_grad(loss, has_aux=True)(weights)
        return jax.tree.map(lambda w, g: (w - 1e-3 * g).astype(w.dtype), weights, grads), wrong, sizes

    def step() -> Any:
        state[0], wrong, sizes = update(state[0], x)
        log.update(enumerate(sizes))
        return wrong

    return step
