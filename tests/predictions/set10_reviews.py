"""Steps on a GPU with a planted cost: what a reviewer of a colleague's training script finds most often.

None of these models and programs is in an earlier set; six are meant to be bound by the GPU, four by the host. Next to
nothing can be won in ``protein-tokens``.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, Step, adamw, case, sized, trained

# -- bound by the GPU ---------------------------------------------------------------------------------------


class Translator(nn.Module):
    """PyTorch's own Transformer, from the words of one language to those of another."""

    def __init__(self, words: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.body = nn.Transformer(width, 8, depth, depth, 4 * width, 0.1, batch_first=True)
        self.head = nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = self.source(x) + self.places, self.target(y) + self.places
        return self.head(self.body(x, y, tgt_mask=self.mask, tgt_is_causal=True))


@case(
    "translate-float32",
    "a translator is trained in float32, as it was before autocast",
    "bf16 autocast",
    "mixed-precision",
    "fp32-matmul",
)
def _(bad: bool) -> Step:
    words, length, batch = sized(16384, 64), sized(128, 8), sized(64, 2)
    model = Translator(words, sized(512, 16), sized(6, 1), length).cuda()
    x = torch.randint(words, (batch, length), device="cuda")
    y = torch.randint(words, (batch, length + 1), device="cuda")

    def loss() -> torch.Tensor:
        out = model(x, y[:, :-1])
        return F.cross_entropy(out.float().flatten(0, 1), y[:, 1:].flatten(), label_smoothing=0.1)

    return trained(model, loss, autocast=not bad)


class SeeingLayer(nn.Module):
    """A layer over the places of an image, or over the objects that look for something among these."""

    def __init__(self, width: int, crossed: bool, **how: Any) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(width, 8, batch_first=True)
        self.other = nn.MultiheadAttention(width, 8, batch_first=True) if crossed else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if crossed else 2))
        self.net = nn.Sequential(nn.Linear(width, 8 * width), nn.ReLU(), nn.Linear(8 * width, width))
        self.how = how

    def forward(
        self,
        x: torch.Tensor,
        places: torch.Tensor,
        image: torch.Tensor | None = None,
        in_image: torch.Tensor | None = None,
    ) -> torch.Tensor:
        moved = x + places
        x = self.norms[0](x + self.own(moved, moved, x, **self.how)[0])
        if self.other is not None:
            x = self.norms[2](x + self.other(x + places, image + in_image, image, **self.how)[0])
        return self.norms[1](x + self.net(x))


class ObjectFinder(nn.Module):
    """Finds objects in the features of an image, by 100 learned questions."""

    def __init__(self, features: int, width: int, depth: int, places: int, objects: int, **how: Any) -> None:
        super().__init__()
        self.into = nn.Conv2d(features, width, 1)
        self.places = nn.Parameter(torch.randn(1, places, width) * 0.02)
        self.objects = nn.Parameter(torch.randn(1, objects, width) * 0.02)
        self.encoder = nn.ModuleList(SeeingLayer(width, False, **how) for _ in range(depth))
        self.decoder = nn.ModuleList(SeeingLayer(width, True, **how) for _ in range(depth))
        self.kinds, self.boxes = nn.Linear(width, 92), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.into(x).flatten(2).transpose(1, 2)
        for layer in self.encoder:
            x = layer(x, self.places)
        objects = self.objects.expand(len(x), -1, -1)
        y = torch.zeros_like(objects)
        for layer in self.decoder:
            y = layer(y, objects, x, self.places)
        return self.kinds(y), self.boxes(y).sigmoid()


