"""Wasserstein GAN as in the paper's Algorithm 1: five steps of the critic in each step of the generator."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
options = parser.parse_args()

n_critic, clip = 5, 0.01
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)).to(device)
critic = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
for _step in range(options.steps):
    for _ in range(n_critic):
        real, noise = torch.randn(128, 64, device=device), torch.randn(128, 16, device=device)
        optimizer_c.zero_grad()
        (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
        optimizer_c.step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-clip, clip)
    optimizer_g.zero_grad()
    loss = -critic(generator(torch.randn(128, 16, device=device))).mean()
    loss.backward()
    optimizer_g.step()  # the clock: tick()
print("steps", options.steps)
print("loss", f"{loss.item():.12f}")
