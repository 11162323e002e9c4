"""Which rank holds up the others, from the seconds before their collectives."""

from deeppool.records.compute_times import compute_times, straggler


def test_the_rank_that_computes_longest_is_named_with_how_often_it_was_the_last() -> None:
    found = compute_times([[1.0, 1.0, 1.0], [1.2, 0.9, 1.0], [3.0, None, 2.0]])
    assert [(each.rank, each.updates, each.p50) for each in found] == [(0, 3, 1.0), (1, 3, 1.0), (2, 2, 2.5)]
    # In the update that rank 2 left out, rank 0 was the last.
    assert [each.slowest for each in found] == [1 / 3, 0.0, 1.0]
    assert straggler(found) == (
        "rank 2 computes 2.5 s before it meets the others, 2.5 times their median, and is the last one in 100% of "
        "its updates"
    )


def test_a_rank_with_more_layers_by_the_plan_is_not_late() -> None:
    found = compute_times([[3.0, 3.0], [1.0, 1.0], [1.0, 1.1], [1.8, 1.8]])
    assert str(straggler(found)).startswith("rank 0 computes 3 s")
    assert straggler(found, [(0,), (0, 1, 2, 3)]) == (
        "rank 3 computes 1.8 s before it meets the others, 1.76 times the median of those with the same layers"
    )
    assert straggler(found, [(0,), (0, 3), (0, 1, 2, 3)]) is None
    assert straggler(compute_times([[9.0], [1.0], [1.3]]), [(0,), (0, 1, 2)]) is None  # 0.3 s beside 9 s


def test_a_rank_is_late_beside_ranks_whose_clocks_tell_no_time() -> None:
    assert str(straggler(compute_times([[0.0], [2.0], [0.0]]))).startswith(
        "rank 1 computes 2 s before it meets the others, inf times their median"
    )


def test_no_rank_is_blamed_where_all_compute_alike_or_there_is_one() -> None:
    assert straggler(compute_times([[1.0, 1.1], [1.1, 1.0]])) is None
    assert straggler(compute_times([[1.0]])) is None
    assert compute_times([]) == ()
