"""Trainings of your own model: the result is the same however they were interrupted and under whatever plan."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.cli.app import app
from deeppool.device.find import find_device
from deeppool.errors import (
    DeeppoolError,
    DocumentError,
    InvalidValueError,
    MissingProfileError,
    PlanError,
    RankFailedError,
    RunError,
)
from deeppool.execution.checkpoint import latest, load_weights
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import LocalLauncher
from deeppool.profiling.table import Profile
from deeppool.records.transfer_plan import TransferPlan
from deeppool.runs import restart_loop
from deeppool.runs.restart_loop import RestartLoop
from deeppool.runs.training_state import ReplanTrigger
from deeppool.training.data import SampleOrder, ShardReader
from examples import own_training
from tests.processes.children import ranks
from tests.strategies import profile_from_times

# Every training starts its own ranks, which takes long on a busy machine.
pytestmark = [pytest.mark.usefixtures("in_the_checkout")]
BATCH = 6


class Net(nn.Module):
    """Convolution, BatchNorm, dropout, and a dense layer that gains nothing from more GPUs."""

    def __init__(self) -> None:
        super().__init__()
        # BatchNorm takes a bias away again: its gradient would be noise, which AdamW makes large.
        self.stem = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.stem(x)))
        return self.head(self.dropout(x.flatten(1)))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def dataset() -> torch.utils.data.Dataset:
    generator = torch.Generator().manual_seed(3)
    classes = torch.arange(20) % 5
    images = torch.randn(5, 3, 6, 6, generator=generator)[classes]
    return torch.utils.data.TensorDataset(images + 0.1 * torch.randn(20, 3, 6, 6, generator=generator), classes)


class Slow(torch.utils.data.TensorDataset):
    """Leaves most of the processors to whoever looks at the training."""

    def __getitem__(self, position: int) -> tuple[torch.Tensor, ...]:
        time.sleep(0.02)
        return super().__getitem__(position)


def slow_dataset() -> torch.utils.data.Dataset:
    return Slow(*dataset().tensors)


def broken_dataset() -> torch.utils.data.Dataset:
    images, classes = dataset().tensors
    return torch.utils.data.TensorDataset(images * torch.inf, classes)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.02)


def decay(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def make_job(**changes) -> dp.TrainingJob:
    choices = {"optimizer": adamw, "schedule": decay, "clip_norm": 1.0, "accumulation": 2, "dataset": dataset} | changes
    return dp.TrainingJob(model=net(), input_shape=(3, 6, 6), synchronise_batch_norm=True, seed=5, **choices)


@cache
def make_profile() -> Profile:
    """The convolution gains from more GPUs, the dense layer does not."""
    graph = make_job().capture().graph
    times = [(lambda b: 1e-3 * b) if "stem" in layer.name else (lambda b: 1e-3) for layer in graph.layers]
    return profile_from_times(graph, times)


@cache
def make_plan(gpus: int) -> Plan:
    """The convolution on all GPUs, the dense layer on one."""
    return dp.plan(make_profile(), dp.Cluster(gpus), BATCH)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the checkpoints of those six updates."""
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(kept: Path):
    """Six updates without interruption."""
    record = dp.train(make_plan(2), make_job(), steps=6, checkpoints=kept, checkpoint_every=2, keep=3)
    return record, load_weights(latest(kept))


def interrupted_after(steps: int, kept: Path, folder: Path) -> Path:
    """The folder of a training that ended after 2 or 4 updates."""
    return shutil.copytree(kept / f"step-{steps:06}", folder / f"step-{steps:06}").parent


def losses(record) -> list[float]:
    return [metrics.loss for metrics in record.metrics]


