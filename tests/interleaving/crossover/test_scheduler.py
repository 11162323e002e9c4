"""Jobs that cross over on real ranks: they join, leave, write checkpoints and resume."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import deeppool as dp
from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover.named_jobs import job_name
from deeppool.interleaving.crossover.scheduler import FIRST_ROUNDS
from tests.waiting import wait_until


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(32, 8, generator=generator), torch.arange(32) % 4)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def make_job() -> dp.TrainingJob:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    return dp.TrainingJob(model=model, input_shape=(8,), dataset=dataset, optimizer=adam)


def same(first: str | None, second: str | None) -> bool:
    assert first is not None
    assert second is not None
    ours, theirs = dp.load_weights(first), dp.load_weights(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
@pytest.mark.processes
def test_jobs_join_leave_and_resume_and_train_as_if_alone(tmp_path: Path) -> None:
    late: list[str] = []

    def on_round(steps: Mapping[str, int]) -> None:
        if not late:
            late.append(crossover.add(make_job(), global_batch=8, steps=5))
            crossover.remove("Sequential-3")
            with pytest.raises(
                InvalidValueError, match=r"'Sequential-3' was removed before \(jobs: .*-2, Sequential-4"
            ):
                crossover.remove("Sequential-3")
            with pytest.raises(InvalidValueError, match="there is no job 'Sequential-5'"):
                crossover.remove("Sequential-5")
            crossover.remove(crossover.add(make_job(), global_batch=8))

    jobs = [make_job(), make_job(), make_job()]
    settings = {"global_batch": 8, "ranks": 2, "checkpoints": tmp_path, "checkpoint_every": 7}
    with dp.CrossoverScheduler(jobs, **settings) as crossover:
        measured = crossover.measure(3)
        record = crossover.train([3, 12, 12], on_round=on_round)
    assert [cost.name for cost in measured] == ["Sequential", "Sequential-2", "Sequential-3"]
    found = {job.name: job for job in record.jobs}
    assert found["Sequential"].updates == 3
    assert found["Sequential-2"].updates == 12
    assert found["Sequential-4"].updates == 5
    assert len(found["Sequential-4"].losses) == 5
    assert found["Sequential-3"].updates == 3 + FIRST_ROUNDS
    assert (found["Sequential-5"].updates, found["Sequential-5"].checkpoint) == (0, None)
    assert [name for name, job in found.items() if job.left] == ["Sequential-3", "Sequential-5"]
    # The first one has its updates when the change is made: no round is of all jobs from then on.
    assert record.round_times == ()
    assert dp.load(dp.save(record, tmp_path / "record.json")) == record
    assert "Sequential-2: 12 updates of batch 8, loss" in str(record)

    # The first job goes on alone, as far as the late one went, and then as far as the second.
    with dp.CrossoverScheduler([make_job()], **settings) as crossover:
        assert crossover.train(3).jobs[0].losses == ()
        resumed = crossover.train(5).jobs[0]
        assert same(resumed.checkpoint, found["Sequential-4"].checkpoint)
        finished = crossover.train(12).jobs[0]
        crossover.remove("Sequential")
        assert crossover.jobs == ()
        with pytest.raises(InvalidValueError, match=r"'Sequential' was removed before \(jobs: none\)"):
            crossover.remove("Sequential")
        with pytest.raises(InvalidValueError, match=r"nothing to train \(add one\)"):
            crossover.train(13)
    assert resumed.resumed_from == found["Sequential"].checkpoint
    assert same(finished.checkpoint, found["Sequential-2"].checkpoint)
    assert not same(finished.checkpoint, found["Sequential-4"].checkpoint)


@pytest.mark.processes
def test_a_training_is_listed_and_its_cancellation_ends_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with dp.CrossoverScheduler([make_job(), make_job()], global_batch=8, ranks=1) as crossover:
        run = dp.start(crossover.train, 1_000_000)
        wait_until(lambda: run.progress > 0)
        assert run.doing == "training Sequential, Sequential-2"
        assert [listed.what for listed in dp.running()] == ["train CrossoverScheduler"]
        run.cancel()
        assert run.state == "cancelled"
        with pytest.raises(InvalidValueError, match="the ranks are not running"):
            crossover.measure(3)


def test_settings_are_checked_before_a_process_starts() -> None:
    job = make_job()
    with pytest.raises(InvalidValueError, match="0 jobs have 0 global batches"):
        dp.CrossoverScheduler([], global_batch=8)
    with pytest.raises(InvalidValueError, match="1 jobs have 2 global batches"):
        dp.CrossoverScheduler([job], global_batch=[8, 8])
    with pytest.raises(InvalidValueError, match="global_batch must be at least 4, got 3"):
        dp.CrossoverScheduler([job], global_batch=3, ranks=4)
    with pytest.raises(InvalidValueError, match=r"ranks must be a whole number, got 2\.0"):
        dp.CrossoverScheduler([job], global_batch=8, ranks=2.0)
    with pytest.raises(InvalidValueError, match="precision must be one of fp32, tf32, bf16, fp16, got 'half'"):
        dp.CrossoverScheduler([job], global_batch=8, precision="half")
    with pytest.raises(InvalidValueError, match=r"all_reduce must be one of library, .*got 'hierarchical'"):
        dp.CrossoverScheduler([job], global_batch=8, all_reduce="hierarchical")
    with pytest.raises(InvalidValueError, match="use the scheduler in a with block"):
        dp.CrossoverScheduler([job], global_batch=8).train(1)
    with pytest.raises(InvalidValueError, match="use the scheduler in a with block"):
        dp.CrossoverScheduler([job], global_batch=8).remove("Sequential")


def test_names_of_jobs_are_short_and_different() -> None:
    named = dp.TrainingJob(model="my.module:Tiny Net", dataset=dataset, optimizer=adam)
    assert job_name(named, ()) == "Tiny-Net"
    assert job_name(named, ("Tiny-Net",)) == "Tiny-Net-2"
    assert job_name(named, ("Tiny-Net", "Tiny-Net-2")) == "Tiny-Net-3"
    assert job_name(make_job(), ()) == "Sequential"
