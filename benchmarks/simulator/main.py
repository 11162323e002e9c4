"""How far is the simulator from live runs of the same plans?

Measures the network between two ranks and the interference on a core. Then profiles each model, on one of two cores
that train, and for each case makes the plan, runs it alone and beside a background job, and simulates the same: as
planned, and with the profile's noise. Two ranks, a core each: run it on an idle machine of two cores.

    python benchmarks/simulator/main.py -o simulator.json
    python benchmarks/simulator/main.py -o simulator.json --interference pairs.json    # by benchmarks/interference
    python benchmarks/simulator/main.py -o simulator.json --quick                      # does the script run?
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import deeppool as dp
from deeppool.base import serialization
from deeppool.base.sharing import Policy
from deeppool.cluster.cluster import Cluster
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.plan import Plan
from deeppool.profiling.table import Profile
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.fidelity import Fidelity

RANKS = 2
PROFILE_SECONDS = 30.0
"""Of a batch size: iterations of a second, and their noise is asked for."""
BOUND = 0.15
"""Of the error of iteration time and harvest."""
LIMIT = 2.0
HELD_TO_IT = ("iteration alone", "beside the background", "background harvest")


@dataclass(frozen=True, slots=True)
class Case:
    """What is run, and simulated."""

    model: str
    shape: tuple[int, ...] | None
    batch: int
    limit: float | None
    """Amplification limit of a burst-parallel plan; None: data parallel."""
    background: str
    policy: Policy = "priority"

    @property
    def name(self) -> str:
        """For the table."""
        how = "data parallel" if self.limit is None else f"limit {self.limit:g}"
        return f"{self.model}, batch {self.batch}, {how}"


# The models of benchmarks/execution that two cores hold.
CASES = tuple(
    Case(model, (3, 64, 64), 16, limit, "resnet18") for model in ("vgg16", "resnet50") for limit in (None, LIMIT)
)
QUICK = tuple(
    Case("examples.two_branch:two_branch", None, 16, limit, "examples.two_branch:two_branch") for limit in (None, LIMIT)
)


def main() -> None:
    """Measures, simulates, prints the table, saves the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for all records")
    parser.add_argument("--interference", type=Path, help="measured on this machine; else measured now")
    parser.add_argument("--seconds", type=float, default=60.0, help="measuring time of one run")
    parser.add_argument("--quick", action="store_true", help="a small model, a few seconds")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    seconds = 4.0 if arguments.quick else arguments.seconds
    print(dp.environment(), file=sys.stderr)
    network = dp.measure_network(RANKS, backend="gloo", seconds=5.0 if arguments.quick else 30.0)
    if arguments.interference is not None:
        measured = serialization.read(arguments.interference, Interference)
    else:
        how = {"durations": [2e-3], "waits": [2e-2], "seconds": 0.02, "rounds": 1} if arguments.quick else {}
        measured = dp.measure_interference(device="cpu", arrangements=["lowest"], **how)
    print(measured, file=sys.stderr)
    rows = []
    for case, profile, plan, background in cases(QUICK if arguments.quick else CASES, network):
        run = dp.launch(plan, background=case.background, policy=case.policy, seconds=seconds)
        planned = dp.compare_with_run(plan, run, background=background, interference=measured)
        noise = dp.profiled_conditions(profile, RANKS)
        noisy = dp.compare_with_run(plan, run, background=background, interference=measured, conditions=noise)
        print(plan, run, planned, noisy, sep="\n", file=sys.stderr)
        rows.append((case, planned, noisy))
        records = [
            {"case": case.name, "planned": serialization.to_json(planned), "noisy": serialization.to_json(noisy)}
            for case, planned, noisy in rows
        ]
        serialization.write_text(json.dumps(records, indent=1), arguments.output)
    print(table(rows))


def cases(wanted: tuple[Case, ...], network: Cluster) -> Iterator[tuple[Case, Profile, Plan, Profile]]:
    """Each case with its profile, its plan, and the profile of its background."""
    profiles: dict[str, Profile] = {}

    def profile(case: Case) -> Profile:
        if case.model not in profiles:
            sizes = [case.batch // RANKS, case.batch]
            profiles[case.model] = dp.profile(
                case.model, case.shape, device="cpu", batch_sizes=sizes, ranks=RANKS, seconds=PROFILE_SECONDS
            )
        return profiles[case.model]

    for case in wanted:
        if case.limit is None:
            plan = data_parallel_plan(profile(case), network, case.batch)
        else:
            plan = dp.plan(profile(case), network, case.batch, case.limit)
        yield case, profile(case), plan, dp.profile(case.background, device="cpu", batch_sizes=[4])


def table(rows: list[tuple[Case, Fidelity, Fidelity]]) -> str:
    """A row per case and quantity: measured, simulated by both, the errors, and whether the latter keeps the bound."""
    lines = [
        "| plan on two ranks | quantity | measured | as planned | error | with noise | error | within 15 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, planned, noisy in rows:
        for before, quantity in zip(planned.quantities, noisy.quantities, strict=True):
            cells = [case.name, quantity.name.rstrip(","), _value(quantity.measured, quantity.unit)]
            for found in (before, quantity):
                cells += [_value(found.simulated, found.unit), f"{100 * found.error:+.1f} %"]
            held = any(quantity.name.startswith(name) for name in HELD_TO_IT)
            cells.append(("yes" if abs(quantity.error) <= BOUND else "**no**") if held else "")
            lines.append(f"| {' | '.join(cells)} |")
    _, _, last = rows[-1]
    return "\n".join([*lines, "", f"With {last.interference}."])


def _value(value: float, unit: str) -> str:
    return f"{1e3 * value:.0f} ms" if unit == "s" else f"{100 * value:.0f} %"


if __name__ == "__main__":
    main()
