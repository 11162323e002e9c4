"""Pairs of kernels: which there are, and what rates become of what a bench counts."""

import numpy as np
import pytest
import torch

from deeppool.collocation.interference.cpu_bench import select_arrangements
from deeppool.collocation.interference.pair_rates import measure_rates
from deeppool.collocation.interference.synthetic_kernels import CPU, KernelSpec, kernel_specs, launcher
from deeppool.errors import InvalidValueError

SPEEDS = (100.0, 40.0)
"""Kernels a second, alone."""


class Ideal:
    """The foreground gets the whole device at the lowest priority, and half of it at the same."""

    arrangements = ("normal", "lowest")

    def __init__(self) -> None:
        self.slowness = 1.0

    def alone(self, kernel: int, seconds: float) -> float:
        return SPEEDS[kernel] / self.slowness

    def together(self, arrangement: str, foreground: int, background: int, seconds: float) -> tuple[float, float]:
        part = {"normal": 0.5, "lowest": 1.0}[arrangement]
        return part * self.alone(foreground, seconds), (1 - part) * self.alone(background, seconds)


def test_rates_are_parts_of_what_each_kernel_reaches_alone() -> None:
    told: list[float] = []
    rates, seconds = measure_rates(Ideal(), 2, seconds=0.1, rounds=2, report=told.append)
    assert np.allclose(seconds, [1 / speed for speed in SPEEDS])
    assert rates.shape == (2, 2, 2, 2)
    assert np.allclose(rates[0], 0.5)
    assert np.allclose(rates[1, 0], 1) and np.allclose(rates[1, 1], 0)
    # Two rounds of four pairs.
    assert told == [share / 8 for share in range(1, 9)]


def test_a_machine_that_grows_slower_from_round_to_round_changes_no_rate() -> None:
    bench = Ideal()

    def slower(share: float) -> None:
        bench.slowness *= 3 if 3 * share == int(3 * share) else 1

    rates, _ = measure_rates(bench, 2, seconds=0.1, rounds=3, report=slower)
    assert np.allclose(rates[0], 0.5)


def test_classes_are_every_duration_of_each_intensity_in_ascending_order() -> None:
    found = kernel_specs(CPU, matrices=[128, 16], durations=[2e-3, 2e-4])
    assert found == [KernelSpec(rows, seconds) for rows in (None, 16, 128) for seconds in (2e-4, 2e-3)]
    intensities = [kind.intensity for kind in found]
    assert intensities == sorted(intensities)


@pytest.mark.parametrize(
    ("wrong", "phrase"),
    [
        ({"matrices": [0, 16]}, "matrices must be positive numbers, got"),
        ({"matrices": [16, 5793]}, r"matrices must have at most 5792 rows, .*, got \[16, 5793\]"),
        ({"durations": [-1e-3]}, "durations must be positive numbers, got"),
        ({"durations": []}, "durations must be positive numbers, got"),
    ],
)
def test_kernels_that_there_cannot_be_are_refused(wrong: dict, phrase: str) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        kernel_specs(CPU, **wrong)


def test_the_largest_matrices_fill_the_buffers() -> None:
    (rows,) = {kind.rows for kind in kernel_specs(CPU, matrices=[5792])} - {None}
    held = [torch.empty(CPU.buffer, device="meta") for _ in range(3)]
    assert launcher(KernelSpec(rows, 1e-3), held, 1)().shape == (1, rows, rows)


@pytest.mark.parametrize("wanted", [["sideways"], []])
def test_an_arrangement_that_there_is_not_is_refused(wanted: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="arrangements must be some of normal, lowest, got"):
        select_arrangements(wanted, ["normal", "lowest"])


def test_a_kernel_computes_on_another_part_of_the_buffers_each_time() -> None:
    held = [torch.arange(8.0), torch.arange(8.0), torch.zeros(8)]
    run = launcher(KernelSpec(None, 1e-3), held, 4)
    run()
    assert held[2].tolist() == [0, 2, 4, 6, 0, 0, 0, 0]
    run()
    assert held[2].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    held = [torch.ones(8), torch.ones(8), torch.zeros(8)]
    launcher(KernelSpec(2, 1e-3), held, 1)()
    assert held[2].tolist() == [2, 2, 2, 2, 0, 0, 0, 0]
