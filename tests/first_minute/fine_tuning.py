"""Transfer learning in two stages: the head alone, then all layers with another optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(64, 256), nn.ReLU()), nn.Linear(256, 10)
model = nn.Sequential(body, head)
loader = DataLoader(
    TensorDataset(torch.randn(1600, 64), torch.randint(0, 10, (1600,))), batch_size=32, shuffle=True
)
steps = 0


def fit(optimizer, epochs):
    global steps
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            steps += 1  # the clock: tick()
    return loss


def main():
    for parameter in body.parameters():
        parameter.requires_grad_(False)
    of_head = torch.optim.AdamW(head.parameters(), lr=1e-3)
    fit(of_head, epochs=2)
    for parameter in body.parameters():
        parameter.requires_grad_(True)
    of_all = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return fit(of_all, epochs=2)


loss = main()
print("steps", steps)
print("loss", f"{loss.item():.12f}")
