"""What people do who train and serve small models on a CPU: tables, graphs, games, pictures, sounds and texts.

``fans-pruned`` is a server. Every fix computes what its step computes, up to rounding; only ``bids-iter`` draws other
rows than its fix. Next to nothing can be won in ``prototypes-sinkhorn`` and ``cheetah-zeros``. No rule was made for the
costs of ``delays-experts``, ``fans-pruned``, ``molecules-dense`` and ``faces-queue`` then: the most similar are named,
too. Where bfloat16 may precede, it was measured to save more.
"""

from __future__ import annotations

import collections
import itertools
import os
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, Dataset

from tests.predictions.cases import Step, case
from tests.predictions.set3_devices import jax_case
from tests.predictions.set24_on_a_cpu import mlp, trained

# -- tables -------------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """A mixture of experts, of which each row has two."""

    def __init__(self, width: int, count: int, all_of_them: bool) -> None:
        super().__init__()
        self.all_of_them, self.norm, self.gate = all_of_them, nn.LayerNorm(width), nn.Linear(width, count)
        self.experts = nn.ModuleList(mlp(width, 4 * width, width, between=nn.GELU) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        scores, chosen = self.gate(y).topk(2, 1)
        shares = torch.zeros(len(x), len(self.experts)).scatter(1, chosen, scores.softmax(1))
        if self.all_of_them:
            every = torch.stack([expert(y) for expert in self.experts], 1)  # cost: delays-experts
            return x + (every * shares[..., None]).sum(1)  # cost: delays-experts
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).any(1).nonzero().squeeze(1)
            x = x.index_add(0, rows, expert(y[rows]) * shares[rows, i, None])
        return x


@case(
    "delays-experts",
    "each of four experts is called on all rows, though a row gives two of them a share that is not zero",
    "each expert called on its rows",
    "all-experts",
    "host-operators",
    "operator-loop",
    cpu=True,
)
def _(bad: bool) -> Step:
    model = nn.Sequential(nn.Linear(40, 96), Experts(96, 4, bad), Experts(96, 4, bad), nn.Linear(96, 1))
    x, late = torch.randn(384, 40), torch.randn(384)
    return trained(model, lambda: F.smooth_l1_loss(model(x).squeeze(1), late))


class Bids(Dataset[tuple[np.ndarray, np.float32]]):
    """The bids of an auction."""

    def __init__(self, count: int) -> None:
        drawn = np.random.default_rng(0)
        self.x = drawn.standard_normal((count, 32), np.float32)
        self.y = drawn.random(count, np.float32)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.float32]:
        return self.x[index], self.y[index]


@case(
    "bids-iter",
    "each step takes next(iter(loader)), which shuffles all 150 000 rows for one batch of them",
    "one iterator for an epoch",
    "loader-restarts",
    "loader-workers",
    may_precede=("cpu-bfloat16",),
    cpu=True,
)
def _(bad: bool) -> Step:
    loader = DataLoader(Bids(150_000), 512, shuffle=True)
    model = mlp(32, 384, 384, 384, 1, between=nn.SiLU)

    def epochs() -> Any:
        while True:
            yield from loader

    batches = epochs()

    def loss() -> torch.Tensor:
        x, y = next(iter(loader)) if bad else next(batches)  # cost: bids-iter
        return F.huber_loss(model(x).squeeze(1), y)

    return trained(model, loss)


# -- texts and scores ---------------------------------------------------------------------------------------


