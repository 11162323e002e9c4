"""A background job's training: the one of a plain loop, bit by bit, however often it was interrupted."""

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch

import deeppool as dp
from deeppool.base.file_lock import file_lock
from deeppool.base.sharing import Priority, Sharing
from deeppool.collocation import background_process, background_worker
from deeppool.collocation.background_worker import BackgroundWorker
from deeppool.errors import InvalidValueError, RunError
from deeppool.execution.checkpoint import latest, load_weights
from deeppool.training.training_job import save_job
from tests.collocation.misbehaving import BATCH, NonFinite, plain_loop, plain_training, training

STEPS = 12
DEVICES = ["cpu", "emulated"]


class Launcher:
    """Sends a command after so many polls, and records the answers."""

    def __init__(self, polls: float = float("inf")) -> None:
        self.left, self.answers = polls, []

    def pending(self) -> bool:
        self.left -= 1
        return self.left < 0

    def answer(self, event: str, **content: object) -> None:
        self.answers.append((event, content))


def start(
    job: dp.TrainingJob,
    tmp_path: Path,
    launcher: Launcher | None = None,
    batch: int = BATCH,
    device: str = "cpu",
    priority: Priority = "lowest",
) -> BackgroundWorker:
    save_job(job, tmp_path)
    setup = {
        "saved_job": str(tmp_path), "batch": batch, "folder": str(tmp_path),
        "sharing": asdict(Sharing(priority=priority)),
        "device": device,
    }  # fmt: skip
    return BackgroundWorker(setup, launcher or Launcher())


def serve(worker: BackgroundWorker, folder: Path | None, steps: int | None = STEPS, every: int = 5) -> dict:
    return worker.serve({"steps": steps, "checkpoints": None if folder is None else str(folder), "every": every})


