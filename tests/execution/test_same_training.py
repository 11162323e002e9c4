"""Several updates on several ranks give the parameters of training in one process."""

from pathlib import Path

import pytest
import torch
from torch import nn

from deeppool.graph.capture.losses import classification_loss
from deeppool.training.update import LossScale
from tests.execution.training_rank import (
    Rule,
    make_batch,
    make_model,
    make_optimizer,
    make_schedule,
    prepare,
    run_rank,
)
from tests.ranks import run_ranks

RULES = (
    Rule("momentum"),
    Rule("tied-and-frozen", frozen=True),
    Rule("accumulation", accumulation=3),
    Rule("clipping", clip_norm=0.05),
    Rule("adamw-schedule", optimizer="AdamW", schedule=True, accumulation=2, clip_norm=0.05),
    Rule("batch-norm", batch_norm=True),
    Rule("overlap", overlap_sync=True, frozen=True, accumulation=2, clip_norm=0.05),
    Rule("overlap-data-parallel", overlap_sync=True, data_parallel=True, batch_norm=True),
    Rule("float32", dtype=torch.float32, clip_norm=0.05),
    # Rounds that wait for all ranks are synchronous training, also where sets of ranks differ between layers.
    Rule("eager-data-parallel", eager="full", data_parallel=True, frozen=True, schedule=True, accumulation=2),
    Rule("eager-burst-parallel", eager="full", schedule=True, optimizer="AdamW"),
)
DROPOUT = Rule("dropout", dropout=0.4, accumulation=2)
DROPOUT_ON_ALL = Rule("dropout-data-parallel", dropout=0.4, data_parallel=True)
BFLOAT = Rule("bfloat16", dtype=torch.float32, precision="bf16")
SCALED = Rule("scaled", dtype=torch.float32, precision="fp16", infinite_update=1)


def spawn(ranks: int, rules: tuple[Rule, ...], folder: Path, device: str = "cpu") -> None:
    folder.mkdir()
    run_ranks(run_rank, (ranks, rules, str(folder), device), ranks, prepare)


def answers(folder: Path, rule: Rule, ranks: int) -> list[dict]:
    return [torch.load(folder / f"{rule.name}-{rank}.pt", weights_only=True) for rank in range(ranks)]


def one_process(rule: Rule) -> tuple[nn.Module, list[float]]:
    """Trains by plain torch, without capture or stages."""
    model = make_model(rule)
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    optimizer = make_optimizer(rule, trained)
    schedule = make_schedule(optimizer) if rule.schedule else None
    losses = []
    for update in range(rule.updates):
        total = 0.0
        for number in range(rule.accumulation):
            inputs, targets = make_batch(rule, update * rule.accumulation + number)
            loss = classification_loss(model(inputs), targets) / rule.accumulation
            loss.backward()
            total += float(loss.detach())
        if rule.clip_norm is not None:
            norm = nn.utils.clip_grad_norm_([parameter for _, parameter in trained], rule.clip_norm)
            assert norm > rule.clip_norm, "nothing was clipped, so the rule tests nothing"
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        losses.append(total)
    return model, losses


def check(found: list[dict], expected: dict[str, torch.Tensor], losses: list[float], tolerance: float) -> None:
    assert torch.allclose(
        sum(answer["losses"] for answer in found), torch.tensor(losses, dtype=torch.float64), tolerance
    )
    for answer in found:
        for name, value in answer["state"].items():
            error = float((value - expected[name]).norm() / expected[name].norm())
            assert error <= tolerance, (name, error)
    # What is frozen, and the count of batches, are no layer's.
    trained = {name for answer in found for name in answer["state"]}
    assert set(expected) - trained <= {"left.weight", "left.bias", "tied.bias"} | {
        name for name in expected if name.endswith("num_batches_tracked")
    }


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("ranks", "device"),
    [
        pytest.param(2, "cpu", marks=pytest.mark.stress),
        (3, "cpu"),
        pytest.param(8, "cpu", marks=pytest.mark.stress),
        (2, "emulated"),
    ],
)
def test_updates_are_those_of_one_process(ranks: int, device: str, tmp_path: Path) -> None:
    spawn(ranks, RULES, tmp_path / "run", device)
    for rule in RULES:
        model, losses = one_process(rule)
        tolerance = 1e-10 if rule.dtype == torch.float64 else 1e-5
        check(answers(tmp_path / "run", rule, ranks), model.state_dict(), losses, tolerance)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("ranks", "device"), [(3, "cpu"), (2, "emulated")])
def test_random_numbers_and_rounding_do_not_depend_on_the_plan(ranks: int, device: str, tmp_path: Path) -> None:
    rules = (DROPOUT, DROPOUT_ON_ALL, BFLOAT, SCALED)
    spawn(1, rules, tmp_path / "one", device)
    spawn(ranks, rules, tmp_path / "several", device)
    for rule in (DROPOUT, DROPOUT_ON_ALL):
        (alone,) = answers(tmp_path / "one", rule, 1)
        check(answers(tmp_path / "several", rule, ranks), alone["state"], alone["losses"].tolist(), 1e-10)
        other_masks, _ = one_process(rule)
        assert not torch.allclose(alone["state"]["head.weight"], other_masks.state_dict()["head.weight"])

    for rule in (BFLOAT, SCALED):
        (alone,) = answers(tmp_path / "one", rule, 1)
        for answer in answers(tmp_path / "several", rule, ranks):
            for name, value in answer["state"].items():
                # Sums over shards round in another order, and a 16-bit number has 8 or 11 bits.
                assert torch.allclose(value, alone["state"][name], rtol=0.05, atol=0.01), (rule.name, name)
                assert torch.isfinite(value).all()
            assert answer["scale"] == alone["scale"]
    # One of the updates met an infinite gradient.
    assert alone["scale"] == 2.0**15


def test_the_scale_of_the_loss_follows_the_rule_of_torchs_own_scaler() -> None:
    ours, theirs = LossScale(enabled=True), torch.amp.GradScaler("cpu")
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for finite in [True] * 1999 + [False] + [True] * 2001 + [False, False, True]:
        theirs.scale(torch.zeros(1))
        parameter.grad = torch.full((1,), 1.0 if finite else torch.inf)
        theirs.step(optimizer)
        theirs.update()
        ours.update(finite=finite)
        assert ours.factor == theirs.get_scale()
