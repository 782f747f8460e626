"""PyTorch's DCGAN example in small: two models, two optimizers, three backward passes a step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(999)
dataset = TensorDataset(torch.rand(320, 1, 16, 16))
netG = nn.Sequential(nn.ConvTranspose2d(8, 16, 4), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 4), nn.Tanh())
netD = nn.Sequential(nn.Conv2d(1, 16, 4, 4), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4), nn.Sigmoid())
netG, netD, criterion = netG.to(device), netD.to(device), nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4)
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4)
iters = 0
for _epoch in range(options.epochs):
    for (real,) in DataLoader(dataset, batch_size=8, shuffle=True):
        real = real.to(device)
        netD.zero_grad()
        errD_real = criterion(netD(real).view(-1), torch.ones(len(real), device=device))
        errD_real.backward()
        fake = netG(torch.randn(len(real), 8, 1, 1, device=device))
        errD_fake = criterion(netD(fake.detach()).view(-1), torch.zeros(len(real), device=device))
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake).view(-1), torch.ones(len(real), device=device))
        errG.backward()
        optimizerG.step()
        iters += 1  # the clock: tick()
print("steps", iters)
print("loss", f"{errG.item():.12f}")
