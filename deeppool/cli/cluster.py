"""The ``deeppool cluster`` commands: jobs on the GPUs of a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.inputs import read_plan, read_profile
from deeppool.cli.options import AsJson, MinRanksOption, PlansProfileOption, RestartsOption, ShapeOption, refuse, shape
from deeppool.cli.output import show
from deeppool.cli.train import find_job

cluster = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run jobs on the GPUs of a cluster, with a queue and one foreground and, on cores, one background job per "
    "GPU.\n\n"
    "Requires Ray: `pip install 'deeppool[cluster]'`. A single machine works, too; without GPUs, its cores count as "
    "GPUs.\n\n"
    "`deeppool cluster start`\n\n"
    "`deeppool cluster submit plan.json examples.own_training:job --steps 500`\n\n"
    "`deeppool cluster submit --background resnet18 --gpus 2`\n\n"
    "`deeppool cluster status`\n\n"
    "`deeppool cluster cancel 2`\n\n"
    "`deeppool cluster stop`",
)
JobNumber = Annotated[int, typer.Argument(metavar="JOB", help="Job number, as printed by submit and status.")]


@cluster.command()
def start(
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of a running Ray cluster that includes this machine. Default: start a new one.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="Number of cores that count as GPUs on a machine without GPUs. Default: all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a coordinator, and Ray on this machine unless --address is given.

    Ray started by this command listens on the loopback interface only. On several machines, start Ray as described in
    its manual (`ray start --head` on one, `ray start --address HOST:PORT` on the others), then run this command on one
    of them. All machines need deeppool and the folder from which jobs are submitted.

    Example: `deeppool cluster start --gpus 2`
    """
    from deeppool.coordinator.client import Coordinator

    with Coordinator.start(address, gpus=gpus) as found:
        show(found.status(), as_json)


@cluster.command()
def submit(
    plan_file: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN", help="Plan of a foreground job, which gets the GPUs that its layers use."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="package.module:callable that returns a deeppool.TrainingJob. Default: the plan's model, as in "
            "`deeppool run`.",
        ),
    ] = None,
    background: Annotated[
        str | None,
        typer.Option(
            help="Model of a background job for idle time, instead of a plan. Only on cores; a cluster with GPUs "
            "refuses it."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="Number of GPUs of a background job, which trains independently on each. Default: 1."),
    ] = None,
    input_shape: ShapeOption = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of updates. Default for a background job: until it is cancelled.")
    ] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder for checkpoints, shared by all machines.")] = None,
    restarts: RestartsOption = 0,
    min_ranks: MinRanksOption = None,
    profile: PlansProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Queue a job. It starts when it is first in the queue and its GPUs are free, without stopping other jobs.

    Foreground and background jobs have separate queues, each first come, first served.

    Example: `deeppool cluster submit plan.json examples.own_training:job --steps 500 --checkpoints checkpoints`

    A background job: `deeppool cluster submit --background resnet18 --input-shape 3,64,64 --gpus 2`
    """
    from deeppool.coordinator.client import BACKGROUND_BATCH, Coordinator
    from deeppool.job import Job

    if (plan_file is None) == (background is None):
        raise typer.BadParameter("give a PLAN, or --background MODEL")
    wanted = shape(input_shape)
    if plan_file is not None:
        refuse("is for a background job: a plan has its own (leave it out)", gpus=gpus, input_shape=input_shape)
        if steps is None:
            raise typer.BadParameter("a foreground job needs --steps")
        if min_ranks is None:
            refuse("needs --min-ranks", profile=profile)
        plan = read_plan(str(plan_file))
        training = None if job is None else find_job(job)
        with Coordinator() as found:
            number = found.submit(
                plan,
                training,
                steps=steps,
                checkpoints=checkpoints,
                restarts=restarts,
                min_ranks=min_ranks,
                profile=None if profile is None else read_profile(profile),
            )
            record = found.status().job(number)
    else:
        assert background is not None
        refuse(
            "is for a foreground job: a background job has none (leave it out)",
            checkpoints=checkpoints,
            restarts=restarts or None,
            min_ranks=min_ranks,
            profile=profile,
        )
        if isinstance(wanted, dict):
            raise typer.BadParameter("--input-shape of a background job is one shape, for example 3,64,64")
        with Coordinator() as found:
            work = Job(background, wanted or (), BACKGROUND_BATCH)
            number = found.submit_background(work, gpus=1 if gpus is None else gpus, steps=steps)
            record = found.status().job(number)
    show(record, as_json)


@cluster.command()
def status(as_json: AsJson = False) -> None:
    """Show the state of all GPUs and jobs, including the last ten ended jobs (with --json, all of them).

    Example: `deeppool cluster status`
    """
    from deeppool.coordinator.client import Coordinator

    with Coordinator() as found:
        show(found.status(), as_json)


@cluster.command()
def cancel(job: JobNumber, as_json: AsJson = False) -> None:
    """Cancel a running or queued job; its processes have ended when the command returns.

    Example: `deeppool cluster cancel 3`
    """
    from deeppool.coordinator.client import Coordinator

    with Coordinator() as found:
        show(found.cancel(job), as_json)


@cluster.command()
def stop(as_json: AsJson = False) -> None:
    """End all jobs and the coordinator, and Ray if `deeppool cluster start` started it. The history is kept.

    Example: `deeppool cluster stop`
    """
    from deeppool.coordinator import ray_connection
    from deeppool.coordinator.client import Coordinator

    ray_connection.remove_ended()
    with Coordinator() as found:
        show(found.stop(), as_json)
