"""Synthetic task that any classifier or regression can learn: noisy copies of one prototype per class."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from deeppool.graph.capture.capture import CapturedModel


class SyntheticTask:
    """Fixed, seeded data set in memory; every process gets the same samples.

    Floating inputs are ``prototype[class] + noise``. Integer inputs are tokens, drawn from the whole vocabulary
    of the model, with a part of it for each class. Every position of a sample has its class as target; a target of
    numbers has some between 0 and 1 for each class.
    """

    CLASSES = 10
    """Maximum number of classes; a model with fewer outputs gets as many as it has."""
    NOISE = 0.5
    BATCHES = 4

    def __init__(self, captured: "CapturedModel", batch: int, seed: int) -> None:
        """Draws ``BATCHES`` global batches.

        Args:
            captured: model whose inputs and target the samples fit.
            batch: samples in a global batch.
            seed: seed of all samples.
        """
        import torch

        from deeppool.graph.capture.index_ranges import value_count

        generator = torch.Generator().manual_seed(seed)
        count = batch * self.BATCHES
        *inputs, target = (node for node in captured.program.graph.nodes if node.op == "placeholder")
        of_classes = not target.meta["val"].is_floating_point()
        classes = min(self.CLASSES, value_count(target)) if of_classes else self.CLASSES
        labels = torch.randint(classes, (count,), generator=generator)
        self.tensors = []
        for node in inputs:
            value, shape = node.meta["val"], tuple(map(int, node.meta["val"].shape[1:]))
            if value.is_floating_point():
                samples = self._floats(labels, shape, generator)
            else:
                samples = self._tokens(labels, shape, classes, value_count(node), generator)
            self.tensors.append(samples.to(value.dtype))
        shape = tuple(map(int, target.meta["val"].shape[1:]))
        if of_classes:
            targets = labels.reshape(-1, *[1] * len(shape)).expand(-1, *shape).contiguous()
        else:
            targets = torch.rand(classes, *shape, generator=generator)[labels]
        self.tensors.append(targets.to(target.meta["val"].dtype))
        self.batch = batch

    def _floats(self, labels: "Tensor", shape: tuple[int, ...], generator: "Generator") -> "Tensor":
        import torch

        prototypes = torch.randn(self.CLASSES, *shape, generator=generator)
        noise = torch.randn(len(labels), *shape, generator=generator)
        return prototypes[labels] + self.NOISE * noise

    def _tokens(
        self, labels: "Tensor", shape: tuple[int, ...], classes: int, vocabulary: int, generator: "Generator"
    ) -> "Tensor":
        """Draws tokens that leave the label as remainder when divided by the number of classes."""
        import torch

        classes = min(classes, vocabulary)
        remainders = (labels % classes).reshape(-1, *[1] * len(shape))
        choices = (vocabulary - 1 - remainders) // classes + 1
        multiples = torch.rand(len(labels), *shape, dtype=torch.float64, generator=generator) * choices
        return classes * multiples.long() + remainders

    def shard(self, step: int, start: int, stop: int) -> tuple["Tensor", ...]:
        """Returns samples ``start`` to ``stop`` of the global batch of a step: inputs, and the targets."""
        offset = step % self.BATCHES * self.batch
        return tuple(tensor[offset + start : offset + stop] for tensor in self.tensors)