@pytest.mark.parametrize(("priority", "found"), [("lowest", "1"), ("normal", None)])
def test_under_mps_a_background_is_below_the_foreground_unless_it_is_its_equal(
    priority: Priority, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NVIDIA's daemon reads the variable when the process first uses the GPU.
    name = "CUDA_MPS_CLIENT_PRIORITY"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    start(training(), tmp_path, priority=priority)
    assert os.environ.get(name) == found


@pytest.mark.parametrize(("device", "priority"), [("cpu", "20 % of the core"), ("cuda", "SCHED_IDLE")])
def test_a_share_of_a_gpu_is_none_of_a_core(device: str, priority: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        background_process, "join_background", lambda run, rank, share: f"{100 * share:.0f} % of the core"
    )
    monkeypatch.setattr(background_process, "lower_priority", lambda wanted: "SCHED_IDLE")
    sharing = asdict(Sharing(priority="lowest" if device == "cuda" else "normal", share=0.2))
    assert background_process.yield_core({"sharing": sharing, "folder": "run", "rank": 0, "device": device}) == priority


@pytest.mark.parametrize("device", DEVICES)
def test_a_background_is_a_plain_loop_bit_by_bit(device: str, tmp_path: Path) -> None:
    job = plain_training()
    worker = start(job, tmp_path, device=device)
    found = [worker.training.step() for _ in range(STEPS)]
    module = job.model
    assert found == plain_loop(module, STEPS)
    # A captured BatchNorm does not count its batches: it has a momentum, and no use for the count.
    state = {name: value for name, value in module.state_dict().items() if "num_batches" not in name}
    assert all(torch.equal(value, worker.training.trainer.state[name].cpu()) for name, value in state.items())


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_stopped_job_resumes_bit_by_bit(device: str, tmp_path: Path) -> None:
    whole = serve(start(training(), tmp_path, device=device), tmp_path / "whole")
    assert (whole["why"], whole["updates"], whole["samples"]) == ("finished", STEPS, STEPS * BATCH)

    folder = tmp_path / "parts"
    first = serve(start(training(), tmp_path, Launcher(7), device=device), folder)
    assert (first["why"], first["updates"]) == ("asked", 7)
    assert [path.name for path in sorted(folder.iterdir())] == ["step-000005", "step-000007"]
    second = serve(start(training(), tmp_path, device=device), folder)
    assert (second["why"], second["updates"], second["samples"]) == ("finished", STEPS, 5 * BATCH)
    assert second["last_loss"] == whole["last_loss"]
    expected = load_weights(latest(tmp_path / "whole"))
    assert all(torch.equal(value, expected[name]) for name, value in load_weights(latest(folder)).items())

    third = serve(start(training(), tmp_path, device=device), folder)
    assert (third["why"], third["samples"]) == ("finished", 0)


def test_two_jobs_do_not_write_checkpoints_to_one_folder(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with file_lock(tmp_path / "kept" / ".lock", "the other job"):
        worker = start(training(), tmp_path)
        with pytest.raises(RunError, match=r"another training writes its checkpoints to \S+kept "):
            serve(worker, tmp_path / "kept", steps=1)
    assert serve(worker, tmp_path / "kept", steps=1)["why"] == "finished"


def huge(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Finite, but more than a record may hold, where the outputs are not finite."""
    loss = torch.nn.functional.cross_entropy(outputs, target)
    return torch.where(loss.isfinite(), loss, loss.new_tensor(1e31))


# A sample more is read to capture a loss of one's own.
@pytest.mark.parametrize(("loss", "last", "step"), [(None, "nan", 3), (huge, "1e+31", 4)])
def test_a_loss_that_no_record_may_hold_ends_the_job_without_a_checkpoint(
    loss: Callable | None, last: str, step: int, tmp_path: Path
) -> None:
    job = replace(training(partial(NonFinite, step)), loss=loss)
    over = serve(start(job, tmp_path), tmp_path / "kept", every=1)
    assert over["why"] == f"its loss is {last} after step 3"
    assert over["last_loss"] is None
    assert latest(tmp_path / "kept").name == "step-000002"


def test_progress_is_reported_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher()
    serve(start(training(), tmp_path, launcher), None, steps=3)
    assert [(event, content["updates"]) for event, content in launcher.answers] == [("progress", 0), ("progress", 1)]

    monkeypatch.setattr(background_worker, "PROGRESS_SECONDS", 0.0)
    launcher = Launcher()
    serve(start(training(), tmp_path, launcher), None, steps=3)
    assert [content["updates"] for _, content in launcher.answers] == [0, 1, 2, 3]
    cpu = [content["cpu"] for _, content in launcher.answers]
    assert cpu == sorted(cpu)
    assert launcher.answers[-1][1]["first_loss"] is not None


def test_a_batch_beyond_the_samples_is_the_backgrounds_not_the_plans(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidValueError,
        match=r"has 20 samples, a batch of the background is 25 \(choose a smaller one: --background-batch, or",
    ):
        start(training(), tmp_path, batch=25)


def test_checkpoints_of_another_training_are_refused(tmp_path: Path) -> None:
    serve(start(training(), tmp_path), tmp_path / "kept", steps=1)
    other = start(training(), tmp_path, batch=BATCH + 1)
    with pytest.raises(
        InvalidValueError, match=r"step-000001 is of .* at global batch 4, this is .* at 5 \(choose another"
    ):
        serve(other, tmp_path / "kept")


def test_what_was_computed_lies_in_the_steps_and_is_as_long_as_the_cpu_time(tmp_path: Path) -> None:
    worker = start(training(), tmp_path, Launcher(60))
    log = worker.train(60, 100.0)
    computed = worker.computed()
    assert {kind for kind, *_ in computed} == {"forward", "backward", "update"}
    assert all(log[0][0] <= began < ended <= log[-1][0] for _, began, ended in computed)
    # The rest was used between the steps, and by other threads.
    assert 0 < sum(ended - began for _, began, ended in computed) <= log[-1][1] - log[0][1] + 0.01
