"""Process-wide settings that are active in each phase of a rank."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import deeppool as dp
from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.cluster.cluster import find_cluster
from deeppool.collectives.buckets import DEFAULT_BUCKETS, ONE_BUCKET, Buckets
from deeppool.collocation import collocated_rank
from deeppool.collocation.collocated_rank import CollocatedRank
from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import CudaDevice
from deeppool.device.emulated.device import EmulatedDevice
from deeppool.execution import rank as rank_module
from deeppool.execution import training_task
from deeppool.execution.checkpoint import load, save_shard
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.execution.communicator import SingleRank
from deeppool.execution.rank import Rank
from deeppool.execution.ranks import PLAN
from deeppool.execution.trainer import Trainer
from deeppool.job import Job

EXAMPLE, BATCH = "examples.two_branch:two_branch", 2
JOB = asdict(Job(EXAMPLE, (), BATCH))


@pytest.fixture
def open_settings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A CPU whose arithmetic is set as a GPU's: for torch the settings are of the process, whatever it runs on."""
    found: list[str] = []

    @contextmanager
    def arithmetic(device: CpuDevice, precision: str) -> Iterator[None]:
        with CudaDevice.arithmetic(device, precision):  # type: ignore[arg-type]
            found.append(precision)
            yield
            found.pop()

    monkeypatch.setattr(CpuDevice, "arithmetic", arithmetic)
    # This process stays on all its cores.
    monkeypatch.setattr(CpuDevice, "select", lambda *_: None)
    return found


def make_rank(
    folder: Path,
    device: str = "cpu",
    enter: Callable[..., None] = lambda *_, **__: None,
    buckets: Buckets = DEFAULT_BUCKETS,
    **more: Any,
) -> Rank:
    """Makes the only rank of a plan, which tells ``enter`` what it does; it is emulated, so it joins no rendezvous."""
    profile = dp.profile(EXAMPLE, device=device, batch_sizes=[BATCH])
    plan = replace(dp.plan(profile, find_cluster("loopback", 1), BATCH), buckets=buckets)
    serialization.write(plan, folder / PLAN)
    setup = {"rank": 0, "ranks": 1, "position": 0, "emulated": True, "folder": str(folder), "index": 0, "core": None}
    setup |= {"shared_pages": None, "job": JOB, "sharing": None}
    heartbeat: Any = SimpleNamespace(enter=enter)
    return Rank(setup | more, heartbeat)


@pytest.mark.slow
def test_arithmetic_settings_of_a_plan_apply_to_capture_and_execution_of_its_stages(
    tmp_path: Path, open_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[str]] = {}
    build, iterate = Trainer.__init__, Trainer.iterate

    def building(trainer: Trainer, *arguments: Any, **more: Any) -> None:
        seen["captured"] = list(open_settings)
        build(trainer, *arguments, **more)

    def iterating(trainer: Trainer, batches: Any) -> float:
        seen["run"] = list(open_settings)
        return iterate(trainer, batches)

    monkeypatch.setattr(Trainer, "__init__", building)
    monkeypatch.setattr(Trainer, "iterate", iterating)
    rank = make_rank(tmp_path)
    rank.train(
        {"collocated": False, "awake": False, "report_all": False, "steps": 1},
        SimpleNamespace(answer=lambda *_, **__: None),
    )
    assert seen == {"captured": ["fp32"], "run": ["fp32"]}


@pytest.mark.slow
def test_a_rank_makes_the_buckets_of_its_plan(tmp_path: Path, open_settings: list[str]) -> None:
    numbers = []
    for rule in (ONE_BUCKET, Buckets(alone=0)):
        step = make_rank(tmp_path, buckets=rule).trainer.step
        numbers.append([len(bucket.parameters) for bucket in step.buckets])
    (together,), each = numbers
    assert each == [1] * together
    assert together > 3


