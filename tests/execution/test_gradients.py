"""The same training: a burst-parallel run's gradients are those of one process on the global batch."""

import random
from pathlib import Path

import pytest
import torch
import torch.multiprocessing

from deeppool.graph.capture import capture
from deeppool.graph.losses import classification_loss
from tests.execution.gradient_rank import make_batch, make_model, run_rank


def reference(batch: int, dtype: torch.dtype) -> tuple[float, dict[str, torch.Tensor]]:
    model = make_model(dtype)
    inputs, targets = make_batch(batch, dtype)
    loss = classification_loss(model(inputs), targets)
    loss.backward()
    return float(loss.detach()), {name: parameter.grad for name, parameter in model.named_parameters()}


def assignments(ranks: int, seed: int) -> list[tuple[int, ...]]:
    """A GPU set for every layer, drawn at random: not only the first GPUs, branches on disjoint sets too."""
    layers = len(capture(make_model(torch.float32), (3, 6, 6)).graph.layers)
    draw = random.Random(seed)
    return [tuple(sorted(draw.sample(range(ranks), draw.randint(1, ranks)))) for _ in range(layers)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ranks", "batch", "dtype", "tolerance"),
    [
        (2, 4, torch.float32, 1e-5),
        (2, 5, torch.float64, 1e-10),
        (3, 7, torch.float32, 1e-5),
        (4, 6, torch.float64, 1e-10),
    ],
)
def test_gradients_equal_those_of_one_process_for_uneven_splits(
    ranks: int, batch: int, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    assignment = assignments(ranks, seed=ranks)
    torch.multiprocessing.spawn(run_rank, (ranks, assignment, batch, dtype, str(tmp_path)), nprocs=ranks)
    answers = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(ranks)]
    loss, expected = reference(batch, dtype)

    assert sum(float(answer["loss"]) for answer in answers) == pytest.approx(loss, rel=tolerance)
    for name, gradient in expected.items():
        found = [answer["gradients"][name] for answer in answers if name in answer["gradients"]]
        assert found, f"no rank has a gradient of {name}"
        for copy in found:
            scale = float(gradient.abs().max())
            assert float((copy - gradient).abs().max()) <= tolerance * scale, name
