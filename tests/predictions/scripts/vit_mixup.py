"""ViT-S/16 with Mixup, CutMix, stochastic depth and EMA weights, after timm's model and training script.

The images are made up, and kept as the quantised DCT blocks that a JPEG holds; the dataset decodes them.
"""
import argparse
import math
import os
import time
from collections import OrderedDict
from copy import deepcopy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"

parser = argparse.ArgumentParser(description="ViT training")
parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("-b", "--batch-size", type=int, default=4 if SMALL else 128)
parser.add_argument("-j", "--workers", type=int, default=1 if SMALL else 8)
parser.add_argument("--img-size", type=int, default=32 if SMALL else 224)
parser.add_argument("--num-classes", type=int, default=10 if SMALL else 1000)
parser.add_argument("--lr", type=float, default=5e-4)
parser.add_argument("--min-lr", type=float, default=1e-5)
parser.add_argument("--warmup-updates", type=int, default=500)
parser.add_argument("--weight-decay", type=float, default=0.05)
parser.add_argument("--clip-grad", type=float, default=1.0)
parser.add_argument("--drop-path", type=float, default=0.1)
parser.add_argument("--mixup", type=float, default=0.8)
parser.add_argument("--cutmix", type=float, default=1.0)
parser.add_argument("--smoothing", type=float, default=0.1)
parser.add_argument("--model-ema-decay", type=float, default=0.9998)
parser.add_argument("--log-interval", type=int, default=20)
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


# ------------------------------------------------------------------ data
def dct_matrix():
    k, n = np.mgrid[0:8, 0:8]
    m = np.cos(np.pi * (2 * n + 1) * k / 16) * 0.5
    m[0] /= np.sqrt(2)
    return m.astype(np.float32)


