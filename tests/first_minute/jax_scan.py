"""All of the training in calls of ``lax.scan``: no loop in Python to speak of, after JAX's own notes on control flow."""

import argparse

import jax
import jax.numpy as jnp

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4000)
options = parser.parse_args()

x = jax.random.normal(jax.random.PRNGKey(1), (512, 256))
y = jnp.sum(x, axis=1, keepdims=True)


def loss_fn(w, x, y):
    return jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2)


def update(w, _):
    loss, grads = jax.value_and_grad(loss_fn)(w, x, y)
    return [a - 0.01 * b for a, b in zip(w, grads)], loss


@jax.jit
def train(w):
    return jax.lax.scan(update, w, None, length=options.steps)


w = [jax.random.normal(jax.random.PRNGKey(0), (256, 256)) * 0.05, jnp.zeros((256, 1))]
w, losses = train(w)
losses.block_until_ready()
print("steps", len(losses))
print("loss", f"{float(losses[-1]):.12f}")
