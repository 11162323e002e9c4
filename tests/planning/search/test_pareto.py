"""The filter of all searches: by hand, and against the definition."""

import numpy as np
import pytest

from deeppool.planning.search.pareto import efficient_rows


def test_of_four_rows_one_is_beaten_by_two_others_and_one_equals_another():
    """(3, 3) is beaten by (2, 3) and by (3, 1); of the two rows (2, 3) one stays."""
    rows = efficient_rows(None, np.array([3.0, 2.0, 3.0, 2.0]), np.array([3.0, 3.0, 1.0, 3.0]))
    assert rows.tolist() in ([1, 2], [3, 2])


def test_rows_of_different_keys_do_not_beat_each_other():
    rows = efficient_rows(np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert rows.tolist() == [0, 2]


def test_a_row_that_is_best_in_its_third_number_stays():
    rows = efficient_rows(None, *np.array([[1.0, 2.0, 2.0], [1.0, 2.0, 2.0], [5.0, 4.0, 6.0]]))
    assert rows.tolist() == [0, 1]


@pytest.mark.parametrize(("count", "columns"), [(10, 2), (6000, 2), (200, 3), (200, 4)])
@pytest.mark.parametrize("keys", [1, 3, 2000])
def test_rows_kept_are_those_that_none_beats(count, columns, keys):
    draw = np.random.default_rng([count, columns, keys])
    key, values = draw.integers(0, keys, count), draw.integers(1, 30 if columns > 2 else 300, (columns, count)) / 7
    kept = efficient_rows(key if keys > 1 else None, *values)
    assert len({(key[row], *values[:, row]) for row in kept}) == len(kept), "of equal ones one"
    is_kept = np.isin(np.arange(count), kept)
    for row in range(count):
        beat_it = (key == key[row]) & (values <= values[:, [row]]).all(axis=0)
        assert (beat_it & is_kept).any(), (row, "neither kept nor beaten by one that is")
        if is_kept[row]:
            assert not (values[:, beat_it] < values[:, [row]]).any(), (row, "kept and beaten")
