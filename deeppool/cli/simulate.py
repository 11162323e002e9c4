"""The ``deeppool simulate`` command, for a plan or a workload of many jobs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deeppool.cli.inputs import read_plan, read_profile
from deeppool.cli.options import AsJson, Policy, SlowdownOption
from deeppool.cli.output import progress, show
from deeppool.errors import InvalidValueError

if TYPE_CHECKING:
    from deeppool.base.serialization import Record
    from deeppool.base.timeline import Timeline
    from deeppool.job import Progress
    from deeppool.profiling.table import Profile
    from deeppool.simulation.device.interference import Interference
    from deeppool.simulation.plan.conditions import Conditions

A_PLAN, A_WORKLOAD, SLOW = "For a plan", "For a workload trace", "Deviations from the plan"
Strategy = Literal["data-parallel", "partition", "burst-parallel", "collocated", "all"]


def simulate(
    what: Annotated[
        Path, typer.Argument(metavar="PLAN|TRACE", help="Plan written by `deeppool plan -o FILE`, or workload trace.")
    ],
    interference: Annotated[
        Path | None,
        typer.Option(help="File written by `deeppool interference -o FILE`, for the cost of a background job."),
    ] = None,
    policy: Annotated[
        Policy | None, typer.Option(help="How the background shares the GPUs, with --interference (default: priority).")
    ] = None,
    max_slowdown: SlowdownOption = None,
    background: Annotated[
        str | None,
        typer.Option(
            help="Profile of a background job for the idle time; without interference unless --interference is given.",
            rich_help_panel=A_PLAN,
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="File for a Chrome/Perfetto trace.", rich_help_panel=A_PLAN)
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Record of a run of the plan, to compare with the simulation. With --interference, --background is "
            "the profile of the run's background.",
            rich_help_panel=A_PLAN,
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of the cluster.", rich_help_panel=A_WORKLOAD)] = None,
    cluster: Annotated[
        str,
        typer.Option(
            help="dgx-a100, dgx-h100, dgx-h200, ethernet-25g, loopback, or a cluster file.", rich_help_panel=A_WORKLOAD
        ),
    ] = "dgx-a100",
    strategy: Annotated[
        Strategy,
        typer.Option(
            help="data-parallel and burst-parallel: foregrounds use their GPUs exclusively; partition: data-parallel "
            "foregrounds on --foreground-gpus, backgrounds on the others; collocated: burst-parallel foregrounds with "
            "backgrounds in their idle time; all: compare them.",
            rich_help_panel=A_WORKLOAD,
        ),
    ] = "collocated",
    foreground_gpus: Annotated[
        int | None, typer.Option(help="GPUs of a partition's foregrounds.", rich_help_panel=A_WORKLOAD)
    ] = None,
    speed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GPU=FACTOR", help="Speed of a GPU: 3=0.5 makes GPU 3 half as fast.", rich_help_panel=SLOW
        ),
    ] = None,
    jitter: Annotated[
        float, typer.Option(help="Log-normal spread of compute times between iterations.", rich_help_panel=SLOW)
    ] = 0.0,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Profile whose measured noise applies to all GPUs, instead of --jitter and --speed.",
            rich_help_panel=SLOW,
        ),
    ] = None,
    straggling: Annotated[
        float, typer.Option(help="Probability that a GPU is a straggler in an iteration.", rich_help_panel=SLOW)
    ] = 0.0,
    delay: Annotated[
        float,
        typer.Option(help="Mean relative delay of a straggler: 1 takes twice as long.", rich_help_panel=SLOW),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed.", rich_help_panel=SLOW)] = 0,
    iterations: Annotated[
        int | None,
        typer.Option(
            help="Iterations of a plan to simulate with random deviations (default: 1000, with --against 200).",
            rich_help_panel=SLOW,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the record (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate an iteration of PLAN, or the jobs of a workload TRACE on a cluster, on a virtual clock.

    For a plan, reports when each GPU is busy, and the idle time for a background job. For a trace, reports the
    completion time of each job and the throughput of the cluster.

    Example: `deeppool simulate plan.json --trace trace.json` (open the trace in ui.perfetto.dev)

    With stragglers: `deeppool simulate plan.json --straggling 0.01 --delay 2`

    Compared with a run: `deeppool simulate plan.json --against run.json --noise profile.json`

    Many jobs under every strategy: `deeppool simulate trace.json --gpus 64 --strategy all`

    Write a trace in Python: `dp.save(dp.WorkloadTrace(name, method, (dp.TraceJob(…), …)), "trace.json")`
    """
    from deeppool.base import serialization
    from deeppool.figures.trace import write_trace
    from deeppool.simulation.cluster.workload import WorkloadTrace

    for path in (output, trace):
        if path is not None:
            serialization.check_writable(path)
    of_plan: dict[str, Any] = {
        "background": background,
        "against": against,
        "noise": noise,
        "iterations": iterations,
    }
    of_workload = {"gpus": gpus, "foreground_gpus": foreground_gpus}
    conditions = _conditions(speed or [], jitter=jitter, straggling=straggling, delay=delay, seed=seed)
    how = {"interference": _interference(interference), "policy": policy, "max_slowdown": max_slowdown}
    found: Record
    timeline: Timeline | None = None
    if serialization.read_object(what).get("format") == f"deeppool/{WorkloadTrace.KIND}":
        _refuse({"trace": trace, **of_plan}, "is for a plan, and this is a workload trace")
        found = _simulate_workload(what, cluster, strategy, conditions, of_workload, how)
    else:
        _refuse(of_workload, "is for a workload trace, and this is none")
        found, timeline = _simulate_plan(what, conditions, how, **of_plan)
    try:
        show(found, as_json, output=output)
    finally:
        if timeline is not None and trace is not None:
            write_trace(trace, timeline)


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")


