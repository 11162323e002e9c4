"""Order of the samples of an epoch by a sampler of the user's own, the same on every rank and after a restart."""

from collections.abc import Callable
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler

from deeppool.errors import InvalidValueError
from deeppool.training.random_state import restored, seed_all

MakeSampler = Callable[[Dataset[Any]], Sampler[int]]


class SampledEpochs:
    """Order of every epoch; it depends on the seed and the epoch alone, whatever was drawn before."""

    def __init__(self, make: MakeSampler, dataset: Dataset[Any], seed: int) -> None:
        """Draws the first epoch, twice.

        Args:
            make: makes a sampler of the dataset.
            dataset: what the positions are in.
            seed: seed of torch's, numpy's and Python's random numbers while an epoch is drawn.

        Raises:
            InvalidValueError: the sampler has no length, or its order is not that of all ranks.
        """
        self._make, self._dataset, self._seed = make, dataset, seed
        self.size = 0
        first = self._draw(0)
        if first != self._draw(0):
            raise InvalidValueError(
                "the sampler orders the same epoch in two ways, so no rank could draw what the others draw (make its "
                "generator in the function that makes the sampler, or leave the generator out)"
            )
        self.size = len(first)

    def __call__(self, epoch: int) -> list[int]:
        """Returns the positions of an epoch in order."""
        order = self._draw(epoch)
        if len(order) != self.size:
            raise InvalidValueError(
                f"the sampler has {len(order)} samples in epoch {epoch}, it had {self.size} in epoch 0 (every epoch "
                "must have the same number)"
            )
        return order

    def _draw(self, epoch: int) -> list[int]:
        with restored():
            seed_all(self._seed + epoch)
            sampler = self._make(self._dataset)
            _check(sampler)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            return [int(position) for position in islice(sampler, len(sampler))]  # type: ignore[arg-type]


def _check(sampler: object) -> None:
    kind = type(sampler).__name__
    if isinstance(sampler, BatchSampler):
        raise InvalidValueError(f"the sampler is a {kind}, expected one of single positions: the plan sets the batch")
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise InvalidValueError(
            f"the sampler is a {kind} of {sampler.num_replicas} replicas, expected one of all samples: the plan shares "
            "each batch out over the ranks (give it num_replicas=1 and rank=0)"
        )
    if not hasattr(sampler, "__len__") or not hasattr(sampler, "__iter__"):
        raise InvalidValueError(
            f"the sampler is a {kind}, expected a torch sampler of positions with a length (__iter__ and __len__)"
        )
