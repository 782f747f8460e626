"""ResNet in plain torch (He et al. 2016, with the stride in the 3×3 convolution), so that torchvision is not needed."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """A residual block: two 3×3 convolutions, or a bottleneck of 1×1, 3×3 and 1×1.

    Args:
        channels: Channels that come in.
        width: Channels inside.
        stride: Stride of the (first) 3×3 convolution.
        expansion: Channels that go out ÷ ``width``: 1 makes a basic block, 4 a bottleneck.
    """

    def __init__(self, channels: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        out = width * expansion
        if expansion == 1:
            shapes = [(channels, width, 3, stride), (width, out, 3, 1)]
        else:
            shapes = [(channels, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        layers: list[nn.Module] = []
        for shape in shapes:
            layers += [convolution(*shape), nn.ReLU(inplace=True)]
        self.residual = nn.Sequential(*layers[:-1])  # the last ReLU comes after the sum
        keeps_shape = stride == 1 and channels == out
        self.shortcut = nn.Identity() if keeps_shape else convolution(channels, out, 1, stride)
        self.relu = nn.ReLU(inplace=True)
        # The block starts as the identity (Goyal et al. 2017). Without it the first steps are chaotic: rounding alone
        # changes the loss by a tenth, and variants could not be compared.
        nn.init.zeros_(self.residual[-1][1].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.residual(x) + self.shortcut(x))


def convolution(channels: int, out: int, kernel: int, stride: int) -> nn.Sequential:
    """A convolution that keeps the size (but for its stride), and batch normalisation."""
    layer = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(out))


def resnet(depth: int, classes: int, width: int = 64) -> nn.Sequential:
    """Build a ResNet.

    Args:
        depth: 10, 18 or 34 (basic blocks), or 8 or 50 (bottlenecks). 10 has one block a stage, 8 two stages of one
            block: they are for small tests.
        classes: Outputs.
        width: Channels of the first stage; 64 in the published models.
    """
    blocks, expansion = {
        10: ((1, 1, 1, 1), 1),
        18: ((2, 2, 2, 2), 1),
        34: ((3, 4, 6, 3), 1),
        8: ((1, 1), 4),
        50: ((3, 4, 6, 3), 4),
    }[depth]
    stem = nn.Sequential(convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1))
    stages, channels = [], width
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            stages.append(Block(channels, width << stage, stride, expansion))
            channels = (width << stage) * expansion
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
