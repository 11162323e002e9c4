"""``deeppool plan`` and ``frontier``."""

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
    default_cluster,
    memory_size,
)
from deeppool.cli.output import show
from deeppool.cli.sharing import (
    BackgroundBatchOption,
    BackgroundOption,
    HarvestOption,
    MinBackgroundOption,
    MinSpeedupOption,
    check_usage,
    show_sharing,
)


def plan(
    profile_file: ProfileArgument,
    gpus: Annotated[int, typer.Option(help="GPUs to plan for.")],
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, over all GPUs.")],
    amplification_limit: Annotated[
        float | None,
        typer.Option(help="The most GPU-seconds a layer may spend, as a multiple of its time on one GPU (at least 1)."),
    ] = None,
    limit_scope: Annotated[
        Literal["layer", "iteration"],
        typer.Option(help="Whether every layer keeps the limit, as in the paper, or all of them together."),
    ] = "layer",
    search: Annotated[
        Literal["exact", "published"],
        typer.Option(
            help="published is the algorithm of DeepPool's paper on the same prices, for comparison: its plan may be "
            "slower and break the limit."
        ),
    ] = "exact",
    gpu_counts: CountsOption = "powers",
    cluster: ClusterOption = None,
    network_model: NetworkOption = None,
    optimizer: OptimizerOption = "momentum",
    memory: MemoryOption = None,
    overlap_sync: Annotated[
        bool,
        typer.Option(
            "--overlap-sync",
            help="All-reduces of gradients overlap the backward pass, at no cost to it; otherwise all waits for them, "
            "as in the paper. The limit counts them in full either way.",
        ),
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to save the plan (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest plan whose layers keep the amplification limit and fit into memory, and say why.

    Each GPU holds parameters, gradients, the optimizer's state and what the forward keeps for the backward. Where
    the fastest plan does not fit, the fastest found that does is given, with how far from the best it may be.

    Example: deeppool plan vgg16.json --gpus 8 --global-batch 32 --amplification-limit 2 --cluster dgx-a100

    What the paper's algorithm makes of the same: deeppool plan … --search published
    With all-reduces behind the backward pass: the same and --overlap-sync
    """
    from deeppool.base import serialization
    from deeppool.cluster.cluster import find_cluster
    from deeppool.planning.planner import plan as make_plan
    from deeppool.profiling.shipped import find_profile

    bytes_per_gpu = memory_size(memory)
    times = find_profile(profile_file)  # the plan says what is uncertain about it
    place = find_cluster(cluster or default_cluster(times.device, times.device_name), gpus)
    found = make_plan(
        times,
        place,
        global_batch,
        amplification_limit,
        limit_scope=limit_scope,
        search=search,
        gpu_counts=gpu_counts,
        network_model=network_model,
        optimizer=optimizer,
        memory=bytes_per_gpu,
        overlap_sync=overlap_sync,
    )
    if output is not None:
        serialization.write(found, output)
    show(found, as_json, lambda: f"{found.explain()}\n\n{found.explain_memory()}")


def frontier(
    profile_file: ProfileArgument,
    gpus: Annotated[int, typer.Option(help="GPUs to plan for.")],
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, over all GPUs.")],
    gpu_counts: CountsOption = "powers",
    cluster: ClusterOption = None,
    network_model: NetworkOption = None,
    optimizer: OptimizerOption = "momentum",
    memory: MemoryOption = None,
    background: BackgroundOption = None,
    background_batch: BackgroundBatchOption = None,
    harvest_of_idle: HarvestOption = None,
    min_background: MinBackgroundOption = None,
    min_speedup: MinSpeedupOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to save the frontier (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find every efficient plan at once: iteration time against GPU-seconds.

    A point of amplification 1 or more is a plan: deeppool plan … --limit-scope iteration --amplification-limit A
    Each point says how much memory its plan needs (--json), and how many do not fit is said.

    With --background, foreground speed-up against cluster throughput instead, beside static partitions of the
    cluster (DeepPool's figure 10); with --min-background or --min-speedup too, the one plan that answers.

    Example: deeppool frontier vgg16.json --gpus 8 --global-batch 32 --cluster dgx-a100

    Example: deeppool frontier vgg16.json --gpus 8 --global-batch 32 --background resnet18.json --min-speedup 3
    """
    from deeppool.base import serialization
    from deeppool.cluster.cluster import find_cluster
    from deeppool.planning.planner import frontier as find_frontier
    from deeppool.planning.studies.collocation_tradeoff import share
    from deeppool.profiling.shipped import find_profile

    check_usage(
        background,
        background_batch=background_batch,
        harvest_of_idle=harvest_of_idle,
        min_background=min_background,
        min_speedup=min_speedup,
    )
    bytes_per_gpu = memory_size(memory)
    times = find_profile(profile_file)  # the frontier says what is uncertain about it
    place = find_cluster(cluster or default_cluster(times.device, times.device_name), gpus)
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
        )
        if output is not None:
            serialization.write(shared, output)
        show_sharing(shared, min_background, min_speedup, as_json)
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
    if output is not None:
        serialization.write(found, output)
    show(found, as_json)
