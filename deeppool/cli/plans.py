"""``deeppool plan``, ``frontier`` and ``simulate``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeppool.cli.inputs import read_plan, read_profile, warn
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
from deeppool.sharing import POLICIES, Policy, Sharing


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
    from deeppool import documents
    from deeppool.cluster import find_cluster
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
        documents.write(found, output)
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
    from deeppool import documents
    from deeppool.cluster import find_cluster
    from deeppool.planning.planner import frontier as find_frontier
    from deeppool.planning.share import share
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
            documents.write(shared, output)
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
        documents.write(found, output)
    show(found, as_json)


def simulate(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Made by: deeppool plan -o FILE.")],
    background: Annotated[
        str | None,
        typer.Option(help="Profile of a background job that fills the idle time, without interference unless told."),
    ] = None,
    interference: Annotated[
        Path | None,
        typer.Option(help="Made by benchmarks/interference: prices the background beside every GPU with it."),
    ] = None,
    policy: Annotated[
        Policy | None, typer.Option(help="How it shares the GPUs, with --interference (priority unless given).")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Where to save a Chrome/Perfetto trace.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay one iteration of PLAN on a virtual clock: who is busy when, and what a background job could take.

    Example: deeppool simulate plan.json --trace trace.json   (open it in ui.perfetto.dev)
    """
    from deeppool import documents
    from deeppool.figures.trace import write_trace
    from deeppool.simulation.collocated_plan import simulate_collocated_plan
    from deeppool.simulation.interference import Interference
    from deeppool.simulation.replay import simulate as replay

    if interference is None and policy is not None:
        raise typer.BadParameter(
            "it says how a background shares a GPU: give --interference too", param_hint="--policy"
        )
    if interference is not None and (background is None or policy == "none"):
        raise typer.BadParameter("it needs a job: give --background, and no policy none", param_hint="--interference")
    sample_time, job = None, None
    if background is not None:
        job = read_profile(background)
        sample_time = job.iteration_time(job.batch_sizes[-1]) / job.batch_sizes[-1]
    made = read_plan(plan_file)
    found = replay(made, background_sample_time=sample_time)
    priced = None
    if interference is not None and job is not None:
        sharing = POLICIES[policy or "priority"] or Sharing()
        priced = simulate_collocated_plan(made, job, documents.read(interference, Interference), sharing)
    if trace is not None:
        write_trace(trace, found.timeline)
    show(priced or found, as_json)
