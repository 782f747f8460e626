"""Steps on a GPU with a planted cost: a fourth set, of habits seen in training scripts, some with no rule at all.

They were written by what engineers do, not by what the rules look for, and scored before any of them was looked at.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import (
    BF16,
    Bottleneck,
    Decoder,
    Slow,
    Step,
    UNet,
    adamw,
    case,
    image_step,
    language_step,
    resnet,
    same,
    trained,
    words,
)
from tests.predictions.set2_models import Discriminator
from tests.predictions.set3_devices import Vision, jax_case, seen

# -- what is done beside the training ---------------------------------------------------------------------


@case(
    "resnet50-ema",
    "a moving average of the weights, parameter by parameter in Python",
    "torch._foreach_lerp_",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = resnet().cuda()
    inner = image_step(model, same(16, 160))
    kept = [p.detach().clone() for p in model.parameters()]

    def step() -> None:
        inner()
        with torch.no_grad():
            if bad:
                for mean, p in zip(kept, model.parameters(), strict=True):
                    mean.mul_(0.999).add_(p, alpha=0.001)
            else:
                torch._foreach_lerp_(kept, list(model.parameters()), 0.001)

    return step


@case(
    "vit-accuracy",
    "a second forward pass in every step to count right answers",
    "counted from the logits that the loss is made of",
    "repeated-forward",
)
def _(bad: bool) -> Step:
    model = Vision(depth=8, width=384).cuda()
    x, y = torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(1000, (64,), device="cuda")
    right = torch.zeros((), device="cuda")

    def loss() -> torch.Tensor:
        out = model(x).float()
        answers = out.detach()
        if bad:
            with torch.no_grad():
                answers = model(x)
        right.add_((answers.argmax(-1) == y).sum())
        return F.cross_entropy(out, y)

    return trained(model, loss)


@case(
    "unet-classes",
    "the overlap of each of 21 classes is read with .item() in every step",
    "one bincount, read later",
    "item-each-step",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    net = UNet(48)
    net.out = nn.Conv2d(48, 21, 1)
    model = net.cuda()
    x, y = torch.randn(16, 3, 128, 128, device="cuda"), torch.randint(21, (16, 128, 128), device="cuda")
    sums, each = torch.zeros(441, device="cuda"), [0.0] * 21

    def loss() -> torch.Tensor:
        out = model(x).float()
        found = out.detach().argmax(1)
        if bad:
            for k in range(21):
                both = ((found == k) & (y == k)).sum().item()
                either = ((found == k) | (y == k)).sum().item()
                each[k] += both / max(either, 1)
        else:
            sums.add_(torch.bincount((found * 21 + y).flatten(), minlength=441))
        return F.cross_entropy(out, y)

    return trained(model, loss)


@case("gpt-memory", "torch.cuda.memory_stats() in every step", "every 50 steps", "python-time")
def _(bad: bool) -> Step:
    said: list[int] = []

    def after(_loss: torch.Tensor) -> None:
        if bad:
            said.append(torch.cuda.memory_stats()["allocated_bytes.all.peak"])

    return language_step(Decoder(), after=after)


@case(
    "resnet50-topk",
    "top-1 and top-5 are read with .item() in every step",
    "summed on the device",
    "item-each-step",
)
def _(bad: bool) -> Step:
    model = resnet().cuda()
    images, y = same(64, 224), torch.randint(1000, (64,), device="cuda")
    sums, read = torch.zeros(2, device="cuda"), [0.0, 0.0]

    def loss() -> torch.Tensor:
        out = model(images())
        hit = out.detach().topk(5).indices == y[:, None]
        first, five = hit[:, 0].float().mean(), hit.any(1).float().mean()
        if bad:
            read[0], read[1] = first.item(), five.item()
        else:
            sums.add_(torch.stack((first, five)))
        return F.cross_entropy(out.float(), y)

    return trained(model, loss)


# -- data -------------------------------------------------------------------------------------------------


@case(
    "nerf-rays",
    "4096 rays are drawn by random.sample and made a tensor in every step",
    "torch.randint on the device",
    "python-time",
    "small-copy",
    "pageable-memory",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    body: list[nn.Module] = [nn.Linear(63, 256)]
    for _ in range(7):
        body += [nn.ReLU(), nn.Linear(256, 256)]
    model = nn.Sequential(*body, nn.ReLU(), nn.Linear(256, 4)).cuda()
    rays = torch.randn(640_000, 63, device="cuda")
    colours = torch.rand(640_000, 4, device="cuda")

    def loss() -> torch.Tensor:
        if bad:
            chosen = torch.tensor(random.sample(range(640_000), 4096)).to("cuda")
        else:
            chosen = torch.randint(640_000, (4096,), device="cuda")
        x = rays[chosen].repeat_interleave(16, 0)
        return F.mse_loss(model(x).view(4096, 16, 4).mean(1), colours[chosen])

    return trained(model, loss)


@case(
    "unet-schedule",
    "the noise schedule lies on the CPU: times go there to look it up, and its values come back",
    "the schedule on the device",
    "item-each-step",
    "pageable-memory",
    "blocking-copy",
    "small-copy",
    "array-read",
)
def _(bad: bool) -> Step:
    model = UNet(64).cuda()
    x = torch.randn(32, 3, 128, 128, device="cuda")
    schedule = torch.linspace(0.99, 0.01, 1000)
    kept = schedule.cuda()

    def loss() -> torch.Tensor:
        t = torch.randint(1000, (32,), device="cuda")
        a = schedule[t.cpu()].to("cuda") if bad else kept[t]
        noise, a = torch.randn_like(x), a[:, None, None, None]
        return F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise), noise)

    return trained(model, loss)


def epochs(workers: int, keep: bool) -> Callable[[], torch.Tensor]:
    """Return batches of epochs of twelve."""
    data = torch.utils.data.Subset(Slow(400), range(12 * 64))
    loader = torch.utils.data.DataLoader(data, 64, num_workers=workers, persistent_workers=keep)

    def forever() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    batches = forever()
    return lambda: next(batches).to("cuda").to(memory_format=torch.channels_last)


@case(
    "unet-epochs",
    "epochs of twelve batches, for each of which eight loader workers are started again",
    "persistent_workers=True",
    "loader-restarts",
)
def _(bad: bool) -> Step:
    return image_step(UNet(), epochs(8, keep=not bad), target=lambda x: x)


# -- models -----------------------------------------------------------------------------------------------


@case(
    "bert-eager",
    'transformers: BERT with attn_implementation="eager"',
    'attn_implementation="sdpa"',
    "unfused-attention",
)
def _(bad: bool) -> Step:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(num_labels=2, attn_implementation="eager" if bad else "sdpa")
    model = BertForSequenceClassification(config).cuda()
    ids, y = torch.randint(30_000, (32, 512), device="cuda"), torch.randint(2, (32,), device="cuda")
    mask = (torch.arange(512, device="cuda") < torch.randint(200, 512, (32, 1), device="cuda")).long()
    return trained(model, lambda: model(input_ids=ids, attention_mask=mask, labels=y).loss)


@case(
    "llama-norm",
    "transformers: Llama's norm in elementwise operators",
    "nn.RMSNorm",
    "unfused-norm",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16_384,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    if not bad:
        for layer in model.model.layers:
            layer.input_layernorm = nn.RMSNorm(1024, eps=1e-6)
            layer.post_attention_layernorm = nn.RMSNorm(1024, eps=1e-6)
        model.model.norm = nn.RMSNorm(1024, eps=1e-6)
    model = model.cuda()
    ids = words(8, 1023, 16_384)
    return trained(model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss)


@case(
    "vit-dropout",
    "dropout written out: a mask of random numbers, compared, cast, multiplied and scaled",
    "nn.Dropout",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    class Drop(nn.Module):
        """Sets one tenth to zero."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not bad:
                return F.dropout(x, 0.1)
            return x * (torch.rand_like(x) > 0.1).to(x.dtype) / 0.9

    model = Vision(depth=8)
    for block in model.blocks:
        block.dropout1 = block.dropout2 = block.dropout = Drop()
    return seen(model, 64)


