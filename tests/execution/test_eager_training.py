"""dp.train with eager-SGD: no gradient is lost between ranks, checkpoints and other numbers of ranks."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.collectives.partial.load_imbalance import fixed
from deeppool.errors import InvalidValueError
from deeppool.execution.checkpoint import latest
from deeppool.execution.eager_driver import EagerDriver, SharedVector
from deeppool.execution.partial_all_reduce import OneRankSum
from deeppool.records.compute_times import straggler
from deeppool.training.data import SampleOrder
from tests.strategies import profile_from_times

RATE, BATCH, SAMPLES = 0.5, 6, 24
INPUTS = torch.arange(SAMPLES * 4.0).view(SAMPLES, 4).remainder(7)
TARGETS = torch.arange(float(SAMPLES)).remainder(5)


def product(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient does not depend on the weights, so that the order of updates does not matter."""
    return (outputs.squeeze(1) * targets).mean()


def make_job() -> dp.TrainingJob:
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    return dp.TrainingJob(
        model=model,
        input_shape=(4,),
        dataset=lambda: torch.utils.data.TensorDataset(INPUTS, TARGETS),
        loss=product,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE),
        seed=5,
    )


def make_plan(gpus: int):
    graph = make_job().capture().graph
    return dp.plan(profile_from_times(graph, [lambda b: 1e-2 * b] * len(graph.layers)), gpus, BATCH)


def synchronous_weights(updates: int) -> torch.Tensor:
    order, total = SampleOrder(SAMPLES, BATCH, 5), torch.zeros(4)
    for number in range(updates):
        chosen = order.positions(number)
        total += (INPUTS[chosen] * TARGETS[chosen, None]).mean(0)
    return -RATE * total


def second_is_late(rank: int, update: int) -> float:
    return 2.0 if (rank, update) == (1, 2) else 0.0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
def test_a_checkpoint_holds_the_gradients_that_no_round_has_taken_and_other_ranks_deliver_them(tmp_path: Path) -> None:
    # Every second round waits for all, so that nobody leaves out samples; the third one does not.
    eager = dp.EagerSGD(mode="solo", average_every=2)
    first = dp.train(
        make_plan(2), make_job(), steps=3, checkpoints=tmp_path, gradient_sync=eager, load_imbalance=second_is_late
    )
    shards = [torch.load(latest(tmp_path) / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]
    left = [vector for shard in shards for vector in shard["gradient_sync"]["vectors"]]
    assert [vector["gradients"] for vector in left] == [0, 1]
    weights = next(iter(dp.load_weights(first.checkpoint).values())).flatten()
    pending = next(iter(left[1]["pending"].values()))
    assert torch.allclose(weights - RATE * pending, synchronous_weights(3))
    assert not torch.allclose(weights, synchronous_weights(3))

    second = dp.train(
        make_plan(3), make_job(), steps=5, checkpoints=tmp_path, gradient_sync=eager,
        load_imbalance=fixed([0.0, 0.0, 0.3]),
    )  # fmt: skip
    assert torch.allclose(
        next(iter(dp.load_weights(second.checkpoint).values())).flatten(), synchronous_weights(5), rtol=1e-5
    )
    assert [metrics.update for metrics in (*first.metrics, *second.metrics)] == [1, 2, 3, 4, 5]
    assert straggler(second.compute_times).startswith("rank 2 computes")
    assert "late         rank 2" in str(second)
    assert dp.load(dp.save(second, tmp_path / "record.json")) == second


def test_one_rank_takes_what_other_ranks_left_and_names_that_it_has_not_are_zero() -> None:
    """Earlier versions wrote no counts of gradients by parameter."""
    named = {name: nn.Parameter(torch.zeros(size)) for name, size in (("a", 2), ("b", 1), ("unused", 1))}
    shared = SharedVector((0,), named, OneRankSum(7, torch.float32), None)
    shared.restore(
        [
            {
                "pending": {"a": torch.tensor([1.0, 2.0]), "b": torch.zeros(1), "c": torch.ones(4)},
                "counts": {"a": 2.0, "b": 1.0, "c": 2.0},
                "gradients": 2,
            },
            {"pending": {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([5.0])}, "gradients": 1},
            {"pending": {"c": torch.ones(4)}, "gradients": 1},
        ]
    )
    state = shared.state()
    assert (state["counts"], state["gradients"]) == ({"a": 3.0, "b": 2.0, "unused": 0.0}, 3)
    (found,) = shared.sums.all_reduce(shared.vector.take()).sums
    assert (found.total.tolist(), found.counts) == ([2.0, 3.0, 5.0, 0.0, 3.0, 2.0, 0.0], (4,))
    shared.vector.put(found.total)
    assert named["b"].grad is not None and named["unused"].grad is None
    assert shared.state()["gradients"] == 0


@pytest.mark.parametrize(
    ("settings", "phrase"),
    [
        ({"mode": "quorum"}, "go together"),
        ({"mode": "some"}, "got 'some'"),
        ({"staleness_limit": None}, "needs a staleness_limit"),
        ({"timeout": 0.0}, "timeout must be positive and finite, got 0"),
        ({"timeout": float("nan")}, "timeout must be positive and finite, got nan"),
        ({"timeout": True}, "timeout must be a number, got True"),
        ({"grace": "0"}, "grace must be a number, got '0'"),
        ({"average_every": 0}, "synchronous_every must be at least 1"),
        ({"average_every": 1.5}, r"average_every must be a whole number or None, got 1\.5"),
    ],
)
def test_impossible_settings_are_refused_before_any_rank_starts(settings: dict, phrase: str) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        dp.EagerSGD(**settings)


def test_a_type_that_cannot_be_summed_is_refused_by_each_rank_before_it_waits_for_others(monkeypatch) -> None:
    for name, value in (("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda group, value=value: value)
    with pytest.raises(
        InvalidValueError, match=r"elements are of type float32, float64, int64, got bfloat16 \(.* hold such"
    ):
        dp.PartialAllReduce(elements=1, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("needs_norm", "synchronises", "phrase"), [(True, False, "clip_norm"), (False, True, "synchronise_batch_norm")]
)
def test_a_training_that_needs_all_ranks_in_every_update_is_refused(needs_norm, synchronises, phrase: str) -> None:
    trainer = SimpleNamespace(update=SimpleNamespace(needs_norm=needs_norm), synchronises_batch_norm=synchronises)
    with pytest.raises(InvalidValueError, match=phrase):
        EagerDriver(trainer, dp.EagerSGD().join)
