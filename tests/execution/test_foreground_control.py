"""A rank that shares its device publishes its activity and its governor's limits while it trains."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn

from deeppool.base.sharing import POLICIES, Sharing
from deeppool.collectives.layout import Layout
from deeppool.collocation.pieces import single_stage
from deeppool.device.emulated.device import new_device
from deeppool.execution.communicator import SingleRank
from deeppool.execution.foreground_control import GROUP, ForegroundControl
from deeppool.execution.iteration_record import IterationRecord, IterationTimes
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.placement import place_model
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.governor import DENSE, is_alone
from deeppool.training.training_job import Training

BATCH = 2
WIDTH = 1024
GOVERNED = replace(POLICIES["feedback"], max_slowdown=0.01)


class Given:
    """Record of one iteration with given times, or of none."""

    def __init__(self, seconds: float | None = None, sync: float = 0.1) -> None:
        self.times: list[IterationTimes] = [] if seconds is None else [(seconds, {("sync", 1): sync})]

    def next_times(self, *, last: bool = False) -> IterationTimes | None:
        return self.times.pop() if self.times else None


def two_stages() -> Trainer:
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), (4,))
    layers = tuple(range(len(captured.graph.layers)))
    stages = [Stage("first", layers[:1], Layout((0,), BATCH)), Stage("last", layers[1:], Layout((0,), BATCH))]
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1))
    return Trainer(captured, stages, SingleRank(), rule)


def samples(chosen: range) -> tuple[torch.Tensor, ...]:
    return torch.ones(len(chosen), 4), torch.zeros(len(chosen), dtype=torch.int64)


class RecordingPage(SharedPage):
    """Shared page that records every activity written to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0)
        self.recorded: list[tuple[str, int] | None] = []

    def begin(self, kind: str, stage: int) -> None:
        super().begin(kind, stage)
        self.recorded.append(self.doing)

    def end(self) -> None:
        super().end()
        self.recorded.append(self.doing)


def test_a_rank_publishes_each_part_of_an_iteration_and_clears_it_when_paused(tmp_path: Path) -> None:
    trainer, page, background = two_stages(), RecordingPage(tmp_path), SharedPage(tmp_path, 0)
    control = ForegroundControl(Sharing(), tmp_path, 0, SingleRank())
    control._page = page
    control.begin(trainer)
    trainer.iterate([samples])
    parts = [("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0), ("update", 1)]
    assert page.recorded == [entry for part in parts for entry in (part, None)]
    control.pause(trainer, Given())
    trainer.iterate([samples])
    assert len(page.recorded) == 2 * len(parts)
    assert background.doing is None


def run_dense_phase(control: ForegroundControl, background: SharedPage, trainer: Trainer, cost: float) -> list[float]:
    """Runs the dense phase, in which the background's share slows each iteration; returns the shares."""
    shares = []
    for _ in range(DENSE):
        control.begin(trainer)
        may_run, share, _ = background.limits
        shares.append(share * may_run)
        control.end(Given(0.2 * (1 + cost * shares[-1])))
    return shares


@pytest.mark.parametrize("cost", [0.0, 0.5])
def test_the_governors_limits_are_published_to_the_background(tmp_path: Path, cost: float) -> None:
    trainer, background = two_stages(), SharedPage(tmp_path, 0)
    control = ForegroundControl(GOVERNED, tmp_path, 0, SingleRank())
    shares = run_dense_phase(control, background, trainer, cost)
    assert [share > 0 for share in shares] == [not is_alone(number) for number in range(DENSE)]
    found = control.results(trainer.stages)
    assert found["slowdown"] == pytest.approx(cost * fmean(share for share in shares if share))
    control.begin(trainer)
    assert (background.limits[1] < 1) is (cost > 0)
    assert background.limits[1] == control.results(trainer.stages)["share"]
    control.pause(trainer, Given())
    assert background.limits == (True, 1.0, frozenset())


def test_a_reset_discards_the_measured_slowdown(tmp_path: Path) -> None:
    trainer, background = two_stages(), SharedPage(tmp_path, 0)
    control = ForegroundControl(GOVERNED, tmp_path, 0, SingleRank())
    run_dense_phase(control, background, trainer, 0.5)
    control.reset()
    assert control.results(trainer.stages)["slowdown"] is None
    control.begin(trainer)
    assert background.limits == (not is_alone(0), 1.0, frozenset())


def test_slowed_operators_are_reported_by_stage_name(tmp_path: Path) -> None:
    trainer, background = two_stages(), SharedPage(tmp_path, 0)
    control = ForegroundControl(Sharing(feedback=0.1), tmp_path, 0, SingleRank())
    seen: Sequence[str] = ()
    for _ in range(2 * DENSE):
        control.begin(trainer)
        beside = background.limits[0] and not background.limits[2]
        control.end(Given(0.2, sync=0.2 if beside else 0.1))
        seen = control.results(trainer.stages)["banned"] or seen
    assert seen == ["sync of last"]


class OnDevice:
    """A training on an emulated GPU, in virtual time, whose control reads the device's times."""

    def __init__(self, folder: Path, sharing: Sharing) -> None:
        self.device = new_device("h200")
        place = self.device.torch_device()
        # Wide enough that kernels take longer than their launches.
        captured = place_model(capture(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)]), (WIDTH,)), place)
        rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1))
        self.stream = self.device.stream("high")
        with self.device.times_only(), self.stream.current():
            self.trainer = Trainer(captured, single_stage(captured, WIDTH), SingleRank(), rule)
        self.data = torch.zeros(WIDTH, WIDTH, device=place), torch.zeros(WIDTH, dtype=torch.int64, device=place)
        self.page = SharedPage(folder, 0)
        self.control = ForegroundControl(sharing, folder, 0, SingleRank(), by_events=True)
        self.control.publishes = False
        self.before_iteration: Callable[[], object] = lambda: None

    def run(self, iterations: int, *, controlled: bool) -> float:
        """Returns the seconds of some iterations."""
        with self.device.times_only(), self.stream.current():
            started, record = self.device.clock.now(), IterationRecord(self.trainer)
            for _ in range(iterations):
                if controlled:
                    self.control.begin(self.trainer)
                    self.before_iteration()
                self.trainer.iterate([lambda _: self.data])
                record.lap()
                if controlled:
                    self.control.end(record)
            self.trainer.driver.drain()
            self.device.synchronize_stream()
            seconds = self.device.clock.now() - started
            if controlled:
                self.control.pause(self.trainer, record)
        return seconds


