"""The ``deeppool run`` command."""

from collections.abc import Callable
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deeppool.cli.inputs import read_plan, warn
from deeppool.cli.options import AsJson, PolicyOption, ShapeOption, SlowdownOption, refuse, shape
from deeppool.cli.output import progress, show
from deeppool.cli.torchrun import torchrun_workers
from deeppool.cli.train import find_own
from deeppool.errors import InvalidValueError, RunError
from deeppool.processes.fork_server_client import import_and_fork

if TYPE_CHECKING:
    from deeppool.planning.plan import Plan

GLOBAL_BATCH = 16
"""Default samples per iteration of a model."""


def run(
    what: Annotated[
        str, typer.Argument(metavar="PLAN|MODEL", help="A plan file, or a model to profile and plan first.")
    ],
    ranks: Annotated[int | None, typer.Option(help="Number of processes; a plan file determines it.")] = None,
    background: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|JOB",
            help="Background job on every rank: a model's name, or package.module:callable that returns a module or a "
            "deeppool.TrainingJob.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Iterations to measure per condition.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds to measure, instead of --steps (default: 30).")] = None,
    policy: PolicyOption = None,
    max_slowdown: SlowdownOption = None,
    background_batch: Annotated[
        int | None,
        typer.Option(
            help="Samples per step of the background (default: 4). A smaller batch keeps less work in flight."
        ),
    ] = None,
    emulate_rank: Annotated[
        int | None,
        typer.Option(
            metavar="RANK",
            help="Run only this rank of the plan, on one GPU or core; transfers and the other ranks are emulated by "
            "waits.",
        ),
    ] = None,
    gpu_price: Annotated[
        float | None,
        typer.Option(
            help="Price of a GPU-hour (on a CPU: of a core); prints what the background saves, and its share."
        ),
    ] = None,
    input_shape: ShapeOption = None,
    global_batch: Annotated[
        int | None, typer.Option(help=f"Samples per iteration, for a MODEL (default: {GLOBAL_BATCH}).")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the record (JSON).")] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto", "--trace", help="File for the planned and measured timelines, to open in ui.perfetto.dev."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a plan with and without a background job, and measure slowdown and harvest.

    The text ends with a verdict on each technique that the run shows, the evidence, and the next step.

    Ctrl-C ends every process. On several nodes, run the command under torchrun on each node, as in `deeppool train
    --help`.

    Example: `deeppool run plan.json --background resnet18 --seconds 60 -o run.json --perfetto timeline.json`

    With a slowdown bound: `deeppool run plan.json --background resnet18 --policy feedback --max-slowdown 0.01`

    Emulating one rank of eight: `deeppool run plan8.json --emulate-rank 0 --background resnet18`
    """
    if policy == "none":
        refuse(
            "is for a background job, and --policy none runs none",
            background_batch=background_batch,
            gpu_price=gpu_price,
        )
    import_and_fork("deeppool.runs.launch", "deeppool.execution.worker")
    from deeppool.advice.card import text_with_card
    from deeppool.collocation.job_queue import BATCH, BackgroundJob
    from deeppool.figures.trace import write_trace
    from deeppool.runs.launch import launch

    with torchrun_workers(output, perfetto) as started:
        if started and emulate_rank is not None:
            raise RunError("--emulate-rank runs one process on one machine (start it without torchrun)")
        with progress("interrupted; every process of the run was ended, nothing was saved") as report:
            count = started.ranks if started and ranks is None else ranks
            chosen = _plan_for(what, count, shape(input_shape), global_batch, report)
            own = None if background is None else find_own(background)
            record = launch(
                chosen,
                background=background
                if own is None
                else BackgroundJob(own, batch=BATCH if background_batch is None else background_batch),
                policy=policy,
                max_slowdown=max_slowdown,
                background_batch=background_batch if own is None else None,
                steps=steps,
                seconds=seconds,
                emulate_rank=emulate_rank,
                gpu_price=gpu_price,
                launcher=started.launcher(chosen.device, chosen.gpus) if started else None,
                on_progress=report,
            )
        try:
            file = what if isfile(what) else "plan.json"
            show(record, as_json, lambda: text_with_card(record, chosen, file, background), output=output)
        finally:
            if perfetto is not None:
                write_trace(perfetto, record.plan_timeline, record.timeline)


def _plan_for(
    what: str,
    ranks: int | None,
    shape: tuple[int, ...] | dict[str, tuple[int, ...]] | None,
    global_batch: int | None,
    report: Callable[[str, float], None],
) -> "Plan":
    """Reads a plan file, or profiles and plans a model."""
    if isfile(what) or what.endswith(".json"):
        found = read_plan(what)
        if ranks is not None and ranks != found.gpus:
            raise RunError(
                f"{what} is a plan for {found.gpus} ranks, --ranks is {ranks} (plan again with --gpus {ranks})"
            )
        for option, given in (("--input-shape", shape), ("--global-batch", global_batch)):
            if given is not None:
                raise RunError(
                    f"{what} is a plan, which has its own {option[2:].replace('-', ' ')} (leave out {option})"
                )
        return found
    global_batch = GLOBAL_BATCH if global_batch is None else global_batch
    # Imported here because they load torch, which reading a plan file does not need.
    from deeppool.device.cpu import usable_cores
    from deeppool.graph.capture.capture import capture
    from deeppool.planning.planner import plan as make_plan
    from deeppool.profiling.default_cluster import cluster_for
    from deeppool.profiling.measure.profile import profile as measure

    for option, number in (("--ranks", ranks), ("--global-batch", global_batch)):
        if number is not None and number < 1:
            raise InvalidValueError(f"{option} must be at least 1, got {number}")
    count = ranks or min(len(usable_cores()), global_batch)
    if count > global_batch:
        raise InvalidValueError(f"--ranks {count} cannot share --global-batch {global_batch}: each needs a sample")
    sizes = sorted({max(1, global_batch // count), global_batch})
    times = measure(
        capture(what, shape),
        batch_sizes=sizes,
        on_progress=lambda name, share: report(f"profiling {name}", share),
    )
    made = make_plan(times, cluster_for(times, count), global_batch)
    warn(made.caveats)
    return made