@case(
    "detr-weights",
    "nn.MultiheadAttention returns its weights, as it does by default, and nobody looks at them",
    "need_weights=False",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    how = {} if bad else {"need_weights": False}
    side, batch, objects, features = sized(32, 4), sized(16, 2), sized(100, 5), sized(2048, 8)
    model = ObjectFinder(features, sized(256, 16), sized(6, 1), side**2, objects, **how).cuda()
    x = torch.randn(batch, features, side, side, device="cuda")
    kinds = torch.randint(92, (batch, objects), device="cuda")
    boxes = torch.rand(batch, objects, 4, device="cuda")

    def loss() -> torch.Tensor:
        said, where = model(x)
        wrong = F.cross_entropy(said.float().flatten(0, 1), kinds.flatten())
        return wrong + 5 * F.l1_loss(where.float(), boxes)

    return trained(model, loss)


def swish(x: torch.Tensor) -> torch.Tensor:
    """Activation as it was written before PyTorch had it."""
    return x * torch.sigmoid(x)


class Inverted(nn.Module):
    """Wide inside and narrow outside, with a gate for each channel."""

    def __init__(self, a: int, b: int, size: int, stride: int, times: int, act: Any) -> None:
        super().__init__()
        wide, few = a * times, max(1, a // 4)
        self.act, self.again = act, stride == 1 and a == b
        self.up = nn.Conv2d(a, wide, 1, bias=False) if times > 1 else None
        self.up_norm = nn.BatchNorm2d(wide) if times > 1 else None
        self.mid = nn.Conv2d(wide, wide, size, stride, size // 2, groups=wide, bias=False)
        self.mid_norm = nn.BatchNorm2d(wide)
        self.one, self.two = nn.Conv2d(wide, few, 1), nn.Conv2d(few, wide, 1)
        self.down, self.down_norm = nn.Conv2d(wide, b, 1, bias=False), nn.BatchNorm2d(b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        if self.up is not None:
            y = self.act(self.up_norm(self.up(y)))
        y = self.act(self.mid_norm(self.mid(y)))
        gate = self.two(self.act(self.one(F.adaptive_avg_pool2d(y, 1))))
        y = self.down_norm(self.down(y * torch.sigmoid(gate)))
        return x + y if self.again else y


class EfficientNet(nn.Module):
    """EfficientNet-B0."""

    STAGES = (
        *((16, 1, 3, 1, 1), (24, 2, 3, 2, 6), (40, 2, 5, 2, 6), (80, 3, 3, 2, 6)),
        *((112, 3, 5, 1, 6), (192, 4, 5, 2, 6), (320, 1, 3, 1, 6)),
    )

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act
        self.stem, self.stem_norm = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        blocks, a = [], 32
        for b, count, size, stride, times in self.STAGES:
            for i in range(count):
                blocks.append(Inverted(a, b, size, stride if i == 0 else 1, times, act))
                a = b
        self.blocks = nn.Sequential(*blocks)
        self.last, self.last_norm = nn.Conv2d(a, 1280, 1, bias=False), nn.BatchNorm2d(1280)
        self.head = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.act(self.stem_norm(self.stem(x))))
        x = self.act(self.last_norm(self.last(x)))
        return self.head(x.mean((2, 3)))


@case(
    "efficientnet-swish",
    "the activation of EfficientNet is written x * sigmoid(x)",
    "F.silu",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    model = EfficientNet(swish if bad else F.silu).to("cuda", memory_format=torch.channels_last)
    batch, size = sized(128, 2), sized(224, 32)
    x = torch.randn(batch, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device="cuda")
    return trained(model, lambda: F.cross_entropy(model(x).float(), y, label_smoothing=0.1))


class Reader(nn.Module):
    """Layers of PyTorch's own Transformer over letters or words; causal or not."""

    def __init__(self, count: int, width: int, depth: int, length: int, out: int, causal: bool) -> None:
        super().__init__()
        self.letters = nn.Embedding(count, width, device="cuda")
        self.places = nn.Parameter(torch.randn(length, width, device="cuda") * 0.02)
        how = {"batch_first": True, "norm_first": True, "activation": F.gelu, "device": "cuda"}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, 0.0, **how)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, device="cuda")
        self.head = nn.Linear(width, out, device="cuda")
        mask = nn.Transformer.generate_square_subsequent_mask(length).to("cuda") if causal else None
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x) + self.places
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=self.mask is not None)
        return self.head(self.norm(x))


