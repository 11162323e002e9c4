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
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from deeppool.collectives.partial.firing import FiringRule
from deeppool.execution.transports.shared_memory import create

MODES = ("full", "straggler-aware", "majority", "solo")
LINE = (
    "{transport:<13} {bytes:>8} B  {mode:<15}  mean {mean:.6f} s, median {median_iteration:.6f} s, ideal {ideal:.6f} s "
    "{speedup:6.2f}x, of medians {speedup_of_medians:6.2f}x  active {active:5.2f}  load {load_average:.0f}"
)
RANK = Path(__file__).with_name("skewed_rank.py")


def measure(transport: str, mode: str, ranks: int, elements: int, iterations: int, step: float) -> dict[str, Any]:
    """Runs the ranks, one process each; returns latencies and accepted gradients by iteration and rank."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        create(folder / "meeting", FiringRule(ranks, "full"), 1, "float64", "latest")
        create(folder / "measured", FiringRule(ranks, mode, staleness_limit=None), elements, "float32", "latest")
        arguments = [str(value) for value in (transport, ranks, mode, elements, iterations, step)]
        processes = [
            subprocess.Popen([sys.executable, RANK, name, str(rank), *arguments], stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        answers = [json.loads(process.communicate()[0]) for process in processes]
    return {key: np.array([answer[key] for answer in answers]).T for key in ("latencies", "accepted")}


def ideal(mode: str, ranks: int, iterations: int, step: float) -> float:
    """Returns the mean latency if every round completed at the instant at which it fires."""
    rule = FiringRule(ranks, mode)
    firing = {"solo": lambda number: 0, "majority": rule.initiator}.get(mode, lambda number: ranks - 1)
    waits = [max(0, firing(number) - rank) * step for number in range(iterations) for rank in range(ranks)]
    return float(np.mean(waits))


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=64)
    parser.add_argument("--elements", type=int, nargs="+", default=[1, 16_384, 262_144], help="float32 of a gradient")
    parser.add_argument("--step-ms", type=float, default=1.0, help="skew between a rank and the next")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--transports", nargs="+", default=["shared-memory", "tcp-native"], help="or tcp-python")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    step, rows = given.step_ms / 1000, []
    for transport, elements, repeat in itertools.product(given.transports, given.elements, range(given.repeats)):
        modes = [mode for mode in MODES if (transport, mode) != ("tcp-native", "straggler-aware")]
        found = {mode: measure(transport, mode, given.ranks, elements, given.iterations, step) for mode in modes}
        full = found["full"]["latencies"]
        for mode in modes:
            latencies, least = found[mode]["latencies"], ideal(mode, given.ranks, given.iterations, step)
            row = {
                "transport": transport,
                "bytes": 4 * elements,
                "repeat": repeat,
                "mode": mode,
                "mean": float(latencies.mean()),
                "median_iteration": float(np.median(latencies.mean(axis=1))),
                "ideal": least,
                "speedup": float(full.mean() / latencies.mean()),
                "speedup_of_medians": float(np.median(full.mean(axis=1)) / np.median(latencies.mean(axis=1))),
                "active": float(found[mode]["accepted"].sum(axis=1).mean()),
                "load_average": os.getloadavg()[0],
            }
            rows.append(row)
            print(LINE.format_map(row), flush=True)
    environment = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    if given.json:
        given.json.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
