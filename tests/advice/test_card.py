"""The card that ends runs and trainings: verdicts on records whose times are chosen here."""

from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.advice.card import findings_of, text_with_card
from deeppool.advice.record import Finding
from deeppool.advice.verdict import Rival, collocation_of
from deeppool.planning.evaluate.baselines import DataParallelTime
from deeppool.planning.plan import Plan
from deeppool.records.compute_times import ComputeTimes
from deeppool.records.run_record import RunRecord
from deeppool.records.training_record import TrainingRecord

RECORDED = Path(__file__).parents[1] / "records/recorded"


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan that is predicted to be 1.2 times as fast as DDP."""
    found = dp.plan(dp.find_profile("vgg16-cpu"), 2, 16)
    return replace(found, data_parallel_iteration_time=1.2 * found.iteration_time, data_parallel_on_fewer=())


def run_of(*, alone: float = 0.1, planned: float = 0.1, slowdown: float = 0.0, margin: float | None = 0.01, **changes):
    run: RunRecord = dp.load(RECORDED / "run.json")
    front = run.foreground
    phase = replace(front.alone, iteration_time=replace(front.alone.iteration_time, p50=alone), idle_share=(0.0, 0.5))
    front = replace(front, alone=phase, slowdown=slowdown, slowdown_margin=margin)
    background = replace(run.background, harvest=0.4, harvest_margin=0.02)
    made = replace(run, foreground=front, background=background, plan_iteration_time=planned, plan_update_time=0.01)
    return replace(made, **changes)


def of(technique: str, record: object, plan: Plan | None = None) -> Finding:
    return {finding.technique: finding for finding in findings_of(record, plan, "my plan.json")}[technique]


@pytest.mark.parametrize(
    ("alone", "verdict", "step"),
    [
        (0.105, "yes", "deeppool train 'my plan.json'"),
        (0.13, "unknown", "deeppool replan 'my plan.json'"),
        (0.07, "unknown", "deeppool replan 'my plan.json'"),
    ],
)
def test_a_plan_is_worth_it_if_its_gain_exceeds_the_error_of_its_time(
    plan: Plan, alone: float, verdict: str, step: str
) -> None:
    found = of("burst parallelism", run_of(alone=alone), plan)
    assert found.verdict == verdict
    assert found.gain == pytest.approx(1.2)
    assert found.next_step.startswith(step)


def test_a_plan_that_is_ddp_or_whose_ranks_share_cores_or_without_prediction_gains_nothing_shown(plan: Plan) -> None:
    as_ddp = replace(plan, data_parallel_iteration_time=plan.iteration_time)
    assert of("burst parallelism", run_of(), as_ddp).verdict == "no"
    assert of("burst parallelism", run_of(cores=1), plan).verdict == "unknown"
    assert "share 1 cores" not in of("burst parallelism", run_of(cores=1, emulated_rank=0), plan).evidence
    assert of("burst parallelism", run_of()).verdict == "unknown"
    assert of("burst parallelism", run_of(plan_update_time=0.0), plan).verdict == "unknown"


@pytest.mark.parametrize(
    ("slowdown", "margin", "verdict"),
    [(0.05, 0.01, "yes"), (0.21, 0.02, "unknown"), (0.3, 0.02, "no"), (0.05, None, "unknown")],
)
def test_the_bound_of_a_run_is_kept_if_the_interval_lies_below_it(
    slowdown: float, margin: float | None, verdict: str
) -> None:
    """The recorded run has a bound of 20 %."""
    assert of("slowdown bound", run_of(slowdown=slowdown, margin=margin)).verdict == verdict


def test_both_jobs_together_decide_about_collocation_and_a_slow_foreground_gets_a_bound() -> None:
    assert of("collocation", run_of()).verdict == "yes"
    assert of("collocation", run_of()).evidence.endswith(f"of itself alone at its batch of {run_of().background.batch}")
    # 1/2 of the foreground and 0.4 of the background are less than one job.
    slow = run_of(slowdown=1.0, sharing=None)
    assert of("collocation", slow).verdict == "no"
    assert of("collocation", slow).next_step.endswith("--policy feedback --max-slowdown 0.01")


def test_collocation_has_to_beat_ddp_in_turn_and_the_second_job_on_gpus_of_its_own(plan: Plan) -> None:
    """Together 1 + 0.4 jobs' worth, as in the run above."""
    alone = plan.iteration_time
    assert of("collocation", run_of(), plan).verdict == "yes"
    # DDP on one of two GPUs is hardly slower: the second job has the other one, which is 0.9 + 0.5.
    on_one = replace(plan, data_parallel_on_fewer=(DataParallelTime(1, alone / 0.9),))
    found = of("collocation", run_of(), on_one)
    assert found.verdict == "unknown"
    assert "beside 1.40 by DDP on 1 GPU with the second job on the others, as predicted" in found.evidence
    # So has it the one that the plan never uses, which the run knows.
    narrow = run_of(stages=tuple(replace(stage, gpus=(0,)) for stage in run_of().stages))
    for known in (None, plan):
        found = of("collocation", narrow, known)
        assert found.verdict == "no"
        assert "beside 1.50 by the plan with the second job on the ranks that it never uses" in found.evidence
    # DDP is twice as fast as the plan: 0.5 + 0.4.
    slow = replace(plan, data_parallel_iteration_time=alone / 2)
    found = of("collocation", run_of(), slow)
    assert (found.verdict, found.gain) == ("no", pytest.approx(0.9))
    assert "the foreground at 0.50 of DDP, as predicted" in found.evidence
    assert of("collocation", run_of(cores=1), slow).gain == pytest.approx(1.4)


