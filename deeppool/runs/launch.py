"""dp.launch: runs a plan and measures it alone and collocated with a background job.

:func:`launch` reads downwards: it checks its arguments, chooses where the background runs, starts ranks and background
(:mod:`deeppool.collocation.collocated_processes`), measures them (:mod:`deeppool.runs.interleaved_measurement`) and
builds the record (:mod:`deeppool.runs.launch_record`).
"""

from contextlib import closing

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.live_sample import OnSample
from deeppool.base.number_checks import positive_number, real_number, seed_number, whole_number
from deeppool.base.run_control import RunControl
from deeppool.base.run_registry import registered
from deeppool.base.sharing import Policy, Sharing, find_sharing
from deeppool.collectives.partial.load_imbalance import Delays
from deeppool.collocation.background_placement import THREAD, BackgroundSetup, place_background
from deeppool.collocation.collocated_processes import collocated_processes
from deeppool.collocation.job_queue import BackgroundJob, measured_job
from deeppool.collocation.sample_publisher import SamplePublisher
from deeppool.device.kinds import check_common_clock
from deeppool.errors import InvalidValueError
from deeppool.job import Job, Progress
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher
from deeppool.records.cost_saved import check_gpu_price
from deeppool.records.run_record import RunRecord
from deeppool.runs.interleaved_measurement import InterleavedMeasurement
from deeppool.runs.launch_record import add_cost_saved, build_run_record, mark_emulated


@interruptible
@typed
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
    load_imbalance: Delays | None = None,
    gpu_price: float | None = None,
    launcher: Launcher | None = None,
    run_control: RunControl | None = None,
    on_sample: OnSample | None = None,
    on_progress: Progress | None = None,
) -> RunRecord:
    """Runs a plan and measures it alone and collocated with a background job.

    Args:
        plan: made by :func:`deeppool.plan`, or loaded from a file.
        background: background job beside every rank: the name of a model, a :class:`deeppool.job.Job` with its own
            batch, or your own training in a :class:`deeppool.BackgroundJob`. None: no background.
        policy: how the background shares a device with the rank: a name in :data:`deeppool.base.sharing.POLICIES`, or
            mechanisms of your own choice. Default: ``priority``. On a GPU the background is a thread of each rank's
            process, on a CPU a process of its own, unless :attr:`deeppool.Sharing.home` sets it.
        max_slowdown: bound on the foreground's mean slowdown, held by a controller: 0.01 is 1 %.
        background_batch: samples per step of a background given by name. Default: 4.
        seconds: measuring time, start-up excluded. Default: 30. Each condition gets at least two iterations.
        steps: iterations per condition, instead of ``seconds``.
        learning_rate: learning rate of the foreground's SGD.
        seed: random seed of weights and data.
        emulate_rank: runs this rank alone, on one GPU or core, as it would run among all ranks of the plan: its stages
            in the plan's order, with waits in place of transfers, all-reduces and the layers of other ranks. Values
            and loss are meaningless, and weights do not change. None: all ranks run.
        load_imbalance: delays that ranks are given before they compute: a function of rank and update, as those of
            :mod:`deeppool.collectives.partial.load_imbalance`.
        gpu_price: price of a GPU-hour, for what the background saves; on a CPU of a core-hour. None: not computed.
        launcher: starts the processes. Default: on this machine.
        run_control: lets another thread change the bound during the run.
        on_sample: called with every iteration of the foreground; see :data:`deeppool.base.live_sample.OnSample`.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: an argument out of range, or a plan for a device in virtual time.
        RunError: the plan or the background cannot start here.
        RankFailedError: a rank died or hung; every process has ended by then.
    """
    policy = policy or ("none" if background is None else "priority")
    sharing = find_sharing(policy, max_slowdown)
    if background_batch is not None:
        background_batch = whole_number("background_batch", background_batch)
    if seconds is not None:
        seconds = positive_number("seconds", seconds)
    if steps is not None:
        steps = whole_number("steps", steps)
    seed, learning_rate = seed_number(seed), real_number("learning_rate", learning_rate)
    _check(policy, background, background_batch, seconds, steps)
    check_common_clock(plan.device)
    if emulate_rank is not None:
        note = f"the plan is for {plan.gpus} GPUs"
        emulate_rank = whole_number("the rank to emulate", emulate_rank, 0, plan.gpus - 1, note)
    check_gpu_price(gpu_price, has_background=background is not None and sharing is not None)
    report = on_progress or (lambda what, share: None)
    setup = None
    if sharing is not None and background is not None:
        job = measured_job(background, plan, background_batch)
        setup = BackgroundSetup(job, sharing, place_background(sharing, plan.device))

    with closing(run_control or RunControl()) as run_control:
        _open(run_control, setup)
        report("starting", 0.0)
        with collocated_processes(
            plan,
            setup,
            launcher=launcher,
            # An emulated rank receives noise; learning from it would drive the weights out of range.
            learning_rate=learning_rate if emulate_rank is None else 0.0,
            seed=seed,
            emulated_rank=emulate_rank,
            load_imbalance=load_imbalance,
            reports_progress=on_sample is not None,
            report=report,
        ) as processes:
            publisher = SamplePublisher(on_sample, processes.background)
            measurement = InterleavedMeasurement(
                processes, sharing=sharing, publisher=publisher, run_control=run_control, report=report
            )
            results = measurement.measure(seconds, steps)
    record = build_run_record(plan, setup, processes, results)
    if emulate_rank is not None:
        record = mark_emulated(record, emulate_rank)
    return record if gpu_price is None else add_cost_saved(record, gpu_price)


def _check(
    policy: str | Sharing, background: object, batch: int | None, seconds: float | None, steps: int | None
) -> None:
    if policy != "none" and background is None:
        raise InvalidValueError(f"policy '{policy}' needs a background job (give background=, for example resnet18)")
    if batch is not None and not isinstance(background, str):
        raise InvalidValueError(
            f"background_batch is for a background that is given by its name, got {batch} for {background} (a job of "
            "your own has its own batch)"
        )
    if seconds is not None and steps is not None:
        raise InvalidValueError(f"give seconds or steps, not both: got {seconds:g} s and {steps} steps")


def _open(run_control: RunControl, setup: BackgroundSetup | None) -> None:
    if setup is not None and setup.placement == THREAD:
        run_control.refuse(
            "the background runs in the ranks' own processes, where its work under one bound cannot be separated from "
            "its work under another (give it a process: Sharing(home='process'))"
        )
    else:
        run_control.open(None if setup is None else setup.sharing)
