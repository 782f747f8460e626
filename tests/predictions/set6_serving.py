"""Steps on a GPU with a planted cost: a sixth set, of models and habits that no earlier set has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.predictions.cases import BF16, Decoder, Step, UNet, adamw, case, resnet, same, trained, words
from tests.predictions.set2_models import Encoder
from tests.predictions.set3_devices import Vision

# -- bound by the host --------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Labels for the words of sentences of different lengths."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.table = nn.Embedding(20_000, width)
        self.inner = nn.LSTM(width, width, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * width, 32)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.table(ids), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(self.inner(packed)[0], batch_first=True, total_length=64)
        return self.out(out)  # type: ignore[no-any-return]


@case(
    "tagger-lengths",
    "the lengths of sentences lie on the GPU and are copied back to pack them",
    "kept on the CPU",
    "array-read",
    "item-each-step",
    "size-from-device",
    "small-copy",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Tagger().cuda()
    ids, y = torch.randint(20_000, (64, 64), device="cuda"), torch.randint(32, (64, 64), device="cuda")
    lengths = torch.randint(16, 65, (64,))
    lengths[0] = 64
    given = lengths.cuda() if bad else lengths

    def loss() -> torch.Tensor:
        out = model(ids, given)
        return F.cross_entropy(out.flatten(0, 1).float(), y.flatten())

    return trained(model, loss)


@case(
    "ppo-advantages",
    "advantages are summed step by step backwards in time, on the GPU",
    "one product with a matrix of discounts",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    policy = nn.Sequential(
        nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 9)
    ).cuda()
    seen, reward = torch.randn(128, 256, 64, device="cuda"), torch.randn(128, 256, device="cuda")
    action = torch.randint(8, (128, 256), device="cuda")
    time = torch.arange(128, device="cuda")
    power = (time[None, :] - time[:, None]).clamp(min=0)
    discounts = torch.triu(torch.full((128, 128), 0.95, device="cuda") ** power)

    def loss() -> torch.Tensor:
        out = policy(seen).float()
        value = out[..., 8]
        delta = (reward - value).detach()
        if bad:
            advantage, last = torch.zeros_like(delta), torch.zeros_like(delta[0])
            for t in reversed(range(128)):
                last = delta[t] + 0.95 * last
                advantage[t] = last
        else:
            advantage = discounts @ delta
        chosen = out[..., :8].log_softmax(-1).gather(-1, action[..., None])[..., 0]
        return -(chosen * advantage).mean() + F.mse_loss(value, value.detach() + advantage)

    return trained(policy, loss, autocast=False)


class Speech(nn.Module):
    """Letters from spectra."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.begin = nn.Sequential(
            nn.Conv1d(80, width, 5, 2, 2), nn.GELU(), nn.Conv1d(width, width, 5, 2, 2), nn.GELU()
        )
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.end = nn.Linear(width, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.layers(self.begin(x).transpose(1, 2)))  # type: ignore[no-any-return]


