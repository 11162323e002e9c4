"""What would a background job on every GPU of a plan cost the foreground, and get done? Measured on one GPU.

Plans each model for a cluster, runs every rank of the plan that differs from the others in turn (see ``deeppool run
--emulate-rank``), alone and beside the background, and adds up what the whole cluster would do. All of it is emulated:
transfers, all-reduces and the other ranks are modelled waits.

    python benchmarks/emulation/main.py -o results.json           # on a GPU: the paper's three models on eight
    python benchmarks/emulation/main.py -o results.json --quick   # on a CPU: a small model, does the script run?
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import deeppool as dp
from deeppool.base import serialization
from deeppool.planning.plan import Plan
from deeppool.profiling.default_cluster import cluster_for
from deeppool.records.run_record import RunRecord

MODELS = ("vgg16", "wide_resnet101_2", "inception_v3")
SHAPES = {"inception_v3": (3, 299, 299)}


@dataclass(frozen=True, slots=True)
class Share:
    """Ranks of a plan that compute the same layers on as many samples, and the run of one of them."""

    ranks: tuple[int, ...]
    run: RunRecord


@dataclass(frozen=True, slots=True)
class Cluster:
    """What all ranks would do together."""

    slowdown: float
    """Of the foreground: the rank that suffers most holds up the others."""
    harvest: float
    """Of the background, a mean over all ranks: its throughput over what it reaches with every GPU to itself."""

    @property
    def throughput(self) -> float:
        """Of both jobs, each as a part of what it reaches alone (DeepPool, figures 9 and 10): 2 would be free."""
        return 1 / (1 + self.slowdown) + self.harvest


def main() -> None:
    """Measures, prints a table for each model, saves the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for all records")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--limit", type=float, default=2.0, help="amplification limit of the plans")
    parser.add_argument("--background", help="model of the background job; the foreground's unless given")
    parser.add_argument("--policy", help="how the background shares the GPU")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--seconds", type=float, default=30.0, help="measuring time of one rank")
    parser.add_argument("--quick", action="store_true", help="a small model on four GPUs, on the CPU")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    if arguments.quick:
        arguments.models, arguments.gpus, arguments.global_batch = ["examples.two_branch:two_branch"], 4, 32
        arguments.precision, arguments.seconds = "fp32", 4.0
    print(dp.environment(), file=sys.stderr)
    records = {}
    for model in arguments.models:
        plan = make_plan(model, arguments)
        shares = list(measure(plan, arguments))
        records[model] = [serialization.to_json(share.run) for share in shares]
        print(f"\n{plan}\n{table(shares)}\n")
    serialization.write_text(json.dumps(records), arguments.output)


def make_plan(model: str, arguments: argparse.Namespace) -> Plan:
    """Of times measured here."""
    per_gpu = -(-arguments.global_batch // arguments.gpus)
    sizes = sorted({per_gpu, *(per_gpu * 2**power for power in range(1, 4)), arguments.global_batch})
    profile = dp.profile(
        model,
        SHAPES.get(model) if not arguments.quick else None,
        device="cpu" if arguments.quick else "auto",
        batch_sizes=[size for size in sizes if size <= arguments.global_batch],
        precision=arguments.precision,
    )
    cluster = cluster_for(profile, arguments.gpus)
    return dp.plan(profile, cluster, arguments.global_batch, arguments.limit)


def measure(plan: Plan, arguments: argparse.Namespace) -> Iterator[Share]:
    """One run for all ranks that are alike."""
    for ranks in alike(plan):
        run = dp.launch(
            plan,
            background=arguments.background or plan.model,
            policy=arguments.policy,
            seconds=arguments.seconds,
            emulate_rank=ranks[0],
        )
        print(run, file=sys.stderr)
        yield Share(ranks, run)


def alike(plan: Plan) -> list[tuple[int, ...]]:
    """Ranks with the same layers and as many samples in each; those without a layer too."""
    found = defaultdict(list)
    for rank in range(plan.gpus):
        layers = [index for index, layer in enumerate(plan.layers) if rank in layer.gpus]
        found[tuple((index, samples(plan, index, rank)) for index in layers)].append(rank)
    return [tuple(ranks) for ranks in found.values()]


def samples(plan: Plan, layer: int, rank: int) -> int:
    """Of a rank in a layer: the first ranks have one more where they do not divide evenly."""
    size, larger = divmod(plan.global_batch, plan.layers[layer].gpu_count)
    return size + (plan.layers[layer].gpus.index(rank) < larger)


def together(shares: list[Share]) -> Cluster:
    """All ranks of a plan."""
    ranks = sum(len(share.ranks) for share in shares)
    harvests = [len(share.ranks) * share.run.background.harvest for share in shares if share.run.background]
    return Cluster(max(share.run.foreground.slowdown for share in shares), sum(harvests) / ranks)


def table(shares: list[Share]) -> str:
    """A row for ranks that are alike, then the cluster."""
    rows = [
        "| ranks (emulated) | foreground alone, p50 | idle | foreground slowdown | background harvest | of idle |",
        "|---|---|---|---|---|---|",
    ]
    for share in shares:
        front, back = share.run.foreground, share.run.background
        assert back is not None
        rows.append(
            f"| {', '.join(map(str, share.ranks))} | {1e3 * front.alone.iteration_time.p50:.4g} ms "
            f"| {100 * front.alone.idle_share[0]:.0f} % | {100 * front.slowdown:.1f} % | {100 * back.harvest:.0f} % "
            f"| {100 * back.harvest_of_idle:.0f} % |"
        )
    whole = together(shares)
    planned = share.run.plan_iteration_time
    rows.append(
        f"| all, planned {1e3 * planned:.4g} ms | | | {100 * whole.slowdown:.1f} % (worst) "
        f"| {100 * whole.harvest:.0f} % (mean) | |"
    )
    return "\n".join([*rows, "", f"Sum of normalised throughputs, emulated: {whole.throughput:.2f}"])


if __name__ == "__main__":
    main()
