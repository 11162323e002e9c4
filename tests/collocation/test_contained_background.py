"""Background jobs with every kind of fault, one after another beside a training that they do not affect."""

import contextlib
import re
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import Dataset

import deeppool as dp
from deeppool.base import serialization
from deeppool.collocation import containment
from deeppool.execution import ranks as ranks_module
from deeppool.execution.checkpoint import latest, load_weights
from deeppool.execution.ranks import Ranks
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import LocalLauncher, WorkerSpec
from deeppool.records.training_record import TrainingRecord
from deeppool.runs import restart_loop
from tests.collocation import misbehaving
from tests.collocation.misbehaving import BATCH, NonFinite, faulty, plain_loop, plain_training, training
from tests.collocation.test_background_worker import serve, start
from tests.processes.children import children, gone
from tests.strategies import profile_from_times

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.usefixtures("in_the_checkout"),
]
STEPS = 6
MIB = 2**20
BUDGET, LEAK = 1000 * MIB, 900 * MIB
GOAL = 12


class SlowData(Dataset):
    """The foreground's data, which are slow: the third update has its samples when a file is there."""

    def __init__(self, awaited: Path) -> None:
        self.data, self.awaited, self.read = misbehaving.dataset(), awaited, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read += 1
        while self.read > 2 * BATCH and not self.awaited.exists():
            time.sleep(0.05)
        return self.data[position]


