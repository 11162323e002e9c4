"""The ``deeppool simulate`` command: one iteration of a plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deeppool.cli.conditions import (
    SLOW,
    DelayOption,
    InterferenceOption,
    JitterOption,
    SeedOption,
    SharingOption,
    SpeedOption,
    StragglingOption,
    conditions,
    read_interference,
    refuse_unused,
)
from deeppool.cli.inputs import read_plan, read_profile
from deeppool.cli.options import AsJson, SlowdownOption, refuse
from deeppool.cli.output import show

if TYPE_CHECKING:
    from deeppool.profiling.table import Profile
    from deeppool.simulation.plan.conditions import Conditions


def simulate(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan written by `deeppool plan -o FILE`.")],
    background: Annotated[
        str | None,
        typer.Option(
            help="Profile of a background job for the idle time; without interference unless --interference is given."
        ),
    ] = None,
    interference: InterferenceOption = None,
    policy: SharingOption = None,
    max_slowdown: SlowdownOption = None,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", "--trace", help="File for the timeline, to open in ui.perfetto.dev.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Record of a run of the plan, to compare with the simulation. With --interference, --background is "
            "the profile of the run's background.",
        ),
    ] = None,
    speed: SpeedOption = None,
    jitter: JitterOption = 0.0,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Profile whose measured noise applies to all GPUs, instead of --jitter and --speed.",
            rich_help_panel=SLOW,
        ),
    ] = None,
    straggling: StragglingOption = 0.0,
    delay: DelayOption = 1.0,
    seed: SeedOption = 0,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Iterations of a plan to simulate with random deviations (default: 1000, with --against 200).",
            rich_help_panel=SLOW,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the record (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate an iteration of PLAN on a virtual clock: when each GPU is busy, and the idle time for a background job.

    A whole workload of jobs: `deeppool cluster simulate`.

    Example: `deeppool simulate plan.json --perfetto timeline.json` (open it in ui.perfetto.dev)

    With stragglers: `deeppool simulate plan.json --straggling 0.01 --delay 2`

    Compared with a run: `deeppool simulate plan.json --against run.json --noise profile.json`
    """
    from dataclasses import replace

    from deeppool.base import serialization
    from deeppool.base.sharing import find_sharing
    from deeppool.figures.trace import write_trace
    from deeppool.planning.goal import background_beside, check_device
    from deeppool.records.run_record import RunRecord
    from deeppool.simulation.plan.collocated_plan import CollocatedPlan, simulate_collocated_plan
    from deeppool.simulation.plan.simulate import Simulation
    from deeppool.simulation.plan.simulate import simulate as replay
    from deeppool.simulation.validation.compare_with_run import compare_with_run

    given = conditions(speed, jitter=jitter, straggling=straggling, delay=delay, seed=seed)
    measured = read_interference(interference, policy, max_slowdown)
    if measured is not None and (background is None or policy == "none"):
        raise typer.BadParameter("it needs a job: give --background, and no policy none", param_hint="--interference")
    slow = noise is not None or not given.as_planned
    if against is not None and slow:
        refuse(
            "does not go with --against and deviations from the plan: the run has its own (leave it out)",
            policy=policy,
            max_slowdown=max_slowdown,
        )
    if measured is not None and against is None and slow:
        raise typer.BadParameter(
            "it prices a background beside a plan that runs as planned: leave out what is slow, or give --against",
            param_hint="--interference",
        )
    job: Profile | None = None if background is None else read_profile(background)
    made = read_plan(plan)
    if job is not None:
        check_device(job, made.device_name, made.device)
    if noise is not None:
        given = _noisy(given, noise, made.gpus)
    refuse_unused(context, given, "--jitter, --noise or --straggling")
    deviations = None if given.as_planned else given
    beside = None if job is None else background_beside(made.background, job)
    replayed = replay(
        made,
        background_sample_time=None if beside is None else beside.sample_time,
        background_memory=None if beside is None else beside.memory,
        conditions=deviations,
        iterations=iterations or 1000,
    )
    found: Simulation | CollocatedPlan = replayed
    if measured is not None and job is not None and deviations is None:
        sharing = find_sharing(policy or "priority", max_slowdown)
        assert sharing is not None
        found = simulate_collocated_plan(made, job, measured, sharing)
    if against is not None:
        run = serialization.read(against, RunRecord)
        fidelity = compare_with_run(
            made,
            run,
            background=job,
            interference=measured,
            conditions=deviations,
            iterations=iterations or 200,
        )
        found = replace(found, fidelity=fidelity)
    try:
        show(found, as_json, output=output)
    finally:
        if perfetto is not None:
            write_trace(perfetto, replayed.timeline)


def _noisy(given: "Conditions", noise: str, gpus: int) -> "Conditions":
    """The conditions with the noise of a profile in place of speeds and jitter."""
    from dataclasses import replace

    from deeppool.simulation.plan.conditions import profiled_conditions

    if given.jitter or given.speeds:
        raise typer.BadParameter("it says how fast all GPUs are: leave out --jitter and --speed", param_hint="--noise")
    found = profiled_conditions(read_profile(noise), gpus)
    return replace(given, speeds=found.speeds, jitter=found.jitter)
