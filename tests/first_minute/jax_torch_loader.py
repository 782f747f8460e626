"""A torch DataLoader feeding a jitted JAX step, after JAX's "Training a simple neural network, with PyTorch data loading"."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=6400)
options = parser.parse_args()


class Numbers(Dataset):
    def __len__(self):
        return options.samples

    def __getitem__(self, index):
        return np.random.default_rng(index).normal(size=64).astype(np.float32)


def loss_fn(w, x):
    return jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - x.sum(1, keepdims=True)) ** 2)


@jax.jit
def update(w, x):
    return [a - 0.01 * b for a, b in zip(w, jax.grad(loss_fn)(w, x), strict=True)]


w = [jax.random.normal(jax.random.PRNGKey(0), (64, 64)) * 0.1, jnp.zeros((64, 1))]
steps = 0
for x in DataLoader(Numbers(), batch_size=32, collate_fn=np.stack):
    w = update(w, x)
    steps += 1  # the clock: tick()
print("steps", steps)
print("loss", f"{float(loss_fn(w, x)):.9f}")
