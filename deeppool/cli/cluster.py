"""``deeppool cluster``: jobs on the GPUs of a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.inputs import read_plan
from deeppool.cli.options import AsJson, ShapeOption, shape
from deeppool.cli.output import show
from deeppool.cli.training import find_job

cluster = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Run jobs on the GPUs of a cluster: a queue, one foreground and one background job a GPU, a history.\n\n"
    "Ray does the work (pip install 'deeppool\\[cluster]'). One machine is a cluster too; its cores count as GPUs "
    "where it has none.\n\n"
    "  [bold]deeppool cluster start[/bold]\n\n"
    "  [bold]deeppool cluster submit plan.json examples.own_training:job --steps 500[/bold]\n\n"
    "  [bold]deeppool cluster submit --background resnet18 --gpus 2[/bold]\n\n"
    "  [bold]deeppool cluster status[/bold]\n\n"
    "  [bold]deeppool cluster cancel 2[/bold]\n\n"
    "  [bold]deeppool cluster stop[/bold]",
)
JobNumber = Annotated[int, typer.Argument(help="The job's number, as submit and status print it.")]


@cluster.command()
def start(
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Of a Ray that runs, with this machine as a node. Default: a new one."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="Cores of this machine that count as GPUs, where it has none. Default: all of them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a coordinator, and a Ray on this machine for it unless there is one at --address.

    A Ray of this machine listens on the loopback interface only. On several machines, start Ray as its manual says
    (ray start --head on one, ray start --address HOST:PORT on the others), then this command on one of them. All of
    them need deeppool, and the folder that jobs are submitted from.

    Example: deeppool cluster start --gpus 2
    """
    from deeppool.coordinator.client import Coordinator

    with Coordinator.start(address, gpus=gpus) as found:
        show(found.status(), as_json)


@cluster.command()
def submit(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="Of a foreground job; it gets the GPUs that its layers use.")
    ] = None,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="package.module:callable that returns a deeppool.TrainingJob. Default: the plan's model by its name, "
            "measured as by deeppool run.",
        ),
    ] = None,
    background: Annotated[
        str | None, typer.Option(help="Model of a background job, instead of a plan: it fills the time left idle.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs of a background job; it trains on each of them independently.")] = 1,
    input_shape: ShapeOption = None,
    steps: Annotated[
        int | None, typer.Option(help="Updates to make. A background trains until it is cancelled unless given.")
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints, on a disk that all machines share.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a job into the queue. It starts, without stopping any other, when its turn has come and GPUs are free.

    First come, first served: no job passes another, except that foregrounds and backgrounds wait for different places.

    Example: deeppool cluster submit plan.json examples.own_training:job --steps 500 --checkpoints checkpoints

    In the background: deeppool cluster submit --background resnet18 --input-shape 3,64,64 --gpus 2
    """
    from deeppool.coordinator.client import BACKGROUND_BATCH, Coordinator
    from deeppool.job import Job

    if (plan_file is None) == (background is None):
        raise typer.BadParameter("give a PLAN, or --background MODEL")
    wanted = shape(input_shape)
    if plan_file is not None:
        if steps is None:
            raise typer.BadParameter("a foreground job needs --steps")
        plan = read_plan(str(plan_file))
        training = None if job is None else find_job(job)
        with Coordinator() as found:
            number = found.submit(plan, training, steps=steps, checkpoints=checkpoints)
            record = found.status().job(number)
    else:
        assert background is not None
        if isinstance(wanted, dict):
            raise typer.BadParameter("--input-shape of a background job is one shape, for example 3,64,64")
        with Coordinator() as found:
            number = found.submit_background(Job(background, wanted or (), BACKGROUND_BATCH), gpus=gpus, steps=steps)
            record = found.status().job(number)
    show(record, as_json)


@cluster.command()
def status(as_json: AsJson = False) -> None:
    """Say what every GPU and every job does; of ended jobs the last ten, all of them with --json.

    Example: deeppool cluster status
    """
    from deeppool.coordinator.client import Coordinator

    with Coordinator() as found:
        show(found.status(), as_json)


@cluster.command()
def cancel(job: JobNumber, as_json: AsJson = False) -> None:
    """End a job, whether it runs or waits; its processes are gone when the command returns.

    Example: deeppool cluster cancel 3
    """
    from deeppool.coordinator.client import Coordinator

    with Coordinator() as found:
        show(found.cancel(job), as_json)


@cluster.command()
def stop(as_json: AsJson = False) -> None:
    """End every job and the coordinator, and its Ray where deeppool cluster start started it. The history stays.

    Example: deeppool cluster stop
    """
    from deeppool.coordinator.client import Coordinator

    with Coordinator() as found:
        show(found.stop(), as_json)
