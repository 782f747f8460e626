"""Habits of scripts that train and serve small and middle-sized models on a CPU.

``poems-prefix`` is a server. Every fix computes what its step computes, up to rounding; ``films-negatives`` and
``signs-augment`` draw other random numbers than their fixes. No rule was made for the costs of ``ground-inverse`` and
``pairs-broadcast`` then: the most similar are named, too.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.predictions.cases import Step, case
from tests.predictions.set3_devices import jax_case
from tests.predictions.set24_on_a_cpu import endless, mlp, trained

# -- equations and processes --------------------------------------------------------------------------------


def slopes(y: torch.Tensor, *of: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the derivatives of a field, of which further ones can be taken."""
    return torch.autograd.grad(y, of, torch.ones_like(y), create_graph=True)


@case(
    "burgers-grads",
    "the loss of a physics-informed network takes each derivative of a field by a backward pass of its own",
    "the derivatives of a field in one pass",
    "repeated-backward",
    cpu=True,
)
def _(bad: bool) -> Step:
    net = mlp(3, *(64,) * 5, 2, between=nn.Tanh)
    viscosity, drawn = 0.01 / math.pi, torch.Generator().manual_seed(0)

    def first(y: torch.Tensor, *of: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(slopes(y, one)[0] for one in of) if bad else slopes(y, *of)  # cost: burgers-grads

    def loss() -> torch.Tensor:
        x, y, t = (torch.rand(400, 1, generator=drawn).requires_grad_() for _ in range(3))
        u, v = net(torch.cat([x, y, t], 1)).split(1, dim=1)
        u_x, u_y, u_t = first(u, x, y, t)
        v_x, v_y, v_t = first(v, x, y, t)
        u_xx, u_yy = slopes(u_x, x)[0], slopes(u_y, y)[0]
        v_xx, v_yy = slopes(v_x, x)[0], slopes(v_y, y)[0]
        one = u_t + u * u_x + v * u_y - viscosity * (u_xx + u_yy)
        two = v_t + u * v_x + v * v_y - viscosity * (v_xx + v_yy)
        return one.square().mean() + two.square().mean() + (u - torch.sin(math.pi * x)).square().mean()

    return trained(net, loss)


class Process(nn.Module):
    """A Gaussian process with a scale per feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale, self.noise = nn.Parameter(torch.zeros(features)), nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x / self.scale.exp()
        squares = x.square().sum(1)
        apart = (squares[:, None] + squares - 2 * x @ x.T).clamp(min=0)
        return (-0.5 * apart).exp() + self.noise.exp() * torch.eye(len(x))


@case(
    "ground-inverse",
    "the likelihood of a Gaussian process is written as in a textbook, with an inverse and a determinant",
    "a Cholesky factor for both",
    "matrix-inverse",
    "host-operators",
    "repeated-forward",
    cpu=True,
)
def _(bad: bool) -> Step:
    model, x = Process(6), torch.randn(400, 6)
    y = torch.sin(x.sum(1)) + 0.1 * torch.randn(400)

    def loss() -> torch.Tensor:
        k = model(x)
        if bad:
            fit, volume = y @ torch.inverse(k) @ y, torch.logdet(k)  # cost: ground-inverse
        else:
            factor = torch.linalg.cholesky(k)
            fit = torch.linalg.solve_triangular(factor, y[:, None], upper=False).square().sum()
            volume = 2 * factor.diagonal().log().sum()
        return 0.5 * (fit + volume + len(y) * math.log(2 * math.pi))

    return trained(model, loss)


# -- tables -------------------------------------------------------------------------------------------------


class Columns(nn.Module):
    """Embeds the columns of a table, for categories and for numbers, and mixes them by attention."""

    def __init__(self, categories: list[int], numbers: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in categories)
        self.numbers = nn.Parameter(torch.randn(numbers, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, 2)

    def forward(self, kinds: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        columns = torch.stack([table(kinds[:, i]) for i, table in enumerate(self.tables)], 1)
        return self.head(self.body(torch.cat([columns, values[..., None] * self.numbers], 1)).mean(1))


@case(
    "churn-accuracy",
    "the accuracy of each batch is computed by a second call of the model, as the first is inside the loss",
    "one call for both",
    "repeated-forward",
    cpu=True,
)
def _(bad: bool) -> Step:
    counts = [12, 5, 40, 7, 90, 3]
    model, drawn, correct = Columns(counts, 6, 48), torch.Generator().manual_seed(0), [0]

    def right(scores: torch.Tensor, y: torch.Tensor) -> int:
        return int((scores.argmax(1) == y).sum().item())

    def loss() -> torch.Tensor:
        kinds = torch.stack([torch.randint(count, (128,), generator=drawn) for count in counts], 1)
        values, y = torch.randn(128, 6, generator=drawn), torch.randint(2, (128,), generator=drawn)
        scores = model(kinds, values)
        wrong = F.cross_entropy(scores, y)
        correct[0] += right(model(kinds, values) if bad else scores, y)  # cost: churn-accuracy
        return wrong

    return trained(model, loss)


# -- texts --------------------------------------------------------------------------------------------------


class Letters(nn.Module):
    """Sorts letters of customers by what they want."""

    def __init__(self, words: int, width: int, kinds: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, padding_idx=0), nn.Embedding(160, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = self.body(x, src_key_padding_mask=mask == 0)
        return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class Texts(Dataset[tuple[list[int], int]]):
    """Texts as the numbers of their words; most are short, some are long."""

    def __init__(self, count: int, words: int, longest: int) -> None:
        drawn = np.random.default_rng(0)
        lengths = np.clip(drawn.lognormal(3.3, 0.5, count), 5, longest).astype(int)
        self.rows = [(drawn.integers(1, words, n).tolist(), int(drawn.integers(8))) for n in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        return self.rows[index]


@case(
    "letters-padding",
    "all texts are padded to the longest that the model takes, 128 words, and most have 30",
    "padded to the longest of the batch",
    "padded-batches",
    cpu=True,
)
def _(bad: bool) -> Step:
    def collate(rows: list[tuple[list[int], int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        length = 128 if bad else max(len(text) for text, _ in rows)
        ids = torch.tensor([text + [0] * (length - len(text)) for text, _ in rows])  # cost: letters-padding
        return ids, (ids != 0).float(), torch.tensor([kind for _, kind in rows])

    model, data = Letters(6000, 96, 8), Texts(3000, 6000, 128)
    batches = endless(DataLoader(data, 16, shuffle=True, collate_fn=collate))

    def loss() -> torch.Tensor:
        ids, mask, y = next(batches)
        return F.cross_entropy(model(ids, mask), y)

    return trained(model, loss)


class Tagger(nn.Module):
    """A recurrent tagger with a conditional random field."""

    def __init__(self, words: int, width: int, tags: int, one_by_one: bool) -> None:
        super().__init__()
        self.one_by_one = one_by_one
        self.words = nn.Embedding(words, width)
        self.body = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.head, self.change = nn.Linear(2 * width, tags), nn.Parameter(torch.randn(tags, tags) / 10)

    def total(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the sum over all sequences of tags."""
        so_far = scores[:, 0]
        for word in range(1, scores.shape[1]):
            if self.one_by_one:
                following = []
                for tag in range(scores.shape[2]):
                    each = so_far + self.change[tag] + scores[:, word, tag, None]  # cost: entities-crf
                    following.append(torch.logsumexp(each, 1))  # cost: entities-crf
                so_far = torch.stack(following, 1)
            else:
                so_far = torch.logsumexp(so_far[:, None] + self.change, 2) + scores[:, word]
        return torch.logsumexp(so_far, 1)

    def forward(self, ids: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.body(self.words(ids))[0])
        right = scores.gather(2, tags[..., None]).sum((1, 2)) + self.change[tags[:, 1:], tags[:, :-1]].sum(1)
        return (self.total(scores) - right).mean()


@case(
    "entities-crf",
    "the forward algorithm of a tagger goes over the tags in a loop of Python, at each word",
    "all tags at once",
    "operator-loop",
    "kernel-loop",
    cpu=True,
)
def _(bad: bool) -> Step:
    model = Tagger(5000, 160, 9, bad)
    ids, tags = torch.randint(5000, (16, 24)), torch.randint(9, (16, 24))
    return trained(model, lambda: model(ids, tags))


class Writer(nn.Module):
    """A small language model, which may keep the keys and values of what it has read."""

    def __init__(self, words: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words, self.places, self.heads = nn.Embedding(words, width), nn.Embedding(256, width), heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.wide = nn.ModuleList(mlp(width, 4 * width, width, between=nn.GELU) for _ in range(depth))

    def forward(
        self, ids: torch.Tensor, kept: list[tuple[torch.Tensor, torch.Tensor]] | None
    ) -> torch.Tensor:
        start = kept[0][0].shape[2] if kept else 0
        x = self.words(ids) + self.places.weight[start : start + ids.shape[1]]
        for i, (qkv, out, wide) in enumerate(zip(self.qkv, self.out, self.wide, strict=True)):
            parts = qkv(self.norms[2 * i](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            q, k, v = parts.unbind()
            if kept is not None:
                if start:
                    k, v = torch.cat([kept[i][0], k], 2), torch.cat([kept[i][1], v], 2)
                    kept[i] = k, v
                else:
                    kept.append((k, v))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=not start)
            x = x + out(seen.transpose(1, 2).flatten(2))
            x = x + wide(self.norms[2 * i + 1](x))
        return self.norms[-1](x[:, -1]) @ self.words.weight.T


@case(
    "poems-prefix",
    "a server that writes texts calls its model on all of the text again for each word",
    "keys and values kept",
    "key-value-cache",
    marked=True,
    cpu=True,
)
def _(bad: bool) -> Step:
    model = Writer(4000, 192, 6, 4).eval()
    given = torch.randint(4000, (1, 12))

    @torch.inference_mode()
    def step() -> list[int]:
        text = given
        kept: list[tuple[torch.Tensor, torch.Tensor]] | None = None if bad else []
        for _ in range(16):
            scores = model(text[:, -1:] if kept else text, kept)  # cost: poems-prefix
            text = torch.cat([text, scores.argmax(-1, keepdim=True)], 1)
        return text[0].tolist()

    return step


# -- recommendation and retrieval ---------------------------------------------------------------------------


class Films(nn.Module):
    """Neural collaborative filtering."""

    def __init__(self, users: int, films: int, width: int) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(users, width), nn.Embedding(films, width)
        self.net = mlp(2 * width, 128, 64, 1)

    def forward(self, users: torch.Tensor, films: torch.Tensor) -> torch.Tensor:
        u, f = self.users(users), self.films(films)
        return self.net(torch.cat([u, f], -1)).squeeze(-1) + (u * f).sum(-1)


@case(
    "films-negatives",
    "the films that a user did not see are drawn one by one, each looked up in a set",
    "drawn and looked up by NumPy",
    "python-time",
    cpu=True,
)
def _(bad: bool) -> Step:
    users, films, batch, each = 2000, 3000, 512, 4
    model, drawn = Films(users, films, 32), np.random.default_rng(0)
    pairs = np.stack([drawn.integers(0, users, 60_000), drawn.integers(0, films, 60_000)], 1)
    seen, table = set(map(tuple, pairs.tolist())), np.zeros((users, films), bool)
    table[pairs[:, 0], pairs[:, 1]] = True

    def unseen(chosen: np.ndarray) -> np.ndarray:
        if bad:
            out = []
            for user in chosen.tolist():
                for _ in range(each):
                    film = random.randint(0, films - 1)  # cost: films-negatives
                    while (user, film) in seen:  # cost: films-negatives
                        film = random.randint(0, films - 1)
                    out.append(film)
            return np.array(out).reshape(-1, each)
        found = drawn.integers(0, films, (len(chosen), each))
        while (known := table[chosen[:, None], found]).any():
            found[known] = drawn.integers(0, films, known.sum())
        return found

    def loss() -> torch.Tensor:
        rows = pairs[drawn.integers(0, len(pairs), batch)]
        user, liked, not_liked = (torch.from_numpy(a) for a in (rows[:, :1], rows[:, 1:], unseen(rows[:, 0])))
        return -F.logsigmoid(model(user, liked) - model(user.expand(-1, each), not_liked)).mean()

    return trained(model, loss)


@case(
    "pairs-broadcast",
    "the distances of all pairs are taken from a tensor of all differences, batch by batch by width",
    "torch.cdist",
    "broadcast-pairs",
    "elementwise-chain",
    "host-operators",
    cpu=True,
)
def _(bad: bool) -> Step:
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 64)),
    )
    x, y = torch.randn(128, 1, 32, 32), torch.arange(128) % 16
    same = y[:, None] == y

    def apart(e: torch.Tensor) -> torch.Tensor:
        if bad:
            return (e[:, None] - e[None]).pow(2).sum(-1).clamp(min=1e-12).sqrt()  # cost: pairs-broadcast
        return torch.cdist(e, e).clamp(min=1e-6)

    def loss() -> torch.Tensor:
        distances = apart(F.normalize(net(x), dim=1))
        furthest = distances.masked_fill(~same, 0.0).amax(1)
        closest = distances.masked_fill(same, 9.0).amin(1)
        return F.relu(furthest - closest + 0.3).mean()

    return trained(net, loss)


