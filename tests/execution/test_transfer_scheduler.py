"""Training by a plan of transfers is synchronous training, though its updates end in the next forward."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from deeppool.base import serialization
from deeppool.execution.transfer_scheduler import TransferDriver
from deeppool.records.transfer_plan import TransferPlan
from deeppool.training.bucket import Bucket
from tests.execution.test_same_training import answers, check, one_process, spawn
from tests.execution.training_rank import TRIED_UPDATES, Rule

PLANNED = Rule("planned", transfers=True, updates=6)
"""One update that is not measured, one that is, and four by the plan."""
RULES = (
    replace(PLANNED, name="data-parallel", data_parallel=True, frozen=True),
    replace(PLANNED, name="burst-parallel", frozen=True),
    # The encoder lies on one rank, and the graph of an earlier forward that draws masks writes where its gradient was.
    # Nothing is dropped, as plain torch draws other masks.
    replace(PLANNED, name="by-itself", batch=16, dropout=1e-12),
    replace(PLANNED, name="adamw-schedule", optimizer="AdamW", schedule=True, accumulation=2),
    replace(PLANNED, name="batch-norm", data_parallel=True, batch_norm=True),
    replace(PLANNED, name="clipping", data_parallel=True, clip_norm=0.05),
)
TRYING = replace(PLANNED, tries_plans=True, updates=TRIED_UPDATES + 2)
TRYING_RULES = (
    replace(TRYING, name="trying", data_parallel=True, frozen=True),
    replace(TRYING, name="trying-burst-parallel", optimizer="AdamW", schedule=True),
    replace(TRYING, name="trying-clipping", data_parallel=True, clip_norm=0.01),
)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("ranks", "device"),
    [
        (2, "emulated"),
        # The next test trains on CPUs, too.
        *(pytest.param(ranks, "cpu", marks=pytest.mark.stress) for ranks in (2, 3, 4, 8)),
    ],
)
def test_after_the_drain_parameters_are_those_of_one_process(ranks: int, device: str, tmp_path: Path) -> None:
    spawn(ranks, RULES, tmp_path / "run", device)
    for rule in RULES:
        model, losses = one_process(rule)
        found = answers(tmp_path / "run", rule, ranks)
        check(found, model.state_dict(), losses, 1e-10)
        # Clipping needs all gradients before the first update; elsewhere the last update was still under way.
        assert any(answer["unfinished"] for answer in found) == (rule.clip_norm is None)
        # Each rank has made its own plan, and all are the same.
        (plan,) = {answer["transfers"] for answer in found}
        if rule.data_parallel:
            check_plan(serialization.from_json(json.loads(plan), TransferPlan, "the plan"), model)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("ranks", "device"),
    [
        (3, "cpu"),
        *(pytest.param(*where, marks=pytest.mark.stress) for where in ((2, "emulated"), (2, "cpu"), (4, "cpu"))),
    ],
)
def test_plans_that_are_tried_in_turn_and_sent_in_halves_are_synchronous_training(
    ranks: int, device: str, tmp_path: Path
) -> None:
    spawn(ranks, TRYING_RULES, tmp_path / "run", device)
    for rule in TRYING_RULES:
        model, losses = one_process(rule)
        found = answers(tmp_path / "run", rule, ranks)
        check(found, model.state_dict(), losses, 1e-9)
        assert any(answer["unfinished"] for answer in found) == (rule.clip_norm is None)
        (document,) = {answer["transfers"] for answer in found}
        plan = serialization.from_json(json.loads(document), TransferPlan, "the plan")
        tried = {pattern for each in plan.tried for pattern in each.patterns}
        assert {"ring-reduce-scatter", "ring-all-gather"} <= tried or {
            "sharded-parameter-server-push",
            "sharded-parameter-server-pull",
        } <= tried
        assert "library" in tried


@pytest.mark.parametrize("needs_norm", [False, True])
def test_a_gradient_in_the_memory_of_graphs_is_copied_where_a_forward_comes_before_its_update(needs_norm: bool) -> None:
    """Clipping and a loss scale need all gradients first: the update then comes before the next forward."""
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = gradient = torch.ones(2)
    driver = TransferDriver.__new__(TransferDriver)
    driver._step = SimpleNamespace(  # type: ignore[assignment]
        replays=True, rule=SimpleNamespace(needs_norm=needs_norm), start_sync=lambda bucket: None
    )
    driver._start_sync(Bucket((parameter,), 0, (0, 1)))
    assert (parameter.grad is gradient) == needs_norm
    assert torch.equal(parameter.grad, gradient)


def check_plan(plan: TransferPlan, model: nn.Module) -> None:
    """Checks that every trained parameter is sent once, for the first layer that uses it."""
    names = [name for transfer in plan.transfers for name in transfer.gradients]
    assert sorted(names) == sorted(name for name, each in model.named_parameters() if each.requires_grad)
    sizes = dict(model.named_parameters())
    for transfer in plan.transfers:
        assert transfer.size == sum(sizes[name].nbytes for name in transfer.gradients)
        layers = {name.rpartition(".")[0] for name in transfer.gradients}
        assert plan.parts[transfer.part].name.split(" … ")[0] in layers
    assert all(part.forward > 0 and part.backward > 0 for part in plan.parts)
