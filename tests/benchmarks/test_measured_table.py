"""Ways measured by turns as the table of a README."""

import importlib.util
from pathlib import Path

from deeppool.records.measured_ways import MeasuredWay, MeasuredWays

PATH = Path(__file__).parents[2] / "benchmarks" / "measured_table.py"


def test_a_row_states_the_error_of_a_prediction_and_the_gain_over_the_fastest_control() -> None:
    spec = importlib.util.spec_from_file_location("measured_table", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ways = (
        MeasuredWay("DDP", (0.19, 0.2, 0.2, 0.21), 16, predicted=0.18),
        MeasuredWay("alone", (0.3, 0.3, 0.3, 0.3), 16, note="on 1 of 2 ranks"),
        MeasuredWay("plan", (0.1, 0.1, 0.1, 0.1), 16, technique="burst parallelism", predicted=0.12),
    )
    record = MeasuredWays(
        model="tiny", global_batch=16, ranks=2, device_name="by hand", ways=ways, repetitions=2, late=0.0,
        date="2026-11-28", versions={},
    )  # fmt: skip
    *_, ddp, alone, plan = module.measured_table("model", [("tiny", record)]).splitlines()
    assert ddp == "| tiny | DDP | 200 (192 … 208) | 180 (-10%) | the fastest control |  |  |"
    assert alone.startswith("| tiny | alone | 300 (300 … 300) |  | 0.67 (0.")
    assert alone.endswith(" times DDP |  | (on 1 of 2 ranks) |")
    assert plan.startswith("| tiny | plan | 100 (100 … 100) | 120 (+20%) | **2.00 (1.")
    assert plan.endswith(")** DDP | yes |  |")