# -- images and sounds --------------------------------------------------------------------------------------


class Residual(nn.Module):
    """The block of a small residual network."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()),
            *(nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)),
        )
        self.side = nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


@case(
    "birds-head",
    "the optimizer has the last block and a new head alone, but all of the pretrained network gets gradients",
    "requires_grad_(False)",
    "unneeded-gradients",
    cpu=True,
)
def _(bad: bool) -> Step:
    body = nn.Sequential(Residual(1, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)).eval()
    head = nn.Sequential(Residual(64, 128, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 30))
    if not bad:
        body.requires_grad_(False)
    x, y = torch.randn(16, 1, 48, 48), torch.randint(30, (16,))
    return trained(head, lambda: F.cross_entropy(head(body(x)), y))  # cost: birds-head


def augmented(images: torch.Tensor) -> torch.Tensor:
    """Mirror, turn, brighten and normalize images."""
    count, x = len(images), images.float() / 255
    x = torch.where(torch.rand(count, 1, 1, 1) < 0.5, x.flip(-1), x)
    angle = 0.5 * torch.rand(count) - 0.25
    sine, cosine, zero = angle.sin(), angle.cos(), torch.zeros(count)
    turn = torch.stack([cosine, -sine, zero, sine, cosine, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(turn, list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * (0.8 + 0.4 * torch.rand(count, 1, 1, 1)) + mean * (
        0.8 + 0.4 * torch.rand(count, 1, 1, 1)
    )
    mean, deviation = torch.tensor([[0.49, 0.48, 0.45], [0.25, 0.24, 0.26]]).view(2, 3, 1, 1)
    return (x.clamp(0, 1) - mean) / deviation


class Signs(Dataset[tuple[torch.Tensor, int]]):
    """Small images, each augmented when it is read, or left as they are."""

    def __init__(self, count: int, alone: bool) -> None:
        self.images, self.alone = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8), alone
        self.labels = torch.randint(43, (count,)).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        return augmented(image[None])[0] if self.alone else image, self.labels[index]  # cost: signs-augment


@case(
    "signs-augment",
    "the loader, which has no workers, augments each image by operators of its own",
    "the whole batch at once",
    "loader-workers",
    "operator-loop",
    "python-time",
    cpu=True,
)
def _(bad: bool) -> Step:
    loader = DataLoader(Signs(4000, bad), 48, shuffle=True, drop_last=True)  # cost: signs-augment
    batches = endless(loader)
    net = nn.Sequential(
        *(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(
            nn.Conv2d(24, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 43),
        ),
    )

    def loss() -> torch.Tensor:
        x, y = next(batches)  # cost: signs-augment
        return F.cross_entropy(net(x if bad else augmented(x)), y)

    return trained(net, loss)


# -- reinforcement learning ---------------------------------------------------------------------------------


@case(
    "pong-frames",
    "frames of a game are divided by 255.0 in NumPy, which makes float64 of them, and turned to float32 after",
    "turned to float32 by PyTorch, then divided",
    "python-time",
    "host-operators",
    "float64",
    cpu=True,
)
def _(bad: bool) -> Step:
    def network() -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()),
            *mlp(32 * 9 * 9, 128, 6),
        )

    online, target, drawn = network(), network(), np.random.default_rng(0)
    target.load_state_dict(online.state_dict())
    memory = [
        (drawn.integers(0, 256, (4, 84, 84), np.uint8), int(drawn.integers(6)), float(drawn.integers(-1, 2)))
        for _ in range(2000)
    ]

    def frames(chosen: list[np.ndarray]) -> torch.Tensor:
        if bad:
            return torch.tensor(np.array(chosen) / 255.0, dtype=torch.float32)  # cost: pong-frames
        return torch.from_numpy(np.stack(chosen)).float().div_(255.0)

    def loss() -> torch.Tensor:
        rows = drawn.integers(0, len(memory) - 1, 32).tolist()
        now, later = frames([memory[i][0] for i in rows]), frames([memory[i + 1][0] for i in rows])
        action, reward = (
            torch.tensor([memory[i][1] for i in rows]),
            torch.tensor([memory[i][2] for i in rows]),
        )
        with torch.no_grad():
            best = online(later).argmax(1, keepdim=True)
            wanted = reward + 0.99 * target(later).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(online(now).gather(1, action[:, None]).squeeze(1), wanted)

    return trained(online, loss)


# -- JAX ----------------------------------------------------------------------------------------------------


@jax_case(
    "hopper-advantages",
    "the updates of PPO are compiled, but the advantages are computed by a loop over time outside of jit",
    "a compiled scan",
    "uncompiled-step",
    "operator-loop",
    "kernel-loop",
    "python-time",
    cpu=True,
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    os.environ |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1"}  # one thread
    keys = iter(jax.random.split(jax.random.key(0), 32))
    times, games, epochs = 32, 32, 4

    def network(*widths: int) -> Any:
        return [
            {"w": jax.random.normal(next(keys), (a, b)) * a**-0.5, "b": jnp.zeros(b)}
            for a, b in itertools.pairwise(widths)
        ]

    def called(layers: Any, x: Any) -> Any:
        for layer in layers[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x @ layers[-1]["w"] + layers[-1]["b"]

    weights = {"actor": network(11, 128, 128, 3), "critic": network(11, 128, 128, 1), "log": jnp.zeros(3)}
    seen = jax.random.normal(next(keys), (times + 1, games, 11))
    done = jax.random.normal(next(keys), (times, games, 3))
    rewards = jax.random.normal(next(keys), (times, games))
    going = (jax.random.uniform(next(keys), (times, games)) > 0.02).astype(jnp.float32)

    def logs(weights: Any, x: Any, actions: Any) -> Any:
        off = (actions - called(weights["actor"], x)) / jnp.exp(weights["log"])
        return -jnp.sum(off**2 / 2 + weights["log"], -1)

    @jax.jit
    def before(weights: Any) -> Any:
        return called(weights["critic"], seen)[..., 0], logs(weights, seen[:-1], done)

    def in_python(values: Any) -> Any:
        last, out = jnp.zeros(games), []
        for t in reversed(range(times)):
            wrong = rewards[t] + 0.99 * values[t + 1] * going[t] - values[t]  # cost: hopper-advantages
            last = wrong + 0.99 * 0.95 * going[t] * last  # cost: hopper-advantages
            out.insert(0, last)
        return jnp.stack(out)  # cost: hopper-advantages

    @jax.jit
    def in_scan(values: Any) -> Any:
        def back(last: Any, at: Any) -> tuple[Any, Any]:
            reward, value, following, on = at
            last = reward + 0.99 * following * on - value + 0.99 * 0.95 * on * last
            return last, last

        at = rewards, values[:-1], values[1:], going
        return jax.lax.scan(back, jnp.zeros(games), at, reverse=True)[1]

    @jax.jit
    def better(weights: Any, old: Any, gains: Any, returns: Any) -> Any:
        def loss(weights: Any) -> Any:
            ratio = jnp.exp(logs(weights, seen[:-1], done) - old)
            policy = -jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains).mean()
            return policy + 0.5 * jnp.square(called(weights["critic"], seen[:-1])[..., 0] - returns).mean()

        return jax.tree.map(lambda w, g: w - 3e-4 * g, weights, jax.grad(loss)(weights))

    state = [weights]

    def step() -> Any:
        values, old = before(state[0])
        gains = (in_python if bad else in_scan)(values)
        for _ in range(epochs):
            state[0] = better(state[0], old, gains, gains + values[:-1])
        return state[0]["log"]

    return step