@pytest.fixture
def on_device(tmp_path: Path) -> OnDevice:
    return OnDevice(tmp_path, Sharing(feedback=0.1))


def test_controlled_iterations_leave_the_device_no_idle_time(on_device: OnDevice) -> None:
    """Waiting for each iteration would leave the device idle, and count as slowdown: the baseline does not wait."""
    on_device.run(3, controlled=False)
    alone = on_device.run(2 * DENSE, controlled=False)
    assert on_device.run(2 * DENSE, controlled=True) == pytest.approx(alone, rel=0.01)


def test_an_operator_that_a_background_delays_on_the_device_is_banned_and_no_other(on_device: OnDevice) -> None:
    """Each time is of the iteration with whose limits it was measured, or iterations alone would look slow."""
    low = on_device.device.stream("low")
    block, banned = torch.zeros(4 * WIDTH, WIDTH, device=on_device.device.torch_device()), set[tuple[str, int]]()

    def run_background() -> None:
        open_, _, bans = on_device.page.limits
        banned.update(bans)
        if open_ and ("forward", 0) not in bans:
            # The device runs it beside the forward pass, whose priority does not stop blocks that run.
            low.wait(on_device.device.stamp())
            low.launch(lambda: block @ on_device.data[0])

    on_device.before_iteration = run_background
    on_device.run(3, controlled=False)
    on_device.run(2 * DENSE, controlled=True)
    assert banned == {("forward", 0)}
    assert on_device.control.results(on_device.trainer.stages)["slowdown"] >= 0


