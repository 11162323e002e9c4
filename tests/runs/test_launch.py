"""Records of live runs: their numbers agree with each other and with the plan, and the model trains."""

import dataclasses
import itertools
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

import deeppool as dp
from deeppool.base.live_sample import LiveSample
from deeppool.base.sharing import POLICIES
from deeppool.cluster.cluster import find_cluster
from deeppool.collocation.background_jobs import BackgroundJobs, WorkDone
from deeppool.collocation.background_placement import PROCESS, BackgroundSetup
from deeppool.collocation.collocated_processes import CollocatedProcesses
from deeppool.collocation.condition_results import BoundResults, assign_to_bounds
from deeppool.device.find import find_device
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.execution.measurements import iteration_times
from deeppool.execution.ranks import Ranks
from deeppool.planning.plan import Plan
from deeppool.processes.managed_process import Message
from deeppool.records.run_record import ForegroundResult, RunRecord, summarise
from deeppool.runs.interleaved_measurement import RunResults
from deeppool.runs.launch_record import add_cost_saved, build_run_record
from deeppool.scheduling.governor import BLOCK, DENSE, is_alone
from deeppool.simulation.plan.simulate import simulate
from deeppool.units import format_percent
from tests.figures.records import run_of, two_layer_plan

pytestmark = pytest.mark.usefixtures("in_the_checkout")

