"""Builds the record of a measured run from the results of its conditions."""

import math
from dataclasses import replace

from deeppool.base import serialization
from deeppool.base.sharing import policy_name
from deeppool.collocation.background_jobs import BackgroundJobs
from deeppool.collocation.background_placement import BackgroundSetup
from deeppool.collocation.collocated_processes import CollocatedProcesses
from deeppool.collocation.condition_results import harvest_margin, last_measured, slowdown_margin
from deeppool.device.environment import made_now
from deeppool.device.kinds import find_kind
from deeppool.execution.measurements import governor_results, stage_times
from deeppool.execution.stages import stages_of
from deeppool.planning.plan import Plan
from deeppool.records.cost_saved import CostSaved
from deeppool.records.run_record import BackgroundResult, ForegroundResult, Phase, RunRecord
from deeppool.runs.interleaved_measurement import RunResults
from deeppool.simulation.plan.simulate import simulate


def build_run_record(
    plan: Plan, setup: BackgroundSetup | None, processes: CollocatedProcesses, results: RunResults
) -> RunRecord:
    """Builds the record of a run.

    Args:
        plan: the plan that ran.
        setup: the background job; None: the foreground ran alone.
        processes: the processes that ran, after their last round.
        results: results of the measurement.
    """
    batch, block = plan.global_batch, results.rounds_per_block
    alone = results.active_cores.phase(batch, block)
    measured = last_measured(results.bounds)
    front = alone if setup is None else results.collocated.phase(batch, block, measured.rounds)
    window = max(1, min(3, len(results.losses) // 2))
    foreground = ForegroundResult(
        iteration_time=front.iteration_time,
        throughput=front.throughput,
        idle_share=front.idle_share,
        alone=alone,
        alone_asleep=None if not results.idle_cores.rounds else results.idle_cores.phase(batch, block),
        slowdown=front.iteration_time.mean / alone.iteration_time.mean - 1,
        first_loss=_mean(results.losses[:window]),
        last_loss=_mean(results.losses[-window:]),
        wake_delay=front.wake_delay,
        slowdown_margin=None if setup is None else slowdown_margin(results.active_cores.rounds, measured.rounds, block),
    )
    background = processes.background
    sharing, bounds = None if setup is None else setup.sharing, results.bounds
    return RunRecord(
        model=plan.model,
        plan_iteration_time=plan.iteration_time,
        plan_update_time=plan.update_time,
        global_batch=batch,
        ranks=plan.gpus,
        cores=processes.cores,
        device=plan.device,
        device_name=processes.ranks.device_name,
        backend=find_kind(plan.device).backend,
        policy=policy_name(sharing),
        foreground=foreground,
        background=None if setup is None or background is None else _background(setup, background, results, alone),
        stages=stage_times(plan, stages_of(plan), results.last),
        timeline=measured.typical.timeline(plan),
        plan_timeline=simulate(plan).timeline,
        notes=_notes(plan.gpus, processes.cores, changes=len(bounds) - 1),
        **made_now(),
        sharing=None if sharing is None else replace(sharing, max_slowdown=measured.bound),
        bounds=()
        if setup is None or len(bounds) == 1
        else tuple(bound.interval(alone.iteration_time.mean, setup.job.step_samples) for bound in bounds),
        governors=governor_results(sharing, results.last),
    )


def add_cost_saved(record: RunRecord, gpu_price: float) -> RunRecord:
    """Adds to a record what its background saved at a price of the GPU-hour."""
    if record.background is None:
        return record
    front, whole = record.foreground, record.emulated_rank is None
    used = {gpu for stage in record.stages for gpu in stage.gpus}
    found = CostSaved.of(
        seconds=front.iteration_time.count * front.iteration_time.mean,
        slowdown=front.slowdown,
        harvest=record.background.harvest,
        ranks=record.ranks if whole else 1,
        gpu_price=gpu_price,
        unused=record.ranks - len(used) if whole and used else 0,
    )
    return replace(record, cost_saved=found)


def mark_emulated(record: RunRecord, rank: int) -> RunRecord:
    """Reduces a record to one emulated rank: other ranks' stages and the losses are meaningless there."""
    title = f"{record.timeline.title}; emulated: rank {rank} of {record.ranks}, transfers modelled"
    spans = tuple(replace(span, gpu=rank) for span in record.timeline.spans)
    return replace(
        record,
        foreground=replace(record.foreground, first_loss=None, last_loss=None),
        stages=tuple(stage for stage in record.stages if rank in stage.gpus),
        timeline=replace(record.timeline, title=title, spans=spans),
        notes=(
            f"emulated: rank {rank} of {record.ranks} ran alone; transfers, all-reduces and the layers of other ranks "
            "are waits as long as the plan predicts, ranks of the same stage are assumed to be equally fast, and "
            "received values are noise, so weights do not change and there is no loss",
        ),
        backend="modelled",
        emulated_rank=rank,
    )


def _background(
    setup: BackgroundSetup, background: BackgroundJobs, results: RunResults, alone: Phase
) -> BackgroundResult:
    job, by_itself = setup.job, results.background_alone
    collocated = last_measured(results.bounds).work
    losses = [*(loss for bound in results.bounds for loss in bound.work.losses), *by_itself.losses]
    throughput = job.step_samples * collocated.steps / collocated.seconds
    alone_throughput = job.step_samples * by_itself.steps / by_itself.seconds
    # A job that ended early did nothing alone; the foreground's results are valid all the same.
    harvest = throughput / alone_throughput if alone_throughput else 0.0
    idle = sum(alone.idle_share) / len(alone.idle_share)
    return BackgroundResult(
        model=job.name,
        batch=job.batch,
        priority=background.priority,
        throughput=throughput,
        alone_throughput=alone_throughput,
        harvest=harvest,
        harvest_of_idle=harvest / idle if idle else 0.0,
        first_loss=_mean(losses[:1]),
        last_loss=_mean(losses[-1:]),
        ended=background.ended,
        home=setup.placement,
        harvest_margin=harvest_margin(by_itself, collocated, results.rounds_per_block),
    )


def _mean(losses: list[float]) -> float | None:
    """Returns the mean of some losses; None where it is no number that a record may hold, or there are none."""
    mean = sum(losses) / len(losses) if losses else math.nan
    return mean if serialization.may_hold(mean) else None


def _notes(ranks: int, cores: int, changes: int) -> tuple[str, ...]:
    notes = [
        "gradients are those of one process on the global batch, up to reduction order; BatchNorm uses the "
        "statistics of each shard, as in DDP; dropout draws its masks per sample, the same ones whatever the plan, but "
        "inside fused attention and recurrent layers on each rank"
    ]
    if ranks > cores:
        notes.append(f"{ranks} ranks shared {cores} cores: the times say nothing about {ranks} GPUs")
    if changes:
        notes.append(
            "the bound was changed while it ran: iteration times, slowdown and background throughput are of the "
            "last bound with measured iterations, and bounds lists all; idle shares are over all collocated iterations"
        )
    return tuple(notes)
