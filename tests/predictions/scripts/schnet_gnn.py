"""SchNet-like graph network predicting the energy of small random molecules, pure PyTorch.

Graphs are built on the fly in the Dataset and batched into one big graph, as in PyTorch Geometric.
"""
import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"
CUTOFF = 5.0


class RandomMolecules(Dataset):
    def __init__(self, n, seed=0, max_atoms=29):
        rng = np.random.default_rng(seed)
        self.molecules = []
        for _ in range(n):
            k = int(rng.integers(8, max_atoms + 1))
            z = rng.choice([1, 6, 7, 8, 9], size=k, p=[0.5, 0.35, 0.06, 0.08, 0.01])
            # random walk with a bond length of about 1.4
            steps = rng.normal(size=(k, 3))
            steps = 1.4 * steps / np.linalg.norm(steps, axis=1, keepdims=True)
            parents = [0] + [int(rng.integers(0, i)) for i in range(1, k)]
            pos = np.zeros((k, 3))
            for i in range(1, k):
                pos[i] = pos[parents[i]] + steps[i]
            self.molecules.append((z, pos))

    def __len__(self):
        return len(self.molecules)

    def __getitem__(self, idx):
        z, pos = self.molecules[idx]
        dist = np.linalg.norm(pos[:, None] - pos[None], axis=-1)
        src, dst = np.nonzero((dist < CUTOFF) & ~np.eye(len(z), dtype=bool))
        d = np.maximum(dist[src, dst], 0.8)
        charge = np.sqrt(z[src] * z[dst])
        energy = 0.5 * np.sum(charge * ((1.2 / d) ** 6 - (1.2 / d) ** 3)) / len(z)
        return {
            "z": torch.tensor(z, dtype=torch.long),
            "pos": torch.tensor(pos, dtype=torch.float),
            "edge_index": torch.tensor(np.stack([src, dst]), dtype=torch.long),
            "y": torch.tensor([energy], dtype=torch.float),
        }


class Batch:
    def __init__(self, graphs):
        offsets = np.cumsum([0] + [len(g["z"]) for g in graphs])
        self.num_graphs = len(graphs)
        self.z = torch.cat([g["z"] for g in graphs])
        self.pos = torch.cat([g["pos"] for g in graphs])
        self.edge_index = torch.cat([g["edge_index"] + int(o) for g, o in zip(graphs, offsets)], dim=1)
        self.y = torch.cat([g["y"] for g in graphs])
        self.batch = torch.cat([torch.full((len(g["z"]),), i, dtype=torch.long) for i, g in enumerate(graphs)])

    def to(self, device):
        for key in ("z", "pos", "edge_index", "y", "batch"):
            setattr(self, key, getattr(self, key).to(device))
        return self


def scatter_add(x, index, size):
    out = torch.zeros(size, x.size(1), dtype=x.dtype, device=x.device)
    return out.index_add_(0, index, x)


class GaussianSmearing(nn.Module):
    def __init__(self, start=0.0, stop=CUTOFF, num=50):
        super().__init__()
        offset = torch.linspace(start, stop, num)
        self.coeff = -0.5 / (offset[1] - offset[0]).item() ** 2
        self.register_buffer("offset", offset)

    def forward(self, dist):
        dist = dist.view(-1, 1) - self.offset.view(1, -1)
        return torch.exp(self.coeff * torch.pow(dist, 2))


class ShiftedSoftplus(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = torch.log(torch.tensor(2.0)).item()

    def forward(self, x):
        return F.softplus(x) - self.shift


class InteractionBlock(nn.Module):
    def __init__(self, hidden, num_gaussians):
        super().__init__()
        self.filter = nn.Sequential(
            nn.Linear(num_gaussians, hidden), ShiftedSoftplus(), nn.Linear(hidden, hidden)
        )
        self.lin1 = nn.Linear(hidden, hidden, bias=False)
        self.lin2 = nn.Linear(hidden, hidden)
        self.act = ShiftedSoftplus()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x, edge_index, edge_weight, edge_attr):
        C = 0.5 * (torch.cos(edge_weight * np.pi / CUTOFF) + 1.0)
        W = self.filter(edge_attr) * C.view(-1, 1)
        src, dst = edge_index
        msg = self.lin1(x)[src] * W
        x = scatter_add(msg, dst, x.size(0))
        return self.lin(self.act(self.lin2(x)))


class SchNet(nn.Module):
    def __init__(self, hidden=128, interactions=6, num_gaussians=50):
        super().__init__()
        self.embedding = nn.Embedding(100, hidden, padding_idx=0)
        self.smearing = GaussianSmearing(num=num_gaussians)
        self.interactions = nn.ModuleList(InteractionBlock(hidden, num_gaussians) for _ in range(interactions))
        self.lin1 = nn.Linear(hidden, hidden // 2)
        self.act = ShiftedSoftplus()
        self.lin2 = nn.Linear(hidden // 2, 1)

    def forward(self, z, pos, edge_index, batch):
        h = self.embedding(z)
        src, dst = edge_index
        edge_weight = (pos[src] - pos[dst]).norm(dim=-1)
        edge_attr = self.smearing(edge_weight)
        for interaction in self.interactions:
            h = h + interaction(h, edge_index, edge_weight, edge_attr)
        h = self.lin2(self.act(self.lin1(h)))
        num_graphs = int(batch.max()) + 1
        total = scatter_add(h, batch, num_graphs)
        count = torch.bincount(batch, minlength=num_graphs).view(-1, 1)
        return (total / count).view(-1)


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    error = 0
    for data in loader:
        data = data.to(device)
        out = model(data.z, data.pos, data.edge_index, data.batch)
        error += (out - data.y).abs().sum().item()
    model.train()
    return error / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=8 if SMALL else 256)
    parser.add_argument("--lr", type=float, default=5e-4)
    args = parser.parse_args()

    torch.manual_seed(12345)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = RandomMolecules(160 if SMALL else 20_000, seed=0)
    val_set = RandomMolecules(16 if SMALL else 1_000, seed=1)
    workers = 0 if SMALL else 4
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, collate_fn=Batch, num_workers=workers)
    val_loader = DataLoader(val_set, args.batch_size, collate_fn=Batch, num_workers=workers)

    model = (SchNet(16, 2, 10) if SMALL else SchNet()).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=5, min_lr=1e-5)

    ends, t_start, done, epoch = [], None, False, 0
    while not done:
        epoch += 1
        model.train()
        total_loss = 0
        for data in train_loader:
            data = data.to(device)
            optimizer.zero_grad()
            out = model(data.z, data.pos, data.edge_index, data.batch)
            loss = F.mse_loss(out, data.y)
            loss.backward()
            optimizer.step()
            total_loss += loss.item() * data.num_graphs

            ends.append(time.perf_counter())
            if len(ends) == 5:
                t_start = ends[-1]
            if args.steps:
                done = len(ends) >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        val_error = test(model, val_loader, device)
        scheduler.step(val_error)
        print(f"Epoch: {epoch:03d}, Loss: {total_loss / len(train_set):.5f}, Val MAE: {val_error:.5f}")

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