@pytest.mark.slow
@pytest.mark.processes
def test_resuming_from_a_checkpoint_is_bit_equal_to_an_uninterrupted_training(whole, kept, tmp_path: Path) -> None:
    expected, state = whole
    folder = interrupted_after(2, kept, tmp_path)
    # As in a notebook, the number is one of NumPy.
    record = dp.train(make_plan(2), make_job(), steps=np.int64(6), checkpoints=folder)
    assert record.resumed_from.endswith("step-000002")
    # The plan's device is another.
    assert record.device_name == find_device("cpu").name != make_plan(2).device_name
    assert [path.name for path in sorted(folder.iterdir())] == ["step-000002", "step-000006"]
    assert losses(record) == losses(expected)[2:]
    assert [m.learning_rate for m in record.metrics] == [m.learning_rate for m in expected.metrics][2:]
    assert all(torch.equal(value, state[name]) for name, value in load_weights(latest(folder)).items())


@pytest.mark.slow
@pytest.mark.processes
def test_another_plan_on_other_ranks_continues_the_same_training(whole, kept, tmp_path: Path) -> None:
    expected, state = whole
    interrupted_after(2, kept, tmp_path)
    for gpus, steps in ((3, 4), (1, 6)):
        record = dp.train(make_plan(gpus), make_job(), steps=steps, checkpoints=tmp_path, checkpoint_every=1)
        assert losses(record) == pytest.approx(losses(expected)[steps - 2 : steps], rel=1e-4)
    # The default keeps two.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000005", "step-000006"]
    fresh = net()
    fresh.load_state_dict(load_weights(latest(tmp_path)), strict=False)
    for name, value in state.items():
        if value.is_floating_point():
            assert torch.allclose(fresh.state_dict()[name], value, rtol=1e-3, atol=1e-5), name
    assert losses(expected)[-1] < losses(expected)[0]


@pytest.mark.slow
@pytest.mark.processes
def test_the_pattern_that_a_plan_names_sums_the_gradients(whole) -> None:
    expected, _ = whole
    # Three ranks: halving-doubling folds one of them; the library sums the same otherwise.
    named = dp.plan(make_profile(), 3, BATCH, network_model="halving-doubling")
    assert max(layer.gpu_count for layer in named.layers) == 3
    record = dp.train(named, make_job(), steps=4)
    assert losses(record) == pytest.approx(losses(expected)[:4], rel=1e-4)
    synced = {span.name for span in record.timeline.spans if span.kind == "sync"}
    assert synced == {f"{stage.name} by halving-doubling" for stage in record.stages if len(stage.gpus) > 1}
    assert not any(" by " in span.name for span in expected.timeline.spans)


@pytest.mark.slow
@pytest.mark.processes
def test_checkpoints_and_weights_by_a_plan_of_transfers_are_those_of_synchronous_training(tmp_path: Path) -> None:
    states, records = [], []
    for name in ("default", "planned", "given"):
        folder = tmp_path / name
        method = None if name == "default" else dp.TransferScheduler(measured_updates=1)
        if name == "given":
            # A plan of one's own: all in two halves, of a training whose layers are of another size.
            given = in_halves(records[-1].transfers)
            method = dp.TransferScheduler(measured_updates=1, transfers=given)
        records.append(
            dp.train(
                make_plan(2),
                make_job(clip_norm=None),
                steps=6,
                checkpoints=folder,
                checkpoint_every=4,
                gradient_sync=method,
            )
        )
        states.append([load_weights(folder / step) for step in ("step-000004", "step-000006")])
    for record, found in zip(records[1:], states[1:], strict=True):
        assert losses(record) == pytest.approx(losses(records[0]), rel=1e-4)
        assert [m.learning_rate for m in record.metrics] == [m.learning_rate for m in records[0].metrics]
        for default, planned in zip(states[0], found, strict=True):
            for name, value in default.items():
                if value.is_floating_point():
                    assert torch.allclose(planned[name], value, rtol=1e-3, atol=1e-5), name
    assert records[0].transfers is None
    assert records[2].transfers == given
    # Two of six updates are measured first, and sum by the library: the timeline is of a later one.
    synced = {span.name for span in records[2].timeline.spans if span.kind == "sync"}
    assert synced
    assert all(name.endswith(" by ring-reduce-scatter, ring-all-gather") for name in synced), synced
    sent = {name for transfer in records[1].transfers.transfers for name in transfer.gradients}
    assert sent == set(dict(net().named_parameters()))
    assert "transfers by library" in str(records[1])
    assert dp.load(dp.save(records[1], tmp_path / "record.json")) == records[1]


