"""A model of your own: nothing of torchvision's, two branches and a join.

deeppool takes it by name, from the folder that holds ``examples``:

    deeppool profile examples.two_branch:two_branch --batch-sizes 1,2,4,8 -o two_branch.json
"""

import torch
from torch import nn


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution, BatchNorm and ReLU: one layer of the graph."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class TwoBranch(nn.Module):
    """Sees an image twice, finely and coarsely, and classifies what both saw together."""

    def __init__(self, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.stem = convolution(3, width, 3)
        self.fine = nn.Sequential(convolution(width, width, 3), convolution(width, 2 * width, 3, stride=2))
        self.coarse = nn.Sequential(nn.AvgPool2d(2), convolution(width, 2 * width, 1))
        self.merge = convolution(4 * width, 4 * width, 3, stride=2)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = self.stem(images)
        both = torch.cat([self.fine(seen), self.coarse(seen)], dim=1)
        return self.head(self.merge(both).mean(dim=(2, 3)))


def two_branch() -> TwoBranch:
    """The model in training mode, as deeppool expects it."""
    return TwoBranch()


two_branch.input_shape = (3, 32, 32)
