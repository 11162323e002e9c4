"""All-reduces of GPUs that share a channel or not, and what they slow down."""

import pytest

from deeppool.planning.evaluate.channels import Channels


def test_an_all_reduce_waits_for_those_that_share_a_gpu():
    channels = Channels(0.0)
    assert channels.start((0, 1), 1.0, 5.0) == 1.0
    assert channels.start((2, 3), 2.0, 2.0) == 2.0
    assert channels.start((1, 2), 3.0, 1.0) == 6.0
    assert channels.start((3,), 9.0, 1.0) == 9.0
    assert channels.end == 10.0


@pytest.mark.parametrize(
    ("gpus", "now", "seconds", "end"),
    [
        ((0,), 0.0, 1.0, 1.0),
        # 2 s before the all-reduce, from 2 to 6; then 1 s beside it at a quarter of the rate, which takes 4; then 0.5.
        ((0,), 0.0, 3.5, 6.5),
        ((1, 2), 5.0, 0.25, 6.0),
        ((2,), 0.0, 3.5, 3.5),
        ((0,), 6.0, 1.0, 7.0),
    ],
)
def test_what_runs_beside_an_all_reduce_advances_at_what_the_core_leaves(gpus, now, seconds, end):
    channels = Channels(0.75)
    channels.start((0, 1), 2.0, 4.0)
    assert channels.beside(gpus, now, seconds) == end


def test_nothing_slows_down_where_cores_do_not_compute():
    channels = Channels(0.0)
    channels.start((0, 1), 2.0, 4.0)
    assert channels.beside((0,), 0.0, 3.5) == 3.5
