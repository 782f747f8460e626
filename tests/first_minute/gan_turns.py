"""A GAN whose discriminator steps three times and whose generator steps twice, each in a loop."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
discriminator = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
loss_of = nn.BCEWithLogitsLoss()
steps = 100
for _step in range(steps):
    for _ in range(3):
        real, fake = torch.randn(64, 64), generator(torch.randn(64, 16)).detach()
        optimizer_d.zero_grad()
        loss_d = loss_of(discriminator(real), torch.ones(64, 1)) + loss_of(
            discriminator(fake), torch.zeros(64, 1)
        )
        loss_d.backward()
        optimizer_d.step()
    for _ in range(2):
        optimizer_g.zero_grad()
        loss = loss_of(discriminator(generator(torch.randn(64, 16))), torch.ones(64, 1))
        loss.backward()
        optimizer_g.step()  # the clock: tick() if _ == 1 else None
print("steps", steps)
print("loss", f"{loss.item():.12f}")