def one_rank() -> Plan:
    graph = plain_training().capture().graph
    return dp.plan(profile_from_times(graph, [lambda b: 1e-3 * b] * len(graph.layers)), 1, BATCH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


def kill_when_awaited(patch: pytest.MonkeyPatch) -> None:
    """Makes psutil's kills take effect no sooner than their process is waited for: whoever does not wait leaves it."""
    condemned, kill, wait = set(), psutil.Process.kill, psutil.Process.wait

    def wait_for(process: psutil.Process, timeout: float | None = None) -> int | None:
        if process in condemned:
            with contextlib.suppress(psutil.NoSuchProcess):
                kill(process)
        return wait(process, timeout)

    patch.setattr(psutil.Process, "kill", lambda process: condemned.add(process))  # noqa: PLW0108  a method
    patch.setattr(psutil.Process, "wait", wait_for)


@pytest.fixture(scope="module")
def reported() -> list[str]:
    return []


@pytest.fixture(scope="module")
def record(folder: Path, reported: list[str]) -> TrainingRecord:
    pids = folder / "pids"
    jobs = [
        dp.BackgroundJob(training(partial(NonFinite, 3)), batch=BATCH, checkpoints=folder / "nan", checkpoint_every=1),
        dp.BackgroundJob(faulty(partial(misbehaving.fill_memory, LEAK)), batch=BATCH, memory=BUDGET),
        dp.BackgroundJob(faulty(misbehaving.spin_forever), batch=BATCH, checkpoints=folder / "hang"),
        dp.BackgroundJob(
            faulty(misbehaving.die, step=8, once=folder / "once"),
            batch=BATCH,
            steps=GOAL,
            checkpoints=folder / "good",
            checkpoint_every=3,
            restarts=1,
        ),
        dp.BackgroundJob(faulty(partial(misbehaving.ignore_signals, pids), step=2), batch=BATCH),
        dp.BackgroundJob(training(), batch=BATCH),
    ]
    with pytest.MonkeyPatch.context() as patch:
        kill_when_awaited(patch)
        # To fill its memory takes a job up to one.
        patch.setattr(containment, "BUSY_SECONDS", 3.0)
        # The foreground waits for the last job.
        patch.setattr(ranks_module, "MIN_TIMEOUT", 300.0)
        return dp.train(
            one_rank(),
            plain_training(partial(SlowData, pids)),
            steps=STEPS,
            background=jobs,
            # Equals: at the lowest priority they may get nothing for minutes where something else uses this core.
            policy="naive",
            on_progress=lambda what, share: reported.append(what),
        )


def test_the_foreground_trains_bit_by_bit_as_alone(record: TrainingRecord) -> None:
    assert [metrics.loss for metrics in record.metrics] == plain_loop(plain_training().model, STEPS)
    assert record.restarts == 0


def test_each_fault_is_recorded(record: TrainingRecord, reported: list[str]) -> None:
    no_number, full, spinning, crashed, ignoring, waiting = record.background
    assert (no_number.ended, no_number.steps, no_number.last_loss) == ("its loss is nan after step 3", 3, None)
    assert re.fullmatch(
        r"evicted: it held [\d.]+ (MiB|GiB) of 1000.0 MiB; it did not leave by itself, and was killed", full.ended
    )
    assert full.faults == ()
    assert re.fullmatch(r"hangs: it has used \d+ s of CPU time without a step, after step \d", spinning.ended)
    assert spinning.faults == (spinning.ended,)
    assert (crashed.ended, crashed.restarts, crashed.faults) == ("finished", 1, ("was killed by signal 11",))
    assert (ignoring.ended, ignoring.restarts) == ("stopped with the foreground", 0)
    assert (waiting.ended, waiting.rank, waiting.steps) == ("waiting", None, 0)
    assert str(waiting) == f"{waiting.name}: waiting when the training ended"
    assert {outcome.rank for outcome in record.background[:5]} == {0}
    for outcome in record.background:
        assert str(outcome) in str(record)
    assert any("its loss is nan after step 3" in what for what in reported)


def test_a_restarted_job_is_the_same_training(record: TrainingRecord, folder: Path, tmp_path: Path) -> None:
    crashed = record.background[3]
    assert crashed.steps == GOAL
    # At least those after the checkpoint of the sixth step.
    assert crashed.samples >= (GOAL - 6) * BATCH
    serve(start(training(), tmp_path), tmp_path / "whole", steps=GOAL)
    expected = load_weights(latest(tmp_path / "whole"))
    found = load_weights(latest(folder / "good"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_no_checkpoint_holds_values_that_are_not_finite(record: TrainingRecord, folder: Path) -> None:
    assert latest(folder / "nan").name == "step-000002"
    assert record.background[0].checkpoint == str(folder / "nan" / "step-000002")
    assert all(value.isfinite().all() for value in load_weights(latest(folder / "nan")).values())


def test_all_that_a_job_started_ends_with_the_run(record: TrainingRecord, folder: Path) -> None:
    pids = folder / "pids"
    started, written = [int(word) for word in pids.read_text().split()], pids.stat().st_mtime
    assert len(started) == 3
    assert children() == []
    # A process that started later has the id of one that is gone.
    left = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
    assert [process for process in left if process.create_time() < written and not gone(process)] == []


def test_a_record_with_background_jobs_is_read_back(record: TrainingRecord, tmp_path: Path) -> None:
    assert serialization.read(dp.save(record, tmp_path / "record.json"), TrainingRecord) == record


def test_a_background_job_may_start_before_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    # A launcher that learned its slots only from the ranks had none for the job, which was given up.
    asked = threading.Event()
    slot, ranks = LocalLauncher.worker_spec, restart_loop.Ranks

    def ask(launcher: LocalLauncher, rank: int) -> WorkerSpec:
        try:
            return slot(launcher, rank)
        finally:
            asked.set()

    def late(*arguments: Any, **choices: Any) -> Ranks:
        assert asked.wait(300)
        return ranks(*arguments, **choices)

    monkeypatch.setattr(LocalLauncher, "worker_spec", ask)
    monkeypatch.setattr(restart_loop, "Ranks", late)
    found = dp.train(
        one_rank(), plain_training(), steps=1, background=[dp.BackgroundJob(plain_training(), batch=BATCH)]
    )
    assert [outcome.rank for outcome in found.background] == [0]
    assert found.background[0].ended.startswith("stopped with the foreground")
