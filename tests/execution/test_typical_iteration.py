"""The timeline of a run shows an iteration near the median of all of them."""

import random
from itertools import pairwise

from deeppool.base.timeline import Span
from deeppool.execution.typical_iteration import KEPT, TypicalIteration
from tests.figures.records import two_layer_plan


def answer(*iterations: tuple[float, float]) -> dict:
    """A rank's answer, with one span for each iteration, from its start to its end."""
    return {
        "times": [end - start for start, end in iterations],
        "spans": [[("forward", 0, "s", *times)] for times in iterations],
    }


def test_the_iteration_nearest_the_median_is_drawn_with_what_the_background_computed_in_it() -> None:
    # From the first start to the last end on both ranks: 7, 3, 2, 9, 5 s, in two rounds.
    rounds = [
        [answer((0.0, 7.0), (10.0, 11.0)), answer((0.0, 1.0), (10.0, 13.0))],
        [answer((20.0, 22.0), (30.0, 31.0), (40.0, 41.0)), answer((20.0, 21.0), (30.0, 39.0), (42.0, 45.0))],
    ]
    background = [Span(0, "background", "job", *times) for times in ((39.0, 40.5), (41.0, 42.0), (44.0, 50.0))]
    typical = TypicalIteration()
    for answers, pieces in zip(rounds, ([], background), strict=True):
        for iteration, _ in enumerate(answers[0]["times"]):
            typical.add(answers, iteration, pieces)
    drawn = typical.timeline(two_layer_plan(2))
    assert [(x.gpu, x.kind, x.start, x.end) for x in drawn.spans] == [
        (0, "forward", 0.0, 1.0),
        (0, "background", 0.0, 0.5),
        (0, "background", 1.0, 2.0),
        (0, "background", 4.0, 5.0),
        (1, "forward", 2.0, 5.0),
    ]
    assert "near the median" in drawn.title


def test_one_disturbed_iteration_in_the_last_round_is_not_drawn() -> None:
    """A rank that waits for its core ends long after the one whose time the record has."""
    typical = TypicalIteration()
    for start in (0.0, 10.0, 20.0, 30.0):
        typical.add([answer((start, start + 1.0)), answer((start, start + 1.0))], 0)
    typical.add([answer((40.0, 41.0)), answer((40.0, 49.0))], 0)
    assert typical.timeline(two_layer_plan(2)).duration == 1.0


def test_of_many_iterations_it_is_as_near_as_any_up_to_the_spacing_of_those_around_the_median() -> None:
    drawn = random.Random(0)
    for count in (1, 2, KEPT, 500):
        # In the order of growing times: the median moves over all of them.
        times = sorted(drawn.lognormvariate(0, 1) for _ in range(count))
        drawn.shuffle(times)
        typical = TypicalIteration()
        for seconds in times:
            typical.add([answer((0.0, seconds))], 0)
        times.sort()
        middle = (times[(count - 1) // 2] + times[count // 2]) / 2
        nearest = min(abs(seconds - middle) for seconds in times)
        around = times[max(0, count // 2 - KEPT) : count // 2 + KEPT]
        spacing = max((after - before for before, after in pairwise(around)), default=0.0) if count > KEPT else 0.0
        assert abs(typical.timeline(two_layer_plan(2)).duration - middle) <= nearest + spacing
