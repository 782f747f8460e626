"""Flax NNX with optax, after its "MNIST tutorial": ``nnx.jit`` train step, metrics, an epoch loop with evaluation."""

import argparse

import numpy as np
import optax
from flax import nnx

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--eval-every", type=int, default=200)
options = parser.parse_args()


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 8, kernel_size=(3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(8, 16, kernel_size=(3, 3), rngs=rngs)
        self.linear = nnx.Linear(16 * 7 * 7, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.avg_pool(nnx.relu(self.conv1(x)), (2, 2), strides=(2, 2))
        x = nnx.avg_pool(nnx.relu(self.conv2(x)), (2, 2), strides=(2, 2))
        return self.linear(x.reshape(x.shape[0], -1))


def loss_fn(model, batch):
    logits = model(batch["image"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), logits


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])
    optimizer.update(model, grads)


@nnx.jit
def eval_step(model, metrics, batch):
    loss, logits = loss_fn(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])


rng = np.random.default_rng(0)
train_set = [
    {"image": rng.normal(size=(16, 28, 28, 1)).astype(np.float32), "label": rng.integers(0, 10, 16)}
    for _ in range(64)
]
model = CNN(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adamw(0.005), wrt=nnx.Param)
metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
for step in range(options.steps):
    train_step(model, optimizer, metrics, train_set[step % 64])  # the clock: tick()
    if step > 0 and step % options.eval_every == 0:
        metrics.reset()
        for test_batch in train_set[:8]:
            eval_step(model, metrics, test_batch)
        print(step, {name: round(float(value), 6) for name, value in metrics.compute().items()})
        metrics.reset()
print("steps", options.steps)
print("loss", f"{float(metrics.compute()['loss']):.9f}")
