"""JAX: the loop over the twelve batches of an epoch is in a function that says so."""

import argparse

import jax
import jax.numpy as jnp

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=300)
options = parser.parse_args()


@jax.jit
def update(weights, x):
    loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((jnp.tanh(x @ weights) - x) ** 2))(weights)
    return weights - 0.1 * gradient, loss


def train_one_epoch(weights, batches):
    for x in batches:
        weights, loss = update(weights, x)
        loss = loss.item()  # the clock: tick()
    return weights, loss


batches = list(jax.random.normal(jax.random.PRNGKey(0), (12, 512, 64)))
weights = jnp.eye(64) * 0.1
for _ in range(options.epochs):
    weights, loss = train_one_epoch(weights, batches)
print("steps", 12 * options.epochs)
print("loss", f"{loss:.9f}")
