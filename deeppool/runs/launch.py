"""One live run: a plan's ranks, the background jobs beside them, and what each costs the other."""

import math
from contextlib import ExitStack, closing
from dataclasses import replace

from deeppool.base.live_sample import OnSample
from deeppool.base.run_control import RunControl
from deeppool.base.run_registry import registered
from deeppool.base.sharing import Policy, Sharing, find_sharing
from deeppool.collocation.background_group import BackgroundGroup, Spinners
from deeppool.collocation.background_placement import THREAD, place_background
from deeppool.collocation.in_process_group import PROGRAM, InProcessGroup
from deeppool.collocation.job_queue import BackgroundJob, hand_over, measured
from deeppool.collocation.sample_publisher import SamplePublisher
from deeppool.errors import InvalidValueError
from deeppool.execution.ranks import Ranks
from deeppool.graph.models.workloads import find_workload, save_model
from deeppool.job import Job, Progress
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.rank_group import private_folder
from deeppool.records.run_record import RunRecord
from deeppool.runs.interleaved_measurement import InterleavedMeasurement


@registered
def launch(
    plan: Plan,
    *,
    background: str | Job | BackgroundJob | None = None,
    policy: Policy | Sharing | None = None,
    max_slowdown: float | None = None,
    background_batch: int | None = None,
    seconds: float | None = None,
    steps: int | None = None,
    learning_rate: float = 0.001,
    seed: int = 0,
    emulate_rank: int | None = None,
    launcher: Launcher | None = None,
    run_control: RunControl | None = None,
    on_sample: OnSample | None = None,
    on_progress: Progress | None = None,
) -> RunRecord:
    """Runs a plan for real, and measures it alone and beside a background job.

    Args:
        plan: made by :func:`deeppool.plan`, or loaded from a file.
        background: a model to train beside every rank, by name, or a :class:`deeppool.job.Job` with its own
            batch, or a training of your own in a :class:`deeppool.BackgroundJob`; None for none.
        policy: how the background shares a core: a name in :data:`deeppool.base.sharing.POLICIES`, or mechanisms of your
            own choice; ``priority`` unless given. On a GPU the background is a thread of each rank's process, on a CPU
            a process, unless :attr:`deeppool.Sharing.home` says otherwise.
        max_slowdown: bound on the foreground's mean slowdown, for example 0.01 for 1 %, that a controller holds.
        background_batch: samples of a step of a background that is given by its name; 4 unless given.
        seconds: to spend measuring, start-up not counted; 30 unless given. At least two iterations per condition.
        steps: iterations per condition, instead of ``seconds``.
        learning_rate: of the foreground's SGD.
        seed: of weights and data.
        emulate_rank: runs this rank alone, on one GPU or core, as it would run among all of the plan's: its stages,
            in the plan's order, with waits where transfers, all-reduces and other ranks' layers would take time.
            Its values mean nothing and its weights stay as they are. None: all ranks run.
        launcher: where; this machine unless given.
        run_control: by which another thread changes the bound while the run goes on.
        on_sample: called with every iteration of the foreground; see :data:`deeppool.base.live_sample.OnSample`.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        RunError: the plan cannot start here, or the background cannot.
        RankFailedError: a rank died or hung; every process has ended by then.
    """
    policy = policy or ("none" if background is None else "priority")
    sharing = find_sharing(policy, max_slowdown)
    _check(policy, background, background_batch, seconds, steps)
    _check_rank(emulate_rank, plan)
    count = plan.gpus if emulate_rank is None else 1
    report = on_progress or (lambda what, share: None)
    launcher = launcher or LocalLauncher(plan.device, count)
    neighbour = None if sharing is None or background is None else measured(background, plan, background_batch)
    home, elsewhere = (
        ("", None) if neighbour is None or sharing is None else place_background(sharing, plan.device, neighbour)
    )
    with ExitStack() as stack:
        run_control = stack.enter_context(closing(run_control or RunControl()))
        if home != THREAD:
            run_control.open(None if neighbour is None else sharing)
        else:
            run_control.refuse(
                "the background lives in the ranks' own processes, where its work under one bound cannot be told from "
                "that under another (give it a process: Sharing(home='process'))"
            )
        folder = stack.enter_context(private_folder())
        model = plan.model if plan.origin is None else save_model(plan.origin.source, folder)
        if plan.origin is None:
            find_workload(model)
        report("starting", 0.0)
        # What comes from emulated ranks means nothing: to learn from it would only drive weights out of range.
        rate = learning_rate if emulate_rank is None else 0.0
        job = Job(model, plan.input_shape, plan.global_batch, rate, seed=seed)
        work = {} if neighbour is None else hand_over(neighbour, folder)
        program = PROGRAM if home == THREAD else "deeppool.execution.worker"
        ranks = stack.enter_context(Ranks(plan, job, folder, launcher, sharing, emulate=emulate_rank, program=program))
        neighbours: BackgroundGroup | InProcessGroup | None = None
        spinners = None
        if neighbour is not None and sharing is not None:
            if home == THREAD:
                neighbours = InProcessGroup(neighbour, ranks, work)
            else:
                tells = on_sample is not None
                neighbours = stack.enter_context(
                    BackgroundGroup(
                        neighbour, launcher, count, sharing, work, device=plan.device, home=home, tells=tells
                    )
                )
            spinners = stack.enter_context(Spinners(launcher, count, sharing, plan.device))
        ranks.wait_until_ready()
        if neighbours is not None and spinners is not None:
            neighbours.wait_until_ready()
            spinners.wait_until_ready()
        feed = SamplePublisher(on_sample, neighbours)
        run = InterleavedMeasurement(
            plan, ranks, neighbours, spinners, report, launcher.cores, sharing, feed, run_control
        )
        run.measure(seconds, steps)
        record = run.record(neighbour)
        record = replace(record, notes=(*record.notes, *([elsewhere] if elsewhere else [])))
        return record if emulate_rank is None else _emulated(record, plan, emulate_rank)


