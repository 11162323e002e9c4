"""Partitions that rotate over ranks give the updates of one process on the global batch."""

from pathlib import Path

import pytest
import torch
from torch import nn

from deeppool.errors import InvalidValueError
from deeppool.execution.checkpoint import latest, load_weights
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.losses import classification_loss
from deeppool.interleaving.wavelet.rotation import partitions, rotated_stages
from tests.interleaving.wavelet.rotating_rank import (
    BATCH,
    UPDATES,
    WIDTH,
    batch_of,
    continue_training,
    make_model,
    prepare,
    rule,
    train,
    train_twice,
)
from tests.ranks import run_ranks


def one_process(name: str) -> tuple[nn.Module, list[float]]:
    model, own = make_model(), rule(name)
    trained = [(key, value) for key, value in model.named_parameters() if value.requires_grad]
    optimizer = own.optimizer(trained)
    schedule = own.schedule(optimizer) if own.schedule else None
    losses = []
    for number in range(UPDATES):
        inputs, targets = batch_of(number)
        loss = classification_loss(model(inputs), targets)
        loss.backward()
        losses.append(float(loss.detach()))
        if own.clip_norm is not None:
            assert nn.utils.clip_grad_norm_([value for _, value in trained], own.clip_norm) > own.clip_norm
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
    return model, losses


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.stress)])
def test_updates_are_those_of_one_process(ranks: int, tmp_path: Path) -> None:
    cases = [("momentum", ranks), ("adamw", ranks), ("clipping", ranks), ("momentum", 1), ("momentum", ranks - 1)]
    cases = list(dict.fromkeys(cases))
    run_ranks(train, (ranks, cases, str(tmp_path)), ranks, prepare)
    for name, waves in cases:
        model, losses = one_process(name)
        found = [torch.load(tmp_path / f"{name}-{waves}-{rank}.pt", weights_only=True) for rank in range(ranks)]
        assert torch.allclose(sum(each["losses"] for each in found), torch.tensor(losses))
        for each in found:
            for key, value in each["weights"].items():
                assert torch.allclose(value, model.state_dict()[key], rtol=1e-4, atol=1e-6), key
        assert set().union(*(each["weights"] for each in found)) == set(model.state_dict())
        if waves == ranks:
            assert all(set(each["weights"]) == set(model.state_dict()) for each in found)
        check_rotation(found, waves)


@pytest.mark.slow
@pytest.mark.processes
def test_the_model_of_a_job_stays_as_it_was(tmp_path: Path) -> None:
    """Its weights were those that come and go: to read them ended the process by a segmentation fault."""
    run_ranks(train_twice, (2, str(tmp_path)), 2, prepare)
    trained, _ = one_process("momentum")
    for names, expected in ((("0", "1"), trained), (("own",), make_model())):
        for name in names:
            for rank in range(2):
                found = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
                for key, value in expected.state_dict().items():
                    assert torch.allclose(found[key], value, rtol=1e-4, atol=1e-6), (name, key)


@pytest.mark.slow
@pytest.mark.processes
def test_another_number_of_ranks_continues_from_a_checkpoint(tmp_path: Path) -> None:
    names = ("adamw", "momentum")
    for name in names:
        (tmp_path / name).mkdir()
    run_ranks(continue_training, (3, names, range(2), str(tmp_path)), 3, prepare)
    run_ranks(continue_training, (2, names, range(2, UPDATES), str(tmp_path)), 2, prepare)
    for name in names:
        model, _ = one_process(name)
        # A damaged one was not written over it.
        found = load_weights(latest(tmp_path / name))
        assert set(found) == set(model.state_dict())
        for key, value in found.items():
            assert torch.allclose(value, model.state_dict()[key], rtol=1e-4, atol=1e-6), (name, key)
        # Every state lies on one rank again.
        states = [torch.load(tmp_path / name / f"states-2-{rank}.pt", weights_only=True) for rank in range(2)]
        assert sum(states) == sum(value.requires_grad for value in model.parameters()) and min(states) > 0


def check_rotation(found: list[dict], waves: int) -> None:
    """Every partition of every batch is computed once, on the rank of the paper's rule; each is kept by one rank."""
    ranks = len(found)
    shards = [[(BATCH * wave) // waves, (BATCH * (wave + 1)) // waves] for wave in range(waves)]
    if BATCH % waves == 0:
        for part in range(ranks):
            for batch in range(waves):
                assert found[(batch + part) % ranks]["samples"][part] == shards[batch]
    for rank, each in enumerate(found):
        mine = [part for part in range(ranks) if (rank - part) % ranks < waves]
        assert each["computed"] == [("forward", part) for part in mine] + [
            ("backward", part) for part in reversed(mine)
        ]
    # Between steps every weight that is trained lies on one rank, and so does its optimizer's state.
    trained = sorted(name for name, value in make_model().named_parameters() if value.requires_grad)
    assert sorted(name for each in found for name in each["held"] if "frozen" not in name) == trained
    assert sum(each["with_state"] for each in found) in (0, len(trained))


def test_partitions_are_the_best_of_all_contiguous_ones_and_each_has_parameters() -> None:
    graph = capture(make_model(), (WIDTH,)).graph
    seconds = [float(3 + 5 * number % 7) for number in range(len(graph.layers))]
    found = partitions(graph, 3, seconds)
    assert [layer for part in found for layer in part] == list(range(len(graph.layers)))
    size = len(seconds)

    def longest(first: int, second: int) -> float:
        return max(sum(seconds[:first]), sum(seconds[first:second]), sum(seconds[second:]))

    def trains(start: int, stop: int) -> bool:
        return any(graph.layers[layer].parameters for layer in range(start, stop))

    best = min(
        longest(first, second)
        for first in range(1, size)
        for second in range(first + 1, size)
        if trains(0, first) and trains(first, second) and trains(second, size)
    )
    assert max(sum(seconds[layer] for layer in part) for part in found) == best
    with pytest.raises(InvalidValueError, match="fewer than 9 partitions"):
        partitions(graph, 9)


def test_more_waves_than_ranks_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="waves must be at most 2, got 3"):
        rotated_stages([(0,), (1,)], 3, 6)
