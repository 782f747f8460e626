"""Steps of data-parallel training with a planted cost, for two GPUs of one host.

Each process builds the same step; :mod:`tests.predictions.ranks` starts them. Without a GPU everything is tiny, to see
that it runs. They were written without a look at the rules, what they predict, or how other sets were scored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from tests.predictions.cases import BF16, Case, Decoder, Step, UNet, adamw, resnet50, sized, trained


@dataclass(frozen=True)
class RankCase(Case):
    """One planted cost of several processes."""

    rank: int = 0  # the process whose trace is scored

    def wait(self, last: Any) -> None:
        """Wait for the device of this process."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()


RANK_CASES: dict[str, RankCase] = {}


def rank_case(name: str, planted: str, fix: str, *rules: str, **options: Any) -> Callable[[Any], Any]:
    """Declare a case by the function that builds its steps."""

    def declare(build: Callable[[bool], Step]) -> Callable[[bool], Step]:
        if name in RANK_CASES:
            raise ValueError(f"two cases have the name {name}")
        RANK_CASES[name] = RankCase(name, planted, fix, rules, build, **options)
        return build

    return declare


def here() -> torch.device:
    """Return the device of this process."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def parallel(model: nn.Module, **how: Any) -> DistributedDataParallel:
    """Return a model whose gradients are averaged over all processes."""
    model = model.to(here())
    ids = [here().index] if here().type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, **how)


def averaged(model: nn.Module, loss_of: Callable[[], torch.Tensor], **how: Any) -> Step:
    """Train a model on the device of this process; the options are those of :func:`trained`."""
    return trained(model, loss_of, device=here().type, **how)


def decoder(layers: int, width: int) -> nn.Module:
    return Decoder(sized(layers, 2), sized(width, 64), sized(width // 64, 2), words=sized(8192, 256))


def texts(batch: int, length: int) -> torch.Tensor:
    return torch.randint(sized(8192, 256), (sized(batch, 2), sized(length, 16) + 1), device=here())


def guessed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the loss of a decoder."""
    return F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten())


