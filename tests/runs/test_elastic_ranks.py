"""Trainings that go on with fewer ranks after a GPU was lost, and with all of them when it is back.

A rank's GPU is a core. A core is taken away as a container's manager does it: this process may no longer run on it.
"""

import os
import random
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.device.cpu import usable_cores
from deeppool.errors import InvalidValueError, PlanError, RunError
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.fewer_gpus import plan_for_gpus
from deeppool.processes.launcher import LocalLauncher
from deeppool.profiling.table import Profile
from deeppool.records.training_record import Metrics, TrainingRecord
from deeppool.runs.elastic_ranks import ElasticRanks
from tests.processes.children import ranks
from tests.strategies import profile_from_times

BATCH, STEPS, EVERY, SEED = 6, 14, 3, 5
CORES = usable_cores()
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="the ranks of all GPUs are on one core")


class Net(nn.Module):
    """A convolution, and a dense layer that gains nothing from more GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.stem(x)).flatten(1))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().double()


class Samples(torch.utils.data.TensorDataset):
    """Random samples; :attr:`broken` is a core on which a process that reads the fourth one dies."""

    broken: int | None = None
    seconds = 0.0
    """Seconds to read a sample."""

    def __getitem__(self, position: int) -> tuple[torch.Tensor, ...]:
        time.sleep(self.seconds)
        if os.sched_getaffinity(0) == {self.broken}:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(position)


def dataset(broken: int | None = None, seconds: float = 0.0) -> Samples:
    generator = torch.Generator().manual_seed(3)
    samples = Samples(
        torch.randn(20, 3, 6, 6, generator=generator, dtype=torch.float64),
        torch.randint(5, (20,), generator=generator),
    )
    samples.broken, samples.left, samples.seconds = broken, 4, seconds
    return samples


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def make_job(broken: int | None = None, seconds: float = 0.0) -> dp.TrainingJob:
    return dp.TrainingJob(
        model=net(),
        input_shape=(3, 6, 6),
        input_dtype=torch.float64,
        dataset=lambda: dataset(broken, seconds),
        optimizer=sgd,
        seed=SEED,
    )


def slow_job() -> dp.TrainingJob:
    """Named by a command line."""
    return make_job(seconds=0.01)


@cache
def make_profile() -> Profile:
    graph = make_job().capture().graph
    times = [(lambda b: 1e-3 * b) if "stem" in layer.name else (lambda b: 1e-3) for layer in graph.layers]
    return profile_from_times(graph, times)


@cache
def make_plan(gpus: int) -> Plan:
    """The convolution on all GPUs; within the limit the dense layer is on one."""
    return dp.plan(make_profile(), dp.Cluster(gpus), BATCH, 1.5)


@pytest.fixture(scope="module")
def expected() -> list[float]:
    return plain_losses(STEPS)


def plain_losses(steps: int) -> list[float]:
    """Losses of a loop in plain torch, in one process, over the documented order of the samples."""
    model, data = net(), dataset()
    optimizer, found = sgd(model.parameters()), []
    for epoch in range(steps):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED + epoch)).tolist()
        for first in range(0, len(data) - BATCH + 1, BATCH):
            inputs, targets = zip(*(data[position] for position in order[first : first + BATCH]), strict=True)
            loss = nn.functional.cross_entropy(model(torch.stack(inputs)), torch.stack(targets))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found[:steps]


def losses(record: TrainingRecord) -> list[float]:
    return [metrics.loss for metrics in record.metrics]


@pytest.fixture
def cores() -> Iterator[None]:
    """Gives all cores back."""
    yield
    os.sched_setaffinity(0, CORES)


class LostGpu:
    """Takes the core of GPU 1 away after an update, kills its rank, and gives the core back after a later one."""

    def __init__(self, lost_after: int, back_after: int = STEPS + 1) -> None:
        self.lost_after, self.back_after, self.seen = lost_after, back_after, [0]

    def __call__(self, metrics: Metrics) -> None:
        first_time, self.seen = metrics.update > max(self.seen), [*self.seen, metrics.update]
        if metrics.update == self.lost_after and first_time:
            os.sched_setaffinity(0, set(CORES) - {CORES[1]})
            (victim,) = (rank for rank in ranks() if rank.cpu_affinity() == [CORES[1]])
            victim.kill()
        if metrics.update == self.back_after:
            os.sched_setaffinity(0, CORES)


def train(gpus: int, tmp_path: Path, job: dp.TrainingJob | None = None, **choices: object) -> TrainingRecord:
    options = {"min_ranks": 1, "restarts": 1} | choices
    return dp.train(
        make_plan(gpus),
        job or make_job(),
        steps=STEPS,
        checkpoints=tmp_path / "kept",
        checkpoint_every=EVERY,
        profile=make_profile(),
        **options,
    )


@pytest.mark.slow
@two_cores
@pytest.mark.processes
@pytest.mark.parametrize(
    ("gpus", "left"),
    [
        # Two of three GPUs go on in the next test, too.
        pytest.param(3, (0, 2), id="3 to 2 to 3", marks=pytest.mark.stress),
        pytest.param(2, (0,), id="2 to 1 to 2"),
    ],
)
def test_a_training_goes_on_without_a_lost_gpu_and_with_it_when_it_is_back(
    gpus: int, left: tuple[int, ...], expected: list[float], cores: None, tmp_path: Path
) -> None:
    # Between the first checkpoint and the second, which the ranks do not pass without their killed one.
    lost = random.randint(EVERY + 1, 2 * EVERY)
    reports: list[str] = []
    record = train(
        gpus, tmp_path, on_metrics=LostGpu(lost, 2 * EVERY + 1), on_progress=lambda what, share: reports.append(what)
    )
    assert losses(record) == pytest.approx(expected, rel=1e-10, abs=1e-10), lost
    first, fewer, again = record.attempts
    everything = tuple(range(gpus))
    assert [each.gpus for each in record.attempts] == [everything, left, everything]
    # Plans that are burst parallel, where there is more than one GPU.
    assert [dict(each.layer_counts).keys() for each in record.attempts] == [{gpus, 1}, {len(left), 1}, {gpus, 1}]
    assert fewer.plan_iteration_time == pytest.approx(
        plan_for_gpus(make_plan(gpus), make_profile(), len(left)).iteration_time
    )
    assert first.last_update >= lost
    assert first.resumed_after == 0
    # The ranks may have been writing the second checkpoint.
    assert fewer.resumed_after == EVERY
    assert again.resumed_after == fewer.last_update == 3 * EVERY
    assert again.last_update == STEPS
    assert first.recovery is None
    assert fewer.recovery > 0 < again.recovery
    assert "was killed by signal 9" in first.ended
    assert (fewer.ended, again.ended) == ("more GPUs can be used", "")
    assert (record.restarts, record.ranks) == (1, gpus)
    assert f"on GPU{'s' * (gpus == 3)} {','.join(map(str, left))}, after " in str(record)
    assert f"starting on GPUs {','.join(map(str, left))} of {gpus}" in reports
    assert dp.load(dp.save(record, tmp_path / "record.json")) == record
    assert not ranks()


@pytest.mark.slow
@two_cores
@pytest.mark.processes
def test_a_gpu_on_which_a_rank_dies_again_is_given_up(expected: list[float], tmp_path: Path) -> None:
    reports: list[str] = []
    record = train(3, tmp_path, make_job(CORES[1]), restarts=2, on_progress=lambda what, share: reports.append(what))
    assert losses(record) == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert [each.gpus for each in record.attempts] == [(0, 1, 2), (0, 1, 2), (0, 2)]
    assert "GPU 1 is given up: its rank failed twice in a row" in record.attempts[1].ended
    assert "given up" not in record.attempts[0].ended
    assert record.timeline.title.endswith("on 2 of 3 GPUs")
    assert record.timeline.gpus == record.ranks == 2


@pytest.mark.slow
@two_cores
@pytest.mark.processes
def test_with_too_few_gpus_left_one_error_names_them_the_fault_and_the_checkpoint(cores: None, tmp_path: Path) -> None:
    with pytest.raises(
        RunError,
        match=r"rank 1 was killed by signal 9 .*; 1 of 2 GPUs can be used, min_ranks is 2 .*the last checkpoint is "
        r".*step-000003",
    ):
        train(2, tmp_path, min_ranks=2, on_metrics=LostGpu(EVERY + 1))
    assert not ranks()


# -- without processes ------------------------------------------------------------------------------


class Machine:
    """Launcher whose GPUs the test takes away and gives back."""

    def __init__(self, gpus: int) -> None:
        self.here = tuple(range(gpus))
        self.gpus: tuple[int, ...] = self.here
        self.tried: set[int] = set()
        """GPUs that the last question was about."""

    def available(self, in_use: Collection[int] = ()) -> tuple[int, ...]:
        self.tried = {*self.here} - {*in_use}
        return self.here

    def assign(self, gpus: Sequence[int]) -> None:
        self.gpus = tuple(gpus)


def test_each_start_has_the_plan_for_the_gpus_that_are_there() -> None:
    machine, plan = Machine(4), make_plan(4)
    elastic = ElasticRanks(plan, make_profile(), machine, 1)
    assert elastic.plan_next() is plan
    assert not elastic.can_grow()
    machine.here = (0, 3, 2)
    assert elastic.plan_next().gpus == 3
    assert machine.gpus == (0, 3, 2)
    assert not elastic.can_grow()
    machine.here = (3,)
    assert (elastic.plan_next().gpus, machine.gpus) == (1, (3,))
    machine.here = (1, 3)
    assert elastic.can_grow()
    assert machine.gpus == (3,)
    machine.here = (0, 1, 2, 3, 4)
    assert elastic.plan_next() is plan
    assert machine.gpus == (0, 1, 2, 3)


def test_a_gpu_is_given_up_only_if_its_rank_fails_twice_without_a_checkpoint_between() -> None:
    machine, first, second = Machine(3), Path("step-000001"), Path("step-000002")
    elastic = ElasticRanks(make_plan(3), make_profile(), machine, 2)
    elastic.plan_next()
    for rank, checkpoint in ((1, None), (1, first), (0, first), (1, first), (None, first), (1, first), (1, second)):
        assert elastic.record_fault(rank, checkpoint) is None
        assert elastic.plan_next().gpus == 3
    assert elastic.record_fault(1, second) == 1
    assert elastic.plan_next().gpus == 2
    assert (machine.gpus, machine.tried) == ((0, 2), {0, 2})
    assert not elastic.can_grow()
    assert machine.tried == set()
    # Rank 1 is now that of another GPU.
    assert elastic.record_fault(1, second) is None
    assert elastic.record_fault(1, second) == 2
    with pytest.raises(RunError, match="1 of 3 GPUs can be used; GPUs 1, 2 were given up, min_ranks is 2"):
        elastic.plan_next()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1.5])
@pytest.mark.parametrize("counts", ["powers", "all"])
def test_the_plan_for_fewer_has_the_options_of_the_plan(limit: float | None, counts: str) -> None:
    profile = make_profile()
    cluster = dp.Cluster(5, gpus_per_node=2)
    whole = dp.plan(profile, cluster, 12, limit, gpu_counts=counts)
    for gpus in (1, 2, 3, 4):
        wanted = dp.plan(profile, replace(cluster, gpus=gpus), 12, limit, gpu_counts=counts)
        assert replace(plan_for_gpus(whole, profile, gpus), search_time=0.0) == replace(wanted, search_time=0.0)


def test_what_cannot_be_planned_for_the_fewest_is_an_error_at_once(tmp_path: Path) -> None:
    profile = make_profile()
    plan = dp.plan(profile, 4, BATCH)
    small = replace(plan, cluster=replace(plan.cluster, memory=1000.0))
    with pytest.raises(PlanError, match=r"min_ranks is 1: .*1000 B|min_ranks is 1: "):
        dp.train(small, make_job(), steps=1, checkpoints=tmp_path, restarts=1, min_ranks=1, profile=profile)


@pytest.mark.parametrize(
    ("choices", "phrase"),
    [
        ({"min_ranks": 3}, "min_ranks must be at most 2, got 3 \\(the plan is for 2 GPUs\\)"),
        ({"min_ranks": 0}, "min_ranks must be at least 1, got 0"),
        ({"restarts": 0}, "got a profile, checkpoints and 0 restarts"),
        ({"profile": None}, "got no profile, checkpoints and 1 restarts"),
        ({"checkpoints": None}, "got a profile, no checkpoints and 1 restarts"),
        ({"background": "resnet18"}, "background jobs are each beside one rank of the plan"),
    ],
)
def test_what_min_ranks_lacks_is_reported(choices: dict, phrase: str, tmp_path: Path) -> None:
    options = {"min_ranks": 1, "restarts": 1, "profile": make_profile(), "checkpoints": tmp_path} | choices
    with pytest.raises(InvalidValueError, match=phrase):
        dp.train(make_plan(2), make_job(), steps=1, **options)


@two_cores
def test_gpus_on_a_core_that_was_taken_away_are_not_available(cores: None, tmp_path: Path) -> None:
    launcher = LocalLauncher("cpu", 5)
    launcher.distribute_files(tmp_path)
    assert launcher.available() == (0, 1, 2, 3, 4)
    os.sched_setaffinity(0, set(CORES) - {CORES[1]})
    kept = tuple(gpu for gpu in range(5) if gpu % len(CORES) != 1)
    assert launcher.available() == kept
    launcher.assign(kept)
    assert {launcher.worker_spec(rank).core for rank in range(len(kept))} <= set(CORES) - {CORES[1]}
