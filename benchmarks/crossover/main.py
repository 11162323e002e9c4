"""How much faster do two jobs train when they cross over, for which ratio of communication to computing?

    python benchmarks/crossover/main.py -o slept.json    computing slept, gradients sent; needs root, ip and tc

Two machines (network namespaces) at a limited rate. Two equal jobs train crossed over, one after the other, each by
torch's DistributedDataParallel, and shifted in time, by turns.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# The ranks import the model beside this script, and the machines are those of another benchmark.
PATHS = [str(HERE), str(HERE.parent / "execution")]
sys.path += PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])

from machines import machines  # noqa: E402
from slept import job  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.base import serialization  # noqa: E402
from deeppool.interleaving.crossover.comparison_record import (  # noqa: E402
    CROSSOVER,
    DATA_PARALLEL,
    SEQUENTIAL,
    SHIFTED,
    CrossoverComparison,
)

RANKS = 2
RATIOS = (1.0, 0.5, 2.0, 0.3, 3.0, 0.7, 1.4)
BUCKETS = 4
"""Of DDP in a backward, so that it can hide transfers; torch's own size would be one for gradients as few as here."""


def slept(arguments) -> Iterator[CrossoverComparison]:
    """The same gradients each time, and more or less computing."""
    # A ring of two ranks sends all bytes once.
    communication = arguments.megabytes * 8e6 / (arguments.megabits * 1e6)
    with machines(RANKS, arguments.megabits * 1e6, arguments.cores) as launcher:
        for ratio in arguments.ratios:
            jobs = [job(communication / ratio, arguments.megabytes) for _ in range(2)]
            yield compare(jobs, 2 * RANKS, launcher, arguments)


def compare(jobs, batch, launcher, arguments) -> CrossoverComparison:
    found = dp.compare_orders(
        jobs,
        global_batch=batch,
        ranks=RANKS,
        all_reduce=arguments.all_reduce,
        repetitions=arguments.repetitions,
        rounds=arguments.rounds,
        bucket_megabytes=arguments.megabytes / BUCKETS,
        launcher=launcher,
    )
    print(found, file=sys.stderr)
    return found


def ratio(found: CrossoverComparison) -> float:
    """Communication / computing."""
    return found.jobs[0].ratio


def table(comparisons: list[CrossoverComparison]) -> str:
    lines = [
        "| M / C | C, ms | M, ms | round, ms | formula | one after the other | gain | DDP | gain | shifted | gain |",
        "|---" * 11 + "|",
    ]
    for found in comparisons:
        first = found.jobs[0]
        ours = found.times(CROSSOVER)
        error = 100 * (ours.median / ours.predicted - 1)
        cells = [f"{first.ratio:.2f}", f"{1e3 * first.compute:.0f}", f"{1e3 * first.communication:.0f}"]
        cells += [f"{1e3 * ours.median:.0f}", f"{1e3 * ours.predicted:.0f} ({error:+.0f} %)"]
        for order in (SEQUENTIAL, DATA_PARALLEL, SHIFTED):
            gain, half_width = found.gain(order)
            cells += [f"{1e3 * found.times(order).median:.0f}"]
            cells += [f"**{gain:.2f}**" + ("" if half_width is None else f" ± {half_width:.2f}")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of the records")
    parser.add_argument("--megabits", type=float, default=100.0, help="per second and direction, of each machine")
    parser.add_argument(
        "--megabytes",
        type=float,
        default=6.0,
        help="gradients of a job",
    )
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS, help="M / C, as intended")
    parser.add_argument("--cores", type=float, default=1.0, help="cores' time of each machine")
    parser.add_argument("--all-reduce", default="library")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3, help="of each order in a repetition")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    found = []
    for comparison in slept(arguments):
        found.append(comparison)
        documents = [serialization.to_json(one) for one in found]
        serialization.write_text(json.dumps(documents, indent=1), arguments.output)
    print(table(sorted(found, key=ratio)))


if __name__ == "__main__":
    main()
