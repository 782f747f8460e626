"""DETR in one file: ResNet backbone with frozen batch norm, transformer, Hungarian matching, auxiliary losses.

Trained on made-up scenes (coloured boxes and discs on a textured background) of varying size.
"""
import argparse
import copy
import math
import os
import sys
import time
from collections import defaultdict, deque

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"
NUM_CLASSES = 12


# ------------------------------------------------------------------ data
class Scenes(Dataset):
    def __init__(self, n, train, seed):
        self.n, self.train, self.seed = n, train, seed
        self.scales = [64, 80, 96] if SMALL else [320, 352, 384, 416, 448, 480]
        rng = np.random.default_rng(seed)
        self.textures = rng.integers(0, 80, (8, 512, 640, 3), dtype=np.uint8)
        self.palette = np.linspace(40, 255, NUM_CLASSES * 3).reshape(NUM_CLASSES, 3)

    def __len__(self):
        return self.n

    def load(self, idx):
        rng = np.random.default_rng(self.seed * 1_000_003 + idx)
        h, w = rng.integers(380, 481), rng.integers(480, 641)
        image = self.textures[idx % 8][:h, :w].astype(np.float32)
        yy, xx = np.mgrid[0:h, 0:w]
        boxes, labels = [], []
        for _ in range(rng.integers(1, 12)):
            bw, bh = rng.uniform(30, w / 2), rng.uniform(30, h / 2)
            x, y = rng.uniform(0, w - bw), rng.uniform(0, h - bh)
            label = rng.integers(0, NUM_CLASSES)
            if label % 2:
                mask = (yy >= y) & (yy < y + bh) & (xx >= x) & (xx < x + bw)
            else:
                mask = ((xx - x - bw / 2) / (bw / 2)) ** 2 + ((yy - y - bh / 2) / (bh / 2)) ** 2 < 1
            image[mask] = self.palette[label] + rng.normal(0, 10, 3)
            boxes.append([x, y, x + bw, y + bh])
            labels.append(label)
        return np.clip(image, 0, 255).astype(np.uint8), np.array(boxes, dtype=np.float32), np.array(labels)

    def __getitem__(self, idx):
        image, boxes, labels = self.load(idx)
        image = torch.from_numpy(image).permute(2, 0, 1).float().div(255)
        boxes, labels = torch.from_numpy(boxes), torch.from_numpy(labels)
        h, w = image.shape[-2:]
        if self.train and np.random.rand() < 0.5:
            image = image.flip(-1)
            boxes = boxes[:, [2, 1, 0, 3]] * torch.as_tensor([-1, 1, -1, 1]) + torch.as_tensor([w, 0, w, 0])
        size = self.scales[np.random.randint(len(self.scales))] if self.train else self.scales[-1]
        scale = size / min(h, w)
        nh, nw = round(h * scale), round(w * scale)
        image = F.interpolate(image[None], (nh, nw), mode="bilinear", antialias=True)[0]
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        image = (image - mean[:, None, None]) / std[:, None, None]
        boxes = box_xyxy_to_cxcywh(boxes) / torch.tensor([w, h, w, h], dtype=torch.float32)
        return image, {"boxes": boxes, "labels": labels, "image_id": torch.tensor([idx])}


def nested_tensor_from_tensor_list(tensor_list):
    max_size = [max(s) for s in zip(*[list(img.shape) for img in tensor_list])]
    b, (c, h, w) = len(tensor_list), max_size
    tensor = torch.zeros((b, c, h, w), dtype=tensor_list[0].dtype)
    mask = torch.ones((b, h, w), dtype=torch.bool)
    for img, pad_img, m in zip(tensor_list, tensor, mask):
        pad_img[: img.shape[0], : img.shape[1], : img.shape[2]].copy_(img)
        m[: img.shape[1], : img.shape[2]] = False
    return tensor, mask


def collate_fn(batch):
    batch = list(zip(*batch))
    batch[0] = nested_tensor_from_tensor_list(batch[0])
    return tuple(batch)


# ------------------------------------------------------------------ boxes
def box_cxcywh_to_xyxy(x):
    x_c, y_c, w, h = x.unbind(-1)
    return torch.stack([(x_c - 0.5 * w), (y_c - 0.5 * h), (x_c + 0.5 * w), (y_c + 0.5 * h)], dim=-1)


def box_xyxy_to_cxcywh(x):
    x0, y0, x1, y1 = x.unbind(-1)
    return torch.stack([(x0 + x1) / 2, (y0 + y1) / 2, (x1 - x0), (y1 - y0)], dim=-1)


