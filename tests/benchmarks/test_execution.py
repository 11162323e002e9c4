"""Predictions of a plan and of DDP beside what both took."""

import importlib.util
from pathlib import Path

import pytest

from deeppool.records.measured_ways import MeasuredWay, MeasuredWays

PATH = Path(__file__).parents[2] / "benchmarks" / "execution" / "main.py"


@pytest.fixture
def execution(monkeypatch):
    monkeypatch.syspath_prepend(str(PATH.parent))
    spec = importlib.util.spec_from_file_location("execution_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_row_states_the_errors_of_predictions_and_the_gain_over_the_fastest_ddp(execution):
    ways = [
        MeasuredWay("ddp", (0.19, 0.2, 0.2, 0.21), 16, predicted=0.18),
        MeasuredWay("ddp on 1", (0.3, 0.3, 0.3, 0.3), 16, predicted=0.36),
        MeasuredWay("plan", (0.1, 0.1, 0.1, 0.1), 16, technique="burst parallelism", predicted=0.12),
    ]
    record = MeasuredWays(
        model="tiny", global_batch=16, ranks=2, device_name="by hand", ways=tuple(ways), repetitions=2, late=0.0,
        date="2026-11-28", versions={},
    )  # fmt: skip
    found = {"measured": record, "unmonitored": [0.1, 0.08, 0.1], "idle": [0.1, 0.2, 0.3], "idle_predicted": 0.25}
    *_, ddp, alone, plan, text = execution.table([found]).splitlines()
    assert ddp.startswith("| tiny | ddp | 200 (192 … 208) | 180 (-10%) | the fastest control |")
    assert alone.startswith("| tiny | ddp on 1 | 300 (300 … 300) | 360 (+20%) | 0.67 (0.")
    assert plan.startswith("| tiny | plan | 100 (100 … 100) | 120 (+20%) | **2.00 (1.")
    assert "** ddp | yes |" in plan
    assert text == "tiny: predicted gain 1.50, cost of the spans +25.0%, idle 20% (25% predicted)"
