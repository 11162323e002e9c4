"""The card that ends a run or a training: for each technique a verdict, the evidence, and the next step."""

import shlex
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from deeppool.advice.record import Finding, card_lines
from deeppool.advice.techniques import partial_collectives
from deeppool.advice.verdict import CollocationGain, Rival, collocation_of
from deeppool.planning.evaluate.baselines import WORTH, Verdict
from deeppool.planning.plan import Plan
from deeppool.records.compute_times import NOTEWORTHY, groups_alike, straggler
from deeppool.records.files import text_of
from deeppool.records.run_record import RunRecord
from deeppool.records.training_record import TrainingRecord
from deeppool.units import format_count, format_growth, format_percent, format_rate, format_seconds

DEVIATION = 0.15
"""Error of a planned iteration time from which its layer times should be corrected."""
NOTICEABLE = 0.05
"""Slowdown of a foreground without a bound from which it should get one."""


def text_with_card(
    record: Any, plan: Plan | None = None, plan_file: str = "plan.json", background: str | None = None
) -> str:
    """Returns the text of a record, and below it the card if it is a run or a training.

    Args:
        record: record of any kind.
        plan: plan that ran, with the prediction of DDP; None: unknown.
        plan_file: its file, for the next steps.
        background: what a command calls the background of a run; None: its model.
    """
    findings = findings_of(record, plan, plan_file, background)
    if not findings:
        return text_of(record)
    return "\n".join([text_of(record), "", *card_lines(findings, [finding.next_step for finding in findings])])


def findings_of(
    record: Any, plan: Plan | None = None, plan_file: str = "plan.json", background: str | None = None
) -> tuple[Finding, ...]:
    """Returns what a run or a training shows of each technique; records of other kinds show nothing.

    Args:
        record: record of any kind.
        plan: as in :func:`text_with_card`, as the file.
        plan_file: its file.
        background: as in :func:`text_with_card`.
    """
    file = shlex.quote(plan_file)
    found: list[Finding | None] = []
    if isinstance(record, RunRecord):
        alone = record.foreground.alone.iteration_time.p50
        replan = f"deeppool replan {file} PROFILE RUN, which corrects the layer times and plans again"
        # Older plans predict no update.
        planned = record.plan_iteration_time if record.plan_update_time else None
        found = [
            _burst_parallelism(record, alone, planned, plan, file, replan),
            _collocation(record, planned, plan, file, background),
            _slowdown_bound(record, file, background),
        ]
    elif isinstance(record, TrainingRecord):
        replan = "dp.train(plan, job, steps=N, replan_after=100, profile=profile), which plans again as it measures"
        planned = record.planned_time if record.plan_update_time else None
        found = [
            _burst_parallelism(record, record.iteration_time.p50, planned, plan, file, replan),
            _background_training(record, plan if plan is None or plan.gpus == record.ranks else None, file),
            _partial_all_reduces(record, file),
        ]
    return tuple(finding for finding in found if finding is not None)