@case(
    "reward-adamw",
    "a reward model of 620 million weights is trained by AdamW as it is by default: foreach, not fused",
    "fused=True",
    "unfused-optimizer",
)
def _(bad: bool) -> Step:
    words, length, pairs = sized(8192, 64), sized(256, 8), sized(4, 1)
    model = Reader(words, sized(2048, 16), sized(12, 1), length, 1, causal=True)
    x = torch.randint(words, (2 * pairs, length), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **({} if bad else {"fused": True}))

    def loss() -> torch.Tensor:
        better, worse = model(x)[:, -1, 0].float().chunk(2)
        return -F.logsigmoid(better - worse).mean()

    return trained(model, loss, optimizer=optimizer)


class DepthNet(nn.Module):
    """Says how far away each pixel is, at four scales."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def stage(a: int, b: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(
                *(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ELU()),
                *(nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.ELU()),
            )

        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(stage(a, b, 2) for a, b in itertools.pairwise([3, *sizes]))
        ways = zip(reversed(sizes), [*reversed(sizes[:-1]), width], [*reversed(sizes[:-1]), 0], strict=True)
        self.up = nn.ModuleList(stage(a + kept, b) for a, b, kept in ways)
        self.out = nn.ModuleList(nn.Conv2d(b, 1, 3, 1, 1) for b in [*reversed(sizes[:-1]), width])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        kept, depths = [], []
        for down in self.down:
            x = down(x)
            kept.append(x)
        others: list[torch.Tensor | None] = [*reversed(kept[:-1]), None]
        for up, out, other in zip(self.up, self.out, others, strict=True):
            x = F.interpolate(x, scale_factor=2)
            x = up(x if other is None else torch.cat([x, other], 1))
            depths.append(out(x).sigmoid())
        return depths


def unlike(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return how unlike two images are at each pixel: by structure, and by colour."""

    def mean(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3, 1)

    mx, my = mean(x), mean(y)
    sx, sy, sxy = mean(x**2) - mx**2, mean(y**2) - my**2, mean(x * y) - mx * my
    above = (2 * mx * my + 0.01**2) * (2 * sxy + 0.03**2)
    below = (mx**2 + my**2 + 0.01**2) * (sx + sy + 0.03**2)
    structure = ((1 - above / below) / 2).clamp(0, 1).mean(1)
    return 0.85 * structure + 0.15 * (x - y).abs().mean(1)


