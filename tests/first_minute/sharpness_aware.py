"""Sharpness-aware minimization, after davda54/sam: two backward passes, first_step and second_step."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        norm = torch.norm(torch.stack([parameter.grad.norm() for parameter in parameters]))
        for parameter in parameters:
            shift = parameter.grad * 0.05 / (norm + 1e-12)
            parameter.add_(shift)
            self.state[parameter]["shift"] = shift
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.state[parameter]["shift"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self):
        raise NotImplementedError


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
steps = 150
for _ in range(steps):
    x, y = torch.randn(64, 128), torch.randint(0, 10, (64,))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.first_step()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.second_step()  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.12f}")
