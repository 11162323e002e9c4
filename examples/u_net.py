"""A U-Net: each level is kept and read again on the way up, so branches lie within branches.

deeppool profile examples.u_net:u_net --batch-sizes 1,2,4,8 -o u_net.json
"""

import torch
from torch import nn


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions, each with BatchNorm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Says of every pixel which class it shows."""

    def __init__(self, classes: int = 10, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        self.down = nn.ModuleList(twice(inputs, outputs) for inputs, outputs in zip((3, *widths), widths, strict=False))
        self.shrink = nn.MaxPool2d(2)
        self.bottom = twice(widths[-1], 2 * widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in reversed(widths))
        self.up = nn.ModuleList(twice(2 * width, width) for width in reversed(widths))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = images
        kept = []
        for level in self.down:
            seen = level(seen)
            kept.append(seen)
            seen = self.shrink(seen)
        seen = self.bottom(seen)
        for grow, level in zip(self.grow, self.up, strict=True):
            seen = level(torch.cat([kept.pop(), grow(seen)], dim=1))
        return self.head(seen)


def u_net() -> UNet:
    """The model in training mode, as deeppool expects it."""
    return UNet()


u_net.input_shape = (3, 32, 32)