def test_a_rank_that_makes_its_optimizer_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has met the others: an error or a delay is its own."""
    waiting, seen = list[bool](), list[list[bool]]()
    make_optimizer = training_task.momentum_sgd

    def enter(what: str, *, waits: bool = False) -> None:
        waiting.append(waits)

    def making(*arguments: Any) -> torch.optim.Optimizer:
        seen.append(list(waiting))
        return make_optimizer(*arguments)

    # This process stays on all its cores.
    monkeypatch.setattr(CpuDevice, "select", lambda *_: None)
    monkeypatch.setattr(rank_module, "join_process_group", lambda *_: SingleRank())
    monkeypatch.setattr(training_task, "momentum_sgd", making)
    make_rank(tmp_path, enter=enter, emulated=False, rendezvous="", interface=None)
    assert seen == [[False, True, False]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "counts"), [({"rank": 0}, True), ({"rank": 1}, False), ({"rank": 1, "emulated": True}, True)]
)
def test_a_governor_counts_the_ranks_that_compute_layers(
    changes: dict[str, Any], counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is on one GPU, which an emulated rank computes for."""
    monkeypatch.setattr(CpuDevice, "select", lambda *_: None)
    monkeypatch.setattr(rank_module, "join_process_group", lambda *_: SingleRank())
    monkeypatch.setattr(rank_module, "emulate_other_ranks", lambda *_: SingleRank())
    setup = {"emulated": False, "rendezvous": "", "interface": None, "sharing": asdict(Sharing())} | changes
    rank = make_rank(tmp_path, **setup)
    rank.train(TRAIN | {"steps": 1}, SILENT)
    assert rank.foreground_control is not None
    assert rank.foreground_control.computes is counts


@pytest.mark.slow
def test_a_background_can_be_captured_by_the_process_of_a_rank(tmp_path: Path, open_settings: list[str]) -> None:
    """Also in the rank's arithmetic: torch.export reads flags that torch cannot return where settings differ."""
    sharing = asdict(Sharing(priority="normal", home="thread"))
    rank = make_rank(tmp_path, sharing=sharing)
    answer = CollocatedRank(rank).start_background({"job": JOB, "batch": BATCH}, None)
    assert answer.get("why") is None
    assert answer["first_loss"] > 0
    with CpuDevice().arithmetic("fp32"):
        assert CollocatedRank(rank).start_background({"job": JOB, "batch": BATCH}, None).get("why") is None


DEVICE_SECONDS = 0.15
"""Of a kernel that takes no CPU time, as one of a GPU."""
TRAIN = {"collocated": False, "awake": False, "report_all": False}
SILENT: Any = SimpleNamespace(answer=lambda *_, **__: None)


@contextmanager
def memory_of(device: Any, size: int | None) -> Iterator[None]:
    """A device of so many bytes in the block."""
    device.limit_memory(size)
    try:
        yield
    finally:
        device.limit_memory(None)


@pytest.fixture(scope="module")
def emulated_rank(tmp_path_factory: pytest.TempPathFactory) -> Rank:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedDevice, "select", lambda *_: None)
        return make_rank(tmp_path_factory.mktemp("rank"), "emulated")


