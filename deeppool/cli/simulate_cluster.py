"""The ``deeppool cluster simulate`` command: the jobs of a workload on a cluster, on a virtual clock."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from deeppool.cli.conditions import (
    DelayOption,
    InterferenceOption,
    JitterOption,
    SeedOption,
    SharingOption,
    SpeedOption,
    StragglingOption,
    conditions,
    read_interference,
    refuse_unused,
)
from deeppool.cli.options import AsJson, ClusterOption, SlowdownOption, refuse
from deeppool.cli.output import progress, show

Strategy = Literal["data-parallel", "partition", "burst-parallel", "collocated", "all"]


def simulate_cluster(
    context: typer.Context,
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="Workload trace; `deeppool cluster import` makes one of a public trace."),
    ],
    gpus: Annotated[int, typer.Option(help="GPUs of the cluster.")],
    cluster: ClusterOption = None,
    strategy: Annotated[
        Strategy,
        typer.Option(
            help="data-parallel and burst-parallel: foregrounds use their GPUs exclusively; partition: data-parallel "
            "foregrounds on --foreground-gpus, backgrounds on the others; collocated: burst-parallel foregrounds with "
            "backgrounds in their idle time; all: compare them."
        ),
    ] = "collocated",
    foreground_gpus: Annotated[int | None, typer.Option(help="GPUs of a partition's foregrounds.")] = None,
    interference: InterferenceOption = None,
    policy: SharingOption = None,
    max_slowdown: SlowdownOption = None,
    speed: SpeedOption = None,
    jitter: JitterOption = 0.0,
    straggling: StragglingOption = 0.0,
    delay: DelayOption = 1.0,
    seed: SeedOption = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the record (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate the jobs of a workload TRACE: completion time of each job, throughput of the cluster.

    Foregrounds use as many of their GPUs as they are fastest on. A data-parallel one whose batch does not fit into
    memory accumulates gradients over micro-steps.

    Example: `deeppool cluster simulate examples/workload.json --gpus 64 --strategy all`

    Write a trace in Python: `dp.save(dp.WorkloadTrace(name, method, (dp.TraceJob(…), …)), "trace.json")`
    """
    from deeppool.base import serialization
    from deeppool.cluster.cluster import find_cluster
    from deeppool.simulation.cluster.comparison import compare_strategies
    from deeppool.simulation.cluster.simulate import simulate_cluster as simulate
    from deeppool.simulation.cluster.workload import WorkloadTrace, load_sources

    if (strategy == "partition") != (foreground_gpus is not None):
        raise typer.BadParameter("goes with --strategy partition, and that with it", param_hint="--foreground-gpus")
    if strategy not in ("collocated", "all"):
        refuse(
            f"is of GPUs that two jobs share, and --strategy {strategy} has none (leave it out)",
            interference=interference,
            policy=policy,
            max_slowdown=max_slowdown,
        )
    measured = read_interference(interference, policy, max_slowdown)
    given = conditions(speed, jitter=jitter, straggling=straggling, delay=delay, seed=seed)
    refuse_unused(context, given, "--jitter or --straggling")
    workload = serialization.read(trace, WorkloadTrace)
    sources = load_sources(workload, trace.parent)
    options: dict[str, Any] = {
        "sources": sources,
        "interference": measured,
        "policy": policy or "priority",
        "max_slowdown": max_slowdown,
        "conditions": None if given.as_planned else given,
    }
    machines = gpus if cluster is None else find_cluster(cluster, gpus)
    found: serialization.Record
    with progress() as report:
        if strategy == "all":
            found = compare_strategies(workload, machines, on_progress=report, **options)
        else:
            how: dict[str, Any] = {"strategy": strategy, "foreground_gpus": foreground_gpus}
            found = simulate(workload, machines, on_progress=report, **how, **options)
    show(found, as_json, output=output)
