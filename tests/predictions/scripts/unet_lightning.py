"""Binary segmentation with a U-Net, PyTorch Lightning and torchmetrics."""
import argparse
import os
import tempfile
import time

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import BinaryJaccardIndex
from torchmetrics.segmentation import DiceScore

SMALL = os.environ.get("SMALL") == "1"


class CellsDataset(Dataset):
    """Microscopy-like images: bright ellipses on a noisy background, and their mask."""

    def __init__(self, n, size=256, train=True, seed=0):
        self.n, self.size, self.train, self.seed = n, size, train, seed
        self.yy, self.xx = np.mgrid[0:size, 0:size].astype(np.float32)

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        rng = np.random.default_rng(self.seed * 1_000_003 + idx)
        s = self.size
        mask = np.zeros((s, s), dtype=bool)
        for _ in range(rng.integers(3, 9)):
            cy, cx = rng.uniform(0, s, 2)
            a, b = rng.uniform(s / 24, s / 7, 2)
            th = rng.uniform(0, np.pi)
            dx, dy = self.xx - cx, self.yy - cy
            u = dx * np.cos(th) + dy * np.sin(th)
            v = -dx * np.sin(th) + dy * np.cos(th)
            mask |= (u / a) ** 2 + (v / b) ** 2 < 1
        image = rng.normal(0.3, 0.15, (s, s, 3)).astype(np.float32)
        image[mask] += np.array([0.3, 0.15, 0.25], dtype=np.float32)
        if self.train:
            if rng.random() < 0.5:
                image, mask = image[:, ::-1], mask[:, ::-1]
            if rng.random() < 0.5:
                image, mask = image[::-1], mask[::-1]
            image = image * rng.uniform(0.8, 1.2) + rng.uniform(-0.1, 0.1)
        image = np.clip(image, 0, 1).transpose(2, 0, 1)
        image = torch.tensor(image.copy(), dtype=torch.float32)
        mask = torch.tensor(mask.copy(), dtype=torch.float32).unsqueeze(0)
        return image, mask


class DoubleConv(nn.Module):
    """(convolution => [BN] => ReLU) * 2"""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy, dx = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, in_channels=3, classes=1, base=64, depth=4):
        super().__init__()
        self.inc = DoubleConv(in_channels, base)
        self.downs = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(base * 2**i, base * 2 ** (i + 1))) for i in range(depth)
        )
        self.ups = nn.ModuleList(
            Up(base * 2 ** (i + 1), base * 2**i) for i in reversed(range(depth))
        )
        self.outc = nn.Conv2d(base, classes, kernel_size=1)

    def forward(self, x):
        skips = [self.inc(x)]
        for down in self.downs:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return self.outc(x)


def dice_loss(logits, target, eps=1.0):
    prob = torch.sigmoid(logits).flatten(1)
    target = target.flatten(1)
    inter = (prob * target).sum(1)
    return 1 - ((2 * inter + eps) / (prob.sum(1) + target.sum(1) + eps)).mean()


class SegmentationModule(pl.LightningModule):
    def __init__(self, lr=1e-3, base=64, depth=4):
        super().__init__()
        self.save_hyperparameters()
        self.model = UNet(base=base, depth=depth)
        self.bce = nn.BCEWithLogitsLoss()
        self.train_dice = DiceScore(num_classes=2, include_background=False, input_format="index")
        self.val_dice = DiceScore(num_classes=2, include_background=False, input_format="index")
        self.val_iou = BinaryJaccardIndex()

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        image, mask = batch
        logits = self(image)
        loss = self.bce(logits, mask) + dice_loss(logits, mask)
        pred = (torch.sigmoid(logits) > 0.5).long().squeeze(1)
        self.train_dice(pred, mask.long().squeeze(1))
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_dice", self.train_dice, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        image, mask = batch
        logits = self(image)
        loss = self.bce(logits, mask) + dice_loss(logits, mask)
        pred = (torch.sigmoid(logits) > 0.5).long().squeeze(1)
        self.val_dice(pred, mask.long().squeeze(1))
        self.val_iou(pred, mask.long().squeeze(1))
        self.log("val_loss", loss, prog_bar=True)
        self.log("val_dice", self.val_dice, prog_bar=True)
        self.log("val_iou", self.val_iou)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


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
    parser.add_argument("--batch-size", type=int, default=2 if SMALL else 16)
    parser.add_argument("--num-workers", type=int, default=1 if SMALL else 4)
    args = parser.parse_args()

    pl.seed_everything(42, workers=True)
    size = 32 if SMALL else 256
    train_set = CellsDataset(80 if SMALL else 4000, size, train=True, seed=1)
    val_set = CellsDataset(8 if SMALL else 200, size, train=False, seed=2)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.num_workers)

    model = SegmentationModule(base=8 if SMALL else 64, depth=2 if SMALL else 4)
    clock = TimeLimit(args.seconds, args.steps)
    with tempfile.TemporaryDirectory() as root:
        checkpoint = pl.callbacks.ModelCheckpoint(monitor="val_dice", mode="max", save_top_k=1)
        trainer = pl.Trainer(
            accelerator="auto",
            devices=1,
            max_epochs=1000,
            default_root_dir=root,
            log_every_n_steps=10,
            callbacks=[clock, checkpoint],
        )
        trainer.fit(model, train_loader, val_loader)

    gaps = np.diff(clock.ends)
    print(f"\nmedian step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
