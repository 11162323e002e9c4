"""Sets of GPUs that meet, and branches side by side."""

from deeppool.graph.series_parallel import ParallelBlock, Series
from deeppool.planning.evaluate.gpu_sets import concurrent_branches, share_gpus


def test_ranges_and_sets_with_holes_share_a_gpu_or_not():
    assert share_gpus((0, 1, 2), (2, 3))
    assert not share_gpus((0, 1), range(2, 4))
    assert not share_gpus((0, 2), (1, 3)), "their ranges overlap, their GPUs do not"
    assert share_gpus((0, 3), (1, 3))


def series(*layers):
    return Series(layers, (None,) * len(layers))


def test_branches_that_share_a_gpu_are_one_group():
    """Branches 0 and 2 meet on GPU 3 though they start apart; branch 1 is alone; branch 3 holds GPU 5 with 1."""
    block = ParallelBlock((series(0), series(1, 2), series(3), series(4)), direct=False)
    gpus = [(2, 3), (4,), (4, 5), (3,), (5,)]
    assert concurrent_branches(block, gpus) == ((0, 2), (1, 3))
    assert concurrent_branches(block, [(0,), (1,), (1, 2), (3,), (4,)]) == ((0,), (1,), (2,), (3,))
    assert concurrent_branches(block, [(0,), (1,), (1, 2), (3,), (0, 1, 2, 3)]) == ((0, 1, 2, 3),)