def test_the_times_of_iterations_between_controlled_ones_do_not_count(tmp_path: Path) -> None:
    on_device = OnDevice(tmp_path, GOVERNED)
    for turn in range(DENSE // 4):
        if not is_alone(4 * turn):
            on_device.run(3, controlled=False)
        on_device.run(4, controlled=True)
    # There is no background: counted as parts of their turns, those iterations would look like its cost.
    assert on_device.control.results(on_device.trainer.stages)["slowdown"] == pytest.approx(0, abs=0.01)


def test_a_changed_bound_is_published_from_the_next_iteration_on(tmp_path: Path) -> None:
    trainer, background = two_stages(), SharedPage(tmp_path, 0)
    control = ForegroundControl(GOVERNED, tmp_path, 0, SingleRank())
    run_dense_phase(control, background, trainer, 0.5)
    control.begin(trainer)
    before = background.limits[1]
    assert control.step_fields() == {"bound": 0.01, "share": before}
    control.change_bound(0.05, 1)
    control.end(Given(0.2))
    assert (background.limits[1], control.number) == (before, 0)
    assert control.step_fields() == {"bound": 0.01, "share": before}
    control.begin(trainer)
    assert control.number == 1
    assert background.limits[1] == pytest.approx(5 * before)
    assert control.step_fields() == {"bound": 0.05, "share": pytest.approx(5 * before)}


def test_a_changed_bound_survives_a_reset(tmp_path: Path) -> None:
    trainer, background = two_stages(), SharedPage(tmp_path, 0)
    control = ForegroundControl(replace(GOVERNED, max_slowdown=10.0), tmp_path, 0, SingleRank())
    control.change_bound(0.01, 1)
    control.reset()
    run_dense_phase(control, background, trainer, 0.5)
    control.begin(trainer)
    assert background.limits[1] < 1
    assert control.step_fields()["bound"] == 0.01


def test_unchanged_limits_do_not_wake_the_background(tmp_path: Path) -> None:
    trainer, background = two_stages(), SharedPage(tmp_path, 0)
    control = ForegroundControl(GOVERNED, tmp_path, 0, SingleRank())
    background.wait(0)
    woken = []
    for _ in range(DENSE):
        control.begin(trainer)
        woken.append(background.wait(0))
        control.end(Given(0.2))
    assert woken == [number % 4 == 0 for number in range(DENSE)]
    control.pause(trainer, Given())
    control.begin(trainer)
    assert background.wait(0)


def test_the_reported_share_is_zero_in_iterations_without_background(tmp_path: Path) -> None:
    trainer = two_stages()
    control = ForegroundControl(GOVERNED, tmp_path, 0, SingleRank())
    control.begin(trainer)
    assert control.step_fields() == {"bound": 0.01, "share": 0.0}
    ungoverned = ForegroundControl(Sharing(), tmp_path, 0, SingleRank())
    ungoverned.begin(trainer)
    assert ungoverned.step_fields() == {"bound": None, "share": None}


class SumExchange:
    """Contributions of two ranks to a sequence of all-reduces."""

    def __init__(self) -> None:
        self.rows: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        self.changed = threading.Condition()


class RankOfTwo(SingleRank):
    """Communicator of one of two ranks."""

    ranks = 2

    def __init__(self, rank: int, exchange: SumExchange) -> None:
        self.rank, self._exchange = rank, exchange

    def all_reduce(self, tensor: torch.Tensor) -> "Sum":
        with self._exchange.changed:
            self._exchange.rows[self.rank].append(tensor.clone())
            self._exchange.changed.notify_all()
        return Sum(self._exchange, len(self._exchange.rows[self.rank]) - 1, tensor)


class Sum:
    """Work handle that completes when both ranks have contributed."""

    def __init__(self, exchange: SumExchange, number: int, tensor: torch.Tensor) -> None:
        self._exchange, self._number, self._tensor = exchange, number, tensor

    def wait(self) -> None:
        rows = self._exchange.rows
        with self._exchange.changed:
            assert self._exchange.changed.wait_for(lambda: min(map(len, rows)) > self._number, 10), (
                "the other is not there"
            )
        self._tensor.copy_(rows[0][self._number] + rows[1][self._number])


@pytest.mark.stress
def test_a_rank_waits_for_the_others_only_after_its_next_iteration(tmp_path: Path) -> None:
    exchange, trainer = SumExchange(), two_stages()
    control = ForegroundControl(GOVERNED, tmp_path, 0, RankOfTwo(0, exchange))
    control.begin(trainer)
    control.end(Given(0.2))
    control.begin(trainer)
    with pytest.raises(AssertionError, match="the other is not there"):
        control.end(Given(0.2))


def run_two_ranks(
    folder: Path, exchange: SumExchange, times: Callable[[int, float], Sequence[float]], iterations: int
) -> list[tuple[Sequence[float], dict[str, Any]]]:
    """Runs two ranks for a number of iterations; returns per rank its shares and its results."""
    trainer = two_stages()

    def train(rank: int) -> tuple[Sequence[float], dict[str, Any]]:
        background = SharedPage(folder, rank)
        control = ForegroundControl(GOVERNED, folder, rank, RankOfTwo(rank, exchange))
        shares = []
        for iteration in range(iterations):
            control.begin(trainer)
            may_run, share, _ = background.limits
            shares.append(share * may_run)
            control.end(Given(times(iteration, shares[-1])[rank]))
        control.pause(trainer, Given())
        return shares, control.results(trainer.stages)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(train, range(2)))


