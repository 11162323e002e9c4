"""Builds the record of a training from its progress."""

import statistics
from dataclasses import replace

from deeppool.base.serialization import from_json
from deeppool.base.sharing import Sharing
from deeppool.device.environment import made_now
from deeppool.execution.measurements import governor_results, stage_times
from deeppool.execution.stages import stages_of
from deeppool.planning.plan import Plan
from deeppool.records.compute_times import compute_times
from deeppool.records.run_record import summarise
from deeppool.records.training_record import TrainingRecord
from deeppool.records.transfer_plan import TransferPlan
from deeppool.runs.training_state import TrainingProgress, TrainingSettings


def build_training_record(
    plan: Plan, sharing: Sharing | None, settings: TrainingSettings, progress: TrainingProgress
) -> TrainingRecord:
    """Builds the record of a training so far; ``plan`` and ``sharing`` are those in force now."""
    found = settings.checkpoints.latest()
    accumulation = settings.job.accumulation
    transfers = progress.last[0]["transfers"]
    times = summarise(progress.times or [statistics.median(m.seconds for m in progress.metrics)])
    timeline = progress.typical.timeline(plan)
    if plan.gpus != settings.ranks:
        timeline = replace(timeline, title=f"{timeline.title}, on {plan.gpus} of {settings.ranks} GPUs")
    return TrainingRecord(
        model=plan.model,
        global_batch=plan.global_batch,
        accumulation=accumulation,
        ranks=plan.gpus,
        cores=settings.launcher.cores,
        device=plan.device,
        device_name=progress.device_name,
        plan_iteration_time=plan.iteration_time,
        plan_update_time=plan.update_time,
        iteration_time=times,
        metrics=tuple(progress.metrics),
        resumed_from=progress.resumed_from,
        checkpoint=None if found is None else str(found),
        restarts=progress.restarts,
        stages=stage_times(plan, stages_of(plan), progress.last, accumulation),
        proposal=progress.proposal,
        switched=progress.switched,
        timeline=timeline,
        governors=governor_results(sharing, progress.last),
        **made_now(),
        transfers=None if transfers is None else from_json(transfers, TransferPlan, "the plan of transfers"),
        compute_times=compute_times(progress.computing),
        attempts=tuple(progress.attempts),
        background=() if settings.supervisor is None else settings.supervisor.outcomes(),
    )
