"""How far is the price of a schedule from its measured time? Prints the table of the README.

python benchmarks/network/patterns.py loopback -o loopback-patterns.json   ranks of this machine
python benchmarks/network/patterns.py slow -o slow-patterns.json           machines at 1 Gbit/s; needs root, ip, tc
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pattern_rank import patterns_of
from pydantic import TypeAdapter

import deeppool as dp
from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link
from deeppool.cluster.measured_network import AllReduce, Curve, MeasuredNetwork, fit_line
from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.costs.schedules import core_seconds, schedule_time
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.rank_group import RankGroup, private_folder
from deeppool.profiling.network.patterns import PAIRS
from deeppool.units import format_bytes, format_seconds

HERE = Path(__file__).parent
SIZES = (2**10, 2**16, 2**20, 2**24)
PAIR_SIZES = tuple(2**power for power in range(8, 25))
"""Rounds of those are of half and a quarter of their bytes, too, and between two powers of two a price is a guess."""
RANKS = (2, 4)
CORES = 2.0
"""A machine's: the network is the bottleneck, not the processor."""


@contextlib.contextmanager
def started(network: str, ranks: int, bits_per_second: float) -> Iterator[Launcher]:
    """A launcher of ranks on this machine, or on a machine each."""
    if network == "loopback":
        yield LocalLauncher("cpu", ranks)
        return
    sys.path.append(str(HERE.parent / "execution"))
    from machines import machines

    with machines(ranks, bits_per_second, CORES) as launcher:
        yield launcher


def measure(launcher: Launcher, ranks: int, seconds: float) -> list[Curve]:
    """Curves of all patterns, in their order."""
    with private_folder() as folder, RankGroup(launcher) as group:
        launcher.distribute_files(folder)
        for rank in range(ranks):
            spec = asdict(launcher.worker_spec(rank))
            settings = {"sizes": SIZES, "pair_sizes": PAIR_SIZES, "seconds": seconds}
            group.start("pattern_rank").send("setup", rank=rank, ranks=ranks, **settings, **spec)
        answers = group.collect("done", 300, "while it measured patterns", lambda _: None)
    return TypeAdapter(list[Curve]).validate_python(answers[0]["curves"])


def quietest(rounds: list[list[Curve]]) -> list[Curve]:
    """Each pattern's lowest median of several rounds at each size: what else the machine did disturbed it least."""
    best = []
    for curves in zip(*rounds, strict=True):
        # A round leaves out sizes that would take too long.
        sizes = min((curve.sizes for curve in curves), key=len)
        chosen = [min(curves, key=lambda curve: curve.seconds[at]) for at in range(len(sizes))]
        fields = {
            name: tuple(getattr(curve, name)[at] for at, curve in enumerate(chosen))
            for name in ("seconds", "spread", "runs", "computing")
        }
        best.append(Curve(sizes=sizes, line=fit_line(sizes, fields["seconds"]), **fields))
    return best


def rows(network: str, ranks: int, curves: list[Curve]) -> list[dict]:
    """Measured medians beside prices on the network that the transfers show."""
    cluster = measured_cluster(network, ranks, curves)
    found = []
    for pattern, curve in zip(patterns_of(ranks), curves, strict=True):
        if pattern.kind in PAIRS:
            continue
        # gloo's own all-reduce is a ring.
        name = "ring" if pattern.kind == "all-reduce" else pattern.kind
        for size, seconds, spread in zip(curve.sizes, curve.seconds, curve.spread, strict=True):
            found.append(
                {
                    "network": network,
                    "pattern": "the library's (a ring)" if pattern.kind == "all-reduce" else name,
                    "ranks": len(pattern.ranks),
                    "of": ranks,
                    "size": size,
                    "measured": seconds,
                    "spread": spread,
                    "priced": schedule_time(cluster, ALL_REDUCES[name](len(pattern.ranks), 2), size),
                    "cores": core_seconds(cluster, ALL_REDUCES[name](len(pattern.ranks), 2), size) / os.cpu_count(),
                    "transfer": cluster.measured.inside.at(size),
                }
            )
    return [row for row in found if row["ranks"] == ranks]


def measured_cluster(network: str, ranks: int, curves: list[Curve]) -> Cluster:
    """All ranks in one node, with what was measured."""
    own = [
        AllReduce(len(pattern.ranks), curve)
        for pattern, curve in zip(patterns_of(ranks), curves, strict=True)
        if pattern.kind == "all-reduce"
    ]
    transfers, exchanges = curves[: len(PAIRS)]
    link = Link(1 / transfers.line.seconds_per_byte, transfers.line.latency, "measured")
    measured = MeasuredNetwork(
        "gloo", "cpu", ranks, ranks, transfers, None, tuple(own), "see main.py", "", {}, exchange_inside=exchanges
    )
    return Cluster(ranks, network, ranks, link, link, measured=measured)


def table(found: list[dict]) -> str:
    """One line for each pattern and number of ranks; measured, then priced and by how much that is off."""
    sizes = sorted({row["size"] for row in found})
    heads = ["network", "pattern", "ranks", *(format_bytes(size) for size in sizes)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for key in dict.fromkeys((row["network"], row["pattern"], row["ranks"]) for row in found):
        of_size = {row["size"]: row for row in found if (row["network"], row["pattern"], row["ranks"]) == key}
        cells = [cell(of_size[size]) if size in of_size else "" for size in sizes]
        lines.append(f"| {' | '.join([*map(str, key), *cells])} |")
    return "\n".join(lines)


def cell(row: dict) -> str:
    """Measured, priced, and by how much that is off."""
    # Ranks that share cores wait for each other's transfers.
    priced = max(row["priced"], row["cores"])
    measured = f"{format_seconds(row['measured'])} ±{100 * row['spread']:.0f} %"
    return f"{measured} ({format_seconds(priced)}, {100 * (priced / row['measured'] - 1):+.0f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=("loopback", "slow"))
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for the rows")
    parser.add_argument("--gigabits", type=float, default=1.0, help="per second, between the slow machines")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--rounds", type=int, default=4, help="of which each pattern's quietest counts")
    parser.add_argument(
        "--seconds",
        type=float,
        default=15,
        help="of a round; leaves out sizes whose runs would take longer than its part",
    )
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    # The ranks import the script beside this one.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print(dp.environment(), file=sys.stderr)
    found = []
    for ranks in arguments.ranks:
        with started(arguments.network, ranks, 1e9 * arguments.gigabits) as launcher:
            name = "loopback" if arguments.network == "loopback" else f"{arguments.gigabits:g} Gbit/s"
            rounds = [measure(launcher, ranks, arguments.seconds) for _ in range(arguments.rounds)]
            found += rows(name, ranks, quietest(rounds))
        serialization.write_text(json.dumps(found, indent=1), arguments.output)
    print(table(found))


if __name__ == "__main__":
    main()
