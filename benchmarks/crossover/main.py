"""How much faster do two jobs train when they cross over, for which ratio of communication to computing?

    python benchmarks/crossover/main.py -o slept.json    computing slept, gradients sent; needs root, ip and tc

Machines (network namespaces) at a limited rate. Two equal jobs train crossed over, one after the other, each by
torch's DistributedDataParallel, each on machines of its own, and shifted in time, by turns.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# The ranks import the model beside this script, and the machines are those of another benchmark.
PATHS = [str(HERE), str(HERE.parent / "execution"), str(HERE.parent)]
sys.path += PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])

from machines import machines  # noqa: E402
from measured_table import measured_table  # noqa: E402
from slept import job  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.base import serialization  # noqa: E402
from deeppool.interleaving.crossover.comparison_record import CrossoverComparison  # noqa: E402

RATIOS = (1.0, 0.5, 2.0, 0.3, 3.0, 0.7, 1.4)
SAMPLES = 2
"""Of each rank in a step of a job."""
BUCKETS = (4,)
"""Of DDP in a backward, so that it can hide transfers; torch's own size would be one for gradients as few as here."""


def slept(arguments) -> Iterator[CrossoverComparison]:
    """The same gradients each time, and more or less computing."""
    # A ring sends 2 (P - 1) / P of the bytes over every link.
    ranks = arguments.machines
    communication = 2 * (ranks - 1) / ranks * arguments.megabytes * 8e6 / (arguments.megabits * 1e6)
    with machines(ranks, arguments.megabits * 1e6, arguments.cores) as launcher:
        for ratio in arguments.ratios:
            found = dp.compare_orders(
                [job(communication / ratio / SAMPLES, arguments.megabytes) for _ in range(2)],
                global_batch=SAMPLES * ranks,
                ranks=ranks,
                all_reduce=arguments.all_reduce,
                repetitions=arguments.repetitions,
                rounds=arguments.rounds,
                buckets=[arguments.megabytes * 1e6 / buckets for buckets in BUCKETS],
                launcher=launcher,
            )
            print(found, file=sys.stderr)
            yield found


def setting(found: CrossoverComparison) -> str:
    """Communication / computing, and both in milliseconds."""
    job = found.jobs[0]
    return f"{found.ratio:.2f} ({1e3 * job.communication:.0f} / {1e3 * job.compute:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of the records")
    parser.add_argument("--megabits", type=float, default=100.0, help="per second and direction, of each machine")
    parser.add_argument("--megabytes", type=float, default=6.0, help="gradients of a job")
    parser.add_argument("--machines", type=int, default=2)
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
    print(measured_table("M / C", [(setting(one), one) for one in sorted(found, key=lambda one: one.ratio)]))


if __name__ == "__main__":
    main()