def test_a_shown_loss_to_jobs_that_take_turns_is_no_less_one_beside_a_prediction_too_uncertain_to_tell() -> None:
    run = run_of(slowdown=1.0, margin=0.1)
    assert collocation_of(run).verdict == "no"
    found = collocation_of(run, rival=Rival("DDP, as predicted", 1.4, half_width=0.9))
    assert found.verdict == "no"
    assert "beside 1.00 by jobs that take turns, a loss" in found.why
    assert "beside 1.40 by DDP, as predicted, a loss" in collocation_of(run, rival=Rival("DDP, as predicted", 1.4)).why


def test_next_steps_name_the_background_as_the_command_did() -> None:
    # The model of a job is that of its class, which no command takes.
    for changes in ({"slowdown": 1.0, "sharing": None}, {"slowdown": 0.3}, {"margin": None}):
        steps = [each.next_step for each in findings_of(run_of(**changes), background="my.module:job")]
        runs = [step for step in steps if step.startswith("deeppool run ")]
        assert runs, changes
        assert all(" --background my.module:job " in step for step in runs), runs


def test_idle_ranks_wait_for_a_background_and_busy_ones_do_not() -> None:
    idle = run_of(background=None)
    assert "0%, 50%" in of("collocation", idle).evidence
    assert of("collocation", idle).verdict == "unknown"
    front = replace(idle.foreground, alone=replace(idle.foreground.alone, idle_share=(0.0, 0.02)))
    assert of("collocation", replace(idle, foreground=front)).verdict == "no"


def times(*ranks: tuple[float, float]) -> tuple[ComputeTimes, ...]:
    return tuple(ComputeTimes(rank, p50, p99, 100, 0.5) for rank, (p50, p99) in enumerate(ranks))


def test_a_training_without_imbalance_needs_no_partial_all_reduces_and_one_with_it_must_try() -> None:
    training: TrainingRecord = dp.load(RECORDED / "training.json")
    training = replace(training, stages=training.stages[:1])  # on both ranks
    alike = replace(training, compute_times=times((0.10, 0.11), (0.10, 0.10)))
    unlike = replace(training, compute_times=times((0.10, 0.30), (0.10, 0.10)))
    assert of("partial all-reduces", alike).verdict == "no"
    assert of("partial all-reduces", unlike).verdict == "unknown"
    assert "3.00 times" in of("partial all-reduces", unlike).evidence
    assert "EagerSGD" in of("partial all-reduces", unlike).next_step


def test_ranks_with_unlike_layers_by_their_plan_are_not_compared() -> None:
    training: TrainingRecord = dp.load(RECORDED / "training.json")
    (stage,) = training.stages[:1]
    burst = (replace(stage, gpus=(0, 1, 2)), replace(stage, gpus=(0,)))
    unlike = replace(training, compute_times=times((0.30, 0.31), (0.10, 0.11), (0.10, 0.10)), ranks=3, stages=burst)
    assert of("partial all-reduces", unlike).verdict == "no"
    assert "1.03 times the usual one: no rank" in of("partial all-reduces", unlike).evidence
    assert "late" not in str(unlike)
    for measured in (times((0.30, 0.31), (0.10, 0.11)), times((0.30, 0.31))):  # by the latter rank 1 computes nothing
        found = of("partial all-reduces", replace(unlike, compute_times=measured, ranks=2))
        assert (found.verdict, found.next_step) == ("unknown", "")
    assert "'my plan.json'" in of("partial all-reduces", replace(unlike, compute_times=())).next_step
    assert "no two ranks compute exactly the same layers" in found.evidence


def test_idle_time_of_a_training_gets_a_background_by_the_command_that_has_its_job(plan: Plan) -> None:
    # deeppool run cannot make a model that the job has as an object.
    training = replace(dp.load(RECORDED / "training.json"), background=(), ranks=plan.gpus)
    found = of("collocation", training, replace(plan, gpu_seconds=plan.iteration_time))
    assert "the plan leaves 50% of the time idle" in found.evidence
    assert found.next_step == "deeppool train 'my plan.json' package.module:job --steps N --background resnet18"


def test_only_runs_and_trainings_have_a_card(plan: Plan) -> None:
    assert text_with_card(plan) == plan.explain()
    run = run_of()
    assert text_with_card(run).startswith(f"{run}\n\n  burst parallelism")


def test_a_training_on_one_gpu_is_not_sent_to_a_comparison_of_ranks() -> None:
    training = replace(dp.load(RECORDED / "training.json"), ranks=1, cores=1)
    for its_plan in (None, dp.plan(dp.find_profile("vgg16-h200"), 1, 8)):
        for planned in (None, training.iteration_time.p50):
            record = replace(training, plan_iteration_time=planned or 1.0, plan_update_time=(planned and 1e-9) or 0.0)
            assert "compare_techniques" not in of("burst parallelism", record, its_plan).next_step


def test_a_training_that_ended_on_fewer_gpus_is_not_judged_by_the_plan_for_all(plan: Plan) -> None:
    training: TrainingRecord = dp.load(RECORDED / "training.json")
    fewer = replace(training, ranks=1, cores=1, plan_update_time=0.01)
    found = of("burst parallelism", fewer, plan)
    assert (found.verdict, found.gain) == ("unknown", None)
    assert "it ended on 1 of 2 GPUs, by a plan for so many" in found.evidence
    assert "collocation" not in {finding.technique for finding in findings_of(fewer, plan)}
