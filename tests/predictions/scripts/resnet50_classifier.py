"""ResNet-50 image classification, in the manner of the PyTorch ImageNet example.

The images are synthetic: every class has its own colour/texture pattern.
"""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"

parser = argparse.ArgumentParser(description="ResNet-50 training")
parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("-j", "--workers", type=int, default=1 if SMALL else 8)
parser.add_argument("-b", "--batch-size", type=int, default=4 if SMALL else 128)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=1e-4)
parser.add_argument("-p", "--print-freq", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

NUM_CLASSES = 10 if SMALL else 1000
IMAGE_SIZE = 32 if SMALL else 224
LOAD_SIZE = 40 if SMALL else 256

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class SyntheticImageNet(Dataset):
    def __init__(self, length, train=True, seed=0):
        rng = np.random.default_rng(seed)
        self.length = length
        self.train = train
        self.labels = rng.integers(0, NUM_CLASSES, size=length)
        self.textures = rng.integers(0, 256, size=(64, LOAD_SIZE, LOAD_SIZE, 3), dtype=np.uint8)
        self.colors = rng.integers(0, 256, size=(NUM_CLASSES, 3)).astype(np.uint8)

    def __len__(self):
        return self.length

    def load(self, idx):
        label = self.labels[idx]
        img = self.textures[idx % 64] // 2 + self.colors[label] // 2
        return img, label

    def random_crop(self, img):
        y = np.random.randint(0, LOAD_SIZE - IMAGE_SIZE + 1)
        x = np.random.randint(0, LOAD_SIZE - IMAGE_SIZE + 1)
        return img[y : y + IMAGE_SIZE, x : x + IMAGE_SIZE]

    def center_crop(self, img):
        o = (LOAD_SIZE - IMAGE_SIZE) // 2
        return img[o : o + IMAGE_SIZE, o : o + IMAGE_SIZE]

    def color_jitter(self, img):
        brightness = np.random.uniform(0.6, 1.4)
        contrast = np.random.uniform(0.6, 1.4)
        img = img * brightness
        mean = img.mean()
        return np.clip((img - mean) * contrast + mean, 0.0, 1.0)

    def __getitem__(self, idx):
        img, label = self.load(idx)
        if self.train:
            img = self.random_crop(img)
            if np.random.rand() < 0.5:
                img = img[:, ::-1]
            img = img.astype(np.float32) / 255.0
            img = self.color_jitter(img)
        else:
            img = self.center_crop(img).astype(np.float32) / 255.0
        img = (img - MEAN) / STD
        img = np.ascontiguousarray(img.transpose(2, 0, 1), dtype=np.float32)
        return torch.from_numpy(img), int(label)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, in_planes, planes, stride=1, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, layers, num_classes=1000, width=64):
        super().__init__()
        self.in_planes = width
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._make_layer(width, layers[0])
        self.layer2 = self._make_layer(width * 2, layers[1], stride=2)
        self.layer3 = self._make_layer(width * 4, layers[2], stride=2)
        self.layer4 = self._make_layer(width * 8, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width * 8 * 4, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def _make_layer(self, planes, blocks, stride=1):
        downsample = nn.Sequential(
            nn.Conv2d(self.in_planes, planes * 4, 1, stride=stride, bias=False),
            nn.BatchNorm2d(planes * 4),
        )
        layers = [Bottleneck(self.in_planes, planes, stride, downsample)]
        self.in_planes = planes * 4
        layers += [Bottleneck(self.in_planes, planes) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


class AverageMeter:
    """Computes and stores the average and current value"""

    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


def accuracy(output, target, topk=(1,)):
    """Computes the accuracy over the k top predictions for the specified values of k"""
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


def validate(loader, model, criterion, device):
    losses, top1, top5 = AverageMeter("Loss"), AverageMeter("Acc@1"), AverageMeter("Acc@5")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            images = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), images.size(0))
            top1.update(acc1[0].item(), images.size(0))
            top5.update(acc5[0].item(), images.size(0))
    print(f" * Acc@1 {top1.avg:.3f} Acc@5 {top5.avg:.3f}")
    model.train()


def main():
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    model = ResNet([1, 1, 1, 1], NUM_CLASSES, 8) if SMALL else ResNet([3, 4, 6, 3], NUM_CLASSES)
    model = model.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wd)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)

    train_set = SyntheticImageNet(400 if SMALL else 100_000, train=True, seed=args.seed)
    val_set = SyntheticImageNet(16 if SMALL else 2_000, train=False, seed=args.seed + 1)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True,
                              num_workers=args.workers, pin_memory=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers, pin_memory=True)

    ends, t_start, done, epoch = [], None, False, 0
    while not done:
        batch_time = AverageMeter("Time", ":6.3f")
        data_time = AverageMeter("Data", ":6.3f")
        losses = AverageMeter("Loss", ":.4e")
        top1 = AverageMeter("Acc@1", ":6.2f")
        top5 = AverageMeter("Acc@5", ":6.2f")
        model.train()
        end = time.perf_counter()
        for i, (images, target) in enumerate(train_loader):
            data_time.update(time.perf_counter() - end)

            images = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)

            output = model(images)
            loss = criterion(output, target)

            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), images.size(0))
            top1.update(acc1[0].item(), images.size(0))
            top5.update(acc5[0].item(), images.size(0))

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            batch_time.update(time.perf_counter() - end)
            end = time.perf_counter()
            if i % args.print_freq == 0:
                print(f"Epoch: [{epoch}][{i}/{len(train_loader)}]\t" + "\t".join(
                    str(m) for m in (batch_time, data_time, losses, top1, top5)))

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
            validate(val_loader, model, criterion, device)
            scheduler.step()
            epoch += 1

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