@pytest.mark.slow
def test_a_device_is_busy_while_it_computes_and_iterations_have_its_times(
    emulated_rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, steps = emulated_rank, 3

    def slow(forward: Any) -> Any:
        def launch(inputs: Any) -> Any:
            rank.device.runtime.launch("sleep", (), (), lambda: time.sleep(DEVICE_SECONDS))
            return forward(inputs)

        return launch

    for run in rank.trainer.step.passes:
        monkeypatch.setattr(run, "forward", slow(run.forward))
    with rank.stream.current():
        answer = rank.train({**TRAIN, "steps": steps}, SILENT)
    forwards = len(rank.trainer.stages) * DEVICE_SECONDS
    assert steps * forwards <= answer["busy"] <= answer["wall"]
    # By the host's clock the first iteration would end before its update, and the last one include the one before.
    assert all(seconds >= forwards for seconds in answer["times"])
    assert sum(answer["times"]) <= answer["wall"]


@pytest.mark.slow
def test_a_rank_whose_device_waits_for_others_does_not_hang_whatever_its_host_does(emulated_rank: Rank) -> None:
    rank, arrived = emulated_rank, threading.Event()
    assert rank.activity() is None
    with rank.stream.current():
        with rank.trainer.span("sync", 0, "all-reduce"):
            rank.device.runtime.launch("wait for other ranks", (), (), arrived.wait)
        with rank.trainer.span("update", 0, "update"):
            pass
        # The host is outside any span, as in float(loss).
        waiting = rank.activity()
        assert waiting is not None
        assert waiting.waits
        assert waiting.what.startswith("gradient synchronisation of stage")
        # And here it reads data, whose copy to the device may wait.
        rank.trainer.reading(0)
        assert rank.activity() == waiting
        arrived.set()
        rank.device.synchronize_stream()
    reading = rank.activity()
    assert reading is not None
    assert not reading.waits
    rank.trainer.doing = None
    assert rank.activity() is None


def test_a_background_in_the_process_changes_no_random_number_of_the_rank(
    emulated_rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = emulated_rank

    def draw(*_: Any, **__: Any) -> Any:
        # As models are made, and as their layers draw on the device.
        torch.manual_seed(3)
        torch.empty(4, device=rank.torch_device).uniform_()
        raise RuntimeError("no further")

    monkeypatch.setattr(collocated_rank, "BackgroundTraining", draw)
    monkeypatch.setattr(rank, "setup", {**rank.setup, "sharing": {}})
    before = torch.get_rng_state(), rank.device.random_state()
    answer = CollocatedRank(rank).start_background({"job": JOB, "batch": BATCH}, SILENT)
    assert "no further" in answer["why"]
    rank.device.synchronize()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(rank.device.random_state(), before[1])


@pytest.mark.slow
def test_a_background_gets_none_of_the_memory_that_an_iteration_frees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmulatedDevice, "select", lambda *_: None)
    rank = make_rank(tmp_path, "emulated", sharing=asdict(Sharing()))
    memory, message = rank.device.runtime.memory, {"job": JOB, "batch": BATCH}

    def start(size: int | None = None) -> dict[str, Any]:
        collocated = CollocatedRank(rank)
        train()
        with memory_of(rank.device, size):
            return collocated.start_background(message, SILENT)

    def train() -> None:
        with rank.stream.current():
            rank.train({**TRAIN, "steps": 2}, SILENT)

    def taken() -> int:
        """Bytes that cannot be given back."""
        gc.collect()
        memory.empty_cache()
        return memory.reserved

    rank.device.memory_use()  # the peak counts from here
    train()
    freed = memory.peak - memory.now
    assert freed > 0
    alone = taken()
    assert start().get("why") is None
    too_little = taken() + freed - 1
    CollocatedRank(rank)  # in place of the one before, whose background ends
    taken()
    assert start(too_little)["why"].startswith("ran out of memory in its start")
    with memory_of(rank.device, too_little):
        train()
    memory.empty_cache()
    assert memory.reserved <= alone


def test_the_memory_of_a_refused_background_is_kept_until_its_stream_has_ended(
    emulated_rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, held = emulated_rank, list[bool]()
    made: list[weakref.ref[Any]] = []

    def fail(training: Any, *_: Any) -> None:
        made.append(weakref.ref(training))
        raise RuntimeError("no further")

    synchronize = rank.device.synchronize

    def note() -> None:
        synchronize()
        held.extend(each() is not None for each in made)

    monkeypatch.setattr(collocated_rank, "InProcessBackground", fail)
    monkeypatch.setattr(rank, "setup", {**rank.setup, "sharing": {}})
    monkeypatch.setattr(rank.device, "synchronize", note)
    assert "no further" in CollocatedRank(rank).start_background({"job": JOB, "batch": BATCH}, SILENT)["why"]
    assert held == [True]
    assert made[0]() is None


def test_a_checkpoint_holds_the_devices_random_numbers(emulated_rank: Rank, tmp_path: Path) -> None:
    trainer, device = emulated_rank.trainer, emulated_rank.device

    def draw() -> list[float]:
        return torch.empty(4, device=emulated_rank.torch_device).uniform_().tolist()

    kept = CheckpointFolder(path=tmp_path, every=1, keep=1, model="m", graph_fingerprint="f", global_batch=BATCH)
    folder = kept.save(lambda partial: [save_shard(trainer, partial)], 1)
    expected = draw()
    draw()
    load(trainer, folder)
    assert draw() == expected
    assert device.random_state() is not None
