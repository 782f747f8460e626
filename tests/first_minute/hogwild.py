"""Hogwild, after PyTorch's ``mnist_hogwild``: processes train one shared model, the parent evaluates it afterwards."""

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 100


def dataset():
    x = torch.randn(1600, 32, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


def train(rank, model):
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
    for x, y in DataLoader(dataset(), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()  # the clock: tick()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1)).share_memory()
    processes = [mp.Process(target=train, args=(rank, model)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    model.eval()
    with torch.no_grad():
        for x, _ in DataLoader(dataset(), batch_size=100):
            model(x)
    print("steps", STEPS)
