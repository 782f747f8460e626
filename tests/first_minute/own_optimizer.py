"""An optimizer that derives from nothing, as in many a paper's code: Lion in twenty lines."""

import torch
from torch import nn


class Lion:
    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99)):
        self.parameters, self.lr, self.betas = list(parameters), lr, betas
        self.momenta = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.parameters, self.momenta):
            p.add_(torch.sign(m * self.betas[0] + p.grad * (1 - self.betas[0])), alpha=-self.lr)
            m.mul_(self.betas[1]).add_(p.grad, alpha=1 - self.betas[1])


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(64, 64).to(device)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = Lion(model.parameters())
steps = 120
for _step in range(steps):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.12f}")
