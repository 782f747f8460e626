"""Hand-written SGD, after PyTorch's tutorial "What is torch.nn really?": no optimizer object at all."""

import argparse

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(4096, 64).to(device)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)).to(device)
for step in range(options.steps):
    i = step % 64 * 64
    loss = F.cross_entropy(model(x[i : i + 64]), y[i : i + 64])
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad * 0.1
        model.zero_grad()  # the clock: tick()
print("steps", options.steps)
print("loss", f"{loss.item():.12f}")
