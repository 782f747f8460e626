"""Training steps with a planted cost, each beside the same step without it.

A case makes two steps out of the same model and data: the one with the cost and the one with its fix. What the fix wins
is measured; what tuiprof predicts for it is held against that by :mod:`tests.predictions.score`.

The lines that make a cost end in a comment with the name of the case. Without a GPU the steps of sets from the ninth on
are tiny, to see that they run. Sets from the seventh on were written without a look at the rules, what they predict, or
how the earlier sets were scored, if they do not say otherwise.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Step = Callable[[], Any]
BF16 = torch.bfloat16
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@dataclass(frozen=True)
class Case:
    """One planted cost."""

    name: str  # its name, ``model-cost``
    planted: str  # the cost, one sentence
    fix: str  # what to do about it
    rules: tuple[str, ...]  # rules of the advice that count as having found it
    build: Callable[[bool], Step]  # makes the step: with the cost (True) or with the fix
    #: Rules whose advice may rightly come first, because it wins more in that model.
    may_precede: tuple[str, ...] = ()
    says: str = ""  # a word of the finding, if these rules have others about what the fix leaves
    marked: bool = False  # the step has no optimizer: its end is marked by ``tuiprof.step()``
    cpu: bool = False  # it runs on a CPU, with one thread
    jax: bool = False  # it is in JAX; its step returns what has to be waited for

    def wait(self, last: Any) -> None:
        """Wait for what the last step returned, or for the device."""
        if self.jax:
            last.block_until_ready()
        elif not self.cpu and torch.cuda.is_available():
            torch.cuda.synchronize()

    def lines(self) -> list[str]:
        """Return the lines that make the cost, as ``file:line``: those with the comment ``cost: NAME``, if any."""
        return [
            f"{file.name}:{number}"
            for file in sorted(Path(__file__).parent.glob("*.py"))
            for number, line in enumerate(file.read_text().splitlines(), 1)
            if line.endswith(f"# cost: {self.name}")
        ]


CASES: dict[str, Case] = {}


def case(
    name: str, planted: str, fix: str, *rules: str, **options: Any
) -> Callable[[Callable[[bool], Step]], Any]:
    """Declare a case by the function that builds its steps."""

    def declare(build: Callable[[bool], Step]) -> Callable[[bool], Step]:
        if name in CASES:
            raise ValueError(f"two cases have the name {name}")
        CASES[name] = Case(name, planted, fix, rules, build, **options)
        return build

    return declare


def sized(full: int, tiny: int) -> int:
    """Return a size on a GPU, or without one."""
    return full if ON_GPU else tiny


def pinned(values: np.ndarray | torch.Tensor) -> torch.Tensor:
    """Return an array or tensor in memory that the GPU can copy from by itself."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return tensor.pin_memory() if ON_GPU else tensor


def sent(values: np.ndarray | torch.Tensor, *, non_blocking: bool = True) -> torch.Tensor:
    """Copy an array or tensor to the GPU by way of pinned memory, without waiting for it unless asked to."""
    return pinned(values).to(DEVICE, non_blocking=non_blocking)


def channels_last(value: Any) -> Any:
    """Return a model or images in that layout on a GPU; on a CPU, some of its convolutions crash."""
    return value.to(memory_format=torch.channels_last) if ON_GPU else value


# -- models -------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal attention, in one call or written out."""

    def __init__(self, width: int, heads: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.written_out = heads, written_out
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(c, dim=2)
        )
        if self.written_out:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            y = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class WrittenRMSNorm(nn.Module):
    """A root-mean-square norm in elementwise operators, as many repositories have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Activation of the feed-forward part, with a soft cap."""
    return 30.0 * torch.tanh(x * torch.sigmoid(1.702 * x) * y / 30.0)


class Block(nn.Module):
    """A decoder layer."""

    def __init__(
        self, width: int, heads: int, norm: Callable[[int], nn.Module], written_out: bool, gate: Any
    ) -> None:
        super().__init__()
        self.first, self.second = norm(width), norm(width)
        self.attention = Attention(width, heads, written_out)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.gate = gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        a, b = self.up(self.second(x)).chunk(2, dim=-1)
        return x + self.down(self.gate(a, b))


