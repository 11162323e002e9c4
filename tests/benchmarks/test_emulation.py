"""What the ranks of a plan would do together, from the runs of those that differ."""

import dataclasses

import pytest

from benchmarks.emulation import main as emulation
from tests.figures.records import run_of, two_layer_plan


def test_ranks_are_alike_that_compute_the_same_layers_on_as_many_samples():
    plan = two_layer_plan()
    first, second = plan.layers
    layers = (
        dataclasses.replace(first, gpus=(0, 1, 2), gpu_count=3),
        dataclasses.replace(second, gpus=(1,), gpu_count=1),
    )
    uneven = dataclasses.replace(plan, layers=layers, global_batch=8)
    # Of 8 samples on three ranks the last has 2; rank 1 has the second layer too, rank 3 none.
    assert emulation.alike(uneven) == [(0,), (1,), (2,), (3,)]
    even = dataclasses.replace(uneven, global_batch=9)
    assert emulation.alike(even) == [(0, 2), (1,), (3,)]


def test_the_worst_rank_slows_the_foreground_and_every_rank_counts_for_the_background():
    def share(ranks, slowdown, harvest):
        run = run_of()
        front = dataclasses.replace(run.foreground, slowdown=slowdown)
        back = dataclasses.replace(run.background, harvest=harvest)
        return emulation.Share(ranks, dataclasses.replace(run, foreground=front, background=back))

    shares = [share((0, 2, 3), 0.25, 0.1), share((1,), 0.0, 0.5)]
    whole = emulation.together(shares)
    assert (whole.slowdown, whole.harvest) == (0.25, pytest.approx(0.2))
    assert whole.throughput == pytest.approx(0.8 + 0.2)
    assert "Sum of normalised throughputs, emulated: 1.00" in emulation.table(shares)
