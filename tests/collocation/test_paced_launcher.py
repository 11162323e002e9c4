"""A background is held back piece by piece: when, for how long, and how it waits. On a virtual clock."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deeppool.base.sharing import Sharing
from deeppool.collocation.paced_launcher import LONGEST_NAP, NAP, PacedLauncher
from deeppool.processes.shared_page import SharedPage

NOTHING: frozenset[tuple[str, int]] = frozenset()
LOOK = 2e-5
"""Seconds between two looks of one that spins."""


class Machine:
    """A foreground and a background on one core, whose time passes when somebody says so."""

    def __init__(self, folder: Path, sharing: Sharing, *, spins: bool = False) -> None:
        self.now = 0.0
        self.used = 0.0
        self.looks = 0
        self.naps: list[float] = []
        self.later: dict[int, Callable[[], None]] = {}
        """What happens when the background looks for the so-many-th time."""
        self.stop: int | None = None
        """Of the looks, that by which it was told to stop."""
        self.foreground, self.board = SharedPage(folder, 0), SharedPage(folder, 0)
        self.throttle = PacedLauncher(
            sharing,
            self.board,
            self.hurries,
            spins=spins,
            clock=self.clock,
            used=lambda: self.used,
            nap=self.nap,
        )

    def clock(self) -> float:
        self.now += LOOK
        return self.now

    def nap(self, seconds: float) -> bool:
        self.naps.append(seconds)
        rung = self.board.wait(0)
        self.now += 0 if rung else seconds
        return rung

    def hurries(self) -> bool:
        self.looks += 1
        if self.looks in self.later:
            self.later[self.looks]()
        return self.looks == self.stop

    def order(self, open: bool = True, share: float = 1.0, banned=NOTHING) -> None:  # noqa: A002
        self.foreground.order(open=open, share=share, banned=banned)

    def piece(self, kind: str, stage: int, seconds: float) -> None:
        self.throttle.begin(kind, stage)
        self.now += seconds
        self.used += seconds
        self.throttle.end()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    return tmp_path


def test_nothing_is_held_back_before_the_first_orders_and_after_the_last(folder: Path) -> None:
    machine = Machine(folder, Sharing(gaps_only=True, pieces=1, in_flight=0.001))
    machine.piece("forward", 0, 0.01)
    machine.order(open=False)
    machine.foreground.begin("forward", 3)
    machine.foreground.withdraw()
    machine.piece("backward", 0, 0.01)
    assert machine.looks == 0


def test_a_closed_gate_holds_until_it_opens(folder: Path) -> None:
    machine = Machine(folder, Sharing(max_slowdown=0.01))
    machine.order(open=False)
    machine.later = {5: machine.order}
    machine.piece("forward", 0, 0.01)
    assert machine.looks == 5
    # The first orders rang before it waited.
    assert machine.naps == [NAP, NAP, 2 * NAP, 4 * NAP, 8 * NAP]
    _, pieces, busy, held = machine.foreground.done
    assert pieces == 1
    assert busy == pytest.approx(0.01)
    # As it does when the gate opens.
    assert held == pytest.approx(7 * NAP + 5 * LOOK)


def test_naps_are_longer_each_time_until_the_foreground_rings(folder: Path) -> None:
    machine = Machine(folder, Sharing(max_slowdown=0.01))
    machine.order(open=False)
    machine.later = {20: lambda: machine.foreground.begin("forward", 0), 30: machine.foreground.end}
    machine.later |= {40: lambda: machine.foreground.begin("sync", 0), 50: machine.order}
    machine.piece("forward", 0, 0.01)
    assert machine.naps[:4] == [NAP, NAP, 2 * NAP, 4 * NAP]
    # Neither what it computes nor its end is news for who waits; that it waits itself is.
    assert machine.naps[18:40] == [LONGEST_NAP] * 22
    assert machine.naps[40:43] == [NAP, 2 * NAP, 4 * NAP]
    assert len(machine.naps) == 50


def test_no_piece_begins_beside_a_banned_operator_but_beside_others(folder: Path) -> None:
    machine = Machine(folder, Sharing(feedback=0.1))
    machine.order(banned=frozenset({("sync", 1)}))
    machine.foreground.begin("sync", 0)
    machine.piece("forward", 0, 0.01)
    assert machine.looks == 0
    machine.foreground.begin("sync", 1)
    machine.later = {3: machine.order}
    machine.piece("forward", 1, 0.01)
    assert machine.looks == 3


def test_in_gaps_only_it_waits_while_the_foreground_computes(folder: Path) -> None:
    machine = Machine(folder, Sharing(gaps_only=True))
    machine.order()
    machine.foreground.begin("reshard", 0)
    machine.piece("forward", 0, 0.01)
    assert machine.looks == 0
    machine.foreground.begin("backward", 0)
    machine.later = {4: machine.foreground.end}
    machine.piece("forward", 1, 0.01)
    assert machine.looks == 4


def test_who_was_told_to_stop_is_let_through(folder: Path) -> None:
    machine = Machine(folder, Sharing(max_slowdown=0.01))
    machine.order(open=False)
    machine.stop = 3
    machine.piece("forward", 0, 0.01)
    assert machine.looks == 3
    assert machine.foreground.done[1] == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("spins", [False, True])
def test_it_uses_its_share_of_the_time_and_no_more(folder: Path, share: float, spins: bool) -> None:
    machine = Machine(folder, Sharing(max_slowdown=0.01), spins=spins)
    machine.order(share=share)
    for step in range(100):
        machine.piece("forward", 0, 0.002)
        machine.piece("backward", 0, 0.004)
        machine.piece("update", 0, 0.001)
        assert machine.foreground.done[0] == step + 1
    _, pieces, busy, held = machine.foreground.done
    assert (pieces, busy) == (300, pytest.approx(0.7))
    # A full bucket at the start, and a piece beyond what is earned, are all that it may have more.
    assert share == pytest.approx(busy / machine.now, abs=0.02)
    assert busy + held == pytest.approx(machine.now, rel=0.03)
    assert bool(machine.naps) is not spins


def test_a_whole_device_is_never_held(folder: Path) -> None:
    machine = Machine(folder, Sharing(pieces=2, in_flight=0.001))
    machine.order()
    for _ in range(50):
        machine.piece("forward", 0, 0.05)
    assert machine.looks == 0


class Gpu:
    """A device behind its host: a stamp is passed when somebody says so."""

    def __init__(self) -> None:
        self.stamps = 0
        self.reached = -1
        self.waits = 0

    def stamp(self) -> int:
        self.stamps += 1
        return self.stamps - 1

    def passed(self, stamp: int) -> bool:
        return stamp <= self.reached

    def seconds(self, earlier: int, later: int) -> float:
        return 0.001 * (later - earlier)


def test_pieces_of_a_device_are_in_flight_until_it_has_passed_them(folder: Path) -> None:
    machine, gpu = Machine(folder, Sharing(pieces=2)), Gpu()
    machine.throttle._device = gpu
    machine.piece("forward", 0, 0.0)
    machine.piece("forward", 1, 0.0)
    assert machine.looks == 0
    assert machine.foreground.done == (0, 0, 0.0, pytest.approx(0, abs=1e-3)), "nothing is known to be done"
    # The third waits for the first, whose stamps are 0 and 1.
    machine.later = {7: lambda: setattr(gpu, "reached", 1)}
    machine.piece("update", 1, 0.0)
    assert machine.looks == 7
    assert machine.foreground.done[:3] == (0, 1, pytest.approx(0.001))
    gpu.reached = 5
    machine.throttle.begin("forward", 0)
    assert machine.foreground.done[:3] == (1, 3, pytest.approx(0.003))
