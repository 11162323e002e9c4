"""Spans of an iteration on several ranks: what a rank waits for others is left out of its transfers."""

import pytest

from deeppool.execution.measurements import iteration_spans, iteration_times

SPANS = {
    # Computes the first stage, and the second one with rank 1.
    0: [("forward", 0, "a", 0.0, 1.0), ("reshard", 1, "→ b", 1.0, 1.1), ("reshard", 1, "→ b", 1.1, 1.2)],
    # Waits for its part of the input.
    1: [("reshard", 1, "→ b", 0.0, 1.2), ("forward", 1, "b", 1.2, 1.4)],
}
CUT = {0: [(0, 1.0), (1, 0.1), (1, 0.1)], 1: [(1, 0.1), (1, 0.2)]}
"""Stages and seconds of the spans without waits."""


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_each_accumulated_batch_has_its_own_transfers(accumulation: int) -> None:
    answers = [
        {
            "spans": [
                [
                    (*what, start + 2.0 * batch, end + 2.0 * batch)
                    for batch in range(accumulation)
                    for *what, start, end in SPANS[rank]
                ]
            ]
        }
        for rank in SPANS
    ]
    found = iteration_spans(answers, 0)
    for rank, expected in CUT.items():
        own = [(stage, end - start) for of, _, stage, _, start, end in found if of == rank]
        assert own == [(stage, pytest.approx(seconds)) for stage, seconds in expected * accumulation]


def test_iterations_add_up_to_the_end_of_the_last_rank() -> None:
    # Rank 1 is late in the first iteration, so rank 0 begins the second one earlier and waits in it.
    answers = [{"times": [1.0, 3.0, 2.0]}, {"times": [2.0, 2.0, 2.5]}]
    assert iteration_times(answers) == [2.0, 2.0, 2.5]
    assert iteration_times(answers, ranks_wait=False) == [1.0, 3.0, 2.0]
    assert iteration_times(answers[:1]) == answers[0]["times"]
