"""Predictions of a plan and of DDP beside what both took."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "execution" / "main.py"


@pytest.fixture
def execution(monkeypatch):
    monkeypatch.syspath_prepend(str(PATH.parent))
    spec = importlib.util.spec_from_file_location("execution_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gain_is_of_means_and_its_interval_of_rounds(execution):
    """Two rounds of two iterations: 3 s against 2 s, and 5 s against 2 s; by 1 degree of freedom."""
    gain, half_width = execution.measured_gain([2.0, 4.0, 5.0, 5.0], [1.0, 3.0, 2.0, 2.0], 2)
    assert gain == 2.0
    assert half_width == pytest.approx(12.71 * 0.5)


@pytest.mark.parametrize(
    ("gain", "half_width", "predicted", "expected"),
    [
        (1.2, 0.1, 1.05, "right"),
        (0.8, 0.1, 0.95, "right"),
        (1.2, 0.1, 0.99, "wrong"),
        (1.05, 0.1, 0.9, "within noise"),
        (1.05, None, 1.1, "within noise"),
    ],
)
def test_a_sign_is_right_or_wrong_where_the_gain_exceeds_its_interval(execution, gain, half_width, predicted, expected):
    assert execution.sign(gain, half_width, predicted) == expected


def test_a_row_states_the_error_of_both_predictions(execution):
    found = {
        "model": "tiny",
        "global_batch": 16,
        "ranks": 2,
        "ddp": {"ddp": [0.19, 0.2, 0.21], "ddp on 1": [0.29, 0.3, 0.31]},
        "ddp_predicted": {"ddp": 0.18, "ddp on 1": 0.36},
        "plan": [0.09, 0.1, 0.11],
        "plan_predicted": 0.11,
        "unmonitored": [0.1, 0.1, 0.1],
        "gain": [2.0, 0.1],
        "gain_predicted": 0.18 / 0.11,
        "idle": [0.1, 0.2, 0.3],
        "idle_predicted": 0.25,
    }
    row = execution.table([found]).splitlines()[-1]
    ddp = "200 (190 … 210) | 180 (-10 %) | 300 (290 … 310) on 1 | 360 (+20 %)"
    assert row.startswith(f"| tiny | 16 on 2 | {ddp} | 100 (90 … 110) | 110 (+10 %) |")
    assert "| 2.00 ± 0.10 | 1.64 | right |" in row
