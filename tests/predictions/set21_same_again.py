"""Steps on a GPU with a planted cost: a module of the model computes the same several times in a step.

They were written with the advice that would be right, after the rule for it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, DEVICE, Step, case, sized, trained


class Speller(nn.Module):
    """Writes letters by looking at the sound at each one: a listener's memory, and a cell for each letter."""

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.listen = nn.Sequential(nn.Linear(80, width), nn.GELU(), nn.Linear(width, width))
        self.keys = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.values = nn.Linear(width, width)
        self.cell, self.head = nn.GRUCell(2 * width, width), nn.Linear(2 * width, letters)

    def forward(self, sound: torch.Tensor, y: torch.Tensor, once: bool) -> torch.Tensor:
        memory = self.listen(sound)
        seen = (self.keys(memory), self.values(memory)) if once else None
        state, outs = memory.mean(1), []
        for letter in self.letters(y).unbind(1):
            if seen is None:
                keys = self.keys(memory)  # cost: speller-memory
                values = self.values(memory)  # cost: speller-memory
            else:
                keys, values = seen
            share = (keys @ state.to(keys.dtype)[..., None]).softmax(1)
            context = (share.transpose(1, 2).to(values.dtype) @ values).squeeze(1)
            state = self.cell(torch.cat([letter, context.to(letter.dtype)], 1), state)
            outs.append(torch.cat([state, context.to(state.dtype)], 1))
        return self.head(torch.stack(outs, 1))


@case(
    "speller-memory",
    "a speller that listens projects the whole sound to keys and values again for each of the 32 letters it writes",
    "projected once, before the loop",
    "repeated-forward",
    may_precede=("kernel-loop", "operator-loop", "launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    batch, frames, letters = sized(64, 2), sized(400, 6), 32
    model = Speller(letters, sized(512, 8)).to(DEVICE)
    sound = torch.randn(batch, frames, 80, device=DEVICE)
    y = torch.randint(letters, (batch, sized(32, 4) + 1), device=DEVICE)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(sound, y[:, :-1], not bad).float().flatten(0, 1), y[:, 1:].flatten())

    return trained(model, loss)


class Denoiser(nn.Module):
    """Layers of a diffusion model that look at a text."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.heads = max(2, width // 64)
        for name in ("ask", "keys", "values", "join"):
            setattr(self, name, nn.ModuleList(nn.Linear(width, width) for _ in range(depth)))
        self.grow = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.shrink = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def seen(self, layer: int, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.split(self.keys[layer](text)), self.split(self.values[layer](text))  # cost: denoiser-text

    def forward(
        self, x: torch.Tensor, text: torch.Tensor, known: list[tuple[torch.Tensor, torch.Tensor]] | None
    ) -> torch.Tensor:
        for layer in range(len(self.ask)):
            k, v = self.seen(layer, text) if known is None else known[layer]
            y = F.scaled_dot_product_attention(self.split(self.ask[layer](x)), k, v)
            x = x + self.join[layer](y.transpose(1, 2).flatten(2))
            x = x + self.shrink[layer](F.gelu(self.grow[layer](x)))
        return x


@case(
    "denoiser-text",
    "each of the eight steps in which images are drawn projects the same text to keys and values in each layer",
    "projected once, before the steps",
    "repeated-forward",
    marked=True,
)
def _(bad: bool) -> Step:
    batch, places, length, width, depth = sized(8, 2), sized(256, 4), sized(512, 6), sized(1024, 16), 8
    model = Denoiser(width, depth).to(DEVICE, BF16)
    text = torch.randn(batch, length, width, device=DEVICE, dtype=BF16)
    noise = torch.randn(batch, places, width, device=DEVICE, dtype=BF16)

    @torch.no_grad()
    def step() -> torch.Tensor:
        x, known = noise, None if bad else [model.seen(layer, text) for layer in range(depth)]
        for _ in range(8):
            x = x - 0.1 * model(x, text, known)
        return x

    return step
