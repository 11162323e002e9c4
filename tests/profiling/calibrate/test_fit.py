"""Costs of kernel families from times of layers."""

import itertools

import numpy as np
import pytest

from deeppool.device.calibration import FamilyCost, family
from deeppool.device.kernel import Kernel
from deeppool.profiling.calibrate.fit import MeasuredPart, estimated_seconds, fit, nonnegative_least_squares


def layers(rng, count):
    """Returns layers of products and of additions, with times by known rates and one outlier in eight."""
    found = []
    for index in range(count):
        rows, columns, depth = (int(2 ** rng.uniform(3, 10)) for _ in range(3))
        product = Kernel("mm", "product", 4 * (rows + columns) * depth, 2 * rows * columns * depth, rows, columns)
        added = [Kernel("add_", "memory", int(2 ** rng.uniform(10, 22))) for _ in range(index % 3)]
        # The rates: 5 us and 100 GFLOP/s; 2 us and 10 GB/s.
        seconds = 5e-6 + product.flops / 100e9 + sum(2e-6 + kernel.bytes / 10e9 for kernel in added)
        found.append(MeasuredPart((product, *added), seconds * (3 if index % 8 == 0 else 1)))
    return found


def test_rates_are_found_from_sums_of_kernels_in_spite_of_outliers():
    costs = {cost.family: cost for cost in fit(layers(np.random.default_rng(1), 240))}
    assert set(costs) == {"mm", "add"}
    assert costs["mm"].launch == pytest.approx(5e-6, rel=0.1)
    assert costs["mm"].per_flop == pytest.approx(1e-11, rel=0.02)
    assert costs["add"].launch == pytest.approx(2e-6, rel=0.2)
    assert costs["add"].per_byte == pytest.approx(1e-10, rel=0.02)
    assert costs["add"].per_flop == 0


def test_layers_that_were_not_fitted_take_what_the_rates_say():
    rng = np.random.default_rng(2)
    costs = fit(layers(rng, 240))
    others = [layer for index, layer in enumerate(layers(rng, 80)) if index % 8]
    assert estimated_seconds(costs, others) == pytest.approx(sum(layer.seconds for layer in others), rel=0.02)


def test_the_nonnegative_least_squares_are_those_of_the_best_subset_of_columns():
    rng = np.random.default_rng(3)
    for _ in range(20):
        matrix, target = rng.normal(size=(12, 4)), rng.normal(size=12)
        best = np.linalg.norm(target)
        for count in range(1, 5):
            for columns in itertools.combinations(range(4), count):
                part = np.linalg.lstsq(matrix[:, columns], target, rcond=None)[0]
                if (part >= 0).all():
                    best = min(best, np.linalg.norm(matrix[:, columns] @ part - target))
        found = nonnegative_least_squares(matrix, target)
        assert (found >= 0).all()
        assert np.linalg.norm(matrix @ found - target) == pytest.approx(best, rel=1e-6)


def test_the_cost_of_a_kernel_is_a_sum_over_its_sizes():
    kernel = Kernel("convolution", "convolution", 2**23 + 100, 1000, rows=7, columns=24, weight_bytes=40)
    cost = FamilyCost(family(kernel), 1.0, 1e-3, 1.0, 1e-2, 1e-1, 1e-4, 5.0)
    # 24 columns are two vectors of 16.
    assert cost.seconds(kernel) == pytest.approx(1 + (2**23 + 100) / 1000 + 100 + 10 + 1000 * 32 / 24 / 10 + 40e-4)
