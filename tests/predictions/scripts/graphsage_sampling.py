"""GraphSAGE with neighbour sampling on a products-like graph, in plain PyTorch (no PyG, no DGL)."""
import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

SMALL = os.environ.get("SMALL") == "1"


def make_graph(num_nodes, avg_degree, num_features, num_classes, seed=0):
    """A graph whose nodes prefer neighbours of their own class; degrees have a long tail. CSR by destination."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.integers(0, num_classes, num_nodes))
    starts = np.searchsorted(y, np.arange(num_classes + 1))
    degree = np.minimum(rng.zipf(2.2, num_nodes) * (avg_degree // 3) + 1, 2000)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    dst_class = np.repeat(y, degree)
    same = rng.random(indptr[-1]) < 0.7
    own = starts[dst_class] + (rng.random(indptr[-1]) * (starts[dst_class + 1] - starts[dst_class])).astype(np.int64)
    indices = np.where(same, own, rng.integers(0, num_nodes, indptr[-1]))
    centers = rng.normal(size=(num_classes, num_features)).astype(np.float32)
    x = rng.standard_normal((num_nodes, num_features), dtype=np.float32) + 0.5 * centers[y]
    return indptr, indices, torch.from_numpy(x), torch.from_numpy(y)


class NeighborSampler(DataLoader):
    """Samples a tree of neighbours for each batch of nodes, and relabels them from outer to inner layer."""

    def __init__(self, indptr, indices, node_idx, sizes, **kwargs):
        self.indptr, self.indices = indptr, indices
        self.sizes = sizes
        super().__init__(node_idx.tolist(), collate_fn=self.sample, **kwargs)

    def sample(self, batch):
        n_id = np.asarray(batch)
        batch_size = len(n_id)
        adjs = []
        for size in self.sizes:
            start = self.indptr[n_id]
            degree = self.indptr[n_id + 1] - start
            picks = start[:, None] + (np.random.rand(len(n_id), size) * degree[:, None]).astype(np.int64)
            neighbors = self.indices[picks].reshape(-1)
            dst = np.repeat(np.arange(len(n_id)), size)

            # relabel: the target nodes come first, then the new ones
            nodes, inverse = np.unique(np.concatenate([n_id, neighbors]), return_inverse=True)
            local = np.full(len(nodes), -1)
            local[inverse[: len(n_id)]] = np.arange(len(n_id))
            new = np.flatnonzero(local < 0)
            local[new] = np.arange(len(n_id), len(nodes))
            src = local[inverse[len(n_id) :]]

            edge_index = torch.from_numpy(np.stack([src, dst]))
            adjs.append((edge_index, (len(nodes), len(n_id))))
            n_id = np.concatenate([n_id, nodes[new]])
        return batch_size, torch.from_numpy(n_id), adjs[::-1]


class SAGEConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin_l = nn.Linear(in_channels, out_channels)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x, edge_index):
        x, x_target = x
        src, dst = edge_index
        out = torch.zeros(x_target.size(0), x.size(1), device=x.device)
        out.index_add_(0, dst, x[src])
        count = torch.zeros(x_target.size(0), device=x.device)
        count.index_add_(0, dst, torch.ones(dst.size(0), device=x.device))
        out = out / count.clamp(min=1).unsqueeze(-1)
        return self.lin_l(out) + self.lin_r(x_target)


class SAGE(nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers):
        super().__init__()
        dims = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.convs = nn.ModuleList(SAGEConv(i, o) for i, o in zip(dims[:-1], dims[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(d) for d in dims[1:-1])

    def forward(self, x, adjs):
        for i, (edge_index, size) in enumerate(adjs):
            x_target = x[: size[1]]  # Target nodes are always placed first.
            x = self.convs[i]((x, x_target), edge_index)
            if i != len(self.convs) - 1:
                x = self.norms[i](x)
                x = F.relu(x)
                x = F.dropout(x, p=0.5, training=self.training)
        return x.log_softmax(dim=-1)


@torch.no_grad()
def test(model, loader, x, y, device):
    model.eval()
    correct = total = 0
    for batch_size, n_id, adjs in loader:
        adjs = [(e.to(device), size) for e, size in adjs]
        out = model(x[n_id].to(device), adjs)
        correct += int((out.argmax(dim=-1).cpu() == y[n_id[:batch_size]]).sum())
        total += batch_size
    model.train()
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=32 if SMALL else 1024)
    parser.add_argument("--hidden_channels", type=int, default=16 if SMALL else 256)
    parser.add_argument("--num_workers", type=int, default=1 if SMALL else 4)
    parser.add_argument("--lr", type=float, default=0.003)
    args = parser.parse_args()

    torch.manual_seed(0)
    np.random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    num_nodes, num_classes = (2_000, 5) if SMALL else (400_000, 47)
    indptr, indices, x, y = make_graph(num_nodes, 25, 100, num_classes)
    print(f"{num_nodes} nodes, {len(indices)} edges")
    perm = torch.randperm(num_nodes)
    train_idx, valid_idx = perm[: num_nodes // 2], perm[-num_nodes // 40 :]

    sizes = [15, 10] if SMALL else [15, 10, 5]
    train_loader = NeighborSampler(indptr, indices, train_idx, sizes, batch_size=args.batch_size, shuffle=True,
                                   num_workers=args.num_workers)
    valid_loader = NeighborSampler(indptr, indices, valid_idx, sizes, batch_size=args.batch_size,
                                   num_workers=args.num_workers)
    model = SAGE(x.size(1), args.hidden_channels, num_classes, len(sizes)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    ends, t_start, done, epoch = [], None, False, 0
    while not done:
        epoch += 1
        pbar = tqdm(total=train_idx.size(0))
        pbar.set_description(f"Epoch {epoch:02d}")
        total_loss = total_correct = count = 0
        for batch_size, n_id, adjs in train_loader:
            # `adjs` holds a list of `(edge_index, size)` tuples.
            adjs = [(e.to(device), size) for e, size in adjs]
            target = y[n_id[:batch_size]].to(device)

            optimizer.zero_grad()
            out = model(x[n_id].to(device), adjs)
            loss = F.nll_loss(out, target)
            loss.backward()
            optimizer.step()

            total_loss += float(loss)
            total_correct += int(out.argmax(dim=-1).eq(target).sum())
            count += batch_size
            pbar.update(batch_size)

            ends.append(time.perf_counter())
            if len(ends) == 5:
                t_start = ends[-1]
            if args.steps:
                done = len(ends) >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        pbar.close()
        if not done:
            acc = test(model, valid_loader, x, y, device)
            print(f"Epoch {epoch:02d}, Loss: {total_loss / len(train_loader):.4f}, "
                  f"Train: {total_correct / count:.4f}, Val: {acc:.4f}")

    gaps = np.diff(ends)
    print(f"\nmedian step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
