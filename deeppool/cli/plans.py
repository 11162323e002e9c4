"""The ``deeppool plan`` and ``deeppool frontier`` commands."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeppool.cli.inputs import read_profile, warn
from deeppool.cli.options import (
    AsJson,
    ClusterOption,
    CountsOption,
    MemoryOption,
    NetworkOption,
    OptimizerOption,
    ProfileArgument,
    memory_size,
    refuse_given,
)
from deeppool.cli.output import show
from deeppool.cli.sharing import check_usage, show_sharing


def plan(
    context: typer.Context,
    profile_file: ProfileArgument,
    gpus: Annotated[int, typer.Option(help="GPUs to plan for.")],
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, over all GPUs.")],
    amplification_limit: Annotated[
        float | None,
        typer.Option(help="Maximum GPU-seconds of a layer as a multiple of its time on one GPU (at least 1)."),
    ] = None,
    limit_scope: Annotated[
        Literal["layer", "iteration"],
        typer.Option(help="Whether the limit applies to each layer, as in the paper, or to the whole iteration."),
    ] = "layer",
    goal: Annotated[
        Literal["fastest", "ddp_speed", "cluster_throughput"],
        typer.Option(
            help="ddp_speed: as fast as DDP with the fewest GPU-seconds. cluster_throughput: as fast, "
            "with the most samples/s of this job and of --background in its idle time."
        ),
    ] = "fastest",
    background: Annotated[
        str | None, typer.Option(help="Profile of the background job that cluster_throughput counts.")
    ] = None,
    search: Annotated[
        Literal["exact", "published"],
        typer.Option(
            help="published is the algorithm of DeepPool's paper with the same costs, for comparison: its plan may be "
            "slower and exceed the limit and the memory."
        ),
    ] = "exact",
    gpu_counts: CountsOption = "powers",
    cluster: ClusterOption = None,
    network_model: NetworkOption = None,
    optimizer: OptimizerOption = "momentum",
    memory: MemoryOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the plan (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest plan within the amplification limit and GPU memory, and explain it.

    Each GPU holds parameters, gradients, optimizer state and saved activations. If the fastest plan does not fit into
    memory, the result is the fastest plan found that does, with a bound on its distance from the optimum.

    Example: `deeppool plan vgg16.json --gpus 8 --global-batch 32 --amplification-limit 2 --cluster dgx-a100`

    As fast as data parallelism, with the fewest GPU-seconds: `deeppool plan … --goal ddp_speed`

    With the paper's algorithm: `deeppool plan … --search published`

    In the paper's cost model, without overlap or buckets: `deeppool plan … --network-model paper`
    """
    from deeppool.planning.planner import plan as make_plan
    from deeppool.profiling.default_cluster import cluster_for
    from deeppool.profiling.shipped import find_profile

    if amplification_limit is None:
        refuse_given(context, "is of a limit (give --amplification-limit too)", "limit_scope")
    bytes_per_gpu = memory_size(memory)
    times = find_profile(profile_file)  # the plan includes its caveats
    place = cluster_for(times, gpus, cluster)
    found = make_plan(
        times,
        place,
        global_batch,
        amplification_limit,
        limit_scope=limit_scope,
        goal=goal,
        background=None if background is None else read_profile(background),
        search=search,
        gpu_counts=gpu_counts,
        network_model=network_model,
        optimizer=optimizer,
        memory=bytes_per_gpu,
    )
    show(found, as_json, lambda: f"{found.explain()}\n\n{found.explain_memory()}", output=output)


def frontier(
    profile_file: ProfileArgument,
    gpus: Annotated[int, typer.Option(help="GPUs to plan for.")],
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, over all GPUs.")],
    gpu_counts: CountsOption = "powers",
    cluster: ClusterOption = None,
    network_model: NetworkOption = None,
    optimizer: OptimizerOption = "momentum",
    memory: MemoryOption = None,
    background: Annotated[
        str | None,
        typer.Option(
            help="Profile of a background job for the idle time; compares foreground speed-up and cluster throughput."
        ),
    ] = None,
    background_batch: Annotated[
        int | None, typer.Option(help="Background's batch on each GPU. Default: the largest of its profile that fits.")
    ] = None,
    harvest_of_idle: Annotated[
        float | None,
        typer.Option(
            help="Fraction of the idle time that the background can use, 0 to 1, as measured by a run. Default: 1, "
            "without interference."
        ),
    ] = None,
    min_background: Annotated[
        float | None,
        typer.Option(help="Print the fastest plan with at least this background throughput, in samples/s."),
    ] = None,
    min_speedup: Annotated[
        float | None,
        typer.Option(
            help="Print the plan with the highest cluster throughput and at least this speed-up over one GPU."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the frontier (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find all efficient plans: iteration time against GPU-seconds.

    To get the plan of a point with amplification A: `deeppool plan … --limit-scope iteration --amplification-limit A`.
    The output states by how much plans that were not found could be better (bound), lists the memory of each plan
    (--json) and counts plans that do not fit.

    With --background, compares foreground speed-up and cluster throughput with static partitions of the cluster
    (DeepPool, figure 10). --min-background or --min-speedup then selects one plan.

    Example: `deeppool frontier vgg16.json --gpus 8 --global-batch 32 --cluster dgx-a100`

    Example: `deeppool frontier vgg16.json --gpus 8 --global-batch 32 --background resnet18.json --min-speedup 3`
    """
    from deeppool.base import serialization
    from deeppool.planning.planner import frontier as find_frontier
    from deeppool.planning.studies.collocation_tradeoff import share
    from deeppool.profiling.default_cluster import cluster_for
    from deeppool.profiling.shipped import find_profile

    check_usage(
        background,
        background_batch=background_batch,
        harvest_of_idle=harvest_of_idle,
        min_background=min_background,
        min_speedup=min_speedup,
    )
    bytes_per_gpu = memory_size(memory)
    times = find_profile(profile_file)  # the frontier includes its caveats
    place = cluster_for(times, gpus, cluster)
    if background is not None:
        warn(times.caveats())
        shared = share(
            times,
            place,
            global_batch,
            read_profile(background),
            background_batch=background_batch,
            harvest_of_idle=1.0 if harvest_of_idle is None else harvest_of_idle,
            gpu_counts=gpu_counts,
            network_model=network_model,
            optimizer=optimizer,
            memory=bytes_per_gpu,
        )
        try:
            show_sharing(shared, min_background, min_speedup, as_json)
        finally:
            if output is not None:
                serialization.write(shared, output)
        return
    found = find_frontier(
        times,
        place,
        global_batch,
        gpu_counts=gpu_counts,
        network_model=network_model,
        optimizer=optimizer,
        memory=bytes_per_gpu,
    )
    show(found, as_json, output=output)
