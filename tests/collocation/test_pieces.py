"""Cutting a step into pieces: as few as fit the limit, and the same training."""

import itertools
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from deeppool.collocation.pieces import cut

SECONDS = st.integers(1, 10).map(float)
TIMES = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8)


def every_cut(count: int) -> Iterator[list[range]]:
    """All ways to cut layers in order into runs."""
    for size in range(count):
        for places in itertools.combinations(range(1, count), size):
            yield [range(start, stop) for start, stop in itertools.pairwise([0, *places, count])]


def fits(times: list[tuple[float, float]], run: range, limit: float) -> bool:
    return len(run) == 1 or all(sum(times[layer][part] for layer in run) <= limit for part in (0, 1))


@given(times=TIMES, limit=st.integers(1, 25).map(float))
def test_there_are_as_few_pieces_as_fit_the_limit(times: list[tuple[float, float]], limit: float) -> None:
    runs = cut(times, limit)
    assert [layer for run in runs for layer in run] == list(range(len(times)))
    assert all(fits(times, run, limit) for run in runs)
    fitting = [len(way) for way in every_cut(len(times)) if all(fits(times, run, limit) for run in way)]
    assert len(runs) == min(fitting)
