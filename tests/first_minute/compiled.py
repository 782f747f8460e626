"""``torch.compile`` of model and loss, after its tutorial; a DataLoader feeds it."""

import torch
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(1600, 32)
model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
steps = 0
for inputs, targets in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16):
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(compiled(inputs), targets)
    loss.backward()
    optimizer.step()
    steps += 1  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.12f}")
