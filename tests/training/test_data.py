"""Samples of a dataset for each rank: random items are the same wherever they are read."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from deeppool.training.data import ShardReader

BATCH = 6


class Drawn(Dataset):
    """Items that draw from each global generator; input and target get the same numbers, as a random crop of both."""

    def __len__(self) -> int:
        return 4 * BATCH

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = [position, random.random(), np.random.random(), torch.rand(()).item()]
        return torch.tensor(numbers, dtype=torch.float64), torch.tensor(numbers, dtype=torch.float64)


def items(reader: ShardReader, iteration: int, *shards: range, part: int = 0) -> list[list[float]]:
    return [item for shard in shards for item in reader.shard(iteration, shard)[part].tolist()]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_is_drawn_alike_by_ranks_that_read_other_shards_and_after_a_restart(workers: int) -> None:
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    first = ShardReader(Drawn(), BATCH, 0, workers)
    found = [items(first, iteration, range(2), range(2, BATCH)) for iteration in range(5)]
    torch.manual_seed(2), random.seed(2), np.random.seed(2)
    last = ShardReader(Drawn(), BATCH, 0, 0)
    assert [items(last, iteration, range(BATCH), part=1) for iteration in range(5)] == found
    resumed = ShardReader(Drawn(), BATCH, 0, workers)
    assert items(resumed, 3, range(BATCH)) == found[3]


def test_no_two_samples_epochs_or_seeds_draw_alike_and_what_others_draw_is_left_alone() -> None:
    readers = [ShardReader(Drawn(), BATCH, seed, 0) for seed in (0, -1)]
    # A loader draws a seed when it starts. Two epochs of four batches.
    found = [item for reader in readers for item in items(reader, 0, range(BATCH))]
    before = random.getstate()[1], np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    found += [item for reader in readers for batch in range(1, 8) for item in items(reader, batch, range(BATCH))]
    assert (random.getstate()[1], np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    for generator in (1, 2, 3):
        assert len({item[generator] for item in found}) == len(found)
