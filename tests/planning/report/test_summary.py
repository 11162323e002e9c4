"""Sentences of the summary agree with the plan's numbers."""

import re
from dataclasses import replace

import pytest
from hypothesis import given

from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.planner import plan
from deeppool.planning.report.summary import MOST_GROUPS, summarise
from deeppool.profiling.shipped import find_profile
from deeppool.units import format_seconds
from tests.figures.records import layer, plan_of, two_layer_plan
from tests.sampling import examples
from tests.strategies import problems


def test_the_summary_of_a_small_plan_equals_one_written_by_hand():
    assert summarise(two_layer_plan()) == (
        "tiny at global batch 64 on 4 GPUs (dgx-a100) takes 46 ms an iteration, 2.5× one GPU: as fast as data "
        "parallelism (46 ms), with 76 % of its GPU-seconds. Layers, and their share of the time: 1 (67 %) on "
        "4 GPUs, 1 (33 %) on 1 GPU. 24 % of all GPU time is left to a background job (no layer spends more than "
        "2× its GPU-seconds on one GPU; amplification 1, exact)."
    )


@examples(40)
@given(problems())
def test_shares_of_layers_and_of_time_are_whole(problem):
    text = summarise(plan(*problem))
    groups = re.search(r"share of the time: (.*?)\. [\d.]+ %", text)[1]
    counts = [int(found) for found in re.findall(r"(\d+) \(", groups)]
    shares = [float(found) for found in re.findall(r"\(([\d.]+) %\)", groups)]
    assert sum(counts) == len(problem[0].graph.layers)
    assert sum(shares) == pytest.approx(100, abs=1.5)
    assert "no limit on amplification" in text


def test_the_summary_of_a_published_plan_counts_the_layers_over_its_limit():
    made = plan(find_profile("resnet50-h200"), 8, 32, 1.2, search="published")
    over = len(made.over_limit)
    assert over
    assert f"({over} of 72 layers are over the limit of 1.2× their GPU-seconds on one GPU; " in summarise(made)


@examples(40)
@given(problems())
def test_what_is_compared_with_data_parallelism_has_its_time_and_the_right_direction(problem):
    profile, cluster, batch = problem
    made = plan(*problem, 1.2)
    text = summarise(made)
    on = {one.gpus: one.seconds for one in made.comparison.data_parallel}
    for count, seconds in on.items():
        alone = data_parallel_plan(profile, replace(cluster, gpus=count), batch).iteration_time
        assert seconds == pytest.approx(alone, rel=1e-9)
    fastest = min(on.values())
    assert f"DDP ({format_seconds(fastest)}" in text
    fewer = [count for count, seconds in on.items() if seconds < on[cluster.gpus] * (1 - 1e-9)]
    assert (f", where it is fastest, {format_seconds(on[cluster.gpus])} on all)" in text) is bool(fewer)
    longer = made.iteration_time / fastest - 1
    slow = "longer than" if longer < 1 else "as long as"
    assert ("as fast as" if abs(longer) < 0.005 else "faster than" if longer < 0 else slow) in text


def test_rare_gpu_counts_are_listed_together():
    counts = [2**exponent for exponent in range(7)]
    made = plan_of(*[layer(f"l{count}", count, forward=float(count)) for count in counts], gpus=64)
    text = summarise(made)
    assert f"on {len(counts) - MOST_GROUPS} other counts" in text
    assert text.index("on 64 GPUs") < text.index("on 8 GPUs")


def test_a_plan_that_is_much_slower_or_faster_is_given_as_a_multiple():
    slow = plan_of(layer("conv", 1, forward=9.0), gpus=2)
    object.__setattr__(slow, "data_parallel_iteration_time", 27.0)
    assert "3× faster than data parallelism (27 s)" in summarise(slow)
    object.__setattr__(slow, "data_parallel_iteration_time", 6.0)
    assert "50 % longer than data parallelism (6 s)" in summarise(slow)
    object.__setattr__(slow, "data_parallel_iteration_time", 3.0)
    assert "3× as long as data parallelism (3 s)" in summarise(slow)
