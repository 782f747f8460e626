"""Model-agnostic meta-learning, first order: a learner with an optimizer of its own for each task."""

import argparse
import copy

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
options = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
meta_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def adapt(phase):
    learner = copy.deepcopy(model)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.01)
    for _ in range(3):
        x = torch.randn(16, 1)
        optimizer.zero_grad()
        nn.functional.mse_loss(learner(x), torch.sin(x + phase)).backward()
        optimizer.step()
    x = torch.randn(16, 1)
    loss = nn.functional.mse_loss(learner(x), torch.sin(x + phase))
    return loss, torch.autograd.grad(loss, list(learner.parameters()))


for _step in range(options.steps):
    meta_optimizer.zero_grad()
    for phase in torch.rand(4):
        loss, gradients = adapt(phase)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    meta_optimizer.step()  # the clock: tick()
print("steps", options.steps)
print("loss", f"{loss.item():.12f}")
