"""How fast does a kernel go beside another? DeepPool's figure 12: all pairs of synthetic kernels, as a heat map.

Each foreground kernel is measured alone and beside each background kernel in each arrangement, in turn and in several
rounds, so that a machine that grows slower does so for all of them. A rate is the median over the rounds, in each of
which it is taken against the median alone. On a CPU then also what a background at the lowest priority gets done while
a foreground waits, by the length of the wait.

    python benchmarks/interference/main.py -o interference.json --figure interference.html
"""

import argparse
import sys
from pathlib import Path

import deeppool as dp
from deeppool import figures
from deeppool.base import serialization
from deeppool.simulation.device.interference import Arrangement, Interference
from deeppool.units import format_seconds

QUICK = {"matrices": [128], "durations": [2e-4, 2e-3], "waits": [2e-2], "seconds": 0.05, "rounds": 1}


def main() -> None:
    """Measures, saves, and prints a table for each arrangement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for the record")
    parser.add_argument("--figure", type=Path, help="HTML file for the heat maps")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each pair in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="four classes, one short round: only to see that it runs")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    how = QUICK if arguments.quick else {"seconds": arguments.seconds, "rounds": arguments.rounds}
    found = dp.measure_interference(
        device=arguments.device,
        on_progress=lambda what, share: print(f"{what}: {100 * share:.0f} %", file=sys.stderr),
        **how,
    )
    serialization.write(found, arguments.output)
    if arguments.figure is not None:
        figures.interference(found).write_html(arguments.figure, include_plotlyjs="cdn")
    print(found, *(table(found, beside) for beside in found.arrangements), sep="\n\n")


def table(found: Interference, beside: Arrangement) -> str:
    """Foreground, percent of alone; rows are foreground kernels."""
    names = [f"{intensity:.2g}, {format_seconds(time)}" for intensity in found.intensities for time in found.durations]
    rows = [f"| {beside.name} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, rates in zip(names, beside.foreground, strict=True):
        rows.append(f"| {name} | {' | '.join(f'{100 * rate:.0f}' for rate in rates)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