@rank_case(
    "ranks-accumulate",
    "gradients of four micro-batches are added up, and averaged over both GPUs after each of them",
    "no_sync() for all but the last one",
    "gradient-sync-each-pass",  # a rule that was written afterwards
    "exposed-collectives",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = parallel(decoder(6, 2048))
    optimizer = adamw(model)
    parts = [texts(2, 512) for _ in range(4)]

    def step() -> None:
        for i, x in enumerate(parts):
            apart = contextlib.nullcontext() if bad or i == len(parts) - 1 else model.no_sync()
            with apart:
                with torch.autocast(here().type, dtype=BF16):
                    loss = guessed(model, x) / len(parts)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@rank_case(
    "ranks-buckets",
    "bucket_cap_mb=0.5, so that nearly each weight is averaged by a call of its own",
    "the default of 25 MB",
    "small-buckets",  # a rule that was written afterwards
    "exposed-collectives",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    model = parallel(decoder(16, 512), **({"bucket_cap_mb": 0.5} if bad else {}))
    x = texts(8, 256)
    return averaged(model, lambda: guessed(model, x))


@rank_case(
    "ranks-log",
    "the loss is averaged over the GPUs and read with .item() in every step, for the log",
    "summed on the GPU, averaged and read once an epoch",
    "item-each-step",
    "exposed-collectives",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    model = parallel(decoder(8, 768))
    x, total = texts(8, 256), torch.zeros((), device=here())
    log: list[float] = []

    def note(loss: torch.Tensor) -> None:
        mean = loss.detach().clone()
        if bad:
            dist.all_reduce(mean)
            log.append(mean.item() / dist.get_world_size())
        else:
            total.add_(mean)

    return averaged(model, lambda: guessed(model, x), after=note)


@rank_case(
    "ranks-buffers",
    "the 159 buffers of the batch norms of a ResNet-50 are sent to the other GPU before each forward pass",
    "broadcast_buffers=False",
    "broadcast-buffers",  # a rule that was written afterwards
    "exposed-collectives",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    size = sized(160, 32)
    net: nn.Module = resnet50()
    if not torch.cuda.is_available():
        net = nn.Sequential(*list(net.children())[:5], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = parallel(net.to(memory_format=torch.channels_last), broadcast_buffers=bad)
    x = torch.randn(sized(32, 2), 3, size, size, device=here()).to(memory_format=torch.channels_last)
    y = torch.randint(sized(1000, 256), (len(x),), device=here())
    return averaged(model, lambda: F.cross_entropy(model(x).float(), y))


@rank_case(
    "ranks-views",  # written with its rule
    "averaged gradients are copied out of their buckets",
    "gradient_as_bucket_view=True",
    "bucket-copies",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    model = parallel(decoder(16, 512), gradient_as_bucket_view=not bad)
    x = texts(8, 256)
    return averaged(model, lambda: guessed(model, x))


@rank_case(
    "ranks-float32",
    "gradients of wide layers are averaged in float32, which takes longer than computing them",
    "bf16_compress_hook",
    "exposed-collectives",
)
def _(bad: bool) -> Step:
    width = sized(8192, 64)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.GELU()]
    model = parallel(nn.Sequential(*layers, nn.LayerNorm(width)))
    if not bad:
        hook = bf16_compress_hook if torch.cuda.is_available() else fp16_compress_hook  # NCCL alone has it
        model.register_comm_hook(None, hook)
    x = torch.randn(sized(1024, 8), width, device=here())
    return averaged(model, lambda: F.mse_loss(model(x).float(), x))


class Shard(torch.utils.data.Dataset[torch.Tensor]):
    """The part of the data of one process; that of the second one takes far longer to decode."""

    def __init__(self, rank: int) -> None:
        self.turns = 15_000 if rank else 500

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        total = 0
        for i in range(self.turns):
            total += i & index
        return torch.full((3, 64, 64), float(total % 7))


@rank_case(
    "ranks-loader",
    "one loader worker a process, and the second process has the images that take long to decode",
    "num_workers=8",
    "loader-workers",
    may_precede=("exposed-collectives",),
    rank=1,
)
def _(bad: bool) -> Step:
    workers = 1 if bad else sized(8, 2)
    batch = sized(64, 4)
    loader = torch.utils.data.DataLoader(
        Shard(dist.get_rank()), batch, num_workers=workers, pin_memory=torch.cuda.is_available()
    )
    batches = iter(loader)
    model = parallel(UNet(sized(64, 8)).to(memory_format=torch.channels_last))

    def loss() -> torch.Tensor:
        x = next(batches).to(here(), non_blocking=True).to(memory_format=torch.channels_last)
        return F.mse_loss(model(x).float(), x)

    return averaged(model, loss)


@rank_case(
    "ranks-lengths",
    "each process pads to its own longest text, and the long texts are all with the second process",
    "long and short texts shared out equally",
    "late-rank",  # a rule that was written afterwards
    "exposed-collectives",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    model = parallel(decoder(8, 1024))
    middle, apart = sized(768, 12), sized(512, 8)
    length = middle + (apart if dist.get_rank() else -apart) if bad else middle
    x = texts(8, 1)[:, :1].repeat(1, length + 1)
    return averaged(model, lambda: guessed(model, x))


@rank_case(
    "ranks-objects",
    "figures of each step, as a dictionary of Python numbers, are sent around by all_gather_object",
    "summed on the GPU, averaged and read once an epoch",
    "object-collective",  # a rule that was written afterwards
    "exposed-collectives",
    "item-each-step",
    "array-read",
    "python-time",
    "small-copy",
    "size-from-device",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    model = parallel(decoder(8, 768))
    x, total = texts(8, 256), torch.zeros(2, device=here())
    log: list[dict[str, float]] = []

    def note(loss: torch.Tensor) -> None:
        figures = torch.stack([loss.detach().float(), loss.detach().float().exp()])
        if bad:
            mine = dict(zip(("loss", "perplexity"), figures.tolist(), strict=True))
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, mine)
            log.append({name: sum(one[name] for one in every) / len(every) for name in mine})
        else:
            total.add_(figures)

    return averaged(model, lambda: guessed(model, x), after=note)


@rank_case(
    "ranks-shards",
    "sharded weights are gathered twice, and gradients reduced, for each of four micro-batches",
    "kept whole until the last micro-batch, whose gradients alone are reduced",
    "repeated-gather",  # a rule that was written afterwards
    "exposed-collectives",
    "gradient-sync-each-pass",
    may_precede=("launch-bound", "uncompiled-step"),
)
def _(bad: bool) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model: Any = decoder(6, 2048).to(here())
    mesh = init_device_mesh(here().type, (dist.get_world_size(),))
    how: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32),
        "reshard_after_forward": bad,
    }
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    optimizer = adamw(model)
    parts = [texts(2, 512) for _ in range(4)]

    def step() -> None:
        for i, x in enumerate(parts):
            last = i == len(parts) - 1
            model.set_requires_gradient_sync(bad or last)
            model.set_reshard_after_backward(bad or last)
            (guessed(model, x) / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
