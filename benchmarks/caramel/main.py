"""How fast is training by each method of sending gradients, on a real network of limited rate?

    python benchmarks/caramel/main.py -o 1000.json                       4 machines at 1 Gbit/s; needs root, ip and tc
    python benchmarks/caramel/main.py --megabits 100 --megabytes 2.4 -o 100.json

VGG-like and ResNet-like networks, whose computing is slept and whose gradients are real, by DDP, DDP and DeAR with the
best buckets, DDP on fewer ranks, a parameter server, and ``dp.TransferScheduler``, by turns on the same ranks.
"""

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
# The ranks import the networks beside this script, and the machines are those of another benchmark.
PATHS = [str(HERE), str(HERE.parent / "execution"), str(HERE.parent)]
sys.path += PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])

from machines import machines  # noqa: E402
from measured_table import measured_table  # noqa: E402
from slept import job  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.base import serialization  # noqa: E402
from deeppool.records.measured_transfers import MeasuredTransfers  # noqa: E402

RANKS = 4
NETWORKS = ("vgg16", "resnet50")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of the records")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, help="networks that dp.estimate takes")
    parser.add_argument("--megabits", type=float, default=1000.0, help="per second and direction, of each machine")
    parser.add_argument("--megabytes", type=float, default=24.0, help="of gradients")
    parser.add_argument("--ratios", type=float, nargs="+", default=[1.0], help="M / C, as intended")
    parser.add_argument("--cores", type=float, default=1.0, help="cores' time of each machine")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=5, help="of each method in a repetition")
    parser.add_argument("--network-seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    # A ring sends 2 (P - 1) / P of the bytes over every link.
    communication = 2 * (RANKS - 1) / RANKS * arguments.megabytes * 8e6 / (arguments.megabits * 1e6)
    found: list[tuple[str, float, MeasuredTransfers]] = []

    def keep(network: str, ratio: float, record: MeasuredTransfers) -> None:
        """Writes all records after each repetition, so that one that is ended early leaves what it has."""
        documents = [serialization.to_json(each) for _, _, each in [*found, (network, ratio, record)]]
        serialization.write_text(json.dumps(documents, indent=1), arguments.output)

    with machines(RANKS, arguments.megabits * 1e6, arguments.cores) as launcher:
        for network in arguments.networks:
            for ratio in arguments.ratios:
                record = dp.measure_transfers(
                    job(network, arguments.megabytes, communication / ratio),
                    global_batch=RANKS,
                    ranks=RANKS,
                    repetitions=arguments.repetitions,
                    iterations=arguments.iterations,
                    buckets=[float(2**exponent) for exponent in (18, 20, 22)],
                    network_seconds=arguments.network_seconds,
                    ranks_per_node=1,
                    launcher=launcher,
                    on_progress=lambda what, share: print(f"{share:4.0%} {what}", file=sys.stderr),
                    on_record=partial(keep, network, ratio),
                )
                print(f"{network}: {record}", file=sys.stderr)
                found.append((network, ratio, record))
    print(measured_table("network, M / C", [(f"{network}, {ratio:g}", record) for network, ratio, record in found]))
    for network, ratio, record in found:
        parts = {"C": record.compute_time, "cores": record.core_time, "bound": record.bound}
        print(f"{network}, {ratio:g}: {', '.join(f'{name} {1e3 * value:.0f} ms' for name, value in parts.items())}")


if __name__ == "__main__":
    main()