def _interference(path: Path | None) -> "Interference | None":
    from deeppool.base import serialization
    from deeppool.simulation.device.interference import Interference

    return None if path is None else serialization.read(path, Interference)


def _conditions(speeds: list[str], **others: Any) -> "Conditions":
    from deeppool.simulation.plan.conditions import Conditions

    by_gpu: dict[int, float] = {}
    for text in speeds:
        gpu, _, factor = text.partition("=")
        try:
            by_gpu[int(gpu)] = float(factor)
        except ValueError:
            raise InvalidValueError(f"a speed is, for example, 3=0.5 for GPU 3 at half, got '{text}'") from None
    return Conditions(speeds=tuple(by_gpu.get(gpu, 1.0) for gpu in range(max(by_gpu, default=-1) + 1)), **others)


def _noisy(given: "Conditions", noise: str, gpus: int) -> "Conditions":
    """The conditions with the noise of a profile in place of speeds and jitter."""
    from dataclasses import replace

    from deeppool.simulation.plan.conditions import profiled_conditions

    if given.jitter or given.speeds:
        raise typer.BadParameter("it says how fast all GPUs are: leave out --jitter and --speed", param_hint="--noise")
    found = profiled_conditions(read_profile(noise), gpus)
    return replace(given, speeds=found.speeds, jitter=found.jitter)


def _simulate_plan(
    path: Path,
    given: "Conditions",
    how: dict[str, Any],
    *,
    background: str | None,
    against: Path | None,
    noise: str | None,
    iterations: int | None,
) -> "tuple[Record, Timeline]":
    from dataclasses import replace

    from deeppool.base import serialization
    from deeppool.base.sharing import find_sharing
    from deeppool.records.run_record import RunRecord
    from deeppool.simulation.plan.collocated_plan import CollocatedPlan, simulate_collocated_plan
    from deeppool.simulation.plan.simulate import Simulation
    from deeppool.simulation.plan.simulate import simulate as replay
    from deeppool.simulation.validation.compare_with_run import compare_with_run

    interference, policy = how["interference"], how["policy"]
    if interference is None and (policy is not None or how["max_slowdown"] is not None):
        raise typer.BadParameter(
            "it says how a background shares a GPU: give --interference too",
            param_hint="--max-slowdown" if policy is None else "--policy",
        )
    if interference is not None and (background is None or policy == "none"):
        raise typer.BadParameter("it needs a job: give --background, and no policy none", param_hint="--interference")
    if interference is not None and against is None and (noise is not None or not given.as_planned):
        raise typer.BadParameter(
            "it prices a background beside a plan that runs as planned: leave out what is slow, or give --against",
            param_hint="--interference",
        )
    job: Profile | None = None if background is None else read_profile(background)
    made = read_plan(path)
    if noise is not None:
        given = _noisy(given, noise, made.gpus)
    conditions = None if given.as_planned else given
    sample_time = None if job is None else job.iteration_time(job.batch_sizes[-1]) / job.batch_sizes[-1]
    replayed = replay(made, background_sample_time=sample_time, conditions=conditions, iterations=iterations or 1000)
    found: Simulation | CollocatedPlan = replayed
    if interference is not None and job is not None and conditions is None:
        sharing = find_sharing(policy or "priority", how["max_slowdown"])
        assert sharing is not None
        found = simulate_collocated_plan(made, job, interference, sharing)
    if against is not None:
        run = serialization.read(against, RunRecord)
        fidelity = compare_with_run(
            made,
            run,
            background=job,
            interference=interference,
            conditions=conditions,
            iterations=iterations or 200,
        )
        found = replace(found, fidelity=fidelity)
    return found, replayed.timeline


def _simulate_workload(
    path: Path,
    cluster: str,
    strategy: Strategy,
    conditions: "Conditions",
    given: dict[str, Any],
    how: dict[str, Any],
) -> "Record":
    from deeppool.base import serialization
    from deeppool.cli.inputs import warn
    from deeppool.cluster.cluster import find_cluster
    from deeppool.profiling.table import Profile
    from deeppool.simulation.cluster.comparison import compare_strategies
    from deeppool.simulation.cluster.simulate import simulate_cluster
    from deeppool.simulation.cluster.workload import WorkloadTrace, load_sources

    if given["gpus"] is None:
        raise typer.BadParameter("say how many the cluster has", param_hint="--gpus")
    if (strategy == "partition") != (given["foreground_gpus"] is not None):
        raise typer.BadParameter("goes with --strategy partition, and that with it", param_hint="--foreground-gpus")
    workload = serialization.read(path, WorkloadTrace)
    sources = load_sources(workload, path.parent)
    for source in sources.values():
        warn(source.caveats() if isinstance(source, Profile) else source.caveats)
    options = {
        "sources": sources,
        "interference": how["interference"],
        "policy": how["policy"] or "priority",
        "max_slowdown": how["max_slowdown"],
        "conditions": None if conditions.as_planned else conditions,
    }
    machines = find_cluster(cluster, given["gpus"])
    with progress() as report:
        on_progress: Progress = report
        if strategy == "all":
            return compare_strategies(workload, machines, on_progress=on_progress, **options)
        return simulate_cluster(
            workload,
            machines,
            strategy=strategy,
            foreground_gpus=given["foreground_gpus"],
            on_progress=on_progress,
            **options,
        )
