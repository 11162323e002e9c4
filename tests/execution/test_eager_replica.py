"""A replica whose late rank receives only the newest round, without processes."""

import pytest
import torch
import torch.distributed as dist

from deeppool.execution.eager_replica import EagerReplica
from deeppool.execution.partial_all_reduce import PartialSum, PartialSums


class Rounds:
    """A partial all-reduce of one rank that receives some rounds."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def all_reduce(self, vector: torch.Tensor) -> PartialSums:
        return PartialSums((PartialSum(self.numbers.pop(0), (1,), vector),), True)


def test_a_rank_that_missed_rounds_trains_at_the_learning_rate_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "broadcast", lambda *_, **__: None)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    replica = EagerReplica(model, optimizer, lambda *_: Rounds([1, 2, 6]), schedule=schedule, latest=True)
    for number in (1, 2, 6):
        before = model.weight.item()
        model(torch.ones(1, 1)).backward()
        replica.step()
        # Round n is trained at the rate after n updates.
        assert before - model.weight.item() == pytest.approx(0.5**number, rel=1e-5)
        assert (replica.updates, schedule.last_epoch) == (number + 1, number + 1)
