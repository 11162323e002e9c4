"""Order of the samples by a sampler: the same on every rank, and in every epoch that is drawn again."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from deeppool.errors import InvalidValueError, RunError
from deeppool.execution.ranks import Ranks
from deeppool.training.data import ShardReader

DATA = data.TensorDataset(torch.arange(20), torch.arange(20))
SEED, BATCH = 7, 6


class Shuffled(data.Sampler[int]):
    """Order by the random numbers of a library."""

    def __init__(self, dataset: data.Dataset, shuffle) -> None:
        self.order, self.shuffle = list(range(len(dataset))), shuffle

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self):
        order = list(self.order)
        self.shuffle(order)
        return iter(order)


class Growing(data.Sampler[int]):
    """Longer in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12 + self.epoch

    def __iter__(self):
        return iter(range(len(self)))


SAMPLERS = {
    "random": RandomSampler,
    "subset": lambda dataset: SubsetRandomSampler(range(0, len(dataset), 1)),
    "weighted": lambda dataset: WeightedRandomSampler(torch.arange(1.0, 1 + len(dataset)), 30),
    "one replica": lambda dataset: DistributedSampler(dataset, num_replicas=1, rank=0, seed=3),
    "numpy": lambda dataset: Shuffled(dataset, np.random.shuffle),
    "python": lambda dataset: Shuffled(dataset, random.shuffle),
}


def by_torch(make, epoch: int) -> list[int]:
    """The order of an epoch by plain use of a sampler, in a process whose random numbers are seeded for it."""
    torch.manual_seed(SEED + epoch)
    np.random.seed(SEED + epoch)
    random.seed(SEED + epoch)
    sampler = make(DATA)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    return [int(position) for position in sampler]


def states() -> list:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_epoch_is_drawn_as_by_a_seeded_process_wherever_reading_begins(name: str) -> None:
    make = SAMPLERS[name]
    epochs = [by_torch(make, epoch) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    per_epoch = len(epochs[0]) // BATCH
    expected = [epoch[start : start + BATCH] for epoch in epochs for start in range(0, per_epoch * BATCH, BATCH)]

    before = states()
    whole = ShardReader(DATA, BATCH, SEED, 0, make)
    assert states() == before
    found = [whole.shard(iteration, range(BATCH))[1].tolist() for iteration in range(len(expected))]
    assert found == expected
    random.seed(0), np.random.seed(0), torch.manual_seed(0)  # as in another process
    resumed = ShardReader(DATA, BATCH, SEED, 0, make)
    first = per_epoch + 1
    assert [resumed.shard(first + i, range(BATCH))[1].tolist() for i in range(3)] == expected[first : first + 3]
    assert resumed.order.digest() == whole.order.digest()


def test_shards_that_prefetch_into_the_next_epoch_draw_each_epoch_once() -> None:
    made = []

    def make(dataset):
        made.append(len(made))
        return RandomSampler(dataset)

    reader = ShardReader(DATA, BATCH, SEED, 1, make)
    made.clear()
    shards = (range(4), range(4, 6))
    found = [[x for shard in shards for x in reader.shard(iteration, shard)[1].tolist()] for iteration in range(6)]
    assert found == [by_torch(RandomSampler, epoch)[start : start + 6] for epoch in range(2) for start in (0, 6, 12)]
    # Two epochs and what is prefetched of a third one, by each shard.
    assert len(made) == 2 * 3


STATEFUL = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda of: BatchSampler(RandomSampler(of), 2, False), "is a BatchSampler, expected one of single positions"),
        (lambda of: DistributedSampler(of, num_replicas=2, rank=0), "is a DistributedSampler of 2 replicas, expected"),
        (lambda of: RandomSampler(of, generator=STATEFUL), "orders the same epoch in two ways"),
        (lambda of: iter(range(20)), "is a range_iterator, expected a torch sampler of positions with a length"),
        (lambda of: SubsetRandomSampler([1, 2, 3]), "the sampler has 3 samples, a global batch is 6"),
    ],
)
def test_samplers_that_ranks_cannot_share_are_refused(make, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        ShardReader(DATA, BATCH, SEED, 0, make)


def test_a_sampler_whose_length_changes_is_refused_when_it_does() -> None:
    reader = ShardReader(DATA, BATCH, SEED, 0, lambda dataset: Growing())
    assert reader.order.positions(1) == [6, 7, 8, 9, 10, 11]
    with pytest.raises(InvalidValueError, match="has 13 samples in epoch 1, it had 12 in epoch 0"):
        reader.order.positions(2)


def test_ranks_that_order_the_samples_differently_are_refused_when_they_start() -> None:
    def order(sampler=None, dataset=DATA) -> str:
        return ShardReader(dataset, BATCH, SEED, 0, sampler).order.digest()

    def start(*orders: str | None) -> None:
        ranks = object.__new__(Ranks)
        ranks.group = SimpleNamespace(
            collect=lambda *_, **__: [{"device_name": "cpu", "order": order} for order in orders]
        )
        ranks.wait_until_ready()

    start(None, None)
    start(order(), order())
    start(order(RandomSampler), order(RandomSampler))
    reverse = lambda dataset: Shuffled(dataset, list.reverse)  # noqa: E731
    for others in (order(reverse), order(dataset=data.Subset(DATA, range(19)))):
        with pytest.raises(RunError, match="rank 0 and rank 2 order the samples differently: shards"):
            start(order(), order(), others)
