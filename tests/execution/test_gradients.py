"""Gradients of a burst-parallel run equal those of one process on the global batch."""

import random
from pathlib import Path

import pytest
import torch

from deeppool.cluster.cluster import Cluster
from deeppool.graph.capture.losses import classification_loss
from deeppool.planning.planner import plan
from tests.execution.gradient_rank import captured_model, make_batch, make_model, prepare, run_rank
from tests.ranks import run_ranks
from tests.strategies import profile_from_times


def reference(name: str, batch: int, dtype: torch.dtype) -> tuple[float, dict[str, torch.Tensor]]:
    model = make_model(name, dtype)
    inputs, targets = make_batch(name, batch, dtype)
    loss = classification_loss(model(inputs), targets)
    loss.backward()
    return float(loss.detach()), {name: parameter.grad for name, parameter in model.named_parameters()}


def assignments(ranks: int, name: str = "branches", granularity: str = "module") -> list[tuple[int, ...]]:
    """A GPU set for every layer, drawn at random: not only the first GPUs, branches on disjoint sets too."""
    layers = len(captured_model(name, torch.float32, granularity).graph.layers)
    draw = random.Random(ranks)
    return [
        tuple(range(ranks)),
        *(tuple(sorted(draw.sample(range(ranks), draw.randint(1, ranks)))) for _ in range(layers - 1)),
    ]


def check(
    name: str,
    assignment: list[tuple[int, ...]],
    batch: int,
    dtype: torch.dtype,
    tolerance: float,
    folder: Path,
    granularity: str = "module",
    device: str = "cpu",
) -> None:
    """Runs one iteration on as many processes as the assignment has GPUs, and compares with one process."""
    ranks = 1 + max(gpu for gpus in assignment for gpu in gpus)
    run_ranks(run_rank, (name, assignment, batch, dtype, str(folder), granularity, device), ranks, prepare)
    answers = [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(ranks)]
    loss, expected = reference(name, batch, dtype)

    assert sum(float(answer["loss"]) for answer in answers) == pytest.approx(loss, rel=tolerance)
    for parameter, gradient in expected.items():
        found = [answer["gradients"][parameter] for answer in answers if parameter in answer["gradients"]]
        assert found, f"no rank has a gradient of {parameter}"
        for copy in found:
            error = float((copy - gradient).norm() / gradient.norm())
            assert error <= tolerance, (parameter, error)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("ranks", "batch", "dtype", "tolerance", "device"),
    [
        # Two ranks share five samples, and six, in the next tests, too.
        pytest.param(2, 4, torch.float32, 1e-5, "cpu", marks=pytest.mark.stress),
        pytest.param(2, 5, torch.float64, 1e-10, "cpu", marks=pytest.mark.stress),
        (3, 7, torch.float32, 1e-5, "cpu"),
        (4, 6, torch.float64, 1e-10, "cpu"),
        (3, 7, torch.float64, 1e-10, "emulated"),
    ],
)
def test_gradients_equal_those_of_one_process_for_uneven_splits(
    ranks: int, batch: int, dtype: torch.dtype, tolerance: float, device: str, tmp_path: Path
) -> None:
    check("branches", assignments(ranks), batch, dtype, tolerance, tmp_path, device=device)


@pytest.mark.processes
@pytest.mark.parametrize("granularity", ["operator", "block"])
def test_gradients_equal_those_of_one_process_at_every_granularity(granularity: str, tmp_path: Path) -> None:
    check("blocks", assignments(2, "blocks", granularity), 5, torch.float64, 1e-10, tmp_path, granularity)


@pytest.mark.slow
@pytest.mark.processes
def test_a_plan_with_branches_side_by_side_trains_as_one_process(tmp_path: Path) -> None:
    graph = captured_model("branches", torch.float32).graph
    # No layer gains from a second GPU, so all that is to be gained is to run branches at once.
    profile = profile_from_times(graph, [lambda batch: 1e-3] * len(graph.layers))
    made = plan(profile, Cluster(2), 6)
    assert {gpu for layer in made.layers for gpu in layer.gpus} == {0, 1}
    check("branches", [layer.gpus for layer in made.layers], 6, torch.float64, 1e-10, tmp_path)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.stress
def test_vgg16_on_two_ranks_with_its_dense_layers_on_one_trains_as_on_one_process(tmp_path: Path) -> None:
    assignment = [(0, 1)] * 14 + [(0,)] * 4 + [(0, 1)] + [(0,)] * 3
    check("vgg16", assignment, 5, torch.float32, 1e-5, tmp_path)
