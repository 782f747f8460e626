"""Steps on a GPU with a planted cost: a fifth set, of what is easily overlooked when training is written down.

The rules for them were written before any of them ran on a GPU, and scored before any was looked at.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, Decoder, Step, UNet, adamw, case, language_step, trained, words
from tests.predictions.set2_models import Discriminator
from tests.predictions.set3_devices import Vision


@case(
    "gpt-vocabulary",
    "a vocabulary of 50 257 words",
    "padded to 50 304",
    "unaligned-matmul",
)
def _(bad: bool) -> Step:
    count = 50_257 if bad else 50_304
    return language_step(Decoder(layers=6, width=768, heads=12, words=count))


class Adapted(nn.Module):
    """A linear layer with a low-rank one beside it that is trained."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@case(
    "lora-base",
    "low-rank adapters are trained, but gradients of the weights beside them are computed",
    "base.requires_grad_(False)",
    "unneeded-gradients",
)
def _(bad: bool) -> Step:
    model = Decoder(layers=8)
    for parent in [module for module in model.modules() if not isinstance(module, Adapted)]:
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.out_features != 8192:
                setattr(parent, name, Adapted(child))
    trained_ones = [p for n, p in model.named_parameters() if ".up." in n or ".down." in n]
    for parameter in model.parameters():
        parameter.requires_grad_(bad)
    for parameter in trained_ones:
        parameter.requires_grad_(True)
    model = model.cuda()
    return language_step(model, optimizer=torch.optim.AdamW(trained_ones, fused=True))


@case(
    "gan-critic",
    "the discriminator's weights have gradients computed while the generator is trained",
    "requires_grad_(False) meanwhile",
    "unneeded-gradients",
    may_precede=("launch-bound", "channels-last"),
)
def _(bad: bool) -> Step:
    judge = Discriminator(96).cuda()
    parts: list[nn.Module] = [nn.ConvTranspose2d(128, 512, 4), nn.ReLU(True)]
    for a in (512, 256, 128):
        parts += [nn.ConvTranspose2d(a, a // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(a // 2), nn.ReLU(True)]
    painter = nn.Sequential(*parts, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()).cuda()
    judges, paints = adamw(judge), adamw(painter)
    real, noise = torch.randn(256, 3, 64, 64, device="cuda"), torch.randn(256, 128, 1, 1, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=BF16):
            made = painter(noise)
            loss = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        judges.zero_grad(set_to_none=True)
        loss.backward()
        judges.step()
        judge.requires_grad_(bad)
        with torch.autocast("cuda", dtype=BF16):
            loss = F.softplus(-judge(made)).mean()
        paints.zero_grad(set_to_none=True)
        loss.backward()
        judge.requires_grad_(True)
        paints.step()

    return step


@case(
    "unet-nll",
    "the logarithm of a softmax over the classes of each pixel, then nll_loss",
    "F.cross_entropy",
    "log-of-softmax",
    "elementwise-chain",
    may_precede=("channels-last",),
)
def _(bad: bool) -> Step:
    net = UNet(48)
    net.out = nn.Conv2d(48, 21, 1)
    model = net.cuda()
    x, y = torch.randn(16, 3, 256, 256, device="cuda"), torch.randint(21, (16, 256, 256), device="cuda")

    def loss() -> torch.Tensor:
        out = model(x).float()
        if bad:
            return F.nll_loss(torch.softmax(out, 1).clamp(min=1e-8).log(), y)
        return F.cross_entropy(out, y)

    return trained(model, loss)


@case(
    "vit-teacher",
    "a teacher, which has to run, follows the weights one by one in Python",
    "torch._foreach_lerp_",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Vision(depth=8, width=384).cuda()
    teacher = copy.deepcopy(model).requires_grad_(False)
    x = torch.randn(64, 3, 224, 224, device="cuda")

    def loss() -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(x).float().softmax(-1)
        return -(wanted * model(x).float().log_softmax(-1)).sum(-1).mean()

    def follow() -> None:
        with torch.no_grad():
            if bad:
                for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
                    mine.mul_(0.996).add_(theirs, alpha=0.004)
            else:
                torch._foreach_lerp_(list(teacher.parameters()), list(model.parameters()), 0.004)

    return trained(model, loss, last=follow)


@case(
    "gpt-causal",
    "the causal mask is built on the CPU and copied in every step",
    "is_causal, or a mask on the device",
    "pageable-memory",
    "small-copy",
    "blocking-copy",
    "host-operators",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Decoder(layers=6, width=768, heads=12).cuda()
    x = words(8, 2048)

    def loss() -> torch.Tensor:
        size = x.shape[1] - 1
        mask = torch.tril(torch.ones(size, size, device="cpu" if bad else "cuda")).cuda()
        out = model(x[:, :-1]).float()
        return F.cross_entropy(out.flatten(0, 1), x[:, 1:].flatten()) + 0 * mask.sum()

    return trained(model, loss)
