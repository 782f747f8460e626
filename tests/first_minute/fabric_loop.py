"""Lightning Fabric, after "Convert PyTorch code to Fabric"."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = L.Fabric(devices=1)
fabric.launch()
torch.manual_seed(0)
x = torch.randn(1600, 64)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16))
model.train()
steps = 0
for _epoch in range(2):
    for source, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(source), target)
        fabric.backward(loss)
        optimizer.step()
        steps += 1  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.12f}")
