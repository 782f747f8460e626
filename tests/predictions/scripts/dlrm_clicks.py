"""Click-through prediction with DLRM (bottom MLP, embedding bags, dot interaction, top MLP) on Criteo-like rows."""
import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"


class CriteoDataset(Dataset):
    """13 counts and 26 categories for each row; a click depends on a few of them."""

    def __init__(self, n, ln_emb, seed):
        rng = np.random.default_rng(seed)
        self.X_int = rng.poisson(rng.gamma(0.5, 20, size=(n, 13))).astype(np.int32)
        self.X_cat = np.stack([(size * rng.random(n) ** 3).astype(np.int32) for size in ln_emb], axis=1)
        score = 0.3 * np.log1p(self.X_int[:, :4]).sum(1) - 0.5 * (self.X_cat[:, :6] % 7 > 3).sum(1)
        self.y = (rng.random(n) < 1 / (1 + np.exp(-(score - score.mean()) + 1.2))).astype(np.int32)

    def __getitem__(self, index):
        return self.X_int[index], self.X_cat[index], self.y[index]

    def __len__(self):
        return len(self.y)


def collate_wrapper_criteo(list_of_tuples):
    # where each tuple is (X_int, X_cat, y)
    transposed_data = list(zip(*list_of_tuples))
    X_int = torch.log(torch.tensor(np.array(transposed_data[0]), dtype=torch.float) + 1)
    X_cat = torch.tensor(np.array(transposed_data[1]), dtype=torch.long)
    T = torch.tensor(transposed_data[2], dtype=torch.float32).view(-1, 1)

    batchSize = X_cat.shape[0]
    featureCnt = X_cat.shape[1]

    lS_i = [X_cat[:, i] for i in range(featureCnt)]
    lS_o = [torch.tensor(range(batchSize)) for _ in range(featureCnt)]

    return X_int, torch.stack(lS_o), torch.stack(lS_i), T


class DLRM_Net(nn.Module):
    def create_mlp(self, ln, sigmoid_layer):
        layers = nn.ModuleList()
        for i in range(0, ln.size - 1):
            n = ln[i]
            m = ln[i + 1]
            LL = nn.Linear(int(n), int(m), bias=True)
            mean = 0.0
            std_dev = np.sqrt(2 / (m + n))
            W = np.random.normal(mean, std_dev, size=(m, n)).astype(np.float32)
            std_dev = np.sqrt(1 / m)
            bt = np.random.normal(mean, std_dev, size=m).astype(np.float32)
            LL.weight.data = torch.tensor(W, requires_grad=True)
            LL.bias.data = torch.tensor(bt, requires_grad=True)
            layers.append(LL)
            layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
        return torch.nn.Sequential(*layers)

    def create_emb(self, m, ln):
        emb_l = nn.ModuleList()
        for n in ln:
            EE = nn.EmbeddingBag(int(n), m, mode="sum", sparse=True)
            W = np.random.uniform(low=-np.sqrt(1 / n), high=np.sqrt(1 / n), size=(n, m)).astype(np.float32)
            EE.weight.data = torch.tensor(W, requires_grad=True)
            emb_l.append(EE)
        return emb_l

    def __init__(self, m_spa, ln_emb, ln_bot, ln_top, sigmoid_top):
        super().__init__()
        self.emb_l = self.create_emb(m_spa, ln_emb)
        self.bot_l = self.create_mlp(ln_bot, -1)
        self.top_l = self.create_mlp(ln_top, sigmoid_top)
        self.loss_fn = torch.nn.BCELoss(reduction="mean")

    def apply_mlp(self, x, layers):
        return layers(x)

    def apply_emb(self, lS_o, lS_i, emb_l):
        ly = []
        for k, sparse_index_group_batch in enumerate(lS_i):
            sparse_offset_group_batch = lS_o[k]
            E = emb_l[k]
            V = E(sparse_index_group_batch, sparse_offset_group_batch)
            ly.append(V)
        return ly

    def interact_features(self, x, ly):
        # concatenate dense and sparse features
        (batch_size, d) = x.shape
        T = torch.cat([x] + ly, dim=1).view((batch_size, -1, d))
        # perform a dot product
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        # append dense feature with the interactions (into a row vector)
        _, ni, nj = Z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        Zflat = Z[:, li, lj]
        # concatenate dense features and interactions
        return torch.cat([x] + [Zflat], dim=1)

    def forward(self, dense_x, lS_o, lS_i):
        # process dense features (using bottom mlp), resulting in a row vector
        x = self.apply_mlp(dense_x, self.bot_l)
        # process sparse features(using embeddings), resulting in a list of row vectors
        ly = self.apply_emb(lS_o, lS_i, self.emb_l)
        # interact features (dense and sparse)
        z = self.interact_features(x, ly)
        # obtain probability of a click (using top mlp)
        p = self.apply_mlp(z, self.top_l)
        return torch.clamp(p, min=1e-7, max=1 - 1e-7)


