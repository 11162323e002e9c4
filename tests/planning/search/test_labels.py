"""Labels of parts of a model, put together by hand."""

import math

import numpy as np

from deeppool.planning.search.labels import (
    EMPTY_PLAN,
    INFEASIBLE,
    Choice,
    Labels,
    PartialPlan,
    choices_of,
    label_of,
    plan_of,
)

FIRST = label_of(PartialPlan(3.0, 4.0, 1.0, (Choice(0, 1, 0),)))
"""3 s forward, 4 s backward, 1 for GPU-seconds."""
SECOND = label_of(PartialPlan(5.0, 2.0, 1.0, (Choice(1, 0, 0),)))
NO_LIMIT = {"cap": math.inf, "slack": math.inf}


def test_parts_one_after_another_add_up():
    found = EMPTY_PLAN.together(FIRST, side_by_side=False, **NO_LIMIT).together(SECOND, side_by_side=False, **NO_LIMIT)
    assert found.values[:, 0].tolist() == [8.0, 6.0, 2.0, 0.0]
    assert found.time.tolist() == [16.0]
    assert plan_of(found.plans[0]) == ((1, 0), (0, 0))


def test_parts_side_by_side_wait_for_the_longer_pass():
    """Forward 5 s of the second, backward 4 s of the first; GPU-seconds and the transfer of 0.5 to the join add up."""
    second = SECOND.placed(layers=0, start=4, moved=0.5)
    found = FIRST.together(second, side_by_side=True, **NO_LIMIT)
    assert found.values[:, 0].tolist() == [5.0, 4.0, 2.0, 0.5]
    assert plan_of(found.plans[0]) == ((1, 0), (0, 4))


def test_pairs_over_the_cap_or_the_slack_are_left_out():
    second = SECOND.placed(0, 0, moved=0.5)
    assert len(FIRST.together(second, side_by_side=True, cap=11.5, slack=0.5).plans) == 1
    assert not FIRST.together(second, side_by_side=True, cap=11.4, slack=0.5).plans
    assert not FIRST.together(second, side_by_side=True, cap=11.5, slack=0.4).plans


def test_of_two_labels_the_one_that_is_worse_in_every_number_goes():
    values = np.array([[1.0, 2.0, 0.5], [1.0, 1.0, 3.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    found = Labels(values, [(Choice(0, option, 0),) for option in range(3)]).efficient()
    assert {plan[0].option for plan in found.plans} == {0, 2}


def test_offsets_of_nested_parts_add_up():
    inner = (Choice(0, 1, 0), Choice(1, 2, 1))
    nested = (Choice(0, 0, 0), (((inner, 1, 2),), 3, 4))
    assert list(choices_of(nested)) == [Choice(0, 0, 0), Choice(4, 1, 6), Choice(5, 2, 7)]


def test_nothing_feasible_is_no_label():
    assert not label_of(INFEASIBLE).plans
