"""The table of the simulator's benchmark."""

from dataclasses import replace

from benchmarks.simulator import main as simulator
from deeppool.simulation.plan.fidelity import Fidelity, Quantity


def test_the_table_says_which_quantities_keep_the_bound():
    quantities = (
        Quantity("iteration alone, without the update,", "s", 0.9, 1.0),
        Quantity("idle time alone", "", 0.5, 0.25),
        Quantity("beside the background", "s", 0.8, 1.0),
        Quantity("background harvest", "", 0.22, 0.2),
    )
    noisy = Fidelity(
        "vgg16", "here", "2026", "priority", "resnet18", "interference as on a device, 2026", 0.1, quantities
    )
    planned = replace(noisy, quantities=tuple(replace(one, simulated=one.measured) for one in quantities))
    table = simulator.table([(simulator.CASES[0], planned, noisy)]).splitlines()
    rows = [line.partition(" | ")[2].partition(" | ")[2] for line in table[2:6]]
    assert table[2].startswith("| vgg16, batch 16, data parallel | iteration alone, without the update | 1000 ms | ")
    assert rows[0] == "1000 ms | 1000 ms | +0.0 % | 900 ms | -10.0 % | yes |"
    assert rows[1] == "25 % | 25 % | +0.0 % | 50 % | +100.0 % |  |"
    assert rows[2] == "1000 ms | 1000 ms | +0.0 % | 800 ms | -20.0 % | **no** |"
    assert rows[3] == "20 % | 20 % | +0.0 % | 22 % | +10.0 % | yes |"
    assert table[-1] == "With interference as on a device, 2026."


def test_every_plan_is_there_once_data_parallel_and_once_with_a_limit():
    assert [case.name for case in simulator.CASES] == [
        "vgg16, batch 16, data parallel",
        "vgg16, batch 16, limit 2",
        "resnet50, batch 16, data parallel",
        "resnet50, batch 16, limit 2",
    ]
