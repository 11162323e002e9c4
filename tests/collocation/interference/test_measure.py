"""Pairs of kernels measured on this machine: processes of their own, a record that a simulation takes."""

import os
import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from deeppool.collocation.interference import cpu_bench, waits
from deeppool.collocation.interference.measure import measure_interference
from deeppool.device.cpu import usable_cores
from deeppool.errors import InvalidValueError
from deeppool.records import files
from deeppool.simulation.device.collocated import SimulatedPiece, SimulatedStep


@pytest.mark.slow
@pytest.mark.processes
def test_two_kernels_are_measured_in_one_arrangement_and_saved(tmp_path) -> None:
    told: list[tuple[str, float]] = []
    found = measure_interference(
        device="cpu",
        matrices=[16],
        durations=[5e-4],
        arrangements=["normal"],
        seconds=0.05,
        rounds=np.int64(1),
        on_progress=lambda *x: told.append(x),
    )
    assert [beside.name for beside in found.arrangements] == ["normal"]
    assert len(found.intensities) == 2 and found.durations == (5e-4,)
    (beside,) = found.arrangements
    assert all(rate > 0 for pairs in (beside.foreground, beside.background) for row in pairs for rate in row)
    assert found.waits is None
    assert told[0] == ("starting", 0.0) and told[-2:] == [("pairs of kernels", 1.0), ("done", 1.0)]
    assert files.load(files.save(found, tmp_path / "pairs.json")) == found
    ours, theirs = found.rates("normal")(
        SimulatedStep(kind="forward", stage=0, seconds=1e-3), SimulatedPiece(seconds=1e-3)
    )
    assert ours > 0 and theirs > 0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs SCHED_IDLE, of Linux")
@pytest.mark.stress
def test_what_a_background_does_before_and_after_the_foreground_does_not_count() -> None:
    # It begins before, and its last kernel of 20 ms ends after: a quarter of the time and more, here.
    found = measure_interference(
        device="cpu", matrices=[128], durations=[2e-2], arrangements=["lowest"], waits=(), seconds=0.05, rounds=3
    )
    assert max(rate for row in found.arrangements[0].background for rate in row) < 0.15


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs SCHED_IDLE, of Linux")
@pytest.mark.skipif(len(usable_cores()) < 2, reason="ranks need a core each, there is one")
def test_a_background_trains_in_the_waits_of_a_foreground_and_inside_transfers(monkeypatch) -> None:
    for name in ("FOREGROUND", "BACKGROUND"):
        monkeypatch.setattr(waits, name, {"model": "resnet18", "batch": 1})
    told: list[tuple[str, float]] = []
    found = measure_interference(
        device="cpu",
        matrices=[16],
        durations=[5e-4],
        arrangements=["lowest"],
        waits=[2e-2],
        seconds=0.02,
        rounds=1,
        on_progress=lambda *x: told.append(x),
    )
    assert found.waits is not None and found.waits.seconds == (2e-2,)
    # How much it gets is another matter where something else uses this machine.
    assert 0 < found.waits.harvest[0] <= 1
    assert 0 < found.waits.in_transfers <= 1
    assert [what for what, share in told if share == 1] == ["transfers", "done"]
    assert [share for _, share in told] == sorted(share for _, share in told)


def test_workers_may_run_for_longer_than_one_may_be_silent(monkeypatch) -> None:
    monkeypatch.setattr(cpu_bench, "RUN_SECONDS", 0.1)
    inbox: queue.SimpleQueue = queue.SimpleQueue()

    def send(command: str, *, seconds: float, **_: object) -> None:
        threading.Timer(seconds, inbox.put, [(None, {"event": "done", "seconds": seconds})]).start()

    child = SimpleNamespace(name="background", inbox=inbox, send=send)
    assert cpu_bench.run([child], 0, 0.3) == [{"event": "done", "seconds": 0.3}]


def test_waits_that_are_not_positive_are_refused_before_a_process_starts() -> None:
    with pytest.raises(InvalidValueError, match=r"waits\[0\] must be a number, got 'a'"):
        measure_interference(device="cpu", waits=["a"])
    with pytest.raises(InvalidValueError, match=r"waits must be positive numbers of seconds, got \[0.01, 0\]"):
        measure_interference(device="cpu", waits=[0.01, 0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": 0.0}, "seconds must be positive and finite, got 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"rounds": 2.5}, r"rounds must be a whole number, got 2\.5"),
    ],
)
def test_no_time_to_measure_in_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        measure_interference(device="cpu", **wrong)


def test_an_arrangement_that_is_not_known_is_refused_before_a_process_starts() -> None:
    with pytest.raises(InvalidValueError, match="got sideways"):
        measure_interference(device="cpu", arrangements=["sideways"])
