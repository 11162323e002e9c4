"""What a stamp costs is the difference of two graphs that differ in nothing but stamps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deeppool.profiling.measure.stamp_cost import stamp_seconds

KERNEL, STAMP = 3e-6, 2e-6


class CountingDevice:
    """Each kernel and each stamp inside a graph takes its time; stamps outside take none."""

    def __init__(self) -> None:
        self.now, self.replaying = 0.0, False

    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def stamp(self) -> float:
        self.now += STAMP if self.replaying else 0.0
        return self.now

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        return tuple(lambda work=work: self._replay(work) for work in works)

    def _replay(self, work: Callable[[], None]) -> None:
        self.replaying = True
        work()
        self.now += KERNEL
        self.replaying = False

    def synchronize(self) -> None: ...

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier


def test_it_is_what_each_stamp_adds() -> None:
    device: Any = CountingDevice()
    assert stamp_seconds(device) == pytest.approx(STAMP)
