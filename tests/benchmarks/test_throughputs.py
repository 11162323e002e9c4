"""Estimated iteration times beside published throughputs: the table, the split, and one model in full."""

import numpy as np
import pytest

from benchmarks.estimates.public import iterations, throughputs
from benchmarks.estimates.validation import Estimate, accuracy_table, fitted_on, spearman
from deeppool.device.datasheet import GPUS
from deeppool.device.roofline import ACCURACY


def test_each_rate_is_of_a_known_gpu_and_precision_and_counted_once():
    rows = throughputs()
    assert len(rows) > 100
    assert {row.gpu for row in rows} <= set(GPUS)
    assert {row.precision for row in rows} <= set(ACCURACY)
    assert len({(row.gpu, row.precision, row.layout, row.model, row.size) for row in rows}) == len(rows)
    assert min(row.throughput for row in rows) > 1


def test_nothing_is_fitted_to_other_gpus_or_to_a_model_that_is_held_out():
    rows = throughputs()
    seen = fitted_on(rows)
    held_out = [row for row in rows if row.gpu == "rtx3090" and row not in seen]
    assert {row.gpu for row in seen} == {"rtx3090"}
    assert not {row.model for row in seen} & {row.model for row in held_out}
    assert abs(len(seen) - len(held_out)) < 10


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", pytest.param("mobilenetv2_100", marks=pytest.mark.stress)])
def test_an_iteration_is_estimated_close_to_its_published_time_and_closer_than_by_the_roofline(model):
    pytest.importorskip("timm")
    rows = [row for row in throughputs() if row.model == model and row.layout == "channels first"]
    (found,) = (Estimate.of(iteration, seen=False) for iteration in iterations(rows))
    error, naive = (abs(x / found.published.seconds - 1) for x in (found.seconds, found.naive))
    assert found.possible
    assert error < 0.2 < naive
    assert "not seen, all" not in "".join(accuracy_table([found]))


def test_the_rank_correlation_is_that_of_the_ranks():
    assert spearman(np.array([1.0, 2.0, 30.0]), np.array([5.0, 6.0, 7.0])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 1.0, 4.0, 3.0])) == pytest.approx(0.6)