def test_ranks_exchange_several_iterations_at_once_while_the_background_is_harmless(tmp_path: Path) -> None:
    exchange = SumExchange()
    (_, found), (_, other) = run_two_ranks(tmp_path, exchange, lambda iteration, share: (0.1, 0.3), DENSE + 10)
    assert [len(rows) for rows in exchange.rows[0]] == [1] * DENSE + [GROUP] * 2 + [2]
    # They were alone for 4 + 4 + 4 iterations, of which the first is not measured.
    assert found["alone"] == other["alone"] == 9
    assert found["collocated"] == other["collocated"] == DENSE + 10 - 12
    assert found["slowdown"] == pytest.approx(0)


def test_iterations_without_a_background_are_recorded_as_the_mean_of_all_ranks(tmp_path: Path) -> None:
    """The first iteration is left out because its caches are cold."""
    exchange, trainer = SumExchange(), two_stages()

    def train(rank: int) -> dict[str, Any]:
        control = ForegroundControl(GOVERNED, tmp_path, rank, RankOfTwo(rank, exchange))
        control.record_alone([9.0, 0.1, 0.1] if rank else [8.0, 0.3, 0.3])
        control.record_alone([5.0])
        for iteration in range(8):
            control.begin(trainer)
            control.end(Given(0.25 if iteration >= 4 else 0.2))
        control.pause(trainer, Given())
        return control.results(trainer.stages)

    with ThreadPoolExecutor(2) as threads:
        found, other = threads.map(train, range(2))
    assert found == other
    assert (found["alone"], found["collocated"]) == (2 + 3, 4)
    assert found["slowdown"] == pytest.approx(0.25)


def test_a_rank_without_layers_does_not_count(tmp_path: Path) -> None:
    """Its iterations end at once, or when the other rank's do if both exchange what they have measured."""
    exchange, trainer = SumExchange(), two_stages()

    def train(rank: int) -> dict[str, Any]:
        control = ForegroundControl(GOVERNED, tmp_path, rank, RankOfTwo(rank, exchange))
        control.computes = rank == 0
        control.record_alone([0.001] * 3 if rank else [0.2] * 3)
        for iteration in range(8):
            control.begin(trainer)
            control.end(Given(0.25 if iteration >= 4 else 0.001 if rank else 0.2))
        control.pause(trainer, Given())
        return control.results(trainer.stages)

    with ThreadPoolExecutor(2) as threads:
        found, other = threads.map(train, range(2))
    assert found == other
    assert found["slowdown"] == pytest.approx(0.25)


def test_ranks_exchange_every_iteration_once_a_slowdown_is_suspected(tmp_path: Path) -> None:
    """The background is harmless until iteration 40; four iterations later ranks stop exchanging in groups."""
    exchange = SumExchange()

    def times(iteration: int, share: float) -> Sequence[float]:
        return [0.1 * (1 + (0.5 * share if iteration >= 40 else 0))] * 2

    (shares, _), (others, _) = run_two_ranks(tmp_path, exchange, times, 80)
    assert shares == others
    iterations_per_exchange = [len(rows) for rows in exchange.rows[0]]
    assert iterations_per_exchange == [1] * DENSE + [GROUP] * 5 + [1] * 36
    assert max(shares[-10:]) < 0.05


def test_ranks_change_the_share_together_and_apply_a_bound_once_all_have_it(tmp_path: Path) -> None:
    exchange = SumExchange()
    changed_at = (DENSE + 1, DENSE + 2)
    noise = (0.98, 1.02)
    trainer = two_stages()

    def train(rank: int) -> list[tuple[float, int]]:
        background = SharedPage(tmp_path, rank)
        control = ForegroundControl(GOVERNED, tmp_path, rank, RankOfTwo(rank, exchange))
        found = []
        for iteration in range(DENSE + 5):
            if iteration == changed_at[rank]:
                control.change_bound(0.05, 1)
            control.begin(trainer)
            may_run, share, _ = background.limits
            found.append((share, control.number))
            control.end(Given(0.2 * (1 + 0.5 * share * may_run * noise[rank])))
        return found

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(train, range(2))
    assert first == second
    assert [number for _, number in first] == [0] * (DENSE + 4) + [1]
    assert first[-1][0] == pytest.approx(5 * first[-2][0])
