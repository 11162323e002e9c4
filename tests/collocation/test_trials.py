"""Hyper-parameter trials beside a training: each is the plain training of its configuration, and the best one stays."""

import json
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import deeppool as dp
from deeppool.collocation.trials import RECORD, TrialRun, Trials, trial_run
from deeppool.errors import InvalidValueError, RunError
from deeppool.records.training_record import BackgroundOutcome
from deeppool.records.trials_record import TrialResult
from deeppool.training.data import SampleOrder
from tests.collocation import misbehaving
from tests.collocation.misbehaving import BATCH, SIZE, plain_training
from tests.collocation.test_contained_background import SlowData, one_rank

STEPS = 12
CONFIGURATIONS = [{"lr": 0.5}, {"lr": 0.01}]


def sgd(lr: float, parameters: list) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def trial(lr: float, once: Path | None = None) -> dp.TrainingJob:
    """Dies once at step 8, if ``once`` is given."""
    data = misbehaving.dataset if once is None else partial(misbehaving.Faulty, misbehaving.die, 8, once)
    return dp.TrainingJob(model=plain_training().model, input_shape=(3, 6, 6), dataset=data, optimizer=partial(sgd, lr))


def plain_losses(lr: float, module: nn.Module) -> list[float]:
    """Losses of a plain loop in this process."""
    torch.set_num_threads(1)
    optimizer, order, data = sgd(lr, [*module.parameters()]), SampleOrder(SIZE, BATCH, seed=0), misbehaving.dataset()
    losses = []
    for step in range(STEPS):
        images, targets = data[order.positions(step)]
        loss = nn.functional.cross_entropy(module(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def touch_when_finished(folder: Path, awaited: Path, stop: threading.Event) -> None:
    while not stop.is_set():
        if (folder / RECORD).exists():
            results = json.loads((folder / RECORD).read_text())["results"]
            if all(result["ended"] == "finished" for result in results):
                break
        time.sleep(0.05)
    awaited.touch()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
def test_two_trials_train_beside_a_foreground_and_the_best_is_kept(tmp_path: Path) -> None:
    folder, awaited, reported = tmp_path / "trials", tmp_path / "awaited", []
    trials = dp.Trials(
        partial(trial, once=tmp_path / "once"),
        CONFIGURATIONS,
        steps=STEPS,
        batch=BATCH,
        folder=folder,
        checkpoint_every=3,
        restarts=1,
    )
    stop = threading.Event()
    waiting = threading.Thread(target=touch_when_finished, args=(folder, awaited, stop), daemon=True)
    waiting.start()
    try:
        record = dp.train(
            one_rank(),
            plain_training(partial(SlowData, awaited)),
            steps=6,
            background=trials,
            policy="naive",
            on_progress=lambda what, share: reported.append(what),
        )
    finally:
        stop.set()
        waiting.join()
    expected = {lr: plain_losses(lr, plain_training().model) for lr in (0.5, 0.01)}
    # The first one was lost at step 8 and resumed from the checkpoint of step 6: its last ten steps are then the last
    # six, those that its second process made.
    final = {0.5: sum(expected[0.5][6:]) / 6, 0.01: sum(expected[0.01][2:]) / 10}
    found = {result.configuration["lr"]: result for result in record.trials.results}
    for lr, result in found.items():
        assert (result.ended, result.steps) == ("finished", STEPS)
        assert result.final_loss == pytest.approx(final[lr], rel=1e-4)
    assert record.background[0].restarts == 1
    best = record.trials.best
    assert best.configuration["lr"] == min(final, key=final.get)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == [Path(best.checkpoint).parent.name]
    module = plain_training().model
    plain_losses(best.configuration["lr"], module)
    # BatchNorm's count of batches is not part of the training: with a momentum nothing reads it.
    weights = {name: value for name, value in dp.load_weights(best.checkpoint).items() if value.is_floating_point()}
    assert weights.keys() == {name for name, value in module.state_dict().items() if value.is_floating_point()}
    for name, value in weights.items():
        torch.testing.assert_close(value, module.state_dict()[name], rtol=1e-4, atol=1e-5)
    assert dp.load(folder / RECORD) == record.trials
    assert any("trial lr=0.01 of rank 0: finished, 2 of 2 trials; best so far lr=" in what for what in reported)
    assert "trials       2 of 2 trials finished, 12 steps of batch 4 each" in str(record)


# -- the queue of trials, without processes ---------------------------------------------------------


class NoData(Dataset):
    def __len__(self) -> int:
        return 0


def no_training(**_: object) -> dp.TrainingJob:
    return dp.TrainingJob(model=nn.Linear(1, 1), dataset=NoData, optimizer=partial(sgd, 0.1))


def trials_in(folder: Path, values: list, **changes) -> Trials:
    return Trials(no_training, [{"lr": value} for value in values], **{"steps": 10, "folder": folder, **changes})


def end(run: TrialRun, number: int, loss: float | None, ended: str = "finished") -> str:
    """Ends the job of the trial at a position among those that have not finished."""
    job = run.jobs()[number]
    checkpoint = Path(job.checkpoints) / "step-000010"
    checkpoint.mkdir(parents=True, exist_ok=True)
    outcome = BackgroundOutcome(
        job.name, 0, None, 10, 40, 1.0, 2.0, loss, str(checkpoint), 0, (), ended, final_loss=loss
    )
    return job.on_end(outcome)


def folders(folder: Path) -> int:
    return sum(path.is_dir() for path in folder.iterdir())


def test_only_the_best_weights_stay_and_a_later_call_trains_what_is_left(tmp_path: Path) -> None:
    with trial_run(trials_in(tmp_path, [1.0, 0.5, 0.1])) as run:
        assert [job.name for job in run.jobs()] == ["trial lr=1.0", "trial lr=0.5", "trial lr=0.1"]
        assert "best so far lr=1.0 with loss 2.0000" in end(run, 0, 2.0)
        assert "2 of 3 trials; best so far lr=0.5 with loss 1.0000" in end(run, 0, 1.0)
        assert end(run, 0, 0.5, "stopped with the foreground") == "stopped with the foreground"
        # The best, and the one that has not finished.
        assert folders(tmp_path) == 2
    # In another order, and one more.
    with trial_run(trials_in(tmp_path, [0.1, 0.2, 0.5, 1.0])) as run:
        assert [job.name for job in run.jobs()] == ["trial lr=0.1", "trial lr=0.2"]
        end(run, 1, 0.75)
        end(run, 0, None)
    record = dp.load(tmp_path / RECORD)
    assert record.best == TrialResult({"lr": 0.2}, 10, 0.75, "finished", record.best.checkpoint)
    assert [result.final_loss for result in record.results] == [None, 0.75, 1.0, 2.0]
    assert "it is trained again by the next call" in record.results[0].ended
    assert folders(tmp_path) == 1
    assert str(record).splitlines()[:2] == [
        "3 of 4 trials finished, 10 steps of batch 4 each",
        f"best  lr=0.2: loss 0.7500 after 10 steps (finished); weights in {record.best.checkpoint}",
    ]


def test_a_result_that_cannot_be_saved_is_said_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trial_run(trials_in(tmp_path, [1.0, 2.0])) as run:
        (tmp_path / RECORD).unlink()
        (tmp_path / RECORD).mkdir()
        assert "finished, but its result was not saved: cannot write" in end(run, 0, 2.0)
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        "the results of the trials were not saved"
    ]
    assert run.record().best.configuration == {"lr": 1.0}


@pytest.mark.parametrize(
    ("configurations", "message"),
    [
        ([], "at least one configuration"),
        ([{"lr": 1}, {"lr": 1}], "two trials have the configuration"),
        ([{"lr": float("nan")}], "configuration 0 has lr=nan"),
        # The folder's record could not be read again.
        ([{"lr": 1.0}, {"lr": 1e31}], r"configuration 1 has lr=1e\+31: a number must be finite and within"),
        ([{"seed": 2**63}], "configuration 0 has seed=9223372036854775808"),
        ([{"layers": [1, 2]}], r"configuration 0 has layers=\[1, 2\]"),
    ],
)
def test_configurations_that_are_none_are_refused(configurations: list, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Trials(no_training, configurations, steps=1, folder=tmp_path)


def test_a_folder_of_other_trials_or_in_use_and_a_job_that_is_none_are_refused(tmp_path: Path) -> None:
    in_use = pytest.raises(RunError, match="another training runs its trials in")
    with trial_run(trials_in(tmp_path, [1.0])), in_use, trial_run(trials_in(tmp_path, [2.0])):
        pass
    with pytest.raises(InvalidValueError, match="has trials of 10 steps"), trial_run(trials_in(tmp_path, [1], steps=9)):
        pass
    wrong = Trials(lambda lr: lr, [{"lr": 3}], steps=10, folder=tmp_path)
    with trial_run(wrong) as run, pytest.raises(InvalidValueError, match="the job of trial lr=3 is a int"):
        run.jobs()
    failing = Trials(lambda: None, [{"lr": 3}], steps=10, folder=tmp_path)
    with trial_run(failing) as run, pytest.raises(InvalidValueError, match="cannot make the job of trial lr=3: Type"):
        run.jobs()
    assert oct((tmp_path / RECORD).stat().st_mode & 0o777) == "0o600"
