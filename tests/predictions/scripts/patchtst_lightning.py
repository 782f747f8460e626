"""Long-term forecasting with PatchTST (channel independence, RevIN, residual attention) in Lightning."""
import argparse
import os
import tempfile
import time

import lightning.pytorch as pl
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanAbsoluteError, MeanSquaredError

SMALL = os.environ.get("SMALL") == "1"


def make_load_curves(length, channels, seed=0):
    """Hourly consumption of many clients: daily, weekly and yearly cycles, trend and noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(length)[:, None]
    values = np.zeros((length, channels))
    for period in (24, 168, 8760):
        amplitude, phase = rng.uniform(0.2, 1.5, channels), rng.uniform(0, 2 * np.pi, channels)
        values += amplitude * np.sin(2 * np.pi * t / period + phase)
    values += rng.normal(0, 2e-5, channels) * t + rng.normal(0, 0.3, (length, channels))
    level = rng.uniform(50, 5000, channels)
    stamps = np.stack([t[:, 0] % 24 / 23, t[:, 0] // 24 % 7 / 6, t[:, 0] // 24 % 30 / 29, t[:, 0] // 24 % 365 / 364], 1)
    return level * np.exp(0.2 * values), stamps - 0.5


class Dataset_Custom(Dataset):
    def __init__(self, data, stamps, flag, seq_len, label_len, pred_len):
        num_train, num_test = int(len(data) * 0.7), int(len(data) * 0.2)
        num_vali = len(data) - num_train - num_test
        border1 = {"train": 0, "val": num_train - seq_len}[flag]
        border2 = {"train": num_train, "val": num_train + num_vali}[flag]
        mean, std = data[:num_train].mean(0), data[:num_train].std(0)
        data = (data - mean) / std
        self.data_x = data[border1:border2]
        self.data_y = data[border1:border2]
        self.data_stamp = stamps[border1:border2]
        self.seq_len, self.label_len, self.pred_len = seq_len, label_len, pred_len

    def __getitem__(self, index):
        s_begin = index
        s_end = s_begin + self.seq_len
        r_begin = s_end - self.label_len
        r_end = r_begin + self.label_len + self.pred_len
        seq_x = self.data_x[s_begin:s_end]
        seq_y = self.data_y[r_begin:r_end]
        seq_x_mark = self.data_stamp[s_begin:s_end]
        seq_y_mark = self.data_stamp[r_begin:r_end]
        return seq_x, seq_y, seq_x_mark, seq_y_mark

    def __len__(self):
        return len(self.data_x) - self.seq_len - self.pred_len + 1


class RevIN(nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.affine_weight = nn.Parameter(torch.ones(num_features))
        self.affine_bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x, mode):
        if mode == "norm":
            self.mean = torch.mean(x, dim=1, keepdim=True).detach()
            self.stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + self.eps).detach()
            x = (x - self.mean) / self.stdev
            return x * self.affine_weight + self.affine_bias
        x = (x - self.affine_bias) / (self.affine_weight + self.eps * self.eps)
        return x * self.stdev + self.mean


class Transpose(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.transpose(*self.dims)


class ScaledDotProductAttention(nn.Module):
    """Scaled dot-product attention with optional residual scores (Realformer)"""

    def __init__(self, d_model, n_heads, attn_dropout=0.0):
        super().__init__()
        self.attn_dropout = nn.Dropout(attn_dropout)
        self.scale = nn.Parameter(torch.tensor((d_model // n_heads) ** -0.5), requires_grad=False)

    def forward(self, q, k, v, prev=None):
        attn_scores = torch.matmul(q, k) * self.scale
        if prev is not None:
            attn_scores = attn_scores + prev
        attn_weights = F.softmax(attn_scores, dim=-1)
        attn_weights = self.attn_dropout(attn_weights)
        output = torch.matmul(attn_weights, v)
        return output, attn_weights, attn_scores


class MultiheadAttention(nn.Module):
    def __init__(self, d_model, n_heads, proj_dropout=0.0):
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.W_Q, self.W_K, self.W_V = (nn.Linear(d_model, d_model) for _ in range(3))
        self.sdp_attn = ScaledDotProductAttention(d_model, n_heads)
        self.to_out = nn.Sequential(nn.Linear(d_model, d_model), nn.Dropout(proj_dropout))

    def forward(self, Q, prev=None):
        bs = Q.size(0)
        q_s = self.W_Q(Q).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)
        k_s = self.W_K(Q).view(bs, -1, self.n_heads, self.d_k).permute(0, 2, 3, 1)
        v_s = self.W_V(Q).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)
        output, attn_weights, attn_scores = self.sdp_attn(q_s, k_s, v_s, prev=prev)
        output = output.transpose(1, 2).contiguous().view(bs, -1, self.n_heads * self.d_k)
        return self.to_out(output), attn_weights, attn_scores


class TSTEncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, n_heads, proj_dropout=dropout)
        self.dropout_attn = nn.Dropout(dropout)
        self.norm_attn = nn.Sequential(Transpose(1, 2), nn.BatchNorm1d(d_model), Transpose(1, 2))
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.dropout_ffn = nn.Dropout(dropout)
        self.norm_ffn = nn.Sequential(Transpose(1, 2), nn.BatchNorm1d(d_model), Transpose(1, 2))

    def forward(self, src, prev=None):
        src2, _, scores = self.self_attn(src, prev)
        src = src + self.dropout_attn(src2)
        src = self.norm_attn(src)
        src2 = self.ff(src)
        src = src + self.dropout_ffn(src2)
        src = self.norm_ffn(src)
        return src, scores


class PatchTST(nn.Module):
    def __init__(self, c_in, seq_len, pred_len, patch_len=16, stride=8, d_model=128, n_heads=16, d_ff=256,
                 e_layers=3, dropout=0.2):
        super().__init__()
        self.revin = RevIN(c_in)
        self.patch_len, self.stride = patch_len, stride
        patch_num = (seq_len - patch_len) // stride + 2
        self.padding_patch_layer = nn.ReplicationPad1d((0, stride))
        self.W_P = nn.Linear(patch_len, d_model)
        self.W_pos = nn.Parameter(torch.empty(patch_num, d_model).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(TSTEncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(e_layers))
        self.head = nn.Sequential(nn.Flatten(start_dim=-2), nn.Linear(d_model * patch_num, pred_len), nn.Dropout(0.0))

    def forward(self, x):
        x = self.revin(x, "norm")
        x = x.permute(0, 2, 1)  # x: [bs x nvars x seq_len]
        x = self.padding_patch_layer(x)
        x = x.unfold(dimension=-1, size=self.patch_len, step=self.stride)  # [bs x nvars x patch_num x patch_len]
        n_vars = x.shape[1]
        x = self.W_P(x)
        u = torch.reshape(x, (x.shape[0] * x.shape[1], x.shape[2], x.shape[3]))
        u = self.dropout(u + self.W_pos)
        scores = None
        for layer in self.layers:
            u, scores = layer(u, scores)
        z = torch.reshape(u, (-1, n_vars, u.shape[-2], u.shape[-1]))
        z = z.permute(0, 1, 3, 2)  # [bs x nvars x d_model x patch_num]
        z = self.head(z).permute(0, 2, 1)
        return self.revin(z, "denorm")


class LitForecaster(pl.LightningModule):
    def __init__(self, c_in, seq_len, pred_len, lr=1e-4, max_steps=20_000, **model):
        super().__init__()
        self.save_hyperparameters()
        self.model = PatchTST(c_in, seq_len, pred_len, **model)
        self.train_mae = MeanAbsoluteError()
        self.val_mse, self.val_mae = MeanSquaredError(), MeanAbsoluteError()

    def forward(self, x):
        return self.model(x)

    def shared_step(self, batch):
        batch_x, batch_y, batch_x_mark, batch_y_mark = batch
        batch_x = batch_x.float()
        batch_y = batch_y.float()
        outputs = self(batch_x)
        outputs = outputs[:, -self.hparams.pred_len :, :].contiguous()
        target = batch_y[:, -self.hparams.pred_len :, :].contiguous()
        return outputs, target

    def training_step(self, batch, batch_idx):
        outputs, target = self.shared_step(batch)
        loss = F.mse_loss(outputs, target)
        self.train_mae(outputs, target)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_mae", self.train_mae, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        outputs, target = self.shared_step(batch)
        self.val_mse(outputs, target)
        self.val_mae(outputs, target)
        self.log("val_mse", self.val_mse, prog_bar=True)
        self.log("val_mae", self.val_mae, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr, total_steps=self.hparams.max_steps, pct_start=0.3
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class TimeLimit(pl.Callback):
    def __init__(self, seconds, steps):
        self.seconds, self.steps = seconds, steps
        self.ends, self.t_start = [], None

    def on_train_batch_end(self, trainer, *_):
        self.ends.append(time.perf_counter())
        if len(self.ends) == 5:
            self.t_start = self.ends[-1]
        if self.steps:
            trainer.should_stop = len(self.ends) >= self.steps
        elif self.t_start and self.ends[-1] - self.t_start > self.seconds:
            trainer.should_stop = True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seq_len", type=int, default=64 if SMALL else 336)
    parser.add_argument("--label_len", type=int, default=48)
    parser.add_argument("--pred_len", type=int, default=16 if SMALL else 96)
    parser.add_argument("--batch_size", type=int, default=4 if SMALL else 32)
    parser.add_argument("--num_workers", type=int, default=1 if SMALL else 4)
    args = parser.parse_args()

    pl.seed_everything(2021, workers=True)
    channels = 4 if SMALL else 160
    data, stamps = make_load_curves(1200 if SMALL else 26_000, channels)
    sets = {
        flag: Dataset_Custom(data, stamps, flag, args.seq_len, args.label_len, args.pred_len)
        for flag in ("train", "val")
    }
    train_loader = DataLoader(sets["train"], args.batch_size, shuffle=True, num_workers=args.num_workers,
                              drop_last=True)
    val_loader = DataLoader(sets["val"], args.batch_size, num_workers=args.num_workers)

    small = dict(d_model=16, n_heads=2, d_ff=32, e_layers=2) if SMALL else {}
    model = LitForecaster(channels, args.seq_len, args.pred_len, **small)
    clock = TimeLimit(args.seconds, args.steps)
    with tempfile.TemporaryDirectory() as root:
        trainer = pl.Trainer(
            accelerator="auto",
            devices=1,
            max_steps=20_000,
            default_root_dir=root,
            log_every_n_steps=10,
            gradient_clip_val=1.0,
            callbacks=[
                clock,
                pl.callbacks.EarlyStopping("val_mse", patience=10),
                pl.callbacks.ModelCheckpoint(monitor="val_mse", save_top_k=1),
                pl.callbacks.LearningRateMonitor("step"),
            ],
        )
        trainer.fit(model, train_loader, val_loader)

    gaps = np.diff(clock.ends)
    print(f"\nmedian step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