class Decoder(nn.Module):
    """A language model without its size."""

    def __init__(
        self,
        layers: int = 8,
        width: int = 1024,
        heads: int = 16,
        *,
        norm: Callable[[int], nn.Module] = nn.RMSNorm,
        written_out: bool = False,
        gate: Any = None,
        words: int = 8192,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        gate = gate or (lambda a, b: F.silu(a) * b)
        self.blocks = nn.ModuleList(Block(width, heads, norm, written_out, gate) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class UNet(nn.Module):
    """Convolutions with group norms, down and up again."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()

        def twice(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                *(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU()),
                *(nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU()),
            )

        self.down = nn.ModuleList([twice(3, width), twice(width, 2 * width), twice(2 * width, 4 * width)])
        self.up = nn.ModuleList([twice(6 * width, 2 * width), twice(3 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2) if stage is not self.down[-1] else x
        for stage, other in zip(self.up, reversed(kept[:-1]), strict=True):
            x = stage(torch.cat([F.interpolate(x, scale_factor=2), other], 1))
        return self.out(x)


class Bottleneck(nn.Module):
    """The block of a deep residual network."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
            *(nn.Conv2d(b, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
            *(nn.Conv2d(b, 4 * b, 1, bias=False), nn.BatchNorm2d(4 * b)),
        )
        self.side = (
            nn.Sequential(nn.Conv2d(a, 4 * b, 1, stride, bias=False), nn.BatchNorm2d(4 * b))
            if stride > 1 or a != 4 * b
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


def resnet50() -> nn.Sequential:
    """ResNet-50."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    a = 64
    for b, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(a, b, stride if i == 0 else 1))
            a = 4 * b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 1000))


class Recommender(nn.Module):
    """Many small tables and a small network: bound by the host."""

    def __init__(self, tables: int = 40, rows: int = 20_000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.net = nn.Sequential(
            nn.Linear(tables * width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)).squeeze(1)


# -- steps --------------------------------------------------------------------------------------------------


def adamw(model: nn.Module, **how: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} | how))


def trained(
    model: nn.Module,
    loss_of: Callable[[], torch.Tensor],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    autocast: bool = True,
    dtype: torch.dtype = BF16,
    after: Callable[[torch.Tensor], object] = lambda loss: None,
    last: Callable[[], object] = lambda: None,
    device: str = DEVICE,
) -> Step:
    """Train a model: ``after`` runs between backward and optimizer, ``last`` at the end of the step."""
    optimizer = optimizer or adamw(model)

    def step() -> None:
        with torch.autocast(device, dtype=dtype, enabled=autocast):
            loss = loss_of()
        loss.backward()
        after(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last()

    return step


def words(batch: int, length: int, count: int = 8192) -> torch.Tensor:
    return torch.randint(count, (batch, length + 1), device="cuda")


def language_step(
    model: nn.Module,
    batch: int = 8,
    length: int = 1024,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    autocast: bool = True,
    after: Callable[[torch.Tensor], object] = lambda loss: None,
    data: Callable[[], torch.Tensor] | None = None,
) -> Step:
    """Train a decoder on random words."""
    model = model.cuda()
    optimizer = optimizer or adamw(model)
    fixed = words(batch, length)
    data = data or (lambda: fixed)

    def step() -> None:
        x = data()
        with torch.autocast("cuda", dtype=BF16, enabled=autocast):
            out = model(x[:, :-1])
        loss = F.cross_entropy(out.float().flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        after(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def image_step(
    model: nn.Module,
    images: Callable[[], torch.Tensor],
    *,
    target: Callable[[torch.Tensor], torch.Tensor] | None = None,
    after: Callable[[torch.Tensor], object] = lambda loss: None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Step:
    """Train a network on images: to classify them, or to give them back."""
    model = model.cuda()
    optimizer = optimizer or adamw(model)
    labels = torch.randint(1000, (256,), device="cuda")

    def step() -> None:
        x = images()
        with torch.autocast("cuda", dtype=BF16):
            out = model(x)
            loss = F.mse_loss(out, target(x)) if target else F.cross_entropy(out, labels[: len(x)])
        loss.backward()
        after(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def same(batch: int, size: int, *, last: bool = True) -> Callable[[], torch.Tensor]:
    """Return one batch that lies on the device."""
    x = torch.randn(batch, 3, size, size, device="cuda")
    x = x.to(memory_format=torch.channels_last) if last else x
    return lambda: x


def resnet(last: bool = True) -> nn.Module:
    model = resnet50()
    return model.to(memory_format=torch.channels_last) if last else model


@case(
    "gpt-attention",
    "causal attention as product, masked softmax and product",
    "scaled_dot_product_attention(is_causal=True)",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    return language_step(Decoder(written_out=bad))


@case("gpt-norm", "an RMS norm written out in float32", "nn.RMSNorm", "unfused-norm", "elementwise-chain")
def _(bad: bool) -> Step:
    return language_step(Decoder(norm=WrittenRMSNorm if bad else nn.RMSNorm))


@case(
    "gpt-gate",
    "a gated activation with a soft cap, each operator a kernel",
    "torch.compile of that function",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    return language_step(Decoder(gate=gated if bad else torch.compile(gated, dynamic=False)))


@case("gpt-tf32", "a float32 model on TF32", "bf16 autocast", "mixed-precision", "fp32-matmul")
def _(bad: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    return language_step(Decoder(), batch=4, autocast=not bad)


@case("gpt-fp32", "float32 products in full precision", 'set_float32_matmul_precision("high")', "fp32-matmul")
def _(bad: bool) -> Step:
    model = language_step(Decoder(layers=4), batch=4, autocast=False)

    def step() -> None:
        torch.set_float32_matmul_precision("highest" if bad else "high")
        model()

    return step


@case("gpt-foreach", "AdamW as it is by default (foreach)", "fused=True", "unfused-optimizer")
def _(bad: bool) -> Step:
    model = Decoder(layers=16).cuda()
    return language_step(model, batch=2, optimizer=adamw(model, fused=not bad, foreach=bad))


@case(
    "gpt-norms",
    "norm of each gradient read with .item()",
    "clip_grad_norm_(foreach=True)",
    "item-each-step",
    "kernel-loop",
)
def _(bad: bool) -> Step:
    model = Decoder(layers=6).cuda()

    def clip(_loss: torch.Tensor) -> None:
        if not bad:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            return
        total = sum(p.grad.norm(2).item() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(min(1.0, 1.0 / (total + 1e-6)))

    return language_step(model, batch=2, after=clip)


@case("gpt-synchronize", "torch.cuda.synchronize() twice a step, to time it", "none", "explicit-wait")
def _(bad: bool) -> Step:
    inner = language_step(Decoder(layers=4, width=512, heads=8), batch=4, length=512)

    def step() -> None:
        if bad:
            torch.cuda.synchronize()
        inner()
        if bad:
            torch.cuda.synchronize()

    return step


@case(
    "gpt-growing",
    "each batch has another length, and empty_cache() after each",
    "padded to one length, never emptied",
    "allocator-in-steps",
)
def _(bad: bool) -> Step:
    lengths = itertools.cycle([900, 1000, 950, 1024, 850]) if bad else itertools.cycle([1024])
    step = language_step(Decoder(layers=4), batch=4, data=lambda: words(4, next(lengths)))

    def emptied() -> None:
        step()
        torch.cuda.empty_cache()

    return emptied if bad else step


@case("resnet50-channels", "ResNet-50 channels first", "channels_last", "channels-last")
def _(bad: bool) -> Step:
    return image_step(resnet(not bad), same(64, 224, last=not bad))


def batches(batch: int, size: int, *, pinned: bool, blocking: bool) -> Callable[[], torch.Tensor]:
    host = [torch.randn(batch, 3, size, size) for _ in range(2)]
    host = [x.pin_memory() for x in host] if pinned else host
    turn = itertools.cycle(host)
    return lambda: next(turn).to("cuda", non_blocking=not blocking).to(memory_format=torch.channels_last)


@case(
    "resnet50-pageable",
    "a batch of 77 MB is copied from pageable memory",
    "pinned, non_blocking=True",
    "pageable-memory",
)
def _(bad: bool) -> Step:
    return image_step(resnet(), batches(128, 224, pinned=not bad, blocking=bad))


@case("resnet50-blocking", "a pinned batch, copied with .to(device)", "non_blocking=True", "blocking-copy")
def _(bad: bool) -> Step:
    return image_step(resnet(), batches(128, 224, pinned=True, blocking=bad))


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Items that take Python some time to make."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        total = 0
        for i in range(self.turns):
            total += i & index
        return torch.full((3, 64, 64), float(total % 7))


def loaded(workers: int, turns: int, batch: int = 64) -> Callable[[], torch.Tensor]:
    loader = torch.utils.data.DataLoader(Slow(turns), batch, num_workers=workers, pin_memory=True)
    batches = iter(loader)
    return lambda: next(batches).to("cuda", non_blocking=True).to(memory_format=torch.channels_last)


@case(
    "unet-loader", "DataLoader without workers, half a millisecond an item", "num_workers=8", "loader-workers"
)
def _(bad: bool) -> Step:
    return image_step(UNet(), loaded(0 if bad else 8, 10_000), target=lambda x: x)


@case("unet-isfinite", "if not isfinite(loss) in every step", "no check", "item-each-step", "nan-check")
def _(bad: bool) -> Step:
    def check(loss: torch.Tensor) -> None:
        if bad and not torch.isfinite(loss):
            raise ValueError("not finite")

    return image_step(UNet(96), same(16, 128), target=lambda x: x, after=check)


@case(
    "unet-single",
    "AdamW(foreach=False)",
    "fused=True",
    "single-tensor-optimizer",
    may_precede=("channels-last",),
)
def _(bad: bool) -> Step:
    model = resnet().cuda()
    return image_step(model, same(32, 160), optimizer=adamw(model, fused=not bad, foreach=False))


def recommended(
    model: nn.Module,
    *,
    before: Callable[[], object] = lambda: None,
    choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> Step:
    model = model.cuda()
    optimizer = adamw(model)
    ids = torch.randint(20_000, (8192, 40), device="cuda")
    clicked = torch.rand(8192, device="cuda").round()

    def step() -> None:
        before()
        out = model(ids)
        loss = choose(out, clicked) if choose else F.binary_cross_entropy_with_logits(out, clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@case(
    "rec-python",
    "a Python loop over a dictionary in every step",
    "without it",
    "python-time",
    may_precede=("launch-bound", "elementwise-chain", "kernel-loop"),
)
def _(bad: bool) -> Step:
    table = {i: i % 97 for i in range(60_000)}

    def count() -> int:
        return sum(value for key, value in table.items() if key & 1)

    return recommended(Recommender(), before=count if bad else lambda: None)


@case(
    "rec-collect",
    "gc.collect() in every step",
    "never",
    "garbage-collector",
    "python-time",
    may_precede=("launch-bound", "elementwise-chain", "kernel-loop"),
)
def _(bad: bool) -> Step:
    kept = [{i: [i]} for i in range(40_000)]  # what a real program holds
    return recommended(Recommender(), before=gc.collect if bad else lambda: len(kept))


@case(
    "gpt-mask", "tokens picked with a boolean mask", "torch.where and a mean with weights", "size-from-device"
)
def _(bad: bool) -> Step:
    model = Decoder(layers=2, width=512, heads=8, words=4096).cuda()
    optimizer = adamw(model)
    x = words(16, 512, 4096)
    mask = torch.rand(16, 512, device="cuda") < 0.5

    def step() -> None:
        with torch.autocast("cuda", dtype=BF16):
            out = model(x[:, :-1])
        if bad:
            loss = F.cross_entropy(out[mask].float(), x[:, 1:][mask])
        else:
            each = F.cross_entropy(out.float().flatten(0, 1), x[:, 1:].flatten(), reduction="none")
            loss = (each * mask.flatten()).sum() / mask.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@case(
    "small-graphs",
    "a small decoder, operator by operator",
    'torch.compile(mode="reduce-overhead")',
    "launch-bound",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    model = Decoder(layers=12, width=128, heads=4, words=512).cuda()
    whole: Any = model if bad else torch.compile(model, mode="reduce-overhead")
    return language_step_of(whole, model)


def language_step_of(whole: Any, model: nn.Module) -> Step:
    optimizer = adamw(model)
    x = words(4, 64, 512)

    def step() -> None:
        with torch.autocast("cuda", dtype=BF16):
            out = whole(x[:, :-1])
        loss = F.cross_entropy(out.float().flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@case(
    "small-scalars",
    "twenty-four torch.tensor(x, device='cuda') a step",
    "one tensor of them",
    "small-copy",
    may_precede=("launch-bound", "elementwise-chain", "kernel-loop"),
)
def _(bad: bool) -> Step:
    step = language_step_of(model := Decoder(layers=8, width=128, heads=4, words=512).cuda(), model)

    def scalars() -> None:
        if bad:
            for i in range(24):
                torch.tensor(float(i), device="cuda")
        else:
            torch.arange(24.0, device="cuda")
        step()

    return scalars


@case(
    "serve-read",
    "an inference loop that reads each batch's answers",
    "read a batch later",
    "array-read",
    "pageable-memory",
    may_precede=("launch-bound", "channels-last"),
    marked=True,
)
def _(bad: bool) -> Step:
    model = resnet().cuda().eval().to(BF16)
    x = torch.randn(64, 3, 224, 224, device="cuda", dtype=BF16).to(memory_format=torch.channels_last)
    pinned = [torch.empty(64, 1000, dtype=BF16, pin_memory=True) for _ in range(2)]
    turn = itertools.cycle(pinned)

    @torch.inference_mode()
    def step() -> None:
        out = model(x)
        if bad:
            out.cpu().argmax(-1)
        else:
            next(turn).copy_(out, non_blocking=True)

    return step


@case(
    "both-attention",
    "attention written out, AdamW by default, and loss.item()",
    "scaled_dot_product_attention",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    model = Decoder(layers=8, width=768, heads=12, written_out=bad).cuda()
    return language_step(
        model, optimizer=adamw(model, fused=False, foreach=True), after=lambda loss: loss.item()
    )


@case(
    "both-item",
    "loss.item() amid the step, beside AdamW(foreach=False)",
    "never read",
    "item-each-step",
    may_precede=("single-tensor-optimizer", "launch-bound"),
)
def _(bad: bool) -> Step:
    model = Decoder(layers=8, width=512, heads=8).cuda()
    return language_step(
        model,
        batch=4,
        length=512,
        optimizer=adamw(model, fused=False, foreach=False),
        after=(lambda loss: loss.item()) if bad else (lambda loss: None),
    )


def forever(step: Step, count: int) -> Iterator[int]:
    """Run steps one after the other."""
    for number in range(count):
        step()
        yield number
