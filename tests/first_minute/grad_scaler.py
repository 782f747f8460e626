"""Mixed precision with ``GradScaler``, after PyTorch's recipe: the scaler leaves steps out while its scale is too high."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(64, 64).to(device)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=2.0**127, growth_interval=20)
steps = 120
for _step in range(steps):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.9f}")
