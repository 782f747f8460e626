"""Steps on a GPU with a planted cost that a reader passes over: each line of it looks right, and only a second look,
at what surrounds it, tells what it costs.

``hydranet-backwards``, ``imagegpt-mask``, ``reidentify-sort``, ``graphcast-deterministic``, ``maskgit-workers``,
``distilbert-padding``, ``pythia-prefix`` and ``jax-nemotron-remat`` are meant to be bound by the GPU, the others by the
host. ``hydranet-backwards`` and ``nbeats-plateau`` have a second, smaller cost, which their fix leaves as it is. Next
to nothing can be won in ``maskgit-workers``. ``reidentify-sort``, ``pythia-prefix`` and ``painn-validation`` are loops
of inference or validation. ``distilbert-padding`` and ``pythia-prefix`` train and run models of transformers. Every fix
computes what its step computes: the same numbers, up to rounding and the order of sums; only what ``sac-choice`` draws
are other numbers of the same distribution. The rules that are named are those that would be right; where there is none
for a cost, its name is made up.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import (
    BF16,
    DEVICE,
    ON_GPU,
    Step,
    adamw,
    case,
    channels_last,
    pinned,
    sent,
    sized,
    trained,
)
from tests.predictions.set3_devices import jax_case
from tests.predictions.set19_plain_steps import Text

LOG = logging.getLogger(__name__)


def mlp(a: int, width: int, b: int) -> nn.Sequential:
    """Return a network of two hidden layers."""
    return nn.Sequential(
        *(nn.Linear(a, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, b))
    )


# -- bound by the GPU ---------------------------------------------------------------------------------------


class Bend(nn.Module):
    """The block of a residual network."""

    def __init__(self, a: int, b: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
            *(nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)),
        )
        self.side: nn.Module = nn.Identity()
        if a != b:
            self.side = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


def trunk(w: int) -> nn.Sequential:
    """Return residual blocks that make images eight times smaller, with ``4 * w`` channels."""
    first = [nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True)]
    blocks = [Bend(w, w), Bend(w, w), Bend(w, 2 * w, 2), Bend(2 * w, 2 * w), Bend(2 * w, 4 * w)]
    return nn.Sequential(*first, nn.MaxPool2d(3, 2, 1), *blocks, Bend(4 * w, 4 * w))


class Hydra(nn.Module):
    """A network that drives: one trunk, and a head for each thing to know of a scene."""

    def __init__(self, width: int, outs: tuple[int, ...]) -> None:
        super().__init__()
        w = 4 * width
        self.trunk = trunk(width)
        self.heads = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(w, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True)),
                nn.Conv2d(w, out, 1),
            )
            for out in outs
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.trunk(x)
        return [head(x).float() for head in self.heads]


@case(
    "hydranet-backwards",
    "backward(retain_graph=True) is called for each of the three losses of a HydraNet, and each time goes through the "
    "trunk that they share; its images are copied from pageable memory",
    "backward() of their sum; the copy stays",
    "repeated-backward",
)
def _(bad: bool) -> Step:
    batch, size, kinds = sized(96, 2), sized(256, 32), sized(19, 4)
    model = channels_last(Hydra(sized(64, 4), (1, kinds, 3)).to(DEVICE))
    optimizer = adamw(model)
    turn = itertools.cycle([torch.randint(256, (batch, 3, size, size), dtype=torch.uint8) for _ in range(3)])
    small = size // 8
    depth = torch.rand(batch, 1, small, small, device=DEVICE)
    kind = torch.randint(kinds, (batch, small, small), device=DEVICE)
    facing = F.normalize(torch.randn(batch, 3, small, small, device=DEVICE), dim=1)

    def step() -> None:
        images = channels_last((next(turn).to(DEVICE) - 127.5) / 64)
        with torch.autocast(DEVICE, dtype=BF16):
            far, what, normals = model(images)
            losses = [
                F.l1_loss(far, depth),
                F.cross_entropy(what, kind),
                1 - F.cosine_similarity(normals, facing, dim=1).mean(),
            ]
        if bad:
            for loss in losses:
                loss.backward(retain_graph=True)  # cost: hydranet-backwards
        else:
            torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class PixelLayer(nn.Module):
    """A layer of an Image GPT, which is told by a mask what each pixel may see, if by anything."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(2, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(  # cost: imagegpt-mask
            q, k, v, attn_mask=mask, is_causal=mask is None
        )  # cost: imagegpt-mask
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PixelDecoder(nn.Module):
    """An Image GPT: an image is a text of colours."""

    def __init__(self, colours: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.colours = nn.Embedding(colours, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(PixelLayer(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, colours, bias=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = self.colours(ids) + self.places
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


@case(
    "imagegpt-mask",
    "an Image GPT hands its causal mask to scaled_dot_product_attention as a tensor, so that flash attention can't be "
    "used and the half that's masked is computed as well",
    "is_causal=True",
    "causal-mask",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    batch, length, colours = sized(16, 2), sized(1024, 9), sized(512, 7)
    model = PixelDecoder(colours, length, sized(1024, 16), sized(8, 2)).to(DEVICE)
    ids = torch.randint(colours, (batch, length + 1), device=DEVICE)
    mask = torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril() if bad else None

    def loss() -> torch.Tensor:
        scores = model(ids[:, :-1], mask)
        return F.cross_entropy(scores.float().flatten(0, 1), ids[:, 1:].flatten())

    return trained(model, loss)


class Parts(nn.Module):
    """A network by which people are recognized: what six parts of them, one below the other, look like."""

    def __init__(self, width: int, parts: int, out: int) -> None:
        super().__init__()
        self.trunk, self.parts = trunk(width), parts
        self.outs = nn.Parameter(torch.randn(parts, 4 * width, out) * (4 * width) ** -0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.adaptive_avg_pool2d(self.trunk(x), (self.parts, 1)).squeeze(3)
        return torch.einsum("bcp,pco->bpo", x, self.outs).flatten(1)


@case(
    "reidentify-sort",
    "the validation of a network that recognizes people sorts all 100 000 distances of each of its 256 images, and "
    "looks at the nearest 50",
    "topk",
    "full-sort",
    marked=True,
)
def _(bad: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    batch, known, best, out = sized(256, 4), sized(100_000, 60), sized(50, 5), sized(256, 6)
    tall, wide = sized(256, 48), sized(128, 24)
    model = channels_last(Parts(sized(64, 4), 6, out).to(DEVICE).to(BF16).eval())
    gallery = F.normalize(torch.randn(known, 6 * out, device=DEVICE), dim=1)
    people = torch.randint(sized(1500, 8), (known,), device=DEVICE)
    cameras = torch.randint(6, (known,), device=DEVICE)
    turn = itertools.cycle(
        [pinned(torch.randint(256, (batch, 3, tall, wide), dtype=torch.uint8)) for _ in range(3)]
    )
    person = torch.randint(sized(1500, 8), (batch, 1), device=DEVICE)
    camera = torch.randint(6, (batch, 1), device=DEVICE)
    ranks = torch.arange(1, best + 1, device=DEVICE)
    totals = torch.zeros(3, device=DEVICE)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        images = next(turn).to(DEVICE, non_blocking=True).to(BF16)
        features = F.normalize(model(channels_last((images - 127.5) / 64)).float(), dim=1)
        far = 2 - 2 * features @ gallery.T
        far.masked_fill_((people == person) & (cameras == camera), math.inf)
        nearest = (
            far.argsort(dim=1)[:, :best]  # cost: reidentify-sort
            if bad
            else far.topk(best, dim=1, largest=False).indices
        )
        right = people[nearest] == person
        count = right.cumsum(1)
        precision = (count / ranks * right).sum(1) / count[:, -1].clamp(min=1)
        figures = [right[:, 0].float().mean(), right[:, :5].any(1).float().mean(), precision.mean()]
        totals.add_(torch.stack(figures))
        return totals

    return step


def told(a: int, b: int) -> nn.Sequential:
    """Return what makes a message, or what's made of them."""
    return nn.Sequential(nn.Linear(a, b), nn.SiLU(), nn.Linear(b, b), nn.LayerNorm(b))


class Exchange(nn.Module):
    """A layer of a GraphCast: what the nodes of a mesh tell their neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edges, self.nodes = told(3 * width, width), told(2 * width, width)

    def forward(
        self, x: torch.Tensor, e: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ends = [x.index_select(0, source), x.index_select(0, target)]  # cost: graphcast-deterministic
        message = self.edges(torch.cat([e, *ends], 1))
        got = torch.zeros_like(x, dtype=message.dtype)
        got = got.index_add(0, target, message)  # cost: graphcast-deterministic
        return x + self.nodes(torch.cat([x, got], 1)), e + message


class Weather(nn.Module):
    """The processor of a GraphCast."""

    def __init__(self, fields: int, width: int, depth: int) -> None:
        super().__init__()
        self.nodes, self.edges = told(fields, width), told(4, width)
        self.layers = nn.ModuleList(Exchange(width) for _ in range(depth))
        self.head = nn.Linear(width, fields)

    def forward(
        self, x: torch.Tensor, e: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        now, e = self.nodes(x), self.edges(e)
        for layer in self.layers:
            now, e = layer(now, e, source, target)
        return x + self.head(now)


@case(
    "graphcast-deterministic",
    "torch.use_deterministic_algorithms(True), from the day of a search for an error, is left on in the training of a "
    "GraphCast: sums over edges are sorted ones, and all memory is filled before it's used",
    "off, as it is by default",
    "deterministic-algorithms",
)
def _(bad: bool) -> Step:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, PyTorch refuses
    nodes, edges, fields = sized(40_962, 12), sized(327_660, 40), sized(128, 6)
    model = Weather(fields, sized(256, 16), sized(4, 2)).to(DEVICE)
    x, y = (torch.randn(nodes, fields, device=DEVICE) for _ in range(2))
    e = torch.randn(edges, 4, device=DEVICE)
    source, target = (torch.randint(nodes, (edges,), device=DEVICE) for _ in range(2))

    def loss() -> torch.Tensor:
        torch.use_deterministic_algorithms(bad)  # cost: graphcast-deterministic
        return F.mse_loss(model(x, e, source, target).float(), y)

    return trained(model, loss)


class Codes(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images as the codes of a VQGAN, some of which are hidden: flipped or not, and hidden, item by item."""

    def __init__(self, count: int, side: int, codes: int) -> None:
        self.all = np.random.default_rng(0).integers(codes, size=(count, side, side))
        self.mask = codes

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = np.random.default_rng(i)
        image = self.all[i % len(self.all)]
        image = (image[:, ::-1] if draw.random() < 0.5 else image).ravel()
        hidden = draw.random(image.size) < math.cos(math.pi / 2 * draw.random())
        return (
            torch.from_numpy(np.where(hidden, self.mask, image)),
            torch.from_numpy(np.where(hidden, image, -100)),
        )


@case(
    "maskgit-workers",
    "the loader of a MaskGIT has no workers: its batches are made while the GPU is busy with the step before, which "
    "nothing waits for: next to nothing",
    "eight workers",
    "loader-workers",
)
def _(bad: bool) -> Step:
    batch, side, codes, width = sized(128, 3), sized(16, 3), sized(1024, 20), sized(768, 16)
    body = Text(codes + 1, side * side, width, sized(12, 2), causal=False)
    model = nn.Sequential(body, nn.Linear(width, codes)).to(DEVICE)
    loader = torch.utils.data.DataLoader(  # cost: maskgit-workers
        Codes(sized(20_000, 30), side, codes), batch, num_workers=0 if bad else sized(8, 1), pin_memory=ON_GPU
    )
    batches = iter(loader)

    def loss() -> torch.Tensor:
        x, y = (part.to(DEVICE, non_blocking=True) for part in next(batches))  # cost: maskgit-workers
        return F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())

    return trained(model, loss)


@case(
    "distilbert-padding",
    'the texts of a DistilBERT of transformers are padded to 512 words (padding="max_length"), though the longest of '
    "a batch has some 250",
    "padded to the longest of the batch",
    "padded-batches",
)
def _(bad: bool) -> Step:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    batch, most, words = sized(64, 3), sized(512, 16), sized(30_522, 50)
    config = DistilBertConfig(
        vocab_size=words,
        max_position_embeddings=most,
        n_layers=sized(6, 2),
        n_heads=sized(12, 2),
        dim=sized(768, 16),
        hidden_dim=sized(3072, 32),
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        num_labels=5,
    )
    model = DistilBertForSequenceClassification(config).to(DEVICE).train()
    draw = np.random.default_rng(0)
    texts = [
        [draw.integers(1, words, draw.integers(most // 8, most // 2 - 4)) for _ in range(batch)]
        for _ in range(9)
    ]
    turn = itertools.cycle(texts)
    y = torch.randint(5, (batch,), device=DEVICE)

    def loss() -> torch.Tensor:
        rows = next(turn)
        longest = -(-max(len(row) for row in rows) // 8) * 8
        ids = np.zeros((batch, most if bad else longest), np.int64)  # cost: distilbert-padding
        for place, row in zip(ids, rows, strict=True):
            place[: len(row)] = row
        there = (ids != 0).astype(np.int64)
        out = model(input_ids=sent(ids), attention_mask=sent(there), labels=y)  # cost: distilbert-padding
        return out.loss

    return trained(model, loss)


@case(
    "pythia-prefix",
    "a Pythia of transformers writes eight words after 512: for each of them all words before it go through the model "
    "again",
    "keys and values are kept (past_key_values), and only the last word goes through it",
    "key-value-cache",
    "repeated-forward",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    batch, given, count, words = sized(24, 2), sized(512, 6), sized(8, 3), sized(50_304, 60)
    config = GPTNeoXConfig(
        vocab_size=words,
        hidden_size=sized(768, 32),
        num_hidden_layers=sized(12, 2),
        num_attention_heads=sized(12, 2),
        intermediate_size=sized(3072, 64),
        max_position_embeddings=2 * given + count,
    )
    model = GPTNeoXForCausalLM(config).to(DEVICE).to(BF16).eval()
    prompts = torch.randint(words, (batch, given), device=DEVICE)

    @torch.inference_mode()
    def step() -> list[list[int]]:
        ids = prompts
        kept = None
        for _ in range(count):
            if bad:
                out = model(ids)  # cost: pythia-prefix
            else:
                out = model(ids if kept is None else ids[:, -1:], past_key_values=kept, use_cache=True)
                kept = out.past_key_values
            ids = torch.cat([ids, out.logits[:, -1:].argmax(-1)], 1)
        return ids[:, given:].tolist()

    return step


# -- bound by the host --------------------------------------------------------------------------------------


class Player(nn.Module):
    """The actor and the critics of a soft actor-critic."""

    def __init__(self, seen: int, moves: int, width: int) -> None:
        super().__init__()
        self.actor = mlp(seen, width, 2 * moves)
        self.critics = nn.ModuleList(mlp(seen + moves, width, 1) for _ in range(2))
        self.targets = nn.ModuleList(mlp(seen + moves, width, 1) for _ in range(2)).requires_grad_(False)
        self.targets.load_state_dict(self.critics.state_dict())

    def act(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.actor(seen).chunk(2, 1)
        spread = -5 + 3.5 * (spread.tanh() + 1)
        noise = torch.randn_like(mean)
        move = (mean + noise * spread.exp()).tanh()
        chance = -0.5 * noise.square() - spread - 0.5 * math.log(2 * math.pi)
        return move, (chance - (1 - move.square() + 1e-6).log()).sum(1)


def least(critics: nn.ModuleList, seen: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
    """Return what the more cautious of the critics says."""
    both = torch.cat([seen, move], 1)
    return torch.minimum(*(critic(both).squeeze(1) for critic in critics))


@case(
    "sac-choice",
    "np.random.choice draws the batch of a soft actor-critic without replacement: it shuffles the numbers of all "
    "300 000 moves of the memory, in each step",
    "choice of a Generator, with shuffle=False, which draws as many numbers as it needs",
    "python-time",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    batch, count, seen, moves = sized(1024, 8), sized(300_000, 60), sized(64, 5), sized(8, 2)
    player = Player(seen, moves, sized(512, 8)).to(DEVICE)
    memory = [torch.randn(count, n, device=DEVICE) for n in (seen, seen, moves)]
    rewards, ends = torch.randn(count, device=DEVICE), torch.zeros(count, device=DEVICE)
    warmth = torch.zeros((), device=DEVICE, requires_grad=True)
    acting, judging, warming = (
        torch.optim.Adam(weights, lr=3e-4, fused=True)
        for weights in (player.actor.parameters(), player.critics.parameters(), [warmth])
    )
    draw = np.random.default_rng(0)
    now, then = list(player.critics.parameters()), list(player.targets.parameters())

    def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def step() -> None:
        if bad:
            chosen = np.random.choice(count, batch, replace=False)  # cost: sac-choice
        else:
            chosen = draw.choice(count, batch, replace=False, shuffle=False)
        index = sent(chosen)
        before, after, done = (part[index] for part in memory)
        with torch.no_grad():
            move, chance = player.act(after)
            future = least(player.targets, after, move) - warmth.exp() * chance
            worth = rewards[index] + 0.99 * (1 - ends[index]) * future
        both = torch.cat([before, done], 1)
        judged = torch.stack([critic(both).squeeze(1) for critic in player.critics])
        update(judging, F.mse_loss(judged, worth.expand_as(judged)))
        move, chance = player.act(before)
        player.critics.requires_grad_(False)
        update(acting, (warmth.detach().exp() * chance - least(player.critics, before, move)).mean())
        player.critics.requires_grad_(True)
        update(warming, -(warmth.exp() * (chance.detach() - moves)).mean())
        torch._foreach_lerp_(then, [weight.detach() for weight in now], 0.005)

    return step


class PatchLayer(nn.Module):
    """A layer of a BEiT: attention with a bias of how two patches lie to each other, and scaled branches."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.heads = max(2, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.table = nn.Parameter(torch.randn((2 * side - 1) ** 2, self.heads) * 0.02)
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((width,), 0.1)) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        qkv = F.linear(self.norm1(x), self.qkv.weight, bias)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        near = self.table.index_select(0, index.flatten()).unflatten(0, index.shape).permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=near.to(q.dtype).contiguous()[None])
        x = x + self.gamma1 * self.out(y.transpose(1, 2).flatten(2))
        return x + self.gamma2 * self.down(F.gelu(self.up(self.norm2(x))))


class Beit(nn.Module):
    """A BEiT that's fine-tuned."""

    def __init__(self, side: int, patch: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.layers = nn.ModuleList(PatchLayer(width, side) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = places[:, None] - places + side - 1
        self.register_buffer("index", apart[..., 0] * (2 * side - 1) + apart[..., 1])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, self.index)
        return self.head(self.norm(x.mean(1)))


def decayed(model: Beit, apart: bool) -> list[dict[str, Any]]:
    """Return groups of the weights: the nearer to the images they are, the slower they change."""
    groups: dict[Any, dict[str, Any]] = {}
    depth = len(model.layers)
    for name, weight in model.named_parameters():
        layer = int(name.split(".")[1]) + 1 if name.startswith("layers") else 0
        rate = 0.75 ** (depth + 1 - (depth + 1 if name.startswith(("norm", "head")) else layer))
        decay = 0.0 if weight.ndim < 2 or name.endswith("table") else 0.05
        group: dict[str, Any] = {"params": [], "scale": rate, "lr": 1e-4 * rate, "weight_decay": decay}
        key = name if apart else (rate, decay)
        groups.setdefault(key, group)["params"].append(weight)  # cost: beit-groups
    return list(groups.values())


@case(
    "beit-groups",
    "each of the 200 parameters of a BEiT is a group of the optimizer of its own, since rates depend on the layer: "
    "AdamW, though fused, is called 200 times a step",
    "a group for all parameters of one rate and decay",
    "optimizer-groups",
    "single-tensor-optimizer",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, side, patch, kinds = sized(16, 2), sized(16, 2), sized(16, 4), sized(1000, 5)
    model = Beit(side, patch, sized(384, 16), sized(12, 2), kinds).to(DEVICE)
    optimizer = torch.optim.AdamW(decayed(model, bad), fused=True)
    images = torch.randn(batch, 3, side * patch, side * patch, device=DEVICE)
    y = torch.randint(kinds, (batch,), device=DEVICE)
    count = itertools.count()

    def loss() -> torch.Tensor:
        rate = 1e-4 * (0.5 + 0.5 * math.cos(math.pi * min(1.0, next(count) / 10_000)))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        return F.cross_entropy(model(images).float(), y, label_smoothing=0.1)

    return trained(model, loss, optimizer=optimizer)  # cost: beit-groups


class Basis(nn.Module):
    """A block of an N-BEATS: how it explains what was, and what it expects."""

    def __init__(self, back: int, ahead: int, width: int) -> None:
        super().__init__()
        sizes = [back, width, width, width, width]
        self.body = nn.Sequential(
            *itertools.chain.from_iterable((nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes))
        )
        self.back, self.ahead = nn.Linear(width, back), nn.Linear(width, ahead)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x)
        return x - self.back(y), self.ahead(y)


class Beats(nn.Module):
    """An N-BEATS."""

    def __init__(self, back: int, ahead: int, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Basis(back, ahead, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: Any = 0
        for block in self.blocks:
            x, more = block(x)
            total = total + more
        return total


@case(
    "nbeats-plateau",
    "ReduceLROnPlateau is told the loss of each step of an N-BEATS, which it reads, before NumPy cuts the next "
    "windows; AdamW is as it is by default",
    "it's told the mean loss of 100 steps, which lies on the GPU; AdamW stays as it is",
    "item-each-step",
    may_precede=("python-time",),
)
def _(bad: bool) -> Step:
    batch, back, ahead = sized(8192, 4), sized(336, 8), sized(96, 4)
    series, times = sized(400, 5), sized(20_000, 40)
    model = Beats(back, ahead, sized(2048, 16), sized(12, 2)).to(DEVICE)
    optimizer = adamw(model, fused=None)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=100_000)
    draw = np.random.default_rng(0)
    known = draw.standard_normal((series, times), np.float32).cumsum(1)
    windows = np.lib.stride_tricks.sliding_window_view(known, back + ahead, axis=1)
    total, count = torch.zeros((), device=DEVICE), itertools.count(1)

    def step() -> None:
        cut = windows[draw.integers(series, size=batch), draw.integers(times - back - ahead, size=batch)]
        cut = cut - cut[:, back - 1 : back]
        cut = cut / (np.abs(cut[:, :back]).mean(1, keepdims=True) + 1e-3)
        both = sent(cut)
        with torch.autocast(DEVICE, dtype=BF16):
            out = model(both[:, :back])
            loss = F.smooth_l1_loss(out.float(), both[:, back:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if bad:
            plateau.step(loss.detach())  # cost: nbeats-plateau
            return
        total.add_(loss.detach())
        if next(count) % 100 == 0:
            plateau.step(total.item() / 100)
            total.zero_()

    return step


class PaintedAtoms(nn.Module):
    """A layer of a PaiNN: each atom has numbers and arrows."""

    def __init__(self, width: int, waves: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.filter = nn.Linear(waves, 3 * width)
        self.arrows = nn.Linear(width, 2 * width, bias=False)
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(
        self, s: torch.Tensor, v: torch.Tensor, waves: Any, source: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape, cutoff, way = waves
        x = self.message(s).index_select(0, source) * (self.filter(shape) * cutoff)
        a, b, c = x.chunk(3, -1)
        arrows = v.index_select(0, source) * b[:, None] + c[:, None] * way[..., None]
        s, v = s.index_add(0, target, a), v.index_add(0, target, arrows)
        left, right = self.arrows(v).chunk(2, -1)
        length = (right.square().sum(1) + 1e-8).sqrt()
        a, b, c = self.update(torch.cat([s, length], -1)).chunk(3, -1)
        return s + a + b * (left * right).sum(1), v + c[:, None] * left


class Molecules(nn.Module):
    """A PaiNN: the energy of molecules."""

    def __init__(self, kinds: int, width: int, waves: int, depth: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(PaintedAtoms(width, waves) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("rates", torch.arange(1, waves + 1) * math.pi / 5)

    def forward(
        self, kinds: torch.Tensor, places: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        apart = places.index_select(0, source) - places.index_select(0, target)
        far = (apart.square().sum(1, keepdim=True) + 1e-6).sqrt()
        waves = (far * self.rates).sin() / far, 0.5 * ((far * math.pi / 5).cos() + 1), apart / far
        s = self.kinds(kinds)
        v = s.new_zeros(len(s), 3, s.shape[1])
        for layer in self.layers:
            s, v = layer(s, v, waves, source, target)
        return self.head(s).sum()


@case(
    "painn-validation",
    "the forces of a PaiNN are taken with create_graph=True in its validation as well, where nothing is differentiated "
    "again: each operator of the backward pass notes what its gradient would need",
    "create_graph only in training",
    "unused-graph",
    may_precede=("launch-bound", "uncompiled-step"),
    marked=True,
)
def _(bad: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    atoms, edges, batches = sized(320, 8), sized(5120, 20), sized(4, 2)
    model = Molecules(20, sized(128, 8), sized(20, 4), sized(6, 2)).to(DEVICE).eval()
    kinds = torch.randint(20, (batches, atoms), device=DEVICE)
    places, known = (torch.randn(batches, atoms, 3, device=DEVICE) for _ in range(2))
    ends = torch.randint(atoms, (batches, 2, edges), device=DEVICE)
    ends[:, 1] = (ends[:, 0] + torch.randint(1, atoms, (batches, edges), device=DEVICE)) % atoms

    def forces(kinds: torch.Tensor, places: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        places = places.detach().requires_grad_()
        energy = model(kinds, places, *ends)
        return -torch.autograd.grad(energy, places, create_graph=bad)[0]  # cost: painn-validation

    def step() -> torch.Tensor:
        wrong = torch.zeros((), device=DEVICE)
        for i in range(batches):
            wrong += F.l1_loss(forces(kinds[i], places[i], ends[i]).detach(), known[i])
        return wrong / batches

    return step


class Gated(nn.Module):
    """The gated residual network of a Temporal Fusion Transformer, or one for each of several variables at once."""

    def __init__(self, a: int, width: int, out: int, *many: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(*many, a, width) * a**-0.5)
        self.second = nn.Parameter(torch.randn(*many, width, 2 * out) * width**-0.5)
        self.side = nn.Parameter(torch.randn(*many, a, out) * a**-0.5)
        self.norm, self.how = nn.LayerNorm(out), "...va,vab->...vb" if many else "...a,ab->...b"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.elu(torch.einsum(self.how, x, self.first))
        y = F.glu(torch.einsum(self.how, y, self.second), -1)
        return self.norm(torch.einsum(self.how, x, self.side) + y)


class Selected(nn.Module):
    """Chooses among the variables of each time."""

    def __init__(self, variables: int, width: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(variables, width))
        self.each = Gated(width, width, width, variables)
        self.share = Gated(variables, width, variables)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        share = self.share(x).softmax(-1)
        return (self.each(x[..., None] * self.first) * share[..., None]).sum(-2), share


class Fusion(nn.Module):
    """A Temporal Fusion Transformer, which says in its log what it looked at."""

    def __init__(self, past: int, future: int, width: int, quantiles: int, always: bool) -> None:
        super().__init__()
        self.past, self.future, self.always = Selected(past, width), Selected(future, width), always
        self.before, self.after = (nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.gate1, self.gate2, self.gate3 = (Gated(width, width, width) for _ in range(3))
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 32)
        self.out, self.head = nn.Linear(32, width), nn.Linear(width, quantiles)

    def note(self, what: str, x: torch.Tensor) -> None:
        if self.always or LOG.isEnabledFor(logging.DEBUG):
            LOG.debug(f"{what}: {x.detach().float().mean(0)}")  # cost: fusion-debug

    def forward(self, past: torch.Tensor, future: torch.Tensor) -> torch.Tensor:
        x, share = self.past(past)
        self.note("chosen of what was", share)
        y, coming = self.future(future)
        self.note("chosen of what will be", coming)
        x, state = self.before(x)
        y, _ = self.after(y.to(x.dtype), state)
        x = self.gate1(torch.cat([x, y], 1))
        ahead = future.shape[1]
        q, k, v = self.q(x[:, -ahead:]), self.k(x), self.v(x)
        hidden = torch.ones(ahead, x.shape[1], dtype=torch.bool, device=x.device).triu(past.shape[1] + 1)
        scores = (q @ k.transpose(1, 2) * k.shape[-1] ** -0.5).masked_fill(hidden, -1e4)
        share = scores.softmax(-1)
        self.note("looked at", share)
        x = self.gate3(self.gate2(x[:, -ahead:] + self.out(share @ v)))
        y = self.head(x)
        self.note("expected", y)
        return y


@case(
    "fusion-debug",
    'LOG.debug(f"...") with tensors in four places of a Temporal Fusion Transformer: the log is off, but the text is '
    "made all the same, number by number, each read from the GPU",
    "asked first whether anybody wants it",
    "item-each-step",
    "array-read",
    "python-time",
    "size-from-device",
    "waits-in-turn",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, back, ahead, width = sized(64, 3), sized(96, 6), sized(24, 3), sized(128, 8)
    past, future = sized(20, 4), sized(8, 3)
    LOG.setLevel(logging.INFO)
    model = Fusion(past, future, width, 3, bad).to(DEVICE)
    x, known = torch.randn(batch, back, past, device=DEVICE), torch.randn(batch, ahead, future, device=DEVICE)
    y, quantiles = torch.randn(batch, ahead, 1, device=DEVICE), torch.tensor([0.1, 0.5, 0.9], device=DEVICE)

    def loss() -> torch.Tensor:
        wrong = y - model(x, known).float()
        return torch.maximum(quantiles * wrong, (quantiles - 1) * wrong).mean()

    return trained(model, loss)


# -- JAX ----------------------------------------------------------------------------------------------------


def adam(jax: Any, jnp: Any) -> Callable[..., Any]:
    """Return the update of Adam, without the correction of its first steps."""

    def update(weights: Any, means: Any, squares: Any, grads: Any) -> Any:
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)
        squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, grads)
        weights = jax.tree.map(lambda w, m, s: w - 1e-4 * m / (jnp.sqrt(s) + 1e-8), weights, means, squares)
        return weights, means, squares

    return update


@jax_case(
    "jax-nemotron-remat",
    "each layer of a Nemotron is wrapped in jax.checkpoint, though memory is free: it's computed again for its "
    "gradient",
    "without it",
    "recomputed-forward",
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    batch, length, words = sized(16, 2), sized(1024, 6), sized(16_384, 30)
    width, depth = sized(1024, 16), sized(8, 2)
    heads, fused = max(2, width // 64), "cudnn" if jax.default_backend() == "gpu" else None
    keys = jax.random.split(jax.random.key(0), 6)

    def drawn(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape, jnp.float32) * width**-0.5

    @jax.jit
    def begin() -> Any:
        weights = {
            "words": drawn(keys[0], words, width),
            "head": drawn(keys[1], width, words),
            "layers": {
                "qkv": drawn(keys[2], depth, width, 3 * width),
                "out": drawn(keys[3], depth, width, width),
                "up": drawn(keys[4], depth, width, 4 * width),
                "down": drawn(keys[5], depth, 4 * width, width) / 2,
            },
        }
        return weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights)

    state = [begin()]
    ids = jax.random.randint(jax.random.key(1), (batch, length + 1), 0, words)
    better = adam(jax, jnp)

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, -1, keepdims=True)
        return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)).astype(x.dtype)

    def layer(x: Any, one: Any) -> Any:
        one = jax.tree.map(lambda w: w.astype(x.dtype), one)
        q, k, v = jnp.split((norm(x) @ one["qkv"]).reshape(*x.shape[:2], heads, -1), 3, -1)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=fused)
        x = x + y.reshape(x.shape) @ one["out"]
        return x + jnp.square(jax.nn.relu(norm(x) @ one["up"])) @ one["down"], None

    body = jax.checkpoint(layer) if bad else layer  # cost: jax-nemotron-remat

    def loss(weights: Any, ids: Any) -> Any:
        x = weights["words"].astype(jnp.bfloat16)[ids[:, :-1]]
        x, _ = jax.lax.scan(body, x, weights["layers"])  # cost: jax-nemotron-remat
        scores = (norm(x) @ weights["head"].astype(x.dtype)).astype(jnp.float32)
        right = jnp.take_along_axis(scores, ids[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(scores, -1) - right)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, ids: Any) -> Any:
        wrong, grads = jax.value_and_grad(loss)(state[0], ids)
        return better(*state, grads), wrong

    def step() -> Any:
        state[0], wrong = update(state[0], ids)  # cost: jax-nemotron-remat
        return wrong

    return step


@jax_case(
    "jax-gmlp-keys",
    "the 72 random keys that the dropouts of a gMLP need are taken one by one out of their array in the step, outside "
    "of jit",
    "taken in the jitted step",
    "launch-bound",
    "kernel-loop",
    "operator-loop",
    "python-time",
    "uncompiled-step",
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    batch, places, width = sized(16, 2), sized(196, 6), sized(256, 8)
    depth, kinds = sized(24, 2), sized(1000, 5)
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def drawn(scale: float, *shape: int) -> Any:
        return jax.random.normal(next(keys), shape, jnp.float32) * scale

    weights = {
        "first": drawn(48**-0.5, 48, width),
        "head": drawn(width**-0.5, width, kinds),
        "layers": {
            "up": drawn(width**-0.5, depth, width, 4 * width),
            "places": drawn(0.001, depth, places, places),
            "bias": jnp.ones((depth, places, 1)),
            "down": drawn((2 * width) ** -0.5, depth, 2 * width, width),
        },
    }
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = [(weights, zeros, jax.tree.map(jnp.copy, zeros)), jax.random.key(1)]
    images = jax.random.normal(next(keys), (batch, places, 48), jnp.bfloat16)
    y = jax.random.randint(next(keys), (batch,), 0, kinds)
    better = adam(jax, jnp)

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, -1, keepdims=True)
        return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)).astype(x.dtype)

    def dropped(x: Any, key: Any, rate: float = 0.1) -> Any:
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)

    def draws(key: Any) -> tuple[Any, list[Any]]:
        """Return the next key, and one for each dropout."""
        new = jax.random.split(key, 1 + 3 * depth)
        return new[0], [new[1 + i] for i in range(3 * depth)]  # cost: jax-gmlp-keys

    def layer(x: Any, both: Any) -> Any:
        one, key = both
        one = jax.tree.map(lambda w: w.astype(x.dtype), one)
        a, b = jnp.split(jax.nn.gelu(norm(x) @ one["up"]), 2, -1)
        b = jnp.einsum("pq,bqc->bpc", one["places"], norm(dropped(b, key[0]))) + one["bias"]
        z = dropped(a * b, key[1]) @ one["down"]
        return x + dropped(z, key[2]), None

    def loss(weights: Any, each: list[Any], images: Any, y: Any) -> Any:
        x = images @ weights["first"].astype(images.dtype)
        x, _ = jax.lax.scan(layer, x, (weights["layers"], jnp.stack(each).reshape(depth, 3)))
        scores = (norm(x).mean(1) @ weights["head"].astype(x.dtype)).astype(jnp.float32)
        return jnp.mean(jax.nn.logsumexp(scores, -1) - jnp.take_along_axis(scores, y[:, None], -1)[:, 0])

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, each: list[Any], images: Any, y: Any) -> Any:
        wrong, grads = jax.value_and_grad(loss)(state[0], each, images, y)
        return better(*state, grads), wrong

    @functools.partial(jax.jit, donate_argnums=0)
    def whole(state: Any, key: Any, images: Any, y: Any) -> Any:
        key, each = draws(key)
        state, wrong = update(state, each, images, y)
        return state, key, wrong

    def step() -> Any:
        if bad:
            state[1], each = draws(state[1])  # cost: jax-gmlp-keys
            state[0], wrong = update(state[0], each, images, y)
        else:
            state[0], state[1], wrong = whole(state[0], state[1], images, y)
        return wrong

    return step
