"""What is trained by each mode: the paper's hyperplane regression, and its ResNet on small images, scaled down."""

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from deeppool.errors import InvalidValueError
from deeppool.runs.mode_comparison.digits import CLASSES, digit_images

TaskName = Literal["digits", "hyperplane"]


class Hyperplane:
    """Regression of the coefficients of a hyperplane, with noise (Li et al., PPoPP 2020, section 6.2.1)."""

    def __init__(self, seed: int, *, batch: int = 2048, features: int = 8192, samples: int = 32_768) -> None:
        """Draws the coefficients.

        Args:
            seed: of points and weights.
            batch: points of an update, over all ranks.
            features: coefficients.
            samples: points of an epoch.
        """
        self._seed, self._batch, self._features, self._places = seed, batch, features, samples // batch
        self._weights = torch.randn(features, generator=torch.Generator().manual_seed(seed))
        self._shares: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        torch.manual_seed(seed)
        self.model: nn.Module = nn.Linear(features, 1)
        # The loss falls by a factor of 1 - 2 rate per update, whatever the number of features.
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.schedule: torch.optim.lr_scheduler.LRScheduler | None = None

    def loss(self, update: int, rank: int, ranks: int) -> torch.Tensor:
        """Returns the mean squared error of a rank's share."""
        place = update % self._places
        if (place, rank) not in self._shares:
            number = 1 + self._seed * 1_000_003 + place * ranks + rank
            self._shares[place, rank] = self._drawn(self._batch // ranks, number)
        return self._error(*self._shares[place, rank])

    def score(self) -> tuple[float, float | None]:
        """Returns the mean squared error of other points; 4 is noise."""
        with torch.no_grad():
            return float(self._error(*self._drawn(2048, 2**40 + self._seed))), None

    def _drawn(self, count: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(count, self._features, generator=generator)
        return inputs, inputs @ self._weights + 2 * torch.randn(count, generator=generator)

    def _error(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        error: torch.Tensor = self.model(inputs).squeeze(1) - targets
        return error.square().mean()


class Digits:
    """Classification of :func:`digit_images` by a small ResNet."""

    def __init__(
        self,
        seed: int,
        *,
        batch: int = 128,
        images: int = 2048,
        width: int = 8,
        rate: float = 0.05,
        decay: Sequence[int] = (),
        test_images: int | None = None,
    ) -> None:
        """Draws images and weights.

        Args:
            seed: of weights and the order of images; the images are the same for all seeds.
            batch: images of an update, over all ranks.
            images: of an epoch.
            width: channels of the first layers.
            rate: learning rate, of SGD with momentum 0.9.
            decay: updates after each of which the learning rate is a tenth of what it was.
            test_images: of the test, which no training sees; by default half as many as of an epoch.
        """
        self._seed, self._batch = seed, batch
        self._images, self._digits = digit_images(images, 1)
        self._test = digit_images(images // 2 if test_images is None else test_images, 2)
        torch.manual_seed(seed)
        self.model: nn.Module = _resnet(width)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self.schedule: torch.optim.lr_scheduler.LRScheduler | None = torch.optim.lr_scheduler.MultiStepLR(
            self.optimizer, list(decay)
        )

    def loss(self, update: int, rank: int, ranks: int) -> torch.Tensor:
        """Returns the cross entropy of a rank's share."""
        epoch, place = divmod(update, len(self._digits) // self._batch)
        order = torch.randperm(len(self._digits), generator=torch.Generator().manual_seed(self._seed * 10_007 + epoch))
        mine = order[place * self._batch : (place + 1) * self._batch][rank::ranks]
        return F.cross_entropy(self.model(self._images[mine]), self._digits[mine])

    def score(self) -> tuple[float, float | None]:
        """Returns cross entropy and accuracy on other images."""
        images, digits = self._test
        with torch.no_grad():
            scores = self.model(images)
        accuracy = (scores.argmax(1) == digits).double().mean()
        return float(F.cross_entropy(scores, digits)), float(accuracy)


class _Block(nn.Module):
    """A residual block that may halve the image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(4, outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.relu(self.shortcut(images) + self.layers(images))


def _resnet(width: int) -> nn.Module:
    """A ResNet of three blocks; GroupNorm, as statistics of BatchNorm would differ between replicas."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1, bias=False),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        _Block(width, width, 1),
        _Block(width, 2 * width, 2),
        _Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, CLASSES),
    )


ComparedTask = Hyperplane | Digits
"""A training, the same on every rank."""
_TASKS: dict[str, type[ComparedTask]] = {"digits": Digits, "hyperplane": Hyperplane}


def decay(updates: int) -> tuple[int, int]:
    """Returns when the learning rate falls: after a half and three quarters of the updates (He et al., CVPR 2016)."""
    return updates // 2, 3 * updates // 4


def make_task(name: str, seed: int, sizes: dict[str, Any]) -> ComparedTask:
    """Makes a task; ``sizes`` are the arguments of its class."""
    return _task(name)(seed, **sizes)


def check_sizes(name: str, ranks: int, sizes: dict[str, Any]) -> None:
    """Checks that a task has a sample of each batch for every rank, and a batch an epoch.

    Raises:
        InvalidValueError: it has not, or there is no such task.
    """
    given = inspect.signature(_task(name)).bind(0, **sizes)
    given.apply_defaults()
    batch, samples = given.arguments["batch"], given.arguments["images" if name == "digits" else "samples"]
    if not ranks <= batch <= samples:
        raise InvalidValueError(
            f"every rank has a sample of each batch, and an epoch a batch, got {ranks} ranks, batches of {batch} and "
            f"epochs of {samples} (choose a batch between the two)"
        )


def _task(name: str) -> type[ComparedTask]:
    if name not in _TASKS:
        raise InvalidValueError(f"a task is one of {', '.join(_TASKS)}, got {name!r}")
    return _TASKS[name]
