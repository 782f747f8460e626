"""Flax Linen with ``TrainState``, after its MNIST example: a jitted ``train_step`` in a plain loop."""

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=800)
options = parser.parse_args()


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(features=8, kernel_size=(3, 3))(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2)).reshape((x.shape[0], -1))
        return nn.Dense(features=10)(x)


@jax.jit
def train_step(state, images, labels):
    def loss_fn(params):
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


images = jax.random.normal(jax.random.PRNGKey(0), (64, 28, 28, 1))
labels = jnp.arange(64) % 10
cnn = CNN()
params = cnn.init(jax.random.PRNGKey(1), images)["params"]
state = TrainState.create(apply_fn=cnn.apply, params=params, tx=optax.sgd(0.1, 0.9))
for _step in range(options.steps):
    state, loss = train_step(state, images, labels)  # the clock: tick()
print("steps", int(state.step))
print("loss", f"{float(loss):.9f}")