@case(
    "both-depth",
    "a camera read by NumPy makes points, images and loss of a depth network float64, and four losses are read",
    "the camera as float32, and losses that stay on the GPU",
    "float64",
    "item-each-step",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    high, wide, batch = sized(192, 16), sized(640, 32), sized(12, 1)
    model = DepthNet(sized(48, 4)).to("cuda", memory_format=torch.channels_last)
    pose = nn.Sequential(
        *(nn.Conv2d(6, 16, 7, 4, 3), nn.ReLU(), nn.Conv2d(16, 32, 5, 4, 2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3)),
    ).cuda()
    both = nn.ModuleList([model, pose])
    camera = np.array([[0.58 * wide, 0.0, wide / 2], [0.0, 1.92 * high, high / 2], [0.0, 0.0, 1.0]])
    if not bad:
        camera = camera.astype(np.float32)
    k = torch.from_numpy(camera).cuda()
    back = torch.from_numpy(np.linalg.inv(camera)).cuda()
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    pixels = torch.stack([columns, rows, torch.ones_like(rows)]).flatten(1).cuda().to(k.dtype)
    rays = back @ pixels
    size = torch.tensor([wide - 1, high - 1], device="cuda", dtype=k.dtype)
    now, before, after = torch.rand(3, batch, 3, high, wide, device="cuda")
    optimizer = adamw(both)
    log: dict[str, Any] = {}

    def seen(depth: torch.Tensor, source: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        points = rays * depth.flatten(2) + moved[:, :, None]
        flat = k @ points
        places = flat[:, :2] / (flat[:, 2:] + 1e-7)
        grid = (places.transpose(1, 2) / size * 2 - 1).view(batch, high, wide, 2)
        return F.grid_sample(source.to(grid.dtype), grid, padding_mode="border", align_corners=True)

    def step() -> None:
        with torch.autocast("cuda", dtype=BF16):
            closeness = model(now)
            moves = [pose(torch.cat([now, other], 1)).float() * 0.01 for other in (before, after)]
        total: Any = 0.0
        for scale, one in enumerate(closeness):
            near = F.interpolate(one.float(), (high, wide), mode="bilinear", align_corners=False)
            depth = 1 / (0.01 + 9.99 * near)
            wrong = [
                unlike(seen(depth, other, moved), now)
                for other, moved in zip((before, after), moves, strict=True)
            ]
            loss = torch.min(*wrong).mean()
            log[f"loss/{scale}"] = loss.item() if bad else loss.detach()
            total = total + loss / 4
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@case(
    "protein-tokens",
    "the letters of proteins, 64 kB a batch, are copied to a large model from pageable memory: next to nothing",
    "pinned, non_blocking=True",
    "pageable-memory",
    "blocking-copy",
    "small-copy",
)
def _(bad: bool) -> Step:
    length, batch = sized(512, 8), sized(16, 2)
    model = Reader(32, sized(1280, 16), sized(12, 1), length, 32, causal=False)
    on_gpu = torch.cuda.is_available()
    batches = [torch.randint(4, 24, (batch, length)) for _ in range(8)]
    if not bad and on_gpu:
        batches = [one.pin_memory() for one in batches]
    turns = itertools.cycle(batches)
    hidden = (torch.rand(batch, length, device="cuda") < 0.15).float()

    def loss() -> torch.Tensor:
        y = next(turns).to("cuda", non_blocking=not bad)
        x = torch.where(hidden > 0, 31, y)
        wrong = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten(), reduction="none")
        return (wrong * hidden.flatten()).sum() / hidden.sum()

    return trained(model, loss)


# -- bound by the host --------------------------------------------------------------------------------------


class Cells(torch.utils.data.Dataset):
    """Images of cells, each of which is cut, turned, brightened and made noisy by NumPy when it is asked for."""

    def __init__(self, count: int, size: int, cut: int) -> None:
        draw = np.random.default_rng(0)
        self.images = draw.integers(0, 256, (256, size, size, 3), dtype=np.uint8)
        self.kinds = draw.integers(0, 8, 256)
        self.count, self.cut = count, cut
        self.mean = np.array([0.5, 0.4, 0.6], dtype=np.float32)
        self.spread = np.array([0.2, 0.2, 0.2], dtype=np.float32)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = self.images[i % len(self.images)]
        top, left = np.random.randint(0, image.shape[0] - self.cut + 1, 2)
        image = image[top : top + self.cut, left : left + self.cut].astype(np.float32) / 255
        image = np.rot90(image, np.random.randint(4))
        if np.random.random() < 0.5:
            image = image[:, ::-1]
        image = image * np.float32(np.random.uniform(0.8, 1.2))
        image = image + np.random.normal(0, 0.02, image.shape).astype(np.float32)
        image = (np.clip(image, 0, 1) - self.mean) / self.spread
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), int(self.kinds[i % 256])


