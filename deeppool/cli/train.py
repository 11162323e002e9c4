"""The ``deeppool train`` command."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deeppool.cli.inputs import read_profile
from deeppool.cli.options import (
    AsJson,
    MinRanksOption,
    PlansProfileOption,
    PolicyOption,
    RestartsOption,
    SlowdownOption,
    refuse,
    refuse_given,
)
from deeppool.cli.output import progress, show
from deeppool.cli.torchrun import torchrun_workers
from deeppool.errors import InvalidValueError
from deeppool.processes.fork_server_client import import_and_fork

if TYPE_CHECKING:
    from deeppool.collocation.job_queue import BackgroundJob
    from deeppool.collocation.trials import Trials
    from deeppool.planning.plan import Plan
    from deeppool.training.training_job import TrainingJob


def train(
    context: typer.Context,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan for the job's model.")],
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="package.module:callable that returns a deeppool.TrainingJob.")
    ],
    steps: Annotated[int, typer.Option(help="Total number of updates, including those before a resumed checkpoint.")],
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; the training resumes from the latest one.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Number of updates between two checkpoints.")] = 100,
    keep: Annotated[int, typer.Option(help="Number of checkpoints to keep.")] = 2,
    restarts: RestartsOption = 0,
    min_ranks: MinRanksOption = None,
    profile: PlansProfileOption = None,
    background: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB|MODEL",
            help="Background job for the idle time of one rank: package.module:callable that returns a "
            "deeppool.TrainingJob or a deeppool.Trials, or a model's name. Repeat the option for a queue.",
        ),
    ] = None,
    background_batch: Annotated[
        int | None, typer.Option(help="Samples per step of a background job. Default: 4.")
    ] = None,
    background_steps: Annotated[
        int | None, typer.Option(help="Updates of each background job. Default: until the training ends.")
    ] = None,
    background_checkpoints: Annotated[
        Path | None,
        typer.Option(help="Folder with a checkpoint folder for each background job, which resumes from it."),
    ] = None,
    background_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Maximum memory of a background job, for example 2GB.")
    ] = None,
    background_restarts: Annotated[
        int, typer.Option(help="Maximum number of restarts of a background job that crashed or hung.")
    ] = 0,
    policy: PolicyOption = None,
    max_slowdown: SlowdownOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the record (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Train JOB by PLAN; the updates equal those of one process on the global batch.

    Ctrl-C, kill or a fault ends every process. The same command resumes from the last checkpoint, also with a plan for
    another number of ranks.

    Example: `deeppool train plan.json examples.own_training:job --steps 200 --checkpoints checkpoints`

    Background jobs train in the idle time of the plan; each rank takes the next job of the queue.

    Example: `deeppool train plan.json examples.own_training:job --steps 200 --background examples.own_training:job
    --background-memory 2GB --background-restarts 1 --background-checkpoints others`

    On several nodes, run the command under torchrun on each node, with one process per rank of the plan: `torchrun
    --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST -m deeppool.cli train plan.json
    examples.own_training:job --steps 200 --checkpoints /shared/checkpoints`

    Go on when a GPU is lost: `deeppool train plan.json examples.own_training:job --steps 200 --checkpoints checkpoints
    --restarts 10 --min-ranks 1 --profile profile.json`; under torchrun also with `--nnodes MIN:MAX --max-restarts 10`.

    torchrun's network must be private: between nodes, jobs and gradients are not encrypted.

    Only rank 0 reads the plan and creates the job. Each node needs the job's code, and all nodes must share the
    checkpoint folder.
    """
    if checkpoints is None:
        refuse_given(context, "needs --checkpoints", "checkpoint_every", "keep")
    if not background or policy == "none":
        refuse(
            "needs --background JOB" if not background else "is for a background job, and --policy none runs none",
            background_batch=background_batch,
            background_steps=background_steps,
            background_checkpoints=background_checkpoints,
            background_memory=background_memory,
            background_restarts=background_restarts or None,
        )
    if min_ranks is None:
        refuse("needs --min-ranks", profile=profile)
    import_and_fork("deeppool.runs.train", "deeppool.execution.worker")
    from deeppool.advice.card import text_with_card
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.runs.train import train as run

    with torchrun_workers(output) as started:
        plan = serialization.read(plan_file, Plan)
        kept = (
            f"the same command goes on from the last checkpoint in {checkpoints}, if there is one yet (one every "
            f"{checkpoint_every} updates)"
            if checkpoints
            else "nothing was saved (give --checkpoints)"
        )
        with progress(f"interrupted; every process of the training was ended, {kept}") as report:
            record = run(
                plan,
                find_job(job),
                steps=steps,
                checkpoints=checkpoints,
                checkpoint_every=checkpoint_every,
                keep=keep,
                restarts=restarts,
                min_ranks=min_ranks,
                profile=None if profile is None else read_profile(profile),
                launcher=started.launcher(plan.device, plan.gpus, min_ranks=min_ranks) if started else None,
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
        show(record, as_json, lambda: text_with_card(record, plan, str(plan_file)), output=output)


def find_job(reference: str) -> "TrainingJob":
    """Calls a user's function and returns its job; the current folder is on the import path."""
    from deeppool.training.training_job import TrainingJob

    found = _call(reference)
    if not isinstance(found, TrainingJob):
        raise InvalidValueError(
            f"job '{reference}' returned a {type(found).__name__}, expected a deeppool.TrainingJob "
            "(examples/own_training.py makes one)"
        )
    return found


def find_own(reference: str) -> "TrainingJob | None":
    """The training job that a user's callable returns; None for a model's name or a callable that returns a model."""
    from deeppool.training.training_job import TrainingJob

    found = _call(reference) if ":" in reference else None
    return found if isinstance(found, TrainingJob) else None


def find_background(
    references: Sequence[str],
    plan: "Plan",
    *,
    batch: int | None,
    steps: int | None,
    checkpoints: Path | None,
    memory: str | None,
    restarts: int,
) -> "list[BackgroundJob] | Trials | None":
    """Background jobs of model names or callables, each with its own checkpoint folder; or trials of one callable."""
    from deeppool.collocation.job_queue import BATCH, BackgroundJob, synthetic_job
    from deeppool.collocation.trials import Trials
    from deeppool.training.training_job import TrainingJob

    made = [_call(reference) if ":" in reference else None for reference in references]
    if trials := [each for each in made if isinstance(each, Trials)]:
        if len(references) > 1:
            raise InvalidValueError(
                "trials are a queue by themselves (give one --background, or put all in one Trials)"
            )
        if (batch, steps, checkpoints, memory, restarts) != (None, None, None, None, 0):
            raise InvalidValueError(
                "trials have a batch, steps, a folder, a memory budget and restarts of their own (leave "
                "--background-batch, --background-steps, --background-checkpoints, --background-memory and "
                "--background-restarts out)"
            )
        return trials[0]
    batch = BATCH if batch is None else batch
    jobs = []
    for number, (reference, own) in enumerate(zip(references, made, strict=True)):
        job = own if isinstance(own, TrainingJob) else replace(synthetic_job(reference, plan), batch=batch)
        folder = None if checkpoints is None else checkpoints / f"{number}-{re.sub(r'[^A-Za-z0-9]+', '-', reference)}"
        jobs.append(BackgroundJob(job, batch=batch, steps=steps, checkpoints=folder, memory=memory, restarts=restarts))
    return jobs or None


def _call(reference: str) -> Any:
    """Imports and calls ``package.module:callable``."""
    from deeppool.graph.models.workloads import find_callable

    if ":" not in reference:
        raise InvalidValueError(f"JOB must be package.module:callable, got '{reference}'")
    make = find_callable(reference, "job")
    try:
        return make()
    except Exception as error:  # the user's function may raise anything
        raise InvalidValueError(f"cannot make job '{reference}': {type(error).__name__}: {error}") from error
