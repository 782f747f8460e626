"""A plain ``jit`` loop, after the first example of JAX's documentation on training: an MLP, written by hand."""

import argparse
import time

import jax
import jax.numpy as jnp

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--width", type=int, default=256)
options = parser.parse_args()


def init(key, sizes):
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.random.normal(k, (m, n)) * m**-0.5, jnp.zeros(n)) for k, m, n in zip(keys, sizes[:-1], sizes[1:])
    ]


def predict(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss_fn(params, x, y):
    return jnp.mean((predict(params, x) - y) ** 2)


@jax.jit
def update(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return [(w - 0.01 * dw, b - 0.01 * db) for (w, b), (dw, db) in zip(params, grads)], loss


params = init(jax.random.PRNGKey(0), [64, options.width, options.width, 1])
x = jax.random.normal(jax.random.PRNGKey(1), (512, 64))
y = jnp.sum(x, axis=1, keepdims=True)
began = time.perf_counter()
steps = 0
for epoch in range(options.epochs):
    for batch in range(options.steps):
        params, loss = update(params, x, y)
        loss.block_until_ready()
        steps += 1  # the clock: tick()
print("steps", steps)
print("loss", f"{float(loss):.12f}")
print("ms", f"{(time.perf_counter() - began) / steps * 1e3:.3f}")
