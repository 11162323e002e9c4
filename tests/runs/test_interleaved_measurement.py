"""Rounds of a run: how many, how long, and under which conditions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base.run_control import RunControl
from deeppool.base.sharing import Sharing
from deeppool.collocation.background_jobs import WorkDone
from deeppool.collocation.collocated_processes import CollocatedProcesses
from deeppool.collocation.condition_results import harvest_margin, last_measured
from deeppool.collocation.sample_publisher import SamplePublisher
from deeppool.runs.interleaved_measurement import InterleavedMeasurement, iterations_per_round, rounds_per_block


@pytest.mark.parametrize(
    ("total", "seconds", "shares"),
    [
        (2, 0.1, [1, 1]),
        (10, 0.125, [4, 3, 3]),  # three rounds at least
        (62, 0.05, [11, 11, 10, 10, 10, 10]),  # ten iterations are half a second
        (20, 1.0, [4, 4, 4, 4, 4]),  # four iterations at least, however long they take
    ],
)
def test_a_longer_run_has_more_rounds_and_not_longer_ones(total: int, seconds: float, shares: list[int]) -> None:
    assert iterations_per_round(total, seconds) == shares


def test_long_background_steps_make_rounds_longer() -> None:
    """The end of each round waits for the step in progress."""
    assert iterations_per_round(60, 0.1, step=1.0) == [20, 20, 20]
    assert iterations_per_round(60, 0.1, step=0.1) == iterations_per_round(60, 0.1)


@pytest.mark.parametrize(
    ("rounds", "seconds", "block"),
    [
        (30, 60.0, 4),  # rounds of two seconds
        (60, 30.0, 16),  # of half a second
        (7, 70.0, 1),
        (4, 2.0, 1),  # three blocks at least
        (30, 15.0, 10),
    ],
)
def test_rounds_within_eight_seconds_form_one_block(rounds: int, seconds: float, block: int) -> None:
    assert rounds_per_block(rounds, seconds) == block


@given(st.integers(1, 10**6), st.floats(1e-5, 1e3))
def test_rounds_have_equal_length_and_cover_all_iterations(total: int, seconds: float) -> None:
    shares = iterations_per_round(total, seconds)
    assert sum(shares) == total
    assert 0 < max(shares) <= min(shares) + 1


class FakeRanks:
    """Ranks that answer at once, and record how they were asked."""

    def __init__(self) -> None:
        self.conditions: list[tuple[bool, bool]] = []
        """Whether each training was beside the background, and whether governors may take it as a baseline."""
        self.counts: list[int] = []
        """Iterations of each training."""

    def train(self, count: int, on_step: Any, *, collocated: bool, awake: bool) -> list[dict[str, Any]]:
        self.conditions.append((collocated, awake))
        self.counts.append(count)
        assert sum(self.counts) < 10_000
        times = self.times(count)
        return [
            {
                "times": times,
                "losses": times,
                "busy": 0.0,
                "started": time.perf_counter(),
                "wall": 0.0,
                "run_delays": [(0.0, 0)],
                "bounds": [0] * count,
                "spans": [[]] * count,
            }
        ]

    def times(self, count: int) -> list[float]:
        return [0.01] * count

    def sleep(self, seconds: float) -> None:
        pass


class LateRanks(FakeRanks):
    """An emulated rank that is late in its first iteration of all: the next ones of that training do not wait."""

    def times(self, count: int) -> list[float]:
        first = len(self.counts) == 1
        return [1.0, *[1e-6] * (count - 1)] if first else [0.01] * count


class FakeBackground:
    step_seconds = 0.0
    job = SimpleNamespace(name="a job")

    def __init__(self, ranks: FakeRanks) -> None:
        self._ranks = ranks
        self._parts: list[WorkDone] = []
        """Whose work was done before the last change of the bound in a phase."""
        self.phases: list[tuple[float, float | None]] = []
        """Start of each phase, and when the ranks had ended their part of it."""
        self.before = 0
        """Iterations of the ranks before it was started."""

    def wait_until_ready(self) -> None:
        self.before = sum(self._ranks.counts)

    def begin(self) -> None:
        pass

    def split(self, work: WorkDone) -> None:
        self._parts.append(work)

    def measure(self, work: WorkDone, started: float, ended: float | None) -> None:
        """One more step per second in each round, of which a step alone is as good as two beside the ranks."""
        self.phases.append((started, ended))
        for part in (*self._parts, work):
            part.steps += (len(self.phases) + 1) // 2 * (1.0 if ended is None else 0.5)
            part.seconds += 1.0
        self._parts.clear()


class ChangedBound(FakeRanks):
    """Ranks that are sent another bound when they have ended the last collocated iterations."""

    def __init__(self, run_control: RunControl, last: int) -> None:
        super().__init__()
        self._run_control, self._last = run_control, last

    def train(self, count: int, on_step: Any, *, collocated: bool, awake: bool) -> list[dict[str, Any]]:
        answers = super().train(count, on_step, collocated=collocated, awake=awake)
        if [both for both, _ in self.conditions].count(True) == self._last:
            self._run_control.change_bound(0.01)
            on_step({"step": sum(self.counts), "seconds": 0.01})
        return answers

    def change_bound(self, bound: float, number: int) -> None:
        pass


class FakeSpinners:
    def __init__(self) -> None:
        self.spun = 0

    @contextmanager
    def spinning(self) -> Iterator[None]:
        self.spun += 1
        yield


def measurement_of(processes: CollocatedProcesses, run_control: RunControl | None = None) -> InterleavedMeasurement:
    return InterleavedMeasurement(
        processes,
        sharing=None,
        publisher=SamplePublisher(None, None),
        run_control=run_control or RunControl(),
        report=lambda what, share: None,
    )


@pytest.mark.parametrize("on_cores", [True, False])
def test_only_ranks_on_cores_are_measured_with_sleeping_cores(on_cores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppool.runs.interleaved_measurement.POLL_SECONDS", 0.001)
    ranks, spinners = FakeRanks(), FakeSpinners()
    background = FakeBackground(ranks)
    processes = CollocatedProcesses(1, ranks, background, spinners if on_cores else None)  # type: ignore[arg-type]
    measurement = measurement_of(processes)
    results = measurement.measure(None, steps=3)
    alone, beside = (False, True), (True, False)
    _, _, _, *measured = ranks.conditions
    assert background.before == 2
    assert measured == [*([(False, False)] if on_cores else []), alone, beside] * 3
    assert spinners.spun == (3 if on_cores else 0)
    assert len(results.active_cores.rounds) == len(results.collocated.rounds) == 3
    assert len(results.idle_cores.rounds) == (3 if on_cores else 0)
    assert results.background_alone.steps == 1 + 2 + 3
    assert [ended is None or ended > started for started, ended in background.phases] == [True] * 6
    assert [ended is None for _, ended in background.phases] == [False, True] * 3


def test_a_bound_that_ended_in_the_last_round_is_compared_with_its_own_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppool.runs.interleaved_measurement.POLL_SECONDS", 0.001)
    run_control = RunControl()
    run_control.open(Sharing(max_slowdown=0.05))
    ranks = ChangedBound(run_control, last=3)
    processes = CollocatedProcesses(1, ranks, FakeBackground(ranks), None)  # type: ignore[arg-type]
    results = measurement_of(processes, run_control).measure(None, steps=3)
    held, unheld = results.bounds
    assert last_measured(results.bounds) is held
    assert unheld.work.phases == [(0.0, 0.0), (0.0, 0.0), (1.5, 1.0)]
    # Half as fast as alone in every round, however fast the machine is.
    assert harvest_margin(results.background_alone, held.work) == pytest.approx(0.0, abs=1e-12)


def test_a_rank_that_is_late_at_first_makes_as_many_iterations_as_any() -> None:
    counted = []
    for ranks in (FakeRanks(), LateRanks()):
        processes = CollocatedProcesses(1, ranks, None, None)  # type: ignore[arg-type]
        measurement = measurement_of(processes)
        measurement.measure(2.0, None)
        counted.append(sum(ranks.counts[3:]))
    assert counted == [200, 200]