@pytest.mark.slow
def test_what_is_no_method_of_sending_gradients_is_refused() -> None:
    for method in (dp.WaveletModelParallel, dp.TransferScheduler, "ring"):
        with pytest.raises(InvalidValueError, match=r"such as dp.TransferScheduler\(\), got (Wavelet|Transfer|str)"):
            dp.train(make_plan(2), make_job(), steps=1, gradient_sync=method)


def in_halves(plan: TransferPlan) -> TransferPlan:
    halves = [
        replace(transfer, pattern=pattern, part=len(plan.parts) - 1)
        for pattern in ("ring-reduce-scatter", "ring-all-gather")
        for transfer in plan.transfers
    ]
    return replace(plan, transfers=tuple(halves))


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_rank_costs_only_the_updates_since_the_last_checkpoint(whole, tmp_path: Path) -> None:
    expected, _ = whole
    killed = threading.Event()

    def kill_one(metrics) -> None:
        if metrics.update == 3 and not killed.is_set():
            killed.set()
            os.kill(ranks()[-1].pid, signal.SIGKILL)

    record = dp.train(
        make_plan(2), make_job(), steps=6, checkpoints=tmp_path, checkpoint_every=2, restarts=1, on_metrics=kill_one
    )
    assert record.restarts == 1
    assert losses(record) == losses(expected)
    assert not ranks()


