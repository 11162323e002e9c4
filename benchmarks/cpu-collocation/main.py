"""What does a background job cost the foreground on a CPU, and how much of the idle time does it get?

Runs the demo's plan with each policy in turn, several rounds, so that a machine that grows slower does so
for all of them. Prints a table of medians with the smallest and largest round, and saves every record.

    python benchmarks/cpu-collocation/main.py -o results.json
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import deeppool as dp
from deeppool import documents
from deeppool.cluster import find_cluster
from deeppool.job import RunRecord
from deeppool.sharing import Policy

POLICIES: tuple[Policy, ...] = ("priority", "nice", "naive")
COLUMNS: dict[str, Callable[[RunRecord], float]] = {
    "foreground slowdown": lambda run: 100 * run.foreground.slowdown,
    "idle when alone": lambda run: 100 * statistics.mean(run.foreground.alone.idle_share),
    "background harvest": lambda run: 100 * run.background.harvest if run.background else 0.0,
    "harvest of idle": lambda run: 100 * run.background.harvest_of_idle if run.background else 0.0,
}


def main() -> None:
    """Measures, prints the table, saves the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for all records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="measuring time of one run")
    parser.add_argument("--background", default="resnet18")
    arguments = parser.parse_args()
    documents.check_writable(arguments.output)
    profile = dp.profile("vgg16", (3, 64, 64), device="cpu", batch_sizes=[1, 2, 4, 8, 16])
    plan = dp.plan(profile, find_cluster("loopback", 2), global_batch=16, amplification_limit=2.0)
    print(dp.environment(), plan, sep="\n", file=sys.stderr)
    runs: dict[str, list[RunRecord]] = {policy: [] for policy in POLICIES}
    for number in range(arguments.rounds):
        for policy in POLICIES:
            run = dp.launch(plan, background=arguments.background, policy=policy, seconds=arguments.seconds)
            runs[policy].append(run)
            print(f"round {number + 1}, {policy}\n{run}", file=sys.stderr)
    documents.write_text(
        json.dumps({policy: [documents.to_json(run) for run in found] for policy, found in runs.items()}),
        arguments.output,
    )
    print(table(runs))


def table(runs: dict[str, list[RunRecord]]) -> str:
    """Median (smallest … largest) over the rounds, in percent."""
    rows = [f"| policy | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for policy, found in runs.items():
        cells = []
        for column in COLUMNS.values():
            values = [column(run) for run in found]
            cells.append(f"{statistics.median(values):.1f} ({min(values):.1f} … {max(values):.1f})")
        rows.append(f"| {policy} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