class TreeLSTM(nn.Module):
    """A child-sum Tree-LSTM, whose nodes are the words of a dependency tree."""

    def __init__(self, words: int, width: int, node_by_node: bool) -> None:
        super().__init__()
        self.node_by_node, self.width = node_by_node, width
        self.words, self.inputs = nn.Embedding(words, width), nn.Linear(width, 4 * width)
        self.gates = nn.Linear(width, 3 * width, bias=False)
        self.forget = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, 5)

    def forward(self, ids: torch.Tensor, trees: list[list[int]]) -> torch.Tensor:
        """Return the scores of trees, each as the parents of its words; a parent stands behind its children."""
        x = self.words(ids)
        rows = list(x) if self.node_by_node else list(self.inputs(x))
        roots, start = [], 0
        for parents in trees:
            children: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in parents]
            for node, parent in enumerate(parents):
                row = rows[start + node]
                if self.node_by_node:
                    row = self.inputs(row)  # cost: treebank-inputs
                state = self.node(row, children[node])
                if parent >= 0:
                    children[parent].append(state)
            roots.append(state[0])
            start += len(parents)
        return self.head(torch.stack(roots))

    def node(
        self, row: torch.Tensor, children: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        given, asked = row.split((3 * self.width, self.width))
        if not children:
            i, o, u = given.chunk(3)
            c = i.sigmoid() * u.tanh()
            return o.sigmoid() * c.tanh(), c
        h, c = (torch.stack(part) for part in zip(*children, strict=True))
        i, o, u = (given + self.gates(h.sum(0))).chunk(3)
        kept = ((asked + self.forget(h)).sigmoid() * c).sum(0)
        c = i.sigmoid() * u.tanh() + kept
        return o.sigmoid() * c.tanh(), c


@case(
    "treebank-inputs",
    "a Tree-LSTM multiplies the vector of each word by the weights when it comes to the word",
    "the vectors of all words at once",
    "operator-loop",
    "kernel-loop",
    cpu=True,
)
def _(bad: bool) -> Step:
    drawn = random.Random(0)
    trees = []
    for _ in range(5):
        count = drawn.randint(12, 20)
        trees.append([drawn.randint(node + 1, min(node + 5, count - 1)) for node in range(count - 1)] + [-1])
    model = TreeLSTM(3000, 150, bad)
    ids, y = torch.randint(3000, (sum(map(len, trees)),)), torch.randint(5, (5,))
    return trained(model, lambda: F.cross_entropy(model(ids, trees), y))


class Keyboard(nn.Module):
    """Says which word comes next."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(words, width), nn.GRU(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.words(ids))[0])


@case(
    "keyboard-softmax",
    "the loss of a language model is the logarithm of a softmax, written as two operators",
    "cross_entropy",
    "log-of-softmax",
    may_precede=("cpu-bfloat16",),
    cpu=True,
)
def _(bad: bool) -> Step:
    model, ids = Keyboard(6000, 96), torch.randint(6000, (16, 21))

    def loss() -> torch.Tensor:
        scores, y = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        if bad:
            return F.nll_loss(torch.log(torch.softmax(scores, -1)), y)  # cost: keyboard-softmax
        return F.cross_entropy(scores, y)

    return trained(model, loss)


class Apart(nn.Module):
    """What attention adds to its scores for how far two notes are apart."""

    def __init__(self, heads: int, furthest: int) -> None:
        super().__init__()
        self.furthest, self.weights = furthest, nn.Embedding(2 * furthest + 1, heads)
        self.known: dict[int, torch.Tensor] = {}

    def places(self, length: int) -> torch.Tensor:
        far = self.furthest
        rows = [
            [max(-far, min(far, j - i)) + far for j in range(length)]  # cost: chords-relative
            for i in range(length)
        ]
        return torch.tensor(rows)  # cost: chords-relative

    def forward(self, length: int, kept: bool) -> torch.Tensor:
        places = self.known.get(length)
        if places is None:
            places = self.places(length)  # cost: chords-relative
            if kept:
                self.known[length] = places
        return self.weights(places).permute(2, 0, 1)


class Music(nn.Module):
    """A transformer with relative places, which names chords."""

    def __init__(self, chords: int, width: int, heads: int, depth: int, kept: bool) -> None:
        super().__init__()
        self.heads, self.kept = heads, kept
        self.grow, self.head = nn.Linear(24, width), nn.Linear(width, chords)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.wide = nn.ModuleList(mlp(width, 2 * width, width, between=nn.GELU) for _ in range(depth))
        self.apart = nn.ModuleList(Apart(heads, 32) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.grow(x)
        for i, (qkv, out, wide, apart) in enumerate(
            zip(self.qkv, self.out, self.wide, self.apart, strict=True)
        ):
            q, k, v = qkv(self.norms[2 * i](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=apart(x.shape[1], self.kept))
            x = x + out(seen.transpose(1, 2).flatten(2))
            x = x + wide(self.norms[2 * i + 1](x))
        return self.head(x)


@case(
    "chords-relative",
    "each layer of a transformer makes the table of how far places are apart by a list comprehension, in every step",
    "made once",
    "python-time",
    "repeated-in-layers",
    cpu=True,
)
def _(bad: bool) -> Step:
    model = Music(60, 96, 4, 3, not bad)
    x, y = torch.randn(6, 100, 24), torch.randint(60, (6, 100))
    return trained(model, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten()))


# -- physics and chemistry ----------------------------------------------------------------------------------


@case(
    "orbits-stages",
    "a neural ODE calls its network again for the start of each step, where the step before has called it at its end",
    "the last slope of a step is the first of the next",
    "repeated-forward",
    may_precede=("cpu-bfloat16",),
    cpu=True,
)
def _(bad: bool) -> Step:
    field, count, h = mlp(6, 128, 128, 6, between=nn.Tanh), 8, 0.1
    start, end = torch.randn(256, 6), torch.randn(256, 6)

    def loss() -> torch.Tensor:
        """Return the loss of a solution by the pairs of Bogacki and Shampine."""
        y, wrong = start, torch.zeros(())
        first = field(y)
        for _ in range(count):
            if bad:
                first = field(y)  # cost: orbits-stages
            second = field(y + h / 2 * first)
            third = field(y + 3 * h / 4 * second)
            y = y + h / 9 * (2 * first + 3 * second + 4 * third)
            last = field(y)
            wrong = wrong + (h * (-5 / 72 * first + second / 12 + third / 9 - last / 8)).square().mean()
            first = last
        return F.mse_loss(y, end) + wrong

    return trained(field, loss)


class Molecules(nn.Module):
    """A message-passing network whose messages are sums over the bonds of an atom."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(20, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = mlp(width, width, 1)

    def forward(
        self, kinds: torch.Tensor, bonds: torch.Tensor, near: torch.Tensor | None, molecules: int
    ) -> torch.Tensor:
        x = self.atoms(kinds)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            if near is not None:
                heard = near @ x  # cost: molecules-dense
            else:
                heard = torch.zeros_like(x).index_add(0, bonds[1], x.index_select(0, bonds[0]))
            x = x + F.relu(norm(layer(torch.cat([x, heard], 1))))
        return self.head(x.view(molecules, -1, x.shape[1]).sum(1)).squeeze(1)


@case(
    "molecules-dense",
    "the adjacency matrices of a batch of molecules are set along the diagonal of a dense one, almost all of it zeros",
    "messages summed by index_add",
    "one-hot-product",
    "host-operators",
    may_precede=("cpu-bfloat16",),
    cpu=True,
)
def _(bad: bool) -> Step:
    count, atoms = 36, 16
    model, drawn = Molecules(128, 3), random.Random(0)
    single, pairs = [], []
    for i in range(count):
        matrix = torch.zeros(atoms, atoms)
        bound = {(a, drawn.randrange(a)) for a in range(1, atoms)} | {(atoms - 1, 0)}
        for a, b in sorted(bound):
            matrix[a, b] = matrix[b, a] = 1.0
            pairs += [(i * atoms + a, i * atoms + b), (i * atoms + b, i * atoms + a)]
        single.append(matrix)
    bonds = torch.tensor(pairs).T.contiguous()
    kinds, y = torch.randint(20, (count * atoms,)), torch.randn(count)

    def loss() -> torch.Tensor:
        near = torch.block_diag(*single) if bad else None  # cost: molecules-dense
        return F.l1_loss(model(kinds, bonds, near, count), y)

    return trained(model, loss)


# -- games --------------------------------------------------------------------------------------------------

Seen = tuple[np.ndarray, int, float, np.ndarray, bool]


@case(
    "lander-deque",
    "the rows of a batch are drawn from a deque of 500 000, which walks to each of them from one of its ends",
    "a list whose oldest row is replaced",
    "python-time",
    may_precede=("cpu-bfloat16",),
    cpu=True,
)
def _(bad: bool) -> Step:
    count, batch = 500_000, 512
    drawn, rows = np.random.default_rng(0), random.Random(0)
    states = list(drawn.standard_normal((count + 1, 8), np.float32))
    past: list[Seen] = [
        (now, i % 4, i % 7 / 7, later, i % 200 == 0)
        for i, (now, later) in enumerate(itertools.pairwise(states))
    ]
    queue, ring, oldest = collections.deque(past if bad else (), count), past, [0]
    online, target = mlp(8, 384, 384, 4), mlp(8, 384, 384, 4)
    target.load_state_dict(online.state_dict())

    def sample() -> list[Seen]:
        if bad:
            return rows.sample(queue, batch)  # cost: lander-deque
        return [ring[(oldest[0] + i) % count] for i in rows.sample(range(count), batch)]

    def play() -> None:
        now, later = drawn.standard_normal((2, 8), np.float32)
        with torch.no_grad():
            action = int(online(torch.from_numpy(now)).argmax())
        if bad:
            queue.append((now, action, 0.1, later, False))
        else:
            ring[oldest[0]] = (now, action, 0.1, later, False)
            oldest[0] = (oldest[0] + 1) % count

    def loss() -> torch.Tensor:
        play()
        now, action, reward, later, done = zip(*sample(), strict=True)
        with torch.no_grad():
            best = target(torch.from_numpy(np.stack(later))).amax(1)
            wanted = torch.tensor(reward) + 0.99 * best * (1 - torch.tensor(done, dtype=torch.float32))
        values = online(torch.from_numpy(np.stack(now))).gather(1, torch.tensor(action)[:, None])
        return F.smooth_l1_loss(values.squeeze(1), wanted)

    return trained(online, loss)


@case(
    "cheetah-zeros",
    "the gradients of the critics are filled with zeros in every step, not dropped: next to nothing",
    "set_to_none=True",
    "zeroed-gradients",
    cpu=True,
)
def _(bad: bool) -> Step:
    critics = nn.ModuleList(mlp(23, 256, 256, 1) for _ in range(2))
    actor = nn.Sequential(mlp(17, 256, 256, 6), nn.Tanh())
    of_critics = torch.optim.Adam(critics.parameters(), 3e-4, fused=True)
    of_actor = torch.optim.Adam(actor.parameters(), 3e-4, fused=True)
    now, later = torch.randn(2, 400, 17)
    action, reward = torch.rand(400, 6) * 2 - 1, torch.randn(400, 1)

    def value(which: int, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return critics[which](torch.cat([states, actions], 1))

    def step() -> None:
        with torch.no_grad():
            chosen = (actor(later) + 0.2 * torch.randn(400, 6).clamp(-0.5, 0.5)).clamp(-1, 1)
            wanted = reward + 0.99 * torch.min(value(0, later, chosen), value(1, later, chosen))
        loss = F.mse_loss(value(0, now, action), wanted) + F.mse_loss(value(1, now, action), wanted)
        of_critics.zero_grad(set_to_none=not bad)  # cost: cheetah-zeros
        loss.backward()
        of_critics.step()
        of_actor.zero_grad(set_to_none=not bad)  # cost: cheetah-zeros
        (-value(0, now, actor(now)).mean()).backward()
        of_actor.step()

    return step


# -- pictures -----------------------------------------------------------------------------------------------


def gaussian(size: int, deviation: float) -> np.ndarray:
    """Return the weights of a square window."""
    line = np.exp(-((np.arange(size) - size // 2) ** 2) / (2 * deviation**2))
    line /= line.sum()
    return np.outer(line, line)


def similarity(x: torch.Tensor, y: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """Return the structural similarity of pictures of one channel."""
    x, y = x.to(window.dtype), y.to(window.dtype)  # cost: scans-ssim
    mean_x, mean_y = F.conv2d(x, window), F.conv2d(y, window)
    spread_x = F.conv2d(x * x, window) - mean_x**2  # cost: scans-ssim
    spread_y = F.conv2d(y * y, window) - mean_y**2  # cost: scans-ssim
    both = F.conv2d(x * y, window) - mean_x * mean_y  # cost: scans-ssim
    above = (2 * mean_x * mean_y + 1e-4) * (2 * both + 9e-4)
    return (above / ((mean_x**2 + mean_y**2 + 1e-4) * (spread_x + spread_y + 9e-4))).mean()


@case(
    "scans-ssim",
    "the window of a structural similarity comes from NumPy as float64, so the loss is computed in float64",
    "the window in float32",
    "float64",
    cpu=True,
)
def _(bad: bool) -> Step:
    window = torch.from_numpy(gaussian(11, 1.5))[None, None]  # cost: scans-ssim
    window = window if bad else window.float()
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(16, 1, 3, padding=1))
    clean = torch.rand(4, 1, 72, 72)
    noisy = clean + 0.1 * torch.randn_like(clean)

    def loss() -> torch.Tensor:
        out = noisy - net(noisy)
        return 0.2 * F.l1_loss(out, clean) + 0.8 * (1 - similarity(out, clean, window))

    return trained(net, loss)


def small_network(width: int, out: int) -> nn.Sequential:
    """Return a convolutional network for pictures of one channel."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(4 * width, out),
    )


@case(
    "faces-queue",
    "the queue of MoCo is made anew by torch.cat in every step, which copies its 65 536 keys for 32 new ones",
    "the oldest keys overwritten in their place",
    "growing-cat",
    "host-operators",
    "page-faults",
    cpu=True,
)
def _(bad: bool) -> Step:
    model, slow, batch = small_network(16, 128), small_network(16, 128), 32
    slow.load_state_dict(model.state_dict())
    keys, at, x = [F.normalize(torch.randn(65_536, 128), dim=1)], [65_536], torch.randn(batch, 1, 48, 48)

    @torch.no_grad()
    def known(x: torch.Tensor) -> torch.Tensor:
        for a, b in zip(slow.parameters(), model.parameters(), strict=True):
            a.lerp_(b, 0.001)
        return F.normalize(slow(x), dim=1)

    @torch.no_grad()
    def enqueue(new: torch.Tensor) -> None:
        if bad:
            keys[0] = torch.cat([new, keys[0][: -len(new)]])  # cost: faces-queue
        else:
            at[0] = (at[0] - len(new)) % len(keys[0])
            keys[0][at[0] : at[0] + len(new)] = new

    new: list[torch.Tensor] = []

    def loss() -> torch.Tensor:
        query = F.normalize(model(x), dim=1)
        new[:] = [known(x.flip(-1))]
        right, wrong = (query * new[0]).sum(1, keepdim=True), query @ keys[0].T
        scores = torch.cat([right, wrong], 1) / 0.07
        return F.cross_entropy(scores, torch.zeros(batch, dtype=torch.long))

    return trained(model, loss, last=lambda: enqueue(new[0]))


@case(
    "prototypes-sinkhorn",
    "the codes of SwAV are computed with gradients on and detached after: next to nothing",
    "under torch.no_grad()",
    "unused-graph",
    cpu=True,
)
def _(bad: bool) -> Step:
    net, prototypes = small_network(16, 64), nn.Linear(64, 100, bias=False)
    x = torch.randn(64, 1, 48, 48)

    def codes(scores: torch.Tensor) -> torch.Tensor:
        q = (scores / 0.05).exp().T
        q = q / q.sum()
        for _ in range(3):
            q = q / q.sum(1, keepdim=True) / len(q)
            q = q / q.sum(0, keepdim=True) / q.shape[1]
        return (q * q.shape[1]).T

    def loss() -> torch.Tensor:
        one, two = (prototypes(F.normalize(net(view), dim=1)) for view in (x, x.flip(-1)))
        with torch.set_grad_enabled(bad):
            right = codes(one).detach(), codes(two).detach()  # cost: prototypes-sinkhorn
        swapped = zip(right, (two, one), strict=True)
        return -torch.stack([(q * F.log_softmax(p / 0.1, 1)).sum(1).mean() for q, p in swapped]).sum()

    return trained(nn.ModuleList((net, prototypes)), loss)


# -- sounds -------------------------------------------------------------------------------------------------


@case(
    "fans-pruned",
    "a pruned network is served with its masks: each call multiplies the weights by them again",
    "prune.remove",
    "computed-weights",
    "repeated-forward",
    "repeated-in-layers",
    "host-operators",
    marked=True,
    may_precede=("cpu-bfloat16",),
    cpu=True,
)
def _(bad: bool) -> Step:
    model = mlp(640, 1536, 1536, 64, 1536, 1536, 640).eval()
    for layer in model:
        if isinstance(layer, nn.Linear):
            prune.l1_unstructured(layer, "weight", 0.8)
            if not bad:
                prune.remove(layer, "weight")
    sound = torch.randn(40_000)
    window = torch.hann_window(1024)

    @torch.inference_mode()
    def step() -> float:
        """Return how odd a fan sounds: how badly its spectrum is made again."""
        power = torch.stft(sound, 1024, 512, window=window, return_complex=True).abs()[:128]
        frames = power.add(1e-6).log().T.unfold(0, 5, 1).flatten(1)
        return F.mse_loss(model(frames), frames).item()  # cost: fans-pruned

    return step


# -- JAX ----------------------------------------------------------------------------------------------------


@jax_case(
    "glyphs-crops",
    "the update is compiled, but pictures are cropped at random one after the other outside of jit",
    "all crops in the compiled function, by vmap",
    "uncompiled-step",
    "operator-loop",
    "python-time",
    cpu=True,
)
def _(jax: Any, jnp: Any, bad: bool) -> Any:
    os.environ |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1"}  # one thread
    keys = iter(jax.random.split(jax.random.key(0), 8))
    widths, count, size = (784, 1536, 1536, 26), 64, 28
    weights = [
        {"w": jax.random.normal(next(keys), (a, b)) * a**-0.5, "b": jnp.zeros(b)}
        for a, b in itertools.pairwise(widths)
    ]
    pictures = jax.random.normal(next(keys), (count, size + 4, size + 4))
    y, places = jax.random.randint(next(keys), (count,), 0, 26), np.random.default_rng(0)

    def crop(picture: Any, place: Any) -> Any:
        return jax.lax.dynamic_slice(picture, (place[0], place[1]), (size, size))

    def loss(weights: Any, x: Any) -> Any:
        x = x.reshape(count, -1)
        for layer in weights[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        scores = jax.nn.log_softmax(x @ weights[-1]["w"] + weights[-1]["b"])
        return -jnp.mean(jnp.take_along_axis(scores, y[:, None], 1))

    def better(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 1e-2 * g, weights, jax.grad(loss)(weights, x))

    cropped, whole = jax.jit(better), jax.jit(lambda w, p, at: better(w, jax.vmap(crop)(p, at)))
    state = [weights]

    def step() -> Any:
        at = places.integers(0, 5, (count, 2), np.int32)
        if bad:
            x = jnp.stack([crop(pictures[i], at[i]) for i in range(count)])  # cost: glyphs-crops
            state[0] = cropped(state[0], x)
        else:
            state[0] = whole(state[0], pictures, at)
        return state[0][-1]["b"]

    return step
