"""ResNet-18 on CIFAR-like images in JAX: layers and optimiser written out, batches from a PyTorch DataLoader."""
import argparse
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"

MEAN = np.array([0.4914, 0.4822, 0.4465], dtype=np.float32)
STD = np.array([0.2470, 0.2435, 0.2616], dtype=np.float32)


# ------------------------------------------------------------------ data
class FakeCIFAR(Dataset):
    def __init__(self, n, train, seed):
        rng = np.random.default_rng(seed)
        self.train = train
        self.labels = rng.integers(0, 10, n)
        yy, xx = np.mgrid[0:32, 0:32] / 32
        waves = np.stack([np.sin(2 * np.pi * ((1 + c % 4) * xx + (1 + c // 4) * yy)) for c in range(10)])
        images = 40 * rng.standard_normal((n, 32, 32, 3), dtype=np.float32)
        images += 128 + 60 * waves.astype(np.float32)[self.labels][..., None]
        self.images = np.clip(images, 0, 255, out=images).astype(np.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = self.images[i]
        if self.train:
            img = np.pad(img, ((4, 4), (4, 4), (0, 0)), mode="reflect")
            top, left = np.random.randint(0, 9, 2)
            img = img[top : top + 32, left : left + 32]
            if np.random.rand() < 0.5:
                img = img[:, ::-1]
        img = img.astype(np.float32) / 255.0
        return (img - MEAN) / STD, self.labels[i]


def numpy_collate(batch):
    if isinstance(batch[0], np.ndarray):
        return np.stack(batch)
    elif isinstance(batch[0], (tuple, list)):
        transposed = zip(*batch)
        return [numpy_collate(samples) for samples in transposed]
    else:
        return np.array(batch)


# ------------------------------------------------------------------ model
def conv_init(key, k, cin, cout):
    return jax.random.normal(key, (k, k, cin, cout)) * np.sqrt(2 / (k * k * cout))


def bn_init(c):
    return {"scale": jnp.ones(c), "bias": jnp.zeros(c)}, {"mean": jnp.zeros(c), "var": jnp.ones(c)}


def conv(x, w, stride=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_norm(x, p, s, train, momentum=0.9, eps=1e-5):
    if train:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        s = {"mean": momentum * s["mean"] + (1 - momentum) * mean, "var": momentum * s["var"] + (1 - momentum) * var}
    else:
        mean, var = s["mean"], s["var"]
    return (x - mean) * lax.rsqrt(var + eps) * p["scale"] + p["bias"], s


def resnet_init(key, width, blocks):
    keys = iter(jax.random.split(key, 64))
    params, state = {"conv": conv_init(next(keys), 3, 3, width)}, {}
    params["bn"], state["bn"] = bn_init(width)
    cin = width
    for stage, n in enumerate(blocks):
        for block in range(n):
            cout = width * 2**stage
            p, s = {}, {}
            p["conv1"], p["conv2"] = conv_init(next(keys), 3, cin, cout), conv_init(next(keys), 3, cout, cout)
            p["bn1"], s["bn1"] = bn_init(cout)
            p["bn2"], s["bn2"] = bn_init(cout)
            if cin != cout:
                p["proj"] = conv_init(next(keys), 1, cin, cout)
                p["bn3"], s["bn3"] = bn_init(cout)
            params[f"s{stage}b{block}"], state[f"s{stage}b{block}"] = p, s
            cin = cout
    params["fc"] = {"w": jax.random.normal(next(keys), (cin, 10)) * 0.01, "b": jnp.zeros(10)}
    return params, state


def resnet_apply(params, state, x, blocks, train):
    new = {}
    x = conv(x, params["conv"])
    x, new["bn"] = batch_norm(x, params["bn"], state["bn"], train)
    x = jax.nn.relu(x)
    for stage, n in enumerate(blocks):
        for block in range(n):
            name = f"s{stage}b{block}"
            p, s, ns = params[name], state[name], {}
            stride = 2 if stage > 0 and block == 0 else 1
            h = conv(x, p["conv1"], stride)
            h, ns["bn1"] = batch_norm(h, p["bn1"], s["bn1"], train)
            h = jax.nn.relu(h)
            h = conv(h, p["conv2"])
            h, ns["bn2"] = batch_norm(h, p["bn2"], s["bn2"], train)
            if "proj" in p:
                x = conv(x, p["proj"], stride)
                x, ns["bn3"] = batch_norm(x, p["bn3"], s["bn3"], train)
            x = jax.nn.relu(x + h)
            new[name] = ns
    x = x.mean((1, 2))
    return x @ params["fc"]["w"] + params["fc"]["b"], new


# ------------------------------------------------------------------ training
def compute_metrics(logits, labels):
    loss = -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 10) * jax.nn.log_softmax(logits), axis=-1))
    return {"loss": loss, "accuracy": jnp.mean(jnp.argmax(logits, -1) == labels)}


def l2(params):
    return sum(jnp.sum(p**2) for p in jax.tree_util.tree_leaves(params) if p.ndim > 1)


@partial(jax.jit, static_argnums=(6,))
def train_step(params, state, velocity, images, labels, lr, blocks):
    def loss_fn(params):
        logits, new_state = resnet_apply(params, state, images, blocks, train=True)
        metrics = compute_metrics(logits, labels)
        return metrics["loss"] + 0.5 * 5e-4 * l2(params), (new_state, metrics)

    grads, (new_state, metrics) = jax.grad(loss_fn, has_aux=True)(params)
    velocity = jax.tree_util.tree_map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree_util.tree_map(lambda p, v: p - lr * v, params, velocity)
    return params, new_state, velocity, metrics


@partial(jax.jit, static_argnums=(4,))
def eval_step(params, state, images, labels, blocks):
    logits, _ = resnet_apply(params, state, images, blocks, train=False)
    return compute_metrics(logits, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=16 if SMALL else 256)
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--num_epochs", type=int, default=30)
    args = parser.parse_args()
    print("devices:", jax.devices())
    np.random.seed(0)

    train_loader = DataLoader(FakeCIFAR(400 if SMALL else 50_000, True, 1), batch_size=args.batch_size, shuffle=True,
                              collate_fn=numpy_collate, drop_last=True)
    test_loader = DataLoader(FakeCIFAR(64 if SMALL else 5_000, False, 2), batch_size=args.batch_size,
                             collate_fn=numpy_collate, drop_last=True)
    blocks = (1, 1) if SMALL else (2, 2, 2, 2)
    params, state = resnet_init(jax.random.PRNGKey(0), 8 if SMALL else 64, blocks)
    velocity = jax.tree_util.tree_map(jnp.zeros_like, params)
    print("parameters:", sum(p.size for p in jax.tree_util.tree_leaves(params)))

    steps_per_epoch = len(train_loader)
    total = args.num_epochs * steps_per_epoch
    warmup = 2 * steps_per_epoch

    def learning_rate_fn(step):
        if step < warmup:
            return args.learning_rate * step / warmup
        return args.learning_rate * 0.5 * (1 + np.cos(np.pi * min(1.0, (step - warmup) / (total - warmup))))

    ends, t_start, done, step, epoch = [], None, False, 0, 0
    while not done:
        batch_metrics = []
        for images, labels in train_loader:
            lr = learning_rate_fn(step)
            params, state, velocity, metrics = train_step(params, state, velocity, images, labels, lr, blocks)
            batch_metrics.append(jax.device_get(metrics))
            step += 1

            ends.append(time.perf_counter())
            if step == 5:
                t_start = ends[-1]
            if args.steps:
                done = step >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        train = {k: np.mean([m[k] for m in batch_metrics]) for k in batch_metrics[0]}
        evals = [jax.device_get(eval_step(params, state, x, y, blocks)) for x, y in test_loader]
        test = {k: np.mean([m[k] for m in evals]) for k in evals[0]}
        epoch += 1
        print(f"train epoch: {epoch}, loss: {train['loss']:.4f}, accuracy: {train['accuracy'] * 100:.2f}, "
              f"test loss: {test['loss']:.4f}, test accuracy: {test['accuracy'] * 100:.2f}")

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
