"""The ``deeppool cluster import`` command: a published trace as a workload."""

import os
from os.path import exists
from pathlib import Path
from typing import Annotated, Literal

import typer

from deeppool.cli.inputs import read_profile
from deeppool.cli.options import AsJson, ClusterOption, refuse_given
from deeppool.cli.output import show


def import_trace(
    context: typer.Context,
    trace_format: Annotated[
        Literal["philly", "helios", "pai"],
        typer.Argument(
            metavar="FORMAT",
            help="philly: cluster_job_log; helios: cluster_log.csv; pai: pai_task_table.csv of Alibaba.",
        ),
    ],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File of the published trace.")],
    profiles: Annotated[
        list[str],
        typer.Option("--profile", help="Profile, by file or name, to draw the jobs' models from; give several times."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the workload (JSON).")],
    gpus: Annotated[int, typer.Option(help="GPUs of the cluster; larger jobs are left out.")],
    cluster: ClusterOption = None,
    batch: Annotated[
        int, typer.Option(help="Samples per GPU and iteration; of a background at most its profile's largest.")
    ] = 32,
    background_gpus: Annotated[int, typer.Option(help="Jobs of at most so many GPUs become background jobs.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Number of jobs to take. Default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the draw of models.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a workload of a published trace of a GPU cluster, for `deeppool cluster simulate`.

    A published trace has no models: each job gets one of the profiles, and as many iterations as data parallelism does
    in its recorded duration.

    Example: `deeppool cluster import helios cluster_log.csv --profile resnet50.json --gpus 1024 -o workload.json`
    """
    from deeppool.profiling.default_cluster import cluster_for
    from deeppool.simulation.cluster.public_traces import import_trace as make_workload

    known = {_beside(name, output): read_profile(name) for name in profiles}
    if len(known) == 1:
        refuse_given(context, "is of the draw of models, and there is one (give --profile several times)", "seed")
    found = make_workload(
        path,
        trace_format,
        known,
        cluster_for(next(iter(known.values())), gpus, cluster),
        per_gpu_batch=batch,
        background_gpus=background_gpus,
        jobs=jobs,
        seed=seed,
    )
    show(found, as_json, output=output)


def _beside(name: str, output: Path) -> str:
    """Returns a profile's file as seen from the workload's folder, or the name of a shipped profile as it is."""
    return os.path.relpath(name, output.parent) if exists(name) else name