class LRPolicyScheduler(torch.optim.lr_scheduler.LRScheduler):
    """Linear warm-up, then constant"""

    def __init__(self, optimizer, num_warmup_steps):
        self.num_warmup_steps = num_warmup_steps
        super().__init__(optimizer)

    def get_lr(self):
        scale = min(1.0, (self._step_count + 1) / self.num_warmup_steps)
        return [base_lr * scale for base_lr in self.base_lrs]


def inference(dlrm, test_ld, device):
    test_accu, test_samp = 0, 0
    scores, targets = [], []
    with torch.no_grad():
        for X, lS_o, lS_i, T in test_ld:
            Z = dlrm(X.to(device), lS_o.to(device), lS_i.to(device))
            S = Z.detach().cpu().numpy()
            T = T.detach().cpu().numpy()
            test_accu += np.sum((np.round(S, 0) == T).astype(np.uint8))
            test_samp += T.shape[0]
            scores.append(S)
            targets.append(T)
    scores, targets = np.concatenate(scores).ravel(), np.concatenate(targets).ravel()
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    pos = targets.sum()
    auc = (ranks[targets == 1].sum() - pos * (pos + 1) / 2) / max(1, pos * (len(targets) - pos))
    print(f"Testing: accuracy {100 * test_accu / test_samp:.3f} %, auc {auc:.4f}")


def main():
    parser = argparse.ArgumentParser(description="Train Deep Learning Recommendation Model (DLRM)")
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--arch-sparse-feature-size", type=int, default=8 if SMALL else 64)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--mini-batch-size", type=int, default=64 if SMALL else 2048)
    parser.add_argument("--test-mini-batch-size", type=int, default=64 if SMALL else 8192)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--print-freq", type=int, default=100)
    parser.add_argument("--test-freq", type=int, default=1000)
    args = parser.parse_args()

    np.random.seed(123)
    torch.manual_seed(123)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    ln_emb = np.unique(np.geomspace(4, 500 if SMALL else 400_000, 26).astype(np.int64) + np.arange(26))
    np.random.shuffle(ln_emb)
    m_spa = args.arch_sparse_feature_size
    ln_bot = np.array([13, 16, m_spa] if SMALL else [13, 512, 256, m_spa])
    num_fea = ln_emb.size + 1
    num_int = (num_fea * (num_fea - 1)) // 2 + m_spa
    ln_top = np.array([num_int, 32, 1] if SMALL else [num_int, 512, 256, 1])
    dlrm = DLRM_Net(m_spa, ln_emb, ln_bot, ln_top, sigmoid_top=ln_top.size - 2).to(device)
    optimizer = torch.optim.SGD(dlrm.parameters(), lr=args.learning_rate)
    lr_scheduler = LRPolicyScheduler(optimizer, 500)

    train_data = CriteoDataset(5_000 if SMALL else 1_000_000, ln_emb, 1)
    test_data = CriteoDataset(500 if SMALL else 50_000, ln_emb, 2)
    train_ld = DataLoader(train_data, batch_size=args.mini_batch_size, shuffle=True, num_workers=args.num_workers,
                          collate_fn=collate_wrapper_criteo, pin_memory=False, drop_last=True)
    test_ld = DataLoader(test_data, batch_size=args.test_mini_batch_size, shuffle=False,
                         num_workers=args.num_workers, collate_fn=collate_wrapper_criteo, pin_memory=False)

    ends, t_start, done, k = [], None, False, 0
    total_time = total_loss = total_iter = total_samp = 0
    while not done:
        for j, (X, lS_o, lS_i, T) in enumerate(train_ld):
            t1 = time.time()
            mbs = T.shape[0]

            # forward pass
            Z = dlrm(X.to(device), lS_o.to(device), lS_i.to(device))

            # loss
            E = dlrm.loss_fn(Z, T.to(device))
            L = E.detach().cpu().numpy()  # numpy array

            # scaled error gradient propagation (where we do not accumulate gradients across mini-batches)
            optimizer.zero_grad()
            # backward pass
            E.backward()
            # optimizer
            optimizer.step()
            lr_scheduler.step()

            total_time += time.time() - t1
            total_loss += L * mbs
            total_iter += 1
            total_samp += mbs

            # print time, loss
            if (j + 1) % args.print_freq == 0:
                gT = 1000.0 * total_time / total_iter
                print(f"Finished training it {j + 1}/{len(train_ld)} of epoch {k}, {gT:.2f} ms/it, "
                      f"loss {total_loss / total_samp:.6f}")
                total_time = total_loss = total_iter = total_samp = 0
            if (j + 1) % args.test_freq == 0:
                inference(dlrm, test_ld, device)

            ends.append(time.perf_counter())
            if len(ends) == 5:
                t_start = ends[-1]
            if args.steps:
                done = len(ends) >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        k += 1

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
