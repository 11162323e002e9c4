"""Buckets of gradients, against those that PyTorch's DDP makes."""

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from deeppool.collectives.buckets import BUCKET_BYTES, Buckets, ddp_buckets

MIB = 2**20


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=(tmp_path / "rendezvous").as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [MIB, 4 * MIB, BUCKET_BYTES, 50 * MIB])
def test_ddp_has_the_buckets_with_which_it_is_priced(size: int) -> None:
    widths = [300, 900, 1200, 10, 2000, 2000, 700, 900, 900, 1500, 20, 600, 1800, 1800, 5]
    layers = [nn.Linear(wide, high, bias=False) for wide, high in pairwise(widths)]
    cap = None if size == BUCKET_BYTES else size / MIB
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=cap)
    # After an iteration DDP makes its buckets in the order in which that computed the gradients, and later says so.
    for _ in range(3):
        model(torch.ones(1, widths[0])).sum().backward()
    sizes = [layer.weight.nbytes for layer in reversed(layers)]
    made = [sum(sizes[position] for position in bucket) for bucket in ddp_buckets(size).group(sizes)]
    assert ", ".join(map(str, made)) == model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    assert len(made) > 1


def test_gradients_of_several_types_have_the_buckets_of_pytorch() -> None:
    draw = random.Random(0)
    for _ in range(200):
        types = draw.choices([torch.float16, torch.float32, torch.float64], k=draw.randint(1, 40))
        gradients = [torch.empty(draw.randint(1, 12), dtype=dtype) for dtype in types]
        size, first = draw.randint(1, 200), draw.randint(1, 200)
        order = [*range(len(gradients))]
        made, _ = dist._compute_bucket_assignment_by_size(gradients, [first, size], [False] * len(order), order)
        found = Buckets(alone=None, size=size, first=first).group([each.nbytes for each in gradients], types)
        assert sorted(found) == sorted(made)


@pytest.mark.parametrize("alone", [None, 13])
@pytest.mark.parametrize("first", [None, 5, 80])
def test_no_bucket_of_several_gradients_exceeds_the_largest(alone: int | None, first: int | None) -> None:
    rule = Buckets(alone=alone, size=20, first=first)
    sizes = [12] * 30
    found = [sum(sizes[position] for position in bucket) for bucket in rule.group(sizes)]
    assert max(found) <= rule.largest(sizes)