class JpegFolder(Dataset):
    """One quantised image for each of some hundred files; classes shift their colours."""

    def __init__(self, n, train, seed):
        rng = np.random.default_rng(seed)
        self.n, self.train = n, train
        self.blocks = args.img_size * 8 // 7 // 8
        self.labels = rng.integers(0, args.num_classes, n)
        self.dct = dct_matrix()
        i, j = np.mgrid[0:8, 0:8]
        self.quant = (8 + 4 * (i + j)).astype(np.float32)
        falloff = 40 / (1 + i + j) ** 2
        shape = (16 if SMALL else 200, 3, self.blocks, self.blocks, 8, 8)
        self.files = np.round(rng.standard_normal(shape, dtype=np.float32) * falloff).astype(np.int8)
        self.shift = rng.uniform(-30, 30, (args.num_classes, 3, 1, 1)).astype(np.float32)

    def __len__(self):
        return self.n

    def decode(self, index):
        coefficients = self.files[index % len(self.files)] * self.quant
        pixels = self.dct.T @ coefficients @ self.dct
        size = 8 * self.blocks
        y, cb, cr = pixels.transpose(0, 1, 3, 2, 4).reshape(3, size, size)
        rgb = np.stack([y + 1.402 * cr, y - 0.344 * cb - 0.714 * cr, y + 1.772 * cb])
        return np.clip(rgb + 128 + self.shift[self.labels[index]], 0, 255).astype(np.uint8)

    def random_resized_crop(self, img, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
        _, height, width = img.shape
        area = height * width * np.random.uniform(*scale)
        aspect = math.exp(np.random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w = min(width, max(1, round(math.sqrt(area * aspect))))
        h = min(height, max(1, round(math.sqrt(area / aspect))))
        top, left = np.random.randint(0, height - h + 1), np.random.randint(0, width - w + 1)
        return img[:, top : top + h, left : left + w]

    def __getitem__(self, index):
        img = self.decode(index)
        if self.train:
            img = self.random_resized_crop(img)
            if np.random.rand() < 0.5:
                img = img[:, :, ::-1]
        img = torch.from_numpy(img.copy()).float().div(255).unsqueeze(0)
        img = F.interpolate(img, (args.img_size, args.img_size), mode="bilinear", antialias=True).squeeze(0)
        if self.train:
            brightness, contrast, saturation = np.random.uniform(0.6, 1.4, 3)
            img = (img * brightness).clamp(0, 1)
            img = ((img - img.mean()) * contrast + img.mean()).clamp(0, 1)
            gray = img.mean(0, keepdim=True)
            img = ((img - gray) * saturation + gray).clamp(0, 1)
        img = (img - MEAN) / STD
        if self.train and np.random.rand() < 0.25:  # random erasing
            h, w = np.random.randint(args.img_size // 8, args.img_size // 2, 2)
            top, left = np.random.randint(0, args.img_size - h), np.random.randint(0, args.img_size - w)
            img[:, top : top + h, left : left + w] = torch.randn(3, h, w)
        return img, int(self.labels[index])


def one_hot(x, num_classes, on_value=1.0, off_value=0.0):
    x = x.long().view(-1, 1)
    return torch.full((x.size()[0], num_classes), off_value, device=x.device).scatter_(1, x, on_value)


def mixup_target(target, num_classes, lam=1.0, smoothing=0.0):
    off_value = smoothing / num_classes
    on_value = 1.0 - smoothing + off_value
    y1 = one_hot(target, num_classes, on_value=on_value, off_value=off_value)
    y2 = one_hot(target.flip(0), num_classes, on_value=on_value, off_value=off_value)
    return y1 * lam + y2 * (1.0 - lam)


class Mixup:
    def __init__(self, mixup_alpha, cutmix_alpha, switch_prob, smoothing, num_classes):
        self.mixup_alpha, self.cutmix_alpha, self.switch_prob = mixup_alpha, cutmix_alpha, switch_prob
        self.smoothing, self.num_classes = smoothing, num_classes

    def rand_bbox(self, shape, lam):
        height, width = shape[-2:]
        ratio = np.sqrt(1 - lam)
        cut_h, cut_w = int(height * ratio), int(width * ratio)
        cy, cx = np.random.randint(height), np.random.randint(width)
        yl, yh = np.clip(cy - cut_h // 2, 0, height), np.clip(cy + cut_h // 2, 0, height)
        xl, xh = np.clip(cx - cut_w // 2, 0, width), np.clip(cx + cut_w // 2, 0, width)
        return yl, yh, xl, xh

    def __call__(self, x, target):
        if np.random.rand() < self.switch_prob:
            lam = float(np.random.beta(self.cutmix_alpha, self.cutmix_alpha))
            yl, yh, xl, xh = self.rand_bbox(x.shape, lam)
            x[:, :, yl:yh, xl:xh] = x.flip(0)[:, :, yl:yh, xl:xh]
            lam = 1.0 - (yh - yl) * (xh - xl) / float(x.shape[-2] * x.shape[-1])
        else:
            lam = float(np.random.beta(self.mixup_alpha, self.mixup_alpha))
            x_flipped = x.flip(0).mul_(1.0 - lam)
            x.mul_(lam).add_(x_flipped)
        return x, mixup_target(target, self.num_classes, lam, self.smoothing)


# ------------------------------------------------------------------ model
class DropPath(nn.Module):
    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep_prob = 1 - self.drop_prob
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        random_tensor = x.new_empty(shape).bernoulli_(keep_prob)
        random_tensor.div_(keep_prob)
        return x * random_tensor


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.0)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)

        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        x = self.proj(x)
        return self.proj_drop(x)


class LayerScale(nn.Module):
    def __init__(self, dim, init_values=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        return x * self.gamma


class Block(nn.Module):
    def __init__(self, dim, num_heads, drop_path):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.ls1 = LayerScale(dim)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(OrderedDict(
            fc1=nn.Linear(dim, dim * 4), act=nn.GELU(), drop1=nn.Dropout(0.0),
            fc2=nn.Linear(dim * 4, dim), drop2=nn.Dropout(0.0),
        ))
        self.ls2 = LayerScale(dim)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x):
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x))))
        x = x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return x


class VisionTransformer(nn.Module):
    def __init__(self, img_size, patch_size, num_classes, embed_dim, depth, num_heads, drop_path_rate):
        super().__init__()
        num_patches = (img_size // patch_size) ** 2
        self.patch_embed = nn.Conv2d(3, embed_dim, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.randn(1, num_patches + 1, embed_dim) * 0.02)
        dpr = [x.item() for x in torch.linspace(0, drop_path_rate, depth)]
        self.blocks = nn.Sequential(*[Block(embed_dim, num_heads, dpr[i]) for i in range(depth)])
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0])


class SoftTargetCrossEntropy(nn.Module):
    def forward(self, x, target):
        loss = torch.sum(-target * F.log_softmax(x, dim=-1), dim=-1)
        return loss.mean()


