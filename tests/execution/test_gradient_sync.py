"""Buckets of the gradient all-reduce and the moments at which they start."""

import pytest
import torch
from torch import nn

from deeppool.collectives.buckets import DDP_BUCKETS, DEFAULT_BUCKETS, ONE_BUCKET, SEARCHED_BUCKETS, Buckets
from deeppool.collectives.patterns.recursive_doubling import recursive_doubling
from deeppool.collectives.schedule import Schedule
from deeppool.errors import InvalidValueError
from deeppool.execution.gradient_sync import GradientSync, make_buckets
from deeppool.planning.evaluate.schedule import bucket_seconds
from deeppool.training.bucket import Announcer, Bucket

RANKS = (0, 1)


class CompletedWork:
    """Work handle of a finished all-reduce."""

    def wait(self) -> None:
        """Returns at once."""


class MirroredCommunicator:
    """Communicator of two ranks whose other rank contributes the same as this one."""

    rank, ranks = 0, 2

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []
        self.schedules: list[Schedule | None] = []

    def group(self, ranks: tuple[int, ...], *, schedules: bool = False) -> "MirroredCommunicator":
        return self

    def all_reduce(self, tensor: torch.Tensor, schedule: Schedule | None = None) -> CompletedWork:
        self.sent.append(tensor.clone())
        self.schedules.append(schedule)
        tensor *= 2
        return CompletedWork()

    def close(self) -> None:
        """Does nothing: there is no process group."""


@pytest.fixture
def communicator() -> MirroredCommunicator:
    return MirroredCommunicator()


EACH = Buckets(alone=0)
"""Each gradient is a bucket."""


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def buckets(*layers: nn.Parameter, rule: Buckets = DEFAULT_BUCKETS) -> list[Bucket]:
    """Of one part."""
    return make_buckets([{RANKS: layers}], 0, rule)


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        (Buckets(alone=400, size=100), [[15, 10], [100], [20]]),
        (Buckets(alone=None, size=100), [[15, 10], [100], [20]]),
        (Buckets(alone=None, size=200), [[15, 10, 100], [20]]),
        (Buckets(alone=None, size=500, first=60), [[15], [10, 100, 20]]),
        (Buckets(alone=90, size=500, first=60), [[15], [100], [10, 20]]),
        (Buckets(alone=0), [[15], [10], [100], [20]]),
        (ONE_BUCKET, [[15, 10, 100, 20]]),
    ],
    ids=str,
)
def test_gradients_share_buckets_from_the_last_layer_to_the_first(rule: Buckets, numbers: list[list[int]]) -> None:
    found = [bucket.parameters for bucket in buckets(*parameters(20, 100, 10, 15), rule=rule)]
    assert [[len(member) for member in members] for members in found] == numbers


def test_gradients_of_two_types_do_not_share_a_bucket() -> None:
    mixed = [*parameters(3), *parameters(4, dtype=torch.bfloat16), *parameters(5)]
    found = [[member.dtype for member in bucket.parameters] for bucket in buckets(*mixed)]
    assert found == [[torch.bfloat16], [torch.float32, torch.float32]]


def test_a_rank_has_the_buckets_of_its_own_sets_last_part_first() -> None:
    first, other, last = parameters(1, 2, 3)
    found = make_buckets([{(0, 1): [first]}, {(1, 2): [other]}, {(0,): [last]}], 0, DEFAULT_BUCKETS)
    assert [(bucket.part, bucket.ranks, bucket.parameters) for bucket in found] == [
        (2, (0,), (last,)),
        (0, (0, 1), (first,)),
    ]


@pytest.mark.parametrize("rule", [DEFAULT_BUCKETS, DDP_BUCKETS, *SEARCHED_BUCKETS], ids=str)
def test_the_planner_prices_the_buckets_that_run(rule: Buckets) -> None:
    """Linear layers without bias, so that each layer has one gradient."""
    widths = [(700, 900), (1024, 1024), (64, 64), (1000, 1000), (1000, 1000), (2048, 2048), (10, 10)] * 15
    layers = [nn.Parameter(torch.empty(wide, high, device="meta")) for wide, high in widths]
    run = [sum(member.nbytes for member in bucket.parameters) for bucket in buckets(*layers, rule=rule)]
    sizes = [layer.nbytes for layer in layers]
    order = tuple(range(len(layers)))
    priced = bucket_seconds(order, [range(2)] * len(layers), sizes, rule, lambda gpus, size: float(size))
    assert len(run) > 3 or rule == ONE_BUCKET
    assert [size for size in reversed(priced) if size] == run


@pytest.mark.parametrize("rule", [DEFAULT_BUCKETS, DDP_BUCKETS, *SEARCHED_BUCKETS], ids=str)
def test_the_planner_prices_the_buckets_that_run_of_an_encoder_in_two_branches(rule: Buckets) -> None:
    """Both branches have the same weights, but for one of each, on GPUs 0-1 and 2-3; a layer on GPU 0 reads both."""
    widths = [64, 1024, 700, 500, 2048, 64, 900, 1024, 1100, 10] * 5
    tied, own = [
        [nn.Parameter(torch.empty(wide, wide, device="meta")) for wide in numbers]
        for numbers in (widths, [300, 600, 30])
    ]
    one, other, everyone, count = (0, 1), (2, 3), (0, 1, 2, 3), len(tied)
    shared = [{everyone: tied, one: own[:1]}, {other: own[1:2]}, {(0,): own[2:]}]
    run = [bucket for rank in (0, 2) for bucket in make_buckets(shared, rank, rule) if rank in bucket.ranks[:1]]
    branches = (*range(count + 1),), (*range(count + 1, 2 * count + 2),)
    priced = bucket_seconds(
        (branches, 2 * count + 2),
        [*[one] * (count + 1), *[other] * (count + 1), (0,)],
        [*(weight.nbytes for weight in (*tied, own[0])), *[0] * count, own[1].nbytes, own[2].nbytes],
        rule,
        lambda gpus, size: size + len(gpus) / 8,
        {(layer, layer + count + 1): weight.nbytes for layer, weight in enumerate(tied)},
    )
    sizes = [sum(member.nbytes for member in bucket.parameters) + len(bucket.ranks) / 8 for bucket in run]
    assert len(run) > 4 or rule == ONE_BUCKET
    assert sorted(seconds for seconds in priced if seconds) == sorted(sizes)


