"""How long do ranks wait in a solo, a majority and a synchronous all-reduce when they arrive one after the other?

    python benchmarks/partial-collectives/main.py --json results.json

The micro-benchmark of Li et al. (PPoPP 2020, figures 8 and 9): P processes arrive 1, 2, …, P ms after a common start,
and the mean latency of the calls is compared with that of a synchronous all-reduce on the same transport.
"""

import argparse
import itertools
import json
import os
import platform
from pathlib import Path

from deeppool.evaluation.experiments.skewed_calls import skewed_calls

MODES = ("full", "straggler-aware", "majority", "solo")


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=64)
    parser.add_argument("--elements", type=int, nargs="+", default=[1, 16_384, 262_144], help="float32 of a gradient")
    parser.add_argument("--skew-ms", type=float, default=1.0, help="between a rank and the next")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--transports", nargs="+", default=["shared-memory", "tcp-native"], help="or tcp-python")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for transport, elements, repeat in itertools.product(given.transports, given.elements, range(given.repeats)):
        full = None
        for mode in MODES:
            found = skewed_calls(
                mode, transport=transport, ranks=given.ranks, iterations=given.iterations, skew=given.skew_ms / 1000,
                elements=elements,
            )  # fmt: skip
            full = full or found
            row = {key: getattr(found, key) for key in ("transport", "mode", "mean", "median", "ideal", "active")}
            row |= {"bytes": 4 * elements, "repeat": repeat, "load_average": os.getloadavg()[0]}
            row |= {"speedup": full.mean / found.mean, "speedup_of_medians": full.median / found.median}
            rows.append(row)
            print(
                f"{found}; full / {mode} {row['speedup']:.2f}, of medians {row['speedup_of_medians']:.2f}, load "
                f"{row['load_average']:.0f}",
                flush=True,
            )
    environment = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    if given.json:
        given.json.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
