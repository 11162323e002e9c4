"""Assignment of a dataset's samples to global batches, and the loading of a rank's own samples.

The order of an epoch depends on the seed and the epoch alone, so that a training that continues from a checkpoint, on
any ranks, gets the same samples as without the interruption. By default it is ``torch.randperm`` with the seed
``seed + epoch``.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from deeppool.errors import InvalidValueError
from deeppool.processes.worker_sockets import keep_sockets_short
from deeppool.training.random_state import restored, seed_all
from deeppool.training.sampler import MakeSampler, SampledEpochs

Samples = tuple[torch.Tensor, ...]
"""Inputs, and the targets."""
_Item = tuple[int, int, int]
"""Number of a global batch, place in it, and position in the dataset."""


def first_sample(dataset: Dataset[Any]) -> Samples:
    """Returns a batch of a dataset's first sample, as a loader makes it tensors.

    Raises:
        InvalidValueError: the dataset has no positions, or its items are not inputs and a target.
    """
    _size(dataset)
    return _parts(default_collate([dataset[0]]), dataset)


def _parts(collated: Any, dataset: Dataset[Any]) -> Samples:
    """Returns inputs and targets of collated items."""
    if isinstance(collated, list | tuple) and len(collated) > 1:
        parts = tuple(collated)
        if all(isinstance(part, torch.Tensor) for part in parts):
            return parts
    item = dataset[0]
    held = f" of {', '.join(type(part).__name__ for part in item)}" if isinstance(item, list | tuple) else ""
    raise InvalidValueError(
        f"the dataset's first item is a {type(item).__name__}{held}, expected a tuple of each input and a target that "
        "tensors can hold, such as (image, label)"
    )


def _size(dataset: Dataset[Any]) -> int:
    """Returns the number of samples; raises for a dataset without positions."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InvalidValueError(
            f"the dataset is a {type(dataset).__name__}, expected one with a length and positions "
            "(__len__ and __getitem__): its samples are shared out by position"
        )
    return len(dataset)


class SampleOrder:
    """Positions in a dataset of every sample of every global batch; each epoch drops an incomplete last batch."""

    def __init__(
        self,
        size: int,
        global_batch: int,
        seed: int,
        draw: Callable[[int], list[int]] | None = None,
        *,
        background: bool = False,
    ) -> None:
        """Sets the order.

        Args:
            size: samples of an epoch.
            global_batch: samples of a batch.
            seed: seed of the default order.
            draw: returns the order of an epoch; None: the default order.
            background: whether it is a background job, whose batch is no plan's, for the message of the error.

        Raises:
            InvalidValueError: an epoch has no batch.
        """
        if size < global_batch:
            needed, step = (
                ("a batch of the background", "choose a smaller one: --background-batch, or batch of its BackgroundJob")
                if background
                else ("a global batch", "plan for a smaller batch")
            )
            raise InvalidValueError(
                f"the {'sampler' if draw else 'dataset'} has {size} samples, {needed} is {global_batch} ({step})"
            )
        self.size, self.global_batch, self.seed = size, global_batch, seed
        self._draw = draw or self._permutation
        self._epoch = -1
        self._order: list[int] = []

    def positions(self, iteration: int) -> list[int]:
        """Returns the positions of one global batch."""
        epoch, batch = divmod(iteration, self.size // self.global_batch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._draw(epoch)
        return self._order[batch * self.global_batch : (batch + 1) * self.global_batch]

    def digest(self) -> str:
        """Returns a hash of the first epoch's order, which must be the same on every rank."""
        self.positions(0)
        return hashlib.sha256(torch.tensor(self._order).numpy().tobytes()).hexdigest()[:16]

    def _permutation(self, epoch: int) -> list[int]:
        order: list[int] = torch.randperm(
            self.size, generator=torch.Generator().manual_seed(self.seed + epoch)
        ).tolist()
        return order


class _SeededItems(Dataset[Any]):
    """A dataset whose random items are the same wherever they are read.

    Several ranks may read one sample, one its input for the first stage and one its target for the last, and random
    transforms of the two must agree. So the global generators are seeded for each item, by the seed of the order, the
    number of the global batch and the sample's place in it.
    """

    def __init__(self, dataset: Dataset[Any], order: SampleOrder) -> None:
        self._dataset, self._seed = dataset, order.seed % 2**64

    def __getitems__(self, items: list[_Item]) -> list[Any]:
        """Returns the items of a shard, as loaders ask for them."""
        found = []
        with restored():
            for iteration, place, position in items:
                (seed,) = np.random.SeedSequence((self._seed, iteration, place)).generate_state(1).tolist()
                seed_all(seed)
                found.append(self._dataset[position])
        return found


class ShardReader:
    """Reader of one rank's shards, each through a loader of torch that prefetches."""

    def __init__(
        self,
        dataset: Dataset[Any],
        global_batch: int,
        seed: int,
        workers: int,
        sampler: MakeSampler | None = None,
        *,
        background: bool = False,
    ) -> None:
        """Sets the dataset and its order.

        Args:
            dataset: its items are inputs and a target.
            global_batch: samples of a batch, over all ranks.
            seed: seed of the order.
            workers: prefetching processes per shard.
            sampler: makes a sampler of each epoch; None: the default order.
            background: whether a background job reads it.
        """
        size = _size(dataset)
        self.dataset, self.workers = dataset, workers
        epochs = None if sampler is None else SampledEpochs(sampler, dataset, seed)
        self.order = SampleOrder(
            size if epochs is None else epochs.size, global_batch, seed, epochs, background=background
        )
        self.check: Callable[[Samples], None] = lambda samples: None
        """Raises for samples that the model or its loss cannot take."""
        self._loaders: dict[range, Iterator[Samples]] = {}
        self._current: dict[range, tuple[int, Samples]] = {}

    def forget(self) -> None:
        """Ends all loaders: from now on other shards may be read."""
        self._loaders.clear()
        self._current.clear()

    def shard(self, iteration: int, samples: range) -> Samples:
        """Returns inputs and targets of some samples of a global batch; iterations must be ascending."""
        for _ in range(self._current.get(samples, (iteration,))[0] + 1, iteration):
            # Left out by this rank; a new loader would have to start its processes again.
            next(self._loaders[samples])
        if samples not in self._loaders:
            if self.workers:
                keep_sockets_short()
            drawn = _SeededItems(self.dataset, self.order)
            batches = _ShardItems(self.order, samples, iteration)
            self._loaders[samples] = iter(DataLoader(drawn, batch_sampler=batches, num_workers=self.workers))
        if self._current.get(samples, (-1,))[0] != iteration:
            loaded = _parts(next(self._loaders[samples]), self.dataset)
            self.check(loaded)
            self._current[samples] = iteration, loaded
        return self._current[samples][1]


class _ShardItems:
    """Endless sampler of a loader: the items of one shard at a time."""

    def __init__(self, order: SampleOrder, samples: range, first: int) -> None:
        # A loader prefetches over the end of an epoch, and another shard's may not be there yet.
        self.order, self.samples, self.first = copy.copy(order), samples, first

    def __iter__(self) -> Iterator[list[_Item]]:
        iteration = self.first
        while True:
            positions = self.order.positions(iteration)
            yield [(iteration, place, positions[place]) for place in self.samples]
            iteration += 1