EXAMPLE = "examples.two_branch:two_branch"
GLOBAL_BATCH = 4
STEPS = 5
FOREGROUND = ("forward", "backward", "reshard", "sync", "update")


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two ranks; the second one does nothing in the middle of the model."""
    profile = dp.profile(EXAMPLE, device="cpu", batch_sizes=[2, 4])
    found = dp.plan(profile, find_cluster("loopback", 2), GLOBAL_BATCH)
    middle = range(len(found.layers) // 3, 2 * len(found.layers) // 3)
    layers = [
        dataclasses.replace(layer, gpus=(0,), gpu_count=1)
        if index in middle
        else dataclasses.replace(layer, gpus=(0, 1), gpu_count=2)
        for index, layer in enumerate(found.layers)
    ]
    # All share GPU 0, so none run side by side, whatever the search had found for them.
    made = dataclasses.replace(found, layers=tuple(layers), device_name="another machine")
    return dataclasses.replace(made, iteration_time=simulate(made).iteration_time)


SAMPLES: list[LiveSample] = []
"""Of that run."""
ANSWERS: list[list[Message]] = []
"""Of its ranks to each command to train."""


@pytest.fixture(scope="module")
def collocated(plan: Plan) -> tuple[RunRecord, list[tuple[str, float]]]:
    """A run beside a background job, with all that a policy has, and its progress."""
    progress: list[tuple[str, float]] = []
    train = Ranks.train

    def recorded(*arguments, **options) -> list[Message]:
        ANSWERS.append(train(*arguments, **options))
        return ANSWERS[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranks, "train", recorded)
        record = dp.launch(
            plan,
            background=EXAMPLE,
            policy="feedback",
            # As in a notebook, some of the numbers are NumPy's.
            max_slowdown=np.float64(0.05),
            background_batch=np.int64(2),
            steps=np.int64(STEPS),
            on_sample=SAMPLES.append,
            on_progress=lambda *report: progress.append(report),
        )
    return record, progress


@pytest.fixture(scope="module")
def alone(plan: Plan) -> ForegroundResult:
    """What the governor learns from and the three phases with a foreground are as many iterations."""
    return dp.launch(plan, steps=DENSE + 3 * STEPS).foreground


# -- numbers ----------------------------------------------------------------------------------------


@pytest.mark.processes
def test_every_condition_has_the_requested_number_of_iterations(collocated) -> None:
    front = collocated[0].foreground
    for phase in (front, front.alone, front.alone_asleep):
        assert phase.iteration_time.count == STEPS
        assert 0 < phase.iteration_time.p50 <= phase.iteration_time.p99
        assert phase.throughput == pytest.approx(GLOBAL_BATCH / phase.iteration_time.mean)
        assert len(phase.idle_share) == 2
        assert all(0 <= share <= 1 for share in phase.idle_share)
    assert front.slowdown == pytest.approx(front.iteration_time.mean / front.alone.iteration_time.mean - 1)
    # Of three rounds.
    assert front.slowdown_margin > 0 and front.alone.iteration_time.margin > 0
    assert f"slowdown {format_percent(front.slowdown)} ± " in str(collocated[0])


@pytest.mark.slow
@pytest.mark.processes
def test_the_foreground_computes_the_same_numbers_beside_a_background_as_alone(collocated, alone) -> None:
    """Bit by bit."""
    beside = collocated[0].foreground
    assert (beside.first_loss, beside.last_loss) == (alone.first_loss, alone.last_loss)


@pytest.mark.processes
def test_every_iteration_is_published_with_its_condition_and_bound(collocated) -> None:
    def samples_of(condition: str) -> list[LiveSample]:
        return [one for one in SAMPLES if one.condition == condition and one.seconds is not None]

    front = collocated[0].foreground
    phases = {"asleep": front.alone_asleep, "awake": front.alone, "collocated": front}
    for position, (condition, phase) in enumerate(phases.items()):
        answers = ANSWERS[-9 + position :: 3]  # of three rounds
        # A sample has the time of rank 0, and the record that until the last rank ends.
        assert [one.seconds for one in samples_of(condition)] == [x for each in answers for x in each[0]["times"]]
        times = [seconds for each in answers for seconds in iteration_times(each)]
        assert dataclasses.replace(phase.iteration_time, margin=None) == summarise(times)
    assert len(samples_of("learning")) == DENSE
    beside = samples_of("learning") + samples_of("collocated")
    assert {one.bound for one in beside} == {0.05}
    assert [one.share == 0 for one in beside] == [is_alone(number) for number in range(DENSE + STEPS)]
    assert {(one.bound, one.share) for one in samples_of("awake") + samples_of("asleep")} == {(None, None)}
    assert any(one.condition == "background alone" and one.iteration is None for one in SAMPLES)
    numbers = [one.iteration for one in SAMPLES if one.iteration is not None]
    assert numbers == list(range(1, len(numbers) + 1))
    times = [one.time for one in SAMPLES]
    assert times == sorted(times)
    for before, after in itertools.pairwise(SAMPLES):
        assert [job.rank for job in after.background] == [0, 1]
        assert all(a.samples <= b.samples for a, b in zip(before.background, after.background, strict=True))
    assert all(job.samples > 0 and job.samples == 2 * job.steps for job in SAMPLES[-1].background)


@pytest.mark.slow
@pytest.mark.processes
def test_a_background_in_the_ranks_own_processes_is_measured_alike_and_changes_no_number(plan: Plan, alone) -> None:
    """As on a GPU, where the two are told apart by their streams; here they share a core and an interpreter."""
    sharing = dataclasses.replace(POLICIES["feedback"], priority="normal", max_slowdown=0.5, home="thread")
    record = dp.launch(plan, background=EXAMPLE, policy=sharing, background_batch=2, steps=STEPS)
    front, back = record.foreground, record.background
    assert (front.first_loss, front.last_loss) == (alone.first_loss, alone.last_loss)
    assert (back.home, back.priority, back.ended) == ("thread of the rank", "the rank's own priority", "stopped")
    assert (record.policy, record.sharing) == ("custom", sharing)
    assert back.alone_throughput > 0
    assert back.throughput >= 0
    assert math.isfinite(back.first_loss)
    assert math.isfinite(back.last_loss)
    assert all(governor.collocated for governor in record.governors)
    assert all(0 <= share <= 1 for share in front.idle_share)
    assert "(thread of the rank)" in str(record)


@pytest.mark.processes
def test_each_rank_reports_the_results_of_its_governor(collocated) -> None:
    record, _ = collocated
    assert record.sharing == dataclasses.replace(POLICIES["feedback"], max_slowdown=0.05)
    assert len(record.governors) == record.ranks == 2
    beside = range(DENSE + STEPS)
    # Of three phases alone with two, two and one iterations.
    phases = 1 + 1 + 0
    for governor in record.governors:
        # The first of a block, and of a phase, alone does not count.
        assert governor.alone == sum(is_alone(number) and number % BLOCK > 0 for number in beside) + phases
        assert governor.collocated == sum(not is_alone(number) for number in beside)
        assert governor.error > 0
        assert 0 < governor.share <= 1
    assert "governor     rank 1: slowdown " in str(record)
    assert "feedback 0.1, max_slowdown 0.05)" in str(record)


@pytest.mark.processes
def test_the_harvest_is_collocated_throughput_over_throughput_alone(collocated) -> None:
    record, _ = collocated
    back, alone = record.background, record.foreground.alone
    assert back.ended == "stopped"
    assert (back.model, back.batch) == (EXAMPLE, 2)
    assert back.alone_throughput > 0
    assert back.throughput >= 0
    assert back.harvest == pytest.approx(back.throughput / back.alone_throughput)
    assert back.harvest_of_idle == pytest.approx(back.harvest / (sum(alone.idle_share) / 2))
    assert math.isfinite(back.first_loss)
    assert math.isfinite(back.last_loss)


def test_a_step_of_a_background_that_accumulates_gradients_counts_all_its_batches() -> None:
    training = dp.TrainingJob(model=EXAMPLE, dataset=list, optimizer=lambda named: None, accumulation=3)
    job = dp.BackgroundJob(training, batch=2)
    answers = [
        {"times": [1.0], "bounds": [0], "busy": 0.5, "wall": 1.0, "run_delays": [], "spans": [[]]} for _ in range(2)
    ]
    results = RunResults([BoundResults(None, 0.0, work=WorkDone(steps=6.0, seconds=4.0, phases=[(6.0, 4.0)]))])
    results.background_alone = WorkDone(steps=10.0, seconds=2.0, phases=[(10.0, 2.0)])
    for condition in (results.active_cores, results.collocated):
        condition.add(answers)
    assign_to_bounds(answers, results.bounds)
    results.last = answers
    ranks = SimpleNamespace(device_name="this machine")
    processes = CollocatedProcesses(2, ranks, BackgroundJobs(job, None))  # type: ignore[arg-type]
    setup = BackgroundSetup(job, dp.Sharing(), PROCESS)
    back = build_run_record(two_layer_plan(2), setup, processes, results).background
    assert (back.throughput, back.alone_throughput, back.harvest) == (6 / 4 * 2 * 3, 10 / 2 * 2 * 3, 0.3)


@pytest.mark.processes
def test_the_device_is_that_of_the_ranks_where_the_plan_was_made_on_another(collocated) -> None:
    assert collocated[0].device_name == find_device("cpu").name


@pytest.mark.processes
def test_stages_cover_the_plan(collocated, plan: Plan) -> None:
    stages = collocated[0].stages
    assert [stage.gpus for stage in stages] == [(0, 1), (0,), (0, 1)]
    assert sum(stage.layers for stage in stages) == len(plan.layers)
    assert sum(stage.predicted for stage in stages) == pytest.approx(sum(layer.time for layer in plan.layers))
    for stage in stages:
        assert stage.forward > 0
        assert stage.backward > 0
        assert stage.reshard >= 0
        # Batches are split between two, so their gradients are summed; one rank has nobody to sum with.
        assert (stage.sync > 0) == (len(stage.gpus) > 1)


@pytest.mark.processes
def test_the_timeline_is_one_iteration_of_every_rank(collocated) -> None:
    record, _ = collocated
    timeline = record.timeline
    assert (timeline.provenance, timeline.gpus) == ("measured", 2)
    # Rank 0 timed its iterations by the host's clock, around these spans.
    own = [span for span in timeline.spans if span.gpu == 0 and span.kind in FOREGROUND]
    assert own[-1].end - own[0].start <= max(one.seconds for one in SAMPLES if one.condition == "collocated")
    for gpu in range(2):
        own = [span for span in timeline.spans if span.gpu == gpu and span.kind in FOREGROUND]
        assert {span.kind for span in own} >= {"forward", "backward", "reshard", "sync", "update"}
        assert sum(span.kind == "update" for span in own) == 1
        assert all(before.end <= after.start for before, after in itertools.pairwise(own))
    for span in timeline.spans:
        assert 0 <= span.start <= span.end <= timeline.duration
    assert record.plan_timeline.provenance == "predicted"
    assert record.plan_timeline.duration == pytest.approx(record.plan_iteration_time)


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system counts no run delays")
def test_the_delay_of_wake_ups_is_measured_in_every_condition(collocated) -> None:
    record, _ = collocated
    front = record.foreground
    for delay in (front.wake_delay, front.alone.wake_delay, front.alone_asleep.wake_delay):
        # Two ranks; an iteration without any wait has none.
        assert 0 < delay.count <= 2 * STEPS
        assert 0 <= delay.p50 <= delay.p99 <= delay.per_iteration * delay.count
    assert f"wake-up      delay of the foreground {front.wake_delay}; alone {front.alone.wake_delay}" in str(record)
    assert "cost saved" not in str(record)


def test_a_record_without_counters_says_that_delays_were_not_measured() -> None:
    assert "wake-up      delay of the foreground not measured" in str(run_of())
    assert "wake-up" not in str(run_of(background=False))


def test_a_record_shows_what_its_background_saves_at_a_price(tmp_path: Path) -> None:
    record = add_cost_saved(run_of(), 2.0)
    # Harvest 30 %; 11.5 % slower, so of an hour 0.115 / 1.115 is lost.
    assert record.cost_saved.saved_per_gpu_hour == pytest.approx(2 * (0.3 - 0.115 / 1.115))
    assert "cost saved   0.394 per GPU-hour at 2" in str(record)
    assert dp.load(dp.save(record, tmp_path / "run.json")) == record
    assert "cost saved: 0.394 per GPU-hour at 2" in dp.figures.collocation(record).to_json()
    one = add_cost_saved(dataclasses.replace(run_of(), emulated_rank=1), 2.0)
    assert one.cost_saved.gpu_seconds == pytest.approx(record.cost_saved.gpu_seconds / 4)
    with pytest.raises(InvalidValueError, match="gpu_price is for what a background job saves"):
        dp.launch(two_layer_plan(), gpu_price=2.0)


@pytest.mark.processes
def test_the_loss_is_finite(collocated) -> None:
    front = collocated[0].foreground
    # Ten classes and no training to speak of: about log 10.
    assert 1 < front.first_loss < 4
    assert 1 < front.last_loss < 4


@pytest.mark.processes
def test_progress_never_goes_back(collocated) -> None:
    whats, shares = zip(*collocated[1], strict=True)
    assert whats[0] == "starting"
    assert any(what.startswith("starting: waiting for rank ") for what in whats)
    assert whats[-1] == "done"
    assert list(shares) == sorted(shares)
    assert shares[-1] == 1
    # The time to the end is estimated from what is done since the first share.
    first = whats.index("measuring, round 1 of 3")
    assert shares[first - 1] == 0 < shares[first]


@pytest.mark.processes
def test_a_record_is_saved_and_prints_what_it_ran_on(collocated, tmp_path: Path) -> None:
    record, _ = collocated
    assert dp.load(dp.save(record, tmp_path / "run.json")) == record
    assert (record.policy, record.ranks, record.device, record.backend) == ("feedback", 2, "cpu", "gloo")
    assert "BatchNorm" in " ".join(record.notes)
    text = str(record)
    for part in (
        EXAMPLE,
        "slowdown",
        "harvest",
        "SCHED_IDLE" if hasattr(os, "SCHED_IDLE") else "nice 19",
    ):
        assert part in text


@pytest.mark.slow
@pytest.mark.processes
def test_training_learns(plan: Plan) -> None:
    record = dp.launch(plan, steps=40, learning_rate=0.02)
    front = record.foreground
    assert front.last_loss < 0.5 * front.first_loss
    assert (record.policy, record.background, front.alone_asleep) == ("none", None, None)
    assert (front.slowdown, front.iteration_time) == (0, front.alone.iteration_time)


@pytest.mark.slow
@pytest.mark.processes
def test_a_rank_that_the_plan_gives_no_layer_is_idle(plan: Plan) -> None:
    """It owns no parameter, and no transfer keeps it in step with the other one."""
    layers = [dataclasses.replace(layer, gpus=(0,), gpu_count=1) for layer in plan.layers]
    record = dp.launch(dataclasses.replace(plan, layers=tuple(layers)), steps=20)
    # On a busy machine the other one waits for its core for most of the time, which is none of computing.
    computing, nothing = (1 - share for share in record.foreground.idle_share)
    assert nothing < min(0.1, computing / 2)
    assert {span.gpu for span in record.timeline.spans} == {0}
    assert record.timeline.duration <= 2 * record.foreground.iteration_time.p99


# -- arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (
            {"policy": "wild", "background": EXAMPLE},
            "policy must be one of none, naive, nice, priority, paced, feedback, a Sharing or None, got 'wild'",
        ),
        ({"max_slowdown": 0.01}, "max_slowdown 0.01 bounds a background, and policy 'none' has none"),
        ({"policy": "none", "background": EXAMPLE, "gpu_price": 2.0}, "gpu_price is for what a background job saves"),
        (
            {"max_slowdown": -1.0, "background": EXAMPLE},
            "max_slowdown must be more than 0 and finite, got -1: it is how much slower the foreground may become",
        ),
        ({"background_batch": 0, "background": EXAMPLE}, "background_batch must be at least 1, got 0"),
        ({"background_batch": 2.5, "background": EXAMPLE}, "background_batch must be a whole number or None, got 2.5"),
        ({"background_batch": 2}, "background_batch is for a background that is given by its name, got 2"),
        ({"policy": "priority"}, "policy 'priority' needs a background job"),
        ({"seconds": 3.0, "steps": 2}, "give seconds or steps, not both: got 3 s and 2 steps"),
        ({"seconds": 0.0}, "seconds must be positive"),
        ({"seconds": math.nan}, "seconds must be positive"),
        ({"seconds": math.inf}, "seconds must be positive"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 2.5}, "steps must be a whole number or None, got 2.5"),
        ({"emulate_rank": 0.5}, "emulate_rank must be a whole number or None, got 0.5"),
    ],
)
def test_invalid_arguments_are_refused_before_a_process_starts(
    arguments: dict, phrase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deeppool.processes.launcher.ManagedProcess", None)
    with pytest.raises(InvalidValueError) as caught:
        dp.launch(two_layer_plan(), **arguments)
    assert phrase in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, r"unknown model '.*given as an object, train it \(deeppool train PLAN package\.module:job\)"),
        ({"background": "vgg99"}, r"unknown model 'vgg99'.*is package\.module:callable\)$"),
    ],
)
def test_an_unknown_model_is_refused_before_a_process_starts(
    arguments: dict, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deeppool.processes.launcher.ManagedProcess", None)
    with pytest.raises(CaptureError, match=told):
        dp.launch(two_layer_plan(), **arguments)


def test_a_plan_for_a_device_in_virtual_time_is_refused() -> None:
    plan = dataclasses.replace(two_layer_plan(), device="emulated:h200")
    with pytest.raises(InvalidValueError, match="each process has a virtual clock of its own"):
        dp.launch(plan)
    with pytest.raises(InvalidValueError, match="ranks on device emulated:h200 cannot be timed together"):
        dp.train(plan, dp.TrainingJob(model=nn.Linear(2, 2), input_shape=(2,), dataset=list, optimizer=print), steps=1)


def test_times_are_summarised_by_median_99th_percentile_and_mean() -> None:
    summary = summarise([4.0, 1.0, 2.0, 3.0, 10.0])
    assert (summary.p50, summary.mean, summary.count) == (3.0, 4.0, 5)
    # 0.99 x 4 intervals above the smallest: 96 % of the way from 4 to 10.
    assert summary.p99 == pytest.approx(9.76)