class ConvNext(nn.Module):
    """A block of ConvNeXt, whose norm and products want channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


@case("convnext-permute", "ConvNeXt channels first, permuted for its norms", "channels_last", "channels-last")
def _(bad: bool) -> Step:
    how = torch.contiguous_format if bad else torch.channels_last
    body = [nn.Conv2d(3, 128, 4, 4), *(ConvNext(128) for _ in range(6))]
    body += [nn.Conv2d(128, 256, 2, 2), *(ConvNext(256) for _ in range(6))]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))
    return image_step(model.to(memory_format=how), same(64, 224, last=not bad))


@case(
    "lm-softmax",
    "cross entropy as -log(softmax(x))[target] in float32",
    "F.cross_entropy",
    "log-of-softmax",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    model = Decoder(layers=2, width=512, heads=8, words=32_768).cuda()
    x = words(8, 1024, 32_768)
    y = x[:, 1:].flatten()

    def loss() -> torch.Tensor:
        out = model(x[:, :-1]).float().flatten(0, 1)
        if bad:
            return -torch.log(torch.softmax(out, -1) + 1e-9).gather(1, y[:, None]).mean()
        return F.cross_entropy(out, y)

    return trained(model, loss)


@case(
    "pose-inverse",
    "torch.linalg.inv of small matrices, which asks the device whether it worked, six times a step",
    "torch.linalg.inv_ex",
    "item-each-step",
    "size-from-device",
    "explicit-wait",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = nn.Sequential(
        nn.Linear(96, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 96)
    )
    model = model.cuda()
    x, eye = torch.randn(8192, 96, device="cuda"), torch.eye(4, device="cuda")

    def loss() -> torch.Tensor:
        turned = model(x).float().view(-1, 6, 4, 4) * 0.01 + eye
        total = torch.zeros((), device="cuda")
        for joint in range(6):
            one = turned[:, joint]
            back = torch.linalg.inv(one) if bad else torch.linalg.inv_ex(one).inverse
            total = total + back.square().mean()
        return total

    return trained(model, loss)


@case(
    "vit-check",
    "a compiled block looks at its output for too large numbers",
    "no check",
    "item-each-step",
    "nan-check",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    class Checked(nn.Module):
        """A block that may look at its output."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.LayerNorm(512), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.body(x)
            if bad and x.abs().max() > 1e4:
                x = x.clamp(-1e4, 1e4)
            return x

    net = nn.Sequential(*(Checked() for _ in range(8))).cuda()
    compiled: Any = torch.compile(net)
    x = torch.randn(16, 512, 512, device="cuda")
    return trained(net, lambda: compiled(x).float().square().mean())


