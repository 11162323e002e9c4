"""Ways that a replica trains, against what torch does in them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deeppool as dp
from deeppool.collectives.buckets import BUCKET_BYTES
from deeppool.collectives.transfer_methods import DDP, FEWER, TUNED_DDP
from deeppool.execution.data_parallel import compared_methods
from deeppool.execution.data_parallel.compared_methods import DataParallel, make_trainee


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=(tmp_path / "rendezvous").as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def check_buckets(model: nn.Module, features: int, size: int, *, tuned: bool) -> DataParallel:
    """Trains, and compares the buckets in which transfers are measured with those that DDP has made."""
    sgd = partial(torch.optim.SGD, lr=0.1)
    job = dp.TrainingJob(model=model, optimizer=sgd, dataset=list, loss=lambda output, target: output.sum())
    method = DataParallel(job, model, float(size), None, tuned=tuned)
    for _ in range(3):
        method.step(torch.ones(1, features), torch.ones(1))
    made = ", ".join(str(bucket.nbytes) for bucket in method._buckets)
    assert made == method.model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return method


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("size", "tuned"), [(BUCKET_BYTES, False), (4 * 2**20, True)])
def test_transfers_are_measured_in_the_buckets_in_which_ddp_trains(size: int, tuned: bool) -> None:
    model = nn.Sequential(*[nn.Linear(700, 700) for _ in range(20)])
    method = check_buckets(model, 700, size, tuned=tuned)
    # One bucket holds several gradients.
    method.backward((torch.ones(1, 700), torch.ones(1)))
    memories = {parameter.grad.untyped_storage().data_ptr() for parameter in method.parameters}
    assert (len(memories) == len(method._buckets)) is tuned


@pytest.mark.usefixtures("group")
def test_transfers_of_gradients_of_two_types_are_measured_in_the_buckets_in_which_ddp_trains() -> None:
    model = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4), nn.Linear(4, 1).bfloat16())
    # Linear layers of one type would not take what those of the other return.
    for layer in model:
        layer.register_forward_pre_hook(lambda layer, inputs: inputs[0].to(layer.weight.dtype))
    check_buckets(model, 4, BUCKET_BYTES, tuned=True).transfer()


@pytest.mark.parametrize(("name", "tuned"), [(DDP, False), (TUNED_DDP, True), (FEWER, True)])
def test_only_ddp_as_it_comes_copies_gradients_out_of_its_buckets(
    name: str, tuned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared_methods, "DataParallel", lambda *_, tuned: tuned)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    assert make_trainee(name, None, None, None, 1.0, range(2)) is tuned