@case(
    "speech-ctc",
    "lengths for the CTC loss lie on the GPU, and the loss copies them back",
    "lengths on the CPU",
    "array-read",
    "item-each-step",
    "size-from-device",
    "small-copy",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Speech().cuda()
    x = torch.randn(16, 80, 800, device="cuda")
    y = torch.randint(1, 32, (16, 60), device="cuda")
    where = "cuda" if bad else "cpu"
    sizes, lengths = torch.full((16,), 200, device=where), torch.randint(30, 61, (16,)).to(where)

    def loss() -> torch.Tensor:
        out = model(x).float().log_softmax(-1).transpose(0, 1)
        # cuDNN's loss is only for short targets; the native one is what most recipes get.
        with torch.backends.cudnn.flags(enabled=False):
            return F.ctc_loss(out, y, sizes, lengths, zero_infinity=True)

    return trained(model, loss)


@case(
    "vocoder-windows",
    "each of five spectral losses makes its window on the CPU and copies it, in every call",
    "windows made once, on the GPU",
    "host-operators",
    "small-copy",
    "pageable-memory",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    net = nn.Sequential(
        nn.Conv1d(80, 256, 7, padding=3),
        *(part for _ in range(6) for part in (nn.LeakyReLU(0.1), nn.Conv1d(256, 256, 7, padding=3))),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose1d(256, 64, 16, 8, 4),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose1d(64, 1, 64, 32, 16),
    ).cuda()
    mel, sound = torch.randn(16, 80, 64, device="cuda"), torch.randn(16, 16_384, device="cuda")
    sizes = (256, 512, 1024, 2048, 4096)
    windows = {size: torch.hann_window(size, device="cuda") for size in sizes}

    def spectrum(x: torch.Tensor, size: int) -> torch.Tensor:
        window = torch.hann_window(size).to(x.device) if bad else windows[size]
        return torch.stft(x, size, size // 4, window=window, return_complex=True).abs()

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", dtype=BF16):
            made = net(mel)[:, 0].float()
        return sum(
            (F.l1_loss(spectrum(made, n), spectrum(sound, n)) for n in sizes), torch.zeros((), device="cuda")
        )

    return trained(net, loss, autocast=False)


@case(
    "detector-images",
    "the boxes of each image are matched and scored image by image",
    "all images of the batch at once",
    "kernel-loop",
    "operator-loop",
    may_precede=("launch-bound", "channels-last"),
)
def _(bad: bool) -> Step:
    backbone = nn.Sequential(*list(resnet().children())[:-6], nn.Conv2d(1024, 6, 1)).cuda()
    x = same(16, 256)
    truth = torch.rand(16, 12, 4, device="cuda")
    truth[..., 2:] += truth[..., :2]

    def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        low = torch.maximum(a[..., :, None, :2], b[..., None, :, :2])
        high = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
        inside = (high - low).clamp(min=0).prod(-1)
        area_a, area_b = ((box[..., 2:] - box[..., :2]).prod(-1) for box in (a, b))
        return inside / (area_a[..., :, None] + area_b[..., None, :] - inside + 1e-6)

    def scored(out: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        corner, size = out[..., :2].sigmoid(), out[..., 2:4].sigmoid()
        guess = torch.cat([corner, corner + size], -1)
        best, which = overlap(guess, boxes).max(-1)
        wanted = boxes.gather(-2, which[..., None].expand(*which.shape, 4))
        close = (best > 0.5).float()
        regression = (F.smooth_l1_loss(guess, wanted, reduction="none").sum(-1) * close).sum(-1)
        return regression + F.binary_cross_entropy_with_logits(out[..., 4], close, reduction="none").sum(-1)

    def loss() -> torch.Tensor:
        out = backbone(x()).float().flatten(2).transpose(1, 2)
        if bad:
            return torch.stack([scored(o, boxes) for o, boxes in zip(out, truth, strict=True)]).mean()
        return scored(out, truth).mean()

    return trained(backbone, loss)


# -- bound by the device ------------------------------------------------------------------------------------


class Window(nn.Module):
    """Attention within windows of an image, with a learned bias for each pair of places."""

    def __init__(self, width: int, heads: int, size: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.size, self.written_out = heads, size, written_out
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.bias = nn.Parameter(torch.zeros(heads, size * size, size * size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        n = self.size
        parts = self.norm1(x).view(b, h // n, n, w // n, n, c).transpose(2, 3).reshape(-1, n * n, c)
        q, k, v = self.qkv(parts).view(len(parts), n * n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.written_out:
            scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
            y = (scores + self.bias).softmax(-1).to(v.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.to(q.dtype)[None])
        y = self.out(y.transpose(1, 2).reshape(parts.shape))
        x = x + y.view(b, h // n, w // n, n, n, c).transpose(2, 3).reshape(b, h, w, c)
        return x + self.down(F.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


@case(
    "windows-attention",
    "attention in windows of 16 by 16 as product, bias, softmax and product",
    "scaled_dot_product_attention with the bias as its mask",
    "unfused-attention",
)
def _(bad: bool) -> Step:
    model = nn.Sequential(*(Window(256, 8, 16, bad) for _ in range(8))).cuda()
    x = torch.randn(8, 64, 64, 256, device="cuda")
    return trained(model, lambda: model(x).float().square().mean())


@case(
    "lm-head",
    "the head of 32 768 words runs in float32, outside of autocast",
    "within autocast; only the loss in float32",
    "mixed-precision",
    "fp32-matmul",
)
def _(bad: bool) -> Step:
    body = Decoder(6, 768, 12, words=32_768)
    head, body.head = body.head, nn.Identity()  # type: ignore[assignment]
    model = nn.ModuleList([body, head]).cuda()
    ids = words(8, 1024, 32_768)

    def loss() -> torch.Tensor:
        x = body(ids[:, :-1])
        with torch.autocast("cuda", dtype=BF16, enabled=not bad):
            out = head(x.float() if bad else x)
        return F.cross_entropy(out.float().flatten(0, 1), ids[:, 1:].flatten())

    return trained(model, loss)


@case(
    "diffusion-noise",
    "noise and its schedule are made by NumPy for each batch and copied",
    "made on the GPU",
    "pageable-memory",
    "python-time",
    "small-copy",
    may_precede=("channels-last",),
)
def _(bad: bool) -> Step:
    model = UNet(64).cuda()
    x = torch.randn(16, 3, 128, 128, device="cuda")
    kept = np.cos(np.linspace(0.01, 1.5, 1000)).astype("float32")
    table, draw = torch.from_numpy(kept).cuda(), np.random.default_rng(0)

    def loss() -> torch.Tensor:
        if bad:
            at = draw.integers(1000, size=16)
            noise = torch.from_numpy(draw.standard_normal(x.shape).astype("float32")).cuda()
            share = torch.tensor(kept[at], device="cuda")[:, None, None, None]
        else:
            noise, share = (
                torch.randn_like(x),
                table[torch.randint(1000, (16,), device="cuda")][:, None, None, None],
            )
        mixed = share * x + (1 - share**2).sqrt() * noise
        return F.mse_loss(model(mixed).float(), noise)

    return trained(model, loss)


@case(
    "distance-matrix",
    "distances of all pairs are written out by broadcasting differences",
    "from one product of matrices (torch.cdist)",
    "elementwise-chain",
)
def _(bad: bool) -> Step:
    model = Vision(6, 384)
    model.head = nn.Linear(384, 128)
    model = model.cuda()
    x, label = torch.randn(256, 3, 112, 112, device="cuda"), torch.randint(32, (256,), device="cuda")
    centre = nn.Parameter(torch.randn(512, 128, device="cuda"))
    both = nn.ParameterList([*model.parameters(), centre])

    def loss() -> torch.Tensor:
        made = F.normalize(model(x).float(), dim=-1)
        if bad:
            squared = (made[:, None, :] - centre[None, :, :]).pow(2).sum(-1)
        else:
            squared = made.square().sum(-1)[:, None] - 2 * made @ centre.t() + centre.square().sum(-1)
        return F.cross_entropy(-squared, label)

    return trained(model, loss, optimizer=torch.optim.AdamW(both, lr=1e-4, fused=True))


# -- several causes, and inference --------------------------------------------------------------------------


@case(
    "accumulate-both",
    "four micro-batches whose losses are read with .item(), and AdamW(foreach=False)",
    "summed on the GPU, fused=True",
    "item-each-step",
    "single-tensor-optimizer",
    may_precede=("launch-bound",),
)
def _(bad: bool) -> Step:
    model = Decoder(12, 384, 6).cuda()
    parts = [words(4, 256) for _ in range(4)]
    optimizer = adamw(model, **({"fused": False, "foreach": False} if bad else {}))
    total, kept = torch.zeros((), device="cuda"), [0.0]

    def step() -> None:
        for part in parts:
            with torch.autocast("cuda", dtype=BF16):
                out = model(part[:, :-1])
            loss = F.cross_entropy(out.float().flatten(0, 1), part[:, 1:].flatten()) / len(parts)
            loss.backward()
            if bad:
                kept[0] += loss.item()
            else:
                total.add_(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@case(
    "search-index",
    "texts are encoded in float32 and each batch is copied to NumPy at once",
    "bf16 autocast, copied to pinned memory a batch later",
    "mixed-precision",
    "fp32-matmul",
    "array-read",
    "pageable-memory",
    marked=True,
)
def _(bad: bool) -> Step:
    model = Encoder(12, 768, 12).cuda().eval()
    model.head = nn.Identity()  # type: ignore[assignment]
    ids = torch.randint(8192, (64, 256), device="cuda")
    keep = torch.ones(64, 256, dtype=torch.bool, device="cuda")
    pinned = torch.empty(64, 768, pin_memory=True)
    index: list[Any] = []

    @torch.inference_mode()
    def step() -> None:
        with torch.autocast("cuda", dtype=BF16, enabled=not bad):
            made = F.normalize(model(ids, keep).float().mean(1), dim=-1) * math.sqrt(768)
        index.clear()
        if bad:
            index.append(made.cpu().numpy())
        else:
            pinned.copy_(made, non_blocking=True)

    return step


@case(
    "stream-frames",
    "a detector takes frames one by one as they come",
    "in batches of eight",
    "launch-bound",
    "kernel-loop",
    "operator-loop",
    marked=True,
)
def _(bad: bool) -> Step:
    model = resnet().cuda().eval()
    frames = same(8, 224)()

    @torch.inference_mode()
    def step() -> None:
        with torch.autocast("cuda", dtype=BF16):
            if bad:
                for frame in frames:
                    model(frame[None]).argmax(-1)
            else:
                model(frames).argmax(-1)

    return step
