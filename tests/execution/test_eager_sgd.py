"""Eager-SGD over processes: equal to synchronous SGD where rounds wait, and equal replicas where they do not."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.execution.eager_ranks import run_rank
from tests.ranks import run_ranks

RANKS, STEPS = 3, 12


def synchronous_sgd() -> list[float]:
    """SGD with momentum on the mean gradient of all ranks, with a rate that falls to a tenth every 5 updates."""
    inputs = (np.arange(RANKS * STEPS * 4.0).reshape(RANKS, STEPS, 4) % 7) / 7
    weights, speed = np.array([0.5, 0.5, 0.5, 0.5, 1.0]), np.zeros(5)
    for step in range(STEPS):
        points = np.hstack([inputs[:, step], np.ones((RANKS, 1))])
        speed = 0.9 * speed + 2 * (points @ weights - 1) @ points / RANKS
        weights = weights - 0.1 * 0.1 ** (step // 5) * speed
    return list(weights)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_replicas_equal_synchronous_sgd_where_rounds_wait_and_each_other_where_they_do_not(
    device: str, tmp_path: Path
) -> None:
    run_ranks(run_rank, (tmp_path, RANKS, device), RANKS)
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    for each in found:
        # The inputs are computed in single precision.
        assert each["full"]["weights"] == pytest.approx(synchronous_sgd(), rel=1e-6)
        assert each["full"]["gradients"] == STEPS
        for mode in ("log", "tcp", "latest"):
            assert each[mode]["weights"] == found[0][mode]["weights"]
        assert each["log"]["updates"] == found[0]["log"]["updates"] >= STEPS
        # Gradients 1 and 2 in the checkpoint of two ranks are in the first update of three, as a mean over these.
        assert each["restored"]["weights"] == pytest.approx([0.5 - 0.1] * 4 + [1.0 - 0.1])
        assert each["restored"]["updates"] == 12