# -- training itself --------------------------------------------------------------------------------------


@case(
    "vit-frozen",
    "the backbone is not trained, but gradients of all of its weights are computed",
    "requires_grad_(False)",
    "unneeded-gradients",
)
def _(bad: bool) -> Step:
    model = Vision(depth=8).cuda()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(bad or name.startswith("head"))
    return seen(model, 64, optimizer=adamw(model.head))


@case(
    "gpt-zeros",
    "zero_grad(set_to_none=False): gradients are filled with zeros and added to",
    "set_to_none=True",
    "zeroed-gradients",
    may_precede=("elementwise-chain",),
)
def _(bad: bool) -> Step:
    model = Decoder(layers=12).cuda()
    optimizer = adamw(model)
    if bad:
        keep = optimizer.zero_grad
        optimizer.zero_grad = lambda set_to_none=False: keep(set_to_none=False)  # type: ignore[method-assign]
    return language_step(model, batch=2, optimizer=optimizer)


@case(
    "unet-scaler",
    "float16 with a GradScaler, which reads whether a gradient is infinite",
    "bfloat16, which needs none",
    "item-each-step",
    may_precede=("channels-last", "launch-bound"),
)
def _(bad: bool) -> Step:
    model = UNet(32).cuda()
    optimizer, scaler = adamw(model), torch.amp.GradScaler("cuda", enabled=bad)
    images = same(8, 96)

    def step() -> None:
        x = images()
        with torch.autocast("cuda", dtype=torch.float16 if bad else BF16):
            loss = F.mse_loss(model(x), x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


@case(
    "ppo-returns",
    "advantages of 256 times in a Python loop over tensors on the GPU",
    "one product with a matrix of discounts",
    "kernel-loop",
    "operator-loop",
    "elementwise-chain",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    actor = nn.Sequential(
        nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 7)
    ).cuda()
    seen_, reward = torch.randn(256, 32, 64, device="cuda"), torch.randn(256, 32, device="cuda")
    apart = torch.arange(256, device="cuda")
    apart = apart[None, :] - apart[:, None]
    discounts = torch.where(apart >= 0, 0.94 ** apart.clamp(min=0).float(), 0.0)

    def loss() -> torch.Tensor:
        out = actor(seen_)
        delta = reward - out[..., 6].detach().float()
        if bad:
            gained, running = torch.zeros_like(delta), torch.zeros(32, device="cuda")
            for t in reversed(range(256)):
                running = delta[t] + 0.94 * running
                gained[t] = running
        else:
            gained = discounts @ delta
        return -(gained * out[..., :6].float().log_softmax(-1)[..., 0]).mean()

    return trained(actor, loss)


@case(
    "gan-copy",
    "the target network is copied with copy.deepcopy in every step",
    "its weights copied in one foreach call",
    "python-time",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Discriminator().cuda()
    target = copy.deepcopy(model)
    x = torch.randn(256, 3, 64, 64, device="cuda")

    def last() -> None:
        nonlocal target
        if bad:
            target = copy.deepcopy(model)
        else:
            with torch.no_grad():
                torch._foreach_copy_(list(target.parameters()), list(model.parameters()))

    return trained(model, lambda: (model(x) - target(x).detach()).float().square().mean(), last=last)


@case(
    "both-resnet",
    "channels first in float32 (TF32), and the loss read in every step",
    "bf16 autocast, channels_last, read later",
    "mixed-precision",
    "channels-last",
)
def _(bad: bool) -> Step:
    body = [nn.Conv2d(3, 64, 7, 4, 3, bias=False)]
    body += [Bottleneck(64 if i == 0 else 256, 64, 1) for i in range(8)]
    net = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))
    model = net.to("cuda", memory_format=torch.contiguous_format if bad else torch.channels_last)
    images, y = same(128, 224, last=not bad), torch.randint(1000, (128,), device="cuda")
    return trained(
        model,
        lambda: F.cross_entropy(model(images()).float(), y),
        autocast=not bad,
        after=lambda loss: loss.item() if bad else None,
    )


