"""What records of runs say in lines."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from deeppool.records.files import load, save_run
from deeppool.records.run_record import GovernorResult, StageTimes
from deeppool.records.training_record import Attempt
from tests.figures.records import run_of, training_of


def test_a_governor_tells_its_estimate_with_two_standard_errors() -> None:
    found = GovernorResult(slowdown=0.021, error=0.006, alone=40, collocated=100, share=0.5, banned=("conv1",))
    assert str(found) == "slowdown +2.1 % ± 1.2 (40 iterations alone), share 50 %, nothing beside conv1"
    assert str(GovernorResult(None, None, 0, 0, 1.0, ())) == "slowdown unknown, share 100 %"


def test_records_and_the_folder_of_runs_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = save_run(run_of(), tmp_path / "runs")
    finally:
        os.umask(before)
    assert [oct(x.stat().st_mode & 0o777) for x in (path.parent, path)] == ["0o700", "0o600"]


def test_runs_of_models_with_long_names_are_saved_under_names_that_file_systems_take(tmp_path: Path) -> None:
    long = replace(run_of(), model=f"mine.{'größe' * 60}:model")
    first, second = save_run(long, tmp_path), save_run(long, tmp_path)
    assert first != second
    assert first.name.startswith("run-2026-11-21T05-00-00-mine.größe")
    assert load(first) == load(second) == long


def test_a_run_says_where_it_ran_how_long_both_jobs_took_and_who_idled() -> None:
    stage = StageTimes("stage 0", (0, 1), 2, 0.016, 0.030, 0.0, 0.001, 0.05)
    lines = str(replace(run_of(), stages=(stage,))).splitlines()
    assert lines == [
        "tiny: 4 ranks on 2 cores of Test CPU (gloo), batch 64, policy priority",
        "foreground   mean 58 ms an iteration (p50 55 ms, p99 80 ms), alone mean 52 ms (p50 50 ms): slowdown +11.5 %; "
        "planned 46 ms and the update",
        "idle alone   rank 0 20 %, rank 1 40 %, rank 2 60 %, rank 3 60 %; loss 2.300 → 2.000",
        "background   mobilenet_v2 at SCHED_IDLE: 30 samples/s, alone 100: harvest 30 %, which is 67 % of the idle "
        "time (stopped)",
        "wake-up      delay of the foreground not measured",
        "stage        stage 0 (2 layers) on 0,1: forward 16 ms, backward 30 ms, reshard 0 s, sync 1 ms; planned 50 ms",
    ]


def test_one_rank_one_core_and_one_layer_are_told_in_the_singular() -> None:
    stage = StageTimes("conv", (0,), 1, 0.016, 0.030, 0.0, 0.0, 0.05)
    run = replace(run_of(), ranks=1, cores=1, stages=(stage,))
    assert run.where == "1 rank on 1 core of Test CPU (gloo)"
    assert "stage        conv (1 layer) on 0: forward" in str(run)
    assert str(replace(training_of(), ranks=1)).startswith("tiny: 1 rank on Test CPU, batch 64")


def test_a_run_of_one_emulated_rank_names_it_and_has_no_loss() -> None:
    run = run_of()
    alone = replace(run.foreground.alone, idle_share=(0.25,))
    run = replace(run, emulated_rank=3, foreground=replace(run.foreground, alone=alone), plan_update_time=0.001)
    first, front, idle, *_ = str(run).splitlines()
    assert first == "tiny: emulated: rank 3 of 4, transfers modelled, on Test CPU, batch 64, policy priority"
    assert front.endswith("planned 46 ms")
    assert idle == "idle alone   rank 3 25 %"


def test_a_training_says_what_happened_to_it_and_nothing_of_what_did_not() -> None:
    plain = replace(training_of(), resumed_from=None, compute_times=())
    assert str(plain).splitlines() == [
        "tiny: 2 ranks on Test CPU, batch 64: updates 5 to 7, loss 2.5000 → 1.5000",
        "250 ms an update (p99 299 ms); planned 100 ms and the optimizer",
    ]
    eventful = replace(
        plain,
        accumulation=2,
        plan_update_time=0.01,
        resumed_from="kept/4",
        restarts=2,
        proposal="gain 3 %",
        switched=True,
        checkpoint="kept/6",
    )
    assert str(eventful).splitlines()[1:] == [
        "250 ms an update (p99 299 ms); planned 190 ms",
        "resumed from kept/4",
        "2 restarts after a fault",
        "replanned: gain 3 % (switched to it)",
        "last checkpoint kept/6",
    ]


@pytest.mark.parametrize(
    ("attempt", "text"),
    [
        (
            Attempt((0, 1), 0.02, ((2, 3), (1, 1)), 0, 40, None, "rank 1 was killed"),
            "updates 1 to 40 on GPUs 0,1; planned 20 ms an iteration, layers: 3 on 2, 1 on 1; rank 1 was killed",
        ),
        (
            Attempt((0,), 0.03, ((1, 4),), 40, 90, 1.5, ""),
            "updates 41 to 90 on GPU 0, after 1.5 s without one; planned 30 ms an iteration, layers: 4 on 1",
        ),
        (
            Attempt((0,), 0.03, ((1, 4),), 40, 40, None, "rank 0 was killed"),
            "no update on GPU 0; planned 30 ms an iteration, layers: 4 on 1; rank 0 was killed",
        ),
    ],
)
def test_an_attempt_says_which_updates_it_made_and_why_it_ended(attempt: Attempt, text: str) -> None:
    assert str(attempt) == text