class ModelEmaV2(nn.Module):
    def __init__(self, model, decay=0.9999):
        super().__init__()
        self.module = deepcopy(model)
        self.module.eval()
        self.decay = decay

    def _update(self, model, update_fn):
        with torch.no_grad():
            for ema_v, model_v in zip(self.module.state_dict().values(), model.state_dict().values()):
                ema_v.copy_(update_fn(ema_v, model_v))

    def update(self, model):
        self._update(model, update_fn=lambda e, m: self.decay * e + (1.0 - self.decay) * m)


class AverageMeter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def param_groups_weight_decay(model, weight_decay):
    decay, no_decay = [], []
    for param in model.parameters():
        (no_decay if param.ndim <= 1 else decay).append(param)
    return [{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": weight_decay}]


def adjust_learning_rate(optimizer, num_updates, total_updates):
    if num_updates < args.warmup_updates:
        lr = args.lr * (num_updates + 1) / args.warmup_updates
    else:
        t = (num_updates - args.warmup_updates) / max(1, total_updates - args.warmup_updates)
        lr = args.min_lr + (args.lr - args.min_lr) * 0.5 * (1 + math.cos(math.pi * min(1, t)))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    return lr


@torch.no_grad()
def validate(model, loader):
    model.eval()
    top1, losses = AverageMeter(), AverageMeter()
    for images, target in loader:
        images, target = images.to(device), target.to(device)
        with torch.autocast(device.type, enabled=device.type == "cuda"):
            output = model(images)
        losses.update(F.cross_entropy(output.float(), target).item(), images.size(0))
        top1.update((output.argmax(1) == target).float().mean().item() * 100, images.size(0))
    print(f"Test: Loss: {losses.avg:.4f}  Acc@1: {top1.avg:.3f}")


def main():
    torch.manual_seed(42)
    np.random.seed(42)
    if SMALL:
        model = VisionTransformer(args.img_size, 16, args.num_classes, 32, 2, 2, args.drop_path)
    else:
        model = VisionTransformer(args.img_size, 16, args.num_classes, 384, 12, 6, args.drop_path)
    model.to(device)
    print(f"Model created, param count: {sum(m.numel() for m in model.parameters())}")
    model_ema = ModelEmaV2(model, decay=args.model_ema_decay)

    train_set = JpegFolder(200 if SMALL else 50_000, True, seed=1)
    val_set = JpegFolder(16 if SMALL else 2_000, False, seed=2)
    loader_train = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers,
                              pin_memory=True, drop_last=True)
    loader_eval = DataLoader(val_set, args.batch_size, num_workers=args.workers, pin_memory=True)

    optimizer = torch.optim.AdamW(param_groups_weight_decay(model, args.weight_decay), lr=args.lr)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    mixup_fn = Mixup(args.mixup, args.cutmix, 0.5, args.smoothing, args.num_classes)
    train_loss_fn = SoftTargetCrossEntropy().to(device)

    ends, t_start, done, epoch, num_updates = [], None, False, 0, 0
    while not done:
        batch_time_m, data_time_m, losses_m = AverageMeter(), AverageMeter(), AverageMeter()
        model.train()
        end = time.time()
        for batch_idx, (input, target) in enumerate(loader_train):
            data_time_m.update(time.time() - end)
            input, target = input.to(device, non_blocking=True), target.to(device, non_blocking=True)
            input, target = mixup_fn(input, target)

            with torch.autocast(device.type, enabled=device.type == "cuda"):
                output = model(input)
                loss = train_loss_fn(output, target)
            losses_m.update(loss.item(), input.size(0))

            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
            scaler.step(optimizer)
            scaler.update()
            model_ema.update(model)

            if device.type == "cuda":
                torch.cuda.synchronize()
            num_updates += 1
            batch_time_m.update(time.time() - end)
            lr = adjust_learning_rate(optimizer, num_updates, 300 * len(loader_train))
            if batch_idx % args.log_interval == 0:
                print(
                    f"Train: {epoch} [{batch_idx:>4d}/{len(loader_train)}]  "
                    f"Loss: {losses_m.val:#.4g} ({losses_m.avg:#.3g})  "
                    f"Time: {batch_time_m.val:.3f}s, {input.size(0) / batch_time_m.val:>7.2f}/s  "
                    f"LR: {lr:.3e}  Data: {data_time_m.val:.3f} ({data_time_m.avg:.3f})"
                )
            end = time.time()

            ends.append(time.perf_counter())
            if len(ends) == 5:
                t_start = ends[-1]
            if args.steps:
                done = len(ends) >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        else:
            validate(model, loader_eval)
            validate(model_ema.module, loader_eval)
            epoch += 1

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
