"""Buckets of the gradient all-reduce and the moments at which they start."""

import pytest
import torch
from torch import nn

from deeppool.collectives import buckets as rule
from deeppool.execution.gradient_sync import GradientSync, buckets
from deeppool.planning.evaluate.schedule import bucket_seconds

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

    def group(self, ranks: tuple[int, ...]) -> "MirroredCommunicator":
        return self

    def all_reduce(self, tensor: torch.Tensor) -> CompletedWork:
        self.sent.append(tensor.clone())
        tensor *= 2
        return CompletedWork()

    def close(self) -> None:
        """Does nothing: there is no process group."""


@pytest.fixture
def communicator() -> MirroredCommunicator:
    return MirroredCommunicator()


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def test_small_gradients_share_buckets_from_the_last_layer_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "ALONE_BYTES", 400)
    monkeypatch.setattr(rule, "BUCKET_BYTES", 100)
    small, large, other, last = parameters(20, 100, 10, 15)
    found = [bucket.parameters for bucket in buckets([small, large, other, last], group=None)]
    assert [[len(member) for member in members] for members in found] == [[15, 10], [100], [20]]
    assert found[1][0] is large


def test_gradients_of_two_types_do_not_share_a_bucket() -> None:
    mixed = [*parameters(3), *parameters(4, dtype=torch.bfloat16), *parameters(5)]
    found = [[member.dtype for member in bucket.parameters] for bucket in buckets(mixed, group=None)]
    assert found == [[torch.bfloat16], [torch.float32, torch.float32]]


def test_the_planner_prices_the_buckets_that_run() -> None:
    """Linear layers without bias, so that each layer has one gradient."""
    widths = [(700, 900), (1024, 1024), (64, 64), (1000, 1000), (1000, 1000), (2048, 2048), (10, 10)] * 3
    layers = [nn.Parameter(torch.empty(wide, high, device="meta")) for wide, high in widths]
    run = [sum(member.nbytes for member in bucket.parameters) for bucket in buckets(layers, group=None)]
    sizes = [layer.nbytes for layer in layers]
    order = tuple(range(len(layers)))
    priced = bucket_seconds(order, [range(2)] * len(layers), sizes, lambda gpus, size: float(size))
    assert len(run) > 3
    assert [size for size in reversed(priced) if size] == run


@pytest.mark.parametrize("overlap", [True, False])
def test_a_missing_gradient_counts_as_zeros_and_keeps_its_place_in_the_order(
    communicator: MirroredCommunicator, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "ALONE_BYTES", 0)  # each gradient is a bucket
    first, second, unused = parameters(3, 3, 2)
    sync = GradientSync(communicator, [RANKS], [[([first, second, unused], RANKS)]], overlap=overlap)
    started_before_first = []
    first.register_hook(lambda gradient: started_before_first.append(len(communicator.sent)))
    sync.expect(0)
    ((first + 1) * second).sum().backward()
    sync.start(0)
    sync.finish(0)
    # Its bucket comes first, on all ranks.
    assert started_before_first == [0]
    assert [len(tensor) for tensor in communicator.sent] == [2, 3, 3]
    assert first.grad.tolist() == [0.0] * 3
    assert second.grad.tolist() == [2.0] * 3
    assert unused.grad.tolist() == [0.0] * 2
    sync.close()


def test_an_overlapped_bucket_starts_once_its_gradients_are_ready(
    communicator: MirroredCommunicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "ALONE_BYTES", 0)
    first, second = parameters(3, 3)
    sync = GradientSync(communicator, [RANKS], [[([first, second], RANKS)]], overlap=True)
    for update in range(2):
        communicator.sent.clear()
        first.grad = second.grad = None
        sync.expect(0)
        (second * 2).sum().backward()
        assert len(communicator.sent) == 1, update
        (first * 3).sum().backward()
        assert len(communicator.sent) == 2
        sync.start(0)
        sync.finish(0)
        assert (first.grad.tolist(), second.grad.tolist()) == ([6.0] * 3, [4.0] * 3)
    sync.close()
    first.grad = None
    (first * 3).sum().backward()
    assert len(communicator.sent) == 2, "a closed sync still receives gradients"


def test_gradients_of_earlier_batches_do_not_count(communicator: MirroredCommunicator) -> None:
    (only,) = parameters(3)
    sync = GradientSync(communicator, [RANKS], [[([only], RANKS)], []], overlap=True)
    only.sum().backward()
    sync.expect(1)
    only.sum().backward()
    assert not communicator.sent
    sync.expect(0)
    only.sum().backward()
    assert [tensor.tolist() for tensor in communicator.sent] == [[3.0] * 3]
    sync.close()
