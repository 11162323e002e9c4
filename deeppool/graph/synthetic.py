"""A task that any classifier can learn: noisy copies of one prototype per class."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class SyntheticTask:
    """A fixed, seeded data set that lives in memory; every process that asks gets the same samples.

    Floating inputs are ``prototype[class] + noise``; integer inputs (tokens) are drawn from a vocabulary
    of their own per class.
    """

    CLASSES = 10
    NOISE = 0.5
    BATCHES = 4

    def __init__(self, inputs: "Tensor", target: "Tensor", batch: int, seed: int) -> None:
        """Draws ``BATCHES`` global batches.

        Args:
            inputs: an example of shape (any, …), for dtype and the shape of a sample.
            target: an example of shape (any, …) of class indices.
            batch: samples in a global batch.
            seed: of everything drawn.
        """
        import torch

        generator = torch.Generator().manual_seed(seed)
        count = batch * self.BATCHES
        classes = torch.randint(self.CLASSES, (count,), generator=generator)
        shape = tuple(inputs.shape[1:])
        if inputs.is_floating_point():
            prototypes = torch.randn(self.CLASSES, *shape, generator=generator)
            noise = torch.randn(count, *shape, generator=generator)
            samples = prototypes[classes] + self.NOISE * noise
        else:
            samples = classes.reshape(-1, *[1] * len(shape)) + torch.randint(2, (count, *shape), generator=generator)
        self.samples = samples.to(inputs.dtype)
        self.targets = classes.reshape(-1, *[1] * (target.dim() - 1)).expand(-1, *target.shape[1:]).contiguous()
        self.batch = batch

    def shard(self, step: int, start: int, stop: int) -> tuple["Tensor", "Tensor"]:
        """Samples ``start`` to ``stop`` of the global batch of a step, and their targets."""
        offset = step % self.BATCHES * self.batch
        return self.samples[offset + start : offset + stop], self.targets[offset + start : offset + stop]
