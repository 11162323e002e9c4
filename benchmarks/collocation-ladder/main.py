"""What does each mechanism of collocation cost the foreground, and what does the background get?

Runs one plan with each of them in turn, several rounds, so that a machine that grows slower does so for all of them.
Prints a table of medians with the smallest and largest round, and saves every record. What the engine costs by itself
is measured elsewhere (benchmarks/engine-overhead).

    python benchmarks/collocation-ladder/main.py -o results.json
    python benchmarks/collocation-ladder/main.py -o curve.json --rungs trade-off --rounds 2 --seconds 24 --figure .
    python benchmarks/collocation-ladder/main.py -o check.json --quick       three rows, no numbers worth keeping
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import deeppool as dp
from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.cluster.cluster import find_cluster
from deeppool.evaluation.experiments.half_and_half_plan import half_and_half_plan
from deeppool.planning.plan import Plan
from deeppool.records.run_record import RunRecord
from deeppool.scheduling.mechanism_ladder import Rung, mechanism_ladder

BATCH, SMALLER = 4, 1
EQUAL = Sharing(priority="normal")


LADDER = mechanism_ladder(BATCH, SMALLER)
# By itself: the background has the foreground's priority, but for nice.
ALONE = {
    "nice": Rung(Sharing(priority="nice"), BATCH),
    "share 10 %": Rung(Sharing(priority="normal", share=0.1), BATCH),
    "gaps only": Rung(replace(EQUAL, gaps_only=True), BATCH),
    "pacing": Rung(replace(EQUAL, pieces=2, in_flight=0.001), BATCH),
    "feedback 10 %": Rung(replace(EQUAL, feedback=0.1), BATCH),
    "smaller batch": Rung(EQUAL, SMALLER),
}
# The trade-off: what is lost in front against what is gained behind.
BOUNDS = {
    f"bound {100 * bound:g} %": Rung(replace(EQUAL, max_slowdown=bound), BATCH) for bound in (0.01, 0.03, 0.1, 0.3)
}
# The common case: deeppool run --background … --max-slowdown 0.01.
USUAL = {"priority and bound 1 %": Rung(Sharing(max_slowdown=0.01), BATCH)}
RUNGS = {**LADDER, **USUAL, **ALONE, **BOUNDS}
GROUPS = {
    "ladder": tuple(LADDER),
    "usual": tuple(USUAL),
    "alone": tuple(ALONE),
    "trade-off": ("naive", *reversed(BOUNDS), "+ priority", *USUAL),
}
"""Several rows by one name."""
QUICK = ("naive", "+ bound 1 %", "share 10 %")

COLUMNS: dict[str, Callable[[RunRecord], float | None]] = {
    "foreground slowdown": lambda run: 100 * run.foreground.slowdown,
    "± of one run": lambda run: None if (sure := run.foreground.slowdown_margin) is None else 100 * sure,
    "p99 inflation": lambda run: (
        100 * (run.foreground.iteration_time.p99 / run.foreground.alone.iteration_time.p99 - 1)
    ),
    "idle when alone": lambda run: 100 * statistics.mean(run.foreground.alone.idle_share),
    "background harvest": lambda run: 100 * run.background.harvest if run.background else None,
    "harvest of idle": lambda run: 100 * run.background.harvest_of_idle if run.background else None,
    "governor's estimate": lambda run: worst(run, "slowdown"),
    "share in the end": lambda run: 100 * min(found.share for found in run.governors) if run.governors else None,
}


def worst(run: RunRecord, name: str) -> float | None:
    """Percent, of the rank where it is largest."""
    found = [getattr(governor, name) for governor in run.governors]
    return 100 * max(found) if found and None not in found else None


def main() -> None:
    """Measures, prints the tables, saves the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for all records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40.0, help="measuring time of one run")
    parser.add_argument("--background", default="resnet18")
    parser.add_argument(
        "--rungs",
        type=chosen,
        default=tuple(RUNGS),
        metavar="NAME,NAME",
        help=f"rows by name, or all of {', '.join(GROUPS)}; every row unless given",
    )
    parser.add_argument("--figure", type=Path, help="folder for trade-off.html and trade-off.json")
    parser.add_argument("--quick", action="store_true", help="three rows, a second each, to see that it runs")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    rounds, seconds = (1, 1.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    plan = make_plan()
    print(dp.environment(), plan, sep="\n", file=sys.stderr)
    rungs = {name: RUNGS[name] for name in (QUICK if arguments.quick else arguments.rungs)}
    runs: dict[str, list[RunRecord]] = {name: [] for name in rungs}
    for number in range(rounds):
        for name, rung in rungs.items():
            run = dp.launch(
                plan,
                background=arguments.background,
                policy=rung.sharing,
                background_batch=rung.batch,
                seconds=seconds,
            )
            runs[name].append(run)
            print(f"round {number + 1}, {name}\n{run}", file=sys.stderr)
            # After each run: one that is cut short has what it measured.
            records = {name: [serialization.to_json(run) for run in found] for name, found in runs.items() if found}
            serialization.write_text(json.dumps({"runs": records}), arguments.output)
    if arguments.figure is not None:
        figure = dp.figures.trade_off(runs)
        serialization.write_text(figure.to_html(include_plotlyjs=True), arguments.figure / "trade-off.html")
        serialization.write_text(figure.to_json(), arguments.figure / "trade-off.json")
    print(table(runs))


def chosen(names: str) -> tuple[str, ...]:
    """Rows by their own names or their group's, each once."""
    found: dict[str, None] = {}
    for name in (part.strip() for part in names.split(",")):
        if name not in GROUPS and name not in RUNGS:
            raise argparse.ArgumentTypeError(f"no row '{name}': there are {', '.join([*GROUPS, *RUNGS])}")
        found |= dict.fromkeys(GROUPS.get(name, (name,)))
    return tuple(found)


def make_plan() -> Plan:
    """ResNet-18 on two ranks, of which the second leaves the second half of the layers to the first.

    The same on every machine: a rank works, waits for the other one at the end, and helps.
    """
    profile = dp.profile("resnet18", (3, 64, 64), device="cpu", batch_sizes=[4, 8])
    return half_and_half_plan(profile, find_cluster("loopback", 2), global_batch=8)


def table(runs: dict[str, list[RunRecord]]) -> str:
    """Median (smallest … largest) over the rounds, in percent."""
    rows = [f"| mechanisms | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, found in runs.items():
        cells = [spread([column(run) for run in found]) for column in COLUMNS.values()]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def spread(values: list[float | None]) -> str:
    """Median (smallest … largest); nothing where one is not known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return ""
    return f"{statistics.median(known):.1f} ({min(known):.1f} … {max(known):.1f})"


if __name__ == "__main__":
    main()
