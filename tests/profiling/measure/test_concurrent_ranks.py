"""Concurrent ranks that train on other cores while one is measured."""

import os
import signal

import pytest
from torch import nn

from deeppool.device.cpu import usable_cores
from deeppool.errors import InvalidValueError, RunError
from deeppool.graph.capture.capture import capture
from deeppool.profiling.measure.concurrent_ranks import ConcurrentRanks, check_ranks
from deeppool.profiling.measure.profile import profile
from deeppool.records import files

pytestmark = pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")


class Small(nn.Module):
    """Enough work that an iteration shows on a process's clock."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)), nn.Linear(256, 2))

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(scope="module")
def model():
    return capture(Small(), (256,))


@pytest.mark.processes
def test_a_concurrent_rank_runs_the_same_iterations(model):
    with ConcurrentRanks(model, "fp32", 1) as concurrent_ranks:
        (other,) = concurrent_ranks._others
        used = []
        for batch in (1, 2048):
            with concurrent_ranks.iteration(batch):
                assert os.sched_getaffinity(0) == {usable_cores()[0]}
            before = other.cpu_seconds()
            with concurrent_ranks.iteration(batch):
                pass
            used.append(other.cpu_seconds() - before)
        assert sorted(os.sched_getaffinity(0)) == usable_cores()
        assert os.sched_getaffinity(other.process.pid) == {usable_cores()[1]}
    # 2.7 GFLOP, and 1.3 MFLOP.
    assert used[1] > 3 * used[0] > 0
    assert other.exit_code() is not None


@pytest.mark.processes
def test_a_profile_with_concurrent_ranks_records_them_and_leaves_no_process(model, tmp_path, monkeypatch):
    monkeypatch.setattr("deeppool.profiling.measure.sampling.MAXIMUM_RUNS", 2)
    begun, updates = [], []
    iteration, update = ConcurrentRanks.iteration, ConcurrentRanks.update
    monkeypatch.setattr(ConcurrentRanks, "update", lambda self: updates.append(1) or update(self))
    monkeypatch.setattr(
        ConcurrentRanks, "iteration", lambda self, batch: begun.append((self, batch)) or iteration(self, batch)
    )
    found = profile(model, device="cpu", batch_sizes=(1, 2), ranks=2, output=tmp_path / "small.json")
    assert found.ranks == 2
    assert "one of 2 ranks" in str(found)
    assert files.load(tmp_path / "small.json") == found
    # Two layered ones, two whole ones, and one that warms up, each beside the other core's; one before the update.
    assert [batch for _, batch in begun] == [1] * 5 + [2] * 5 + [1]
    assert len(updates) >= 5
    assert all(child.exit_code() is not None for concurrent_ranks, _ in begun for child in concurrent_ranks._others)


@pytest.mark.processes
def test_a_killed_concurrent_rank_ends_the_measurement_with_a_one_line_error(model):
    with ConcurrentRanks(model, "fp32", 1) as concurrent_ranks:
        os.kill(concurrent_ranks._others[0].process.pid, signal.SIGKILL)
        with pytest.raises(RunError, match="rank 1 was killed by signal 9"), concurrent_ranks.iteration(1):
            pass


@pytest.mark.processes
def test_a_loss_that_other_processes_cannot_import_raises():
    own = capture(Small(), (256,), loss=lambda outputs, target: (outputs**2).mean() + 0 * target.sum())
    with pytest.raises(RunError, match="Small was captured with a custom loss, which other ranks lack"):
        ConcurrentRanks(own, "fp32", 1)


@pytest.mark.parametrize(
    ("ranks", "device", "threads", "message"),
    [
        (0, "cpu", 1, "ranks must be at least 1, got 0"),
        (2, "cuda", 1, "ranks are cores that train at the same time, got device cuda"),
        (10_000, "cpu", 1, "10000 ranks need a core each, and this process may use"),
        (2, "cpu", 2, "ranks have a core each, got 2 threads"),
    ],
)
def test_invalid_rank_counts_are_refused(ranks, device, threads, message):
    with pytest.raises(InvalidValueError, match=message):
        check_ranks(ranks, device, threads)
