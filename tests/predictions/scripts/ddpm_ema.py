"""Denoising diffusion (DDPM) on 32x32 images with a small UNet and EMA weights."""
import argparse
import copy
import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"


class Shapes(Dataset):
    """Coloured gradients with a random square, CIFAR sized, values in [-1, 1]."""

    def __init__(self, n, size=32, seed=0):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[0:size, 0:size] / size
        a, b, c = rng.random((3, n, 3, 1, 1)).astype(np.float32)
        images = a * xx + b * yy + 0.3 * c
        for i in range(n):
            y, x = rng.integers(0, size - 8, 2)
            images[i, :, y : y + 8, x : x + 8] = rng.random((3, 1, 1))
        self.images = (np.clip(images, 0, 1) * 255).astype(np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        x = torch.from_numpy(self.images[idx]).float() / 127.5 - 1.0
        if torch.rand(1).item() < 0.5:
            x = x.flip(-1)
        return x


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.SiLU(), nn.Linear(dim * 4, dim * 4))

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        args = t[:, None].float() * freqs[None]
        return self.mlp(torch.cat([args.sin(), args.cos()], dim=-1))


class ResBlock(nn.Module):
    def __init__(self, in_ch, out_ch, emb_dim, dropout=0.1):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, in_ch)
        self.conv1 = nn.Conv2d(in_ch, out_ch, 3, padding=1)
        self.emb = nn.Linear(emb_dim, out_ch)
        self.norm2 = nn.GroupNorm(8, out_ch)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_ch, out_ch, 3, padding=1)
        self.skip = nn.Conv2d(in_ch, out_ch, 1) if in_ch != out_ch else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.emb(F.silu(emb))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return h + self.skip(x)


class AttnBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.norm = nn.GroupNorm(8, ch)
        self.q, self.k, self.v = nn.Conv2d(ch, ch, 1), nn.Conv2d(ch, ch, 1), nn.Conv2d(ch, ch, 1)
        self.proj = nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        B, C, H, W = x.shape
        h = self.norm(x)
        q = self.q(h).reshape(B, C, H * W).permute(0, 2, 1)
        k = self.k(h).reshape(B, C, H * W)
        v = self.v(h).reshape(B, C, H * W).permute(0, 2, 1)
        w = torch.softmax(torch.bmm(q, k) * C**-0.5, dim=-1)
        h = torch.bmm(w, v).permute(0, 2, 1).reshape(B, C, H, W)
        return x + self.proj(h)


class UNet(nn.Module):
    def __init__(self, ch=128, mults=(1, 2, 2, 2), blocks=2, attn_level=1):
        super().__init__()
        emb_dim = ch * 4
        self.time = TimeEmbedding(ch)
        self.head = nn.Conv2d(3, ch, 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        chans, now = [ch], ch
        for i, m in enumerate(mults):
            for _ in range(blocks):
                attn = AttnBlock(ch * m) if i == attn_level else nn.Identity()
                self.downs.append(nn.ModuleList([ResBlock(now, ch * m, emb_dim), attn]))
                now = ch * m
                chans.append(now)
            if i != len(mults) - 1:
                self.downs.append(nn.ModuleList([nn.Conv2d(now, now, 3, stride=2, padding=1)]))
                chans.append(now)
        self.mid1, self.mid_attn, self.mid2 = ResBlock(now, now, emb_dim), AttnBlock(now), ResBlock(now, now, emb_dim)
        for i, m in reversed(list(enumerate(mults))):
            for _ in range(blocks + 1):
                attn = AttnBlock(ch * m) if i == attn_level else nn.Identity()
                self.ups.append(nn.ModuleList([ResBlock(chans.pop() + now, ch * m, emb_dim), attn]))
                now = ch * m
            if i != 0:
                self.ups.append(nn.ModuleList([nn.Conv2d(now, now, 3, padding=1)]))
        self.tail = nn.Sequential(nn.GroupNorm(8, now), nn.SiLU(), nn.Conv2d(now, 3, 3, padding=1))

    def forward(self, x, t):
        emb = self.time(t)
        h = self.head(x)
        hs = [h]
        for layer in self.downs:
            h = layer[1](layer[0](h, emb)) if len(layer) == 2 else layer[0](h)
            hs.append(h)
        h = self.mid2(self.mid_attn(self.mid1(h, emb)), emb)
        for layer in self.ups:
            if len(layer) == 2:
                h = layer[1](layer[0](torch.cat([h, hs.pop()], dim=1), emb))
            else:
                h = layer[0](F.interpolate(h, scale_factor=2, mode="nearest"))
        return self.tail(h)


class EMA:
    def __init__(self, model, decay=0.9999):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self, model):
        with torch.no_grad():
            for ema_p, p in zip(self.model.parameters(), model.parameters()):
                ema_p.data = ema_p.data * self.decay + p.data * (1 - self.decay)


class Diffusion:
    def __init__(self, timesteps=1000):
        self.T = timesteps
        self.betas = torch.linspace(1e-4, 0.02, timesteps).to(device)
        self.alphas = 1.0 - self.betas
        self.alpha_bar = torch.cumprod(self.alphas, dim=0)

    def q_sample(self, x0, t, noise):
        a = self.alpha_bar[t][:, None, None, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, n, size):
        x = torch.randn(n, 3, size, size, device=device)
        for i in tqdm(reversed(range(self.T)), total=self.T, desc="sampling"):
            t = torch.full((n,), i, device=device, dtype=torch.long)
            eps = model(x, t)
            mean = (x - self.betas[i] / (1 - self.alpha_bar[i]).sqrt() * eps) / self.alphas[i].sqrt()
            x = mean + self.betas[i].sqrt() * torch.randn_like(x) if i > 0 else mean
        return x.clamp(-1, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=4 if SMALL else 128)
    parser.add_argument("--sample_every", type=int, default=5000)
    args = parser.parse_args()
    torch.manual_seed(0)

    size = 16 if SMALL else 32
    dataset = Shapes(200 if SMALL else 20_000, size)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=0 if SMALL else 4, drop_last=True)
    model = (UNet(16, (1, 2), 1) if SMALL else UNet()).to(device)
    ema = EMA(model)
    diffusion = Diffusion(50 if SMALL else 1000)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    print(f"parameters: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M")

    ends, t_start, done, epoch = [], None, False, 0
    while not done:
        pbar = tqdm(loader, desc=f"epoch {epoch}")
        for x0 in pbar:
            x0 = x0.to(device)
            t = torch.randint(0, diffusion.T, (x0.shape[0],), device=device)
            noise = torch.randn_like(x0)
            pred = model(diffusion.q_sample(x0, t, noise), t)
            loss = F.mse_loss(pred, noise)

            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            ema.update(model)
            pbar.set_postfix(loss=loss.item())

            ends.append(time.perf_counter())
            if len(ends) % args.sample_every == 0:
                diffusion.sample(ema.model, 16, size)
            if len(ends) == 5:
                t_start = ends[-1]
            if args.steps:
                done = len(ends) >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        epoch += 1

    gaps = np.diff(ends)
    print(f"\nmedian step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