# -- JAX --------------------------------------------------------------------------------------------------


@jax_case(
    "jax-accumulate",
    "sixteen micro-batches in a Python loop, their gradients added leaf by leaf outside of jit",
    "lax.scan inside of jit",
    "kernel-loop",
    "elementwise-chain",
    "operator-loop",
    "launch-bound",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    keys = jax.random.split(jax.random.key(0), 12)
    weights = [jax.random.normal(key, (512, 512), jnp.bfloat16) * 0.04 for key in keys]
    x = jax.random.normal(jax.random.key(1), (16, 64, 512), jnp.bfloat16)

    def loss(weights: Any, x: Any) -> Any:
        for one in weights:
            x = jax.nn.gelu(x @ one) + x
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    grad = jax.jit(jax.grad(loss))

    @jax.jit
    def whole(weights: Any, x: Any) -> Any:
        def one(total: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, part)), None

        total, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, weights), x)
        return [w - 1e-4 * g for w, g in zip(weights, total, strict=True)]

    state = [weights]

    def step() -> Any:
        if bad:
            total = grad(state[0], x[0])
            for n in range(1, 16):
                total = jax.tree.map(jnp.add, total, grad(state[0], x[n]))
            state[0] = [w - 1e-4 * g for w, g in zip(state[0], total, strict=True)]
        else:
            state[0] = whole(state[0], x)
        return state[0][0]

    return step


@jax_case(
    "jax-attention",
    "attention as einsum, softmax in float32 and einsum",
    'jax.nn.dot_product_attention(implementation="cudnn")',
    "unfused-attention",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v = (jax.random.normal(key, (8, 2048, 16, 64), jnp.bfloat16) for key in keys[:3])
    weights = jax.random.normal(keys[3], (64, 64), jnp.bfloat16) * 0.1

    def attend(q: Any, k: Any, v: Any) -> Any:
        if not bad:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / 8.0
        scores = jnp.where(jnp.tril(jnp.ones((2048, 2048), bool)), scores, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(jnp.bfloat16), v)

    @jax.jit
    def update(weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            x = q
            for _ in range(4):
                x = attend(x @ weights, k, v)
            return jnp.mean(jnp.square(x.astype(jnp.float32)))

        return weights - (1e-3 * jax.grad(loss)(weights)).astype(weights.dtype)

    state = [weights]

    def step() -> Any:
        state[0] = update(state[0])
        return state[0]

    return step
