"""Renumbering of the GPUs that a plan uses."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.planning.layer_assignment import AlternativeCost, deferred
from deeppool.planning.renumber_gpus import renumber_gpus
from tests.planning.evaluate.test_memory import graphs_with_memory
from tests.strategies import profiles


@pytest.mark.slow
@given(profiles(graphs_with_memory()), st.sampled_from([2, 3, 5]))
def test_a_plan_that_uses_some_gpus_equals_the_plan_for_that_many(profile, spacing) -> None:
    plan = dp.plan(profile, 4, 8)
    used = {gpu for layer in plan.layers for gpu in layer.gpus}
    expected = renumber_gpus(plan)
    assert {gpu for layer in expected.layers for gpu in layer.gpus} == set(range(expected.gpus))
    assert expected.gpus == len(used)
    # The same on every second, third or fifth GPU of a larger cluster, from number 1 on.
    spread = dataclasses.replace(
        plan,
        gpus=1 + 4 * spacing,
        layers=tuple(
            dataclasses.replace(layer, gpus=tuple(1 + spacing * gpu for gpu in layer.gpus)) for layer in plan.layers
        ),
        memory=tuple(
            dataclasses.replace(use, gpus=tuple(1 + spacing * gpu for gpu in use.gpus)) for use in plan.memory
        ),
    )
    assert renumber_gpus(spread) == expected
    assert renumber_gpus(expected) == expected
    assert dp.simulate(expected).timeline.duration == dp.simulate(plan).timeline.duration


def test_a_plan_on_fewer_gpus_is_still_compared_with_data_parallelism_on_all_of_the_cluster() -> None:
    profile = dp.find_profile("resnet50-h200")
    plan = dp.plan(profile, 8, 64, 1.0)
    found = renumber_gpus(plan)
    assert found.gpus == 1
    assert found.comparison == plan.comparison
    dp.check(found, profile)


def test_no_alternative_is_computed_before_it_is_read() -> None:
    # Their costs were more than half of a simulation of a cluster, which reads none.
    computed = []

    def compute():
        computed.append(1)
        return (AlternativeCost(2, 1e-3, 1.5, ()),)

    plan = dp.plan(dp.find_profile("vgg16-cpu"), 2, 8)
    late = dataclasses.replace(
        plan, layers=tuple(dataclasses.replace(layer, alternatives=deferred(compute)) for layer in plan.layers)
    )
    found = renumber_gpus(late)
    assert computed == []
    assert found.layers[0].alternatives == compute()