@pytest.mark.slow
@pytest.mark.processes
def test_a_second_training_in_the_folder_is_refused_and_does_not_disturb_the_first(whole, tmp_path: Path) -> None:
    expected, state = whole
    refusals = []

    def start_another(metrics) -> None:
        if metrics.update in (3, 5):
            with pytest.raises(
                RunError, match=rf"another training writes its checkpoints to {tmp_path} .*running"
            ) as why:
                dp.train(make_plan(1), make_job(), steps=9, checkpoints=tmp_path)
            refusals.append(str(why.value))

    record = dp.train(
        make_plan(2), make_job(), steps=6, checkpoints=tmp_path, checkpoint_every=2, on_metrics=start_another
    )
    assert len(refusals) == 2
    assert losses(record) == losses(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000004", "step-000006"]
    assert all(torch.equal(value, state[name]) for name, value in load_weights(latest(tmp_path)).items())


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("overlap_sync", [pytest.param(False, marks=pytest.mark.stress), True])
def test_accepting_a_proposal_changes_the_plan_and_nothing_else(whole, overlap_sync: bool) -> None:
    expected, _ = whole
    graph = make_job().capture().graph
    # A plan made as if nothing gained from a second GPU; the profile knows better.
    flat = profile_from_times(graph, [lambda b: 1e-3] * len(graph.layers))
    cautious = dp.plan(flat, dp.Cluster(2), BATCH, network_model="ring" if overlap_sync else "paper")
    assert {layer.gpu_count for layer in cautious.layers} == {1}
    seen, processes = [], []
    record = dp.train(
        cautious,
        make_job(loader_workers=1),
        steps=6,
        replan_after=3,
        profile=make_profile(),
        on_proposal=lambda found: seen.append(found) or True,
        on_metrics=lambda metrics: processes.append(set(ranks())),
    )
    # Ranks stay, and no loader, which is a fork of its rank.
    assert len(processes[2] & processes[-1]) == 2
    assert min(len(processes[2]), len(processes[-1])) > 2
    (found,) = seen
    assert max(layer.gpu_count for layer in found.after.layers) == 2
    assert found.after.overlap_sync == overlap_sync
    assert record.switched
    assert record.proposal == str(found)
    assert record.stages[0].gpus == (0, 1)
    assert losses(record) == pytest.approx(losses(expected), rel=1e-4)


@pytest.mark.slow
@pytest.mark.processes
def test_a_proposal_after_the_last_update_is_recorded_and_nobody_is_asked() -> None:
    asked = []
    record = dp.train(
        make_plan(2),
        make_job(),
        steps=2,
        replan_after=2,
        profile=make_profile(),
        on_proposal=lambda found: asked.append(found) or True,
    )
    assert (len(record.metrics), asked, record.switched) == (2, [], False)
    assert "gain" in record.proposal


def numbers_and_labels() -> torch.utils.data.Dataset:
    """Three numbers, and labels of two kinds, for each image."""
    images, classes = dataset().tensors
    table = torch.rand(5, 5, generator=torch.Generator().manual_seed(4))
    table[:, 3:] = (table[:, 3:] > 0.5).float()
    return torch.utils.data.TensorDataset(images, table[classes])


def regression_and_labels(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    labels = nn.functional.binary_cross_entropy_with_logits(
        outputs[:, 3:], target[:, 3:], pos_weight=torch.tensor([2.0, 0.5])
    )
    return nn.functional.mse_loss(outputs[:, :3], target[:, :3]) + labels


def weighted(data: torch.utils.data.Dataset) -> torch.utils.data.Sampler:
    return torch.utils.data.WeightedRandomSampler(torch.arange(1.0, 1 + len(data)), 12)


@pytest.mark.slow
@pytest.mark.processes
def test_vector_regression_and_labels_in_the_order_of_a_sampler_train_as_in_one_process(tmp_path: Path) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5))

    def optimizer(parameters):
        return torch.optim.SGD([parameter for _, parameter in parameters], lr=0.1, momentum=0.9)

    job = dp.TrainingJob(
        model=make(),
        input_shape=(3, 6, 6),
        dataset=numbers_and_labels,
        loss=regression_and_labels,
        optimizer=optimizer,
        sampler=weighted,
        seed=5,
    )
    graph = job.capture().graph
    # All on both ranks, whose shards are of 3 and 2 samples.
    plan = dp.plan(profile_from_times(graph, [lambda batch: 1e-3 * batch] * len(graph.layers)), 2, 5)
    assert {layer.gpu_count for layer in plan.layers} == {2}
    record = dp.train(plan, job, steps=6, checkpoints=tmp_path)

    model, data, orders = make(), numbers_and_labels(), []
    for epoch in range(3):
        torch.manual_seed(5 + epoch)
        orders += torch.tensor(list(weighted(data)))[:10].split(5)
    update, expected = optimizer(list(model.named_parameters())), []
    for positions in orders:
        images, target = data[positions]
        loss = regression_and_labels(model(images), target)
        loss.backward()
        update.step()
        update.zero_grad()
        expected.append(loss.item())
    assert losses(record) == pytest.approx(expected, rel=1e-5)
    for name, value in load_weights(latest(tmp_path)).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("error", [PlanError, MissingProfileError, InvalidValueError])
def test_a_training_without_another_plan_goes_on(
    error: type[DeeppoolError], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_):
        raise error("nothing fits")

    reports = []
    settings = SimpleNamespace(report=lambda *of: reports.append(of), steps=6)
    loop = RestartLoop(make_plan(2), None, settings)
    monkeypatch.setattr(restart_loop, "replan", refuse)
    monkeypatch.setattr(loop, "record", lambda: None)
    trigger = ReplanTrigger(3, make_profile(), lambda found: True)
    loop._replan(None, trigger, tmp_path)
    assert reports == [("no other plan: nothing fits", 0)]
    assert loop._progress.proposal == "no other plan: nothing fits"
    assert not loop._progress.switched


@pytest.mark.slow
@pytest.mark.processes
def test_without_a_restart_left_the_error_names_the_rank_and_the_checkpoint(tmp_path: Path) -> None:
    def kill_one(metrics) -> None:
        if metrics.update == 2:
            os.kill(ranks()[-1].pid, signal.SIGKILL)

    with pytest.raises(RankFailedError, match=r"rank \d was killed by signal 9.*the last checkpoint is .*step-000001"):
        dp.train(make_plan(2), make_job(), steps=9, checkpoints=tmp_path, checkpoint_every=1, on_metrics=kill_one)
    assert not ranks()


