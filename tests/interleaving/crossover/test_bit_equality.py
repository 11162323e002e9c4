"""A job that crosses over with others trains to the last bit as it does alone."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.interleaving.crossover.several_jobs_rank import (
    BATCH,
    SAMPLES,
    SLOW,
    Noisy,
    hold_transfers,
    momentum,
    plain,
    prepare,
    seeded,
    train_scenarios,
)
from tests.ranks import run_ranks

RANKS = 2
ALONE = [
    ("alone", {"image": 4}, None),
    ("alone", {"vector": 3}, None),
    ("alone", {"plain": 6}, None),
    ("alone-server", {"image": 4}, "parameter-server"),
    ("alone-server", {"plain": 6}, "parameter-server"),
]
TOGETHER = [
    ("two", {"image": 4, "plain": 6}, None),
    ("three", {"plain": 6, "image": 4, "vector": 3}, None),
    (SLOW, {"image": 4, "plain": 6}, None),
    ("server", {"image": 4, "plain": 6}, "parameter-server"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("jobs")
    run_ranks(train_scenarios, (RANKS, [*ALONE, *TOGETHER], str(found)), RANKS, prepare)
    return found


@pytest.mark.slow
@pytest.mark.processes
def test_on_an_emulated_accelerator_every_bit_is_that_of_the_job_alone(tmp_path: Path) -> None:
    """Where the updates of one job and the transfers of another are in flight at the same time."""
    run_ranks(train_scenarios, (RANKS, [*ALONE, *TOGETHER], str(tmp_path), "emulated"), RANKS, prepare)
    for label, steps, pattern in TOGETHER:
        for job in steps:
            test_every_bit_of_a_job_is_that_of_the_job_alone(
                tmp_path, label, job, "alone-server" if pattern else "alone"
            )


def trained(folder: Path, label: str, job: str) -> list[dict]:
    return [torch.load(folder / f"{label}-{job}-{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("label", "job", "alone"),
    [(label, job, "alone-server" if pattern else "alone") for label, steps, pattern in TOGETHER for job in steps],
)
def test_every_bit_of_a_job_is_that_of_the_job_alone(folder: Path, label: str, job: str, alone: str) -> None:
    for found, expected in zip(trained(folder, label, job), trained(folder, alone, job), strict=True):
        assert torch.equal(found["losses"], expected["losses"])
        assert found["state"].keys() == expected["state"].keys()
        for name, value in found["state"].items():
            assert torch.equal(value, expected["state"][name]), name


@pytest.mark.processes
@pytest.mark.parametrize("label", ["three", "server"])
def test_a_job_trains_as_plain_torch_does_in_one_process(folder: Path, label: str) -> None:
    found = [rank["state"] for rank in trained(folder, label, "plain")]
    for name, expected in plain_torch(seeded(plain), updates=6).items():
        assert torch.equal(found[0][name], found[1][name])
        torch.testing.assert_close(found[0][name], expected, rtol=1e-5, atol=1e-6)


def plain_torch(model: nn.Module, updates: int) -> dict[str, torch.Tensor]:
    optimizer, data = momentum(model.parameters()), Noisy((3, 3, 3), noise=0.0)
    per_epoch = SAMPLES // BATCH
    for update in range(updates):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(3 + update // per_epoch))
        chosen = order[update % per_epoch * BATCH :][:BATCH].tolist()
        inputs, targets = zip(*(data[index] for index in chosen), strict=True)
        nn.functional.cross_entropy(model(torch.stack(inputs)), torch.tensor(targets)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.processes
def test_a_job_computes_while_the_gradients_of_another_are_in_flight(tmp_path: Path) -> None:
    run_ranks(hold_transfers, (RANKS, str(tmp_path)), RANKS)
