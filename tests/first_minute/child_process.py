"""A training in a process of its own, started by multiprocessing."""

import multiprocessing

import torch
from torch import nn


def train(steps, results):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        x = torch.randn(64, 64)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()  # the clock: tick()
    results.put(loss.item())


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=train, args=(150, results))
    child.start()
    loss = results.get()
    child.join()
    print("steps", 150)
    print("loss", f"{loss:.12f}")