@pytest.mark.parametrize("early", [True, False])
def test_a_missing_gradient_counts_as_zeros_and_keeps_its_place_in_the_order(
    communicator: MirroredCommunicator, early: bool
) -> None:
    first, second, unused = parameters(3, 3, 2)
    sync, found = GradientSync(communicator, [RANKS]), buckets(first, second, unused, rule=EACH)
    announcer = Announcer(found, early=early)
    started_before_first = []
    first.register_hook(lambda gradient: started_before_first.append(len(communicator.sent)))
    announcer.expect(found, sync.start)
    ((first + 1) * second).sum().backward()
    announcer.part_done()
    for bucket in found:
        sync.finish(bucket)
    # Its bucket comes first, on all ranks.
    assert started_before_first == [0]
    assert [len(tensor) for tensor in communicator.sent] == [2, 3, 3]
    assert first.grad.tolist() == [0.0] * 3
    assert second.grad.tolist() == [2.0] * 3
    assert unused.grad.tolist() == [0.0] * 2
    sync.close()


def test_an_overlapped_bucket_starts_once_its_gradients_are_ready(communicator: MirroredCommunicator) -> None:
    first, second = parameters(3, 3)
    sync, found = GradientSync(communicator, [RANKS]), buckets(first, second, rule=EACH)
    announcer = Announcer(found, early=True)
    for update in range(2):
        communicator.sent.clear()
        first.grad = second.grad = None
        announcer.expect(found, sync.start)
        (second * 2).sum().backward()
        assert len(communicator.sent) == 1, update
        (first * 3).sum().backward()
        assert len(communicator.sent) == 2
        announcer.part_done()
        for bucket in found:
            sync.finish(bucket)
        assert (first.grad.tolist(), second.grad.tolist()) == ([6.0] * 3, [4.0] * 3)
    announcer.expect(found, sync.start)
    announcer.close()
    first.grad = second.grad = None
    (first * 3 + second).sum().backward()
    assert len(communicator.sent) == 2, "a closed announcer still receives gradients"


def test_gradients_of_earlier_batches_do_not_count(communicator: MirroredCommunicator) -> None:
    (only,) = parameters(3)
    sync, found = GradientSync(communicator, [RANKS]), buckets(only)
    announcer = Announcer(found, early=True)
    only.sum().backward()
    announcer.expect([], sync.start)
    only.sum().backward()
    assert not communicator.sent
    announcer.expect(found, sync.start)
    only.sum().backward()
    assert [tensor.tolist() for tensor in communicator.sent] == [[3.0] * 3]
    announcer.close()


def test_sums_stay_where_they_are_unless_parameters_are_laid_out_in_another_way(
    communicator: MirroredCommunicator,
) -> None:
    plain, turned = nn.Parameter(torch.zeros(2, 3, 4, 5)), nn.Parameter(torch.zeros(2, 3, 4, 5))
    turned.data = turned.data.to(memory_format=torch.channels_last)
    sync, (bucket,) = GradientSync(communicator, [RANKS]), buckets(plain, turned, rule=ONE_BUCKET)
    given = [torch.randn_like(parameter) for parameter in (plain, turned)]
    plain.grad, turned.grad = (gradient.clone() for gradient in given)
    before = turned.grad
    sync.start(bucket)
    sync.finish(bucket)
    for parameter, gradient in zip((plain, turned), given, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient, rtol=0, atol=0)
        assert parameter.grad.stride() == parameter.stride()
    assert turned.grad is before
    # Nothing is copied back: both sums lie in one block.
    assert plain.grad.untyped_storage().nbytes() == plain.nbytes + turned.nbytes


def test_a_bucket_is_summed_by_the_schedule_of_its_ranks_and_bytes(communicator: MirroredCommunicator) -> None:
    doubling = recursive_doubling(2)

    def choose(ranks: int, size: int) -> Schedule | None:
        assert ranks == len(RANKS)
        return doubling if size <= 4 * 3 else None

    sync, found = GradientSync(communicator, [RANKS], choose), buckets(*parameters(3, 10), rule=EACH)
    for bucket in found:
        sync.start(bucket)
    assert [len(tensor) for tensor in communicator.sent] == [10, 3]
    assert communicator.schedules == [None, doubling]
    assert sync.patterns(found) == ("recursive-doubling",)
    assert GradientSync(communicator, [RANKS]).patterns(found) == ()


def test_a_sparse_gradient_of_several_ranks_is_refused() -> None:
    embedding = nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    sync = GradientSync(MirroredCommunicator(), [RANKS])
    with pytest.raises(InvalidValueError, match=r"several ranks can sum dense gradients only, and one is sparse"):
        sync.start(Bucket((embedding.weight,), 0, RANKS))
