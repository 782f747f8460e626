"""A small decoder-only transformer in pure JAX: parameters in dicts, hand-written Adam, numpy data."""
import argparse
import functools
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

SMALL = os.environ.get("SMALL") == "1"

VOCAB = 64 if SMALL else 8192
SEQ_LEN = 16 if SMALL else 256
D_MODEL = 32 if SMALL else 512
N_HEADS = 2 if SMALL else 8
N_LAYERS = 2 if SMALL else 6
BATCH = 4 if SMALL else 64
LR = 3e-4


# ----------------------------------------------------------------------------- data
def make_corpus(n, seed=0):
    """A made-up text: sentences drawn from a list of phrases with zipf-like frequencies."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(2, VOCAB, size=rng.integers(3, 12)) for _ in range(2000)]
    p = 1.0 / np.arange(1, 2001)
    chosen = rng.choice(2000, size=n // 7, p=p / p.sum())
    return [np.concatenate([phrases[c], [1]]) for c in chosen]


def batches(sentences, seed=0):
    """Shuffle the sentences, concatenate until the block is full, yield int32 arrays."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(sentences))
        buffer, rows = [], []
        for i in order:
            buffer.extend(sentences[i])
            if len(buffer) >= SEQ_LEN + 1:
                rows.append(buffer[: SEQ_LEN + 1])
                buffer = []
            if len(rows) == BATCH:
                block = np.array(rows, dtype=np.int32)
                yield block[:, :-1], block[:, 1:]
                rows = []


# ----------------------------------------------------------------------------- model
def init_params(key):
    def dense(key, i, o):
        return {"w": jax.random.normal(key, (i, o)) * 0.02, "b": jnp.zeros(o)}

    def norm():
        return {"scale": jnp.ones(D_MODEL), "bias": jnp.zeros(D_MODEL)}

    key, k1, k2 = jax.random.split(key, 3)
    params = {
        "tok": jax.random.normal(k1, (VOCAB, D_MODEL)) * 0.02,
        "pos": jax.random.normal(k2, (SEQ_LEN, D_MODEL)) * 0.02,
        "ln_f": norm(),
        "layers": [],
    }
    for _ in range(N_LAYERS):
        key, *ks = jax.random.split(key, 5)
        params["layers"].append({
            "ln1": norm(),
            "qkv": dense(ks[0], D_MODEL, 3 * D_MODEL),
            "out": dense(ks[1], D_MODEL, D_MODEL),
            "ln2": norm(),
            "up": dense(ks[2], D_MODEL, 4 * D_MODEL),
            "down": dense(ks[3], 4 * D_MODEL, D_MODEL),
        })
    return params


def layer_norm(p, x):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5) * p["scale"] + p["bias"]


def linear(p, x):
    return x @ p["w"] + p["b"]


def attention(p, x):
    B, T, C = x.shape
    q, k, v = jnp.split(linear(p["qkv"], x), 3, axis=-1)
    q, k, v = (a.reshape(B, T, N_HEADS, C // N_HEADS).transpose(0, 2, 1, 3) for a in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(C // N_HEADS)
    mask = jnp.tril(jnp.ones((T, T), dtype=bool))
    scores = jnp.where(mask, scores, -1e9)
    out = jax.nn.softmax(scores, axis=-1) @ v
    return linear(p["out"], out.transpose(0, 2, 1, 3).reshape(B, T, C))


def forward(params, tokens):
    x = params["tok"][tokens] + params["pos"][: tokens.shape[1]]
    for p in params["layers"]:
        x = x + attention(p, layer_norm(p["ln1"], x))
        x = x + linear(p["down"], jax.nn.gelu(linear(p["up"], layer_norm(p["ln2"], x))))
    return layer_norm(params["ln_f"], x) @ params["tok"].T


def loss_fn(params, x, y):
    logp = jax.nn.log_softmax(forward(params, x))
    return -jnp.take_along_axis(logp, y[..., None], axis=-1).mean()


# ----------------------------------------------------------------------------- optimiser
def adam_init(params):
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    return {"m": zeros, "v": zeros, "t": jnp.zeros((), jnp.int32)}


def adam_update(grads, state, params, lr, b1=0.9, b2=0.999, eps=1e-8):
    tree_map = jax.tree_util.tree_map
    t = state["t"] + 1
    m = tree_map(lambda m, g: b1 * m + (1 - b1) * g, state["m"], grads)
    v = tree_map(lambda v, g: b2 * v + (1 - b2) * g * g, state["v"], grads)
    scale = lr * jnp.sqrt(1 - b2**t) / (1 - b1**t)
    params = tree_map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + eps), params, m, v)
    return params, {"m": m, "v": v, "t": t}


@functools.partial(jax.jit, static_argnames="lr")
def train_step(params, opt_state, x, y, lr):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    params, opt_state = adam_update(grads, opt_state, params, lr)
    return params, opt_state, loss


eval_step = jax.jit(loss_fn)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--eval-every", type=int, default=500)
    args = parser.parse_args()
    print("devices:", jax.devices())

    train_data = batches(make_corpus(20_000 if SMALL else 3_000_000, seed=0), seed=0)
    val_data = batches(make_corpus(5_000 if SMALL else 200_000, seed=1), seed=1)
    params = init_params(jax.random.PRNGKey(0))
    opt_state = adam_init(params)
    print(f"{sum(p.size for p in jax.tree_util.tree_leaves(params)) / 1e6:.1f}M parameters")

    ends, t_start, step, losses = [], None, 0, []
    while True:
        x, y = next(train_data)
        params, opt_state, loss = train_step(params, opt_state, jnp.array(x), jnp.array(y), LR)
        losses.append(float(loss))
        step += 1
        if step % args.log_every == 0:
            print(f"step {step}: loss {np.mean(losses[-args.log_every:]):.4f}")
        if step % args.eval_every == 0:
            val = [float(eval_step(params, *next(val_data))) for _ in range(10)]
            print(f"step {step}: val loss {np.mean(val):.4f}")

        ends.append(time.perf_counter())
        if step == 5:
            t_start = ends[-1]
        if args.steps and step >= args.steps:
            break
        if not args.steps and t_start and ends[-1] - t_start > args.seconds:
            break

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
