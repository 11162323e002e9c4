"""Assignment of a dataset's samples to global batches, and the loading of a rank's own samples.

The order of an epoch depends on the seed and the epoch alone, so that a training that continues from a checkpoint, on
any ranks, gets the same samples as without the interruption.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from deeppool.errors import InvalidValueError

Samples = tuple[torch.Tensor, ...]
"""Inputs, and the targets."""


class SampleOrder:
    """Positions in a dataset of every sample of every global batch; each epoch drops an incomplete last batch."""

    def __init__(self, size: int, global_batch: int, seed: int) -> None:
        """Sets the size of the dataset, the batch and the seed."""
        if size < global_batch:
            raise InvalidValueError(
                f"the dataset has {size} samples, a global batch is {global_batch} (plan for a smaller batch)"
            )
        self.size, self.global_batch, self.seed = size, global_batch, seed
        self._epoch = -1
        self._order: list[int] = []

    def positions(self, iteration: int) -> list[int]:
        """Returns the positions of one global batch."""
        epoch, batch = divmod(iteration, self.size // self.global_batch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self._epoch, self._order = epoch, torch.randperm(self.size, generator=generator).tolist()
        return self._order[batch * self.global_batch : (batch + 1) * self.global_batch]


class ShardReader:
    """Reader of one rank's shards, each through a loader of torch that prefetches."""

    def __init__(self, dataset: Dataset[Any], global_batch: int, seed: int, workers: int) -> None:
        """Sets a dataset whose items are inputs and a target, and the number of prefetching processes per shard."""
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise InvalidValueError(
                f"the dataset is a {type(dataset).__name__}, expected one with a length and positions "
                "(__len__ and __getitem__): its samples are shared out by position"
            )
        self.dataset, self.workers = dataset, workers
        self.order = SampleOrder(len(dataset), global_batch, seed)
        self._loaders: dict[range, Iterator[Samples]] = {}
        self._current: dict[range, tuple[int, Samples]] = {}

    def shard(self, iteration: int, samples: range) -> Samples:
        """Returns inputs and targets of some samples of a global batch; iterations must be consecutive."""
        if samples not in self._loaders:
            batches = _ShardPositions(self.order, samples, iteration)
            self._loaders[samples] = iter(DataLoader(self.dataset, batch_sampler=batches, num_workers=self.workers))
        if self._current.get(samples, (-1,))[0] != iteration:
            self._current[samples] = iteration, tuple(next(self._loaders[samples]))
        return self._current[samples][1]


class _ShardPositions:
    """Endless sampler of a loader: positions of one shard at a time."""

    def __init__(self, order: SampleOrder, samples: range, first: int) -> None:
        self.order, self.samples, self.first = order, samples, first

    def __iter__(self) -> Iterator[list[int]]:
        iteration = self.first
        while True:
            yield self.order.positions(iteration)[self.samples.start : self.samples.stop]
            iteration += 1
