"""``deeppool plan``, ``frontier`` and ``simulate``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeppool.cli.options import AsJson, ClusterOption, CountsOption, NetworkOption, ProfileArgument, default_cluster
from deeppool.cli.output import show


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
    gpu_counts: CountsOption = "powers",
    cluster: ClusterOption = None,
    network_model: NetworkOption = "ring",
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
    """Find the fastest plan whose layers keep the amplification limit, and say why each layer got its GPUs.

    Example: deeppool plan vgg16.json --gpus 8 --global-batch 32 --amplification-limit 2 --cluster dgx-a100

    With all-reduces behind the backward pass: the same and --overlap-sync
    """
    from deeppool import documents
    from deeppool.cluster import find_cluster
    from deeppool.planning.planner import plan as make_plan
    from deeppool.profiling.table import Profile

    times = documents.read(profile_file, Profile)
    place = find_cluster(cluster or default_cluster(times.device), gpus)
    found = make_plan(
        times,
        place,
        global_batch,
        amplification_limit,
        limit_scope=limit_scope,
        gpu_counts=gpu_counts,
        network_model=network_model,
        overlap_sync=overlap_sync,
    )
    if output is not None:
        documents.write(found, output)
    show(found, as_json, found.explain)


def frontier(
    profile_file: ProfileArgument,
    gpus: Annotated[int, typer.Option(help="GPUs to plan for.")],
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, over all GPUs.")],
    gpu_counts: CountsOption = "powers",
    cluster: ClusterOption = None,
    network_model: NetworkOption = "ring",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to save the frontier (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find every efficient plan at once: iteration time against GPU-seconds.

    A point of amplification 1 or more is a plan: deeppool plan … --limit-scope iteration --amplification-limit A

    Example: deeppool frontier vgg16.json --gpus 8 --global-batch 32 --cluster dgx-a100
    """
    from deeppool import documents
    from deeppool.cluster import find_cluster
    from deeppool.planning.planner import frontier as find_frontier
    from deeppool.profiling.table import Profile

    times = documents.read(profile_file, Profile)
    place = find_cluster(cluster or default_cluster(times.device), gpus)
    found = find_frontier(times, place, global_batch, gpu_counts=gpu_counts, network_model=network_model)
    if output is not None:
        documents.write(found, output)
    show(found, as_json)


def simulate(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Made by: deeppool plan -o FILE.")],
    background: Annotated[
        Path | None,
        typer.Option(help="Profile of a background job that fills the idle time (no interference modelled)."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Where to save a Chrome/Perfetto trace.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay one iteration of PLAN on a virtual clock: who is busy when, and what a background job could take.

    Example: deeppool simulate plan.json --trace trace.json   (open it in ui.perfetto.dev)
    """
    from deeppool import documents
    from deeppool.figures.trace import write_trace
    from deeppool.planning.plan import Plan
    from deeppool.profiling.table import Profile
    from deeppool.simulation.replay import simulate as replay

    sample_time = None
    if background is not None:
        job = documents.read(background, Profile)
        sample_time = job.iteration_time(job.batch_sizes[-1]) / job.batch_sizes[-1]
    found = replay(documents.read(plan_file, Plan), background_sample_time=sample_time)
    if trace is not None:
        write_trace(trace, found.timeline)
    show(found, as_json)
