"""Steps on a GPU with a planted cost: the part of the seventh set that is mostly bound by the host.

They were written as those of :mod:`tests.predictions.set7_device_bound` were: without a look at the rules.
"""

from __future__ import annotations

import copy
import itertools
import random

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, Bottleneck, Step, case, trained

# -- recommendation ---------------------------------------------------------------------------------------


class Crossed(nn.Module):
    """Bags of many features and their products with each other."""

    def __init__(self, features: int = 26, rows: int = 50_000, width: int = 64) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(features))
        self.dense = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = torch.triu_indices(features + 1, features + 1, 1)
        self.register_buffer("pairs", pairs[0] * (features + 1) + pairs[1])
        self.top = nn.Sequential(
            nn.Linear(width + pairs.shape[1], 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU()
        )
        self.end = nn.Linear(256, 1)

    def forward(self, numbers: torch.Tensor, ids: list[torch.Tensor]) -> torch.Tensor:
        x = self.dense(numbers)
        every = torch.stack([x.float(), *(bag(one) for bag, one in zip(self.bags, ids, strict=True))], 1)
        crossed = torch.bmm(every, every.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.end(self.top(torch.cat([x, crossed], 1))).squeeze(-1)


@case(
    "dlrm-features",
    "each of 26 features of a batch is copied to the GPU by itself, from pageable memory",
    "one pinned tensor of them, non_blocking=True",
    "small-copy",
    "pageable-memory",
    "blocking-copy",
    may_precede=("launch-bound", "dense-embedding-gradient"),
)
def _(bad: bool) -> Step:
    batch, features = 2048, 26
    model = Crossed(features).cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    whole = [torch.randint(50_000, (features, batch, 4)) for _ in range(4)]
    pinned = itertools.cycle([x.pin_memory() for x in whole])
    apart = itertools.cycle([[one.clone() for one in x] for x in whole])
    numbers, clicked = torch.randn(batch, 13, device="cuda"), torch.rand(batch, device="cuda").round()

    def loss() -> torch.Tensor:
        ids = (
            [one.to("cuda") for one in next(apart)]
            if bad
            else list(next(pinned).to("cuda", non_blocking=True))
        )
        return F.binary_cross_entropy_with_logits(model(numbers, ids).float(), clicked)

    return trained(model, loss, optimizer=optimizer)


# -- images -----------------------------------------------------------------------------------------------


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the intersection over the union of every box of ``a`` with every box of ``b``."""
    low = torch.maximum(a[..., :, None, :2], b[..., None, :, :2])
    high = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    sizes = [(x[..., 2:] - x[..., :2]).prod(-1) for x in (a, b)]
    return both / (sizes[0][..., :, None] + sizes[1][..., None, :] - both).clamp(min=1e-6)


def anchors(count: int) -> torch.Tensor:
    """Return boxes of two sizes all over an image of one by one."""
    line = (torch.arange(count) + 0.5) / count
    centre = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(-1, 2)
    return torch.cat([torch.cat([centre - half, centre + half], 1) for half in (0.06, 0.12)])


@case(
    "detect-images",
    "anchors are matched and the loss is taken image by image, with boolean masks",
    "all images at once, padded and weighted",
    "kernel-loop",
    "operator-loop",
    "size-from-device",
    "item-each-step",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    images, most = 16, 24
    parts: list[nn.Module] = []
    for a, b in ((3, 64), (64, 128), (128, 256), (256, 256)):
        parts += [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
    model = nn.Sequential(*parts, nn.Conv2d(256, 2 * 5, 1))
    model = model.to("cuda", memory_format=torch.channels_last)
    x = torch.randn(images, 3, 320, 320, device="cuda").to(memory_format=torch.channels_last)
    places = anchors(20).cuda()
    low = torch.rand(images, most, 2) * 0.7
    padded = torch.cat([low, low + 0.1 + 0.18 * torch.rand(images, most, 2)], -1)
    counts = [int(n) for n in torch.randint(4, most, (images,))]
    for one, count in zip(padded, counts, strict=True):
        one[count:] = 0
    padded = padded.cuda()
    boxes = [one[:count].clone() for one, count in zip(padded, counts, strict=True)]

    def one_by_one(shift: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=shift.device)
        for i, wanted in enumerate(boxes):
            best, which = overlap(places, wanted).max(1)
            found = best > 0.4
            near = F.smooth_l1_loss(shift[i][found], (wanted[which] - places)[found], reduction="sum")
            sure = F.binary_cross_entropy_with_logits(score[i], found.float(), reduction="sum")
            total = total + (near + sure) / found.sum().clamp(min=1)
        return total / images

    def at_once(shift: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
        best, which = overlap(places, padded).max(2)
        found = (best > 0.4).float()
        wanted = padded.gather(1, which[..., None].expand(-1, -1, 4)) - places
        near = (F.smooth_l1_loss(shift, wanted, reduction="none").sum(-1) * found).sum(1)
        sure = F.binary_cross_entropy_with_logits(score, found, reduction="none").sum(1)
        return ((near + sure) / found.sum(1).clamp(min=1)).mean()

    def loss() -> torch.Tensor:
        out = model(x).float().view(images, 2, 5, -1).transpose(2, 3).reshape(images, -1, 5)
        return (one_by_one if bad else at_once)(out[..., :4], out[..., 4])

    return trained(model, loss)


class Patched(nn.Module):
    """A small transformer over patches, which it cuts out itself."""

    def __init__(self, width: int = 384, depth: int = 4, size: int = 16, *, sliced: bool) -> None:
        super().__init__()
        self.size, self.sliced = size, sliced
        self.begin = nn.Linear(3 * size * size, width)
        self.places = nn.Parameter(torch.randn(1, (224 // size) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 6, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True, bias=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 1000)

    def patches(self, x: torch.Tensor) -> torch.Tensor:
        """Cut images in patches, row by row."""
        b, c, h, w = x.shape
        s = self.size
        if self.sliced:
            cut = []
            for i in range(0, h, s):
                for j in range(0, w, s):
                    cut.append(x[:, :, i : i + s, j : j + s].flatten(1))  # noqa: PERF401 - the cost
            return torch.stack(cut, 1)
        x = x.view(b, c, h // s, s, w // s, s).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(b, (h // s) * (w // s), c * s * s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(self.patches(x)) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


@case(
    "vit-slices",
    "196 patches are cut out of the images one by one and stacked",
    "a view and a permutation",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Patched(sliced=bad).cuda()
    x, y = torch.randn(32, 3, 224, 224, device="cuda"), torch.randint(1000, (32,), device="cuda")
    return trained(model, lambda: F.cross_entropy(model(x).float(), y))


@case(
    "both-momentum",
    "a second encoder follows the first weight by weight, and the queue's place is read from the GPU",
    "torch._foreach_lerp_ of all weights",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "item-each-step"),
)
def _(bad: bool) -> Step:
    batch, width, length = 128, 128, 16_384
    body: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    a = 64
    for b, count, stride in ((32, 3, 1), (64, 4, 2), (128, 4, 2)):
        for i in range(count):
            body.append(Bottleneck(a, b, stride if i == 0 else 1))
            a = 4 * b
    net = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, width))
    model = net.to("cuda", memory_format=torch.channels_last)
    other = copy.deepcopy(model).requires_grad_(False)
    queue = F.normalize(torch.randn(length, width, device="cuda"), dim=1)
    place = torch.zeros(1, dtype=torch.long, device="cuda")
    images = torch.randn(2, batch, 3, 32, 32, device="cuda")
    one, two = (x.to(memory_format=torch.channels_last) for x in images)
    right = torch.zeros(batch, dtype=torch.long, device="cuda")
    mine, theirs = list(model.parameters()), list(other.parameters())

    @torch.no_grad()
    def follow() -> None:
        if bad:
            for p, slow in zip(model.parameters(), other.parameters(), strict=True):
                slow.data = slow.data * 0.999 + p.data * (1.0 - 0.999)
        else:
            torch._foreach_lerp_(theirs, mine, 1.0 - 0.999)

    def loss() -> torch.Tensor:
        query = F.normalize(model(one).float(), dim=1)
        follow()
        with torch.no_grad():
            key = F.normalize(other(two).float(), dim=1)
        same = (query * key).sum(1, keepdim=True)
        logits = torch.cat([same, query @ queue.clone().t()], 1).float() / 0.07
        at = int(place)
        with torch.no_grad():
            queue[at : at + batch] = key
            place.copy_((place + batch) % length)
        return F.cross_entropy(logits, right)

    return trained(model, loss)


# -- points -----------------------------------------------------------------------------------------------


class Points(nn.Module):
    """A network on clouds of points, which turns them first."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.turn = self.shared(3, 64, 128, 512), self.dense(512, 256, 9)
        self.first, self.rest = self.shared(3, 64, 64), self.shared(64, 64, 128, 1024)
        self.look2, self.turn2 = self.shared(64, 128, 512), self.dense(512, 256, 64 * 64)
        self.head = self.dense(1024, 512, 256, 40)

    @staticmethod
    def shared(*sizes: int) -> nn.Sequential:
        """Return layers that each point goes through by itself."""
        parts: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            parts += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU(True)]
        return nn.Sequential(*parts)

    @staticmethod
    def dense(*sizes: int) -> nn.Sequential:
        """Return layers for a whole cloud."""
        parts: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            parts += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(True)]
        return nn.Sequential(*parts[:-2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for look, turn, then in ((self.look, self.turn, self.first), (self.look2, self.turn2, self.rest)):
            size = x.shape[1]
            matrix = turn(look(x).amax(2)).view(-1, size, size) + torch.eye(size, device=x.device)
            x = then(torch.bmm(matrix, x))
        return self.head(x.amax(2))


@case(
    "points-nans",
    "the gradient of every weight is looked at for NaN by itself, in every step",
    "not looked at",
    "nan-check",
    "item-each-step",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Points().cuda()
    x, y = torch.randn(32, 3, 1024, device="cuda"), torch.randint(40, (32,), device="cuda")
    skipped = [0]

    def look(_loss: torch.Tensor) -> None:
        if not bad:
            return
        for p in model.parameters():
            if p.grad is not None and torch.isnan(p.grad).any():
                skipped[0] += 1
                p.grad = None

    return trained(model, lambda: F.cross_entropy(model(x).float(), y), after=look)


# -- schedules and losses ---------------------------------------------------------------------------------


@case(
    "decay-rates",
    "the rate of each group of weights, one or two a layer, is read from a tensor on the GPU in every step",
    "the rates as Python numbers",
    "item-each-step",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Patched(depth=12, sliced=False).cuda()
    layers: list[nn.Module] = [model.begin, *model.blocks, model.head]
    groups = []
    for layer in layers:
        for flat in (True, False):
            chosen = [p for p in layer.parameters() if (p.dim() < 2) == flat]
            groups.append({"params": chosen, "weight_decay": 0.0 if flat else 0.05})
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    scales = [0.75 ** (len(layers) - 1 - i // 2) for i in range(len(groups))]
    rates = torch.tensor(scales, device="cuda")
    x, y = torch.randn(48, 3, 224, 224, device="cuda"), torch.randint(1000, (48,), device="cuda")
    done = [0]

    def schedule(_loss: torch.Tensor) -> None:
        done[0] += 1
        warm = 1e-4 * min(1.0, done[0] / 1000)
        for i, group in enumerate(optimizer.param_groups):
            group["lr"] = (warm * rates[i]).item() if bad else warm * scales[i]

    return trained(model, lambda: F.cross_entropy(model(x).float(), y), optimizer=optimizer, after=schedule)


@case(
    "findings-product",
    "whether any part of an image shows a finding: one less the product of the chances, for 14 findings",
    "the sum of logarithms",
    "prod-backward",
    "item-each-step",
    "size-from-device",
    may_precede=("launch-bound", "kernel-loop"),
)
def _(bad: bool) -> Step:
    images, parts, findings = 64, 16, 14
    body: list[nn.Module] = []
    for a, b in ((1, 32), (32, 64), (64, 128), (128, 256)):
        body += [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
    encoder = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    heads = nn.ModuleList(
        nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 1)) for _ in range(findings)
    )
    model = nn.ModuleList([encoder, heads]).to("cuda", memory_format=torch.channels_last)
    x = torch.randn(images * parts, 1, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    y = torch.rand(images, findings, device="cuda").round()

    def loss() -> torch.Tensor:
        seen = encoder(x)
        total = torch.zeros((), device=x.device)
        for i, head in enumerate(heads):
            chance = head(seen).float().view(images, parts)
            none = (1 - chance.sigmoid()).prod(1) if bad else F.logsigmoid(-chance).sum(1).exp()
            any_ = (1 - none).clamp(1e-6, 1 - 1e-6)
            total = total - (y[:, i] * any_.log() + (1 - y[:, i]) * (1 - any_).log()).mean()
        return total / findings

    return trained(model, loss)


# -- text -------------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Tags each word of a sentence."""

    def __init__(self, words: int, width: int = 256, tags: int = 18) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.both_ways = nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.both_ways(self.words(ids))[0])


@case(
    "tagger-strings",
    "sentences are split and their words looked up in a dictionary in every step",
    "looked up once, before training",
    "python-time",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    draw, length, batch = random.Random(0), 40, 256
    known = {f"word{i}": i + 2 for i in range(8000)}
    listed = [*known, *(f"name{i}" for i in range(500))]
    texts = [" ".join(draw.choices(listed, k=draw.randint(20, length))).title() for _ in range(batch * 4)]
    model = Tagger(len(known) + 2).cuda()
    y = torch.randint(18, (batch, length), device="cuda")

    def ids_of(sentences: list[str]) -> torch.Tensor:
        rows = []
        for sentence in sentences:
            row = [known.get(word.lower().strip(".,;!?"), 1) for word in sentence.split()]
            rows.append(row + [0] * (length - len(row)))
        return torch.tensor(rows).pin_memory()

    parts = [texts[i : i + batch] for i in range(0, len(texts), batch)]
    turn, ready = itertools.cycle(parts), itertools.cycle([ids_of(part) for part in parts])

    def loss() -> torch.Tensor:
        ids = ids_of(next(turn)) if bad else next(ready)
        ids = ids.to("cuda", non_blocking=True)
        each = F.cross_entropy(model(ids).float().flatten(0, 1), y.flatten(), reduction="none")
        keep = (ids != 0).flatten()
        return (each * keep).sum() / keep.sum()

    return trained(model, loss)


# -- inference --------------------------------------------------------------------------------------------


class Cached(nn.Module):
    """A decoder that takes one token at a time and keeps keys and values."""

    def __init__(self, layers: int = 6, width: int = 512, heads: int = 8, words: int = 16_384) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.feed = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, token: torch.Tensor, at: int, kept: torch.Tensor) -> torch.Tensor:
        x = self.words(token) + self.places.weight[at]
        b, c = x.shape
        for i, feed in enumerate(self.feed):
            q, k, v = self.qkv[i](self.norms[i](x)).view(b, 3, self.heads, 1, c // self.heads).unbind(1)
            kept[i, 0, :, :, at : at + 1], kept[i, 1, :, :, at : at + 1] = k, v
            keys, values = kept[i, :, :, :, : at + 1]
            y = F.scaled_dot_product_attention(q, keys, values)
            x = x + self.out[i](y.reshape(b, c))
            x = x + feed(x)
        return self.head(x)


@case(
    "generate-penalty",
    "words that a sequence has already are made less likely row by row, after torch.unique of each",
    "gather and scatter_ of all rows",
    "kernel-loop",
    "operator-loop",
    "size-from-device",
    "item-each-step",
    may_precede=("launch-bound",),
    marked=True,
)
def _(bad: bool) -> Step:
    rows, begin, count = 8, 64, 12
    model = Cached().cuda().eval().to(BF16)
    said = torch.zeros(rows, begin + count, dtype=torch.long, device="cuda")
    said[:, :begin] = torch.randint(16_384, (rows, begin), device="cuda")
    kept = torch.randn(6, 2, rows, 8, begin + count, 64, device="cuda", dtype=BF16)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        for at in range(begin, begin + count):
            logits = model(said[:, at - 1], at - 1, kept).float()
            if bad:
                for i in range(rows):
                    old = torch.unique(said[i, :at])
                    score = logits[i, old]
                    logits[i, old] = torch.where(score < 0, score * 1.2, score / 1.2)
            else:
                old = said[:, :at]
                score = logits.gather(1, old)
                logits.scatter_(1, old, torch.where(score < 0, score * 1.2, score / 1.2))
            said[:, at] = logits.argmax(-1)
        return said

    return step


@case(
    "volume-windows",
    "a volume is segmented window by window, 64 of them",
    "sixteen windows at a time",
    "launch-bound",
    "kernel-loop",
    "operator-loop",
    marked=True,
)
def _(bad: bool) -> Step:
    size, window, stride = 80, 32, 16
    body: list[nn.Module] = []
    for a, b, apart in ((1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 64, 1)):
        body += [nn.Conv3d(a, b, 3, apart, 1, bias=False), nn.BatchNorm3d(b), nn.ReLU(True)]
    for a, b in ((64, 32), (32, 16)):
        body += [nn.Upsample(scale_factor=2), nn.Conv3d(a, b, 3, 1, 1), nn.BatchNorm3d(b), nn.ReLU(True)]
    model = nn.Sequential(*body, nn.Conv3d(16, 4, 1)).cuda().eval().to(BF16)
    volume = torch.randn(1, 1, size, size, size, device="cuda", dtype=BF16)
    starts = list(itertools.product(range(0, size - window + 1, stride), repeat=3))
    spots = [tuple(slice(i, i + window) for i in start) for start in starts]
    together = 1 if bad else 16

    @torch.inference_mode()
    def step() -> torch.Tensor:
        total = torch.zeros(4, size, size, size, device=volume.device)
        times = torch.zeros(1, size, size, size, device=volume.device)
        for i in range(0, len(spots), together):
            chosen = spots[i : i + together]
            out = model(torch.cat([volume[(slice(None), slice(None), *spot)] for spot in chosen]))
            for one, spot in zip(out, chosen, strict=True):
                total[(slice(None), *spot)] += one
                times[(slice(None), *spot)] += 1
        return (total / times).argmax(0)

    return step
