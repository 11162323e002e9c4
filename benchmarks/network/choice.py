"""How much slower is the chosen pattern than the best measured one? Prints the table of the README.

python benchmarks/network/choice.py 1000 -o choice-1000.json   machines at 1 Gbit/s; needs root, ip, tc
python benchmarks/network/choice.py 300 -o choice-300.json

A cluster file of 8 machines is measured at 1 KiB, 4 KiB, … 64 MiB. Then all that could be chosen is measured once more,
at every power of two. Regret is the time of the chosen pattern over that of the best one, in the second measurement,
less one.
*Chosen* is by the measured schedules of the file (``deeppool network --schedules``), *priced* by what transfers cost.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
PATHS = [str(HERE), str(HERE.parent / "execution")]
sys.path += PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])

from machines import machines  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.base import serialization  # noqa: E402
from deeppool.cluster.cluster import Cluster  # noqa: E402
from deeppool.costs.communication import Network  # noqa: E402
from deeppool.costs.schedules import all_reduce_times, fastest_all_reduce  # noqa: E402
from deeppool.processes.launcher import Launcher  # noqa: E402
from deeppool.processes.rank_group import RankGroup, private_folder  # noqa: E402
from deeppool.units import format_bytes  # noqa: E402

SIZES = [2**exponent for exponent in range(10, 27)]
MACHINES = 8
CORES = 2.0
"""Of each machine: the network is the bottleneck, not the processor."""
TIMEOUT = 900.0
"""Seconds without progress."""


def measured(launcher: Launcher, ranks: int, sizes: list[int], seconds: float) -> list[Cluster]:
    """The network measured twice between the ranks."""
    with private_folder() as folder, RankGroup(launcher) as group:
        launcher.distribute_files(folder)
        for rank in range(ranks):
            spec = launcher.worker_spec(rank)
            group.start("choice_rank").send(
                "setup",
                rank=rank,
                ranks=ranks,
                index=spec.index,
                interface=spec.interface,
                rendezvous=spec.rendezvous,
                sizes=sizes[::2],
                held_out=sizes,
                seconds=seconds,
            )
        answers = group.collect("done", TIMEOUT, "while the network was measured", report)
    return [serialization.from_json(found, Cluster, "the measured network") for found in answers[0]["clusters"]]


def report(message) -> None:
    print(f"{message['what']}: {message['share']:.0%}", file=sys.stderr)


def regrets(first: Cluster, second: Cluster, ranks: int, sizes: list[int]) -> Iterator[dict[str, object]]:
    """The choice by the first measurement, at every size of the second."""
    # As the file is without --schedules.
    priced = Network(replace(first, measured=replace(first.measured, schedules=())), "measured")
    for size in sizes:
        times = all_reduce_times(second, ranks, size)
        best = min(times, key=times.__getitem__)
        row = {"ranks": ranks, "size": size, "best": best, "seconds": times[best]}
        choices = {
            "chosen": fastest_all_reduce(Network(first, "measured"), ranks, size)[0],
            "priced": fastest_all_reduce(priced, ranks, size)[0],
            "library": "library",
        }
        yield row | choices | {f"regret of {how}": times[which] / times[best] - 1 for how, which in choices.items()}


def table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| ranks | size | best | chosen, regret | by prices, regret | library's regret |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["ranks"], format_bytes(row["size"]), f"{row['best']}, {1e3 * row['seconds']:.3g} ms"]
        cells += [f"{row[how]}, {row[f'regret of {how}']:.0%}" for how in ("chosen", "priced")]
        lines.append("| " + " | ".join(map(str, [*cells, f"{row['regret of library']:.0%}"])) + " |")
    for how in ("chosen", "priced", "library"):
        values = sorted(row[f"regret of {how}"] for row in rows)
        nine_of_ten = values[int(0.9 * (len(values) - 1))]
        lines.append(
            f"\n{how}: regret {statistics.median(values):.1%} in the median, {nine_of_ten:.1%} at p90, "
            f"{values[-1]:.0%} at most"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megabits", type=float, help="per second and direction, of each machine")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of the choices and clusters")
    parser.add_argument("--machines", type=int, default=MACHINES, help="chosen is for these, and 2, 4 … of them")
    parser.add_argument("--smallest", type=int, default=SIZES[0], help="bytes")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each of the two measurements")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    sizes = [size for size in SIZES if arguments.smallest <= size <= arguments.largest]
    with machines(arguments.machines, arguments.megabits * 1e6, CORES) as launcher:
        first, second = measured(launcher, arguments.machines, sizes, arguments.seconds)
    groups = sorted({2**k for k in range(1, arguments.machines.bit_length())} | {arguments.machines})
    rows = [row for ranks in groups for row in regrets(first, second, ranks, sizes)]
    document = {
        "environment": str(dp.environment()),
        "rows": rows,
        "clusters": [serialization.to_json(cluster) for cluster in (first, second)],
    }
    serialization.write_text(json.dumps(document, indent=1), arguments.output)
    print(table(rows))


if __name__ == "__main__":
    main()
