"""Equinox with optax, after its "Train RNN" example: ``eqx.filter_jit``, batches from a generator."""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600)
options = parser.parse_args()


def dataloader(arrays, batch_size, *, key):
    size = arrays[0].shape[0]
    indices = jnp.arange(size)
    while True:
        key, subkey = jax.random.split(key)
        perm = jax.random.permutation(subkey, indices)
        for start in range(0, size - batch_size + 1, batch_size):
            batch = perm[start : start + batch_size]
            yield tuple(array[batch] for array in arrays)


@eqx.filter_value_and_grad
def compute_loss(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


@eqx.filter_jit
def make_step(model, x, y, opt_state):
    loss, grads = compute_loss(model, x, y)
    updates, opt_state = optim.update(grads, opt_state)
    return loss, eqx.apply_updates(model, updates), opt_state


xs = jax.random.normal(jax.random.PRNGKey(1), (2048, 32))
ys = jnp.sum(xs, axis=1, keepdims=True)
model = eqx.nn.MLP(32, 1, 256, 3, key=jax.random.PRNGKey(0))
optim = optax.adam(1e-3)
opt_state = optim.init(eqx.filter(model, eqx.is_array))
for _step, (x, y) in zip(
    range(options.steps), dataloader((xs, ys), 128, key=jax.random.PRNGKey(2)), strict=False
):
    loss, model, opt_state = make_step(model, x, y, opt_state)
    loss = loss.item()  # the clock: tick()
print("steps", options.steps)
print("loss", f"{loss:.9f}")