def box_area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def generalized_box_iou(boxes1, boxes2):
    # degenerate boxes gives inf / nan results, so do an early check
    assert (boxes1[:, 2:] >= boxes1[:, :2]).all()
    assert (boxes2[:, 2:] >= boxes2[:, :2]).all()
    lt = torch.max(boxes1[:, None, :2], boxes2[:, :2])
    rb = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]
    union = box_area(boxes1)[:, None] + box_area(boxes2) - inter
    iou = inter / union
    lt = torch.min(boxes1[:, None, :2], boxes2[:, :2])
    rb = torch.max(boxes1[:, None, 2:], boxes2[:, 2:])
    wh = (rb - lt).clamp(min=0)
    area = wh[:, :, 0] * wh[:, :, 1]
    return iou - (area - union) / area


# ------------------------------------------------------------------ backbone
class FrozenBatchNorm2d(nn.Module):
    """BatchNorm2d where the batch statistics and the affine parameters are fixed."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("weight", torch.ones(n))
        self.register_buffer("bias", torch.zeros(n))
        self.register_buffer("running_mean", torch.zeros(n))
        self.register_buffer("running_var", torch.ones(n))

    def forward(self, x):
        # move reshapes to the beginning to make it fuser-friendly
        w = self.weight.reshape(1, -1, 1, 1)
        b = self.bias.reshape(1, -1, 1, 1)
        rv = self.running_var.reshape(1, -1, 1, 1)
        rm = self.running_mean.reshape(1, -1, 1, 1)
        eps = 1e-5
        scale = w * (rv + eps).rsqrt()
        bias = b - rm * scale
        return x * scale + bias


class Bottleneck(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inplanes, planes, 1, bias=False), FrozenBatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = FrozenBatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, planes * 4, 1, bias=False), FrozenBatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != planes * 4:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes * 4, 1, stride, bias=False), FrozenBatchNorm2d(planes * 4)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out)) * 0.3  # untrained: keeps the activations of the sum in range
        return self.relu(out + identity)


class Backbone(nn.Module):
    def __init__(self, layers=(3, 4, 6, 3), width=64):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), FrozenBatchNorm2d(width), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        inplanes, stages = width, []
        for i, n in enumerate(layers):
            planes = width * 2**i
            blocks = [Bottleneck(inplanes, planes, 1 if i == 0 else 2)]
            inplanes = planes * 4
            blocks += [Bottleneck(inplanes, planes) for _ in range(n - 1)]
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.num_channels = inplanes
        for p in [*self.stem.parameters(), *self.layer1.parameters()]:
            p.requires_grad_(False)

    def forward(self, x, mask):
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))
        mask = F.interpolate(mask[None].float(), size=x.shape[-2:]).to(torch.bool)[0]
        return x, mask


class PositionEmbeddingSine(nn.Module):
    def __init__(self, num_pos_feats=64, temperature=10000):
        super().__init__()
        self.num_pos_feats, self.temperature, self.scale = num_pos_feats, temperature, 2 * math.pi

    def forward(self, x, mask):
        not_mask = ~mask
        y_embed = not_mask.cumsum(1, dtype=torch.float32)
        x_embed = not_mask.cumsum(2, dtype=torch.float32)
        eps = 1e-6
        y_embed = y_embed / (y_embed[:, -1:, :] + eps) * self.scale
        x_embed = x_embed / (x_embed[:, :, -1:] + eps) * self.scale

        dim_t = torch.arange(self.num_pos_feats, dtype=torch.float32, device=x.device)
        dim_t = self.temperature ** (2 * (dim_t // 2) / self.num_pos_feats)
        pos_x = x_embed[:, :, :, None] / dim_t
        pos_y = y_embed[:, :, :, None] / dim_t
        pos_x = torch.stack((pos_x[:, :, :, 0::2].sin(), pos_x[:, :, :, 1::2].cos()), dim=4).flatten(3)
        pos_y = torch.stack((pos_y[:, :, :, 0::2].sin(), pos_y[:, :, :, 1::2].cos()), dim=4).flatten(3)
        return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


# ------------------------------------------------------------------ transformer
class TransformerEncoderLayer(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward=2048, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1, self.linear2 = nn.Linear(d_model, dim_feedforward), nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout, self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, src, key_padding_mask, pos):
        q = k = src + pos
        src2 = self.self_attn(q, k, value=src, key_padding_mask=key_padding_mask)[0]
        src = self.norm1(src + self.dropout1(src2))
        src2 = self.linear2(self.dropout(F.relu(self.linear1(src))))
        return self.norm2(src + self.dropout2(src2))


class TransformerDecoderLayer(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward=2048, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1, self.linear2 = nn.Linear(d_model, dim_feedforward), nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d_model), nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout, self.dropout1 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.dropout2, self.dropout3 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, tgt, memory, key_padding_mask, pos, query_pos):
        q = k = tgt + query_pos
        tgt2 = self.self_attn(q, k, value=tgt)[0]
        tgt = self.norm1(tgt + self.dropout1(tgt2))
        tgt2 = self.multihead_attn(tgt + query_pos, memory + pos, value=memory, key_padding_mask=key_padding_mask)[0]
        tgt = self.norm2(tgt + self.dropout2(tgt2))
        tgt2 = self.linear2(self.dropout(F.relu(self.linear1(tgt))))
        return self.norm3(tgt + self.dropout3(tgt2))


class Transformer(nn.Module):
    def __init__(self, d_model=256, nhead=8, enc_layers=6, dec_layers=6, dim_feedforward=2048):
        super().__init__()
        enc, dec = (cls(d_model, nhead, dim_feedforward) for cls in (TransformerEncoderLayer, TransformerDecoderLayer))
        self.encoder = nn.ModuleList([copy.deepcopy(enc) for _ in range(enc_layers)])
        self.decoder = nn.ModuleList([copy.deepcopy(dec) for _ in range(dec_layers)])
        self.norm = nn.LayerNorm(d_model)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, mask, query_embed, pos_embed):
        bs = src.shape[0]
        src = src.flatten(2).permute(2, 0, 1)
        pos_embed = pos_embed.flatten(2).permute(2, 0, 1)
        query_embed = query_embed.unsqueeze(1).repeat(1, bs, 1)
        mask = mask.flatten(1)
        memory = src
        for layer in self.encoder:
            memory = layer(memory, mask, pos_embed)
        output, intermediate = torch.zeros_like(query_embed), []
        for layer in self.decoder:
            output = layer(output, memory, mask, pos_embed, query_embed)
            intermediate.append(self.norm(output))
        return torch.stack(intermediate).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, num_layers):
        super().__init__()
        self.num_layers = num_layers
        h = [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.Linear(n, k) for n, k in zip([input_dim] + h, h + [output_dim]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < self.num_layers - 1 else layer(x)
        return x


class DETR(nn.Module):
    def __init__(self, backbone, transformer, num_classes, num_queries, d_model):
        super().__init__()
        self.backbone, self.transformer = backbone, transformer
        self.position_embedding = PositionEmbeddingSine(d_model // 2)
        self.class_embed = nn.Linear(d_model, num_classes + 1)
        self.bbox_embed = MLP(d_model, d_model, 4, 3)
        self.query_embed = nn.Embedding(num_queries, d_model)
        self.input_proj = nn.Conv2d(backbone.num_channels, d_model, kernel_size=1)

    def forward(self, images, mask):
        src, mask = self.backbone(images, mask)
        pos = self.position_embedding(src, mask)
        hs = self.transformer(self.input_proj(src), mask, self.query_embed.weight, pos)
        outputs_class = self.class_embed(hs)
        outputs_coord = self.bbox_embed(hs).sigmoid()
        out = {"pred_logits": outputs_class[-1], "pred_boxes": outputs_coord[-1]}
        out["aux_outputs"] = [
            {"pred_logits": a, "pred_boxes": b} for a, b in zip(outputs_class[:-1], outputs_coord[:-1])
        ]
        return out


# ------------------------------------------------------------------ losses
class HungarianMatcher(nn.Module):
    def __init__(self, cost_class=1.0, cost_bbox=5.0, cost_giou=2.0):
        super().__init__()
        self.cost_class, self.cost_bbox, self.cost_giou = cost_class, cost_bbox, cost_giou

    @torch.no_grad()
    def forward(self, outputs, targets):
        bs, num_queries = outputs["pred_logits"].shape[:2]
        out_prob = outputs["pred_logits"].flatten(0, 1).softmax(-1)
        out_bbox = outputs["pred_boxes"].flatten(0, 1)
        tgt_ids = torch.cat([v["labels"] for v in targets])
        tgt_bbox = torch.cat([v["boxes"] for v in targets])
        cost_class = -out_prob[:, tgt_ids]
        cost_bbox = torch.cdist(out_bbox, tgt_bbox, p=1)
        cost_giou = -generalized_box_iou(box_cxcywh_to_xyxy(out_bbox), box_cxcywh_to_xyxy(tgt_bbox))
        C = self.cost_bbox * cost_bbox + self.cost_class * cost_class + self.cost_giou * cost_giou
        C = C.view(bs, num_queries, -1).cpu()
        sizes = [len(v["boxes"]) for v in targets]
        indices = [linear_sum_assignment(c[i]) for i, c in enumerate(C.split(sizes, -1))]
        return [(torch.as_tensor(i, dtype=torch.int64), torch.as_tensor(j, dtype=torch.int64)) for i, j in indices]


class SetCriterion(nn.Module):
    def __init__(self, num_classes, matcher, eos_coef=0.1):
        super().__init__()
        self.num_classes, self.matcher = num_classes, matcher
        empty_weight = torch.ones(num_classes + 1)
        empty_weight[-1] = eos_coef
        self.register_buffer("empty_weight", empty_weight)

    def get_src_permutation_idx(self, indices):
        batch_idx = torch.cat([torch.full_like(src, i) for i, (src, _) in enumerate(indices)])
        src_idx = torch.cat([src for (src, _) in indices])
        return batch_idx, src_idx

    def loss_labels(self, outputs, targets, indices, num_boxes, log=True):
        src_logits = outputs["pred_logits"]
        idx = self.get_src_permutation_idx(indices)
        target_classes_o = torch.cat([t["labels"][J] for t, (_, J) in zip(targets, indices)])
        target_classes = torch.full(
            src_logits.shape[:2], self.num_classes, dtype=torch.int64, device=src_logits.device
        )
        target_classes[idx] = target_classes_o
        losses = {"loss_ce": F.cross_entropy(src_logits.transpose(1, 2), target_classes, self.empty_weight)}
        if log:
            correct = (src_logits[idx].argmax(-1) == target_classes_o).float().mean()
            losses["class_error"] = 100 - 100 * correct
        return losses

    @torch.no_grad()
    def loss_cardinality(self, outputs, targets, indices, num_boxes):
        pred_logits = outputs["pred_logits"]
        tgt_lengths = torch.as_tensor([len(v["labels"]) for v in targets], device=pred_logits.device)
        card_pred = (pred_logits.argmax(-1) != pred_logits.shape[-1] - 1).sum(1)
        return {"cardinality_error": F.l1_loss(card_pred.float(), tgt_lengths.float())}

    def loss_boxes(self, outputs, targets, indices, num_boxes):
        idx = self.get_src_permutation_idx(indices)
        src_boxes = outputs["pred_boxes"][idx]
        target_boxes = torch.cat([t["boxes"][i] for t, (_, i) in zip(targets, indices)], dim=0)
        loss_bbox = F.l1_loss(src_boxes, target_boxes, reduction="none")
        loss_giou = 1 - torch.diag(
            generalized_box_iou(box_cxcywh_to_xyxy(src_boxes), box_cxcywh_to_xyxy(target_boxes))
        )
        return {"loss_bbox": loss_bbox.sum() / num_boxes, "loss_giou": loss_giou.sum() / num_boxes}

    def forward(self, outputs, targets):
        outputs_without_aux = {k: v for k, v in outputs.items() if k != "aux_outputs"}
        indices = self.matcher(outputs_without_aux, targets)
        num_boxes = sum(len(t["labels"]) for t in targets)
        num_boxes = torch.as_tensor([num_boxes], dtype=torch.float, device=next(iter(outputs.values())).device)
        num_boxes = torch.clamp(num_boxes, min=1).item()
        losses = {}
        for loss in (self.loss_labels, self.loss_boxes, self.loss_cardinality):
            losses.update(loss(outputs, targets, indices, num_boxes))
        for i, aux_outputs in enumerate(outputs["aux_outputs"]):
            indices = self.matcher(aux_outputs, targets)
            for loss in (self.loss_labels, self.loss_boxes, self.loss_cardinality):
                kwargs = {"log": False} if loss == self.loss_labels else {}
                l_dict = loss(aux_outputs, targets, indices, num_boxes, **kwargs)
                losses.update({k + f"_{i}": v for k, v in l_dict.items()})
        return losses


class SmoothedValue:
    """Track a series of values and provide access to smoothed values over a window."""

    def __init__(self, window_size=20):
        self.deque, self.total, self.count = deque(maxlen=window_size), 0.0, 0

    def update(self, value):
        self.deque.append(value)
        self.count += 1
        self.total += value

    def __str__(self):
        return f"{np.median(self.deque):.4f} ({self.total / self.count:.4f})"


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **kwargs):
        for k, v in kwargs.items():
            if isinstance(v, torch.Tensor):
                v = v.item()
            assert isinstance(v, (float, int))
            self.meters[k].update(v)

    def __str__(self):
        return "  ".join(f"{name}: {meter}" for name, meter in self.meters.items())


@torch.no_grad()
def evaluate(model, criterion, weight_dict, loader, device):
    model.eval()
    logger = MetricLogger()
    for (images, mask), targets in loader:
        images, mask = images.to(device), mask.to(device)
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        loss_dict = criterion(model(images, mask), targets)
        logger.update(loss=sum(loss_dict[k] * weight_dict[k] for k in loss_dict if k in weight_dict),
                      class_error=loss_dict["class_error"])
    print("Averaged stats:", logger)
    model.train()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--lr", default=1e-4, type=float)
    parser.add_argument("--lr_backbone", default=1e-5, type=float)
    parser.add_argument("--batch_size", default=2 if SMALL else 4, type=int)
    parser.add_argument("--clip_max_norm", default=0.1, type=float)
    parser.add_argument("--num_queries", default=20 if SMALL else 100, type=int)
    parser.add_argument("--num_workers", default=1 if SMALL else 2, type=int)
    parser.add_argument("--print_freq", default=10, type=int)
    args = parser.parse_args()

    torch.manual_seed(42)
    np.random.seed(42)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    hidden = 32 if SMALL else 256
    backbone = Backbone((1, 1, 1, 1), 8) if SMALL else Backbone()
    transformer = Transformer(hidden, 2, 1, 2, 64) if SMALL else Transformer(hidden)
    model = DETR(backbone, transformer, NUM_CLASSES, args.num_queries, hidden)
    model.to(device)
    criterion = SetCriterion(NUM_CLASSES, HungarianMatcher()).to(device)
    weight_dict = {"loss_ce": 1, "loss_bbox": 5, "loss_giou": 2}
    for i in range(len(transformer.decoder) - 1):
        weight_dict.update({k + f"_{i}": v for k, v in list(weight_dict.items())[:3]})
    print("number of params:", sum(p.numel() for p in model.parameters() if p.requires_grad))

    param_dicts = [
        {"params": [p for n, p in model.named_parameters() if "backbone" not in n and p.requires_grad]},
        {
            "params": [p for n, p in model.named_parameters() if "backbone" in n and p.requires_grad],
            "lr": args.lr_backbone,
        },
    ]
    optimizer = torch.optim.AdamW(param_dicts, lr=args.lr, weight_decay=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 200)

    train_loader = DataLoader(Scenes(60 if SMALL else 4000, True, 1), args.batch_size, shuffle=True, drop_last=True,
                              collate_fn=collate_fn, num_workers=args.num_workers)
    val_loader = DataLoader(Scenes(4 if SMALL else 100, False, 2), args.batch_size,
                            collate_fn=collate_fn, num_workers=args.num_workers)

    ends, t_start, done, epoch = [], None, False, 0
    while not done:
        model.train()
        metric_logger = MetricLogger()
        for i, ((images, mask), targets) in enumerate(train_loader):
            images, mask = images.to(device), mask.to(device)
            targets = [{k: v.to(device) for k, v in t.items()} for t in targets]

            outputs = model(images, mask)
            loss_dict = criterion(outputs, targets)
            losses = sum(loss_dict[k] * weight_dict[k] for k in loss_dict if k in weight_dict)

            # log the losses, weighted and not
            loss_dict_unscaled = {f"{k}_unscaled": v for k, v in loss_dict.items()}
            loss_dict_scaled = {k: v * weight_dict[k] for k, v in loss_dict.items() if k in weight_dict}
            loss_value = sum(loss_dict_scaled.values()).item()
            if not math.isfinite(loss_value):
                print(f"Loss is {loss_value}, stopping training")
                print(loss_dict)
                sys.exit(1)

            optimizer.zero_grad()
            losses.backward()
            if args.clip_max_norm > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_max_norm)
            optimizer.step()

            metric_logger.update(loss=loss_value, **loss_dict_scaled, **loss_dict_unscaled)
            metric_logger.update(class_error=loss_dict["class_error"])
            metric_logger.update(lr=optimizer.param_groups[0]["lr"])
            if i % args.print_freq == 0:
                print(f"Epoch: [{epoch}]  [{i:>4d}/{len(train_loader)}]  {metric_logger}")

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
            lr_scheduler.step()
            evaluate(model, criterion, weight_dict, val_loader, device)
            epoch += 1

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
