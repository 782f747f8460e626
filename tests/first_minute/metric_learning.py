"""pytorch-metric-learning's README: a miner and a triplet loss around an embedding model."""

import torch
from pytorch_metric_learning import losses, miners
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
data = TensorDataset(torch.randn(1600, 64), torch.randint(0, 10, (1600,)))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
miner, loss_func = miners.MultiSimilarityMiner(), losses.TripletMarginLoss()
steps = 0
for _epoch in range(2):
    for batch, labels in DataLoader(data, batch_size=32):
        batch, labels = batch.to(device), labels.to(device)
        optimizer.zero_grad()
        embeddings = model(batch)
        loss = loss_func(embeddings, labels, miner(embeddings, labels))
        loss.backward()
        optimizer.step()
        steps += 1  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.9f}")