@pytest.mark.slow
@pytest.mark.processes
def test_a_loss_that_is_not_finite_ends_the_training_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"the loss is nan after update 1 of Net, on rank \d.*; there is no checkpoint .*learning rate"
    ):
        dp.train(make_plan(2), make_job(dataset=broken_dataset), steps=3, checkpoints=tmp_path / "new")
    assert not ranks()


class RootOfZero(nn.Module):
    """A finite loss whose gradient is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + (self.head(x) * 0).square().sum(1, keepdim=True).sqrt()


def vectors() -> torch.utils.data.Dataset:
    return torch.utils.data.TensorDataset(torch.ones(24, 4), torch.zeros(24, dtype=torch.int64))


@pytest.mark.slow
@pytest.mark.processes
def test_gradients_that_overflow_at_any_loss_scale_end_the_training_with_an_error() -> None:
    job = dp.TrainingJob(model=RootOfZero(), input_shape=(4,), optimizer=adamw, dataset=vectors)
    graph = job.capture().graph
    plan = dp.plan(profile_from_times(graph, [lambda b: 1e-3 * b] * len(graph.layers)), 2, BATCH)
    # The scale is 65,536 at first, and half of that after each overflow.
    with pytest.raises(RunError, match="gradients are infinite or NaN in update 17, at any loss scale"):
        dp.train(replace(plan, precision="fp16"), job, steps=40)
    assert not ranks()


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_leaves_the_earlier_checkpoint_and_no_process(whole, kept, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        interrupted_after(2, kept, disk / "runs")
        (disk / "filler").write_bytes(b"x" * 30_000)
        with pytest.raises(RankFailedError, match=r"rank \d .*cannot write .*rank-\d.pt: .*the last checkpoint is"):
            dp.train(make_plan(2), make_job(), steps=9, checkpoints=disk / "runs", checkpoint_every=1, keep=9)
        assert load_weights(latest(disk / "runs"))
        assert not ranks()
    finally:
        subprocess.run(["umount", disk], check=True)


# -- without processes ------------------------------------------------------------------------------


def test_each_epoch_reads_every_sample_once_in_its_own_order() -> None:
    order = SampleOrder(20, 6, seed=1)
    epochs = [[order.positions(3 * epoch + batch) for batch in range(3)] for epoch in range(2)]
    for epoch in epochs:
        seen = [position for batch in epoch for position in batch]
        assert len(set(seen)) == 18 == len(seen)
    assert epochs[0] != epochs[1]
    assert SampleOrder(20, 6, seed=1).positions(4) == epochs[1][1]


def test_shards_of_a_batch_are_the_batch() -> None:
    data, order = dataset(), SampleOrder(20, 6, seed=1)
    readers = [ShardReader(data, 6, 1, 0) for _ in range(2)]
    for iteration in range(5):
        parts = [reader.shard(iteration, part) for reader, part in zip(readers, (range(4), range(4, 6)), strict=True)]
        again = readers[0].shard(iteration, range(4))
        assert torch.equal(again[0], parts[0][0])
        inputs, targets = zip(*(data[position] for position in order.positions(iteration)), strict=True)
        assert torch.equal(torch.cat([part[0] for part in parts]), torch.stack(inputs))
        assert torch.equal(torch.cat([part[1] for part in parts]), torch.stack(targets))


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 60.0}, "steps must be a whole number, got 60.0"),
        ({"steps": 1, "keep": 0}, "keep must be at least 1, got 0"),
        ({"steps": 1, "restarts": -1}, "restarts must be at least 0, got -1"),
    ],
)
def test_invalid_numbers_are_refused_before_a_process_starts(changes, phrase) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        dp.train(make_plan(2), make_job(), **changes)


@pytest.mark.parametrize("name", ["job", "gradient_sync", "load_imbalance"])
def test_what_cannot_be_sent_to_the_ranks_is_refused_before_a_process_starts(name: str) -> None:
    lock = threading.Lock()

    def use(*_):
        return lock

    given = {"job": make_job(dataset=use), "gradient_sync": SimpleNamespace(driver=use), "load_imbalance": use}
    with pytest.raises(InvalidValueError, match=rf"{name} cannot be sent to .*: cannot pickle '_thread.lock'"):
        dp.train(make_plan(2), **{"job": make_job(), name: given[name]}, steps=1)
    assert not ranks()


def test_a_dataset_smaller_than_a_batch_and_one_without_positions_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="the dataset has 20 samples, a global batch is 30"):
        ShardReader(dataset(), 30, 0, 0)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(InvalidValueError, match="the dataset is a Stream, expected one with a length"):
        ShardReader(Stream(), 1, 0, 0)


@pytest.mark.slow
@pytest.mark.processes
def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(whole, kept, tmp_path: Path) -> None:
    interrupted_after(2, kept, tmp_path)
    with pytest.raises(InvalidValueError, match="has made 2 updates already, steps is 2"):
        dp.train(make_plan(2), make_job(), steps=2, checkpoints=tmp_path)
    (latest(tmp_path) / "rank-1.pt").write_bytes(b"no archive")
    with pytest.raises(DocumentError, match=r"cannot read .*rank-1.pt: .*use an earlier checkpoint"):
        load_weights(latest(tmp_path))
    with pytest.raises(RankFailedError, match=r"cannot read .*rank-1.pt"):
        dp.train(make_plan(2), make_job(), steps=3, checkpoints=tmp_path)
    assert not ranks()


# -- from the shell ---------------------------------------------------------------------------------


@pytest.mark.processes
def test_the_shell_trains_the_example_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = own_training.job().capture().graph
    times = [lambda b: 1e-3 * b] * len(graph.layers)
    plan = dp.save(dp.plan(profile_from_times(graph, times), 2, 32), tmp_path / "plan.json")
    command = ["train", str(plan), "examples.own_training:job", "--checkpoints", str(tmp_path / "kept")]
    with pytest.raises(SystemExit) as ended:
        app([*command, "--steps", "2", "--json"])
    assert ended.value.code == 0
    output = json.loads(capsys.readouterr().out)
    assert [metrics["update"] for metrics in output["metrics"]] == [1, 2]
    saved = tmp_path / "record.json"
    with pytest.raises(SystemExit) as ended:
        app([*command, "--steps", "3", "-o", str(saved)])
    assert ended.value.code == 0
    assert [metrics.update for metrics in dp.load(saved).metrics] == [3]
    _, card = capsys.readouterr().out.split("\n\n")
    findings, _, steps = card.partition("\nNext:\n")
    techniques = ["burst parallelism", "collocation", "partial all-reduces"]
    assert [line[2:21].strip() for line in findings.splitlines()] == techniques
    assert "an iteration takes " in findings
    assert steps.strip()


@pytest.mark.parametrize(
    ("job", "phrase"),
    [
        ("examples.own_training", "JOB must be package.module:callable"),
        ("examples.own_training:jub", "cannot import job 'examples.own_training:jub': AttributeError"),
        ("examples.own_training:dataset", "returned a TensorDataset, expected a deeppool.TrainingJob"),
    ],
)
def test_an_invalid_job_is_reported_in_one_line(job: str, phrase: str, tmp_path: Path) -> None:
    plan = dp.save(make_plan(2), tmp_path / "plan.json")
    with pytest.raises(DeeppoolError, match=phrase):
        app(["train", str(plan), job, "--steps", "1"])


def test_a_profile_of_another_device_is_refused_at_the_start() -> None:
    other = replace(make_profile(), device_name="another device")
    with pytest.raises(PlanError, match="give the profile that the plan was made of"):
        dp.train(make_plan(2), make_job(), steps=6, replan_after=3, profile=other)


def test_a_launcher_without_a_shared_folder_refuses_proposals_at_the_start() -> None:
    elsewhere = LocalLauncher("cpu", 2)
    elsewhere.same_files = False
    with pytest.raises(InvalidValueError, match="change their plan through a checkpoint, and there is no folder"):
        dp.train(
            make_plan(2),
            make_job(),
            steps=6,
            replan_after=3,
            profile=make_profile(),
            launcher=elsewhere,
            on_proposal=lambda found: True,
        )
