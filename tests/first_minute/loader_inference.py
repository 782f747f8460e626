"""Inference over a DataLoader, as in the evaluation half of PyTorch's quick start."""

import torch
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(3200, 64)
layers = (
    torch.nn.Linear(64, 2048),
    torch.nn.ReLU(),
    torch.nn.Linear(2048, 512),
    torch.nn.ReLU(),
    torch.nn.Linear(512, 10),
)
model = torch.nn.Sequential(*layers).to(device)
model.eval()
batches, total = 0, 0.0
with torch.no_grad():
    for (inputs,) in DataLoader(TensorDataset(x), batch_size=32):
        total += model(inputs.to(device)).sum().item()
        batches += 1  # the clock: tick()
print("steps", batches)
print("loss", f"{total:.6f}")
