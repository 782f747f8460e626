"""Steps on a GPU with a planted cost: a third set, in PyTorch and JAX, recorded once after the rules were written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.predictions.cases import Step, adamw, case, trained
from tests.predictions.set2_models import Discriminator, Encoder


class Vision(nn.Module):
    """A transformer over image patches whose blocks may be computed again in the backward pass."""

    def __init__(self, depth: int = 12, width: int = 768, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 12, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True, bias=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x.mean(1))


def seen(model: nn.Module, batch: int, **how: Any) -> Step:
    """Train a classifier of images of 224 pixels."""
    model = model.cuda()
    x, y = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(1000, (batch,), device="cuda")
    return trained(model, lambda: F.cross_entropy(model(x).float(), y), **how)


@case(
    "vit-recompute",
    "every block is checkpointed though memory is free",
    "no checkpoint",
    "recomputed-forward",
)
def _(bad: bool) -> Step:
    return seen(Vision(recompute=bad), 64)


@case("vit-anomaly", "anomaly mode is left on", "off", "anomaly-mode", may_precede=("launch-bound",))
def _(bad: bool) -> Step:
    inner = seen(Vision(depth=8, width=384), 32)

    def step() -> None:
        with torch.autograd.set_detect_anomaly(bad):
            inner()

    return step


@case(
    "vae-double",
    "the batch comes from NumPy and the model was made .double() to fit it",
    "float32",
    "float64",
)
def _(bad: bool) -> Step:
    kind = torch.float64 if bad else torch.float32
    body = nn.Sequential(nn.Linear(3072, 2048), nn.SiLU(), nn.Linear(2048, 2048), nn.SiLU())
    model = nn.Sequential(body, nn.Linear(2048, 3072)).cuda().to(kind)
    x = torch.from_numpy(np.random.default_rng(0).random((2048, 3072))).cuda().to(kind)
    return trained(model, lambda: F.mse_loss(model(x), x), autocast=False)


@case("lm-one-hot", "one-hot vectors times the table of the vocabulary", "F.embedding", "one-hot-product")
def _(bad: bool) -> Step:
    table = nn.Parameter(torch.randn(16_384, 512, device="cuda") * 0.02)
    body = nn.Sequential(
        *(nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 512), nn.GELU()) for _ in range(6))
    )
    model = body.cuda()
    model.register_parameter("table", table)
    ids = torch.randint(16_384, (32, 256), device="cuda")

    def loss() -> torch.Tensor:
        x = F.one_hot(ids, 16_384).to(table.dtype) @ table if bad else F.embedding(ids, table)
        return model(x).float().square().mean()

    return trained(model, loss)


@case(
    "rec-table",
    "the gradient of a table of two million rows is dense",
    "sparse=True with SparseAdam",
    "dense-embedding-gradient",
    may_precede=("single-tensor-optimizer",),
)
def _(bad: bool) -> Step:
    table = nn.EmbeddingBag(2_000_000, 64, sparse=not bad).cuda()
    head = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    of_table = torch.optim.Adagrad(table.parameters(), lr=0.01)
    of_head = adamw(head)
    ids, y = torch.randint(2_000_000, (4096, 20), device="cuda"), torch.rand(4096, 1, device="cuda")

    def step() -> None:
        loss = F.binary_cross_entropy_with_logits(head(table(ids)), y)
        loss.backward()
        of_table.step()
        of_head.step()
        of_table.zero_grad(set_to_none=True)
        of_head.zero_grad(set_to_none=True)

    return step


@case(
    "augment-loop",
    "each image of the batch is flipped, shifted and scaled by itself on the GPU",
    "the whole batch at once",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Discriminator().cuda()
    x = torch.randn(128, 3, 64, 64, device="cuda")

    def distort(x: torch.Tensor) -> torch.Tensor:
        return (x.flip(-1) * 1.1 + 0.05).clamp(-1, 1)

    def loss() -> torch.Tensor:
        batch = torch.stack([distort(one) for one in x]) if bad else distort(x)
        return model(batch).float().square().mean()

    return trained(model, loss)


@case(
    "generate-check",
    "a decoder asks for the end of every sequence after each token",
    "every 32 tokens",
    "item-each-step",
    "size-from-device",
    may_precede=("launch-bound",),
    marked=True,
)
def _(bad: bool) -> Step:
    model = Encoder(6, 512, 8).cuda().eval()
    ids = torch.randint(8192, (16, 64), device="cuda")
    keep = torch.ones(16, 64, dtype=torch.bool, device="cuda")

    @torch.inference_mode()
    def step() -> None:
        now, done = ids, torch.zeros(16, dtype=torch.bool, device="cuda")
        for _ in range(16):
            token = model(now, keep)[:, -1].argmax(-1)
            done = done | (token == 0)
            now = torch.cat([now[:, 1:], token[:, None]], 1)
            if bad and bool(done.all()):
                break

    return step


@case(
    "accuracy-numpy",
    "the predictions are copied to NumPy in every step to count the right ones",
    "counted on the GPU",
    "item-each-step",
    "pageable-memory",
    "blocking-copy",
    "array-read",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Vision(depth=6, width=384).cuda()
    x, y = torch.randn(128, 3, 224, 224, device="cuda"), torch.randint(1000, (128,), device="cuda")
    right = torch.zeros((), device="cuda")
    counted = [0]

    def loss() -> torch.Tensor:
        out = model(x).float()
        if bad:
            counted[0] += int((out.detach().cpu().numpy().argmax(-1) == y.cpu().numpy()).sum())
        else:
            right.add_((out.detach().argmax(-1) == y).sum())
        return F.cross_entropy(out, y)

    return trained(model, loss)


@case(
    "buckets-dynamo",
    "a compiled model sees another length in every step",
    "padded to one length",
    "recompiles",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    torch._dynamo.config.recompile_limit = 1000
    model = Encoder(2, 256, 4).cuda()
    compiled = torch.compile(model, dynamic=False)
    ids = torch.randint(8192, (16, 1024), device="cuda")
    keep = torch.ones(16, 1024, dtype=torch.bool, device="cuda")
    length = [64]

    def loss() -> torch.Tensor:
        length[0] += 2 * bad
        n = length[0]
        return F.cross_entropy(compiled(ids[:, :n], keep[:, :n]).float().flatten(0, 1), ids[:, :n].flatten())

    return trained(model, loss)


@case(
    "three-causes",
    "float32 in full precision, AdamW parameter by parameter, the loss read in every step",
    "bf16 autocast",
    "mixed-precision",
    "fp32-matmul",
)
def _(bad: bool) -> Step:
    model = Vision(depth=8)
    return seen(
        model,
        64,
        autocast=not bad,
        optimizer=adamw(model.cuda(), fused=False, foreach=False),
        after=lambda loss: loss.item(),
    )


def _jax_step(build: Callable[[Any, Any, bool], Callable[[], Any]]) -> Callable[[bool], Step]:
    """Return what builds a step in JAX, which is imported by its process alone."""

    def made(bad: bool) -> Step:
        import jax
        import jax.numpy as jnp

        return build(jax, jnp, bad)

    return made


def _mlp(jax: Any, jnp: Any, depth: int, width: int, kind: Any) -> Any:
    keys = jax.random.split(jax.random.key(0), depth)
    return [jax.random.normal(key, (width, width), kind) / math.sqrt(width) for key in keys]


def _trainer(jax: Any, jnp: Any, depth: int, width: int, batch: int, kind: Any = None) -> Any:
    kind = kind or jnp.bfloat16
    x = jax.random.normal(jax.random.key(1), (batch, width), kind)

    def loss(weights: Any, x: Any) -> Any:
        for one in weights:
            x = jax.nn.gelu(x @ one) + x
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    @jax.jit
    def update(weights: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x)
        return [w - (1e-3 * g).astype(w.dtype) for w, g in zip(weights, grads, strict=True)], value

    return _mlp(jax, jnp, depth, width, kind), x, update


def jax_case(name: str, planted: str, fix: str, *rules: str, **options: Any) -> Any:
    """Declare a case in JAX."""
    return lambda build: case(name, planted, fix, *rules, marked=True, jax=True, **options)(_jax_step(build))


@jax_case("jax-float", "float(loss) in every step", "read every 50 steps", "array-read", "explicit-wait")
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    weights, x, update = _trainer(jax, jnp, 16, 512, 512)
    state = [weights]

    def step() -> Any:
        state[0], value = update(state[0], x)
        if bad:
            f"{float(value):.4f}"
        return value

    return step


@jax_case(
    "jax-numpy",
    "the batch is distorted by NumPy in the step",
    "on the device",
    "python-time",
    "array-read",
    "pageable-memory",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    weights, x, update = _trainer(jax, jnp, 8, 1024, 1024)
    state, host = [weights], np.random.default_rng(0).random((1024, 1024), dtype=np.float32)
    draw = np.random.default_rng(1)

    def step() -> Any:
        batch = x
        if bad:
            batch = jnp.asarray(
                np.clip(host * 1.1 + draw.normal(0, 0.05, host.shape), 0, 1), dtype=jnp.bfloat16
            )
        state[0], value = update(state[0], batch)
        return value

    return step


@jax_case("jax-lengths", "another batch size in every step", "padded to one", "recompiles")
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    weights, x, update = _trainer(jax, jnp, 1, 512, 1024)
    state, count = [weights], [256]

    def step() -> Any:
        count[0] += bad
        state[0], value = update(state[0], x[: count[0]] if bad else x[:300])
        return value

    return step


@jax_case(
    "jax-callback",
    "a metric is computed by NumPy in a pure_callback",
    "in jnp",
    "host-callback",
    "array-read",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    weights, x, update = _trainer(jax, jnp, 8, 1024, 1024)
    state = [weights]

    def sorted_mean(values: Any) -> Any:
        return np.float32(np.sort(np.asarray(values, dtype=np.float32).ravel())[:1000].mean())

    @jax.jit
    def metric(x: Any) -> Any:
        if bad:
            return jax.pure_callback(sorted_mean, jax.ShapeDtypeStruct((), jnp.float32), x)
        return jnp.mean(jax.lax.top_k(-x.astype(jnp.float32).ravel(), 1000)[0])

    def step() -> Any:
        state[0], value = update(state[0], x)
        return metric(x) + value

    return step


@jax_case("jax-highest", "products in full float32", "bfloat16", "fp32-matmul", "mixed-precision")
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    if bad:
        jax.config.update("jax_default_matmul_precision", "highest")
    weights, x, update = _trainer(jax, jnp, 8, 4096, 4096, jnp.float32 if bad else jnp.bfloat16)
    compiled = update.lower(weights, x).compile()
    jax.config.update("jax_default_matmul_precision", None)
    state = [weights]

    def step() -> Any:
        state[0], value = compiled(state[0], x)
        return value

    return step


@jax_case(
    "jax-update",
    "gradients are jitted, the update of 200 arrays is not",
    "all in one jit",
    "launch-bound",
    "kernel-loop",
    "python-time",
)
def _(jax: Any, jnp: Any, bad: bool) -> Callable[[], Any]:
    weights, x, update = _trainer(jax, jnp, 100, 128, 512, jnp.float32)

    @jax.jit
    def gradients(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            out = x
            for one in weights:
                out = jax.nn.gelu(out @ one) + out
            return jnp.mean(jnp.square(out))

        return jax.grad(loss)(weights)

    state = [weights]

    def step() -> Any:
        if bad:
            grads = gradients(state[0], x)
            state[0] = [w - 1e-3 * g for w, g in zip(state[0], grads, strict=True)]
        else:
            state[0], _ = update(state[0], x)
        return state[0][-1]

    return step
