"""``torch.func``: gradients of a functional call, after "Neural Tangent Kernels" and its like; nothing calls backward."""

import argparse

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1500)
options = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(128, 64).to(device)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
params = {name: p.detach() for name, p in model.named_parameters()}


def loss_fn(params):
    return nn.functional.mse_loss(functional_call(model, params, (x,)), x.sum(1, keepdim=True))


for _step in range(options.steps):
    grads, loss = grad_and_value(loss_fn)(params)
    params = {name: p - 1e-2 * grads[name] for name, p in params.items()}  # the clock: tick()
print("steps", options.steps)
print("loss", f"{loss.item():.12f}")
