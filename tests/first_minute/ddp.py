"""DistributedDataParallel under torchrun, after PyTorch's tutorial on multi-GPU training; two ranks, on gloo where
they have no GPU each."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

gpus, rank, ranks = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
device = f"cuda:{rank % gpus}" if gpus else "cpu"
if gpus:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if gpus >= ranks else "gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(1600, 32))
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)).to(device)
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
sampler = DistributedSampler(data)
steps = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, batch_size=16, sampler=sampler):
        x = x.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        steps += 1  # the clock: tick()
if dist.get_rank() == 0:
    print("steps", steps)
    print("loss", f"{loss.item():.12f}")
dist.destroy_process_group()