def _check_rank(rank: int | None, plan: Plan) -> None:
    if rank is not None and not 0 <= rank < plan.gpus:
        raise InvalidValueError(
            f"the rank to emulate must be from 0 to {plan.gpus - 1}, got {rank}: the plan is for {plan.gpus} GPUs"
        )


def _emulated(record: RunRecord, plan: Plan, rank: int) -> RunRecord:
    """The record of a run of one rank, which knows no other rank's stages and no loss."""
    title = f"{record.timeline.title}; emulated: rank {rank} of {plan.gpus}, transfers modelled"
    spans = tuple(replace(span, gpu=rank) for span in record.timeline.spans)
    return replace(
        record,
        foreground=replace(record.foreground, first_loss=None, last_loss=None),
        stages=tuple(stage for stage in record.stages if rank in stage.gpus),
        timeline=replace(record.timeline, title=title, spans=spans),
        notes=(
            f"emulated: rank {rank} of {plan.gpus} ran alone; transfers, all-reduces and the other ranks' layers are "
            "waits as long as the plan predicts, ranks that share a stage with it keep step with it, and what comes "
            "from others is noise, so weights stay as they are and there is no loss",
        ),
        backend="modelled",
        emulated_rank=rank,
    )


def _check(
    policy: str | Sharing, background: object, batch: int | None, seconds: float | None, steps: int | None
) -> None:
    if policy != "none" and background is None:
        raise InvalidValueError(f"policy '{policy}' needs a background job (give background=, for example resnet18)")
    if batch is not None and (batch < 1 or not isinstance(background, str)):
        raise InvalidValueError(
            f"background_batch must be at least 1 and is for a background that is given by its name, got {batch} "
            f"for {background} (a job of your own has its own batch)"
        )
    if seconds is not None and steps is not None:
        raise InvalidValueError(f"give seconds or steps, not both: got {seconds:g} s and {steps} steps")
    if seconds is not None and not 0 < seconds < math.inf:
        raise InvalidValueError(f"seconds must be positive and finite, got {seconds:g}")
    if steps is not None and steps < 1:
        raise InvalidValueError(f"steps must be at least 1, got {steps}")