def _burst_parallelism(
    record: RunRecord | TrainingRecord,
    measured: float,
    planned: float | None,
    plan: Plan | None,
    file: str,
    replan: str,
) -> Finding:
    """Judges the plan by its predicted gain over DDP, with the error of the planned time as that of the gain."""
    by_turns = (
        f"dp.compare_techniques(job, global_batch={record.global_batch}, ranks={record.ranks}, plan=plan) of a "
        "job without accumulation and clip_norm, which measures DDP and the plan by turns"
    )
    evidence = f"an iteration takes {format_seconds(measured)}"
    if record.ranks < 2:  # it compares ways to train on several
        by_turns = ""
    if planned is None:
        return Finding("burst parallelism", "unknown", None, f"{evidence}; DDP was not measured", by_turns)
    deviation = measured / planned - 1
    evidence += f", planned {format_seconds(planned)} ({format_growth(deviation)})"
    emulated = isinstance(record, RunRecord) and record.emulated_rank is not None
    if record.cores < record.ranks and not emulated:
        evidence += f"; {record.ranks} ranks share {record.cores} cores, so that times predict nothing"
        return Finding("burst parallelism", "unknown", None, evidence, by_turns)
    step = replan if abs(deviation) > DEVIATION else by_turns
    if plan is None:
        evidence += "; DDP was not measured (the run's plan predicts it: deeppool show PLAN RUN)"
        return Finding("burst parallelism", "unknown", None, evidence, step)
    if record.ranks != plan.gpus:
        evidence += f"; it ended on {record.ranks} of {plan.gpus} GPUs, by a plan for so many"
        return Finding("burst parallelism", "unknown", None, evidence, "the same command, when all GPUs can be used")
    compared = replace(plan.comparison, error=abs(deviation))
    gain, verdict, where = compared.gain, compared.verdict, compared.where
    evidence += f"; {compared.name}{where} is predicted to take {gain:.2f} times as long as the plan"
    evidence += "" if compared.fitting else f", but {compared.too_large}"
    if verdict == "unknown":
        evidence += ", which is within that deviation"
    elif abs(deviation) <= DEVIATION:
        step = f"deeppool train {file} package.module:job --steps N" if verdict == "yes" else f"train with DDP{where}"
    return Finding("burst parallelism", verdict, gain, evidence, step)


def _collocation(run: RunRecord, planned: float | None, plan: Plan | None, file: str, name: str | None) -> Finding:
    """Judges the background of a run, or the idle time that waits for one."""
    if run.background is None:
        idle = run.foreground.alone.idle_share
        evidence = f"no background ran; ranks are idle {', '.join(f'{share:.0%}' for share in idle)} of the time"
        return _without_background(fmean(idle), evidence, f"deeppool run {file} --background resnet18 --seconds 60")
    name = name or run.background.model
    found = collocation_of(run)
    # Of ranks that share cores times predict nothing.
    apart = run.emulated_rank is None and run.cores >= run.ranks
    if plan is not None and planned is not None and plan.gpus == run.ranks and apart:
        found = _beside_predictions(run, plan, abs(run.foreground.alone.iteration_time.p50 / planned - 1))
    bounded = run.sharing is not None and run.sharing.max_slowdown is not None
    steps: dict[Verdict, str] = {
        "yes": f"deeppool train {file} package.module:job --steps N --background package.module:other",
        "no": "run the second job on GPUs of its own",
        "unknown": f"deeppool run {file} --background {name} --seconds N, longer: the interval narrows",
    }
    step = steps[found.verdict]
    if not bounded and run.foreground.slowdown > NOTICEABLE:
        step = f"deeppool run {file} --background {name} --policy feedback --max-slowdown 0.01"
    return Finding("collocation", found.verdict, found.total, found.why, step)


def _beside_predictions(run: RunRecord, plan: Plan, error: float) -> CollocationGain:
    """Judges both jobs of a run beside what they train without collocation, by the predictions of its plan.

    Each job may have all GPUs in turn, the first one by the plan or by DDP, whichever is faster. Or the first one is by
    DDP on fewer, and the second job has the others.
    """
    compared = plan.comparison
    fastest = min([plan.iteration_time, *(one.seconds for one in compared.fitting)])
    rival = Rival()
    for one in compared.fitting:
        share = fastest / one.seconds
        total = share + (plan.gpus - one.gpus) / plan.gpus
        if one.gpus < plan.gpus and total > rival.total:
            where = f"{compared.name} on {format_count(one.gpus, 'GPU')}"
            rival = Rival(f"{where} with the second job on the others, as predicted", total, error * share)
    if fastest == plan.iteration_time:
        return collocation_of(run, rival=rival)
    over = f"{compared.name}{compared.where}, as predicted"
    speed = fastest / plan.iteration_time
    return collocation_of(run, speed=speed, error=error * speed, over=over, rival=rival)


