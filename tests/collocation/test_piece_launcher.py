"""Pieces of a background are delayed: when, for how long, and how they wait. On a virtual clock."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deeppool.base.sharing import Sharing
from deeppool.collocation.piece_launcher import MAX_QUEUED_SECONDS, MAX_SLEEP, MIN_SLEEP, PieceLauncher
from deeppool.device.cpu import CpuDevice
from deeppool.execution.span_recorder import RecordedSpan
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.background_limits import BackgroundLimits

NOTHING: frozenset[tuple[str, int]] = frozenset()
POLL = 2e-5
"""Seconds between two polls."""


class Machine:
    """A foreground and a background on one core with a virtual clock."""

    def __init__(self, folder: Path, sharing: Sharing, *, polls: bool = False, device: Any = None) -> None:
        self.now = 0.0
        self.used = 0.0
        self.held = 0.0
        """Seconds for which pieces were delayed."""
        self.finished: list[float] = []
        self.polls_made = 0
        self.sleeps: list[float] = []
        self.later: dict[int, Callable[[], None]] = {}
        """Actions by the number of the poll at which they happen."""
        self.stop: int | None = None
        """The poll at which it must stop."""
        self.foreground, self.page = SharedPage(folder, 0), SharedPage(folder, 0)
        self.trainer: Any = SimpleNamespace(device=device or CpuDevice(), recorded=[])
        self.launcher = PieceLauncher(
            sharing,
            lambda: (BackgroundLimits(*self.page.limits), self.page.doing),
            self.trainer,
            on_finished=self.finished.append,
            must_stop=self.must_stop,
            wait=None if polls else self.sleep,
            clock=self.clock,
            used=lambda: self.used,
        )

    def clock(self) -> float:
        self.now += POLL
        return self.now

    def sleep(self, seconds: float) -> bool:
        self.sleeps.append(seconds)
        notified = self.page.wait(0)
        self.now += 0 if notified else seconds
        return notified

    def must_stop(self) -> bool:
        self.polls_made += 1
        if self.polls_made in self.later:
            self.later[self.polls_made]()
        return self.polls_made == self.stop

    def order(self, open: bool = True, share: float = 1.0, banned=NOTHING) -> None:  # noqa: A002
        self.foreground.set_limits(open=open, share=share, banned=banned)

    def piece(self, kind: str, stage: int, seconds: float) -> None:
        asked = self.now + POLL
        self.launcher.begin(kind, stage)
        self.held += self.now - asked
        span = RecordedSpan(kind, stage, kind, self.trainer.device.stamp())
        self.now += seconds
        self.used += seconds
        span.end = self.trainer.device.stamp()
        self.trainer.recorded.append(span)
        self.launcher.end()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    return tmp_path


def test_no_piece_is_delayed_before_the_first_limits_and_after_the_last(folder: Path) -> None:
    machine = Machine(folder, Sharing(gaps_only=True, pieces=1, in_flight=0.001))
    machine.piece("forward", 0, 0.01)
    machine.order(open=False)
    machine.foreground.begin("forward", 3)
    machine.foreground.clear()
    machine.piece("backward", 0, 0.01)
    assert machine.polls_made == 0


def test_a_closed_gate_delays_a_piece_until_it_opens(folder: Path) -> None:
    machine = Machine(folder, Sharing(max_slowdown=0.01))
    machine.order(open=False)
    machine.later = {5: machine.order}
    machine.piece("forward", 0, 0.01)
    assert machine.polls_made == 5
    # The first limits notified it before it waited.
    assert machine.sleeps == [MIN_SLEEP, MIN_SLEEP, 2 * MIN_SLEEP, 4 * MIN_SLEEP, 8 * MIN_SLEEP]
    assert machine.finished == pytest.approx([0.01])
    # As it does when the gate opens.
    assert machine.held == pytest.approx(7 * MIN_SLEEP + 5 * POLL)


def test_sleeps_double_until_the_foreground_notifies(folder: Path) -> None:
    machine = Machine(folder, Sharing(max_slowdown=0.01))
    machine.order(open=False)
    machine.later = {20: lambda: machine.foreground.begin("forward", 0), 30: machine.foreground.end}
    machine.later |= {40: lambda: machine.foreground.begin("sync", 0), 50: machine.order}
    machine.piece("forward", 0, 0.01)
    assert machine.sleeps[:4] == [MIN_SLEEP, MIN_SLEEP, 2 * MIN_SLEEP, 4 * MIN_SLEEP]
    # Computing and its end do not notify; a wait of the foreground does.
    assert machine.sleeps[18:40] == [MAX_SLEEP] * 22
    assert machine.sleeps[40:43] == [MIN_SLEEP, 2 * MIN_SLEEP, 4 * MIN_SLEEP]
    assert len(machine.sleeps) == 50


def test_no_piece_begins_beside_a_banned_operator_but_beside_others(folder: Path) -> None:
    machine = Machine(folder, Sharing(feedback=0.1))
    machine.order(banned=frozenset({("sync", 1)}))
    machine.foreground.begin("sync", 0)
    machine.piece("forward", 0, 0.01)
    assert machine.polls_made == 0
    machine.foreground.begin("sync", 1)
    machine.later = {3: machine.order}
    machine.piece("forward", 1, 0.01)
    assert machine.polls_made == 3


def test_with_gaps_only_a_piece_waits_while_the_foreground_computes(folder: Path) -> None:
    machine = Machine(folder, Sharing(gaps_only=True))
    machine.order()
    machine.foreground.begin("reshard", 0)
    machine.piece("forward", 0, 0.01)
    assert machine.polls_made == 0
    machine.foreground.begin("backward", 0)
    machine.later = {4: machine.foreground.end}
    machine.piece("forward", 1, 0.01)
    assert machine.polls_made == 4


def test_a_background_that_must_stop_is_admitted(folder: Path) -> None:
    machine = Machine(folder, Sharing(max_slowdown=0.01))
    machine.order(open=False)
    machine.stop = 3
    machine.piece("forward", 0, 0.01)
    assert machine.polls_made == 3
    assert len(machine.finished) == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("polls", [False, True])
def test_a_background_uses_its_share_of_the_time_and_no_more(folder: Path, share: float, polls: bool) -> None:
    machine = Machine(folder, Sharing(max_slowdown=0.01), polls=polls)
    machine.order(share=share)
    for step in range(100):
        machine.piece("forward", 0, 0.002)
        machine.piece("backward", 0, 0.004)
        machine.piece("update", 0, 0.001)
        assert len(machine.finished) == 3 * (step + 1)
    busy = sum(machine.finished)
    assert busy == pytest.approx(0.7)
    # A full bucket at the start, and a piece beyond what is earned, are all that it may have more.
    assert share == pytest.approx(busy / machine.now, abs=0.02)
    assert busy + machine.held == pytest.approx(machine.now, rel=0.03)
    assert bool(machine.sleeps) is not polls


def test_a_background_in_one_piece_is_never_delayed(folder: Path) -> None:
    machine = Machine(folder, Sharing(pieces=2, in_flight=0.001))
    machine.order()
    for _ in range(50):
        machine.piece("forward", 0, 0.05)
    assert machine.polls_made == 0


class Gpu:
    """A device that runs behind its host: it has passed the stamps up to ``reached``."""

    asynchronous = True

    def __init__(self) -> None:
        self.stamps = 0
        self.reached = -1

    def stamp(self) -> int:
        self.stamps += 1
        return self.stamps - 1

    def passed(self, stamp: int) -> bool:
        return stamp <= self.reached

    def seconds(self, earlier: int, later: int) -> float:
        return 0.001 * (later - earlier)


def test_pieces_of_a_device_are_in_flight_until_it_has_passed_them(folder: Path) -> None:
    gpu = Gpu()
    machine = Machine(folder, Sharing(pieces=2), device=gpu)
    machine.piece("forward", 0, 0.0)
    machine.piece("forward", 1, 0.0)
    assert machine.polls_made == 0
    assert not machine.finished, "nothing is known to be done"
    # The third waits for the first, whose stamps are 0 and 1.
    machine.later = {7: lambda: setattr(gpu, "reached", 1)}
    machine.piece("update", 1, 0.0)
    assert machine.polls_made == 7
    assert machine.finished == pytest.approx([0.001])
    gpu.reached = 5
    machine.launcher.begin("forward", 0)
    assert machine.finished == pytest.approx([0.001] * 3)


def test_without_a_limit_the_device_queue_is_bounded_too(folder: Path) -> None:
    """Pieces of 1 ms as they ran before: the first two, and then 20 ms of them."""
    gpu = Gpu()
    machine = Machine(folder, Sharing(priority="normal"), device=gpu)
    machine.piece("forward", 0, 0.0)
    gpu.reached = 1
    launched = 0
    machine.stop = 1
    while not machine.polls_made:
        machine.piece("forward", 0, 0.0)
        launched += 1
    assert launched - 1 == MAX_QUEUED_SECONDS / 0.001
