"""Trainings with faults: the reported error, no process left, and a restart with unchanged losses.

The faults are real ones, made by the data: they happen in a rank of choice, in the update of choice, once.
"""

import contextlib
import dataclasses
import functools
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import deeppool as dp
from deeppool.errors import RankFailedError, RankRefusedError, RunError
from deeppool.execution import ranks as ranks_module
from deeppool.execution.checkpoint import PARTIAL, latest, load_weights
from deeppool.records.training_record import TrainingRecord
from deeppool.runs.train import train
from tests.execution import soak_job
from tests.processes.children import children, gone, kill_all, runs
from tests.runs.test_train import dataset, losses, make_job, make_plan
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.usefixtures("in_the_checkout"),
]
SAMPLES_OF_UPDATE = 6
"""Samples that a rank reads per update: half of each of two global batches of six."""
UPDATE = 4
STEPS = 6
START_SECONDS = 300
END_SECONDS = 60
"""More than enough to end on a busy machine."""


class Faulty(Dataset):
    """Dataset of the other tests, with a fault at one update of one rank."""

    def __init__(self, fault: Callable[[], None], once: Path, rank: int = 1, update: int = UPDATE) -> None:
        self.data, self.fault, self.once, self.rank = dataset(), fault, once, rank
        self.left = SAMPLES_OF_UPDATE * (update - 1) + 1

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.left -= 1
        if self.left == 0 and dist.get_rank() == self.rank and not self.once.exists():
            self.once.touch()
            self.fault()
        return self.data[position]


def hang() -> None:
    threading.Event().wait()


def send_to_itself(what: signal.Signals) -> None:
    os.kill(os.getpid(), what)


def cut_connections() -> None:
    """Shuts down every connection, as a network failure does: both ends see it."""
    for link in psutil.Process().net_connections("tcp"):
        if link.status == psutil.CONN_ESTABLISHED:
            socket.socket(fileno=os.dup(link.fd)).shutdown(socket.SHUT_RDWR)


def allocate_too_much() -> None:
    torch.empty(2**50, dtype=torch.uint8)


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


