"""How fast does a kernel go beside another? DeepPool's figure 12: all pairs of synthetic kernels, as a heat map.

Each foreground kernel is measured alone and beside each background kernel in each arrangement, in turn and in several
rounds, so that a machine that grows slower does so for all of them. A rate is the median over the rounds, in each of
which it is taken against the median alone.

    python benchmarks/interference/main.py -o interference.json --figure interference.html
"""

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from synthetic import DURATIONS, Kind, kinds

from deeppool import documents, figures
from deeppool.device.common import find_device
from deeppool.simulation.interference import Beside, Interference
from deeppool.units import format_seconds


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
    documents.check_writable(arguments.output)
    chosen = kinds(arguments.device)
    if arguments.quick:
        shortest = DURATIONS[arguments.device][:2]
        rows = (None, 128)
        chosen = [Kind(row, seconds) for row in rows for seconds in shortest]
        arguments.seconds, arguments.rounds = 0.05, 1
    found = measure(arguments.device, chosen, arguments.seconds, arguments.rounds)
    documents.write(found, arguments.output)
    if arguments.figure is not None:
        figures.interference(found).write_html(arguments.figure, include_plotlyjs="cdn")
    print(found, *(table(found, beside) for beside in found.arrangements), sep="\n\n")


def measure(device: str, chosen: list[Kind], seconds: float, rounds: int) -> Interference:
    """All pairs in all arrangements."""
    if device == "cuda":
        from on_gpu import Cuda as Bench
    else:
        from on_cpu import Cpu as Bench
    with Bench(chosen) as bench:
        names = list(bench.arrangements)
        started = time.perf_counter()
        found = []
        for number in range(rounds):
            found.append(one_round(bench, names, len(chosen), seconds))
            print(f"round {number + 1} after {time.perf_counter() - started:.0f} s", file=sys.stderr)
    middle = np.median(found, axis=0)
    return Interference(
        device_name=find_device(device).name,
        date=datetime.now(UTC).date().isoformat(),
        method=f"{rounds} rounds of {seconds:g} s a pair, medians, torch {torch.__version__}",
        intensities=tuple(dict.fromkeys(kind.intensity for kind in chosen)),
        durations=tuple(dict.fromkeys(kind.seconds for kind in chosen)),
        arrangements=tuple(
            Beside(name, *(tuple(map(tuple, pairs.tolist())) for pairs in both))
            for name, both in zip(names, middle, strict=True)
        ),
    )


def one_round(bench, names: list[str], classes: int, seconds: float) -> np.ndarray:
    """Rates as parts of alone: arrangement x (foreground, background) x class of the foreground x of the background."""
    rates = np.empty((len(names), 2, classes, classes))
    alone: list[list[float]] = [[] for _ in range(classes)]
    for background in range(classes):
        for foreground in range(classes):
            alone[foreground].append(bench.alone(foreground, seconds / 2))
            for at, name in enumerate(names):
                rates[at, :, foreground, background] = bench.together(name, foreground, background, seconds)
    known = np.array([np.median(found) for found in alone])
    rates[:, 0] /= known[:, None]
    rates[:, 1] /= known[None, :]
    return rates


def table(found: Interference, beside: Beside) -> str:
    """Foreground, percent of alone; rows are foreground kernels."""
    names = [f"{intensity:.2g}, {format_seconds(time)}" for intensity in found.intensities for time in found.durations]
    rows = [f"| {beside.name} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, rates in zip(names, beside.foreground, strict=True):
        rows.append(f"| {name} | {' | '.join(f'{100 * rate:.0f}' for rate in rates)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
