"""Haiku's MNIST example: ``hk.transform``, Optax, and a jitted update in a plain loop."""

import argparse

import haiku as hk
import jax
import jax.numpy as jnp
import optax

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=800)
options = parser.parse_args()


def net_fn(images):
    return hk.Sequential([hk.Linear(300), jax.nn.relu, hk.Linear(100), jax.nn.relu, hk.Linear(10)])(images)


network = hk.without_apply_rng(hk.transform(net_fn))
optimiser = optax.adam(1e-3)
images = jax.random.normal(jax.random.PRNGKey(0), (256, 784))
labels = jnp.arange(256) % 10


def loss(params):
    log_likelihood = jax.nn.log_softmax(network.apply(params, images))
    return -jnp.mean(jnp.take_along_axis(log_likelihood, labels[:, None], 1))


@jax.jit
def update(params, opt_state):
    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = optimiser.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, value


params = network.init(jax.random.PRNGKey(1), images)
opt_state = optimiser.init(params)
for step in range(options.steps):
    params, opt_state, value = update(params, opt_state)  # the clock: tick()
    if step % 100 == 0:
        print(f"[Step {step}] loss {float(value):.4f}")
print("steps", options.steps)
print("loss", f"{float(value):.9f}")