def exhaust_memory(group: Path) -> None:
    """Moves to a control group with a low memory limit and allocates beyond it."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    held = []
    while True:
        held.append(bytearray(os.urandom(2**20)) * 16)


def exit_silently() -> None:
    os._exit(0)


@pytest.fixture(scope="module")
def expected() -> list[float]:
    return losses(dp.train(make_plan(2), make_job(), steps=STEPS))


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "MIN_TIMEOUT", 6.0)
    monkeypatch.setattr(ranks_module, "TIMEOUT_UPDATES", 3.0)


def train_with(job: dp.TrainingJob, folder: Path, **choices: object) -> tuple[TrainingRecord, list[str]]:
    """Trains; returns the record and the messages about restarts."""
    messages: list[str] = []
    record = dp.train(
        make_plan(2),
        job,
        steps=STEPS,
        checkpoints=folder / "checkpoints",
        checkpoint_every=2,
        on_progress=lambda what, _: messages.append(what),
        **choices,
    )
    assert children() == []
    return record, [what for what in messages if what.startswith("starting again")]


# -- faults that a restart mends ----------------------------------------------------------------------

READING = r"reading the samples of stage \S.* \(update 4\)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "workers", "phrase"),
    [
        pytest.param(
            hang,
            0,
            rf"rank 1 hangs: it has been in {READING} for \d+ s, at \S+test_training_faults.py:\d+ in hang",
            id="hang",
            marks=pytest.mark.stress,
        ),
        pytest.param(hang, 1, rf"rank 1 hangs: it has been in {READING}", id="loader hangs", marks=pytest.mark.stress),
        pytest.param(
            functools.partial(send_to_itself, signal.SIGSTOP),
            0,
            r"rank 1 hangs: no heartbeat for \d+ s \(was .* stopped\?\), the last in .*waited for by",
            id="stopped",
            marks=pytest.mark.stress,
        ),
        pytest.param(
            functools.partial(send_to_itself, signal.SIGKILL),
            0,
            r"rank 1 was killed by signal 9 while .* \(run again\)",
            id="killed",
        ),
        pytest.param(
            functools.partial(send_to_itself, signal.SIGKILL),
            1,
            # A loader reads ahead, so the rank may be anywhere.
            r"rank 1 lost a process that loads its data in .*: (process \d+ (was killed by a signal \(Killed\)|ended "
            r"without an exit code)|it ended while it sent samples) .*fewer loader_workers need less",
            id="loader killed",
        ),
        pytest.param(
            functools.partial(send_to_itself, signal.SIGSEGV),
            0,
            r"rank 1 was killed by signal 11 while it trained",
            id="crash",
            marks=pytest.mark.stress,
        ),
        pytest.param(
            cut_connections,
            0,
            r"rank \d lost its connection to another rank in .*all ranks .*is the network between them up\?",
            id="cut",
            marks=pytest.mark.stress,
        ),
        pytest.param(
            allocate_too_much,
            0,
            rf"rank 1 ran out of memory in {READING}: .* more were asked for, it holds .*, the machine has .* left, at "
            r"\S+:\d+ in allocate_too_much .*smaller global batch",
            id="memory",
            marks=pytest.mark.stress,
        ),
        pytest.param(
            exit_silently, 0, r"rank 1 ended with exit code 0 while it trained", id="exit", marks=pytest.mark.stress
        ),
    ],
)
def test_a_restarted_training_has_the_losses_of_an_uninterrupted_one(
    fault: Callable[[], None], workers: int, phrase: str, expected: list[float], tmp_path: Path
) -> None:
    data = functools.partial(Faulty, fault, tmp_path / "once")
    record, (why,) = train_with(make_job(dataset=data, loader_workers=workers), tmp_path, restarts=1)

    assert re.search(phrase, why), why
    assert "\n" not in why
    assert record.restarts == 1
    assert losses(record) == expected


@pytest.mark.slow
@pytest.mark.skipif(not Path("/sys/fs/cgroup/memory").is_dir() or os.geteuid() != 0, reason="needs root and cgroup v1")
@pytest.mark.root
def test_a_rank_killed_by_the_kernel_for_lack_of_memory_is_reported_as_out_of_memory(tmp_path: Path) -> None:
    group = Path("/sys/fs/cgroup/memory") / f"deeppool-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 * 2**20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        data = functools.partial(Faulty, functools.partial(exhaust_memory, group), tmp_path / "once")
        with pytest.raises(
            RankFailedError,
            match=r"rank 1 was killed by signal 9, probably by the kernel because memory ran out, while .*--memory",
        ):
            train_with(make_job(dataset=data), tmp_path)
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), END_SECONDS, "the control group is empty")
        group.rmdir()
    assert children() == []


# -- faults that no restart mends ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_size_limit_keeps_the_earlier_checkpoint_and_is_not_retried(tmp_path: Path) -> None:
    data = functools.partial(Faulty, limit_file_size, tmp_path / "once")
    with pytest.raises(
        RankRefusedError, match=r"rank 1 gave up while it wrote .*cannot write .*checkpoint is .*step-0"
    ):
        train_with(make_job(dataset=data), tmp_path, restarts=3)
    assert children() == []
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000002"]
    assert load_weights(tmp_path / "checkpoints" / "step-000002")


def misspelt_sgd(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentun=0.9)


@pytest.mark.slow
def test_an_error_of_the_optimizer_is_no_failure_of_the_network(tmp_path: Path) -> None:
    where = r"test_training_faults.py:\d+ in misspelt_sgd while it started"
    with pytest.raises(RankFailedError, match=rf"rank \d failed in making the trainer: TypeError: .*momentun.*{where}"):
        train_with(make_job(optimizer=misspelt_sgd, schedule=None), tmp_path)
    assert children() == []


class CorruptingSGD(torch.optim.SGD):
    """SGD whose third step leaves non-finite weights after a finite loss."""

    def step(self, closure: None = None) -> None:
        self.taken = getattr(self, "taken", 0) + 1
        super().step(closure)
        if self.taken == 3:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(torch.nan)


def corrupting_sgd(parameters: list) -> torch.optim.Optimizer:
    return CorruptingSGD(parameters, lr=0.01)


@pytest.mark.slow
def test_non_finite_weights_are_not_saved_as_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RankRefusedError, match=r"'.*' holds values that are no number.*checkpoint is .*step-000002"):
        dp.train(
            make_plan(2),
            make_job(optimizer=corrupting_sgd, schedule=None),
            steps=STEPS,
            checkpoints=tmp_path,
            checkpoint_every=1,
            restarts=3,
        )
    assert children() == []
    assert latest(tmp_path).name == "step-000002"
    assert all(value.isfinite().all() for value in load_weights(latest(tmp_path)).values())


class Overflowing(Dataset):
    """Dataset of infinite images, in one update or in all."""

    def __init__(self, always: bool) -> None:
        self.data, self.always, self.read = soak_job.dataset(), always, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, target = self.data[position]
        self.read += 1
        # Two samples of each global batch are a rank's.
        return (image * torch.inf if self.always or self.read in (3, 4) else image), target


@pytest.mark.slow
def test_an_fp16_overflow_skips_the_update_and_is_not_a_fault(tmp_path: Path) -> None:
    plan = dataclasses.replace(soak_job.plan(2), precision="fp16")
    job = dataclasses.replace(soak_job.job(), dataset=functools.partial(Overflowing, always=False), loader_workers=0)
    record = dp.train(plan, job, steps=4, checkpoints=tmp_path / "kept")
    assert [metrics.loss is None for metrics in record.metrics] == [False, True, False, False]
    assert "overflowed" in str(record.metrics[1])
    assert all(value.isfinite().all() for value in load_weights(latest(tmp_path / "kept")).values())
    dp.save(record, tmp_path / "record.json")
    job = dataclasses.replace(job, dataset=functools.partial(Overflowing, always=True))
    where = r"on rank [01]( and rank [01])?"
    with pytest.raises(RunError, match=rf"the loss is nan after update 17 .*{where}; the last .*step-0"):
        dp.train(plan, job, steps=40, checkpoints=tmp_path / "other", checkpoint_every=10)
    assert children() == []


# -- interrupts -------------------------------------------------------------------------------------

COMMAND = """
import signal
# A job that a shell put into the background ignores Ctrl-C, and so would its children: these tests may be one.
signal.signal(signal.SIGINT, signal.default_int_handler)
from deeppool.cli import main
main()
"""


@contextlib.contextmanager
def started_command(plan: Path, folder: Path, steps: int) -> Iterator["subprocess.Popen[str]"]:
    arguments = [str(plan), "tests.execution.soak_job:job", "--steps", str(steps), "--checkpoints", str(folder)]
    command = [sys.executable, "-c", COMMAND, "train", *arguments, "--checkpoint-every", "2", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0
    ) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


@pytest.mark.slow
@pytest.mark.parametrize("what", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.stress)])
def test_an_interrupted_command_resumes_bit_for_bit(what: signal.Signals, tmp_path: Path) -> None:
    plan, folder = dp.save(soak_job.plan(2), tmp_path / "plan.json"), tmp_path / "checkpoints"
    with started_command(plan, folder, 1_000_000) as launcher:
        wait_until(lambda: folder.is_dir() and latest(folder) is not None, START_SECONDS, "a checkpoint")
        everything = psutil.Process(launcher.pid).children(recursive=True)
        assert len(everything) >= 3
        launcher.send_signal(what)
        _, error = launcher.communicate(timeout=END_SECONDS)
    assert launcher.returncode == 1
    assert error == (
        "error: interrupted; every process of the training was ended, the same command goes on from the last "
        f"checkpoint in {folder}, if there is one yet (one every 2 updates)\n"
    )
    wait_until(lambda: all(map(gone, everything)), END_SECONDS, "the end of all")
    assert not list(folder.glob(f"*{PARTIAL}"))
    done = int(latest(folder).name.removeprefix("step-"))
    resumed = train(soak_job.plan(2), soak_job.job(), steps=done + 3, checkpoints=folder)
    whole = train(soak_job.plan(2), soak_job.job(), steps=done + 3, checkpoints=tmp_path / "whole")
    assert losses(resumed) == losses(whole)[done:]
    state = load_weights(latest(tmp_path / "whole"))
    assert all(torch.equal(value, state[name]) for name, value in load_weights(latest(folder)).items())


@pytest.mark.stress
def test_a_stopped_rank_and_its_loader_end_with_a_killed_launcher(tmp_path: Path) -> None:
    plan, folder = dp.save(soak_job.plan(2), tmp_path / "plan.json"), tmp_path / "checkpoints"
    with started_command(plan, folder, 1_000_000) as launcher:
        wait_until(lambda: folder.is_dir() and latest(folder) is not None, START_SECONDS, "a checkpoint")
        everything = psutil.Process(launcher.pid).children(recursive=True)
        # The two ranks, their loaders, what the ranks were forked from, and the keeper of the folder.
        assert len(everything) >= 6
        for process in everything:
            if runs(process, "execution.worker"):
                process.send_signal(signal.SIGSTOP)
        launcher.kill()
    try:
        wait_until(lambda: all(map(gone, everything)), END_SECONDS, f"the end of {everything}")
    finally:
        kill_all(everything)
