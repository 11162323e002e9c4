"""``deeppool train``."""

import importlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deeppool.cli.options import AsJson, PolicyOption, SlowdownOption
from deeppool.cli.output import progress, show
from deeppool.cli.torchrun import torchrun_workers
from deeppool.errors import InvalidValueError, RunError

if TYPE_CHECKING:
    from deeppool.collocation.job_queue import BackgroundJob
    from deeppool.planning.plan import Plan
    from deeppool.training.training_job import TrainingJob


def train(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Made for the job: see the example.")],
    job: Annotated[str, typer.Argument(help="package.module:callable that returns a deeppool.TrainingJob.")],
    steps: Annotated[int, typer.Option(help="Updates that the training shall have made in the end.")],
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; the training goes on from the latest one there.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Updates between two checkpoints.")] = 100,
    keep: Annotated[int, typer.Option(help="Checkpoints that stay.")] = 2,
    restarts: Annotated[int, typer.Option(help="How often to start again after a rank died or hung.")] = 0,
    background: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB|MODEL",
            help="To train in the gaps, on one rank: package.module:callable that returns a deeppool.TrainingJob, or a "
            "model's name. Give it several times for a queue.",
        ),
    ] = None,
    background_batch: Annotated[int, typer.Option(help="Samples of a step of a background job.")] = 4,
    background_steps: Annotated[
        int | None, typer.Option(help="Updates of each background job; none: until the training ends.")
    ] = None,
    background_checkpoints: Annotated[
        Path | None, typer.Option(help="Folder with one folder of checkpoints for each background job, which goes on.")
    ] = None,
    background_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most that a background job may hold, for example 2GB.")
    ] = None,
    background_restarts: Annotated[
        int, typer.Option(help="How often to start a background job again after it crashed or hung.")
    ] = 0,
    policy: PolicyOption = None,
    max_slowdown: SlowdownOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to save the record (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Train JOB by PLAN on this machine, as one process would on the global batch.

    Ctrl-C, kill or a fault ends every process; the same command goes on from the last checkpoint, and so does one
    with a plan for another number of ranks.

    Example: deeppool train plan.json examples.own_training:job --steps 200 --checkpoints checkpoints

    Other trainings can run in the gaps that the plan leaves idle: each rank's free place takes the next background job.

    Example: deeppool train plan.json examples.own_training:job --steps 200 --background examples.own_training:job
    --background-memory 2GB --background-restarts 1 --background-checkpoints others

    On several nodes, the same command on each of them, under torchrun, for a plan of as many ranks:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST -m deeppool.cli train plan.json
    examples.own_training:job --steps 200 --checkpoints /shared/checkpoints

    Rank 0 reads the plan, makes the job and speaks for all; each node needs the code of the job, and the folder of
    checkpoints must be one that all nodes share.
    """
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.runs.train import train as run

    with torchrun_workers() as started:
        if output is not None:
            serialization.check_writable(output)
        plan = serialization.read(plan_file, Plan)
        with progress() as report:
            try:
                record = run(
                    plan,
                    find_job(job),
                    steps=steps,
                    checkpoints=checkpoints,
                    checkpoint_every=checkpoint_every,
                    keep=keep,
                    restarts=restarts,
                    launcher=started.launcher(plan.device, plan.gpus) if started else None,
                    background=find_background(
                        background or [],
                        plan,
                        batch=background_batch,
                        steps=background_steps,
                        checkpoints=background_checkpoints,
                        memory=background_memory,
                        restarts=background_restarts,
                    ),
                    policy=policy,
                    max_slowdown=max_slowdown,
                    on_progress=report,
                )
            except KeyboardInterrupt:
                kept = (
                    f"what was saved is in {checkpoints}" if checkpoints else "nothing was saved (give --checkpoints)"
                )
                raise RunError(f"interrupted; every process of the training was ended, {kept}") from None
        if output is not None:
            serialization.write(record, output)
        show(record, as_json)


def find_job(reference: str) -> "TrainingJob":
    """The job that a user's callable returns. The current folder is importable."""
    from deeppool.training.training_job import TrainingJob

    found = _call(reference)
    if not isinstance(found, TrainingJob):
        raise InvalidValueError(f"job '{reference}' returned a {type(found).__name__}, expected a deeppool.TrainingJob")
    return found


def find_own(reference: str) -> "TrainingJob | None":
    """A training that a user's callable returns; None for a model, by name or by its callable."""
    from deeppool.training.training_job import TrainingJob

    found = _call(reference) if ":" in reference else None
    return found if isinstance(found, TrainingJob) else None


def find_background(
    references: Sequence[str],
    plan: "Plan",
    *,
    batch: int,
    steps: int | None,
    checkpoints: Path | None,
    memory: str | None,
    restarts: int,
) -> "list[BackgroundJob] | None":
    """Background jobs by their models' names or their callables, each with a folder of checkpoints of its own."""
    from deeppool.collocation.job_queue import BackgroundJob, synthetic_job

    jobs = []
    for number, reference in enumerate(references):
        job = find_own(reference) or replace(synthetic_job(reference, plan), batch=batch)
        folder = None if checkpoints is None else checkpoints / f"{number}-{re.sub(r'[^A-Za-z0-9]+', '-', reference)}"
        jobs.append(BackgroundJob(job, batch=batch, steps=steps, checkpoints=folder, memory=memory, restarts=restarts))
    return jobs or None


def _call(reference: str) -> Any:
    """What ``package.module:callable`` returns."""
    from deeppool.graph.models.torchvision_operators import define_missing_operators

    module, colon, attribute = reference.partition(":")
    if not colon:
        raise InvalidValueError(f"JOB must be package.module:callable, got '{reference}'")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        define_missing_operators()
        return getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # the user's module may raise anything
        raise InvalidValueError(
            f"cannot make job '{reference}': {type(error).__name__}: {error} "
            f"(is {os.getcwd()} the folder that holds it?)"
        ) from error
