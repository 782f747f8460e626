"""Steps on a GPU with a planted cost: models that are trained every day, each with one mistake that tuning guides name.

``deeplab-onehot``, ``dgcnn-argsort``, ``vit22b-norms``, ``monodepth-float32``, ``nerf-frequencies``,
``hourglass-foreach``, ``gpt2-gelu`` and ``jax-mixer-wait`` are meant to be bound by the GPU, the others by the host.
``vit22b-norms`` and ``translator-words`` have a second, smaller cost, which their fix leaves as it is. Next to nothing
can be won in ``nerf-frequencies`` and ``hourglass-foreach``. ``dit-guidance`` and ``segformer-confusion`` are loops of
inference and validation. ``gpt2-gelu`` and ``segformer-confusion`` run models of transformers. Every fix computes what
its step computes: the same numbers, up to the order of sums or, in ``monodepth-float32`` and ``gpt2-gelu``, up to their
precision. The rules that are named are those that would be right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, DEVICE, ON_GPU, Step, adamw, case, channels_last, sized, trained
from tests.predictions.set3_devices import jax_case
from tests.predictions.set19_plain_steps import BasicBlock


def conv(a: int, b: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return a convolution with its norm and a ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(a, b, kernel, stride, padding, dilation, bias=False), nn.BatchNorm2d(b), nn.ReLU()
    )


def residual_stages(widths: list[int]) -> nn.ModuleList:
    """Return the stages of a ResNet, of two blocks each; all but the first halve the image."""
    pairs = itertools.pairwise([widths[0], *widths])
    return nn.ModuleList(
        nn.Sequential(BasicBlock(a, b, 2 if i else 1), BasicBlock(b, b, 1)) for i, (a, b) in enumerate(pairs)
    )


def resized(x: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    return F.interpolate(x, size, mode="bilinear", align_corners=False)


# -- bound by the GPU ---------------------------------------------------------------------------------------


class DeepLab(nn.Module):
    """A DeepLab: a ResNet, dilated convolutions side by side, and what they say at the size of the image."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.stages = residual_stages([width, 2 * width, 4 * width])
        deep = 4 * width
        self.sides = nn.ModuleList(
            conv(deep, deep, kernel, dilation=rate) for kernel, rate in ((1, 1), (3, 6), (3, 12), (3, 18))
        )
        self.join, self.head = conv(4 * deep, deep, 1), nn.Conv2d(deep, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        x = self.join(torch.cat([side(x) for side in self.sides], 1))
        return resized(self.head(x), tuple(images.shape[-2:])).float()


@case(
    "deeplab-onehot",
    "the cross entropy of a DeepLab is the sum of a dense one-hot tensor times the log-probabilities of all classes",
    "F.cross_entropy with the numbers of the classes",
    "one-hot-sum",
    "one-hot-product",
    may_precede=("upsample-backward",),
)
def _(bad: bool) -> Step:
    batch, size, classes = sized(16, 2), sized(512, 32), 21
    model = channels_last(DeepLab(sized(64, 4), classes).to(DEVICE))
    x = channels_last(torch.randn(batch, 3, size, size, device=DEVICE))
    y = torch.randint(classes, (batch, size, size), device=DEVICE)

    def loss() -> torch.Tensor:
        out = model(x)
        if bad:
            hot = F.one_hot(y, classes).permute(0, 3, 1, 2).float()  # cost: deeplab-onehot
            return -(hot * F.log_softmax(out, 1)).sum(1).mean()  # cost: deeplab-onehot
        return F.cross_entropy(out, y)

    return trained(model, loss)


class EdgeConv(nn.Module):
    """A layer of a DGCNN: each point with what its nearest points differ by, and the largest of these."""

    def __init__(self, a: int, b: int, near: int, whole_sort: bool) -> None:
        super().__init__()
        self.near, self.whole_sort = near, whole_sort
        self.linear, self.norm = nn.Linear(2 * a, b, bias=False), nn.BatchNorm1d(b)

    @torch.no_grad()
    def nearest(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, enabled=False):
            x = x.float()
            squares = x.square().sum(-1)
            apart = squares[:, :, None] - 2 * (x @ x.transpose(1, 2)) + squares[:, None]
        if self.whole_sort:
            return apart.argsort(-1)[..., : self.near]  # cost: dgcnn-argsort
        return apart.topk(self.near, largest=False).indices

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, points, width = x.shape
        first = torch.arange(batch, device=x.device)[:, None, None] * points
        found = x.flatten(0, 1).index_select(0, (self.nearest(x) + first).flatten())
        found = found.view(batch, points, self.near, width)
        each = x[:, :, None].expand_as(found)
        y = self.linear(torch.cat([found - each, each], -1))
        y = F.leaky_relu(self.norm(y.flatten(0, 2)), 0.2).view(batch, points, self.near, -1)
        return y.amax(2)


class DGCNN(nn.Module):
    """A classifier of point clouds whose graph is made anew by each layer."""

    def __init__(self, widths: list[int], near: int, classes: int, whole_sort: bool) -> None:
        super().__init__()
        pairs = itertools.pairwise([3, *widths])
        self.layers = nn.ModuleList(EdgeConv(a, b, near, whole_sort) for a, b in pairs)
        self.join, self.head = nn.Linear(sum(widths), 1024), nn.Linear(1024, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.layers:
            x = layer(x)
            kept.append(x)
        return self.head(F.leaky_relu(self.join(torch.cat(kept, -1)), 0.2).amax(1)).float()


@case(
    "dgcnn-argsort",
    "each layer of a DGCNN sorts the distances from each point to all 1024, for its nearest 20",
    "topk",
    "full-sort",
)
def _(bad: bool) -> Step:
    batch, points, near = sized(32, 2), sized(1024, 16), sized(20, 4)
    widths = [sized(64, 4), sized(64, 4), sized(128, 8), sized(256, 8)]
    model = DGCNN(widths, near, 40, whole_sort=bad).to(DEVICE)
    x = torch.randn(batch, points, 3, device=DEVICE)
    y = torch.randint(40, (batch,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x), y))


class HeadNorm(nn.Module):
    """The root-mean-square norm of a head's queries or keys, by its formula or in one call."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.weight, self.written_out = nn.Parameter(torch.ones(width)), written_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        if self.written_out:
            size = x.pow(2).mean(-1, keepdim=True)  # cost: vit22b-norms
            return x * torch.rsqrt(size + 1e-6) * self.weight  # cost: vit22b-norms
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


class ParallelLayer(nn.Module):
    """A layer of a ViT-22B: attention and perceptron side by side, queries and keys normed."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.norm = max(2, width // 64), nn.LayerNorm(width)
        self.of_q, self.of_k = (HeadNorm(width // self.heads, written_out) for _ in range(2))
        self.first, self.last = nn.Linear(width, 7 * width, bias=False), nn.Linear(5 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[-1]
        *parts, wide = self.first(self.norm(x)).split([width, width, width, 4 * width], -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(self.of_q(q), self.of_k(k), v)
        return x + self.last(torch.cat([y.transpose(1, 2).flatten(2), F.gelu(wide)], -1))


class ParallelViT(nn.Module):
    """A vision transformer of such layers."""

    def __init__(
        self, size: int, patch: int, width: int, depth: int, classes: int, written_out: bool
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn((size // patch) ** 2, width) * 0.02)
        self.layers = nn.Sequential(*(ParallelLayer(width, written_out) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(x)).mean(1)).float()


@case(
    "vit22b-norms",
    "the norms of queries and keys of a vision transformer are written out in float32; AdamW is as it is by default",
    "F.rms_norm",
    "unfused-norm",
    "elementwise-chain",
    "uncompiled-step",
)
def _(bad: bool) -> Step:
    batch, size, classes = sized(64, 2), sized(224, 8), sized(1000, 5)
    model = ParallelViT(size, sized(14, 4), sized(768, 16), sized(12, 2), classes, written_out=bad).to(DEVICE)
    x = torch.randn(batch, 3, size, size, device=DEVICE)
    y = torch.randint(classes, (batch,), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return trained(model, lambda: F.cross_entropy(model(x), y), optimizer=optimizer)


class Monodepth(nn.Module):
    """Depth from one image: a ResNet, and a decoder that sees what each stage saw."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width << level for level in range(4)]
        self.stem, self.stages = conv(3, width, 7, 2), residual_stages(widths)
        into, out = widths[::-1], [max(8, w // 2) for w in widths[::-1]]
        kept = [*widths[-2::-1], 0]
        before = [into[0], *out[:-1]]
        self.ups = nn.ModuleList(nn.Conv2d(a, b, 3, 1, 1) for a, b in zip(before, out, strict=True))
        self.joins = nn.ModuleList(nn.Conv2d(b + c, b, 3, 1, 1) for b, c in zip(out, kept, strict=True))
        self.head = nn.Conv2d(out[-1], 1, 3, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)  # cost: monodepth-float32
        kept = []
        for stage in self.stages:
            x = stage(x)  # cost: monodepth-float32
            kept.append(x)
        kept.pop()
        for up, join in zip(self.ups, self.joins, strict=True):
            x = F.interpolate(F.elu(up(x)), scale_factor=2)  # cost: monodepth-float32
            x = F.elu(join(torch.cat([x, kept.pop()], 1) if kept else x))  # cost: monodepth-float32
        return torch.sigmoid(self.head(x).float())


@case(
    "monodepth-float32",
    "a network that sees depth is trained in float32 (TF32 in its convolutions), without autocast",
    "torch.autocast with bfloat16",
    "mixed-precision",
    "fp32-matmul",
)
def _(bad: bool) -> Step:
    batch, height, width = sized(32, 2), sized(192, 32), sized(640, 64)
    model = channels_last(Monodepth(sized(64, 4)).to(DEVICE))
    x = channels_last(torch.randn(batch, 3, height, width, device=DEVICE))
    y = torch.rand(batch, 1, height, width, device=DEVICE)

    def loss() -> torch.Tensor:
        depth = model(x)
        uneven = depth.diff(dim=-1).abs().mean() + depth.diff(dim=-2).abs().mean()
        return F.l1_loss(depth, y) + 1e-3 * uneven

    return trained(model, loss, autocast=not bad)


class NeRF(nn.Module):
    """Density and color of points, from sines and cosines of their places."""

    def __init__(self, width: int, one_by_one: bool) -> None:
        super().__init__()
        self.one_by_one = one_by_one
        place, way = 3 + 60, 3 + 24
        self.first, self.again = nn.Linear(place, width), nn.Linear(place + width, width)
        self.early = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.late = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.density, self.seen = nn.Linear(width, 1), nn.Linear(width, width)
        self.side, self.color = nn.Linear(width + way, width // 2), nn.Linear(width // 2, 3)
        self.register_buffer("powers", 2.0 ** torch.arange(10))

    def waves(self, x: torch.Tensor, count: int) -> torch.Tensor:
        if self.one_by_one:
            out = [x]
            for i in range(count):
                out += [torch.sin(x * 2.0**i), torch.cos(x * 2.0**i)]  # cost: nerf-frequencies
            return torch.cat(out, -1)
        scaled = x[:, None] * self.powers[:count, None]
        both = torch.stack([scaled.sin(), scaled.cos()], 2)
        return torch.cat([x, both.flatten(1)], -1)

    def forward(self, places: torch.Tensor, ways: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.waves(places, 10)
        x = F.relu(self.first(seen))
        for layer in self.early:
            x = F.relu(layer(x))
        x = F.relu(self.again(torch.cat([seen.to(x.dtype), x], -1)))
        for layer in self.late:
            x = F.relu(layer(x))
        y = self.seen(x)
        y = F.relu(self.side(torch.cat([y, self.waves(ways, 4).to(y.dtype)], -1)))
        return F.softplus(self.density(x).float()), torch.sigmoid(self.color(y).float())


@case(
    "nerf-frequencies",
    "a NeRF takes the sine and the cosine of each of its 14 frequencies by itself: next to nothing",
    "all frequencies at once",
    "kernel-loop",
    "operator-loop",
)
def _(bad: bool) -> Step:
    rays, samples = sized(6144, 8), sized(64, 4)
    model = NeRF(sized(256, 16), one_by_one=bad).to(DEVICE)
    optimizer = adamw(model)
    start, way = torch.randn(2, rays, 1, 3, device=DEVICE)
    right = torch.rand(rays, 3, device=DEVICE)
    away = torch.linspace(2, 6, samples, device=DEVICE)

    def loss() -> torch.Tensor:
        places = (start + way * away[:, None]).flatten(0, 1)
        density, color = model(places, way.expand(-1, samples, -1).flatten(0, 1))
        thick = density.view(rays, samples) * (4 / samples)
        light = torch.exp(thick - thick.cumsum(-1)) * (1 - torch.exp(-thick))
        return F.mse_loss((light[..., None] * color.view(rays, samples, 3)).sum(1), right)

    return trained(model, loss, optimizer=optimizer)


class Bottleneck(nn.Module):
    """A residual block whose norms come first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        parts: list[nn.Module] = []
        for a, b, kernel in ((width, half, 1), (half, half, 3), (half, width, 1)):
            parts += [nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b, kernel, 1, kernel // 2)]
        self.net = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.net(x)


class Hourglass(nn.Module):
    """A network that halves an image some times, and goes back up beside what it saw on its way."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.beside, self.down, self.up = (Bottleneck(width) for _ in range(3))
        self.inner: nn.Module = Hourglass(width, depth - 1) if depth > 1 else Bottleneck(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(self.inner(self.down(F.max_pool2d(x, 2))))
        return self.beside(x) + F.interpolate(y, scale_factor=2)


class Pose(nn.Module):
    """Stacked hourglasses, each of which says where the joints are."""

    def __init__(self, width: int, stacks: int, depth: int, joints: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 7, 2), nn.MaxPool2d(2), Bottleneck(width), Bottleneck(width))
        self.stacks = nn.ModuleList(
            nn.Sequential(Hourglass(width, depth), Bottleneck(width)) for _ in range(stacks)
        )
        self.heads = nn.ModuleList(nn.Conv2d(width, joints, 1) for _ in range(stacks))
        self.backs = nn.ModuleList(nn.Conv2d(joints, width, 1) for _ in range(stacks))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, maps = self.stem(images), []
        for stack, head, back in zip(self.stacks, self.heads, self.backs, strict=True):
            y = stack(x)
            maps.append(head(y))
            x = x + y + back(maps[-1])
        return torch.stack(maps, 1).float()


@case(
    "hourglass-foreach",
    "stacked hourglasses, 10 million weights, are trained by AdamW as it is by default: next to nothing",
    "fused=True",
    "unfused-optimizer",
)
def _(bad: bool) -> Step:
    batch, size = sized(64, 2), sized(256, 32)
    model = channels_last(Pose(sized(256, 8), 2, sized(4, 2), 17).to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if bad else adamw(model)
    x = channels_last(torch.randn(batch, 3, size, size, device=DEVICE))
    y = torch.rand(batch, 1, 17, size // 4, size // 4, device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, dtype=BF16):
            maps = model(x)
        (maps - y).square().mean().backward()
        optimizer.step()  # cost: hourglass-foreach
        optimizer.zero_grad(set_to_none=True)

    return step


@case(
    "gpt2-gelu",
    "transformers: a GPT-2 with activation_function='gelu_new', its default, which is a chain of operators",
    "activation_function='gelu_pytorch_tanh'",
    "elementwise-chain",
    "uncompiled-step",
)
def _(bad: bool) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    batch, length, width = sized(8, 2), sized(1024, 12), sized(768, 16)
    config = GPT2Config(
        vocab_size=sized(32_768, 40),
        n_positions=length,
        n_embd=width,
        n_layer=sized(12, 2),
        n_head=max(2, width // 64),
        activation_function="gelu_new" if bad else "gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = GPT2LMHeadModel(config).to(DEVICE)
    ids = torch.randint(config.vocab_size, (batch, length), device=DEVICE)
    return trained(model, lambda: model(input_ids=ids, labels=ids).loss)  # cost: gpt2-gelu


@jax_case(
    "jax-mixer-wait",
    "the loss of an MLP-Mixer is waited for with block_until_ready() in each step, before NumPy makes the next batch",
    "never waited for",
    "explicit-wait",
    "array-read",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    batch, size, patch = sized(128, 2), sized(224, 8), sized(16, 4)
    width, depth, classes = sized(512, 8), sized(16, 2), sized(1000, 5)
    places = (size // patch) ** 2
    keys = jax.random.split(jax.random.key(0), 6)

    def weights_of(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape, jnp.float32) * shape[-2] ** -0.5

    @jax.jit
    def initial() -> Any:
        layers = (
            weights_of(keys[0], depth, places, places),
            weights_of(keys[1], depth, places, places),
            weights_of(keys[2], depth, width, 4 * width),
            weights_of(keys[3], depth, 4 * width, width),
        )
        return weights_of(keys[4], 3 * patch**2, width), layers, weights_of(keys[5], width, classes)

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        wide -= jnp.mean(wide, -1, keepdims=True)
        return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)

    def layer(x: Any, one: Any) -> Any:
        a, b, up, down = (w.astype(x.dtype) for w in one)
        y = norm(x).swapaxes(1, 2)
        x = x + (jax.nn.gelu(y @ a) @ b).swapaxes(1, 2)
        return x + jax.nn.gelu(norm(x) @ up) @ down, None

    def loss(weights: Any, images: Any, labels: Any) -> Any:
        first, layers, head = weights
        side = size // patch
        x = images.astype(jnp.bfloat16) / 255
        x = x.reshape(-1, side, patch, side, patch, 3).swapaxes(2, 3).reshape(-1, places, 3 * patch**2)
        x, _ = jax.lax.scan(layer, x @ first.astype(x.dtype), layers)
        scores = (norm(x).mean(1) @ head.astype(x.dtype)).astype(jnp.float32)
        right = jnp.take_along_axis(scores, labels[:, None], -1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, -1) - right)

    @jax.jit
    def update(weights: Any, images: Any, labels: Any) -> Any:
        wrong, grads = jax.value_and_grad(loss)(weights, images, labels)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, grads), wrong

    random = np.random.default_rng(0)
    images = random.integers(256, size=(1024, size, size, 3), dtype=np.uint8)
    labels = random.integers(classes, size=1024)
    state = [initial()]

    def step() -> Any:
        chosen = random.integers(len(images), size=batch)
        x = images[chosen]
        turned = random.random(batch) < 0.5
        x[turned] = x[turned, :, ::-1]
        state[0], wrong = update(state[0], x, labels[chosen].astype(np.int32))
        if bad:
            wrong.block_until_ready()  # cost: jax-mixer-wait
        return wrong

    return step


# -- bound by the host --------------------------------------------------------------------------------------


class Translator(nn.Module):
    """A GRU that reads a sentence, and one that writes another while it attends to the first."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.read, self.write = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell, self.join = nn.GRUCell(width, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, words)

    def forward(self, text: torch.Tensor, other: torch.Tensor, word_by_word: bool) -> torch.Tensor:
        seen, last = self.encoder(self.read(text))
        h, given = last[0], self.write(other)
        wrong: Any = 0.0
        said = []
        for t in range(other.shape[1] - 1):
            h = self.cell(given[:, t], h)
            share = torch.softmax(torch.bmm(seen, h[:, :, None].to(seen.dtype)), 1)
            y = torch.bmm(share.transpose(1, 2).to(seen.dtype), seen)[:, 0]
            y = torch.tanh(self.join(torch.cat([y, h.to(y.dtype)], -1)))
            if word_by_word:
                wrong = wrong + F.cross_entropy(
                    self.head(y).float(), other[:, t + 1]
                )  # cost: translator-words
            else:
                said.append(y)
        if word_by_word:
            return wrong / (other.shape[1] - 1)
        out = self.head(torch.stack(said, 1)).float()
        return F.cross_entropy(out.flatten(0, 1), other[:, 1:].flatten())


@case(
    "translator-words",
    "a translator of GRUs takes scores and loss word by word in the loop of its decoder; AdamW(foreach=False)",
    "the head and the loss of all words after the loop",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, length, words = sized(64, 2), sized(28, 5), sized(4096, 40)
    model = Translator(words, sized(512, 16)).to(DEVICE)
    text, other = torch.randint(words, (2, batch, length), device=DEVICE)
    optimizer = adamw(model, fused=False, foreach=False)
    return trained(model, lambda: model(text, other, bad), optimizer=optimizer)


class DiTLayer(nn.Module):
    """A layer of a diffusion transformer, shifted and scaled by what it is told."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.told = max(2, width // 64), nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        a, b, c, d, e, f = self.told(told)[:, None].chunk(6, -1)
        parts = self.qkv(self.norm(x) * (1 + a) + b).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + c * self.out(y.transpose(1, 2).flatten(2))
        y = self.up(self.norm(x) * (1 + d) + e)
        return x + f * self.down(F.gelu(y, approximate="tanh"))


class DiT(nn.Module):
    """A diffusion transformer: the noise in latents, at a time, for a class."""

    def __init__(self, channels: int, places: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(channels, width), nn.Linear(width, channels)
        self.places = nn.Parameter(torch.randn(places, width) * 0.02)
        self.classes, self.time = nn.Embedding(classes + 1, width), nn.Linear(1, width)
        self.layers = nn.ModuleList(DiTLayer(width) for _ in range(depth))

    def forward(self, x: torch.Tensor, time: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        told = F.silu(self.time(time[:, None]) + self.classes(kind))
        x = self.first(x) + self.places
        for layer in self.layers:
            x = layer(x, told)
        return self.last(x)


@case(
    "dit-guidance",
    "a sampler with guidance calls its small diffusion transformer twice a step: with the class, and without",
    "one call with both in its batch",
    "calls-in-a-row",
    "repeated-forward",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    batch, places, classes, channels = 2, sized(256, 16), sized(1000, 5), 16
    model = DiT(channels, places, sized(384, 16), sized(12, 2), classes).to(DEVICE, BF16).eval()
    noise = torch.randn(batch, places, channels, device=DEVICE, dtype=BF16)
    kind = torch.randint(classes, (batch,), device=DEVICE)
    none = torch.full_like(kind, classes)
    times = torch.linspace(1, 0, 7, device=DEVICE, dtype=BF16)[:, None].expand(-1, 2 * batch).contiguous()

    @torch.inference_mode()
    def step() -> torch.Tensor:
        x = noise
        for time in times[:-1]:
            if bad:
                told = model(x, time[:batch], kind)  # cost: dit-guidance
                free = model(x, time[batch:], none)  # cost: dit-guidance
            else:
                told, free = model(torch.cat([x, x]), time, torch.cat([kind, none])).chunk(2)
            x = x - (free + 4 * (told - free)) / 6
        return x

    return step


class SAGE(nn.Module):
    """A layer of GraphSAGE: a node beside the mean of its neighbours."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(a, b), nn.Linear(a, b, bias=False)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, degrees: torch.Tensor) -> torch.Tensor:
        near = torch.zeros_like(x).index_add(0, edges[1], x.index_select(0, edges[0]))
        return self.own(x) + self.near(near / degrees[:, None].to(x.dtype))


@case(
    "sage-features",
    "the features of the nodes of each batch are picked on the CPU and copied, though those of all nodes fit the GPU",
    "the features on the GPU, and only numbers of nodes copied",
    "host-operators",
    "pageable-memory",
    "blocking-copy",
    "awaited-copies",
    "copy-each-step",
)
def _(bad: bool) -> Step:
    everything, nodes, count = sized(300_000, 60), sized(32_768, 20), sized(320_000, 40)
    features, width, classes = sized(128, 8), sized(256, 8), sized(64, 4)
    layers = nn.ModuleList(SAGE(a, b) for a, b in itertools.pairwise([features, width, width, width]))
    model = nn.ModuleList([*layers, nn.Linear(width, classes)]).to(DEVICE)
    table = torch.randn(everything, features)
    on_gpu = table.to(DEVICE)
    numbers = [torch.randint(everything, (nodes,)) for _ in range(4)]
    if ON_GPU:
        numbers = [each.pin_memory() for each in numbers]
    turn = itertools.cycle(numbers)
    edges = torch.randint(nodes, (2, count), device=DEVICE)
    degrees = torch.ones(nodes, device=DEVICE).index_add(0, edges[1], torch.ones(count, device=DEVICE))
    y = torch.randint(classes, (nodes,), device=DEVICE)

    def picked(chosen: torch.Tensor) -> torch.Tensor:
        if bad:
            return table[chosen].to(DEVICE)  # cost: sage-features
        return on_gpu[chosen.to(DEVICE, non_blocking=True)]

    def loss() -> torch.Tensor:
        x = picked(next(turn))
        *of_nodes, head = model
        for layer in of_nodes:
            x = F.relu(layer(x, edges, degrees)).float()  # sums over edges in float32
        return F.cross_entropy(head(x).float(), y)

    return trained(model, loss)


def anchors_of(sides: list[int], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the box of each place of each level before the sigmoid, and which of them are well inside."""
    each = []
    for level, side in enumerate(sides):
        at = torch.arange(side, dtype=torch.float32, device=device)  # cost: rtdetr-anchors
        y, x = torch.meshgrid(at, at, indexing="ij")  # cost: rtdetr-anchors
        middle = (torch.stack([x, y], -1) + 0.5) / side  # cost: rtdetr-anchors
        size = torch.ones_like(middle) * 0.05 * 2.0**level  # cost: rtdetr-anchors
        each.append(torch.cat([middle, size], -1).view(-1, 4))  # cost: rtdetr-anchors
    anchors = torch.cat(each)  # cost: rtdetr-anchors
    inside = ((anchors > 0.01) & (anchors < 0.99)).all(-1, keepdim=True)  # cost: rtdetr-anchors
    return torch.log(anchors / (1 - anchors)).masked_fill(~inside, 1e4), inside  # cost: rtdetr-anchors


class DecoderLayer(nn.Module):
    """A layer of a detector's decoder: its queries see each other, and the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(2, width // 32)
        self.of_self, self.of_query = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.of_image = nn.Linear(width, 2 * width)
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](x + self.outs[0](self.attend(*self.of_self(x).chunk(3, -1))))
        seen = self.attend(self.of_query(x), *self.of_image(image).chunk(2, -1))
        x = self.norms[1](x + self.outs[1](seen))
        return self.norms[2](x + self.down(F.relu(self.up(x))))


class Detector(nn.Module):
    """A small RT-DETR: three levels of a convolutional network, whose best places become queries of a decoder."""

    def __init__(self, size: int, width: int, depth: int, queries: int, classes: int, anew: bool) -> None:
        super().__init__()
        self.sides, self.queries, self.anew = [size // 8, size // 16, size // 32], queries, anew
        quarter = width // 4
        self.stem = nn.Sequential(conv(3, quarter, 3, 2), conv(quarter, quarter, 3, 2))
        steps = zip((quarter, width // 2, width), (width // 2, width, width), strict=True)
        self.stages = nn.ModuleList(nn.Sequential(conv(a, b, 3, 2), conv(b, b)) for a, b in steps)
        self.same = nn.ModuleList(nn.Conv2d(b, width, 1) for b in (width // 2, width, width))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, classes)
        self.boxes = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(depth))
        self.kinds = nn.ModuleList(nn.Linear(width, classes) for _ in range(depth))
        self.shifts = nn.ModuleList(nn.Linear(width, 4) for _ in range(depth))
        self.kept = anchors_of(self.sides, DEVICE)

    def forward(self, images: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        x, flat = self.stem(images), []
        for stage, same in zip(self.stages, self.same, strict=True):
            x = stage(x)
            flat.append(same(x).flatten(2).transpose(1, 2))
        image = torch.cat(flat, 1)
        if self.anew:
            anchors, inside = (
                each.to(DEVICE) for each in anchors_of(self.sides, "cpu")
            )  # cost: rtdetr-anchors
        else:
            anchors, inside = self.kept
        image = self.norm(image * inside)
        scores = self.scores(image)
        best = scores.amax(-1).topk(self.queries, 1).indices[..., None]
        box = (self.boxes(image) + anchors).gather(1, best.expand(-1, -1, 4))
        x = image.gather(1, best.expand(-1, -1, image.shape[-1])).detach()
        out = [(scores.gather(1, best.expand(-1, -1, scores.shape[-1])), box.sigmoid())]
        for layer, kind, shift in zip(self.layers, self.kinds, self.shifts, strict=True):
            x = layer(x, image)
            box = shift(x) + box.detach()
            out.append((kind(x), box.sigmoid()))
        return out


@case(
    "rtdetr-anchors",
    "a detector makes the anchors of its three levels on the CPU in each forward pass, and copies them",
    "the anchors kept on the GPU",
    "host-operators",
    "pageable-memory",
    "blocking-copy",
    "small-copy",
    "copy-each-step",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, size, queries, classes = 2, sized(640, 64), sized(300, 6), sized(80, 4)
    model = channels_last(Detector(size, sized(256, 16), sized(4, 2), queries, classes, anew=bad).to(DEVICE))
    x = channels_last(torch.randn(batch, 3, size, size, device=DEVICE))
    boxes = torch.rand(batch, queries, 4, device=DEVICE)
    kinds = (torch.rand(batch, queries, classes, device=DEVICE) < 0.02).float()

    def loss() -> torch.Tensor:
        wrong: Any = 0.0
        for scores, found in model(x):
            wrong = wrong + F.binary_cross_entropy_with_logits(scores.float(), kinds)
            wrong = wrong + 5 * F.l1_loss(found.float(), boxes)
        return wrong

    return trained(model, loss)


@case(
    "segformer-confusion",
    "the confusion matrix of each batch of a validation is counted by NumPy, which masks and labels are copied for",
    "counted on the GPU, and read after the last batch",
    "array-read",
    "pageable-memory",
    "blocking-copy",
    "python-time",
    "metric-compute",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    batch, size, classes = sized(8, 2), sized(256, 64), 19
    config = SegformerConfig(
        depths=[3, 4, 6, 3] if ON_GPU else [1, 1, 1, 1],
        hidden_sizes=[64, 128, 320, 512] if ON_GPU else [8, 8, 16, 16],
        num_attention_heads=[1, 2, 5, 8] if ON_GPU else [1, 1, 2, 2],
        decoder_hidden_size=sized(256, 8),
        num_labels=classes,
    )
    model = SegformerForSemanticSegmentation(config).to(DEVICE, BF16).eval()
    images = torch.randn(batch, 3, size, size, device=DEVICE, dtype=BF16)
    y = torch.randint(classes, (batch, size, size), device=DEVICE)
    counted = np.zeros(classes**2, np.int64)
    on_gpu = torch.zeros(classes**2, device=DEVICE, dtype=torch.float64)

    @torch.inference_mode()
    def step() -> None:
        found = resized(model(images).logits.float(), (size, size)).argmax(1)
        if bad:
            told, right = found.cpu().numpy(), y.cpu().numpy()  # cost: segformer-confusion
            both = (classes * right + told).ravel()  # cost: segformer-confusion
            counted[:] += np.bincount(both, minlength=classes**2)  # cost: segformer-confusion
        else:
            cell = (classes * y + found).float()
            on_gpu.add_(torch.histc(cell, classes**2, -0.5, classes**2 - 0.5))

    return step


@jax_case(
    "jax-ppo-minibatches",
    "each of eight minibatches of PPO is taken from four arrays by their permutation outside of jit",
    "the rows are taken in the jitted update",
    "kernel-loop",
    "operator-loop",
    "python-time",
    "uncompiled-step",
    "launch-bound",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    moves, batch = sized(16_384, 32), sized(2048, 4)
    seen, width, units = sized(96, 6), sized(1024, 8), sized(12, 2)
    keys = jax.random.split(jax.random.key(0), 8)
    shapes = [(seen, width), (width, width), (width, width), (width, units + 1)]
    weights = [
        jax.random.normal(key, shape) / math.sqrt(shape[0])
        for key, shape in zip(keys[:4], shapes, strict=True)
    ]
    rollout = {
        "seen": jax.random.normal(keys[4], (moves, seen)),
        "moved": jax.random.normal(keys[5], (moves, units)),
        "before": jax.random.normal(keys[6], (moves,)) - 15,
        "gained": jax.random.normal(keys[7], (moves,)),
    }

    def loss(weights: Any, rows: Any) -> Any:
        x = rows["seen"]
        for one in weights[:-1]:
            x = jnp.tanh(x @ one)
        out = x @ weights[-1]
        chance = -0.5 * jnp.sum(jnp.square(rows["moved"] - out[:, :-1]), -1)
        ratio = jnp.exp(jnp.clip(chance - rows["before"], -5, 5))
        better = rows["gained"] - jax.lax.stop_gradient(out[:, -1])
        policy = jnp.minimum(ratio * better, jnp.clip(ratio, 0.8, 1.2) * better)
        return jnp.mean(0.5 * jnp.square(rows["gained"] - out[:, -1]) - policy)

    def changed(weights: Any, rows: Any) -> Any:
        wrong, grads = jax.value_and_grad(loss)(weights, rows)
        return [w - 1e-4 * g for w, g in zip(weights, grads, strict=True)], wrong

    update = jax.jit(changed)

    @jax.jit
    def update_from(weights: Any, rollout: Any, order: Any, at: int) -> Any:
        chosen = jax.lax.dynamic_slice_in_dim(order, at, batch)
        return changed(weights, {name: values[chosen] for name, values in rollout.items()})

    state: list[Any] = [weights, jax.random.key(9)]
    shuffled = jax.jit(lambda key: jax.random.permutation(key, moves))
    split = jax.jit(jax.random.split)

    def step() -> Any:
        state[1], key = split(state[1])
        order = shuffled(key)
        for at in range(0, moves, batch):
            if bad:
                chosen = order[at : at + batch]  # cost: jax-ppo-minibatches
                rows = {name: values[chosen] for name, values in rollout.items()}  # cost: jax-ppo-minibatches
                state[0], wrong = update(state[0], rows)
            else:
                state[0], wrong = update_from(state[0], rollout, order, at)
        return wrong

    return step