def _without_background(idle: float, evidence: str, step: str) -> Finding:
    if idle < WORTH - 1:
        return Finding("collocation", "no", None, evidence, "")
    return Finding("collocation", "unknown", None, evidence, step)


def _slowdown_bound(run: RunRecord, file: str, name: str | None) -> Finding | None:
    """Judges whether the requested bound was kept; None: none was requested."""
    bound = None if run.sharing is None else run.sharing.max_slowdown
    if bound is None or run.background is None:
        return None
    slowdown, margin = run.foreground.slowdown, run.foreground.slowdown_margin
    within = "" if margin is None else f" ± {100 * margin:.1f}"
    evidence = f"slowdown {format_percent(slowdown)}{within}, at most {format_percent(bound)} were allowed"
    again = f"deeppool run {file} --background {name or run.background.model} --max-slowdown {bound:g}"
    if margin is None or abs(slowdown - bound) <= margin:
        evidence += "; one round has no interval" if margin is None else "; the interval contains the bound"
        return Finding(
            "slowdown bound", "unknown", None, evidence, f"{again} --seconds N, longer: the interval narrows"
        )
    if slowdown < bound:
        return Finding("slowdown bound", "yes", None, evidence, "")
    return Finding("slowdown bound", "no", None, evidence, f"{again} --policy feedback --background-batch 1")


def _background_training(record: TrainingRecord, plan: Plan | None, file: str) -> Finding | None:
    """Judges the backgrounds of a training, or the idle time of its plan; None: neither is known."""
    if not record.background:
        if plan is None:
            return None
        idle = max(0.0, 1 - plan.gpu_seconds / (plan.gpus * plan.iteration_time))
        evidence = f"no background trained; the plan leaves {idle:.0%} of the time idle"
        # A job's model may be an object, which deeppool run cannot make.
        step = f"deeppool train {file} package.module:job --steps N --background resnet18"
        return _without_background(idle, evidence, step)
    trained = [each for each in record.background if each.samples]
    if not trained:
        ended = "; ".join(dict.fromkeys(str(each) for each in record.background))
        return Finding("collocation", "no", None, ended, "")
    evidence = ", ".join(f"{each.name} trained {format_rate(each.throughput)} samples/s" for each in trained)
    return Finding(
        "collocation",
        "unknown",
        None,
        f"{evidence}; a training measures none of the jobs alone",
        f"deeppool run {file} --background package.module:other --seconds 60, which does",
    )


def _partial_all_reduces(record: TrainingRecord, file: str) -> Finding | None:
    """Judges how unlike the ranks compute; None: there is one rank."""
    if record.ranks < 2:
        return None
    times = record.compute_times
    if not times:
        return partial_collectives(plan_file=file)
    stages = [stage.gpus for stage in record.stages]
    groups = groups_alike(times, stages)
    usual = [median(each.p50 for each in group) for group in groups]
    late = [max(x.p99 for x in group) - p50 for group, p50 in zip(groups, usual, strict=True) if len(group) > 1]
    if not late:
        evidence = "by its plan no two ranks compute exactly the same layers, so their times do not show who is late"
        return Finding("partial all-reduces", "unknown", None, evidence, "")
    longest = 1 + max(late) / max(usual)
    evidence = f"the longest computing of a rank (p99) is {longest:.2f} times the usual one"
    if (named := straggler(times, stages)) is not None:
        evidence += f"; {named}"
    if longest < NOTEWORTHY:
        return Finding("partial all-reduces", "no", None, f"{evidence}: no rank waits for long", "")
    step = (
        "dp.train(plan, job, steps=N, gradient_sync=dp.EagerSGD()) of a job without clip_norm, fp16 and synchronised "
        "BatchNorm, and compare the loss against time"
    )
    return Finding("partial all-reduces", "unknown", None, f"{evidence}: only a training shows what they gain", step)