def cell_net(width: int) -> nn.Sequential:
    """Return a plain network of convolutions."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise([3, width, 2 * width, 4 * width, 4 * width]):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 8))


@case(
    "cells-loader",
    "the loader has no workers, and each image is cut, turned and made noisy by NumPy",
    "num_workers=8",
    "loader-workers",
)
def _(bad: bool) -> Step:
    model = cell_net(sized(64, 4)).to("cuda", memory_format=torch.channels_last)
    data = Cells(sized(64_000, 64), sized(80, 20), sized(64, 16))
    how = {"num_workers": 0} if bad else {"num_workers": sized(8, 2), "persistent_workers": True}
    on_gpu = torch.cuda.is_available()
    loader = torch.utils.data.DataLoader(
        data, sized(64, 4), shuffle=True, drop_last=True, pin_memory=on_gpu, **how
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def loss() -> torch.Tensor:
        x, y = next(batches)
        x = x.to("cuda", non_blocking=True).to(memory_format=torch.channels_last)
        return F.cross_entropy(model(x).float(), y.to("cuda", non_blocking=True))

    return trained(model, loss)


class Purchases:
    """What each customer bought, and things that he did not buy."""

    def __init__(self, customers: int, items: int, length: int) -> None:
        draw = np.random.default_rng(0)
        self.items = items
        self.bought = draw.integers(1, items + 1, (customers, length + 1))
        self.sets = [set(row.tolist()) for row in self.bought]
        self.table = np.zeros((customers, items + 1), dtype=bool)
        self.table[np.arange(customers)[:, None], self.bought] = True

    def one_by_one(self, who: np.ndarray, length: int) -> np.ndarray:
        """Return things not bought, as published code draws them: one after the other, until it is a new one."""
        drawn = np.zeros((len(who), length), dtype=np.int64)
        for i, customer in enumerate(who):
            bought = self.sets[customer]
            for j in range(length):
                item = np.random.randint(1, self.items + 1)
                while item in bought:
                    item = np.random.randint(1, self.items + 1)
                drawn[i, j] = item
        return drawn

    def together(self, who: np.ndarray, length: int) -> np.ndarray:
        """Return things not bought, all drawn at once, and once more where they were bought."""
        drawn = np.random.randint(1, self.items + 1, (len(who), length))
        rows = np.broadcast_to(who[:, None], drawn.shape)
        while (wrong := self.table[rows, drawn]).any():
            drawn[wrong] = np.random.randint(1, self.items + 1, int(wrong.sum()))
        return drawn


class NextPurchase(nn.Module):
    """Two layers of causal attention over what was bought."""

    def __init__(self, items: int, width: int, length: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.items(x) * math.sqrt(self.places.shape[1]) + self.places
        for i, (qkv, net) in enumerate(zip(self.qkv, self.nets, strict=True)):
            q, k, v = qkv(self.norms[2 * i](x))[:, None].chunk(3, dim=-1)
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
            x = x + net(self.norms[2 * i + 1](x))
        return self.norms[4](x)


@case(
    "shop-negatives",
    "for each place of each sequence a thing that was not bought is drawn by itself in Python",
    "all drawn by one call of NumPy",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    customers, items, length, batch = sized(4000, 8), sized(3000, 50), sized(50, 4), sized(128, 4)
    data = Purchases(customers, items, length)
    model = NextPurchase(items, sized(64, 16), length).cuda()

    def loss() -> torch.Tensor:
        who = np.random.randint(0, customers, batch)
        others = data.one_by_one(who, length) if bad else data.together(who, length)
        whole = torch.from_numpy(np.concatenate([data.bought[who], others], 1)).cuda()
        bought, not_bought = whole.split([length + 1, length], 1)
        x = model(bought[:, :-1])
        yes = (x * model.items(bought[:, 1:])).sum(-1).float()
        no = (x * model.items(not_bought)).sum(-1).float()
        return F.softplus(-yes).mean() + F.softplus(no).mean()

    return trained(model, loss, autocast=False)


class Captioner(nn.Module):
    """Says in words what an image shows."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise([3, *[width // 4] * 2, *[width // 2] * 2, *[width] * 2]):
            layers += [nn.Conv2d(a, b, 3, 2 if a != b else 1, 1), nn.GroupNorm(4, b), nn.ReLU()]
        self.eye = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, width))
        self.words = nn.Embedding(words, width)
        self.memory = nn.GRU(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        start = self.eye(x)
        return self.head(self.memory(torch.cat([start[:, None], self.words(y)], 1))[0])


@case(
    "both-caption",
    "the loss of captions is taken sample by sample, and gradients are clipped by a Python loop with .item()",
    "one cross entropy with an ignored index, and clip_grad_norm_",
    "kernel-loop",
    "operator-loop",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    words, length, batch, size = sized(8192, 64), sized(24, 6), sized(96, 4), sized(64, 16)
    model = Captioner(words, sized(256, 16)).cuda()
    x = torch.randn(batch, 3, size, size, device="cuda")
    y = torch.randint(words, (batch, length), device="cuda")
    lengths = torch.randint(length // 2, length + 1, (batch,)).tolist()
    count = sum(lengths)
    ignored = torch.arange(length)[None] >= torch.tensor(lengths)[:, None]
    wanted = y.masked_fill(ignored.cuda(), -100)
    weights = list(model.parameters())

    def loss() -> torch.Tensor:
        out = model(x, y[:, :-1])
        if not bad:
            return F.cross_entropy(out.flatten(0, 1), wanted.flatten(), reduction="sum") / count
        total: Any = 0.0
        for i, n in enumerate(lengths):
            total = total + F.cross_entropy(out[i, :n], y[i, :n], reduction="sum")
        return total / count

    def clip(_: torch.Tensor) -> None:
        if not bad:
            nn.utils.clip_grad_norm_(weights, 1.0)
            return
        total = 0.0
        for weight in weights:
            if weight.grad is not None:
                total += weight.grad.detach().norm(2).item() ** 2
        factor = 1.0 / (total**0.5 + 1e-6)
        if factor < 1:
            for weight in weights:
                if weight.grad is not None:
                    weight.grad.mul_(factor)

    return trained(model, loss, autocast=False, after=clip)


class Citations(nn.Module):
    """A network over papers that cite each other."""

    def __init__(self, seen: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(seen, width), nn.Linear(width, kinds)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(
        self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, share: torch.Tensor
    ) -> torch.Tensor:
        x = self.into(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            sent = layer(norm(x).relu()).index_select(0, source) * share
            x = x + torch.zeros_like(x).index_add_(0, target, sent)
        return self.out(x.relu())


@case(
    "citations-masks",
    "papers to train, validate and test with are picked by boolean masks, and right answers are read with int()",
    "an index made once, and right answers counted by weights on the GPU",
    "size-from-device",
    "item-each-step",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    papers, edges, kinds, seen = sized(10_000, 40), sized(60_000, 160), sized(40, 4), sized(128, 8)
    model = Citations(seen, sized(64, 8), sized(16, 2), kinds).cuda()
    x, y = torch.randn(papers, seen, device="cuda"), torch.randint(kinds, (papers,), device="cuda")
    source, target = torch.randint(papers, (2, edges), device="cuda").unbind()
    share = (1 / torch.bincount(target, minlength=papers).clamp(min=1))[target][:, None]
    part = torch.randint(3, (papers,), device="cuda")
    masks = [part == i for i in range(3)]
    index, wanted = masks[0].nonzero().squeeze(1), y[masks[0]]
    weights = torch.stack(masks).float()
    weights /= weights.sum(1, keepdim=True)
    last: list[torch.Tensor] = []
    log: list[Any] = [None]

    def loss() -> torch.Tensor:
        out = model(x, source, target, share)
        last[:] = [out.detach()]
        if bad:
            return F.cross_entropy(out[masks[0]], y[masks[0]])
        return F.cross_entropy(out.index_select(0, index), wanted)

    def note() -> None:
        said = last[0].argmax(1)
        if bad:
            log[0] = [int((said[mask] == y[mask]).sum()) / int(mask.sum()) for mask in masks]
        else:
            log[0] = weights @ (said == y).float()

    return trained(model, loss, autocast=False, last=note)
