"""Which samples of a dataset a global batch holds, and how a rank reads its own.

The order of an epoch depends on the seed and the epoch alone, so that a training that goes on from a checkpoint,
on whatever ranks, sees what it would have seen.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from deeppool.errors import InvalidValueError

Samples = tuple[torch.Tensor, ...]
"""Each input, and the targets."""


class SampleOrder:
    """Positions in a dataset of every sample of every global batch; what does not fill a batch waits an epoch."""

    def __init__(self, size: int, global_batch: int, seed: int) -> None:
        """Takes the samples in the dataset."""
        if size < global_batch:
            raise InvalidValueError(
                f"the dataset has {size} samples, a global batch is {global_batch} (plan for a smaller batch)"
            )
        self.size, self.global_batch, self.seed = size, global_batch, seed
        self._epoch = -1
        self._order: list[int] = []

    def positions(self, iteration: int) -> list[int]:
        """Of one global batch."""
        epoch, batch = divmod(iteration, self.size // self.global_batch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self._epoch, self._order = epoch, torch.randperm(self.size, generator=generator).tolist()
        return self._order[batch * self.global_batch : (batch + 1) * self.global_batch]


class ShardReader:
    """Reads one rank's shards, each through a loader of torch that works ahead."""

    def __init__(self, dataset: Dataset[Any], global_batch: int, seed: int, workers: int) -> None:
        """Takes a dataset whose items are each input and the target, and the processes that work ahead per shard."""
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
        """Inputs and targets of some samples of a global batch; iterations must come one after another."""
        if samples not in self._loaders:
            batches = _ShardPositions(self.order, samples, iteration)
            self._loaders[samples] = iter(DataLoader(self.dataset, batch_sampler=batches, num_workers=self.workers))
        if self._current.get(samples, (-1,))[0] != iteration:
            self._current[samples] = iteration, tuple(next(self._loaders[samples]))
        return self._current[samples][1]


class _ShardPositions:
    """What a loader reads: endless, one shard at a time."""

    def __init__(self, order: SampleOrder, samples: range, first: int) -> None:
        self.order, self.samples, self.first = order, samples, first

    def __iter__(self) -> Iterator[list[int]]:
        iteration = self.first
        while True:
            yield self.order.positions(iteration)[self.samples.start : self.samples.stop]
            iteration += 1
